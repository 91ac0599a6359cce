use crate::acl;
use crate::faults::Op;
use crate::file::MemFile;
use crate::node::MemVnode;
use crate::tree::{Inode, Tree};
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Name, NameSink, OpenFile, OpenFlags, RenameFlags, Result,
    SetAttr, SetTime, StatFs, Time, Vnode, XattrFlags,
};

impl MemVnode {
    fn entry(&self, tree: &mut Tree, ino: u64) -> Result<Entry> {
        let attr = tree.attr(ino)?;
        Ok(Entry { vnode: Arc::new(Self::hold(&self.fs, tree, ino)), attr })
    }

    /// Checks that the new name can be created in this directory.
    fn check_free(&self, tree: &Tree, name: Name<'_>) -> Result<()> {
        let dir = tree.dir(self.ino)?;
        if dir.nlink == 0 {
            return Err(Errno::NOENT);
        }
        if dir.dir.get(name.as_bytes()).is_some() { Err(Errno::EXIST) } else { Ok(()) }
    }

    /// Creates an object for the caller, without a name.
    fn make(&self, tree: &mut Tree, cx: &Cx<'_>, kind: Kind, mode: u32) -> Result<u64> {
        let dir = tree.dir(self.ino)?;
        let (dir_sgid, dir_gid) = (dir.perm & 0o2000 != 0, dir.gid);
        let default = dir.xattrs.get(acl::DEFAULT).cloned();
        let gid = if dir_sgid { dir_gid } else { cx.gid };
        let needed = tree.object_pages;
        self.fs.allocate(tree, needed)?;
        let ino = tree.add(kind, mode & 0o7777, cx.uid, gid);
        let inode = tree.get_mut(ino)?;
        if kind == Kind::Symlink {
            inode.perm = 0o777;
        } else {
            acl::inherit(default.as_deref(), inode, cx.umask);
        }
        if kind == Kind::Directory && dir_sgid {
            inode.perm |= 0o2000;
        }
        Ok(ino)
    }

    fn make_named(
        &self,
        cx: &Cx<'_>,
        op: Op,
        name: Name<'_>,
        (kind, mode): (Kind, u32),
        fill: impl FnOnce(&mut Inode),
    ) -> Result<Entry> {
        let mut tree = self.fs.begin_change(op)?;
        self.check_free(&tree, name)?;
        let ino = self.make(&mut tree, cx, kind, mode)?;
        fill(tree.get_mut(ino)?);
        tree.add_name(self.ino, name.as_bytes(), ino)?;
        self.entry(&mut tree, ino)
    }
}

