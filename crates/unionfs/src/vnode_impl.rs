//! The union's vnode operations: each in the file of its concept.

use crate::copyup::Change;
use crate::file::UnionFile;
use crate::node::UnionVnode;
use crate::retry::Tries;
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result,
    SetAttr, StatFs, Vnode, XattrFlags,
};

impl Vnode for UnionVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.core.shown(self.id)
    }

    fn generation(&self) -> u32 {
        self.leaf().vnode.generation()
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.get_attr(cx)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.set_attr(cx, set, file)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        Ok(self.find(cx, name)?.map(|(vnode, attr)| Entry { vnode, attr }))
    }

    fn names(&self, _cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        if let Some(place) = self.place() {
            let parent: Arc<dyn Vnode> = place.parent.clone();
            sink(&parent, place.name()?);
        }
        Ok(())
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.on_leaf(cx, |lower| lower.vnode.readlink(cx))
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.read_dir(cx, cookie, sink)
    }

    fn listing_stamp(&self, cx: &Cx<'_>) -> Option<u64> {
        Some(self.parts_stamp(cx))
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        self.open_file(cx, flags)
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        match self.core.user_mark(cx, name) {
            Some(mark) => self.create_mark(cx, name, mark, mode, flags),
            None => self.create_file(cx, name, mode, flags),
        }
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.make_tmpfile(cx, mode, flags)
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        match self.core.user_mark(cx, name) {
            Some(mark) => self.make_mark(cx, name, mark, mode),
            None => self.make_node(cx, name, mode, rdev),
        }
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.make_dir(cx, name, mode)
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.make_symlink(cx, name, target)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.link_to(cx, name, target)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.unlink_name(cx, name)
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
        self.rename_entry(cx, name, new_dir, new_name, flags)
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.get_xattr(cx, name, out)
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.set_xattr(cx, name, value, flags)
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.list_xattr(cx, out)
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.remove_xattr(cx, name)
    }

    fn refused(&self, _cx: &Cx<'_>, _mask: u32) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.stat_fs(cx)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        let Some(_) = &self.dir else { return self.leaf().vnode.fsync(cx, data_only) };
        for part in self.stack()?.iter().filter(|part| self.core.writable(part.branch)) {
            part.vnode.fsync(cx, data_only)?;
        }
        Ok(())
    }

    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        // What brings data may change the file: that goes to a copy on a read-write branch.
        let lower = if input.is_empty() || self.core.read_only { self.leaf() } else { self.for_change(cx, None)? };
        if !input.is_empty() && !self.core.writable(lower.branch) {
            return Err(Errno::ROFS);
        }
        lower.vnode.ioctl(cx, cmd, input, out)
    }

    fn control(&self, _cx: &Cx<'_>, _command: &str, _input: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NOTTY)
    }
}

impl UnionVnode {
    fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        if self.dir.is_some() {
            return Err(Errno::ISDIR);
        }
        let changes = flags.writes() || flags.truncates();
        let mut change = flags.truncates().then(|| Change::open(flags));
        let mut tries = Tries::new();
        loop {
            if changes {
                self.for_change(cx, change.as_mut())?;
            }
            let (lower, moves) = self.leaf_and_moves();
            if let Some(file) = change.as_mut().and_then(|change| change.done.take()).and_then(|done| done.file) {
                return Ok(UnionFile::new(self.arc()?, flags, lower.branch, moves, file));
            }
            let _writing = if changes { self.guard_branch(cx, lower.branch)? } else { None };
            match lower.vnode.open(cx, flags) {
                Ok(file) => return Ok(UnionFile::new(self.arc()?, flags, lower.branch, moves, file)),
                Err(e) if changes && self.core.go_left(lower.branch, e) => tries.again()?,
                Err(Errno::STALE) if self.refresh(cx)? => tries.again()?,
                Err(e) => return Err(e),
            }
        }
    }
}
