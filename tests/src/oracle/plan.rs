use super::op::{Data, Op, Step};
use super::population::{NAMES, join};
use crate::user::{OTHER, ROOT, USER};
use crate::{Rng, acl};
use rustix::fs::{Access, FallocateFlags, FileType, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Number of slots for open files.
pub(super) const SLOTS: usize = 6;

const MODES: [u32; 10] = [0o644, 0o600, 0o755, 0o666, 0o4755, 0o2755, 0o444, 0o777, 0o1777, 0o6711];
const XATTRS: [&str; 4] = ["user.first", "user.other", "trusted.second", "security.test"];
const FILE_KINDS: [FileType; 5] =
    [FileType::RegularFile, FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::BlockDevice];

/// Chooses the operations, from the seed and from the paths that exist in the native tree.
#[derive(Debug)]
pub(super) struct Planner {
    rng: Rng,
    paths: Vec<Vec<u8>>,
    dirs: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
    empty: Vec<Vec<u8>>,
    age: u32,
}

impl Planner {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), paths: Vec::new(), dirs: Vec::new(), files: Vec::new(), empty: Vec::new(), age: 0 }
    }

    /// Returns the next step, for a native tree at `root`.
    pub(super) fn next(&mut self, root: &Path) -> Step {
        if self.age == 0 {
            self.scan(root);
            self.age = 20;
        }
        self.age -= 1;
        let who = self.rng.pick(&[ROOT, ROOT, ROOT, ROOT, ROOT, ROOT, USER, USER, OTHER]);
        let umask = self.rng.pick(&[0o022, 0o022, 0o077, 0o002, 0]);
        let op = match self.rng.below(10) {
            0..=3 => self.naming(),
            4 | 5 => self.content(),
            6 => self.attributes(),
            7 => self.query(),
            _ => self.descriptor(),
        };
        Step { who, umask, op }
    }

    /// Updates the list of existing paths.
    fn scan(&mut self, root: &Path) {
        self.paths.clear();
        self.files.clear();
        self.empty.clear();
        self.dirs = vec![Vec::new()];
        let mut next = 0;
        while let Some(dir) = self.dirs.get(next).cloned() {
            next += 1;
            let entries = std::fs::read_dir(root.join(std::ffi::OsStr::from_bytes(&dir))).expect("the native tree");
            let mut names: Vec<_> = entries.map(|e| e.expect("an entry")).collect();
            names.sort_by_key(std::fs::DirEntry::file_name);
            if names.is_empty() {
                self.empty.push(dir.clone());
            }
            for entry in names {
                let path = join(&dir, entry.file_name().as_bytes());
                let kind = entry.file_type().expect("its type");
                if kind.is_dir() && path.len() < 1500 {
                    self.dirs.push(path.clone());
                } else if kind.is_file() {
                    self.files.push(path.clone());
                }
                self.paths.push(path);
            }
        }
    }

    /// Returns a path that usually exists.
    fn existing(&mut self) -> Vec<u8> {
        if self.paths.is_empty() || self.rng.one_in(8) { self.new_path() } else { self.rng.pick(&self.paths) }
    }

    /// Returns a path that often does not exist, in a directory that usually does.
    fn new_path(&mut self) -> Vec<u8> {
        let dir = if self.rng.one_in(25) && !self.paths.is_empty() {
            self.rng.pick(&self.paths)
        } else {
            self.rng.pick(&self.dirs)
        };
        join(&dir, self.rng.pick(&NAMES))
    }

    /// Returns a path that is usually a file's.
    fn file(&mut self) -> Vec<u8> {
        if self.files.is_empty() || self.rng.one_in(6) { self.existing() } else { self.rng.pick(&self.files) }
    }

    /// Returns a path that is usually an empty directory's.
    fn empty(&mut self) -> Vec<u8> {
        if self.empty.is_empty() || self.rng.one_in(6) { self.dir() } else { self.rng.pick(&self.empty) }
    }

    fn dir(&mut self) -> Vec<u8> {
        self.rng.pick(&self.dirs)
    }

    fn mode(&mut self) -> u32 {
        self.rng.pick(&MODES)
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => self.rng.below(100),
            1 => self.rng.below(5000),
            2 => self.rng.below(70_000),
            _ => 4096 * self.rng.below(40),
        }
    }

    fn data(&mut self) -> Data {
        Data { seed: self.rng.bits(), len: usize::try_from(self.len()).unwrap() }
    }

    /// Returns times in the distant past or future, distinguishable from those that the kernel
    /// sets. Sometimes one is `UTIME_OMIT` or `UTIME_NOW`.
    fn times(&mut self) -> Timestamps {
        const NOW: i64 = 0x3fff_ffff;
        const OMIT: i64 = 0x3fff_fffe;
        let mut time = || match self.rng.below(8) {
            0 => Timespec { tv_sec: 0, tv_nsec: NOW as _ },
            1 => Timespec { tv_sec: 0, tv_nsec: OMIT as _ },
            2 => Timespec { tv_sec: 4_000_000_000, tv_nsec: 999_999_999 },
            _ => Timespec { tv_sec: self.rng.below(1_500_000_000), tv_nsec: self.rng.below(1_000_000_000) },
        };
        Timestamps { last_access: time(), last_modification: time() }
    }

    fn naming(&mut self) -> Op {
        match self.rng.below(20) {
            0 | 1 => Op::Mkdir { path: self.new_path(), mode: self.mode() },
            2 => Op::Rmdir { path: self.empty() },
            3 => Op::Rmdir { path: self.existing() },
            4..=6 => Op::Unlink { path: self.existing() },
            7 => Op::Symlink {
                target: self.rng.pick(&[b"a".as_slice(), b"b/c", b"d", b"nowhere", b"with space"]).to_vec(),
                path: self.new_path(),
            },
            8 | 9 => Op::Link { from: self.existing(), to: self.new_path(), follow: self.rng.one_in(3) },
            10 => Op::Mknod {
                path: self.new_path(),
                kind: self.rng.pick(&FILE_KINDS),
                mode: self.mode(),
                // A number for local use: no driver has it, so steps that write reach no device.
                dev: rustix::fs::makedev(60, 200),
            },
            11 => Op::Tmpfile {
                dir: self.dir(),
                mode: self.mode(),
                data: self.data(),
                to: if self.rng.one_in(3) { None } else { Some(self.new_path()) },
            },
            12 => Op::Rename { from: self.dir(), to: self.new_path(), flags: RenameFlags::empty() },
            13 => Op::Rename { from: self.existing(), to: self.new_path(), flags: RenameFlags::NOREPLACE },
            14 | 15 => Op::Rename { from: self.existing(), to: self.existing(), flags: RenameFlags::EXCHANGE },
            16 => Op::Rename { from: self.dir(), to: self.empty(), flags: RenameFlags::empty() },
            17 => Op::Rename { from: self.existing(), to: self.existing(), flags: RenameFlags::empty() },
            _ => Op::Rename { from: self.existing(), to: self.new_path(), flags: RenameFlags::empty() },
        }
    }

    fn content(&mut self) -> Op {
        match self.rng.below(12) {
            0..=3 => {
                let extra = [OFlags::empty(), OFlags::TRUNC, OFlags::EXCL, OFlags::APPEND, OFlags::NOFOLLOW];
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NONBLOCK | self.rng.pick(&extra);
                Op::Write { path: self.new_path(), flags, mode: self.mode(), offset: self.len(), data: self.data() }
            }
            4..=6 => {
                let extra = [OFlags::empty(), OFlags::TRUNC, OFlags::APPEND];
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | self.rng.pick(&extra);
                Op::Write { path: self.file(), flags, mode: 0, offset: self.len(), data: self.data() }
            }
            7 | 8 => Op::Truncate { path: self.file(), len: self.len() },
            9 => Op::CopyRange {
                from: self.file(),
                to: self.file(),
                offset: self.len(),
                len: usize::try_from(self.len()).unwrap(),
            },
            _ => {
                let keep = FallocateFlags::KEEP_SIZE;
                let modes = [
                    FallocateFlags::empty(),
                    keep,
                    FallocateFlags::PUNCH_HOLE | keep,
                    FallocateFlags::PUNCH_HOLE | keep,
                    FallocateFlags::ZERO_RANGE,
                ];
                Op::Fallocate { path: self.file(), mode: self.rng.pick(&modes), offset: self.len(), len: self.len() }
            }
        }
    }

    fn attributes(&mut self) -> Op {
        let id = |rng: &mut Rng| rng.pick(&[Some(0), Some(1000), Some(1001), Some(2000), None]);
        match self.rng.below(10) {
            0..=2 => Op::Chmod { path: self.existing(), mode: self.mode() },
            // At least one id: see the test `chown_without_ids_keeps_set_id_bits`.
            3 => {
                Op::Chown { path: self.existing(), uid: Some(1000), gid: id(&mut self.rng), follow: self.rng.one_in(2) }
            }
            4 => {
                Op::Chown { path: self.existing(), uid: id(&mut self.rng), gid: Some(2000), follow: self.rng.one_in(2) }
            }
            5 | 6 => Op::Utimens { path: self.existing(), times: self.times() },
            7 => Op::RemoveXattr { path: self.file(), name: self.rng.pick(&XATTRS) },
            8 => {
                let flags = [XattrFlags::empty(), XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
                let len = self.rng.below(60);
                Op::SetXattr {
                    path: self.file(),
                    name: self.rng.pick(&XATTRS),
                    value: self.rng.bytes(len),
                    flags: self.rng.pick(&flags),
                }
            }
            _ => self.acl(),
        }
    }

    fn acl(&mut self) -> Op {
        let mut perm = || self.rng.below(8);
        let value = acl::encode(perm() | 4, perm(), perm(), perm(), (1000, perm()), (2000, perm()));
        let name = self.rng.pick(&[acl::ACCESS, acl::ACCESS, acl::DEFAULT]);
        let path = if name == acl::DEFAULT { self.dir() } else { self.existing() };
        if self.rng.one_in(5) {
            return Op::RemoveXattr { path, name };
        }
        Op::SetXattr { path, name, value, flags: XattrFlags::empty() }
    }

    fn query(&mut self) -> Op {
        match self.rng.below(10) {
            0..=2 => Op::Stat { path: self.existing(), follow: self.rng.one_in(2) },
            3 | 4 => Op::Read { path: self.file() },
            5 => Op::ReadLink { path: self.existing() },
            6 | 7 => Op::ReadDir { path: self.dir() },
            8 => {
                let modes = [Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK, Access::EXISTS];
                Op::Access { path: self.existing(), mode: self.rng.pick(&modes) }
            }
            _ => Op::GetXattr { path: self.file(), name: self.rng.pick(&XATTRS) },
        }
    }

    fn descriptor(&mut self) -> Op {
        let slot = self.rng.below(SLOTS);
        match self.rng.below(20) {
            0..=4 => {
                let flags = [OFlags::RDONLY, OFlags::RDWR, OFlags::RDWR, OFlags::RDWR | OFlags::APPEND];
                Op::Open { slot, path: self.file(), flags: self.rng.pick(&flags) | OFlags::NONBLOCK }
            }
            5 => Op::Open { slot, path: self.dir(), flags: OFlags::RDONLY | OFlags::DIRECTORY },
            6 if self.rng.one_in(3) => Op::Close { slot },
            6..=8 => Op::FdWrite { slot, offset: self.len(), data: self.data() },
            9..=11 => Op::FdRead { slot, offset: self.len(), len: usize::try_from(self.len()).unwrap() },
            12 => Op::FdStat { slot },
            13 => Op::FdTruncate { slot, len: self.len() },
            14 => match self.rng.below(3) {
                0 => Op::FdChmod { slot, mode: self.mode() },
                1 => Op::FdChown { slot, uid: 1000, gid: 1000 },
                _ => Op::FdTimes { slot, times: self.times() },
            },
            15 => Op::FdSetXattr { slot, name: "user.first", value: b"by descriptor".to_vec() },
            16 => Op::FdLink { slot, to: self.new_path() },
            17 => Op::FdPunch { slot, offset: self.len(), len: 1 + self.len() },
            18 => Op::FdReadDir { slot },
            _ if self.rng.one_in(2) => Op::FdSync { slot },
            _ => Op::FdCreate { slot, name: self.rng.pick(&NAMES).to_vec() },
        }
    }
}
