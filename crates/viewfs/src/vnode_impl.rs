use crate::file::{self, ViewFile};
use crate::node::{Lower, Node, downcast};
use crate::number;
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result,
    SetAttr, StatFs, Vnode, XattrFlags,
};

impl Node {
    /// Returns the directory of the caller's view, in which the caller is about to create an entry.
    fn directory_to_extend(&self, cx: &Cx<'_>) -> Result<Lower> {
        let dir = self.lower(cx)?;
        let merged = self.as_directory().ok_or(Errno::NOTDIR)?;
        merged.permissions.check_change(cx, dir.view, &*dir.vnode)?;
        Ok(dir)
    }
}

impl Vnode for Node {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.number()
    }

    fn generation(&self) -> u32 {
        self.generation_of()
    }

    fn kind(&self) -> Kind {
        self.kind_of()
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        let view = self.fs.view_of(cx)?;
        if let Some(attr) = self.attr_of_foreign_file(cx, view)? {
            return Ok(attr);
        }
        Ok(self.present(view, self.lower_in(cx, view)?.getattr(cx)?))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        let Lower { view, vnode } = self.lower(cx)?;
        if let Some(merged) = self.as_directory() {
            merged.permissions.check_setattr(cx, view, &*vnode, set)?;
        }
        let file = file.map(|file| file::of(file, view)).transpose()?;
        Ok(self.present(view, vnode.setattr(cx, set, file)?))
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let Lower { view, vnode } = self.lower(cx)?;
        if let Some(merged) = self.as_directory() {
            merged.permissions.check_search(cx, view, &*vnode)?;
        }
        vnode.lookup(cx, name)?.map(|entry| self.child(name, view, entry)).transpose()
    }

    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.pass_names(cx, sink)
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.lower(cx)?.vnode.readlink(cx)
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let Lower { view, vnode } = self.lower(cx)?;
        if let Some(merged) = self.as_directory() {
            merged.permissions.check_list(cx, view, &*vnode)?;
        }
        vnode.readdir(cx, cookie, &mut |entry| sink(&DirEntry { ino: number::convert(view, entry.ino), ..*entry }))
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        // Callers see different names.
        false
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        // The kernel caches no listings.
        None
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let Lower { view, vnode } = self.lower(cx)?;
        Ok(ViewFile::of(&self.to_arc()?, view, vnode.open(cx, flags)?, flags))
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let dir = self.directory_to_extend(cx)?;
        let (entry, file) = dir.vnode.create(cx, name, mode, flags)?;
        let entry = self.child(name, dir.view, entry)?;
        let file = ViewFile::of(&downcast(&entry.vnode)?.to_arc()?, dir.view, file, flags);
        Ok((entry, file))
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let dir = self.directory_to_extend(cx)?;
        let (entry, file) = dir.vnode.tmpfile(cx, mode, flags)?;
        let node = Self::single(&self.fs, dir.view, entry.vnode, None);
        let attr = node.present(dir.view, entry.attr);
        let file = ViewFile::of(&node, dir.view, file, flags);
        Ok((Entry { vnode: node, attr }, file))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let dir = self.directory_to_extend(cx)?;
        self.child(name, dir.view, dir.vnode.mknod(cx, name, mode, rdev)?)
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        let dir = self.directory_to_extend(cx)?;
        self.child(name, dir.view, dir.vnode.mkdir(cx, name, mode)?)
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        let dir = self.directory_to_extend(cx)?;
        self.child(name, dir.view, dir.vnode.symlink(cx, name, target)?)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let dir = self.directory_to_extend(cx)?;
        let target = downcast(target)?.lower_in(cx, dir.view)?;
        self.child(name, dir.view, dir.vnode.link(cx, name, &target)?)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let dir = self.lower(cx)?;
        self.entry_to_change(cx, (dir.view, &*dir.vnode), name)?;
        dir.vnode.unlink(cx, name)
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.remove_directory(cx, name)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.rename_entry(cx, (name, new_dir, new_name), flags)
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let Lower { view, vnode } = self.lower(cx)?;
        let Some(merged) = self.as_directory() else { return vnode.getxattr(cx, name, out) };
        merged.permissions.check_xattr(cx, view, &*vnode, (name, false))?;
        let result = vnode.getxattr(cx, name, out);
        if name == access::ACL_ACCESS {
            match &result {
                Ok(len) if !out.is_empty() => merged.permissions.seen_acl(view, out.get(..*len).unwrap_or_default()),
                Err(_) => merged.permissions.seen_acl(view, &[]),
                Ok(_) => {}
            }
        }
        result
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let Lower { view, vnode } = self.lower(cx)?;
        if let Some(merged) = self.as_directory() {
            merged.permissions.check_xattr(cx, view, &*vnode, (name, true))?;
        }
        vnode.setxattr(cx, name, value, flags)
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.lower(cx)?.vnode.listxattr(cx, out)
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        let Lower { view, vnode } = self.lower(cx)?;
        if let Some(merged) = self.as_directory() {
            merged.permissions.check_xattr(cx, view, &*vnode, (name, true))?;
        }
        vnode.removexattr(cx, name)
    }

    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()> {
        self.lower(cx)?.vnode.refused(cx, mask)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.lower(cx)?.vnode.statfs(cx)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.lower(cx)?.vnode.fsync(cx, data_only)
    }

    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        let Lower { view, vnode } = self.lower(cx)?;
        if let Some(merged) = self.as_directory() {
            merged.permissions.check_ioctl(cx, view, &*vnode, !input.is_empty())?;
        }
        vnode.ioctl(cx, cmd, input, out)
    }

    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        match self.fs.run_command(cx, command, input) {
            Some(reply) => reply,
            None => self.lower(cx)?.vnode.control(cx, command, input),
        }
    }
}
