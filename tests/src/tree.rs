//! Snapshots of a directory tree as a program sees it, and their comparison.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Seconds and nanoseconds.
pub type Time = (i64, u32);

/// Everything that stat(2), listxattr(2), read(2) and readlink(2) return for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type and permissions.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Device number of a device.
    pub rdev: (u32, u32),
    /// Size; 0 for a directory, whose size differs between file systems.
    pub size: u64,
    /// Link count.
    pub nlink: u32,
    /// Inode number.
    pub ino: u64,
    /// Time of last modification.
    pub mtime: Time,
    /// Time of last access.
    pub atime: Time,
    /// Time of birth, if known.
    pub btime: Time,
    /// Device number of the containing file system.
    pub dev: (u32, u32),
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Hash of a file's contents.
    pub content: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
}

/// A tree, by path from its root. The root has the empty path.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// Reads the tree at `root`. Panics if readdir and stat disagree about an entry.
#[must_use]
pub fn read(root: &Path) -> Tree {
    try_read(root).unwrap_or_else(|problem| panic!("{}: {problem}", root.display()))
}

/// Reads the tree at `root`.
///
/// # Errors
/// Names the path from the root and what is wrong: an object that can't be read, or one about which
/// readdir and stat disagree.
pub fn try_read(root: &Path) -> Result<Tree, String> {
    let mut tree = Tree::new();
    tree.insert(Vec::new(), examine(root).map_err(|problem| format!(".: {problem}"))?);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty()).map_err(|e| format!(".: open: {e}"))?;
    walk(&root, b"", &mut tree)?;
    Ok(tree)
}

/// Reads a directory and everything below it; `prefix` is its path from the root. Walks by
/// descriptors, because the tree may be deeper than `PATH_MAX`.
fn walk(dir: &OwnedFd, prefix: &[u8], tree: &mut Tree) -> Result<(), String> {
    let base = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let listing = |e: Errno| format!("{}: readdir: {e}", prefix.escape_ascii());
    for entry in rustix::fs::Dir::read_from(dir).map_err(listing)? {
        let entry = entry.map_err(listing)?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let key = if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() };
        let of = |problem: String| format!("{}: {problem}", key.escape_ascii());
        let node = examine(&base.join(OsStr::from_bytes(name))).map_err(of)?;
        let kind = rustix::fs::FileType::from_raw_mode(node.mode);
        if entry.ino() != node.ino {
            return Err(of(format!("d_ino is {:#x}, st_ino {:#x}", entry.ino(), node.ino)));
        }
        if entry.file_type() != kind {
            return Err(of(format!("d_type is {:?}, st_mode says {kind:?}", entry.file_type())));
        }
        if kind.is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let sub = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|e| of(format!("open: {e}")))?;
            walk(&sub, &key, tree)?;
        }
        if tree.insert(key.clone(), node).is_some() {
            return Err(of("listed twice".to_owned()));
        }
    }
    Ok(())
}

/// Reads one object. Panics if it can't be read.
#[must_use]
pub fn node(path: &Path) -> Node {
    examine(path).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()))
}

fn examine(path: &Path) -> Result<Node, String> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let st = rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
        .map_err(|e| format!("stat: {e}"))?;
    let kind = rustix::fs::FileType::from_raw_mode(u32::from(st.stx_mode));
    let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
    Ok(Node {
        mode: u32::from(st.stx_mode),
        owner: (st.stx_uid, st.stx_gid),
        rdev: (st.stx_rdev_major, st.stx_rdev_minor),
        size: if kind.is_dir() { 0 } else { st.stx_size },
        nlink: st.stx_nlink,
        ino: st.stx_ino,
        mtime: time(st.stx_mtime),
        atime: time(st.stx_atime),
        btime: time(st.stx_btime),
        dev: (st.stx_dev_major, st.stx_dev_minor),
        xattrs: xattrs(path)?,
        content: if kind.is_file() { content(path)? } else { 0 },
        target: if kind.is_symlink() { target(path)? } else { Vec::new() },
    })
}

fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let mut names = vec![0_u8; 65536];
    let len = match rustix::fs::llistxattr(path, &mut names) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(e) => return Err(format!("listxattr: {e}")),
    };
    let mut out = BTreeMap::new();
    for name in names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0_u8; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value)
            .map_err(|e| format!("getxattr {}: {e}", name.escape_ascii()))?;
        value.truncate(len);
        out.insert(name.to_vec(), value);
    }
    Ok(out)
}

/// Files larger than this are hashed by data extents only.
const LARGE: u64 = 2 << 30;

