//! Converts a version into another format (Versionfs paper, sections 3.2 and 3.5).
//!
//! The steps, after each of which a kill leaves every version readable:
//!
//! 1. The new file is built as `foo;c8~` and made durable. Nobody reads a name with `~`.
//! 2. It is renamed to `foo;c8`. The index still says `s`, so `foo;s8` is read.
//! 3. The index says `c`. Both files have the same content.
//! 4. `foo;s8` is removed. Left behind by a kill, it is removed by the next conversion or
//!    discarding of the version, and by the cleaner.
//!
//! The content is read without locks while programs change the head: the head's new blocks are
//! saved in the newest version before they are written, so if that has the same blocks afterwards
//! as before, the head did not change where it matters. Otherwise the conversion is given up.

use crate::core::Core;
use crate::head::{copy_data, dress, xattrs_of};
use crate::node::VersionVnode;
use crate::set::{Locked, Set, read_block_id};
use core::ops::Range;
use std::sync::Arc;
use versionpolicy::{Effective, Storage};
use versionset::{
    BLOCK, Cause, Compressed, Content, Header, Index, Letter, Members, Newer, Source, Sparse, Stamp, StoreFiles,
    Version, block_target, new_version_name, open_version, version_name,
};
use vnode::{Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, RenameFlags, Result, Vnode};

/// Zstandard level of compressed versions.
pub(crate) const LEVEL: i32 = 3;

/// How a conversion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The version has its format.
    Done,
    /// It has it already, or the format is none for it.
    Unchanged,
    /// The format would take no less space.
    Useless,
    /// The file is being changed: try again later.
    Busy,
}

/// What a conversion starts from, to be compared with what is there at its end.
#[derive(Debug)]
struct Start {
    version: Version,
    target: Letter,
    newest: u64,
    next: Option<u64>,
    /// The head, if the newest version may depend on it.
    head: Option<Arc<dyn Vnode>>,
    /// Whether the version is the newest one of a head that has its name.
    is_newest: bool,
    /// What the newest version lacks, if content comes from the head.
    lacks: Option<Vec<Range<u64>>>,
    /// The version and the newer ones that it takes content from.
    members: Members,
    /// The same of the next newer version.
    newer: Members,
    /// The number of the next newer version, or the one that the head will get.
    base: u64,
    /// The nearest version whose content is in the block store.
    near: Option<u64>,
    files: StoreFiles,
}

/// Whether versions with this letter are contents of a regular file.
pub(crate) const fn is_content(letter: Letter) -> bool {
    !matches!(letter, Letter::Directory | Letter::Special | Letter::Renamed)
}

/// Returns the format of a version. `None`: as it is.
fn target(policy: &Effective, version: &Version, is_newest: bool, has_next: bool) -> Option<Letter> {
    if version.kind != Kind::Regular || !is_content(version.letter) {
        return None;
    }
    let letter = match policy.storage {
        Storage::Compress if Compressed::worth_compressing(version.size) => Letter::Compressed,
        Storage::Full | Storage::Compress => Letter::Full,
        Storage::Sparse => Letter::Sparse,
        Storage::SparseCompress => Letter::SparseCompressed,
        Storage::Delta => Letter::Delta,
        Storage::Text => Letter::Text,
        Storage::Blocks => Letter::Blocks,
    };
    // Only a sparse version can receive the blocks that the head loses, and it has this format from
    // the beginning. A delta needs a newer content.
    let fits = !letter.depends_on_newer() || (!is_newest && has_next);
    (fits && letter != version.letter).then_some(letter)
}

/// Whether content from version `first` on may come from the head.
fn reaches_head(index: &Index, first: u64) -> bool {
    index.newest().is_none_or(|newest| !newest.cause.ends_head())
        && index.versions.range(first..).all(|(_, version)| version.letter.depends_on_newer())
}

/// Returns the nearest version whose content is in the block store.
fn near_in_blocks(index: &Index, number: u64) -> Option<u64> {
    let is_blocks = |(_, version): &(&u64, &Version)| version.letter == Letter::Blocks;
    let versions = &index.versions;
    let near = versions.range(..number).rfind(is_blocks).or_else(|| versions.range(number + 1..).find(is_blocks));
    near.map(|(near, _)| *near)
}

/// Returns what a sparse version lacks.
fn lacks(cx: &Cx<'_>, files: &StoreFiles, newest: u64) -> Result<Vec<Range<u64>>> {
    let (file, len) = files.open_name(cx, &version_name(&files.stem, Letter::Sparse, newest))?;
    let writer = Sparse::reopen(cx, file, len)?;
    let (mut all, mut at) = (Vec::new(), 0);
    while at < writer.size()
        && let Some(range) = writer.missing(at..writer.size())
    {
        at = range.end;
        all.push(range);
    }
    Ok(all)
}

