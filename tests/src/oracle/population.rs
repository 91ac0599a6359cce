//! The initial tree of a run.

use crate::{Rng, acl};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An object of the initial tree.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// Its kind and contents.
    pub kind: Kind,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    xattrs: Vec<(&'static str, Vec<u8>)>,
}

/// Kind and contents of an [`Item`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Dir,
    /// A file with these contents.
    File(Vec<u8>),
    /// A file with these bytes at this offset and a hole before them.
    Sparse(u64, Vec<u8>),
    /// A symbolic link.
    Symlink(&'static [u8]),
    /// A hard link to the file at this path, which precedes it.
    Link(Vec<u8>),
    /// A fifo, socket or device with this device number.
    Special(FileType, u64),
}

/// Names that paths consist of: plain ones, special ones, and one of maximum length.
pub const NAMES: [&[u8]; 14] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"f",
    b"g",
    b"h",
    b"with space",
    b".wh",
    b"wh.x",
    b"\xff\xfe\x80",
    b"..dots",
    &[b'n'; 255],
];

const OWNERS: [(u32, u32); 5] = [(0, 0), (1000, 1000), (1001, 1001), (1000, 2000), (0, 1000)];
const FILE_MODES: [u32; 8] = [0o644, 0o600, 0o755, 0o666, 0o4755, 0o2755, 0o444, 0o664];
const DIR_MODES: [u32; 7] = [0o755, 0o755, 0o777, 0o1777, 0o2775, 0o700, 0o2777];

/// Returns a population that depends on `seed` only.
#[must_use]
pub fn population(seed: u64) -> Vec<Item> {
    let mut rng = Rng::new(seed ^ 0x706f_7075);
    let mut items: Vec<Item> = Vec::new();
    let mut dirs: Vec<Vec<u8>> = vec![Vec::new()];
    for _ in 0..90 {
        let parent = rng.pick(&dirs);
        let path = join(&parent, rng.pick(&NAMES));
        if path.len() > 1500 || items.iter().any(|item| item.path == path) {
            continue;
        }
        let kind = random_kind(&mut rng, &items, dirs.len());
        if kind == Kind::Dir {
            dirs.push(path.clone());
        }
        let item = item(&mut rng, path, kind);
        items.push(item);
    }
    items
}

/// Joins two paths.
#[must_use]
pub fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

fn random_kind(rng: &mut Rng, items: &[Item], dirs: usize) -> Kind {
    let files: Vec<&Item> = items.iter().filter(|i| matches!(i.kind, Kind::File(_) | Kind::Sparse(..))).collect();
    match rng.below(20) {
        0..=5 if dirs < 18 => Kind::Dir,
        6 | 7 if !files.is_empty() => Kind::Link(rng.pick(&files).path.clone()),
        8 | 9 => Kind::Symlink(rng.pick(&[b"a".as_slice(), b"b", b"c/d", b"a/b", b"nowhere", b"h"])),
        10 => Kind::Special(FileType::Fifo, 0),
        11 => Kind::Special(FileType::Socket, 0),
        12 => Kind::Special(FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        13 => Kind::Sparse(rng.below(3 << 20), {
            let n = rng.below(9000);
            let n = usize::try_from(n).unwrap();
            rng.bytes(n)
        }),
        14 => Kind::File(Vec::new()),
        15 => Kind::File({
            let n = 100_000 + rng.below(300_000);
            rng.bytes(usize::try_from(n).unwrap())
        }),
        _ => Kind::File({
            let n = rng.below(10_000);
            rng.bytes(usize::try_from(n).unwrap())
        }),
    }
}

fn item(rng: &mut Rng, path: Vec<u8>, kind: Kind) -> Item {
    let mode = if kind == Kind::Dir { rng.pick(&DIR_MODES) } else { rng.pick(&FILE_MODES) };
    let mut xattrs = Vec::new();
    if matches!(kind, Kind::Dir | Kind::File(_)) {
        if rng.one_in(4) {
            xattrs.push(("user.first", rng.bytes(20)));
        }
        if rng.one_in(6) {
            xattrs.push(("trusted.second", b"by root".to_vec()));
        }
        if rng.one_in(6) {
            xattrs.push((acl::ACCESS, acl::encode(7, 5, 4, 7, (1000, 6), (2000, 4))));
        }
        if kind == Kind::Dir && rng.one_in(4) {
            xattrs.push((acl::DEFAULT, acl::encode(7, 5, 0, 7, (1001, 7), (2000, 5))));
        }
    }
    let mtime = (rng.below(1_600_000_000), rng.below(1_000_000_000));
    Item { path, kind, mode, owner: rng.pick(&OWNERS), mtime, xattrs }
}

/// Creates the items at `root`, in order.
pub fn build(root: &Path, items: &[Item]) {
    for item in items {
        make(root, item);
    }
    // Times last: creating an entry changes the time of its directory.
    for item in items {
        set_times(&root.join(OsStr::from_bytes(&item.path)), item.mtime);
    }
    set_times(root, (1_000_000_000, 123_456_789));
}

/// Sets both times of an object. The access time is half a second after the modification time.
fn set_times(path: &Path, (seconds, nanoseconds): (i64, i64)) {
    let time = |s, n| Timespec { tv_sec: s, tv_nsec: n };
    let times =
        Timestamps { last_access: time(seconds + 100, nanoseconds), last_modification: time(seconds, nanoseconds) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimensat");
}

fn make(root: &Path, item: &Item) {
    let path: PathBuf = root.join(OsStr::from_bytes(&item.path));
    match &item.kind {
        Kind::Dir => std::fs::create_dir(&path).expect("mkdir"),
        Kind::File(bytes) => std::fs::write(&path, bytes).expect("a file"),
        Kind::Sparse(offset, bytes) => {
            let file = File::create(&path).expect("a sparse file");
            file.write_all_at(bytes, *offset).expect("the data of a sparse file");
            rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4096).expect("fallocate");
        }
        Kind::Symlink(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), &path).expect("symlink"),
        Kind::Link(to) => return std::fs::hard_link(root.join(OsStr::from_bytes(to)), &path).expect("link"),
        Kind::Special(kind, dev) => {
            rustix::fs::mknodat(CWD, &path, *kind, Mode::from_raw_mode(item.mode), *dev).expect("mknod");
        }
    }
    let (uid, gid) = (Some(Uid::from_raw(item.owner.0)), Some(Gid::from_raw(item.owner.1)));
    rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW).expect("chown");
    if !matches!(item.kind, Kind::Symlink(_)) {
        rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(item.mode), AtFlags::empty()).expect("chmod");
    }
    for (name, value) in &item.xattrs {
        rustix::fs::lsetxattr(&path, *name, value, XattrFlags::empty()).expect("setxattr");
    }
}

