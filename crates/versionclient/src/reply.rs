//! Parsing of the replies of versionfs, and the escapes of names in them.
//!
//! A reply is lines of fields separated by one blank. In a field, bytes up to 0x20, 0x7f and `\`
//! are a backslash and three octal digits.

use jiff::Timestamp;
use rustix::fs::FileType;

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: the name was removed.
    None,
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block or character device.
    Device,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl Kind {
    const WORDS: [(Self, &'static str); 7] = [
        (Self::None, "none"),
        (Self::File, "file"),
        (Self::Directory, "directory"),
        (Self::Symlink, "symlink"),
        (Self::Device, "device"),
        (Self::Fifo, "fifo"),
        (Self::Socket, "socket"),
    ];

    fn parse(word: &[u8]) -> Option<Self> {
        Self::WORDS.into_iter().find(|(_, name)| name.as_bytes() == word).map(|(kind, _)| kind)
    }

    /// Returns the kind for a type of system calls.
    #[must_use]
    pub fn of(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            _ => Self::Device,
        }
    }

    /// Returns the word for the kind in replies.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.into_iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }
}

/// A version set: the present object under a name, and how many versions there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The present object.
    pub head: Kind,
    /// The number of versions.
    pub count: u64,
}

/// Who ended a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The user.
    pub uid: u32,
    /// The process; 0: unknown.
    pub pid: u32,
    /// Its session; 0: unknown.
    pub sid: u32,
    /// The name of the program, at most 15 bytes; empty: unknown.
    pub comm: Vec<u8>,
}

/// A version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its number, from 1 upward.
    pub number: u64,
    /// How it is stored: a letter of docs/formats/version-set.md.
    pub letter: char,
    /// What it is.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Space that it takes in the store, in bytes.
    pub stored: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// When this became the content of the file.
    pub born: Timestamp,
    /// When it was changed or removed.
    pub died: Timestamp,
    /// What ended it: `write`, `unlink`...
    pub op: String,
    /// Who ended it.
    pub by: Who,
    /// `p` pinned, `l` landmark, `u` unfinished.
    pub flags: String,
    /// The note of a user; empty: none.
    pub note: Vec<u8>,
    /// The file, if it had several names; empty: it had one, or the server does not say it.
    /// Versions of two names with the same text are of one file.
    pub file: Vec<u8>,
}

impl Version {
    /// Whether the file was like this at that time.
    #[must_use]
    pub fn covers(&self, time: Timestamp) -> bool {
        self.born <= time && time < self.died
    }

    /// Whether the file left the name when this version ended.
    #[must_use]
    pub fn ends_head(&self) -> bool {
        matches!(&*self.op, "unlink" | "rmdir" | "rename" | "replace")
    }

    /// Whether the change that ended this version left the content as it was.
    #[must_use]
    pub fn keeps_content(&self) -> bool {
        matches!(&*self.op, "chmod" | "chown" | "xattr" | "times" | "link")
    }

    /// Whether the version only says that the file was renamed to another name.
    #[must_use]
    pub fn is_renamed(&self) -> bool {
        self.letter == 'r'
    }

    /// Whether a directory was renamed to another name, with all that is in it.
    #[must_use]
    pub fn is_renamed_directory(&self) -> bool {
        self.is_renamed() && self.kind == Kind::Directory
    }
}

/// A name of a directory with its set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: Vec<u8>,
    /// Its versions.
    pub set: Set,
}

/// Escapes a name for a command.
#[must_use]
pub fn escape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for &byte in name {
        if byte <= 0x20 || byte == 0x7f || byte == b'\\' {
            out.extend(format!("\\{byte:03o}").into_bytes());
        } else {
            out.push(byte);
        }
    }
    out
}

/// Reverses [`escape`]. `None` if a backslash is not followed by three octal digits.
#[must_use]
pub fn unescape(field: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(3)?;
        let text = core::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
        out.push(u8::from_str_radix(text, 8).ok()?);
        rest = after;
    }
    Some(out)
}

/// Parses a field of text that is `-` if it is empty.
fn optional(field: &[u8]) -> Option<Vec<u8>> {
    if field == b"-" { Some(Vec::new()) } else { unescape(field) }
}

fn text(field: &[u8]) -> Option<&str> {
    core::str::from_utf8(field).ok()
}

fn number<T: core::str::FromStr>(field: &[u8]) -> Option<T> {
    text(field)?.parse().ok()
}

