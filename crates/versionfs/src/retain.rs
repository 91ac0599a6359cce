//! Retention: which versions of a set are discarded (Versionfs paper, section 3.3).
//!
//! When a version is made, only the tail is looked at, and a few versions go at most. The cleaner
//! does the rest: what grew too old, generations, the bound for the volume.

use crate::blocks::VolumeBlocks;
use crate::convert::{LEVEL, copy_content, is_content};
use crate::core::Core;
use crate::head::{Head, dress};
use crate::set::{Locked, Set, read_block_id};
use crate::space::loses_version;
use std::sync::Arc;
use versionpolicy::{Decision, Effective, Range, VersionInfo, decide, may_exceed};
use versionset::{Letter, Record, STORE, StoreName, Version, nanos, new_version_name, parse, version_name};
use vnode::{Cx, Entry, Errno, Kind, Name, RenameFlags, Result, Time, Vnode};

/// Versions that go at most when one is made.
const AT_ONCE: usize = 4;

/// Sets up to this size are looked at whenever a version is made; larger ones each [`EVERY`] times.
const SMALL: usize = 256;
const EVERY: u64 = 64;

/// Largest file whose middle versions are discarded while it may be changed, in bytes: changes wait
/// meanwhile.
const MAX_WAITING: u64 = 64 << 20;

/// Entries of a directory that are listed before they are removed.
const LISTED: usize = 4096;

/// Returns what a version file takes, in bytes.
pub(crate) fn stored(entry: &Entry) -> u64 {
    if entry.attr.kind() == Kind::Directory { 0 } else { entry.attr.blocks.saturating_mul(512) }
}