impl Locked<'_> {
    /// Removes files of a version that an interrupted conversion left.
    pub(crate) fn remove_stale(&mut self, cx: &Cx<'_>, number: u64) -> Result<()> {
        let letter = self.index().versions.get(&number).map(|version| version.letter);
        for stale in Letter::ALL {
            if is_content(stale) && Some(stale) != letter {
                self.remove(cx, stale, number)?;
            }
        }
        Ok(())
    }
}

impl Core {
    /// Converts a version into the format that the policy of the file wants.
    pub(crate) fn convert(self: &Arc<Self>, cx: &Cx<'_>, set: &Arc<Set>, number: u64) -> Result<Outcome> {
        let server = self.server(cx);
        let Some(start) = self.start(&server, set, number)? else { return Ok(Outcome::Unchanged) };
        if start.is_newest && self.is_written(start.head.as_ref()) {
            return Ok(Outcome::Busy);
        }
        let temporary = new_version_name(&set.stem, start.target, number);
        let temporary = Name::new(&temporary)?;
        let before = set.lock(self, &server)?.stored(&server, &start.version)?;
        let outcome = match self.build(&server, set, &start, temporary) {
            Ok(true) => self.swap(&server, set, &start, temporary),
            Ok(false) => Ok(Outcome::Useless),
            // The chain changed while it was read.
            Err(Errno::IO | Errno::NOENT | Errno::STALE)
                if start.has_other_head(&server)? || !self.is_current(&server, set, &start)? =>
            {
                Ok(Outcome::Busy)
            }
            Err(errno) => Err(errno),
        };
        if outcome == Ok(Outcome::Done) {
            let after = set.lock(self, &server)?.stored(&server, &Version { letter: start.target, ..start.version })?;
            self.space.converted(before, after);
        } else {
            let _ = self.remove_temporary(&server, set, &start.files.dir, temporary);
        }
        outcome
    }

    /// Removes a file that was built, with the blocks that it refers to. With the set locked, no
    /// other thread is building a file of this name: a command that discards a version may do so.
    fn remove_temporary(
        &self,
        server: &Cx<'_>,
        set: &Arc<Set>,
        dir: &Arc<dyn Vnode>,
        temporary: Name<'_>,
    ) -> Result<()> {
        let _locked = set.lock(self, server)?;
        let id = read_block_id(server, dir, temporary)?;
        match dir.unlink(server, temporary) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        id.map_or(Ok(()), |id| self.blocks.delete(server, id))
    }

    /// Builds the new file. Returns false if it would be of no use.
    fn build(&self, server: &Cx<'_>, set: &Arc<Set>, start: &Start, temporary: Name<'_>) -> Result<bool> {
        let (dir, number, letter) = (&start.files.dir, start.version.number, start.version.letter);
        let old_name = version_name(&start.files.stem, letter, number);
        let entry = dir.lookup(server, Name::new(&old_name)?)?.ok_or(Errno::IO)?;
        // An interrupted replacement: the head itself.
        if letter != Letter::Blocks && (entry.attr.kind() != Kind::Regular || entry.attr.nlink > 1) {
            return Ok(false);
        }
        let header = match start.files.header(server, letter, number)? {
            Some(stored) => Header { version: start.version.clone(), ..stored.header },
            None => Header { version: start.version.clone(), xattrs: xattrs_of(server, &*entry.vnode)? },
        };
        if is_attributes_only(server, start, &entry)? {
            return Ok(false);
        }
        self.remove_temporary(server, set, dir, temporary)?;
        if start.target == Letter::Blocks {
            return self.build_blocks(server, start, temporary, &header);
        }
        let (new, file) = dir.create(server, temporary, 0o600, OpenFlags::RDWR)?;
        let is_useful = write(server, start, &file, &header)?;
        if is_useful {
            finish(server, start, (&new, &entry), &*file, &header)?;
        }
        Ok(is_useful)
    }

