//! Temporary names in a directory of a branch. Unions hide them. Files that are written under such
//! a name first.

use crate::ops::{lookup, read_full, write_all};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vnode::{Cx, Errno, Kind, Name, OpenFlags, RenameFlags, Result, Vnode, read_value};

/// Prefix of the names.
const PREFIX: &[u8] = b".wh..wh.tmp.";
/// Maximum size of a file that is read.
const LIMIT: u64 = 1 << 28;

/// Whether this is such a name.
pub(crate) fn is_temp(name: &[u8]) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A temporary name.
pub(crate) struct Temp(Vec<u8>);

impl Temp {
    /// Returns a name that is not used in a directory.
    pub(crate) fn new(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Self> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = [PREFIX, number.to_string().as_bytes()].concat();
            if lookup(cx, dir, &name)?.is_none() {
                return Ok(Self(name));
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn name(&self) -> Result<Name<'_>> {
        Name::new(&self.0)
    }
}

/// Returns the content of a file. `None` if there is none of a sensible size.
pub(crate) fn read_file(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(entry) = lookup(cx, dir, name)? else { return Ok(None) };
    if entry.vnode.kind() != Kind::Regular || entry.attr.size > LIMIT {
        return Ok(None);
    }
    let file = entry.vnode.open(cx, OpenFlags::RDONLY)?;
    let bytes = read_value(|out| match out.len() {
        0 => Ok(usize::try_from(entry.attr.size).unwrap_or(0)),
        _ => read_full(cx, &*file, out, 0),
    })?;
    Ok(Some(bytes))
}

/// Creates a file with this content, or replaces it, durably and in one step.
pub(crate) fn replace_file(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8], bytes: &[u8]) -> Result<()> {
    let temp = Temp::new(cx, dir)?;
    let (_, file) = dir.create(cx, temp.name()?, 0o600, OpenFlags::RDWR)?;
    write_all(cx, &*file, bytes, 0)?;
    file.fsync(cx, true)?;
    dir.rename(cx, temp.name()?, dir, Name::new(name)?, RenameFlags::default())?;
    dir.fsync(cx, false)
}

/// Removes a file. Succeeds if there is none.
pub(crate) fn remove_file(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
    match dir.unlink(cx, Name::new(name)?) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised() {
        assert!(is_temp(b".wh..wh.tmp.0") && is_temp(b".wh..wh.tmp.17"));
        assert!(!is_temp(b".wh..wh.tmp.") && !is_temp(b".wh..wh.tmp.x") && !is_temp(b"tmp.1"));
    }
}
