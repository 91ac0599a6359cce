//! The file of an identity log, in the root of a branch: docs/formats/union-branch.md.

use crate::log::{HEADER, Log, Reader, write_all};
use crate::options::BuildError;
use crate::ownfiles::move_aside;
use crate::recorded::Known;
use crate::times::preserving_times;
use crate::trust::is_servers;
use std::path::Path;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, OpenFlags, RenameFlags, Result, Time, Vnode};

/// The name of the log.
pub(crate) const IDENT: &[u8] = b".wh..wh.ident";
/// A log that is being rewritten.
pub(crate) const IDENT_NEW: &[u8] = b".wh..wh.ident.new";

/// The log that was found on a branch.
#[derive(Default)]
pub(crate) struct Loaded {
    /// Whether anything has its name.
    pub(crate) found: bool,
    /// Its content, with its own tags.
    pub(crate) known: Known,
    /// Its link counts are those of a whole union, as in version 1.
    pub(crate) is_old: bool,
    /// The latest change time of the log and the root. A branch was copied before.
    pub(crate) changed: Time,
    /// Number of good bytes.
    end: u64,
    /// Total number of bytes.
    len: u64,
    /// Whether the log contains records that have to be removed.
    unclean: bool,
}

/// Reads the log of a branch.
pub(crate) fn load(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path) -> Result<Loaded> {
    let mut loaded = Loaded::default();
    let Some(entry) = root.lookup(cx, Name::new(IDENT)?)? else { return Ok(loaded) };
    loaded.found = true;
    loaded.changed = entry.attr.ctime.max(root.getattr(cx)?.ctime);
    let branch = path.display();
    if entry.vnode.kind() != Kind::Regular {
        tracing::warn!(%branch, "the identity log .wh..wh.ident is ignored: it is not a regular file");
        return Ok(loaded);
    }
    if !is_servers(&entry.attr, cx.uid) {
        // A forged log could give one user's file the number of another's and, by the index of hard
        // links, its data.
        let owner = entry.attr.uid;
        tracing::warn!(
            %branch,
            owner,
            "the identity log .wh..wh.ident is ignored: a user other than root and the server's user owns it or can write it; inode numbers \
             of files change"
        );
        return Ok(loaded);
    }
    let file = entry.vnode.open(cx, OpenFlags::RDONLY)?;
    let read = Reader::read(&*file, cx, &mut |record| loaded.known.apply(record))?;
    if read.good < entry.attr.size {
        let lost = entry.attr.size - read.good;
        tracing::warn!(%branch, lost, "the end of the identity log is damaged: some inode numbers change");
    }
    if read.skipped > 0 {
        tracing::warn!(%branch, records = read.skipped, "ignored records of the identity log with invalid paths");
    }
    let unclean = read.skipped > 0 || read.is_old;
    Ok(Loaded { end: read.good, len: entry.attr.size, is_old: read.is_old, unclean, ..loaded })
}

/// Opens a log that was found, for appending. Rewrites it first if its header is damaged or of an
/// earlier version, if records have to be removed, or if more than half of it is out of date.
pub(crate) fn open_log(cx: &Cx<'_>, (root, path): (&Arc<dyn Vnode>, &Path), loaded: &Loaded) -> Result<Log> {
    let &Loaded { ref known, end, len, unclean, .. } = loaded;
    let name = Name::new(IDENT)?;
    let all = bytes_of(known)?;
    let is_damaged = unclean || end < HEADER.len() as u64;
    if is_damaged || (all.len() as u64) < end / 2 {
        match preserving_times(cx, root, || rewrite_log(cx, (root, path), name, &all)) {
            // A full branch can still be used with a long log.
            Err(Errno::NOSPC | Errno::DQUOT) if !is_damaged => {}
            rewritten => return rewritten,
        }
    }
    let entry = root.lookup(cx, name)?.ok_or(Errno::IO)?;
    let file = entry.vnode.open(cx, OpenFlags::RDWR)?;
    if len > end {
        let cut = vnode::SetAttr { size: Some(end), ..vnode::SetAttr::default() };
        entry.vnode.setattr(cx, &cut, Some(&*file))?;
    }
    Ok(Log::new(file, end))
}