    /// Stores the content in the block store, and makes the link to it.
    fn build_blocks(&self, server: &Cx<'_>, start: &Start, temporary: Name<'_>, header: &Header) -> Result<bool> {
        let (dir, stem, number) = (&start.files.dir, &start.files.stem, start.version.number);
        let source: Arc<dyn Source> = Arc::new(start.files.clone());
        let old = open_version(server, &source, start.members.clone())?;
        let hint = match start.near {
            Some(near) => read_block_id(server, dir, Name::new(&version_name(stem, Letter::Blocks, near))?)?,
            None => None,
        };
        let header = Header { version: Version { letter: Letter::Blocks, ..header.version.clone() }, ..header.clone() };
        let name = version_name(stem, Letter::Blocks, number);
        let Some(id) = self.blocks.put(server, &name, &header, &*old, hint)? else { return Ok(false) };
        if let Err(errno) = dir.symlink(server, temporary, &block_target(id)) {
            self.blocks.delete(server, id)?;
            return Err(errno);
        }
        Ok(true)
    }

    fn start(self: &Arc<Self>, server: &Cx<'_>, set: &Arc<Set>, number: u64) -> Result<Option<Start>> {
        let locked = set.lock(self, server)?;
        let index = locked.index();
        let Some(version) = index.versions.get(&number).cloned() else { return Ok(None) };
        let Some(newest) = index.newest() else { return Ok(None) };
        let head = if newest.cause.ends_head() { None } else { set.content_head(self, server)? };
        let is_newest = newest.number == number && !newest.cause.ends_head();
        let next = index.versions.range(number + 1..).next();
        let has_next = next.map_or(head.is_some(), |(_, next)| is_content(next.letter));
        let next = next.map(|(next, _)| *next);
        let policy = self.policy_of_version(server, set, head.as_ref(), &version);
        let Some(target) = target(&policy, &version, is_newest, has_next) else { return Ok(None) };
        let from_head = reaches_head(index, if target.depends_on_newer() { number + 1 } else { number });
        let newest_letter = newest.letter;
        let newest = newest.number;
        let files = locked.files(server, head.as_ref())?;
        let (members, newer) = (Members::from(index, number), Members::from(index, number + 1));
        // The head gets the next number when it becomes a version.
        let base = next.unwrap_or_else(|| index.next());
        let near = if target == Letter::Blocks { near_in_blocks(index, number) } else { None };
        drop(locked);
        let lacks = if from_head && newest_letter == Letter::Sparse {
            Some(lacks(server, &files, newest)?)
        } else if from_head && newest_letter.depends_on_newer() {
            // Nothing would tell that the head changed.
            return Ok(None);
        } else {
            None
        };
        Ok(Some(Start { version, target, newest, next, head, is_newest, lacks, members, newer, base, near, files }))
    }

    /// Whether a program writes to the head.
    fn is_written(&self, head: Option<&Arc<dyn Vnode>>) -> bool {
        let Some(inode) = head.and_then(|head| self.inodes.in_use(head.id())) else { return false };
        let session = inode.wait_session();
        session.writers > 0 || session.is_direct()
    }

    fn is_current(&self, server: &Cx<'_>, set: &Arc<Set>, start: &Start) -> Result<bool> {
        let locked = set.lock(self, server)?;
        start.is_current(server, locked.index())
    }

    /// Puts the new file in place of the old one.
    fn swap(self: &Arc<Self>, server: &Cx<'_>, set: &Arc<Set>, start: &Start, temporary: Name<'_>) -> Result<Outcome> {
        let head = start.head.as_ref().map(|head| VersionVnode::over(self, Arc::clone(head)));
        // Nobody saves blocks of the head meanwhile.
        let session = head.as_ref().map(|head| head.inode.wait_session());
        if let Some(mut session) = session {
            let mut locked = set.lock(self, server)?;
            if start.is_newest && (session.writers > 0 || session.is_direct()) {
                return Ok(Outcome::Busy);
            }
            if start.is_newest {
                session.active = None;
            }
            return swap_locked(server, &mut locked, start, temporary);
        }
        swap_locked(server, &mut set.lock(self, server)?, start, temporary)
    }

    /// Returns the policy for a version of a set.
    pub(crate) fn policy_of_version(
        &self,
        server: &Cx<'_>,
        set: &Arc<Set>,
        head: Option<&Arc<dyn Vnode>>,
        version: &Version,
    ) -> Effective {
        let facts = (version.size, version.uid, version.gid);
        let who = || Some(version.who.clone());
        if let Some((dir, name)) = set.place() {
            return self.policy_of(server, (dir, name), facts, &who, version.died);
        }
        let mut found = None;
        if let Some(head) = head {
            let _ = head.names(server, &mut |dir, name| {
                found = Some((Arc::clone(dir), name.as_bytes().to_vec()));
                false
            });
        }
        let (dir, name) = found.unwrap_or_else(|| (self.root(), Vec::new()));
        self.policy_of(server, (&dir, &name), facts, &who, version.died)
    }
}