/// Parses `SEC.NNNNNNNNN`: the nanoseconds count forward, also before 1970.
#[must_use]
pub fn time(field: &[u8]) -> Option<Timestamp> {
    let (sec, nsec) = text(field)?.split_once('.').unwrap_or((text(field)?, "0"));
    let nsec: i64 = nsec.parse().ok().filter(|nsec| (0..1_000_000_000).contains(nsec))?;
    let sec: i64 = sec.parse().ok()?;
    // The beginning and the end of all time are out of the range of `Timestamp`.
    let bound = if sec < 0 { Timestamp::MIN } else { Timestamp::MAX };
    let exact = Timestamp::from_second(sec).and_then(|whole| whole.checked_add(jiff::SignedDuration::from_nanos(nsec)));
    Some(exact.unwrap_or(bound))
}

/// Formats a time for a command.
#[must_use]
pub fn time_field(time: Timestamp) -> String {
    let nanos = time.as_nanosecond();
    format!("{}.{:09}", nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000))
}

fn lines(reply: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    reply.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| line.split(|b| *b == b' ').collect())
}

/// A reply of `versionfs.list`: one part of the versions, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The set.
    pub set: Set,
    /// Its versions.
    pub versions: Vec<Version>,
    /// The number to continue at, if the reply was cut.
    pub more: Option<u64>,
}

impl List {
    /// Returns the newest version that is another content than the present object, or had other
    /// attributes. A new or removed name of the file changes neither. The version of a directory
    /// that was renamed is its present state.
    #[must_use]
    pub fn newest_other(&self) -> Option<&Version> {
        self.others().next()
    }

    /// Returns the versions as [`Self::newest_other`] does, newest first.
    pub fn others(&self) -> impl Iterator<Item = &Version> {
        let has_head = self.set.head != Kind::None;
        let is_same = move |version: &Version| version.is_renamed_directory() || has_head && version.op == "link";
        self.versions.iter().rev().filter(move |version| !is_same(version))
    }
}

/// Parses a reply of `versionfs.list`. Fields that a later server appends are ignored, and lines
/// that begin with a word other than those known.
#[must_use]
pub fn list(reply: &[u8]) -> Option<List> {
    let mut lines = lines(reply);
    let first = lines.next()?;
    let [b"set", head, _, _, count, ..] = *first else { return None };
    let set = Set { head: Kind::parse(head)?, count: number(count)? };
    let mut list = List { set, versions: Vec::new(), more: None };
    for fields in lines {
        match *fields {
            [b"more", at, ..] => list.more = Some(number(at)?),
            [first, ..] if !first.first().is_some_and(u8::is_ascii_digit) => {}
            _ => list.versions.push(version(&fields)?),
        }
    }
    Some(list)
}

/// Where a file that got a name by a rename came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// When it was renamed.
    pub time: Timestamp,
    /// The path from the directory of the new name to that of the former one.
    pub dir: Vec<u8>,
    /// The former name.
    pub name: Vec<u8>,
}

/// Parses a reply of `versionfs.origins`.
#[must_use]
pub fn origins(reply: &[u8]) -> Option<Vec<Origin>> {
    let origin = |fields: Vec<&[u8]>| match *fields {
        [at, _, dir, name, ..] => Some(Origin { time: time(at)?, dir: unescape(dir)?, name: unescape(name)? }),
        _ => None,
    };
    lines(reply).map(origin).collect()
}

/// A record of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its number in the log.
    pub number: u64,
    /// When the operation ended.
    pub time: Timestamp,
    /// `write`, `unlink`...
    pub operation: String,
    /// 0: it succeeded.
    pub errno: i32,
    /// The object.
    pub inode: u64,
    /// Its path in the mount; empty if it had no name.
    pub path: Vec<u8>,
    /// The path that a rename or link gave it; empty for other operations.
    pub new_path: Vec<u8>,
    /// Offset and length in bytes, of a write.
    pub range: (u64, u64),
    /// Details: a mode, a name of an attribute, a target.
    pub text: Vec<u8>,
    /// The numbers of the versions that the operation made: `3,1n`, `n` for those of the new path.
    pub versions: String,
    /// Who did it.
    pub by: Who,
    /// The group of the process.
    pub gid: u32,
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogLine {
    /// A record.
    Record(Box<Recorded>),
    /// Bytes that are no record: segment, offset, length.
    Damage(u64, u64, u64),
}