/// Creates a log without records on a branch that has none. If this is interrupted, the next mount
/// finds an incomplete header, and writes the log again.
pub(crate) fn create_log(cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<Log> {
    // The first write to a layer below can also create files in the root.
    let file = preserving_times(cx, root, || {
        let (_, file) = root.create(cx, Name::new(IDENT)?, 0o600, OpenFlags::RDWR)?;
        write_all(&*file, cx, HEADER, 0)?;
        Ok(file)
    })?;
    Ok(Log::new(file, HEADER.len() as u64))
}

/// Writes a log of these records aside and renames it into place.
fn rewrite_log(cx: &Cx<'_>, (root, path): (&Arc<dyn Vnode>, &Path), name: Name<'_>, bytes: &[u8]) -> Result<Log> {
    let aside = Name::new(IDENT_NEW)?;
    // Regular files of these names are logs, and are replaced. Anything else is not the union's.
    for old in [name, aside] {
        let found = root.lookup(cx, old)?;
        if found.as_ref().is_some_and(|entry| entry.vnode.kind() != Kind::Regular) {
            move_aside(cx, root, old, path)?;
        } else if found.is_some() && old == aside {
            root.unlink(cx, old)?;
        }
    }
    let (_, file) = root.create(cx, aside, 0o600, OpenFlags::RDWR)?;
    let all = [HEADER, bytes].concat();
    let written = write_all(&*file, cx, &all, 0)
        .and_then(|()| file.fsync(cx, true))
        .and_then(|()| root.rename(cx, aside, root, name, RenameFlags::default()));
    if let Err(errno) = written {
        // On a full branch it would take space until the next mount.
        let _best_effort = root.unlink(cx, aside);
        return Err(errno);
    }
    Ok(Log::new(file, all.len() as u64))
}

/// Returns why the identity log can't be written. If files can be created and only the name is
/// refused, the branch lies in another union.
pub(crate) fn why_not_written(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path, errno: Errno) -> BuildError {
    if errno == Errno::PERM && root.tmpfile(cx, 0o600, OpenFlags::RDWR).is_ok() {
        return BuildError::NamesRefused(path.to_owned());
    }
    BuildError::NotWritable(path.to_owned(), errno)
}

/// Writes a complete log in the root of a branch, in place of any that is there.
pub(crate) fn move_log(cx: &Cx<'_>, (root, path): (&Arc<dyn Vnode>, &Path), known: &Known) -> Result<Log> {
    let all = bytes_of(known)?;
    preserving_times(cx, root, || rewrite_log(cx, (root, path), Name::new(IDENT)?, &all))
}

fn bytes_of(known: &Known) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for record in known.records() {
        all.extend(record.encode()?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
    use vnode::Layer as _;

    /// On a branch that is full, or after any other error, there is the old log and nothing aside.
    #[test]
    fn a_log_that_cant_be_rewritten_leaves_nothing_aside() {
        let cx = Cx::internal(0, 0);
        for at in 1.. {
            let faults = Faults::new();
            let root = MemFs::with(MemOptions::default(), &faults).root();
            let branch = (&root, Path::new("/"));
            drop(move_log(&cx, branch, &Known::default()).unwrap());
            let old = root.lookup(&cx, Name::new(IDENT).unwrap()).unwrap().unwrap().attr.ino;
            faults.arm(Plan { count: Count::All, at, fault: Fault::Error(Errno::NOSPC) });
            let written = rewrite_log(&cx, branch, Name::new(IDENT).unwrap(), b"");
            let fired = faults.fired();
            faults.disarm();
            let found = |name| root.lookup(&cx, Name::new(name).unwrap()).unwrap().map(|entry| entry.attr.ino);
            assert!(found(IDENT_NEW).is_none(), "a fault at step {at}");
            assert_eq!(found(IDENT) == Some(old), written.is_err(), "a fault at step {at}");
            if !fired {
                break;
            }
        }
    }
}
