//! Changes of single versions: discard, pin, annotate.

use crate::core::Core;
use crate::history::At;
use crate::past::{head_content, open_version};
use crate::permission::require_owner;
use crate::set::{Locked, Set};
use std::sync::Arc;
use versionset::{Flags, Letter, MAX_NOTE, Record, StoreFiles, version_name};
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result, Vnode};

/// Zstandard level of versions that are encoded anew because a newer one is discarded.
const LEVEL: i32 = 3;

/// Deepest tree of removed directories that is discarded.
const MAX_DEPTH: usize = 1000;

/// Bytes that are copied at once.
const CHUNK: usize = 128 * 1024;

/// Discards versions of a name, the oldest first.
pub(crate) fn discard(core: &Core, cx: &Cx<'_>, at: &At, numbers: &[u64]) -> Result<()> {
    let history = at.history(core, cx)?;
    let mut chosen = Vec::new();
    for number in numbers {
        chosen.push(history.version(*number).ok_or(Errno::NOENT)?);
    }
    require_owner(cx, chosen.iter().map(|seen| seen.version.uid))?;
    if chosen.iter().any(|seen| seen.version.flags.pinned) {
        return Err(Errno::PERM);
    }
    chosen.sort_by_key(|seen| seen.version.number);
    chosen.dedup_by_key(|seen| seen.version.number);
    for seen in chosen {
        cx.check()?;
        discard_one(core, &core.server(cx), &seen.set, seen.version.number)?;
    }
    Ok(())
}

/// Discards a version. Older ones get what they need of it first.
pub(crate) fn discard_one(core: &Core, cx: &Cx<'_>, set: &Set, number: u64) -> Result<()> {
    let head = set.head(core, cx)?.filter(|head| head.kind() == Kind::Regular);
    let inode = head.as_ref().map(|head| core.inodes.get(head.id()));
    let mut session = inode.as_ref().map(|inode| inode.wait_session());
    let mut locked = set.lock(core, cx)?;
    let Some(letter) = locked.index().versions.get(&number).map(|version| version.letter) else {
        // Somebody else discarded it meanwhile.
        return Ok(());
    };
    if let Some(session) = &mut session {
        // The file that receives blocks may be replaced or removed. The next write finds out.
        session.active = None;
    }
    if !is_object(letter) {
        absorb(cx, &mut locked, number, head.as_ref())?;
    }
    locked.append(cx, &[Record::Discarded(number)])?;
    remove_file(cx, &mut locked, letter, number)?;
    make_dependent_sparse(cx, &mut locked, head.as_ref())
}

/// Whether the version file is the object itself or refers to it.
const fn is_object(letter: Letter) -> bool {
    matches!(letter, Letter::Directory | Letter::Special | Letter::Renamed)
}

fn absorb(cx: &Cx<'_>, locked: &mut Locked<'_>, number: u64, head: Option<&Arc<dyn Vnode>>) -> Result<()> {
    let files = StoreFiles {
        dir: locked.store_dir().ok_or(Errno::IO)?,
        stem: locked.set.stem.to_vec(),
        head: head.map(|head| head_content(cx, head)).transpose()?,
        blocks: None,
    };
    for (older, letter) in versionset::absorb(cx, &files, locked.index(), number, LEVEL)? {
        let before = locked.index().versions.get(&older).map(|version| version.letter);
        locked.append(cx, &[Record::Converted { number: older, letter }])?;
        if let Some(before) = before.filter(|before| *before != letter) {
            locked.remove(cx, before, older)?;
        }
    }
    Ok(())
}

/// Makes the newest version an ordinary file if it depends on the head in a format to which no
/// blocks can be added.
fn make_dependent_sparse(cx: &Cx<'_>, locked: &mut Locked<'_>, head: Option<&Arc<dyn Vnode>>) -> Result<()> {
    let Some((number, letter)) = locked.dependent().filter(|(_, letter)| *letter != Letter::Sparse) else {
        return Ok(());
    };
    let content = open_version(cx, locked, number, head)?;
    let (store, stem) = (locked.store(cx)?, locked.set.stem.to_vec());
    let temporary = versionset::new_version_name(&stem, Letter::Full, number);
    versionset::replace(cx, &store, &temporary, &version_name(&stem, Letter::Full, number), |file| {
        let mut buffer = vec![0; CHUNK];
        let mut done = 0;
        while done < content.size() {
            let len = content.read_at(cx, &mut buffer, done)?;
            if len == 0 {
                return Err(Errno::IO);
            }
            versionset::write_full(cx, &*file, buffer.get(..len).unwrap_or_default(), done)?;
            done += len as u64;
        }
        Ok(())
    })?;
    locked.append(cx, &[Record::Converted { number, letter: Letter::Full }])?;
    locked.remove(cx, letter, number)
}

