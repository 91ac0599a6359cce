use crate::data::Data;
use std::collections::BTreeMap;
use vnode::{Attr, Errno, Kind, Result, Time};

/// The root's number.
pub(crate) const ROOT: u64 = 1;

/// All that is stored.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) inodes: BTreeMap<u64, Inode>,
    next_ino: u64,
    ticks: u64,
}

/// One object.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) kind: Kind,
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) rdev: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a regular file.
    pub(crate) data: Data,
    /// What of `data` was made durable.
    pub(crate) synced: Data,
    /// Of a symbolic link.
    pub(crate) target: Vec<u8>,
    /// Of a directory.
    pub(crate) dir: Dir,
    /// Made without a name and may be given one.
    pub(crate) unnamed: bool,
    /// Vnodes and open files that hold it.
    pub(crate) held: u64,
}

/// The entries of a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dir {
    pub(crate) parent: u64,
    entries: BTreeMap<Vec<u8>, Slot>,
    by_cookie: BTreeMap<u64, Vec<u8>>,
    last_cookie: u64,
}

/// Where an entry leads, and its place in listings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) ino: u64,
    pub(crate) cookie: u64,
}

impl Dir {
    pub(crate) fn get(&self, name: &[u8]) -> Option<u64> {
        self.entries.get(name).map(|slot| slot.ino)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Puts an entry; one of the same name is replaced, and keeps its place in listings.
    pub(crate) fn put(&mut self, name: &[u8], ino: u64) {
        if let Some(slot) = self.entries.get_mut(name) {
            slot.ino = ino;
            return;
        }
        self.last_cookie += 1;
        self.entries.insert(name.to_vec(), Slot { ino, cookie: self.last_cookie });
        self.by_cookie.insert(self.last_cookie, name.to_vec());
    }

    pub(crate) fn take(&mut self, name: &[u8]) -> Option<u64> {
        let slot = self.entries.remove(name)?;
        self.by_cookie.remove(&slot.cookie);
        Some(slot.ino)
    }

    /// Entries after a place in the listing: cookie, number, name.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let rest = self.by_cookie.range((std::ops::Bound::Excluded(cookie), std::ops::Bound::Unbounded));
        rest.filter_map(|(&cookie, name)| Some((cookie, self.get(name)?, name.as_slice())))
    }
}

impl Tree {
    pub(crate) fn new(uid: u32, gid: u32) -> Self {
        let mut tree = Self { inodes: BTreeMap::new(), next_ino: ROOT, ticks: 0 };
        let root = tree.add(Kind::Directory, 0o755, uid, gid);
        if let Some(inode) = tree.inodes.get_mut(&root) {
            inode.nlink = 2;
            inode.dir.parent = root;
        }
        tree
    }

    /// The next moment: a millisecond after the last.
    pub(crate) fn now(&mut self) -> Time {
        self.ticks += 1;
        Time { sec: 1_000_000_000 + (self.ticks / 1000).cast_signed(), nsec: (self.ticks % 1000) as u32 * 1_000_000 }
    }

    /// Every name of an object, with the number of the directory that has it.
    pub(crate) fn names_of(&self, ino: u64) -> Vec<(u64, Vec<u8>)> {
        let dirs = self.inodes.iter().filter(|(_, inode)| inode.kind == Kind::Directory);
        let names =
            dirs.flat_map(|(&dir, inode)| inode.dir.after(0).map(move |(_, to, name)| (dir, to, name.to_vec())));
        names.filter(|&(_, to, _)| to == ino).map(|(dir, _, name)| (dir, name)).collect()
    }

    /// A new object, without a name yet.
    pub(crate) fn add(&mut self, kind: Kind, perm: u32, uid: u32, gid: u32) -> u64 {
        let now = self.now();
        let ino = self.next_ino;
        self.next_ino += 1;
        let inode = Inode {
            kind,
            perm,
            uid,
            gid,
            nlink: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: BTreeMap::new(),
            data: Data::default(),
            synced: Data::default(),
            target: Vec::new(),
            dir: Dir::default(),
            unnamed: false,
            held: 0,
        };
        self.inodes.insert(ino, inode);
        ino
    }

    pub(crate) fn get(&self, ino: u64) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    pub(crate) fn get_mut(&mut self, ino: u64) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    /// A directory, existing or removed.
    pub(crate) fn dir(&self, ino: u64) -> Result<&Inode> {
        let inode = self.get(ino)?;
        if inode.kind == Kind::Directory { Ok(inode) } else { Err(Errno::NOTDIR) }
    }

