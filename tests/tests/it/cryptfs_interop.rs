//! cryptfs and gocryptfs on the same volumes: each reads what the other wrote, for each set of
//! flags of gocryptfs that changes the format.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_tests::crypt::{FLAG_SETS, Volume};
use strata_tests::oracle::population::join;
use strata_tests::tree::{self, Times, Tree};
use strata_tests::{Mounted, Rng, Sandbox, Transport, acl, long};

/// A change of a tree. Paths are relative to its root.
#[derive(Clone, Debug)]
enum Change {
    Dir(Vec<u8>),
    File(Vec<u8>),
    Fifo(Vec<u8>),
    Symlink(Vec<u8>, Vec<u8>),
    Link(Vec<u8>, Vec<u8>),
    Write(Vec<u8>, u64, Vec<u8>),
    Resize(Vec<u8>, u64),
    Punch(Vec<u8>, u64, u64),
    Rename(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    Chmod(Vec<u8>, u32),
    Chown(Vec<u8>, u32, u32),
    Xattr(Vec<u8>, String, Vec<u8>),
    RemoveXattr(Vec<u8>, String),
    Times(Vec<u8>, i64),
}

/// What a path of the planned tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Dir,
    File,
    Other,
}

/// Sizes and offsets at which the format has a border: of a header, a block, a page, a request.
const BORDERS: [u64; 14] = [0, 1, 15, 16, 17, 4095, 4096, 4097, 8191, 8192, 12_288, 131_071, 131_072, 131_073];

/// Longest target that each cipher can store: 4095 bytes of base64, with a nonce of 24 bytes and a
/// tag of 16.
const LONGEST_LINK: u16 = 3031;

/// Chooses changes that succeed on every file system.
struct Planner {
    rng: Rng,
    paths: Vec<(Vec<u8>, Kind)>,
    xattrs: Vec<(Vec<u8>, String)>,
    names: Vec<Vec<u8>>,
}

impl Planner {
    fn new(seed: u64) -> Self {
        let mut names: Vec<Vec<u8>> = [
            &b"plain"[..],
            b"with space ",
            "\u{fc}ber \u{65e5}\u{672c}".as_bytes(),
            b"latin-1 \xfc\xe9\xff",
            b"line\nbreak",
            b".hidden",
            b"...",
            b"-rf",
            b"UPPER",
            b"gocryptfs.diriv",
            b"gocryptfs.longname.x",
        ]
        .map(<[u8]>::to_vec)
        .to_vec();
        // The longest names whose encryption is not long, the shortest ones whose is, and the
        // longest ones: with LongNameMax 100, and without.
        for len in [15, 16, 63, 64, 79, 80, 175, 176, 239, 240, 254, 255] {
            names.push(vec![b'n'; len]);
        }
        Self { rng: Rng::new(seed), paths: vec![(Vec::new(), Kind::Dir)], xattrs: Vec::new(), names }
    }

    fn any(&mut self, kind: Kind) -> Option<Vec<u8>> {
        let all: Vec<_> = self.paths.iter().filter(|(_, k)| *k == kind).map(|(path, _)| path.clone()).collect();
        (!all.is_empty()).then(|| self.rng.pick(&all))
    }

    /// Returns a path that does not exist, in a directory that does.
    fn new_path(&mut self) -> Vec<u8> {
        loop {
            let dir = self.any(Kind::Dir).unwrap();
            let mut name = self.rng.pick(&self.names);
            if self.rng.one_in(3) {
                let number = self.rng.below(1000).to_string();
                name.truncate(255 - number.len());
                name.extend_from_slice(number.as_bytes());
            }
            let path = join(&dir, &name);
            if path.len() < 2000 && self.paths.iter().all(|(other, _)| *other != path) {
                return path;
            }
        }
    }

    fn create(&mut self, kind: Kind) -> Vec<u8> {
        let path = self.new_path();
        self.paths.push((path.clone(), kind));
        path
    }

    /// Returns a number near a border.
    fn border(&mut self) -> u64 {
        let base = self.rng.pick(&BORDERS);
        match self.rng.below(4) {
            0 => base + self.rng.below(5000),
            1 => base * 3,
            _ => base,
        }
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let len = usize::try_from(len).unwrap();
        if self.rng.one_in(6) { vec![0; len] } else { self.rng.bytes(len) }
    }

