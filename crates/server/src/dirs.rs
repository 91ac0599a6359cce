//! Directory listings.

use crate::caller::RequestContext;
use crate::convert::name;
use crate::nodes::ROOT;
use crate::ops::Server;
use fuse::abi::EntryOut;
use fuse::{DirBuf, Reply, Request};
use vnode::{Cx, DirEntry, Kind, Vnode};

/// Returns the offsets after `.` and after `..`, where the layer's own entries begin. They are
/// larger than all cookies of file systems, except for ext4's end-of-directory mark, or larger than
/// all 31-bit cookies if `narrow`.
pub(crate) const fn after_dots(narrow: bool) -> [u64; 2] {
    if narrow { [0x7fff_fffe, 0x7fff_ffff] } else { [0x7fff_ffff_0000_0001, 0x7fff_ffff_0000_0002] }
}

/// Returns the offset of the end of a directory, behind all entries. Entries that are added later
/// are not behind it: as on most file systems, a reader that has reached the end does not see
/// them. While the kernel sends a READDIR, it lets no entry of the directory change. So if all
/// entries fit into one reply, a reader sees either the old or the new name of a file that is
/// renamed.
pub(crate) const fn end(narrow: bool) -> u64 {
    if narrow { 0x7fff_fffd } else { i64::MAX.cast_unsigned() }
}

/// Returns the result of a listing that filled the buffer from `before` to `now` bytes. An error
/// after some entries is deferred to the next request: their lookups are counted, and the kernel
/// only forgets entries that it received.
fn partial_listing(read: Reply<()>, before: usize, now: usize) -> Reply<usize> {
    match read {
        Err(error) if now == before => Err(error),
        _ => Ok(now),
    }
}

impl Server {
    /// READDIR: lists names.
    pub(crate) fn list(&self, rq: &Request<'_>, node: u64, offset: u64, out: &mut [u8]) -> Reply<usize> {
        let vnode = self.nodes.get(node)?;
        let call = self.context(rq);
        let cx = call.cx(0);
        let mut buf = DirBuf::new(out);
        let dot = Kind::Directory.d_type();
        let mut push = |ino, next, name: &[u8]| buf.push(ino, next, dot, name);
        let Some(cookie) = self.dots(&cx, (node, &*vnode), offset, &mut push)? else {
            return Ok(buf.len());
        };
        let before = buf.len();
        if cookie == 0 {
            self.listing_cache.begin(&cx, node, &*vnode)?;
        }
        let mut is_full = false;
        let read = vnode.readdir(&cx, cookie, &mut |e| {
            is_full = !buf.push(e.ino, e.cookie, e.kind.d_type(), e.name.as_bytes());
            !is_full
        });
        if read.is_ok() && !is_full {
            buf.resume_at(self.end);
        }
        partial_listing(read, before, buf.len())
    }

    /// READDIRPLUS: lists names with attributes; each entry counts as a lookup.
    pub(crate) fn list_plus(&self, rq: &Request<'_>, node: u64, offset: u64, out: &mut [u8]) -> Reply<usize> {
        let vnode = self.nodes.get(node)?;
        let call = self.context(rq);
        let cx = call.cx(0);
        let mut buf = DirBuf::new(out);
        let blank = EntryOut::default();
        let dot = Kind::Directory.d_type();
        let mut push = |ino, next, name: &[u8]| buf.push_plus(&blank, ino, next, dot, name);
        let Some(cookie) = self.dots(&cx, (node, &*vnode), offset, &mut push)? else {
            return Ok(buf.len());
        };
        if cookie == 0 {
            self.listing_cache.begin(&cx, node, &*vnode)?;
        }
        let before = buf.len();
        let mut is_full = false;
        let read = vnode.readdir(&cx, cookie, &mut |e| {
            is_full = !self.push_plus((&call, &cx), (node, &*vnode), e, &mut buf);
            !is_full
        });
        if read.is_ok() && !is_full {
            buf.resume_at(self.end);
        }
        // Of the first entries, something may have changed while the last ones were looked up.
        buf.expire(|child, name| self.is_overtaken(&call, (node, name), child));
        partial_listing(read, before, buf.len())
    }

    /// Appends one entry of a READDIRPLUS. An entry that was removed meanwhile, or cannot be looked
    /// up, has no attributes: the kernel sends a LOOKUP when it needs them, and the caller gets
    /// that result.
    fn push_plus(
        &self,
        (call, cx): (&RequestContext<'_>, &Cx<'_>),
        (node, dir): (u64, &dyn Vnode),
        e: &DirEntry<'_>,
        buf: &mut DirBuf<'_>,
    ) -> bool {
        let bytes = e.name.as_bytes();
        if !buf.fits_plus(bytes.len()) {
            return false;
        }
        call.call.reset_lifetimes();
        let entry = name(bytes).and_then(|n| dir.lookup(cx, n)).ok().flatten();
        if let Some(entry) = entry.as_ref().filter(|entry| entry.attr.kind() == Kind::Directory) {
            let vnode = &entry.vnode;
            self.listing_cache.check_nowait(cx, (self.node_of(vnode), &**vnode), &entry.attr, &self.notifier);
        }
        let out = entry.as_ref().map_or_else(EntryOut::default, |entry| self.entry_out(call, (node, bytes), entry));
        let (ino, kind) = entry.as_ref().map_or((e.ino, e.kind), |entry| (entry.attr.ino, entry.attr.kind()));
        buf.push_plus(&out, ino, e.cookie, kind.d_type(), bytes)
    }

    /// Lists `.` and `..` if `offset` is at them. Returns the layer's cookie to continue at, or
    /// `None` if the buffer is full, or at the end.
    fn dots(
        &self,
        cx: &Cx<'_>,
        (node, dir): (u64, &dyn Vnode),
        offset: u64,
        push: &mut dyn FnMut(u64, u64, &[u8]) -> bool,
    ) -> Reply<Option<u64>> {
        let [after_dot, after_dotdot] = self.after_dots;
        if offset == self.end {
            return Ok(None);
        }
        if offset == 0 && !push(self.number(node), after_dot, b".") {
            return Ok(None);
        }
        if offset == 0 || offset == after_dot {
            let parent = self.parent_of(cx, (node, dir))?;
            if !push(self.number(parent), after_dotdot, b"..") {
                return Ok(None);
            }
        }
        Ok(Some(if [0, after_dot, after_dotdot].contains(&offset) { 0 } else { offset }))
    }

    /// Returns the inode number of a node.
    fn number(&self, node: u64) -> u64 {
        if node == ROOT { self.layer.root().id() } else { node }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vnode::Errno;

    #[test]
    fn entries_are_returned_before_an_error() {
        assert_eq!(partial_listing(Ok(()), 0, 0), Ok(0));
        assert_eq!(partial_listing(Ok(()), 64, 128), Ok(128));
        assert_eq!(partial_listing(Err(Errno::IO), 64, 128), Ok(128));
        assert_eq!(partial_listing(Err(Errno::IO), 64, 64), Err(Errno::IO));
    }
}