impl Start {
    /// Whether the head was changed since the start.
    fn has_other_head(&self, server: &Cx<'_>) -> Result<bool> {
        let Some((head, known)) = self.head.as_ref().zip(self.files.head.as_ref()) else { return Ok(false) };
        let now = Stamp::of(&head.getattr(server)?);
        Ok(known.stamp.is_some_and(|stamp| stamp != now))
    }

    /// Whether everything is as it was at the start.
    fn is_current(&self, server: &Cx<'_>, index: &Index) -> Result<bool> {
        let number = self.version.number;
        let is_same = index.versions.get(&number).is_some_and(|version| version.letter == self.version.letter)
            && index.versions.range(number + 1..).next().map(|(next, _)| *next) == self.next
            && (self.lacks.is_none() || index.newest().is_some_and(|newest| newest.number == self.newest))
            && (!self.is_newest || index.newest().is_some_and(|newest| newest.number == number));
        let Some(before) = self.lacks.as_ref().filter(|_| is_same) else { return Ok(is_same) };
        if index.newest().is_none_or(|newest| newest.letter != Letter::Sparse || newest.cause.ends_head()) {
            return Ok(false);
        }
        Ok(lacks(server, &self.files, self.newest)? == *before)
    }
}

fn swap_locked(server: &Cx<'_>, locked: &mut Locked<'_>, start: &Start, temporary: Name<'_>) -> Result<Outcome> {
    if !start.is_current(server, locked.index())? {
        return Ok(Outcome::Busy);
    }
    let (number, letter) = (start.version.number, start.target);
    let dir = &start.files.dir;
    let name = version_name(&locked.set.stem, letter, number);
    dir.rename(server, temporary, dir, Name::new(&name)?, RenameFlags::default())?;
    locked.stored_anew(server, letter, number)?;
    Ok(Outcome::Done)
}

/// Whether the version has no content of its own, as after a change of attributes, and a format
/// that contains all of it would only take space.
fn is_attributes_only(server: &Cx<'_>, start: &Start, entry: &Entry) -> Result<bool> {
    let (version, target) = (&start.version, start.target);
    if version.letter != Letter::Sparse || version.size == 0 || target.depends_on_newer() || target == Letter::Blocks {
        return Ok(false);
    }
    // After an append, all bytes of the version are in the head, too.
    if matches!(version.cause, Cause::Write | Cause::Truncate | Cause::Fallocate) {
        return Ok(false);
    }
    let file = entry.vnode.open(server, OpenFlags::RDONLY)?;
    Ok(Sparse::reopen(server, file, entry.attr.size)?.is_empty())
}

/// Writes the content in the new format.
fn write(server: &Cx<'_>, start: &Start, file: &Arc<dyn OpenFile>, header: &Header) -> Result<bool> {
    let source: Arc<dyn Source> = Arc::new(start.files.clone());
    let old = open_version(server, &source, start.members.clone())?;
    match start.target {
        Letter::Full => match old.plain() {
            Some(plain) => copy_data(server, &**file, &**plain, old.size()).map(|()| true),
            None => copy_content(server, &**file, &*old).map(|()| true),
        },
        letter => {
            let newer: Arc<dyn Content> = if letter.depends_on_newer() {
                open_version(server, &source, start.newer.clone())?
            } else {
                Arc::clone(&old)
            };
            let newer = Newer { content: &*newer, base: start.base };
            versionset::encode(server, Arc::clone(file), letter, header, &*old, newer, LEVEL)
        }
    }
}

/// Writes a content as it is; blocks of zeros become holes.
pub(crate) fn copy_content(server: &Cx<'_>, file: &dyn OpenFile, old: &dyn Content) -> Result<()> {
    let mut buffer = vec![0; 32 * BLOCK as usize];
    let mut at = 0;
    while at < old.size() {
        let part = versionset::clamp(&mut buffer, at, old.size());
        if old.read_at(server, part, at)? < part.len() {
            return Err(Errno::IO);
        }
        let end = at + part.len() as u64;
        if end == old.size() || part.iter().any(|byte| *byte != 0) {
            versionset::write_full(server, file, part, at)?;
        }
        at = end;
    }
    Ok(())
}

/// Gives the new file the owner of the old one and makes it durable.
fn finish(
    server: &Cx<'_>,
    start: &Start,
    (new, old): (&Entry, &Entry),
    file: &dyn OpenFile,
    header: &Header,
) -> Result<()> {
    if start.target == Letter::Full {
        dress(server, new, &start.version, &header.xattrs)?;
    } else {
        versionset::give(server, new, old.attr.uid, old.attr.gid)?;
    }
    file.fsync(server, false)
}