/// Divides a population among `n` branches, for merged directories. Each directory is on
/// every branch; each file is on one branch, with all its hard links. Some files also have a copy
/// with other contents on a later branch, which must stay hidden.
#[must_use]
pub fn divide(items: &[Item], n: usize, seed: u64) -> Vec<Vec<Item>> {
    let mut rng = Rng::new(seed ^ 0x6469_7669);
    let mut branches: Vec<Vec<Item>> = vec![Vec::new(); n];
    for item in items {
        let home = match &item.kind {
            Kind::Dir => {
                branches.iter_mut().for_each(|branch| branch.push(item.clone()));
                continue;
            }
            Kind::Link(to) => {
                branches.iter().position(|b| b.iter().any(|i| i.path == *to && !hidden(i))).expect("linked")
            }
            _ => rng.below(n),
        };
        branches[home].push(item.clone());
        for branch in branches.iter_mut().skip(home + 1) {
            if rng.one_in(3) {
                branch.push(Item { kind: Kind::File(HIDDEN.to_vec()), mode: 0o640, ..item.clone() });
            }
        }
    }
    branches
}

/// Scatters a population over `n` branches, so that they start with different trees. Each directory
/// is on some of the branches; each file is on one branch that has its directory, with all its hard
/// links. Some files also have a copy with other contents on a later branch, which must stay
/// hidden.
#[must_use]
pub fn scatter(items: &[Item], n: usize, seed: u64) -> Vec<Vec<Item>> {
    let mut rng = Rng::new(seed ^ 0x7363_6174);
    let mut places = Placement { dirs: HashMap::from([(Vec::new(), vec![true; n])]), n };
    let mut homes: HashMap<&[u8], usize> = HashMap::new();
    for item in items {
        let parent = parent(&item.path);
        if item.kind == Kind::Dir {
            let above = places.dirs[parent].clone();
            let mut on: Vec<bool> = above.iter().map(|&there| there && rng.one_in(2)).collect();
            if !on.contains(&true) {
                on[pick(&mut rng, &above)] = true;
            }
            places.dirs.insert(item.path.clone(), on);
            continue;
        }
        let home = match &item.kind {
            Kind::Link(to) => homes[to.as_slice()],
            _ => pick(&mut rng, &places.dirs[parent]),
        };
        places.place(parent, home);
        homes.insert(&item.path, home);
    }
    let mut branches: Vec<Vec<Item>> = vec![Vec::new(); n];
    for item in items {
        for (at, branch) in branches.iter_mut().enumerate() {
            if item.kind == Kind::Dir {
                if places.dirs[&item.path][at] {
                    branch.push(item.clone());
                }
                continue;
            }
            let home = homes[item.path.as_slice()];
            if at == home {
                branch.push(item.clone());
            } else if at > home && places.dirs[parent(&item.path)][at] && rng.one_in(3) {
                branch.push(Item { kind: Kind::File(HIDDEN.to_vec()), mode: 0o640, ..item.clone() });
            }
        }
    }
    branches
}

/// For each directory, which of the `n` branches have it.
struct Placement {
    dirs: HashMap<Vec<u8>, Vec<bool>>,
    n: usize,
}

impl Placement {
    /// Puts a directory and its ancestors on a branch.
    fn place(&mut self, dir: &[u8], branch: usize) {
        let mut dir = dir;
        loop {
            let none = vec![false; self.n];
            self.dirs.entry(dir.to_vec()).or_insert(none)[branch] = true;
            if dir.is_empty() {
                return;
            }
            dir = parent(dir);
        }
    }
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&b| b == b'/').map_or(b"", |at| &path[..at])
}

/// Returns one of the branches for which `on` is true.
fn pick(rng: &mut Rng, on: &[bool]) -> usize {
    let there: Vec<usize> = (0..on.len()).filter(|&at| on[at]).collect();
    rng.pick(&there)
}

/// Contents of files that a file further left hides.
const HIDDEN: &[u8] = b"hidden by a branch further left";

fn hidden(item: &Item) -> bool {
    item.kind == Kind::File(HIDDEN.to_vec())
}