    /// Attributes of an object.
    pub(crate) fn attr(&self, ino: u64) -> Result<Attr> {
        Ok(self.get(ino)?.attr(ino))
    }

    /// The entries of a directory changed.
    pub(crate) fn touch_dir(&mut self, ino: u64) -> Result<()> {
        let now = self.now();
        let dir = self.get_mut(ino)?;
        (dir.mtime, dir.ctime) = (now, now);
        Ok(())
    }

    /// The attributes of an object changed.
    pub(crate) fn touch(&mut self, ino: u64) -> Result<()> {
        let now = self.now();
        self.get_mut(ino)?.ctime = now;
        Ok(())
    }

    /// Gives an object a name that is free.
    pub(crate) fn enter(&mut self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        let is_dir = self.get(ino)?.kind == Kind::Directory;
        self.get_mut(dir)?.dir.put(name, ino);
        if is_dir {
            self.get_mut(dir)?.nlink += 1;
            let child = self.get_mut(ino)?;
            child.nlink = 2;
            child.dir.parent = dir;
        } else {
            self.get_mut(ino)?.nlink += 1;
        }
        self.touch(ino)?;
        self.touch_dir(dir)
    }

    /// Takes a name away, and the object too if that was the last and nobody holds it.
    pub(crate) fn leave(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let ino = self.get_mut(dir)?.dir.take(name).ok_or(Errno::NOENT)?;
        self.unname(dir, ino)?;
        self.touch_dir(dir)
    }

    /// An object lost a name that it had in `dir`.
    pub(crate) fn unname(&mut self, dir: u64, ino: u64) -> Result<()> {
        let inode = self.get_mut(ino)?;
        if inode.kind == Kind::Directory {
            inode.nlink = 0;
            self.get_mut(dir)?.nlink -= 1;
        } else {
            inode.nlink = inode.nlink.saturating_sub(1);
        }
        self.touch(ino)?;
        self.reap(ino);
        Ok(())
    }

    /// An owner lets go.
    pub(crate) fn release(&mut self, ino: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.held = inode.held.saturating_sub(1);
        }
        self.reap(ino);
    }

    fn reap(&mut self, ino: u64) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.nlink == 0 && inode.held == 0) {
            self.inodes.remove(&ino);
        }
    }

    /// Is `ino` the directory `of`, or does it lie above it?
    pub(crate) fn is_above(&self, ino: u64, of: u64) -> bool {
        let mut at = of;
        loop {
            if at == ino {
                return true;
            }
            match self.inodes.get(&at) {
                Some(inode) if inode.dir.parent != at && at != ROOT => at = inode.dir.parent,
                _ => return false,
            }
        }
    }

    /// What is found after a crash: objects without a name are gone, nobody holds anything, and, if `lose_data`, bytes that were
    /// not made durable are gone.
    pub(crate) fn after_crash(&self, lose_data: bool) -> Self {
        let mut tree = self.clone();
        tree.inodes.retain(|&ino, inode| inode.nlink > 0 || ino == ROOT);
        for inode in tree.inodes.values_mut() {
            inode.held = 0;
            if lose_data {
                inode.data = inode.synced.clone();
            }
        }
        tree
    }

    /// Pages in use.
    pub(crate) fn allocated(&self) -> u64 {
        self.inodes.values().map(|inode| inode.data.allocated()).sum()
    }
}

impl Inode {
    pub(crate) fn attr(&self, ino: u64) -> Attr {
        let size = match self.kind {
            Kind::Regular => self.data.size(),
            Kind::Symlink => self.target.len() as u64,
            _ => 0,
        };
        Attr {
            ino,
            size,
            blocks: self.data.allocated() * (crate::data::PAGE / 512),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: Some(self.btime),
            mode: self.kind.mode_bits() | self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: crate::data::PAGE as u32,
        }
    }

    /// Takes set-user-id away, and set-group-id where the group may execute, from anything but a directory.
    pub(crate) fn kill_suidgid(&mut self) {
        if self.kind != Kind::Directory {
            let sgid = if self.perm & 0o010 != 0 { 0o2000 } else { 0 };
            self.perm &= !(0o4000 | sgid);
        }
    }
}
