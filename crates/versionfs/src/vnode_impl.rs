use crate::node::{VersionVnode, is_reserved};
use crate::set::find_store;
use std::any::Any;
use std::sync::Arc;
use versionset::STORE;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, Vnode,
    XattrFlags, forward,
};

impl Vnode for VersionVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: id, generation, kind, readlink, listing_stamp, lists_exactly, refused, statfs, ioctl, getxattr,
        listxattr);

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.shown(cx, self.lower.getattr(cx)?)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.change_attr(cx, set, file)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        if is_reserved(name) {
            return if self.lower.kind() == Kind::Directory { Ok(None) } else { Err(Errno::NOTDIR) };
        }
        if let Some(found) = self.find_past(cx, name) {
            return found.map(Some);
        }
        self.lower.lookup(cx, name)?.map(|entry| self.wrap_at(cx, name, entry)).transpose()
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.report_names(cx, sink)
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.lower.readdir(cx, cookie, &mut |entry| entry.name.as_bytes() == STORE || sink(entry))
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        self.open_file(cx, flags)
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.require_creatable(name)?;
        let (entry, file) = self.lower.create(cx, name, mode, Self::flags_of_new(flags))?;
        self.wrap_created(cx, Some(name), entry, file, flags)
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let (entry, file) = self.lower.tmpfile(cx, mode, Self::flags_of_new(flags))?;
        self.wrap_created(cx, None, entry, file, flags)
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        self.require_creatable(name)?;
        self.lower.mknod(cx, name, mode, rdev).map(|entry| self.wrap_new(name, entry))
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.require_creatable(name)?;
        self.lower.mkdir(cx, name, mode).map(|entry| self.wrap_new(name, entry))
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.require_creatable(name)?;
        self.lower.symlink(cx, name, target).map(|entry| self.wrap_new(name, entry))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.require_creatable(name)?;
        self.add_name(cx, name, self.same_layer(target)?)
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
        self.change_xattr(cx, name, Some(value), |cx| self.lower.setxattr(cx, name, value, flags))
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.change_xattr(cx, name, None, |cx| self.lower.removexattr(cx, name))
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        if self.kind() == Kind::Directory
            && self.has_store(cx)?
            && let Some(store) = find_store(cx, &self.lower)?
        {
            store.fsync(cx, data_only)?;
        }
        self.lower.fsync(cx, data_only)
    }

    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        self.run_command(cx, command, input)
    }
}

impl VersionVnode {
    /// Fails if no entry of this name may be made here: the name is the layer's own, or the
    /// directory is removed.
    fn require_creatable(&self, name: Name<'_>) -> Result<()> {
        if self.inode.is_buried() {
            return Err(Errno::NOENT);
        }
        if is_reserved(name) { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Wraps a file that was created and opened.
    fn wrap_created(
        &self,
        cx: &Cx<'_>,
        name: Option<Name<'_>>,
        entry: Entry,
        file: Arc<dyn OpenFile>,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let vnode = Self::over(&self.core, entry.vnode);
        if let Some(name) = name {
            vnode.inode.found_at(&self.lower, name.as_bytes());
        }
        let file = vnode.created(cx, file, flags)?;
        Ok((Entry { attr: entry.attr, vnode: Arc::new(vnode) }, file))
    }
}
