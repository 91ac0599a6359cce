use crate::audit::Event;
use crate::content_time;
use crate::node::{VersionVnode, is_reserved, with_io_size};
use crate::set::find_store;
use crate::space::of_data;
use std::any::Any;
use std::sync::Arc;
use versionset::{Audited, STORE, is_own_attribute};
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, StatFs,
    Vnode, XattrFlags, forward,
};

impl Vnode for VersionVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: id, generation, kind, readlink, listing_stamp, lists_exactly, refused, ioctl);

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        Ok(self.core.space.with_expendable(self.lower.statfs(cx)?))
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.shown(cx, self.lower.getattr(cx)?)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        let change = || self.change_attr(cx, set, file);
        // The kernel asks for the second before each write of a user: mostly nothing is to be
        // cleared.
        let clears = SetAttr { kill_suidgid: true, ..SetAttr::default() };
        let is_nothing = || Ok(self.lower.getattr(&self.core.server(cx))?.perm() & 0o6000 == 0);
        if set.is_empty() || (*set == clears && is_nothing()?) {
            return change();
        }
        self.core.audited(cx, || Event::attributes(self, cx, set), change, |_, _| ())
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
        if !(flags.truncates() && flags.writes()) {
            return self.core.with_room(cx, || self.open_file(cx, flags));
        }
        let event = || Event::object(self, cx, Audited::Truncate);
        self.core.audited(cx, event, || self.open_file(cx, flags), |_, _| ())
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.require_creatable(name)?;
        let event = || Ok(Event::creation(self, cx, Audited::Create, name).with_range(mode.into(), 0));
        let create = || {
            let (entry, file) = of_data(self.lower.create(cx, name, mode, Self::flags_of_new(flags)))?;
            self.wrap_created(cx, Some(name), entry, file, flags)
        };
        self.core.audited(cx, event, create, |(entry, _), event| event.inode = entry.vnode.id())
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let event = || Ok(Event::object(self, cx, Audited::Tmpfile)?.with_range(mode.into(), 0));
        let create = || {
            let (entry, file) = of_data(self.lower.tmpfile(cx, mode, Self::flags_of_new(flags)))?;
            self.wrap_created(cx, None, entry, file, flags)
        };
        self.core.audited(cx, event, create, |(entry, _), event| event.inode = entry.vnode.id())
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        self.require_creatable(name)?;
        let describe = |event: Event| event.with_range(mode.into(), rdev);
        self.audited_new(cx, name, Audited::Mknod, describe, || self.lower.mknod(cx, name, mode, rdev))
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.require_creatable(name)?;
        let describe = |event: Event| event.with_range(mode.into(), 0);
        self.audited_new(cx, name, Audited::Mkdir, describe, || self.lower.mkdir(cx, name, mode))
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.require_creatable(name)?;
        let describe = |event: Event| event.with_text(target);
        self.audited_new(cx, name, Audited::Symlink, describe, || self.lower.symlink(cx, name, target))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.require_creatable(name)?;
        let target = self.same_layer(target)?;
        let event = || Ok(Event::object(target, cx, Audited::Link)?.to(self, cx, name));
        self.core.audited(cx, event, || self.add_name(cx, name, target), |_, _| ())
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let event = || Event::entry(self, cx, Audited::Unlink, name);
        self.core.audited(cx, event, || self.remove_file(cx, name), |(), _| ())
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let event = || Event::entry(self, cx, Audited::Rmdir, name);
        self.core.audited(cx, event, || self.remove_dir(cx, name), |(), _| ())
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let new_dir = self.same_layer(new_dir)?;
        let text: &[u8] = if flags.exchange { b"exchange" } else { b"" };
        let event = || {
            let event = Event::entry(self, cx, Audited::Rename, name)?;
            Ok(event.to(new_dir, cx, new_name).with_text(text))
        };
        self.core.audited(cx, event, || self.move_to(cx, name, new_dir, new_name, flags), |(), _| ())
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        if is_own_attribute(name) { Err(Errno::NODATA) } else { self.lower.getxattr(cx, name, out) }
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        let names = vnode::read_value(|out| self.lower.listxattr(cx, out))?;
        vnode::copy_value(&content_time::without_own(&names), out)
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        if is_own_attribute(name) {
            return Err(Errno::PERM);
        }
        let len = value.len() as u64;
        let event = || Ok(Event::object(self, cx, Audited::Setxattr)?.with_range(0, len).with_text(name));
        let change = || self.change_xattr(cx, name, Some(value), |cx| self.lower.setxattr(cx, name, value, flags));
        self.core.audited(cx, event, change, |(), _| ())
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        if is_own_attribute(name) {
            return Err(Errno::NODATA);
        }
        let event = || Ok(Event::object(self, cx, Audited::Removexattr)?.with_text(name));
        let change = || self.change_xattr(cx, name, None, |cx| self.lower.removexattr(cx, name));
        self.core.audited(cx, event, change, |(), _| ())
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        if self.kind() == Kind::Directory
            && self.has_store(cx)?
            && let Some(store) = find_store(cx, &self.lower)?
        {
            store.fsync(cx, data_only)?;
        }
        self.lower.fsync(cx, data_only)?;
        self.core.log.fsync(&self.core.server(cx))
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

    /// Makes an entry by `make`, and records that.
    fn audited_new(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        operation: Audited,
        describe: impl FnOnce(Event) -> Event,
        make: impl Fn() -> Result<Entry>,
    ) -> Result<Entry> {
        let event = || Ok(describe(Event::creation(self, cx, operation, name)));
        let make = || of_data(make());
        let entry = self.core.audited(cx, event, make, |entry, event| event.inode = entry.vnode.id())?;
        Ok(self.wrap_new(name, entry))
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
        vnode.inode.note_birth(vnode.lower.generation(), entry.attr.btime);
        if let Some(name) = name {
            vnode.inode.found_at(&self.lower, name.as_bytes());
        }
        let file = vnode.created(cx, file, flags)?;
        Ok((Entry { attr: with_io_size(entry.attr), vnode: Arc::new(vnode) }, file))
    }
}
