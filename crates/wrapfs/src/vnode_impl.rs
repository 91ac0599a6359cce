use crate::file::WrapFile;
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, Entry, Errno, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, Vnode, forward,
};

/// A wrapped vnode of the layer below.
#[derive(Debug)]
pub(crate) struct WrapVnode {
    lower: Arc<dyn Vnode>,
}

impl WrapVnode {
    pub(crate) fn over(lower: Arc<dyn Vnode>) -> Self {
        Self { lower }
    }
}

/// Wraps an entry of the layer below.
fn wrap(entry: Entry) -> Entry {
    Entry { vnode: Arc::new(WrapVnode::over(entry.vnode)), attr: entry.attr }
}

/// Returns the lower vnode of a vnode of this layer.
fn unwrap(vnode: &Arc<dyn Vnode>) -> Result<&Arc<dyn Vnode>> {
    vnode.as_any().downcast_ref::<WrapVnode>().map(|wrapped| &wrapped.lower).ok_or(Errno::XDEV)
}

impl Vnode for WrapVnode {
    forward!(lower: id, generation, kind, getattr, readlink, readdir, listing_stamp, lists_exactly, unlink, rmdir);
    forward!(lower: getxattr, setxattr, listxattr, removexattr, refused, statfs, fsync, ioctl, control);

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn getattr_open(&self, cx: &Cx<'_>, file: &dyn OpenFile) -> Result<Attr> {
        self.lower.getattr_open(cx, WrapFile::lower_of(file))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.lower.setattr(cx, set, file.map(WrapFile::lower_of))
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        Ok(self.lower.lookup(cx, name)?.map(wrap))
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        let wrapped = |dir: &Arc<dyn Vnode>| -> Arc<dyn Vnode> { Arc::new(Self::over(Arc::clone(dir))) };
        self.lower.names(cx, &mut |dir, name| sink(&wrapped(dir), name))
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
}