    fn next(&mut self) -> Option<Change> {
        Some(match self.rng.below(26) {
            0 | 1 => Change::Dir(self.create(Kind::Dir)),
            2..=5 => Change::File(self.create(Kind::File)),
            6 => {
                let len = self.rng.pick(&[1, 15, 16, 100, 254, 255, 1000, 2000, 3000, LONGEST_LINK]);
                let target = (0..len).map(|i| if i % 50 == 49 { b'/' } else { b'a' + (i % 26) as u8 }).collect();
                Change::Symlink(self.create(Kind::Other), target)
            }
            7 => Change::Fifo(self.create(Kind::Other)),
            8 => {
                let from = self.any(Kind::File)?;
                Change::Link(from, self.create(Kind::File))
            }
            9..=14 => {
                let (path, at, len) = (self.any(Kind::File)?, self.border(), self.border());
                Change::Write(path, at, self.bytes(len))
            }
            15 => Change::Resize(self.any(Kind::File)?, self.border()),
            16 => {
                let path = self.any(Kind::File)?;
                Change::Resize(path, (1 << 20) + self.rng.below(1 << 21))
            }
            17 => Change::Punch(self.any(Kind::File)?, self.border(), self.border().max(1)),
            18 => self.rename()?,
            19 => self.remove()?,
            20 => {
                let kind = self.rng.pick(&[Kind::Dir, Kind::File]);
                let mode = self.rng.pick(&[0o644, 0o600, 0o755, 0o4755, 0o2750, 0o1777, 0o400, 0o777]);
                Change::Chmod(self.any(kind)?, mode)
            }
            21 => {
                let kind = self.rng.pick(&[Kind::Dir, Kind::File, Kind::Other]);
                Change::Chown(self.any(kind)?, self.rng.pick(&[0, 1000]), self.rng.pick(&[0, 1000, 2000]))
            }
            22 | 23 => self.xattr()?,
            24 => {
                if self.xattrs.is_empty() {
                    return None;
                }
                let at = self.rng.below(self.xattrs.len() as u64);
                let (path, name) = self.xattrs.swap_remove(usize::try_from(at).unwrap());
                Change::RemoveXattr(path, name)
            }
            _ => {
                let path = self.any(Kind::File)?;
                let access = acl::encode(6, 4, 0, 6, (1000, 6), (2000, 4));
                Change::Xattr(path, acl::ACCESS.to_owned(), access)
            }
        })
    }

    fn xattr(&mut self) -> Option<Change> {
        let kind = self.rng.pick(&[Kind::Dir, Kind::File]);
        let path = self.any(kind)?;
        if kind == Kind::Dir && self.rng.one_in(3) {
            let default = acl::encode(7, 5, 0, 7, (1001, 7), (2000, 5));
            return Some(Change::Xattr(path, acl::DEFAULT.to_owned(), default));
        }
        let name = format!("user.{}", self.rng.pick(&["a", "comment", "b\u{e4}r", "0123456789012345", "x.y.z"]));
        self.xattrs.retain(|known| *known != (path.clone(), name.clone()));
        self.xattrs.push((path.clone(), name.clone()));
        let len = self.rng.pick(&[0, 1, 16, 100, 700]);
        let value = self.rng.bytes(len);
        Some(Change::Xattr(path, name, value))
    }

    /// Renames a file or a tree.
    fn rename(&mut self) -> Option<Change> {
        let kind = self.rng.pick(&[Kind::Dir, Kind::File, Kind::Other]);
        let from = self.any(kind).filter(|path| !path.is_empty())?;
        let to = self.new_path();
        let below = [&from[..], b"/"].concat();
        if to.starts_with(&below) {
            return None;
        }
        let moved = |path: &mut Vec<u8>| {
            if *path == from || path.starts_with(&below) {
                path.splice(..from.len(), to.iter().copied());
            }
        };
        self.paths.iter_mut().for_each(|(path, _)| moved(path));
        self.xattrs.iter_mut().for_each(|(path, _)| moved(path));
        Some(Change::Rename(from, to))
    }

    /// Removes a file, or a directory that is empty.
    fn remove(&mut self) -> Option<Change> {
        let index = self.rng.below(self.paths.len());
        let path = self.paths[index].0.clone();
        let below = [&path[..], b"/"].concat();
        if path.is_empty() || self.paths.iter().any(|(other, _)| other.starts_with(&below)) {
            return None;
        }
        self.paths.swap_remove(index);
        self.xattrs.retain(|(other, _)| *other != path);
        Some(Change::Remove(path))
    }

    /// Returns `count` changes, then the times of every object.
    fn changes(&mut self, count: usize) -> Vec<Change> {
        let mut changes: Vec<_> = core::iter::from_fn(|| Some(self.next())).flatten().take(count).collect();
        for (path, _) in &self.paths {
            let time = self.rng.below(1_600_000_000);
            changes.push(Change::Times(path.clone(), time));
        }
        changes
    }
}