/// Removes the file of a version, with everything in it if it is a directory.
pub(crate) fn remove_file(cx: &Cx<'_>, locked: &mut Locked<'_>, letter: Letter, number: u64) -> Result<()> {
    if letter != Letter::Directory {
        return locked.remove(cx, letter, number);
    }
    let store = locked.store(cx)?;
    remove_tree(cx, &store, &version_name(&locked.set.stem, letter, number), 0)
}

/// Removes an entry with everything below it.
pub(crate) fn remove_tree(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8], depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Errno::LOOP);
    }
    let name = Name::new(name)?;
    let Some(entry) = dir.lookup(cx, name)? else { return Ok(()) };
    if entry.vnode.kind() != Kind::Directory {
        return dir.unlink(cx, name);
    }
    let mut names = Vec::new();
    entry.vnode.readdir(cx, 0, &mut |entry| {
        names.push(entry.name.as_bytes().to_vec());
        true
    })?;
    for below in names {
        remove_tree(cx, &entry.vnode, &below, depth + 1)?;
    }
    dir.rmdir(cx, name)
}

/// Changes the flags or the note of a version.
fn mark(core: &Core, cx: &Cx<'_>, at: &At, number: u64, record: impl FnOnce(Flags) -> Record) -> Result<()> {
    let history = at.history(core, cx)?;
    let seen = history.version(number).ok_or(Errno::NOENT)?;
    require_owner(cx, [seen.version.uid])?;
    let server = core.server(cx);
    let mut locked = seen.set.lock(core, &server)?;
    let flags = locked.index().versions.get(&number).ok_or(Errno::NOENT)?.flags;
    locked.append(&server, &[record(flags)])
}

/// Pins a version, or takes the pin off.
pub(crate) fn pin(core: &Core, cx: &Cx<'_>, at: &At, number: u64, pinned: bool) -> Result<()> {
    mark(core, cx, at, number, |flags| Record::Flags(number, Flags { pinned, ..flags }))
}

/// Sets the note of a version; an empty one removes it.
pub(crate) fn annotate(core: &Core, cx: &Cx<'_>, at: &At, number: u64, text: &[u8]) -> Result<()> {
    if text.len() > MAX_NOTE {
        return Err(Errno::INVAL);
    }
    mark(core, cx, at, number, |_| Record::Note(number, text.into()))
}

/// Gives every version of a set another owner or mode, also the files, whose quota it is.
pub(crate) fn set_attributes(core: &Core, cx: &Cx<'_>, set: &Set, record: Record) -> Result<()> {
    let mut locked = set.lock(core, cx)?;
    if locked.index().versions.is_empty() {
        return Ok(());
    }
    let versions: Vec<_> = locked.index().versions.values().map(|version| (version.letter, version.number)).collect();
    if let Record::Owner(uid, gid) = record {
        let keep = |id| Some(id).filter(|id| *id != u32::MAX);
        let change = vnode::SetAttr { uid: keep(uid), gid: keep(gid), ..vnode::SetAttr::default() };
        for (letter, number) in versions {
            let Some(entry) = locked.file(cx, letter, number)? else { continue };
            match entry.vnode.setattr(cx, &change, None) {
                // The server is not root: the index says who owns the version.
                Ok(_) | Err(Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    locked.append(cx, &[record])
}

/// Gives the version files of a set their names in another set, the old ones remain where the file
/// system has hard links. Directories are moved.
pub(crate) fn copy_files(cx: &Cx<'_>, from: &Locked<'_>, to: &mut Locked<'_>) -> Result<()> {
    let source = from.store_dir().ok_or(Errno::IO)?;
    let target = to.store(cx)?;
    for version in from.index().versions.values() {
        let old = version_name(&from.set.stem, version.letter, version.number);
        let new = version_name(&to.set.stem, version.letter, version.number);
        let (old, new) = (Name::new(&old)?, Name::new(&new)?);
        let Some(entry) = source.lookup(cx, old)? else { continue };
        if entry.vnode.kind() != Kind::Directory && target.link(cx, new, &entry.vnode).is_ok() {
            continue;
        }
        source.rename(cx, old, &target, new, RenameFlags { no_replace: true, ..RenameFlags::default() })?;
    }
    Ok(())
}