impl Vnode for MemVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.ino
    }

    fn generation(&self) -> u32 {
        // Numbers are never reused.
        self.fs.options.generation
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn getattr(&self, _cx: &Cx<'_>) -> Result<Attr> {
        self.fs.begin(Op::Getattr)?.attr(self.ino)
    }

    fn setattr(&self, _cx: &Cx<'_>, set: &SetAttr, _file: Option<&dyn OpenFile>) -> Result<Attr> {
        let mut tree = self.fs.begin_change(Op::Setattr)?;
        if set.size.is_some() {
            match self.kind {
                Kind::Regular => {}
                Kind::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
        }
        if set.mode.is_some() && self.kind == Kind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let now = tree.now();
        change(tree.get_mut(self.ino)?, set, now);
        tree.attr(self.ino)
    }

    fn lookup(&self, _cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let mut tree = self.fs.begin(Op::Lookup)?;
        match tree.dir(self.ino)?.dir.get(name.as_bytes()) {
            Some(ino) => self.entry(&mut tree, ino).map(Some),
            None => Ok(None),
        }
    }

    fn names(&self, _cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        let names: Vec<(Arc<dyn Vnode>, Vec<u8>)> = {
            let mut tree = self.fs.begin(Op::Names)?;
            tree.get(self.ino)?;
            let found = tree.names_of(self.ino);
            let hold = |(dir, name)| {
                let dir: Arc<dyn Vnode> = Arc::new(Self::hold(&self.fs, &mut tree, dir));
                (dir, name)
            };
            found.into_iter().map(hold).collect()
        };
        for (dir, name) in &names {
            if !sink(dir, Name::new(name)?) {
                break;
            }
        }
        Ok(())
    }

    fn readlink(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        let tree = self.fs.begin(Op::Readlink)?;
        if self.kind == Kind::Symlink { Ok(tree.get(self.ino)?.target.clone()) } else { Err(Errno::INVAL) }
    }

    fn readdir(&self, _cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        // Call the sink without the lock: it may use this file system.
        let entries: Vec<(u64, u64, Kind, Vec<u8>)> = {
            let tree = self.fs.begin(Op::Readdir)?;
            let dir = tree.dir(self.ino)?;
            let known = |ino| tree.inodes.get(&ino).map(|inode: &Inode| inode.kind);
            dir.dir.after(cookie).filter_map(|(c, ino, name)| Some((c, ino, known(ino)?, name.to_vec()))).collect()
        };
        for (cookie, ino, kind, name) in entries {
            if !sink(&DirEntry { cookie, ino, kind, name: Name::new(&name)? }) {
                break;
            }
        }
        Ok(())
    }

    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        true
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        Some(0)
    }

    fn open(&self, _cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let mut tree = self.fs.begin(Op::Open)?;
        match self.kind {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::ISDIR),
            Kind::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NXIO),
        }
        if flags.writes() || flags.truncates() {
            self.fs.require_read_write()?;
        }
        if flags.truncates() {
            let now = tree.now();
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            change(tree.get_mut(self.ino)?, &set, now);
        }
        Ok(Arc::new(MemFile::new(Self::hold(&self.fs, &mut tree, self.ino), flags)))
    }

    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let entry = self.make_named(cx, Op::Create, name, (Kind::Regular, mode), |_| {})?;
        let file = MemFile::new(Self::hold(&self.fs, &mut self.fs.tree(), entry.attr.ino), flags);
        Ok((entry, Arc::new(file)))
    }

    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let mut tree = self.fs.begin_change(Op::Tmpfile)?;
        if !self.fs.options.tmpfile {
            return Err(Errno::OPNOTSUPP);
        }
        if tree.dir(self.ino)?.nlink == 0 {
            return Err(Errno::NOENT);
        }
        let ino = self.make(&mut tree, cx, Kind::Regular, mode)?;
        tree.get_mut(ino)?.unnamed = true;
        let entry = self.entry(&mut tree, ino)?;
        let file = MemFile::new(Self::hold(&self.fs, &mut tree, ino), flags);
        Ok((entry, Arc::new(file)))
    }

    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let kind = match mode & Kind::MASK {
            0 => Kind::Regular,
            bits => match Kind::from_mode(bits) {
                Some(Kind::Directory) => return Err(Errno::PERM),
                Some(Kind::Symlink) | None => return Err(Errno::INVAL),
                Some(kind) => kind,
            },
        };
        let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
        self.make_named(cx, Op::Mknod, name, (kind, mode), |inode| inode.rdev = if is_device { rdev } else { 0 })
    }

    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.make_named(cx, Op::Mkdir, name, (Kind::Directory, mode), |_| {})
    }

    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        self.make_named(cx, Op::Symlink, name, (Kind::Symlink, 0o777), |inode| inode.target = target.to_vec())
    }

    fn link(&self, _cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let mut tree = self.fs.begin_change(Op::Link)?;
        let target = self.same_layer(target)?.ino;
        self.check_free(&tree, name)?;
        let inode = tree.get(target)?;
        if inode.kind == Kind::Directory {
            return Err(Errno::PERM);
        }
        if inode.nlink == 0 && !inode.unnamed {
            return Err(Errno::NOENT);
        }
        tree.get_mut(target)?.unnamed = false;
        tree.add_name(self.ino, name.as_bytes(), target)?;
        self.entry(&mut tree, target)
    }

    fn unlink(&self, _cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let mut tree = self.fs.begin_change(Op::Unlink)?;
        let ino = tree.dir(self.ino)?.dir.get(name.as_bytes()).ok_or(Errno::NOENT)?;
        if tree.get(ino)?.kind == Kind::Directory {
            return Err(Errno::ISDIR);
        }
        tree.remove_name(self.ino, name.as_bytes())
    }

    fn rmdir(&self, _cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let mut tree = self.fs.begin_change(Op::Rmdir)?;
        let ino = tree.dir(self.ino)?.dir.get(name.as_bytes()).ok_or(Errno::NOENT)?;
        if !tree.dir(ino)?.dir.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        tree.remove_name(self.ino, name.as_bytes())
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let mut tree = self.fs.begin_change(Op::Rename)?;
        let new_dir = self.same_layer(new_dir)?;
        tree.rename((self.ino, name.as_bytes()), (new_dir.ino, new_name.as_bytes()), flags)?;
        // For two names of one file, both remain.
        if flags.whiteout && tree.dir(self.ino)?.dir.get(name.as_bytes()).is_none() {
            let whiteout = self.make(&mut tree, cx, Kind::CharDevice, 0)?;
            tree.add_name(self.ino, name.as_bytes(), whiteout)?;
        }
        Ok(())
    }

    fn getxattr(&self, _cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.fs.begin(Op::Getxattr)?.get(self.ino)?.xattr_get(name, out)
    }

    fn setxattr(&self, _cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let mut tree = self.fs.begin_change(Op::Setxattr)?;
        tree.get_mut(self.ino)?.xattr_set(name, value, flags)?;
        tree.touch(self.ino)
    }

    fn listxattr(&self, _cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.fs.begin(Op::Listxattr)?.get(self.ino)?.xattr_list(out)
    }

    fn removexattr(&self, _cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        let mut tree = self.fs.begin_change(Op::Removexattr)?;
        tree.get_mut(self.ino)?.xattr_remove(name)?;
        tree.touch(self.ino)
    }

    fn refused(&self, _cx: &Cx<'_>, _mask: u32) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _cx: &Cx<'_>) -> Result<StatFs> {
        let tree = self.fs.begin(Op::Statfs)?;
        Ok(self.fs.stat_fs(&tree))
    }

    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        self.fs.begin(Op::Fsync)?.get(self.ino).map(|_| ())
    }

    fn ioctl(&self, _cx: &Cx<'_>, _cmd: u32, _input: &[u8], _out: &mut [u8]) -> Result<IoctlReply> {
        drop(self.fs.begin(Op::Ioctl)?);
        Err(Errno::NOTTY)
    }

    fn control(&self, _cx: &Cx<'_>, _command: &str, _input: &[u8]) -> Result<Vec<u8>> {
        drop(self.fs.begin(Op::Control)?);
        Err(Errno::NOTTY)
    }
}

/// Changes owner, mode, size and times, in the order documented by [`SetAttr`].
fn change(inode: &mut Inode, set: &SetAttr, now: Time) {
    if set.uid.is_some() || set.gid.is_some() {
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.kill_suidgid();
        inode.xattrs.remove(crate::xattr::CAPABILITY);
    }
    if let Some(mode) = set.mode {
        inode.perm = mode & 0o7777;
        acl::follow_mode(inode);
    } else if set.kill_suidgid {
        inode.kill_suidgid();
    }
    if let Some(size) = set.size {
        inode.data.truncate(size);
        inode.synced.truncate(size);
        inode.mtime = now;
        inode.xattrs.remove(crate::xattr::CAPABILITY);
    }
    let time = |set: Option<SetTime>, old| match set {
        None => old,
        Some(SetTime::Now) => now,
        Some(SetTime::At(time)) => time,
    };
    inode.atime = time(set.atime, inode.atime);
    inode.mtime = time(set.mtime, inode.mtime);
    inode.ctime = now;
}