fn content(path: &Path) -> Result<u64, String> {
    let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| format!("open: {e}"))?);
    let size = file.metadata().map_err(|e| format!("fstat: {e}"))?.len();
    let read = |from: u64, to: u64| {
        let mut bytes = vec![0; usize::try_from(to - from).expect("a size")];
        file.read_exact_at(&mut bytes, from).map_err(|e| format!("read at {from}: {e}"))?;
        Ok::<_, String>(hash(&bytes))
    };
    if size < LARGE {
        return read(0, size);
    }
    let mut all = size;
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).expect("the end of an extent");
        all = all.rotate_left(7) ^ start ^ read(start, at)?;
    }
    Ok(all)
}

/// Returns a hash that is the same in every run, and fast in debug builds.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = bytes.len() as u64;
    let mut mix =
        |word: [u8; 8]| hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    for word in words {
        mix(*word);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(last);
    hash
}

fn target(path: &Path) -> Result<Vec<u8>, String> {
    let target = rustix::fs::readlink(path, Vec::new()).map_err(|e| format!("readlink: {e}"))?;
    Ok(target.into_bytes())
}

/// Comparison of timestamps.
#[derive(Clone, Copy, Debug)]
pub enum Times {
    /// All times must be equal.
    Exact,
    /// Times before `since` must be equal. Later times need only be later in both trees,
    /// because the trees were modified one after the other.
    Since(Time),
}

impl Times {
    fn same(self, one: Time, other: Time) -> bool {
        match self {
            Self::Exact => one == other,
            Self::Since(start) => {
                let recent = |t: Time| t >= start && t.0 < start.0 + 86_400;
                one == other || (recent(one) && recent(other))
            }
        }
    }
}

/// Returns the differences between `got` and `want`, one per line; empty if there are none. Does
/// not compare inode numbers: [`Identities`] does.
#[must_use]
pub fn difference(want: &Tree, got: &Tree, times: Times) -> String {
    let mut out = String::new();
    for path in want.keys().filter(|p| !got.contains_key(*p)) {
        let _ = writeln!(out, "missing: {}", path.escape_ascii());
    }
    for (path, got) in got {
        let Some(want) = want.get(path) else {
            let _ = writeln!(out, "unexpected: {} ({got:?})", path.escape_ascii());
            continue;
        };
        let mut report = |what: &str, want: &dyn std::fmt::Debug, got: &dyn std::fmt::Debug| {
            let _ = writeln!(out, "{}: {what} is {got:?}, expected {want:?}", path.escape_ascii());
        };
        macro_rules! compare {
            ($($field:ident),*) => { $(if want.$field != got.$field { report(stringify!($field), &want.$field, &got.$field); })* };
        }
        compare!(mode, owner, rdev, size, nlink, xattrs, content, target);
        if !times.same(want.mtime, got.mtime) {
            report("mtime", &want.mtime, &got.mtime);
        }
        if !times.same(want.atime, got.atime) {
            report("atime", &want.atime, &got.atime);
        }
    }
    out
}

/// Maps objects of the native tree to inode numbers in the other tree.
///
/// A native object is identified by inode number and time of birth, because ext4 reuses inode
/// numbers. Its counterpart in the other tree must keep one inode number during its lifetime, and
/// no other object may have that number.
#[derive(Clone, Debug, Default)]
pub struct Identities(HashMap<(u64, Time), u64>);

impl Identities {
    /// Compares the inode numbers in two otherwise equal trees. Returns the violations, one per
    /// line.
    pub fn check(&mut self, native: &Tree, other: &Tree) -> String {
        let mut out = String::new();
        let mut now = HashMap::new();
        let mut taken: HashMap<u64, ((u64, Time), Vec<u8>)> = HashMap::new();
        let root = other.get(&Vec::new()).map(|n| n.dev);
        for (path, native) in native {
            let Some(node) = other.get(path) else { continue };
            let key = (native.ino, native.btime);
            if let Some(old) = self.0.get(&key).filter(|old| **old != node.ino) {
                let _ = writeln!(out, "{}: st_ino was {old:#x}, is {:#x}", path.escape_ascii(), node.ino);
            }
            if let Some((_, twin)) = taken.get(&node.ino).filter(|(k, _)| *k != key) {
                let (a, b) = (path.escape_ascii(), twin.escape_ascii());
                let _ = writeln!(out, "{a} and {b} are two objects with the st_ino {:#x}", node.ino);
            }
            if let Some(other) = now.get(&key).filter(|ino| **ino != node.ino) {
                let path = path.escape_ascii();
                let _ = writeln!(out, "{path}: one object has the st_ino {other:#x} and {:#x}", node.ino);
            }
            if Some(node.dev) != root {
                let _ = writeln!(out, "{}: st_dev is {:?}, the root's is {root:?}", path.escape_ascii(), node.dev);
            }
            taken.insert(node.ino, (key, path.clone()));
            now.insert(key, node.ino);
        }
        self.0 = now;
        out
    }
}
