use core::fmt;
use testkit::Rng;
use vnode::{OpenFlags, RenameFlags};

/// Few names, so that operations collide.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Number of files kept open.
pub const SLOTS: usize = 4;

const MODES: [u32; 8] = [0o644, 0o600, 0o755, 0o777, 0o2775, 0o4755, 0o1777, 0o2644];
const OWNERS: [(u32, u32); 4] = [(0, 0), (1000, 1000), (1001, 100), (65534, 65534)];
const CALLERS: [Caller; 4] = [
    Caller::ROOT,
    Caller { uid: 0, gid: 0, umask: 0o022 },
    Caller { uid: 1000, gid: 1000, umask: 0o022 },
    Caller { uid: 1001, gid: 100, umask: 0o077 },
];
const XATTRS: [&str; 3] = ["user.one", "user.two", "trusted.three"];
const NODES: [(u32, u64); 5] = [(0o100_000, 0), (0o010_000, 0), (0o140_000, 0), (0o020_000, 0x103), (0o060_000, 0x700)];
const TARGETS: [&str; 4] = ["a", "../b", "/nowhere", "a/b/c"];

/// Returns a position or a length at or beside a border: of a header, a block, a page, a group.
fn border(rng: &mut Rng) -> u64 {
    const BORDERS: [u64; 12] = [0, 0, 18, 512, 4096, 4128, 8192, 12_288, 16_384, 20_480, 40_960, 65_536];
    let base = rng.pick(&BORDERS);
    match rng.below(4) {
        0 => base,
        1 => base + 1,
        2 => base.saturating_sub(1),
        _ => base + rng.below(3000),
    }
}

/// Path components from the root.
#[derive(Clone, PartialEq, Eq)]
pub struct Path(pub Vec<&'static str>);

impl Path {
    fn random(rng: &mut Rng) -> Self {
        let depth = rng.pick(&[1, 1, 2, 2, 2, 3, 3, 4]);
        Self((0..depth).map(|_| rng.pick(&NAMES)).collect())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.join("/"))
    }
}

/// The caller of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user ID.
    pub uid: u32,
    /// File-system group ID.
    pub gid: u32,
    /// The umask.
    pub umask: u32,
}

impl Caller {
    /// Root with umask 0.
    pub const ROOT: Self = Self { uid: 0, gid: 0, umask: 0 };
}