/// Parses a reply of `versionfs.log`: one part of the lines, and the number to continue at.
#[must_use]
pub fn log(reply: &[u8]) -> Option<(Vec<LogLine>, Option<u64>)> {
    let (mut all, mut more) = (Vec::new(), None);
    for fields in lines(reply) {
        match *fields {
            [b"more", at, ..] => more = Some(number(at)?),
            [b"damaged", segment, at, len, ..] => {
                all.push(LogLine::Damage(number(segment)?, number(at)?, number(len)?));
            }
            [first, ..] if !first.first().is_some_and(u8::is_ascii_digit) => {}
            _ => all.push(LogLine::Record(Box::new(recorded(&fields)?))),
        }
    }
    Some((all, more))
}

fn recorded(fields: &[&[u8]]) -> Option<Recorded> {
    let [n, at, operation, errno, inode, _, path, _, new_path, rest @ ..] = fields else { return None };
    let [offset, len, words, versions, uid, gid, pid, sid, comm, ..] = rest else { return None };
    Some(Recorded {
        number: number(n)?,
        time: time(at)?,
        operation: text(operation)?.to_owned(),
        errno: number(errno)?,
        inode: number(inode)?,
        path: optional(path)?,
        new_path: optional(new_path)?,
        range: (number(offset)?, number(len)?),
        text: optional(words)?,
        versions: String::from_utf8(optional(versions)?).ok()?,
        by: Who { uid: number(uid)?, pid: number(pid)?, sid: number(sid)?, comm: optional(comm)? },
        gid: number(gid)?,
    })
}

fn version(fields: &[&[u8]]) -> Option<Version> {
    let [n, letter, kind, size, stored, mode, uid, gid, mtime, born, died, op, by @ ..] = fields else { return None };
    let [by_uid, pid, sid, comm, flags, note, more @ ..] = by else { return None };
    Some(Version {
        number: number(n)?,
        letter: text(letter)?.chars().next()?,
        kind: Kind::parse(kind)?,
        size: number(size)?,
        stored: number(stored)?,
        mode: u32::from_str_radix(text(mode)?, 8).ok()?,
        uid: number(uid)?,
        gid: number(gid)?,
        mtime: time(mtime)?,
        born: time(born)?,
        died: time(died)?,
        op: text(op)?.to_owned(),
        by: Who { uid: number(by_uid)?, pid: number(pid)?, sid: number(sid)?, comm: optional(comm)? },
        flags: String::from_utf8(optional(flags)?).ok()?,
        note: optional(note)?,
        file: more.first().map_or(Some(Vec::new()), |file| optional(file))?,
    })
}

/// Parses a reply of `versionfs.names`: the sets, and the name to continue after if it was cut.
#[must_use]
pub fn names(reply: &[u8]) -> Option<(Vec<Named>, Option<Vec<u8>>)> {
    let (mut found, mut more) = (Vec::new(), None);
    for fields in lines(reply) {
        match *fields {
            [b"more", name] => more = Some(unescape(name)?),
            [head, _, _, count, name, ..] => {
                let set = Set { head: Kind::parse(head)?, count: number(count)? };
                found.push(Named { name: unescape(name)?, set });
            }
            _ => return None,
        }
    }
    Some((found, more))
}

/// Why a state of a name is not in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// There was no room for a version when the name went.
    NoRoom,
    /// Its version was discarded.
    Discarded,
    /// It was changed since, and the policy keeps no versions of changes.
    Unrecorded,
}

/// A name whose state is not in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The name; empty: other names, which are not recorded.
    pub name: Vec<u8>,
    /// Why.
    pub why: Why,
    /// When it ended, and by whom, if its end was recorded.
    pub end: Option<(Timestamp, Who)>,
}

/// Parses a reply of `versionfs.lost`.
#[must_use]
pub fn lost(reply: &[u8]) -> Option<Vec<Lost>> {
    let parse = |fields: Vec<&[u8]>| {
        let [why, name, rest @ ..] = &*fields else { return None };
        let why = match *why {
            b"no-room" => Why::NoRoom,
            b"unrecorded" => Why::Unrecorded,
            _ => Why::Discarded,
        };
        let end = match rest {
            [_, died, _, uid, pid, sid, comm, ..] => {
                let by = Who { uid: number(uid)?, pid: number(pid)?, sid: number(sid)?, comm: optional(comm)? };
                Some((time(died)?, by))
            }
            _ => None,
        };
        Some(Lost { name: optional(name)?, why, end })
    };
    lines(reply).map(parse).collect()
}

