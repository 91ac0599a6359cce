//! The commands `versionfs.*`, which are sent to a directory.

use crate::core::Core;
use crate::history::{At, Seen};
use crate::past::{Body, PastDir, PastFile, PastKey, Target};
use crate::reply::{MAX_REPLY, escape, field, head_word, time, unescape};
use crate::sets_of_dir::names_with_sets;
use crate::{change_sets, change_versions, commands_policy, tags, token};
use std::collections::BTreeMap;
use std::sync::Arc;
use versionset::Letter;
use vnode::{Command, CommandAccess, Cx, Errno, Kind, Name, Result, Time, Vnode};

const fn anyone(name: &'static str, help: &'static str) -> Command {
    Command { name, help, access: CommandAccess::Anyone }
}

/// The commands of this file and of those it calls.
const ALL: [Command; 19] = [
    crate::audit::COMMAND,
    anyone(
        "versionfs.list",
        "Lists the versions of a name. The input is NAME, or NAME and the number of the first version.",
    ),
    anyone(
        "versionfs.origins",
        "Lists from where files were renamed to a name: a line TIME OP PATH NAME for each. PATH leads from this directory to \
         the former one. The input is NAME.",
    ),
    anyone(
        "versionfs.names",
        "Lists the names in this directory that have versions, also those of removed files. The input is empty, or the name \
         after which the list begins.",
    ),
    anyone(
        "versionfs.lost",
        "Lists the names in this directory whose last state is not in the history: a line WHY NAME BORN DIED OP UID PID SID \
         COMM for each. The input is empty; or a time or a tag, and a name or none: then the names that existed at that \
         time in a state that is not known.",
    ),
    anyone(
        "versionfs.open",
        "Returns a name by which a version can be opened in this directory, read-only, within 10 seconds. The input is NAME \
         and the number; with the word raw, the version file is opened as it is stored.",
    ),
    anyone(
        "versionfs.at",
        "Returns a name by which this directory can be opened as it was, read-only, within 10 seconds. The input is a time or \
         a tag.",
    ),
    anyone("versionfs.tags", "Returns the tags, a line NAME TIME each. The input is empty."),
    anyone(
        "versionfs.usage",
        "Returns what the versions of this directory's entries take: a line LETTER COUNT SIZE STORED for each format, sizes in \
         bytes. The input is empty.",
    ),
    anyone(
        "versionfs.rename",
        "Renames the head and all versions of a name. The input is NAME, the number of the new directory and the new name, \
         which must have neither. Returns an empty reply.",
    ),
    anyone("versionfs.unlink", "Removes a file with all its versions. The input is NAME. Returns an empty reply."),
    anyone(
        "versionfs.rmdir",
        "Removes an empty directory with all its versions and those of everything that was in it. The input is NAME. Returns \
         an empty reply.",
    ),
    anyone(
        "versionfs.chown",
        "Sets the owner of the head and all versions. The input is NAME, user ID and group ID; -1 keeps one. Returns an empty \
         reply.",
    ),
    anyone(
        "versionfs.chmod",
        "Sets the mode of the head and all versions. The input is NAME and the mode in octal. Returns an empty reply.",
    ),
    anyone(
        "versionfs.discard",
        "Discards versions. The input is NAME and their numbers. A pinned one is refused. Returns an empty reply.",
    ),
    anyone(
        "versionfs.pin",
        "Keeps a version from being discarded. The input is NAME, the number, on or off. Returns an empty reply.",
    ),
    anyone(
        "versionfs.annotate",
        "Sets the note of a version. The input is NAME, the number and the text, at most 2,048 bytes; without a text, the note \
         is removed. Returns an empty reply.",
    ),
    Command {
        name: "versionfs.tag",
        help: "Names a time. The input is the tag, and a time unless it is now. Returns an empty reply.",
        access: CommandAccess::Owner,
    },
    Command {
        name: "versionfs.untag",
        help: "Removes a tag. The input is the tag. Returns an empty reply.",
        access: CommandAccess::Owner,
    },
];

/// Returns the commands of the layer.
pub(crate) fn all() -> impl Iterator<Item = Command> {
    ALL.into_iter().chain(commands_policy::ALL)
}

/// A directory that commands are sent to.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) lower: &'a Arc<dyn Vnode>,
    /// The number of the vnode: tokens are valid there.
    pub(crate) id: u64,
}

/// Answers a command that was sent to a file.
pub(crate) fn not_a_directory(_cx: &Cx<'_>, command: &str) -> Result<Vec<u8>> {
    Err(if is_own(command) { Errno::OPNOTSUPP } else { Errno::NOTTY })
}

/// Whether a command is one of this layer.
pub(crate) fn is_own(command: &str) -> bool {
    all().any(|known| known.name == command)
}

