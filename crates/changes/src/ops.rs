//! Small operations on vnodes and paths.

use std::sync::Arc;
use vnode::{Attr, Cx, DirEntry, Entry, Errno, Kind, Name, OpenFile, Result, SetAttr, SetTime, Vnode};

/// Returns the path of an entry of the directory at `dir`.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// Returns the path of the directory, and the name. The name is empty for the root.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (&[], path),
    }
}

/// Whether `path` is `above` or lies beneath it.
pub(crate) fn is_within(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns the components of a path.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = Result<Name<'_>>> {
    path.split(|&b| b == b'/').filter(|part| !part.is_empty()).map(Name::new)
}

/// Looks a name up in a directory.
pub(crate) fn lookup(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Option<Entry>> {
    match Name::new(name) {
        Ok(name) => dir.lookup(cx, name),
        // No such name can exist.
        Err(Errno::NAMETOOLONG) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the object at a path. `None` if there is none, or if a component is not a directory.
pub(crate) fn resolve(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &[u8]) -> Result<Option<Arc<dyn Vnode>>> {
    let mut at = Arc::clone(root);
    for name in components(path) {
        if at.kind() != Kind::Directory {
            return Ok(None);
        }
        match at.lookup(cx, name?)? {
            Some(entry) => at = entry.vnode,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// Returns the directory at a path, if there is one.
pub(crate) fn resolve_dir(cx: &Cx<'_>, root: &Arc<dyn Vnode>, path: &[u8]) -> Result<Option<Arc<dyn Vnode>>> {
    Ok(resolve(cx, root, path)?.filter(is_dir))
}

/// Whether the object is a directory.
pub(crate) fn is_dir(vnode: &Arc<dyn Vnode>) -> bool {
    vnode.kind() == Kind::Directory
}

/// Returns the names in a directory with their types, sorted by name.
pub(crate) fn list(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<(Vec<u8>, Kind)>> {
    let mut names = Vec::new();
    let mut sink = |entry: &DirEntry<'_>| {
        names.push((entry.name.as_bytes().to_vec(), entry.kind));
        true
    };
    dir.readdir(cx, 0, &mut sink)?;
    names.sort_unstable_by(|(one, _), (other, _): &(Vec<u8>, Kind)| one.cmp(other));
    Ok(names)
}

/// Fills the buffer from a file. Returns less only at the end of the file.
pub(crate) fn read_full(cx: &Cx<'_>, file: &dyn OpenFile, out: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read(cx, rest, offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Writes all bytes to a file.
pub(crate) fn write_all(cx: &Cx<'_>, file: &dyn OpenFile, bytes: &[u8], offset: u64) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(cx, rest, offset + done as u64)? {
            0 => return Err(Errno::IO),
            written => done += written,
        }
    }
    Ok(())
}

/// Sets the times of an object to those of `attr`.
pub(crate) fn set_times(cx: &Cx<'_>, vnode: &Arc<dyn Vnode>, attr: &Attr) -> Result<()> {
    let times =
        SetAttr { atime: Some(SetTime::At(attr.atime)), mtime: Some(SetTime::At(attr.mtime)), ..SetAttr::default() };
    vnode.setattr(cx, &times, None).map(drop)
}

/// Removes an entry of a lower directory, recursively and with all records. Succeeds if there is
/// none. Also own directories that are not readable.
pub(crate) fn remove_tree(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
    let Some(entry) = lookup(cx, dir, name)? else { return Ok(()) };
    let name = Name::new(name)?;
    if !is_dir(&entry.vnode) {
        return dir.unlink(cx, name);
    }
    let remove_entries =
        || list(cx, &entry.vnode)?.iter().try_for_each(|(inner, _)| remove_tree(cx, &entry.vnode, inner));
    match remove_entries() {
        Err(Errno::ACCESS) if entry.attr.perm() & 0o700 != 0o700 => {
            let open = SetAttr { mode: Some(entry.attr.perm() | 0o700), ..SetAttr::default() };
            entry.vnode.setattr(cx, &open, None)?;
            remove_entries()?;
        }
        removed => removed?,
    }
    dir.rmdir(cx, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!((join(b"", b"a"), join(b"a", b"b")), (b"a".to_vec(), b"a/b".to_vec()));
        assert_eq!((split(b"a"), split(b"a/b/c")), ((&b""[..], &b"a"[..]), (&b"a/b"[..], &b"c"[..])));
        assert!(is_within(b"a/b", b"a") && is_within(b"a", b"a") && is_within(b"a", b"") && !is_within(b"ab", b"a"));
    }
}
