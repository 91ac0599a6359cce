use crate::managed::{Base, Location, Managed};
use crate::node::{LockedDir, UsenetVnode};
use crate::split::DEFAULT_ACL;
use crate::state::Layout;
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, Vnode,
    XattrFlags, forward,
};

impl Vnode for UsenetVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: id, generation, kind, readlink, listing_stamp, open, refused, statfs, ioctl, getxattr);

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        false
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.report_names(cx, sink)
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.shown(cx, self.lower.getattr(cx)?)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.change_attr(cx, set, file)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        self.find(cx, name)
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.list(cx, cookie, sink)
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let (entry, file) = self.make(cx, name, |dir| dir.create(cx, name, mode, flags))?;
        Ok((self.wrap_new(cx, entry), file))
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let (entry, file) = self.lower.tmpfile(cx, mode, flags)?;
        Ok((self.wrap_new(cx, entry), file))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let entry = self.make(cx, name, |dir| dir.mknod(cx, name, mode, rdev))?;
        Ok(self.wrap_new(cx, entry))
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        let entry = self.make(cx, name, |dir| self.make_dir(cx, dir, name, mode))?;
        Ok(self.wrap_new(cx, entry))
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        let entry = self.make(cx, name, |dir| dir.symlink(cx, name, target))?;
        Ok(self.wrap_new(cx, entry))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let target = &self.same_layer(target)?.lower;
        let entry = self.make(cx, name, |dir| dir.link(cx, name, target))?;
        Ok(self.wrap_new(cx, entry))
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.remove_file(cx, name)
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.remove_dir(cx, name)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.move_to(cx, name, self.same_layer(new_dir)?, new_name, flags)
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.change_xattr(cx, name, || self.lower.setxattr(cx, name, value, flags))
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.lower.listxattr(cx, out)
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.change_xattr(cx, name, || self.lower.removexattr(cx, name))
    }

    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        self.run_command(cx, command, input)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        if self.kind() != Kind::Directory {
            return self.lower.fsync(cx, data_only);
        }
        match self.lock_for_change(cx)? {
            LockedDir::Flat(_flat) => {}
            LockedDir::Managed(mut managed) => managed.fsync(cx, &self.lower, data_only)?,
        }
        self.lower.fsync(cx, data_only)
    }
}

impl UsenetVnode {
    /// A change of the default ACL also applies to buckets.
    fn change_xattr(&self, cx: &Cx<'_>, name: &[u8], change: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.kind() != Kind::Directory || name != DEFAULT_ACL {
            return change();
        }
        let mut layout = self.state()?.write_layout(&self.core.server(cx), &self.lower)?;
        if let Layout::Managed(managed) = &mut *layout {
            managed.reset_inheritance();
        }
        change()
    }
}

impl Managed {
    /// Syncs the changed buckets, too.
    fn fsync(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, data_only: bool) -> Result<()> {
        while let Some(name) = self.dirty.first().cloned() {
            if let Some(bucket) = self.directory(cx, dir, &Location::In(name.clone()))? {
                bucket.fsync(cx, data_only)?;
            }
            self.dirty.remove(&name);
        }
        match self.bases().contains(&Base::Store) && !self.buckets.is_empty() {
            true => self.base(cx, dir, Base::Store)?.fsync(cx, data_only),
            false => Ok(()),
        }
    }
}