/// Whether a command only reads.
pub(crate) fn only_reads(command: &str) -> bool {
    const READING: [&str; 11] =
        ["list", "origins", "names", "lost", "open", "at", "tags", "usage", "log", "policy", "space"];
    command.strip_prefix("versionfs.").is_some_and(|word| READING.contains(&word))
}

impl Place<'_> {
    /// Runs one of the layer's commands. `None`: it is another layer's.
    pub(crate) fn run(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Option<Result<Vec<u8>>> {
        if !is_own(command) {
            return None;
        }
        let allowed = cx.require_blocking().and_then(|()| self.core.require_access(cx, command));
        Some(allowed.and_then(|()| self.run_own(cx, command, input.trim_ascii())))
    }

    fn run_own(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        let fields: Vec<&[u8]> = input.split(|byte| *byte == b' ').filter(|field| !field.is_empty()).collect();
        match (command, &*fields) {
            ("versionfs.list", [name]) => self.list(cx, &self.at(name)?, 1),
            ("versionfs.list", [name, from]) => self.list(cx, &self.at(name)?, number(from)?),
            ("versionfs.origins", [name]) => self.origins(cx, &self.at(name)?),
            ("versionfs.names", []) => self.names(cx, b""),
            ("versionfs.names", [after]) => self.names(cx, &unescape(after).ok_or(Errno::INVAL)?),
            ("versionfs.lost", []) => self.lost(cx),
            ("versionfs.lost", [when]) => self.lost_at(cx, when, None),
            ("versionfs.lost", [when, name]) => self.lost_at(cx, when, Some(&self.at(name)?.name)),
            ("versionfs.open", [name, version]) => self.open(cx, &self.at(name)?, number(version)?),
            ("versionfs.open", [name, version, b"raw"]) => self.open_raw(cx, &self.at(name)?, number(version)?),
            ("versionfs.at", _) => self.open_at(cx, input),
            ("versionfs.tags", []) => Ok(tags::text(&tags::read(self.core, cx)?)),
            ("versionfs.usage", []) => self.usage(cx),
            ("versionfs.log", []) => self.audit_log(cx, 1),
            ("versionfs.log", [from]) => self.audit_log(cx, number(from)?),
            (command, fields) if commands_policy::ALL.iter().any(|own| own.name == command) => {
                self.run_policy(cx, command, fields)
            }
            _ => self.change(cx, command, &fields).map(|()| Vec::new()),
        }
    }

    /// Runs a command that changes something. Its reply is empty.
    fn change(&self, cx: &Cx<'_>, command: &str, fields: &[&[u8]]) -> Result<()> {
        let core = self.core;
        match (command, fields) {
            ("versionfs.rename", [name, dir, new_name]) => {
                let new_name = unescape(new_name).ok_or(Errno::INVAL)?;
                change_sets::rename(core, cx, &self.at(name)?, decimal(dir)?, &new_name)
            }
            ("versionfs.unlink", [name]) => change_sets::remove(core, cx, &self.at(name)?, false),
            ("versionfs.rmdir", [name]) => change_sets::remove(core, cx, &self.at(name)?, true),
            ("versionfs.chown", [name, uid, gid]) => change_sets::chown(core, cx, &self.at(name)?, id(uid)?, id(gid)?),
            ("versionfs.chmod", [name, mode]) => change_sets::chmod(core, cx, &self.at(name)?, octal(mode)?),
            ("versionfs.discard", [name, numbers @ ..]) if !numbers.is_empty() => {
                let numbers: Vec<u64> = numbers.iter().map(|field| number(field)).collect::<Result<_>>()?;
                change_versions::discard(core, cx, &self.at(name)?, &numbers)
            }
            ("versionfs.pin", [name, version, how @ (b"on" | b"off")]) => {
                change_versions::pin(core, cx, &self.at(name)?, number(version)?, *how == b"on")
            }
            ("versionfs.annotate", [name, version, words @ ..]) => {
                let text = unescape(&words.join(&b' ')).ok_or(Errno::INVAL)?;
                change_versions::annotate(core, cx, &self.at(name)?, number(version)?, &text)
            }
            ("versionfs.tag", [name]) => self.tag(cx, name, core.now()),
            ("versionfs.tag", [name, when @ ..]) => {
                let when = unescape(&when.join(&b' ')).ok_or(Errno::INVAL)?;
                let moment = tags::moment(core, cx, &when)?.ok_or(Errno::INVAL)?;
                self.tag(cx, name, moment)
            }
            ("versionfs.untag", [name]) => {
                let name = unescape(name).ok_or(Errno::INVAL)?;
                tags::update(core, cx, |tags| tags.remove(&name).map(|_| ()).ok_or(Errno::NOENT))?;
                core.report_tag(&name);
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn tag(&self, cx: &Cx<'_>, name: &[u8], moment: Time) -> Result<()> {
        let name = unescape(name).filter(|name| tags::is_tag(name)).ok_or(Errno::INVAL)?;
        tags::update(self.core, cx, |tags| {
            if tags.contains_key(&name) {
                return Err(Errno::EXIST);
            }
            tags.insert(name.clone(), moment);
            Ok(())
        })?;
        self.core.report_tag(&name);
        Ok(())
    }

    /// Returns what the versions in this directory take: a line `LETTER COUNT SIZE STORED` for each
    /// way in which some are stored. Subdirectories are not counted, removed ones as one version.
    fn usage(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.require(cx, access::READ)?;
        let server = self.core.server(cx);
        let mut by_letter: BTreeMap<Letter, (u64, u64, u64)> = BTreeMap::new();
        for name in names_with_sets(self.core, cx, self.lower)? {
            cx.check()?;
            let own = self.core.set_of_name(self.lower, &name);
            let locked = own.lock(self.core, &server)?;
            for version in locked.index().versions.values() {
                let stored = locked.stored(&server, version)?;
                let sum = by_letter.entry(version.letter).or_default();
                *sum = (sum.0 + 1, sum.1.saturating_add(version.size), sum.2.saturating_add(stored));
            }
        }
        let line = |(letter, (count, size, stored)): (Letter, (u64, u64, u64))| {
            format!("{} {count} {size} {stored}\n", char::from(letter as u8)).into_bytes()
        };
        Ok(by_letter.into_iter().flat_map(line).collect())
    }

    fn open_at(&self, cx: &Cx<'_>, input: &[u8]) -> Result<Vec<u8>> {
        self.require(cx, access::SEARCH)?;
        let text = unescape(input).ok_or(Errno::INVAL)?;
        let moment = tags::moment(self.core, cx, &text)?.ok_or(Errno::NOENT)?;
        self.token(cx, PastDir::at(self.core, self.lower, moment))
    }

    /// Returns the entry with an escaped name.
    pub(crate) fn at(&self, name: &[u8]) -> Result<At> {
        let name = unescape(name).ok_or(Errno::INVAL)?;
        if Name::new(&name)?.as_bytes() == versionset::STORE {
            Err(Errno::NOENT)
        } else {
            Ok(At::new(self.lower, &name))
        }
    }

    /// Fails with `EACCES` if the caller may not search the directory.
    pub(crate) fn require_search(&self, cx: &Cx<'_>) -> Result<()> {
        self.require(cx, access::SEARCH)
    }

    /// Fails with `EACCES` if the caller may not read the directory.
    pub(crate) fn require_read(&self, cx: &Cx<'_>) -> Result<()> {
        self.require(cx, access::READ)
    }

    fn require(&self, cx: &Cx<'_>, mask: u32) -> Result<()> {
        if access::refused(cx, &**self.lower, mask)? == 0 { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn list(&self, cx: &Cx<'_>, at: &At, from: u64) -> Result<Vec<u8>> {
        self.require(cx, access::READ)?;
        let history = at.history(self.core, cx)?;
        if history.head.is_none() && history.versions.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut out = summary(history.head.as_ref().map(|head| head.attr.kind()), &history.versions, "set ");
        out.push(b'\n');
        for seen in history.versions.iter().filter(|seen| seen.version.number >= from) {
            if out.len() > MAX_REPLY {
                out.extend_from_slice(format!("more {}\n", seen.version.number).as_bytes());
                break;
            }
            cx.check()?;
            self.line(cx, seen, &mut out)?;
        }
        Ok(out)
    }

    /// Appends the line of a version.
    fn line(&self, cx: &Cx<'_>, seen: &Seen, out: &mut Vec<u8>) -> Result<()> {
        let version = &seen.version;
        let server = self.core.server(cx);
        let locked = seen.set.lock(self.core, &server)?;
        let stored = locked.stored(&server, version)?;
        drop(locked);
        let numbers = format!(
            "{} {} {} {} {stored} {:o} {} {} {} {} {} {} {} {} {} ",
            version.number,
            char::from(version.letter as u8),
            version.kind.word(),
            version.size,
            version.mode,
            version.uid,
            version.gid,
            time(version.mtime),
            time(version.born),
            time(version.died),
            version.cause.word(),
            version.who.uid,
            version.who.pid,
            version.who.sid,
        );
        out.extend_from_slice(numbers.as_bytes());
        field(&version.who.comm, out);
        out.push(b' ');
        let flags = [(version.flags.pinned, b'p'), (version.flags.landmark, b'l')];
        let flags: Vec<u8> = flags.into_iter().filter_map(|(is_set, letter)| is_set.then_some(letter)).collect();
        field(&flags, out);
        out.push(b' ');
        field(&seen.note, out);
        out.push(b' ');
        field(if seen.set.is_link() { &seen.set.stem } else { b"" }, out);
        out.push(b'\n');
        Ok(())
    }

    fn names(&self, cx: &Cx<'_>, after: &[u8]) -> Result<Vec<u8>> {
        self.require(cx, access::READ)?;
        let mut out = Vec::new();
        let mut last = after.to_vec();
        for name in names_with_sets(self.core, cx, self.lower)? {
            if &*name <= after {
                continue;
            }
            if out.len() > MAX_REPLY {
                out.extend_from_slice(b"more ");
                escape(&last, &mut out);
                out.push(b'\n');
                break;
            }
            cx.check()?;
            let history = At::new(self.lower, &name).history(self.core, cx)?;
            if !history.versions.is_empty() {
                out.extend(summary(history.head.map(|head| head.attr.kind()), &history.versions, ""));
                out.push(b' ');
                escape(&name, &mut out);
                out.push(b'\n');
            }
            last = name;
        }
        Ok(out)
    }

    fn open(&self, cx: &Cx<'_>, at: &At, number: u64) -> Result<Vec<u8>> {
        self.require(cx, access::SEARCH)?;
        let (key, target) = match at.content(self.core, cx, number)? {
            Some(seen) => (PastKey::version(&seen, false), Target::File(Body::Version(seen))),
            None => {
                let history = at.history(self.core, cx)?;
                let key = PastKey::version(history.version(number).ok_or(Errno::NOENT)?, false);
                (key, Target::of_version(self.core, cx, at, history, number)?)
            }
        };
        let vnode = self.core.past.get(&key, |id| target.into_vnode(self.core, id, crate::past::END));
        self.token(cx, vnode)
    }

    fn open_raw(&self, cx: &Cx<'_>, at: &At, number: u64) -> Result<Vec<u8>> {
        self.require(cx, access::SEARCH)?;
        let history = at.history(self.core, cx)?;
        let seen = history.version(number).ok_or(Errno::NOENT)?;
        let server = self.core.server(cx);
        let locked = seen.set.lock(self.core, &server)?;
        // Since the history was read, it may have been discarded or converted.
        let letter = seen.find(&locked).ok_or(Errno::STALE)?.letter;
        if matches!(letter, Letter::Directory | Letter::Special | Letter::Renamed | Letter::Blocks) {
            drop(locked);
            return self.open(cx, at, number);
        }
        let entry = locked.file(&server, letter, number)?.ok_or(Errno::IO)?;
        drop(locked);
        if entry.attr.kind() != Kind::Regular {
            return Err(Errno::IO);
        }
        let body = Body::Raw { lower: entry.vnode, seen: seen.clone() };
        let key = PastKey::version(seen, true);
        let vnode = self.core.past.get(&key, |id| Arc::new(PastFile::new(self.core, id, body)));
        self.token(cx, vnode)
    }

    /// Returns the reply with a token for `vnode`.
    pub(crate) fn token(&self, cx: &Cx<'_>, vnode: Arc<dyn Vnode>) -> Result<Vec<u8>> {
        Ok(token::as_reply(&self.core.tokens.issue(cx.caller(), self.id, vnode)?))
    }
}

/// Returns `HEAD FIRST LAST COUNT` after `start`.
fn summary(head: Option<Kind>, versions: &[Seen], start: &str) -> Vec<u8> {
    let number = |seen: Option<&Seen>| seen.map_or(0, |seen| seen.version.number);
    let (first, last) = (number(versions.first()), number(versions.last()));
    format!("{start}{} {first} {last} {}", head_word(head), versions.len()).into_bytes()
}

/// Parses the number of a version.
pub(crate) fn number(field: &[u8]) -> Result<u64> {
    versionset::number_of(field).ok_or(Errno::INVAL)
}

fn decimal(field: &[u8]) -> Result<u64> {
    let text = core::str::from_utf8(field).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(Errno::INVAL)
}

/// Parses a user or group ID; -1 is `u32::MAX`.
fn id(field: &[u8]) -> Result<u32> {
    if field == b"-1" {
        return Ok(u32::MAX);
    }
    u32::try_from(decimal(field)?).ok().filter(|id| *id != u32::MAX).ok_or(Errno::INVAL)
}

fn octal(field: &[u8]) -> Result<u32> {
    let text = core::str::from_utf8(field).ok().filter(|text| text.bytes().all(|byte| matches!(byte, b'0'..=b'7')));
    let mode = text.and_then(|text| u32::from_str_radix(text, 8).ok());
    mode.filter(|mode| *mode <= 0o7777).ok_or(Errno::INVAL)
}
