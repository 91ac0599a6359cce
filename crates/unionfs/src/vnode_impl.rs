//! The union's vnode operations, each dispatched to the file of its concept.

use crate::copyup::{Change, Changed};
use crate::file::UnionFile;
use crate::node::UnionVnode;
use crate::op::Op;
use crate::retry::Retries;
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
        let lower = match self.stack().as_deref() {
            Ok([.., rightmost]) => rightmost.clone(),
            _ => self.leaf(),
        };
        self.core.generation_of(&self.core.branches.get(), self.id, &lower)
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.get_attr(cx)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        self.run_change(cx, |op| self.set_attr(op, set, file))
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let found = self.run_read(cx, |op| self.find(op, name))?;
        Ok(found.map(|(vnode, attr)| Entry { vnode, attr }))
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.run_read(cx, |op| self.report_names(op, sink))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.on_leaf(cx, |lower| lower.vnode.readlink(cx))
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let mut begun = false;
        self.run_read(cx, |op| {
            if begun {
                // The branches changed meanwhile: the reader continues from the last entry that it
                // got.
                return Ok(());
            }
            self.read_dir(op, cookie, &mut |entry| {
                begun = true;
                sink(entry)
            })
        })
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        false
    }

    fn listing_stamp(&self, cx: &Cx<'_>) -> Option<u64> {
        Some(self.parts_stamp(cx))
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        self.open_file(cx, flags)
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.run_change(cx, |op| match self.core.user_mark(op, name) {
            Some(mark) => self.create_mark(op, name, mark, mode, flags),
            None => self.create_file(op, name, mode, flags),
        })
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        self.run_change(cx, |op| self.create_tmpfile(op, mode, flags))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        self.run_change(cx, |op| match self.core.user_mark(op, name) {
            Some(mark) => self.mknod_mark(op, name, mark, mode),
            None => self.create_node(op, name, mode, rdev),
        })
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.run_change(cx, |op| self.create_dir(op, name, mode))
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        self.run_change(cx, |op| self.create_symlink(op, name, target))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let linked = self.run_change(cx, |op| self.link_to(op, name, target));
        self.core.finder.moved();
        linked
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.run_change(cx, |op| self.unlink_name(op, name))
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.run_change(cx, |op| self.remove_dir(op, name))
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let renamed = self.run_change(cx, |op| self.rename_entry(op, name, new_dir, new_name, flags));
        self.core.finder.moved();
        renamed
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.get_xattr(cx, name, out)
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.run_change(cx, |op| self.set_xattr(op, name, value, flags))
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.list_xattr(cx, out)
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.run_change(cx, |op| self.remove_xattr(op, name))
    }

    fn refused(&self, _cx: &Cx<'_>, _mask: u32) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.run_read(cx, |op| self.stat_fs(op))
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        let Some(_) = &self.dir else { return self.leaf().vnode.fsync(cx, data_only) };
        self.run_read(cx, |op| {
            let stack = self.stack()?;
            let mut parts = stack.iter().filter(|part| op.set.writable(part.branch));
            parts.try_for_each(|part| part.vnode.fsync(cx, data_only))
        })
    }

    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        // An ioctl with input may change the file, so it runs on a copy on a read-write branch.
        if input.is_empty() {
            return self.leaf().vnode.ioctl(cx, cmd, input, out);
        }
        self.run_change(cx, |op| self.for_change(op, None)?.vnode().ioctl(op, cmd, input, out))
    }

    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        self.run_command(cx, command, input)
    }
}

impl UnionVnode {
    fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        if self.dir.is_some() {
            return Err(Errno::ISDIR);
        }
        let changes = flags.writes() || flags.truncates();
        if changes {
            self.run_change(cx, |op| self.open_lower(op, flags))
        } else {
            self.run_read(cx, |op| self.open_lower(op, flags))
        }
    }

    /// Opens the lower file, after a copy-up if `flags` allow changes.
    fn open_lower(&self, op: &Op<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let changes = flags.writes() || flags.truncates();
        let open = |branch, moves, file| -> Result<Arc<dyn OpenFile>> {
            Ok(UnionFile::new(op, &self.arc()?, flags, (branch, moves), file)?)
        };
        let mut change = flags.truncates().then(|| Change::open(flags));
        let mut flags = flags;
        let mut retries = Retries::new();
        loop {
            // Held until the lower file is open, so that it is the one that is truncated.
            let _held = if changes { Some(self.for_change(op, change.as_mut())?) } else { None };
            let (lower, moves) = self.leaf_and_moves();
            if let Some(Changed { copy, file: Some(file), .. }) = change.as_mut().and_then(|change| change.done.take())
            {
                if Arc::ptr_eq(&copy, &lower.vnode) {
                    return open(lower.branch, moves, file);
                }
                // The truncated copy has moved on since.
                (change, flags) = (None, flags.without_trunc());
            }
            match lower.vnode.open(op, flags) {
                Ok(file) => return open(lower.branch, moves, file),
                Err(e) if changes && op.set.retry_left(lower.branch, e) => retries.count()?,
                Err(Errno::STALE) if self.refresh(op)? => retries.count()?,
                Err(e) => return Err(e),
            }
        }
    }
}
