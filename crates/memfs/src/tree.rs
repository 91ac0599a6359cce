use crate::data::Data;
use std::collections::BTreeMap;
use vnode::{Attr, Errno, Kind, Result, Time};

/// The number of the root directory.
pub(crate) const ROOT: u64 = 1;

/// By how much the times of an identified file system are later than those of the one before.
const TICKS: u64 = 100_000;

/// The stored objects.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) inodes: BTreeMap<u64, Inode>,
    next_ino: u64,
    ticks: u64,
    /// See [`crate::MemOptions::identified`].
    pub(crate) fingerprint: Option<u64>,
    /// Upper bound of the pages in use: exact whenever they were counted, and raised by what each
    /// operation allocates since. Counting visits every object.
    allocated_at_most: u64,
    /// What each object takes beside its data.
    pub(crate) object_pages: u64,
}

/// An object.
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
    /// Data of a regular file.
    pub(crate) data: Data,
    /// The part of `data` that was made durable.
    pub(crate) synced: Data,
    /// Target of a symbolic link.
    pub(crate) target: Vec<u8>,
    /// Entries of a directory.
    pub(crate) dir: Dir,
    /// Created without a name, and may still be linked.
    pub(crate) unnamed: bool,
    /// Number of vnodes and open files that refer to the object.
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

/// The object of an entry, and its position in listings.
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

    /// Adds an entry. An existing entry with the same name is replaced and keeps its position.
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

    /// Returns the entries after a position: cookie, number, name.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let rest = self.by_cookie.range((std::ops::Bound::Excluded(cookie), std::ops::Bound::Unbounded));
        rest.filter_map(|(&cookie, name)| Some((cookie, self.get(name)?, name.as_slice())))
    }
}

impl Tree {
    pub(crate) fn new((uid, gid): (u32, u32), object_pages: u64, fingerprint: Option<u64>) -> Self {
        let ticks = fingerprint.map_or(0, |number| number * TICKS);
        let mut tree = Self {
            inodes: BTreeMap::new(),
            next_ino: ROOT,
            ticks,
            fingerprint,
            allocated_at_most: object_pages,
            object_pages,
        };
        let root = tree.add(Kind::Directory, 0o755, uid, gid);
        if let Some(inode) = tree.inodes.get_mut(&root) {
            inode.nlink = 2;
            inode.dir.parent = root;
        }
        tree
    }

    /// Returns the next time: one millisecond after the previous one.
    pub(crate) fn now(&mut self) -> Time {
        self.ticks += 1;
        Time { sec: 1_000_000_000 + (self.ticks / 1000).cast_signed(), nsec: (self.ticks % 1000) as u32 * 1_000_000 }
    }

    /// Returns the names of an object, with the number of the directory of each.
    pub(crate) fn names_of(&self, ino: u64) -> Vec<(u64, Vec<u8>)> {
        let dirs = self.inodes.iter().filter(|(_, inode)| inode.kind == Kind::Directory);
        let names =
            dirs.flat_map(|(&dir, inode)| inode.dir.after(0).map(move |(_, to, name)| (dir, to, name.to_vec())));
        names.filter(|&(_, to, _)| to == ino).map(|(dir, _, name)| (dir, name)).collect()
    }

    /// Creates an object without a name.
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

    /// Returns a directory, possibly a removed one.
    pub(crate) fn dir(&self, ino: u64) -> Result<&Inode> {
        let inode = self.get(ino)?;
        if inode.kind == Kind::Directory { Ok(inode) } else { Err(Errno::NOTDIR) }
    }

    /// Returns the attributes of an object.
    pub(crate) fn attr(&self, ino: u64) -> Result<Attr> {
        Ok(self.get(ino)?.attr(ino))
    }

    /// Updates the times of a directory whose entries changed.
    pub(crate) fn touch_dir(&mut self, ino: u64) -> Result<()> {
        let now = self.now();
        let dir = self.get_mut(ino)?;
        (dir.mtime, dir.ctime) = (now, now);
        Ok(())
    }

    /// Updates the ctime of an object.
    pub(crate) fn touch(&mut self, ino: u64) -> Result<()> {
        let now = self.now();
        self.get_mut(ino)?.ctime = now;
        Ok(())
    }

    /// Adds a name, which must be free, to an object.
    pub(crate) fn add_name(&mut self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
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

    /// Removes a name, and the object if that was its last name and nothing refers to it.
    pub(crate) fn remove_name(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let ino = self.get_mut(dir)?.dir.take(name).ok_or(Errno::NOENT)?;
        self.name_removed(dir, ino)?;
        self.touch_dir(dir)
    }

    /// Updates an object after it lost a name in `dir`.
    pub(crate) fn name_removed(&mut self, dir: u64, ino: u64) -> Result<()> {
        let inode = self.get_mut(ino)?;
        if inode.kind == Kind::Directory {
            inode.nlink = 0;
            self.get_mut(dir)?.nlink -= 1;
        } else {
            inode.nlink = inode.nlink.saturating_sub(1);
        }
        self.touch(ino)?;
        self.free_if_unused(ino);
        Ok(())
    }

    /// Drops a reference to an object.
    pub(crate) fn release(&mut self, ino: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.held = inode.held.saturating_sub(1);
        }
        self.free_if_unused(ino);
    }

    fn free_if_unused(&mut self, ino: u64) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.nlink == 0 && inode.held == 0) {
            self.inodes.remove(&ino);
        }
    }

    /// Whether `ino` is the directory `of` or one of its ancestors.
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

    /// Returns the tree after a crash: unnamed objects and references are gone, and with
    /// `lose_data` also data that was not made durable.
    pub(crate) fn after_crash(&self, lose_data: bool) -> Self {
        let mut tree = self.clone();
        tree.inodes.retain(|&ino, inode| inode.nlink > 0 || ino == ROOT);
        for inode in tree.inodes.values_mut() {
            inode.held = 0;
            if lose_data {
                inode.data = inode.synced.clone();
            }
        }
        tree.allocated_at_most = tree.allocated();
        tree
    }

    /// Returns the number of pages in use.
    pub(crate) fn allocated(&self) -> u64 {
        self.inodes.values().map(|inode| inode.data.allocated() + self.object_pages).sum()
    }

    /// Returns a number of pages that can be allocated of `capacity`: exact if it is less than
    /// `wanted`.
    pub(crate) fn free_pages(&mut self, capacity: u64, wanted: u64) -> u64 {
        if self.allocated_at_most.saturating_add(wanted) > capacity {
            self.allocated_at_most = self.allocated();
        }
        capacity.saturating_sub(self.allocated_at_most)
    }

    /// Notes that an operation allocates pages.
    pub(crate) fn allocates(&mut self, pages: u64) {
        self.allocated_at_most = self.allocated_at_most.saturating_add(pages);
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

    /// Clears set-user-ID, and set-group-ID if the group may execute, except on directories.
    pub(crate) fn kill_suidgid(&mut self) {
        if self.kind != Kind::Directory {
            let sgid = if self.perm & 0o010 != 0 { 0o2000 } else { 0 };
            self.perm &= !(0o4000 | sgid);
        }
    }
}
