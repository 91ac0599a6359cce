//! Past symbolic links, FIFOs, sockets and device nodes: the lower object, which never changes its
//! content.

use crate::core::Core;
use crate::history::Seen;
use crate::past::content::{attr_of, current};
use core::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Name, NameSink, OpenFile, OpenFlags, Result, Vnode, forward, refuse,
};

/// An object that is neither a file nor a directory.
#[derive(Debug)]
pub(crate) struct Special {
    pub(crate) id: u64,
    pub(crate) core: Arc<Core>,
    pub(crate) lower: Arc<dyn Vnode>,
    /// The version that says which attributes it had, if they may have changed since.
    pub(crate) version: Option<Box<Seen>>,
}

impl Vnode for Special {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: kind, readlink, getxattr, listxattr, statfs);

    refuse!(Errno::ROFS => setattr, create, tmpfile, mknod, mkdir, symlink, link, unlink, rmdir, rename, setxattr,
        removexattr);

    fn id(&self) -> u64 {
        self.id
    }

    fn generation(&self) -> u32 {
        0
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        // Commands change the owner and mode of versions, which the kernel does not see.
        cx.limit_attr_lifetime(core::time::Duration::ZERO);
        let server = self.core.server(cx);
        let lower = self.lower.getattr(&server)?;
        let attr = match self.version.as_deref() {
            Some(seen) => {
                let attr = attr_of(&current(&self.core, &server, seen)?);
                Attr { rdev: lower.rdev, size: lower.size, blocks: 0, ..attr }
            }
            None => lower,
        };
        Ok(Attr { ino: self.id, nlink: 1, ..attr })
    }

    fn lookup(&self, _cx: &Cx<'_>, _name: Name<'_>) -> Result<Option<Entry>> {
        Err(Errno::NOTDIR)
    }

    fn names(&self, _cx: &Cx<'_>, _sink: NameSink<'_>) -> Result<()> {
        Ok(())
    }

    fn readdir(&self, _cx: &Cx<'_>, _cookie: u64, _sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        Err(Errno::NOTDIR)
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        Some(0)
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        true
    }

    fn open(&self, _cx: &Cx<'_>, _flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        Err(Errno::NXIO)
    }

    fn refused(&self, _cx: &Cx<'_>, _mask: u32) -> Result<()> {
        Ok(())
    }

    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn ioctl(&self, _cx: &Cx<'_>, _cmd: u32, _input: &[u8], _out: &mut [u8]) -> Result<IoctlReply> {
        Err(Errno::NOTTY)
    }

    fn control(&self, cx: &Cx<'_>, command: &str, _input: &[u8]) -> Result<Vec<u8>> {
        let _ = (cx, command);
        Err(Errno::OPNOTSUPP)
    }
}