fn apply(root: &Path, change: &Change) -> std::io::Result<()> {
    let at = |path: &[u8]| -> PathBuf {
        // The root itself without a slash behind it.
        if path.is_empty() { root.to_owned() } else { root.join(OsStr::from_bytes(path)) }
    };
    let write = |path: &[u8]| OpenOptions::new().write(true).open(at(path));
    match change {
        Change::Dir(path) => fs::create_dir(at(path)),
        Change::File(path) => File::create_new(at(path)).map(drop),
        Change::Fifo(path) => Ok(rustix::fs::mknodat(CWD, at(path), FileType::Fifo, Mode::from_raw_mode(0o644), 0)?),
        Change::Symlink(path, target) => symlink(OsStr::from_bytes(target), at(path)),
        Change::Link(from, to) => fs::hard_link(at(from), at(to)),
        Change::Write(path, offset, bytes) => write(path)?.write_all_at(bytes, *offset),
        Change::Resize(path, size) => write(path)?.set_len(*size),
        Change::Punch(path, offset, len) => punch(&write(path)?, *offset, *len),
        Change::Rename(from, to) => fs::rename(at(from), at(to)),
        Change::Remove(path) => {
            let is_dir = fs::symlink_metadata(at(path))?.is_dir();
            if is_dir { fs::remove_dir(at(path)) } else { fs::remove_file(at(path)) }
        }
        Change::Chmod(path, mode) => fs::set_permissions(at(path), Permissions::from_mode(*mode)),
        Change::Chown(path, uid, gid) => {
            let (uid, gid) = (Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)));
            Ok(rustix::fs::chownat(CWD, at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
        }
        Change::Xattr(path, name, value) => {
            Ok(rustix::fs::lsetxattr(at(path), name.as_str(), value, XattrFlags::empty())?)
        }
        Change::RemoveXattr(path, name) => Ok(rustix::fs::lremovexattr(at(path), name.as_str())?),
        Change::Times(path, time) => {
            let time = Timespec { tv_sec: *time, tv_nsec: 123_456_789 };
            let times = Timestamps { last_access: time, last_modification: time };
            Ok(rustix::fs::utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)?)
        }
    }
}

/// Replaces a range by zeros. gocryptfs can't punch holes, so there they are written.
fn punch(file: &File, offset: u64, len: u64) -> std::io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let len = file.metadata()?.len().saturating_sub(offset).min(len);
            file.write_all_at(&vec![0; usize::try_from(len).unwrap()], offset)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Reads a tree without the times of access, which reading changes, and without the time of
/// modification of its root, in which cryptfs creates and removes its journal.
fn read(root: &Path) -> Tree {
    let mut tree = tree::read(root);
    tree.values_mut().for_each(|node| node.atime = (0, 0));
    tree.entry(Vec::new()).and_modify(|node| node.mtime = (0, 0));
    tree
}

/// Both programs take turns in changing a volume. After each turn, both must show the tree that the
/// same changes leave on a native file system.
fn take_turns(flags: &[&str], seed: u64) {
    let sandbox = Sandbox::with_time(Duration::from_secs(180));
    // For gocryptfs, the kernel applies the umask even in directories with a default ACL. The umask
    // is that of this thread only, since the sandbox has a mount namespace.
    rustix::process::umask(Mode::empty());
    let disk = sandbox.ext4("disk", 512);
    let volume = Volume::new(&disk.join("volume"), flags);
    let native = disk.join("native");
    fs::create_dir(&native).unwrap();
    let mut planner = Planner::new(seed);
    for turn in 0..if long() { 40 } else { 6 } {
        let changes = planner.changes(60);
        let perform = |root: &Path| {
            for change in &changes {
                apply(root, change).unwrap_or_else(|error| panic!("{flags:?}, turn {turn}, {error}: {change:.500?}"));
            }
        };
        perform(&native);
        let want = read(&native);
        let check = |root: &Path, who: &str| {
            let difference = tree::difference(&want, &read(root), Times::Exact);
            let few: String = difference.lines().take(6).map(|line| format!("{line:.500}\n")).collect();
            assert!(difference.is_empty(), "{flags:?}, seed {seed}, turn {turn}, read by {who}:\n{few}");
        };
        let transport = Transport::ALL[turn / 2 % 2];
        let by_cryptfs = |act: &dyn Fn(&Path)| {
            let mounted = Mounted::new(volume.spec(transport), &sandbox.path("c"));
            act(mounted.dir());
        };
        let by_gocryptfs = |act: &dyn Fn(&Path)| act(volume.gocryptfs(&sandbox.path("g")).dir());
        if turn % 2 == 0 {
            by_cryptfs(&|root| {
                perform(root);
                check(root, "cryptfs, which wrote it");
            });
            let fsck = volume.fsck();
            assert!(fsck.status.success(), "{flags:?}, turn {turn}: {}", fsck.text);
        } else {
            by_gocryptfs(&|root| perform(root));
        }
        by_gocryptfs(&|root| check(root, "gocryptfs"));
        by_cryptfs(&|root| check(root, "cryptfs"));
    }
}

macro_rules! take_turns_with {
    ($($name:ident: $index:literal),* $(,)?) => {
        $( #[test] fn $name() { take_turns(FLAG_SETS[$index], 100 + $index); } )*
        #[test]
        fn every_set_of_flags_has_a_test() {
            assert_eq!(FLAG_SETS.len(), [$($index),*].len());
        }
    };
}

take_turns_with!(
    default_flags: 0,
    aessiv: 1,
    xchacha: 2,
    plain_names: 3,
    deterministic_names: 4,
    short_long_names: 5,
    padded_names: 6,
);