/// Parses a reply of `versionfs.tags`.
#[must_use]
pub fn tags(reply: &[u8]) -> Option<Vec<(Vec<u8>, Timestamp)>> {
    lines(reply).map(|fields| Some((unescape(fields.first()?)?, time(fields.get(1)?)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply with two versions: a write by vi, a removal by rm.
    const LIST: &[u8] = b"set none 1 2 2\n\
        1 s file 5 100 644 1000 100 1000.000000007 1000.000000000 2000.500000000 write 1000 42 40 vi - -\n\
        2 f file 7 7 600 1000 100 2000.000000000 2000.500000000 3000.000000000 unlink 0 43 40 rm\\040x pl a\\012b\n";

    #[test]
    fn names_are_escaped_and_back() {
        for name in [&b"plain"[..], b"", b"a b\n\\\x7f\x01", b"-x", &[0xff, 0xfe], "\u{e9}".as_bytes()] {
            let escaped = escape(name);
            assert!(!escaped.iter().any(|b| *b <= 0x20 || *b == 0x7f));
            assert_eq!(unescape(&escaped).as_deref(), Some(name));
        }
        for wrong in [&b"\\"[..], b"\\01", b"\\008", b"\\400", b"\\+12", b"a\\0"] {
            assert_eq!(unescape(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn lists_are_parsed() {
        let list = list(LIST).unwrap();
        assert_eq!((list.set.head, list.set.count, list.more), (Kind::None, 2, None));
        let [first, second] = &*list.versions else { panic!("{list:?}") };
        assert_eq!((first.number, first.letter, first.size, first.stored, first.mode), (1, 's', 5, 100, 0o644));
        assert_eq!(time_field(first.mtime), "1000.000000007");
        assert!(first.covers(first.born) && !first.covers(first.died) && first.by.comm == b"vi");
        assert_eq!((&*second.by.comm, &*second.flags, &*second.note), (&b"rm x"[..], "pl", &b"a\nb"[..]));
    }

    #[test]
    fn damaged_replies_are_refused() {
        for end in 1..LIST.len() - 1 {
            // A cut within the last, variable fields may be a valid shorter reply; none may panic.
            let _ = list(&LIST[..end]);
        }
        for wrong in [&b""[..], b"set", b"set odd 1 2 3\n", b"set file 1 1 1\n1 f file\n", b"set file 1 1 x\n"] {
            assert_eq!(list(wrong), None, "{}", wrong.escape_ascii());
        }
        assert_eq!(list(b"set file 1 9 9\nmore 5\n").unwrap().more, Some(5));
        assert_eq!(names(b"file 1\n"), None);
        assert_eq!(tags(b"name\n"), None);
    }

    #[test]
    fn what_was_lost_is_parsed() {
        let found = lost(b"no-room a\\040b 1.0 2.5 unlink 7 8 9 rm\nunrecorded x\ndiscarded - 0 3.0 rmdir 0 0 0 -\n");
        let [first, changed, others] = &*found.unwrap() else { panic!() };
        let by = Who { uid: 7, pid: 8, sid: 9, comm: b"rm".to_vec() };
        let end = Some((time(b"2.5").unwrap(), by));
        assert_eq!(*first, Lost { name: b"a b".to_vec(), why: Why::NoRoom, end });
        assert_eq!(*changed, Lost { name: b"x".to_vec(), why: Why::Unrecorded, end: None });
        assert!(others.name.is_empty() && others.why == Why::Discarded && others.end.is_some());
        assert_eq!(lost(b""), Some(vec![]));
        assert_eq!(lost(b"no-room a 1 x unlink 7 8 9 rm\n"), None);
    }

    #[test]
    fn names_and_tags_are_parsed() {
        let (found, more) = names(b"none 1 3 3 a\\040b\nfile 2 2 1 c\nmore c\n").unwrap();
        assert_eq!((&*found[0].name, found[0].set.head, found[1].set.count), (&b"a b"[..], Kind::None, 1));
        assert_eq!(more.as_deref(), Some(&b"c"[..]));
        assert_eq!(tags(b"monday -5.000000001\n").unwrap()[0].1.as_nanosecond(), -4_999_999_999);
        assert_eq!(time_field(time(b"-5.000000001").unwrap()), "-5.000000001");
    }
}
