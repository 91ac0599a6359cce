use crate::file::WrapFile;
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, OpenFile, OpenFlags, RenameFlags, Result, SetAttr,
    StatFs, Vnode, XattrFlags,
};

/// A vnode of the layer below.
#[derive(Debug)]
pub(crate) struct WrapVnode {
    lower: Arc<dyn Vnode>,
}

impl WrapVnode {
    pub(crate) fn over(lower: Arc<dyn Vnode>) -> Self {
        Self { lower }
    }
}

/// Wraps what the layer below answered.
fn wrap(entry: Entry) -> Entry {
    Entry { vnode: Arc::new(WrapVnode::over(entry.vnode)), attr: entry.attr }
}

/// The vnode of the layer below that a vnode of this one stands for.
fn unwrap(vnode: &Arc<dyn Vnode>) -> Result<&Arc<dyn Vnode>> {
    vnode.as_any().downcast_ref::<WrapVnode>().map(|wrapped| &wrapped.lower).ok_or(Errno::XDEV)
}

impl Vnode for WrapVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.lower.id()
    }

    fn kind(&self) -> Kind {
        self.lower.kind()
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.lower.getattr(cx)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.lower.setattr(cx, set, file.map(WrapFile::lower_of))
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        Ok(self.lower.lookup(cx, name)?.map(wrap))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.lower.readlink(cx)
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.lower.readdir(cx, cookie, sink)
    }

    fn listing_stamp(&self, cx: &Cx<'_>) -> Option<u64> {
        self.lower.listing_stamp(cx)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        Ok(WrapFile::over(self.lower.open(cx, flags)?))
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let (entry, file) = self.lower.create(cx, name, mode, flags)?;
        Ok((wrap(entry), WrapFile::over(file)))
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let (entry, file) = self.lower.tmpfile(cx, mode, flags)?;
        Ok((wrap(entry), WrapFile::over(file)))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        self.lower.mknod(cx, name, mode, rdev).map(wrap)
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.lower.mkdir(cx, name, mode).map(wrap)
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.lower.symlink(cx, name, target).map(wrap)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.lower.link(cx, name, unwrap(target)?).map(wrap)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.lower.unlink(cx, name)
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.lower.rmdir(cx, name)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.lower.rename(cx, name, unwrap(new_dir)?, new_name, flags)
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.lower.getxattr(cx, name, out)
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.lower.setxattr(cx, name, value, flags)
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.lower.listxattr(cx, out)
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.lower.removexattr(cx, name)
    }

    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()> {
        self.lower.refused(cx, mask)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.lower.statfs(cx)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.lower.fsync(cx, data_only)
    }

    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        self.lower.ioctl(cx, cmd, input, out)
    }
}
