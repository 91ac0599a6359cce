//! The identity log's file, in the root of the leftmost branch: docs/formats/union-branch.md.

use crate::identity::Known;
use crate::log::{HEADER, Log, Reader, Record, write_all};
use crate::options::BuildError;
use crate::ownfiles::move_aside;
use crate::times::preserving_times;
use crate::trust::is_servers;
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, OpenFlags, RenameFlags, Result, Vnode};

/// The name of the log.
pub(crate) const IDENT: &[u8] = b".wh..wh.ident";
/// A log that is being rewritten.
pub(crate) const IDENT_NEW: &[u8] = b".wh..wh.ident.new";
/// The largest tag of a branch; the smallest is 1. Tags fill bits 62..48 of a number.
pub(crate) const TAGS: u16 = 0x7ffe;

/// The log that was found on the leftmost branch.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) known: Known,
    /// Number of good bytes.
    end: u64,
    /// Total number of bytes.
    len: u64,
    /// Whether the log contains records that have to be removed.
    unclean: bool,
}

/// Reads the log on the leftmost branch.
pub(crate) fn load(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &Path) -> Result<Loaded> {
    let mut loaded = Loaded::default();
    let Some(entry) = root.lookup(cx, Name::new(IDENT)?)? else { return Ok(loaded) };
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
    Ok(Loaded { end: read.good, len: entry.attr.size, unclean: read.skipped > 0, ..loaded })
}

/// Returns the tags of the branches, and records of those that were assigned now.
pub(crate) fn tag<'p>(branches: impl IntoIterator<Item = &'p Path>, known: &mut Known) -> (Vec<u16>, Vec<Record>) {
    let mut used: HashSet<u16> = known.tags.values().copied().collect();
    let mut next = 1;
    let mut fresh = Vec::new();
    let mut tags = Vec::new();
    let mut taken = HashSet::new();
    for path in branches {
        let path = path.as_os_str().as_bytes();
        let old = known.tags.get(path).copied().filter(|&tag| (1..=TAGS).contains(&tag) && taken.insert(tag));
        let tag = old.unwrap_or_else(|| {
            while next < TAGS && !used.insert(next) {
                next += 1;
            }
            taken.insert(next);
            let record = Record::Tag { tag: next, path: path.to_vec() };
            known.apply(record.clone());
            fresh.push(record);
            next
        });
        tags.push(tag);
    }
    (tags, fresh)
}

/// Opens the log for appending. Rewrites it first if its header is damaged, if records have to be
/// removed, or if more than half of it is out of date.
pub(crate) fn write_log(
    cx: &Cx<'_>,
    (root, path): (&Arc<dyn Vnode>, &Path),
    loaded: &Loaded,
    fresh: Vec<Record>,
) -> Result<Log> {
    let &Loaded { ref known, end, len, unclean } = loaded;
    let all = bytes_of(known)?;
    let name = Name::new(IDENT)?;
    if unclean || end < HEADER.len() as u64 || (all.len() as u64) < end / 2 {
        return preserving_times(cx, root, || rewrite_log(cx, (root, path), name, &all));
    }
    let entry = root.lookup(cx, name)?.ok_or(Errno::IO)?;
    let file = entry.vnode.open(cx, OpenFlags::RDWR)?;
    if len > end {
        let cut = vnode::SetAttr { size: Some(end), ..vnode::SetAttr::default() };
        entry.vnode.setattr(cx, &cut, Some(&*file))?;
    }
    let mut log = Log::new(file, end);
    for record in fresh {
        log.append(cx, [&record])?;
    }
    Ok(log)
}

/// Writes the log aside and renames it into place.
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
    write_all(&*file, cx, bytes, 0)?;
    file.fsync(cx, true)?;
    root.rename(cx, aside, root, name, RenameFlags::default())?;
    Ok(Log::new(file, bytes.len() as u64))
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
    let mut all = HEADER.to_vec();
    for record in known.records() {
        all.extend(record.encode()?);
    }
    Ok(all)
}