impl Locked<'_> {
    /// Returns what a version takes, in bytes: of the block store, its share.
    pub(crate) fn stored(&self, cx: &Cx<'_>, version: &Version) -> Result<u64> {
        if version.letter == Letter::Blocks {
            return self.set.blocks().share(cx);
        }
        Ok(self.file(cx, version.letter, version.number)?.map_or(0, |entry| stored(&entry)))
    }

    /// Describes the versions for a decision, oldest first.
    pub(crate) fn infos(&self, cx: &Cx<'_>, tags: &[Time]) -> Result<Vec<VersionInfo>> {
        let mut infos = Vec::with_capacity(self.index().versions.len());
        for version in self.index().versions.values() {
            let stored = self.stored(cx, version)?;
            infos.push(info(self.set, version, stored, tags));
        }
        Ok(infos)
    }

    /// Discards the oldest version, which no other one needs.
    pub(crate) fn discard_tail(&mut self, server: &Cx<'_>, number: u64, letter: Letter) -> Result<()> {
        let version = self.index().versions.get(&number).cloned();
        let bytes = version.map_or(Ok(0), |version| self.stored(server, &version))?;
        // Without its file, a record of the newest version would say that it never was: that is
        // risked only for what takes no space natively.
        let is_newest = self.index().newest().is_some_and(|newest| newest.number == number);
        let has_room = match self.append(server, &[Record::Discarded(number)]) {
            Err(Errno::NOSPC | Errno::DQUOT) if !is_newest || loses_version() => false,
            recorded => recorded.map(|()| true)?,
        };
        // A file that is left without a record is removed by the cleaner.
        match letter {
            Letter::Directory => self.remove_directory(server, number)?,
            letter => self.remove(server, letter, number)?,
        }
        self.set.space.shrank(bytes, 1);
        // There is room now. After a kill before this, the record lacks its file.
        if has_room { Ok(()) } else { self.append_after(server, &[Record::Discarded(number)]) }
    }

    /// Removes a removed directory for good: takes it out of the way, and removes it piecewise. A
    /// kill leaves it under an unfinished name, so the cleaner removes it.
    fn remove_directory(&mut self, server: &Cx<'_>, number: u64) -> Result<()> {
        let store = self.store(server)?;
        let name = version_name(&self.set.stem, Letter::Directory, number);
        let aside = [&*name, b"~"].concat();
        match store.rename(server, Name::new(&name)?, &store, Name::new(&aside)?, RenameFlags::default()) {
            Ok(()) => remove_tree(server, Some(self.set.blocks()), &store, &aside),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

pub(crate) fn info(set: &Set, version: &Version, stored: u64, tags: &[Time]) -> VersionInfo {
    VersionInfo {
        number: version.number,
        born: nanos(version.born),
        died: nanos(version.died),
        stored,
        pinned: version.flags.pinned || set.is_read(version.number),
        landmark: version.flags.landmark,
        tagged: tags.iter().any(|tag| (version.born..version.died).contains(tag)),
    }
}

/// A directory whose entries are removed.
struct Emptied {
    parent: Arc<dyn Vnode>,
    name: Vec<u8>,
    dir: Arc<dyn Vnode>,
    /// The next entries to remove.
    left: Vec<Vec<u8>>,
    /// Whether an entry was removed since the directory was listed.
    progresses: bool,
}

/// Removes a tree, from the bottom up, and the blocks of the versions in its stores. Neither its
/// depth nor the number of entries in a directory matters.
pub(crate) fn remove_tree(
    server: &Cx<'_>,
    blocks: Option<&VolumeBlocks>,
    dir: &Arc<dyn Vnode>,
    name: &[u8],
) -> Result<()> {
    let mut path: Vec<Emptied> = Vec::new();
    let mut next = Some((Arc::clone(dir), name.to_vec()));
    loop {
        if let Some((parent, name)) = next.take()
            && let Some(entry) = parent.lookup(server, Name::new(&name)?)?
        {
            if entry.attr.kind() == Kind::Directory {
                path.push(Emptied { parent, name, dir: entry.vnode, left: Vec::new(), progresses: true });
            } else {
                let is_in_store = path.last().is_some_and(|above| above.name == STORE);
                remove_entry(server, blocks.filter(|_| is_in_store), &parent, &name)?;
                if let Some(above) = path.last_mut() {
                    above.progresses = true;
                }
            }
        }
        let Some(level) = path.last_mut() else { return Ok(()) };
        if level.left.is_empty() && core::mem::take(&mut level.progresses) {
            level.left = first_names(server, &level.dir)?;
        }
        if let Some(child) = level.left.pop() {
            next = Some((Arc::clone(&level.dir), child));
            continue;
        }
        level.parent.rmdir(server, Name::new(&level.name)?)?;
        path.pop();
        if let Some(above) = path.last_mut() {
            above.progresses = true;
        }
    }
}

/// Returns names of entries of a directory, at most [`LISTED`]; none if it is empty.
fn first_names(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    dir.readdir(cx, 0, &mut |entry| {
        let name = entry.name.as_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        names.len() < LISTED
    })?;
    Ok(names)
}

/// Removes an entry that is no directory. `blocks` is given for one in a store.
fn remove_entry(cx: &Cx<'_>, blocks: Option<&VolumeBlocks>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
    let is_version = matches!(parse(name), StoreName::Version { letter: Letter::Blocks, .. });
    let name = Name::new(name)?;
    let blocks = blocks.filter(|_| is_version);
    let id = if blocks.is_some() { read_block_id(cx, dir, name)? } else { None };
    dir.unlink(cx, name)?;
    match (id, blocks) {
        (Some(id), Some(blocks)) => blocks.delete(cx, id),
        _ => Ok(()),
    }
}

impl Core {
    /// Applies the limits after a version was made: discards the oldest versions while a maximum is
    /// exceeded. The version exists, so this does not fail.
    pub(crate) fn retain(&self, server: &Cx<'_>, locked: &mut Locked<'_>, policy: &Effective) {
        if let Err(errno) = self.try_retain(server, locked, policy) {
            tracing::warn!(%errno, "can't discard versions of {}", locked.set.stem.escape_ascii());
        }
    }

    fn try_retain(&self, server: &Cx<'_>, locked: &mut Locked<'_>, policy: &Effective) -> Result<()> {
        let index = locked.index();
        let count = index.versions.len();
        if count > SMALL && !index.next().is_multiple_of(EVERY) {
            return Ok(());
        }
        let Some(oldest) = index.versions.values().next() else { return Ok(()) };
        let now = self.policies.now(self.now());
        let oldest_died = nanos(oldest.died);
        // Without looking at each file, any set may exceed a limit on space.
        let space = if policy.space.max == versionpolicy::NO_LIMIT { 0 } else { u64::MAX };
        if !may_exceed(policy, count as u64, space, oldest_died, now) {
            return Ok(());
        }
        let tags = crate::tags::times(self, server)?;
        // Without a limit on space, the files need not be looked at: a version would take longer
        // the more there are.
        let infos = match policy.space {
            Range::ALL => index.versions.values().map(|version| info(locked.set, version, 0, &tags)).collect(),
            _ => locked.infos(server, &tags)?,
        };
        let decision = decide(policy, &infos, now);
        let tail: Vec<u64> = tail(&decision).take(AT_ONCE).collect();
        let discarded = self.discard_oldest(server, locked, &tail);
        if locked.index().versions.len() < count {
            self.report_discarded(server, core::iter::once(locked.set), None);
        }
        discarded
    }

    fn discard_oldest(&self, server: &Cx<'_>, locked: &mut Locked<'_>, tail: &[u64]) -> Result<()> {
        for &number in tail {
            let versions = &locked.index().versions;
            let Some(letter) = versions.get(&number).map(|version| version.letter) else { continue };
            // The one that was just made stays; removed trees are left to the cleaner.
            if versions.len() == 1 || letter == Letter::Directory {
                break;
            }
            locked.discard_tail(server, number, letter)?;
        }
        Ok(())
    }

    /// Decides what to discard of a set; asks the policy's program if there is one.
    pub(crate) fn decide(&self, policy: &Effective, path: &[u8], infos: &[VersionInfo]) -> Decision {
        let now = self.policies.now(self.now());
        let answer = self.policies.ask(policy, || versionpolicy::request_json(policy, path, infos, now));
        match answer.map(|answer| versionpolicy::apply_answer(policy, infos, now, &answer)) {
            Some(Ok(decision)) => decision,
            Some(Err(error)) => {
                tracing::warn!("{}: the policy's program: {error}", path.escape_ascii());
                decide(policy, infos, now)
            }
            None => decide(policy, infos, now),
        }
    }

    /// Discards a version, wherever it is in the set: first gives older ones what they need of it.
    /// Returns false if that would keep programs waiting for long; then it stays. Unless `waits`,
    /// which a user's command may.
    pub(crate) fn discard(&self, server: &Cx<'_>, set: &Set, number: u64, waits: bool) -> Result<bool> {
        let head = set.content_head(self, server)?;
        let inode = head.as_ref().map(|head| self.inodes.get(head.id()));
        // Nobody saves blocks of the head, or changes it, while its bytes are read.
        let mut session = inode.as_ref().map(|inode| inode.wait_session());
        let mut locked = set.lock(self, server)?;
        let index = locked.index();
        // Somebody else may have discarded it meanwhile.
        let Some(version) = index.versions.get(&number) else { return Ok(true) };
        let (letter, size, ends_head) = (version.letter, version.size, version.cause.ends_head());
        let gives = is_content(letter) && versionset::is_needed(server, &locked.files(server, None)?, index, number)?;
        let is_newest = index.newest().is_some_and(|newest| newest.number == number);
        let is_written = session.as_ref().is_some_and(|session| session.writers > 0);
        if !waits && ((is_newest && is_written) || (gives && size > MAX_WAITING)) {
            return Ok(false);
        }
        if is_newest
            && gives
            && !ends_head
            && let Some(((lower, inode), session)) = head.as_ref().zip(inode.as_ref()).zip(session.as_ref())
        {
            // Older versions would depend on bytes that change unseen.
            let head = Head { core: self, lower, inode };
            head.look_for_mappings(server, session)?;
            if head.is_written_unseen(session) {
                return if waits { Err(Errno::BUSY) } else { Ok(false) };
            }
        }
        if let Some(session) = &mut session {
            // The file that receives blocks may be replaced or removed. The next write finds out.
            session.active = None;
        }
        if gives {
            self.absorb(server, &mut locked, head.as_ref(), number)?;
        }
        locked.discard_tail(server, number, letter)?;
        locked.remove_stale(server, number)?;
        make_dependent_sparse(server, &mut locked, head.as_ref())?;
        Ok(true)
    }

    /// Makes older versions independent of one.
    fn absorb(
        &self,
        server: &Cx<'_>,
        locked: &mut Locked<'_>,
        head: Option<&Arc<dyn Vnode>>,
        number: u64,
    ) -> Result<()> {
        let has_head = locked.has_head();
        let files = locked.files(server, head.filter(|_| has_head))?;
        let older = locked.index().versions.range(..number).next_back().map(|(number, _)| *number);
        if let Some(older) = older {
            locked.remove_stale(server, older)?;
        }
        let converted = versionset::absorb(server, &files, locked.index(), number, LEVEL)?;
        converted.into_iter().try_for_each(|(number, letter)| locked.stored_anew(server, letter, number))
    }
}

/// Makes the newest version an ordinary file if it depends on the head in a format to which no
/// blocks can be added.
fn make_dependent_sparse(server: &Cx<'_>, locked: &mut Locked<'_>, head: Option<&Arc<dyn Vnode>>) -> Result<()> {
    let Some((number, letter)) = locked.dependent().filter(|(_, letter)| *letter != Letter::Sparse) else {
        return Ok(());
    };
    let content = crate::past::open_version(server, locked, number, head)?;
    let (store, stem) = (locked.store(server)?, locked.set.stem.to_vec());
    let (temporary, name) = (new_version_name(&stem, Letter::Full, number), version_name(&stem, Letter::Full, number));
    let version = locked.index().versions.get(&number).ok_or(Errno::NOENT)?;
    let files = locked.files(server, None)?;
    let stored = files.header(server, letter, number)?.ok_or(Errno::IO)?;
    versionset::replace(server, &store, &temporary, &name, |entry, file| {
        copy_content(server, &*file, &*content)?;
        dress(server, entry, version, &stored.header.xattrs)
    })?;
    locked.stored_anew(server, Letter::Full, number)
}

/// The oldest versions that are discarded, up to the first that is kept.
fn tail(decision: &Decision) -> impl Iterator<Item = u64> + '_ {
    let is_discarded = |verdict: &versionpolicy::Verdict| matches!(verdict, versionpolicy::Verdict::Discard(_));
    decision.verdicts.iter().take_while(move |(_, verdict)| is_discarded(verdict)).map(|(number, _)| *number)
}
