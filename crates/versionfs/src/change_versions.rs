//! Changes of single versions: discard, pin, annotate.

use crate::core::Core;
use crate::history::At;
use crate::permission::require_owner;
use crate::set::{Locked, Set};
use versionset::{Flags, MAX_NOTE, Record, version_name};
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result};

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
    let discarded = chosen.iter().try_for_each(|seen| {
        cx.check()?;
        core.discard(&core.server(cx), &seen.set, seen.version.number, true).map(|_| ())
    });
    core.report_discarded(&core.server(cx), chosen.iter().map(|seen| &*seen.set), Some(at));
    discarded
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
    from.set.blocks().moved();
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

/// Undoes [`copy_files`], whatever part of it was done.
pub(crate) fn take_files_back(cx: &Cx<'_>, from: &Locked<'_>, to: &mut Locked<'_>) -> Result<()> {
    let source = from.store_dir().ok_or(Errno::IO)?;
    let target = to.store(cx)?;
    for version in from.index().versions.values() {
        let old = version_name(&from.set.stem, version.letter, version.number);
        let new = version_name(&to.set.stem, version.letter, version.number);
        let (old, new) = (Name::new(&old)?, Name::new(&new)?);
        if target.lookup(cx, new)?.is_none() {
            continue;
        }
        if source.lookup(cx, old)?.is_some() {
            target.unlink(cx, new)?;
        } else {
            target.rename(cx, new, &source, old, RenameFlags { no_replace: true, ..RenameFlags::default() })?;
        }
    }
    Ok(())
}
