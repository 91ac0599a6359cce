//! Whole transfers to and from the file below, which may do less than asked at a time.

use vnode::{Cx, Errno, OpenFile, Result, SetAttr, SetTime, Vnode};

/// Fills `out`, or reads up to the end of the file. (A layer may return fewer bytes after an
/// error.)
pub(crate) fn read_full(file: &dyn OpenFile, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read(cx, rest, offset.saturating_add(done as u64))? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Writes as much as possible. Returns the number of bytes written, and the error if it is short.
pub(crate) fn write_full(file: &dyn OpenFile, cx: &Cx<'_>, data: &[u8], offset: u64) -> (usize, Result<()>) {
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(cx, rest, offset.saturating_add(done as u64)) {
            Ok(0) => return (done, Err(Errno::IO)),
            Ok(n) => done += n,
            Err(errno) => return (done, Err(errno)),
        }
    }
    (done, Ok(()))
}

/// Sets the size of the open file `file` of `vnode`.
pub(crate) fn set_size(vnode: &dyn Vnode, file: &dyn OpenFile, cx: &Cx<'_>, size: u64) -> Result<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    vnode.setattr(cx, &set, Some(file)).map(|_| ())
}

/// Sets the mtime after a change of the data, when it is too late to fail.
pub(crate) fn touch(vnode: &dyn Vnode, cx: &Cx<'_>) {
    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let _best_effort = vnode.setattr(cx, &now, None);
}
