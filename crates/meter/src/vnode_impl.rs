use crate::counts::Tally;
use crate::file::MeterFile;
use crate::{Counts, Operation};
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result, SetAttr,
    StatFs, Vnode, XattrFlags, forward,
};

/// A metered vnode.
#[derive(Debug)]
pub(crate) struct MeterVnode {
    lower: Arc<dyn Vnode>,
    counts: &'static Counts,
}

impl MeterVnode {
    pub(crate) const fn over(lower: Arc<dyn Vnode>, counts: &'static Counts) -> Self {
        Self { lower, counts }
    }

    fn begin(&self, operation: Operation) -> Tally<'static> {
        self.counts.begin(operation)
    }

    fn begin_at<'a>(&self, operation: Operation, name: &'a [u8]) -> Tally<'a> {
        self.counts.begin(operation).at(name)
    }

    /// Wraps an entry that the layer below returned.
    fn wrap(&self, entry: Entry) -> Entry {
        Entry { vnode: Arc::new(Self::over(entry.vnode, self.counts)), attr: entry.attr }
    }

    fn wrap_both(&self, (entry, file): (Entry, Arc<dyn OpenFile>)) -> (Entry, Arc<dyn OpenFile>) {
        (self.wrap(entry), MeterFile::over(file, self.counts))
    }
}

/// Returns the lower vnode of a metered vnode.
fn unwrap(vnode: &Arc<dyn Vnode>) -> Result<&Arc<dyn Vnode>> {
    vnode.as_any().downcast_ref::<MeterVnode>().map(|metered| &metered.lower).ok_or(Errno::XDEV)
}

impl Vnode for MeterVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: id, generation, kind, listing_stamp, lists_exactly);

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.begin(Operation::Getattr).end(self.lower.getattr(cx))
    }

    fn getattr_open(&self, cx: &Cx<'_>, file: &dyn OpenFile) -> Result<Attr> {
        self.begin(Operation::Getattr).end(self.lower.getattr_open(cx, MeterFile::lower_of(file)))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.begin(Operation::Setattr).end(self.lower.setattr(cx, set, file.map(MeterFile::lower_of)))
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let found = self.begin_at(Operation::Lookup, name.as_bytes()).end(self.lower.lookup(cx, name))?;
        Ok(found.map(|entry| self.wrap(entry)))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.begin(Operation::Readlink).end(self.lower.readlink(cx))
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let mut tally = self.begin(Operation::Readdir);
        let result = self.lower.readdir(cx, cookie, &mut |entry| tally.outside(|| sink(entry)));
        tally.end(result)
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        let wrapped = |dir: &Arc<dyn Vnode>| -> Arc<dyn Vnode> { Arc::new(Self::over(Arc::clone(dir), self.counts)) };
        let mut tally = self.begin(Operation::Names);
        let result = self.lower.names(cx, &mut |dir, name| tally.outside(|| sink(&wrapped(dir), name)));
        tally.end(result)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let file = self.begin(Operation::Open).end(self.lower.open(cx, flags))?;
        Ok(MeterFile::over(file, self.counts))
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.begin_at(Operation::Create, name.as_bytes())
            .end(self.lower.create(cx, name, mode, flags))
            .map(|made| self.wrap_both(made))
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.begin(Operation::Tmpfile).end(self.lower.tmpfile(cx, mode, flags)).map(|made| self.wrap_both(made))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        self.begin_at(Operation::Mknod, name.as_bytes())
            .end(self.lower.mknod(cx, name, mode, rdev))
            .map(|made| self.wrap(made))
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.begin_at(Operation::Mkdir, name.as_bytes())
            .end(self.lower.mkdir(cx, name, mode))
            .map(|made| self.wrap(made))
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.begin_at(Operation::Symlink, name.as_bytes())
            .end(self.lower.symlink(cx, name, target))
            .map(|made| self.wrap(made))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let target = unwrap(target)?;
        self.begin_at(Operation::Link, name.as_bytes())
            .end(self.lower.link(cx, name, target))
            .map(|made| self.wrap(made))
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.begin_at(Operation::Unlink, name.as_bytes()).end(self.lower.unlink(cx, name))
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.begin_at(Operation::Rmdir, name.as_bytes()).end(self.lower.rmdir(cx, name))
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let new_dir = unwrap(new_dir)?;
        self.begin_at(Operation::Rename, name.as_bytes())
            .to(new_name.as_bytes())
            .end(self.lower.rename(cx, name, new_dir, new_name, flags))
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.begin_at(Operation::Getxattr, name).end(self.lower.getxattr(cx, name, out))
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.begin_at(Operation::Setxattr, name).end(self.lower.setxattr(cx, name, value, flags))
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.begin(Operation::Listxattr).end(self.lower.listxattr(cx, out))
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.begin_at(Operation::Removexattr, name).end(self.lower.removexattr(cx, name))
    }

    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()> {
        self.begin(Operation::Refused).end(self.lower.refused(cx, mask))
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.begin(Operation::Statfs).end(self.lower.statfs(cx))
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.begin(Operation::Fsync).end(self.lower.fsync(cx, data_only))
    }

    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        self.begin(Operation::Ioctl).end(self.lower.ioctl(cx, cmd, input, out))
    }

    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        self.begin(Operation::Control).end(self.lower.control(cx, command, input))
    }
}