/// An operation. Slots are open files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Create { at: Path, mode: u32, as_: Caller, slot: Option<usize> },
    Mkdir { at: Path, mode: u32, as_: Caller },
    Symlink { at: Path, target: &'static str, as_: Caller },
    Mknod { at: Path, mode: u32, rdev: u64, as_: Caller },
    Tmpfile { dir: Path, mode: u32, as_: Caller, slot: usize },
    Link { from: Path, to: Path },
    LinkSlot { slot: usize, to: Path },
    Unlink { at: Path },
    Rmdir { at: Path },
    Rename { from: Path, to: Path, flags: RenameFlags },
    Open { at: Path, flags: u32, slot: usize },
    Close { slot: usize },
    Write { slot: usize, offset: u64, len: usize, byte: u8 },
    Read { slot: usize, offset: u64, len: usize },
    Scribble { slot: usize, offset: u64, len: usize, seed: u64 },
    Punch { slot: usize, offset: u64, len: u64 },
    Allocate { slot: usize, mode: u32, offset: u64, len: u64 },
    Fsync { slot: usize },
    Clone { from: usize, to: usize },
    Copy { from: usize, from_offset: u64, to: usize, to_offset: u64, len: u64 },
    TruncateSlot { slot: usize, size: u64 },
    AttrSlot { slot: usize },
    Truncate { at: Path, size: u64 },
    Chmod { at: Path, mode: u32 },
    Chown { at: Path, uid: Option<u32>, gid: Option<u32> },
    Times { at: Path, sec: i64, nsec: u32 },
    KillSuid { at: Path },
    Setxattr { at: Path, name: &'static str, len: usize, byte: u8 },
    Removexattr { at: Path, name: &'static str },
    Look { at: Path },
    List { at: Path },
}

impl Op {
    /// Generates the next operation. The choice of paths balances creation and removal: deep paths
    /// usually do not exist.
    pub fn random(rng: &mut Rng) -> Self {
        let at = Path::random(rng);
        let slot = rng.below(SLOTS);
        match rng.below(100) {
            0..=9 => Self::making_file(rng, at, slot),
            10..=19 => Self::Mkdir { at, mode: rng.pick(&MODES) & 0o1777, as_: rng.pick(&CALLERS) },
            20..=22 => Self::Symlink { at, target: rng.pick(&TARGETS), as_: rng.pick(&CALLERS) },
            23..=24 => {
                let (kind, rdev) = rng.pick(&NODES);
                Self::Mknod { at, mode: kind | rng.pick(&MODES), rdev, as_: rng.pick(&CALLERS) }
            }
            25..=26 => Self::Tmpfile { dir: at, mode: 0o640, as_: rng.pick(&CALLERS), slot },
            27..=33 => Self::Link { from: at, to: Path::random(rng) },
            34..=35 => Self::LinkSlot { slot, to: at },
            36..=42 => Self::Unlink { at },
            43..=46 => Self::Rmdir { at },
            47..=59 => Self::renaming(rng, at),
            60..=63 => Self::Open { at, flags: rng.pick(&[0, 1, 2, 2, 0o1002, 0o2002]), slot },
            64..=73 => Self::on_slot(rng, slot),
            74 => Self::Close { slot },
            75..=76 => Self::Truncate { at, size: rng.below(20_000) },
            77..=79 => Self::Chmod { at, mode: rng.pick(&MODES) },
            80..=82 => {
                let (uid, gid) = rng.pick(&OWNERS);
                Self::Chown { at, uid: (!rng.one_in(3)).then_some(uid), gid: (!rng.one_in(3)).then_some(gid) }
            }
            83..=84 => Self::Times { at, sec: rng.below(1_i64 << 32) - 1000, nsec: rng.below(1_000_000_000) },
            85 => Self::KillSuid { at },
            86..=88 => {
                Self::Setxattr { at, name: rng.pick(&XATTRS), len: rng.below(100) as usize, byte: rng.below(256) as u8 }
            }
            89 => Self::Removexattr { at, name: rng.pick(&XATTRS) },
            90..=94 => Self::Look { at },
            _ => Self::List { at },
        }
    }

    /// Generates the next operation, as [`Self::random`], but often on data: at borders of blocks,
    /// with data that can't be compressed, allocation and clones. Half of the paths are in the
    /// root, so that objects live longer.
    pub fn random_data(rng: &mut Rng) -> Self {
        let slot = rng.below(SLOTS);
        match rng.below(100) {
            0..=39 => Self::random(rng),
            40..=49 => {
                let at = Path(vec![rng.pick(&NAMES)]);
                let flags = rng.pick(&[0, 1, 2, 2, 2, 0o1002, 0o2002, 0o2001]);
                if rng.one_in(3) { Self::making_file(rng, at, slot) } else { Self::Open { at, flags, slot } }
            }
            50..=59 => Self::Scribble { slot, offset: border(rng), len: border(rng) as usize, seed: rng.bits() },
            60..=69 => Self::Write { slot, offset: border(rng), len: border(rng) as usize, byte: rng.below(256) as u8 },
            70..=74 => Self::Read { slot, offset: border(rng), len: border(rng) as usize },
            75..=80 => Self::TruncateSlot { slot, size: border(rng) },
            81..=84 => Self::Punch { slot, offset: border(rng), len: 1 + border(rng) },
            85..=88 => {
                let mode = rng.pick(&[0, 1, 0x10, 0x11]);
                Self::Allocate { slot, mode, offset: border(rng), len: 1 + border(rng) }
            }
            89..=92 => Self::Fsync { slot },
            93..=94 => Self::Clone { from: rng.below(SLOTS), to: slot },
            _ => {
                let (from, len) = (rng.below(SLOTS), border(rng));
                Self::Copy { from, from_offset: border(rng), to: slot, to_offset: border(rng), len }
            }
        }
    }

    /// Returns the same operation by root, for layers that answer each caller differently.
    #[must_use]
    pub fn as_root(mut self) -> Self {
        if let Self::Create { as_, .. }
        | Self::Mkdir { as_, .. }
        | Self::Symlink { as_, .. }
        | Self::Mknod { as_, .. }
        | Self::Tmpfile { as_, .. } = &mut self
        {
            *as_ = Caller::ROOT;
        }
        self
    }

    /// Returns the same operation; an open for writing is also for reading, and does not truncate.
    #[must_use]
    pub fn opened_plainly(mut self) -> Self {
        if let Self::Open { flags, .. } = &mut self
            && OpenFlags(*flags).writes()
        {
            *flags = OpenFlags::RDWR.0;
        }
        self
    }

    /// Returns the operation that writes or copies only `done` bytes.
    #[must_use]
    pub fn shortened(&self, done: u64) -> Self {
        let mut op = self.clone();
        match &mut op {
            Self::Write { len, .. } => *len = (*len).min(done as usize),
            // Its data is the beginning of the same sequence.
            Self::Scribble { len, .. } => *len = (*len).min(done as usize),
            Self::Copy { len, .. } => *len = (*len).min(done),
            _ => {}
        }
        op
    }

    /// Returns the paths that the operation names.
    #[must_use]
    pub fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Create { at, .. }
            | Self::Mkdir { at, .. }
            | Self::Symlink { at, .. }
            | Self::Mknod { at, .. }
            | Self::Tmpfile { dir: at, .. }
            | Self::LinkSlot { to: at, .. }
            | Self::Unlink { at }
            | Self::Rmdir { at }
            | Self::Open { at, .. }
            | Self::Truncate { at, .. }
            | Self::Chmod { at, .. }
            | Self::Chown { at, .. }
            | Self::Times { at, .. }
            | Self::KillSuid { at }
            | Self::Setxattr { at, .. }
            | Self::Removexattr { at, .. }
            | Self::Look { at }
            | Self::List { at } => vec![at],
            Self::Link { from, to } | Self::Rename { from, to, .. } => vec![from, to],
            Self::Close { .. }
            | Self::Write { .. }
            | Self::Read { .. }
            | Self::Scribble { .. }
            | Self::Punch { .. }
            | Self::Allocate { .. }
            | Self::Fsync { .. }
            | Self::Clone { .. }
            | Self::Copy { .. }
            | Self::TruncateSlot { .. }
            | Self::AttrSlot { .. } => Vec::new(),
        }
    }

    /// Returns the slots that the operation uses.
    #[must_use]
    pub fn slots(&self) -> Vec<usize> {
        match self {
            Self::Create { slot: Some(slot), .. }
            | Self::Tmpfile { slot, .. }
            | Self::LinkSlot { slot, .. }
            | Self::Open { slot, .. }
            | Self::Close { slot }
            | Self::Write { slot, .. }
            | Self::Read { slot, .. }
            | Self::Scribble { slot, .. }
            | Self::Punch { slot, .. }
            | Self::Allocate { slot, .. }
            | Self::Fsync { slot }
            | Self::TruncateSlot { slot, .. }
            | Self::AttrSlot { slot } => vec![*slot],
            Self::Copy { from, to, .. } | Self::Clone { from, to } => vec![*from, *to],
            _ => Vec::new(),
        }
    }

    fn making_file(rng: &mut Rng, at: Path, slot: usize) -> Self {
        Self::Create { at, mode: rng.pick(&MODES), as_: rng.pick(&CALLERS), slot: rng.one_in(2).then_some(slot) }
    }

    fn renaming(rng: &mut Rng, from: Path) -> Self {
        let flags = match rng.below(6) {
            0 => RenameFlags { no_replace: true, ..RenameFlags::default() },
            1 | 2 => RenameFlags { exchange: true, ..RenameFlags::default() },
            _ => RenameFlags::default(),
        };
        Self::Rename { from, to: Path::random(rng), flags }
    }

    fn on_slot(rng: &mut Rng, slot: usize) -> Self {
        let offset = rng.below(20_000);
        match rng.below(12) {
            0..=4 => Self::Write { slot, offset, len: rng.below(6000) as usize, byte: rng.below(256) as u8 },
            5..=6 => Self::Read { slot, offset, len: rng.below(9000) as usize },
            7 => Self::TruncateSlot { slot, size: offset },
            8 => Self::AttrSlot { slot },
            9 => Self::Punch { slot, offset, len: 1 + rng.below(9000) },
            _ => {
                let from = rng.below(SLOTS);
                Self::Copy { from, from_offset: rng.below(20_000), to: slot, to_offset: offset, len: rng.below(9000) }
            }
        }
    }
}
