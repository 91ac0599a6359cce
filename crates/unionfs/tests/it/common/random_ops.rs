//! Random operations, derived from a seed.

use super::op::{Fill, Op, SLOTS};
use super::path::Path;
use super::tree::Tree;
use testkit::Rng;
use vnode::{Kind, RenameFlags, Time, XattrFlags};

const NAMES: [&str; 10] = ["a", "b", "both", "dir", "f", "h1", "n1", "n2", "sub", "x"];

/// Chooses random operations on a tree, most of which succeed.
pub struct OpChooser<'r> {
    /// Source of randomness.
    pub rng: &'r mut Rng,
    /// Directory that all chosen paths lie beneath.
    pub beneath: Path,
    /// Whether operations may keep files open.
    pub keeps_open: bool,
}

impl OpChooser<'_> {
    fn of_kind(&mut self, tree: &Tree, want: impl Fn(Kind) -> bool) -> Option<Path> {
        let all: Vec<Path> = tree
            .paths()
            .into_iter()
            .filter(|(path, id)| self.beneath.contains(path) && want(tree.node(*id).kind))
            .map(|(path, _)| path)
            .collect();
        if all.is_empty() { None } else { Some(self.rng.pick(&all)) }
    }

    fn dir(&mut self, tree: &Tree) -> Path {
        self.of_kind(tree, |k| k == Kind::Directory).unwrap_or_else(|| self.beneath.clone())
    }

    fn file(&mut self, tree: &Tree) -> Path {
        let found = self.of_kind(tree, |k| k == Kind::Regular);
        found.unwrap_or_else(|| self.existing_path(tree))
    }

    /// Returns a path that usually doesn't exist.
    fn new_path(&mut self, tree: &Tree) -> Path {
        let dir = self.dir(tree);
        if self.rng.one_in(40) {
            let len = 250 + self.rng.below(6);
            return dir.join(super::config::long('l', len).as_bytes());
        }
        if self.rng.one_in(60) {
            return dir.join(b".wh.x");
        }
        dir.join(self.rng.pick(&NAMES).as_bytes())
    }

    /// Returns a path that usually exists, other than `beneath`.
    fn existing_path(&mut self, tree: &Tree) -> Path {
        for _ in 0..4 {
            if let Some(path) = self.of_kind(tree, |_| true)
                && path != self.beneath
            {
                return path;
            }
        }
        self.new_path(tree)
    }

    fn existing_or_new_path(&mut self, tree: &Tree) -> Path {
        if self.rng.one_in(3) { self.existing_path(tree) } else { self.new_path(tree) }
    }

    fn fill(&mut self) -> Fill {
        let len = if self.rng.one_in(8) { 20_000 } else { 1 + self.rng.below(300) };
        Fill { seed: self.rng.bits() as u8, len }
    }

    fn offset(&mut self) -> u64 {
        let most = self.rng.pick(&[200, 12_000]);
        self.rng.below(most) as u64
    }

    fn mode(&mut self) -> u32 {
        self.rng.pick(&[0o644, 0o600, 0o755, 0o700, 0o444, 0o1777, 0o666])
    }

    fn xattr(&mut self) -> &'static [u8] {
        [&b"user.one"[..], b"user.two", b"trusted.three"][self.rng.below(3)]
    }

    /// Returns the next operation.
    pub fn op(&mut self, tree: &Tree) -> Op {
        let kinds = if self.keeps_open { 30 } else { 24 };
        match self.rng.below(kinds) {
            0 | 1 => Op::Create { path: self.new_path(tree), mode: self.mode() },
            2 | 3 => Op::Mkdir { path: self.new_path(tree), mode: self.mode() },
            4 => Op::Symlink { path: self.new_path(tree), target: b"to/somewhere".to_vec() },
            5 => self.mknod(tree),
            6 | 7 => Op::Link { from: self.file(tree), to: self.existing_or_new_path(tree) },
            8 | 9 => Op::Unlink { path: self.existing_path(tree) },
            10 | 11 => Op::Rmdir { path: self.dir(tree) },
            12 => Op::Rename { from: self.dir(tree), to: self.existing_or_new_path(tree), flags: self.flags() },
            13 => Op::Rename { from: self.dir(tree), to: self.dir(tree), flags: self.flags() },
            14 => Op::Rename { from: self.file(tree), to: self.existing_or_new_path(tree), flags: self.flags() },
            15 => Op::Rename { from: self.existing_path(tree), to: self.existing_path(tree), flags: self.flags() },
            16 => self.attributes(tree),
            17 => Op::Truncate { path: self.file(tree), size: self.offset() },
            18 => Op::Write { path: self.file(tree), offset: self.offset(), fill: self.fill() },
            19 => Op::Append { path: self.file(tree), fill: self.fill() },
            20 => Op::OpenTrunc { path: self.file(tree) },
            21 => {
                let mode = self.rng.pick(&[0, 1, 3]);
                Op::Fallocate { path: self.file(tree), mode, offset: self.offset(), len: 1 + self.offset() }
            }
            22 => Op::CopyRange { from: self.file(tree), to: self.file(tree) },
            23 => self.set_xattr(tree),
            _ => self.open_op(tree),
        }
    }

    fn mknod(&mut self, tree: &Tree) -> Op {
        let kind = self.rng.pick(&[Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::Regular]);
        let rdev = if kind == Kind::CharDevice { 0x105 } else { 0 };
        Op::Mknod { path: self.new_path(tree), mode: kind.mode_bits() | self.mode(), rdev }
    }

    fn flags(&mut self) -> RenameFlags {
        RenameFlags { no_replace: self.rng.one_in(8), exchange: self.rng.one_in(4), whiteout: self.rng.one_in(8) }
    }

    fn attributes(&mut self, tree: &Tree) -> Op {
        match self.rng.below(3) {
            0 => {
                let path = self.of_kind(tree, |k| k != Kind::Symlink).unwrap_or_default();
                Op::Chmod { path, mode: self.mode() }
            }
            1 => Op::Chown {
                path: self.existing_path(tree),
                uid: self.rng.below(5) as u32,
                gid: self.rng.below(5) as u32,
            },
            _ => {
                let mtime = Time { sec: self.rng.below(1_i64 << 31), nsec: self.rng.below(1_000_000_000) };
                Op::Utimes { path: self.existing_path(tree), mtime }
            }
        }
    }

    fn set_xattr(&mut self, tree: &Tree) -> Op {
        let path = self.of_kind(tree, |k| matches!(k, Kind::Regular | Kind::Directory)).unwrap_or_default();
        let name = self.xattr();
        if self.rng.one_in(3) {
            return Op::Removexattr { path, name };
        }
        let flags = XattrFlags { create: self.rng.one_in(6), replace: false };
        Op::Setxattr { path, name, value: Fill { seed: 9, len: self.rng.below(60) }, flags }
    }

    fn open_op(&mut self, tree: &Tree) -> Op {
        let slot = self.rng.below(SLOTS);
        match self.rng.below(9) {
            0..=2 => {
                let flags = self.rng.pick(&[0, 0, 1, 2, 2, 2 | 0o2000, 2 | 0o1000]);
                Op::Open { slot, path: self.file(tree), flags }
            }
            3 => Op::Tmpfile { slot, dir: self.dir(tree), mode: self.mode() },
            4 => Op::LinkSlot { slot, to: self.new_path(tree) },
            5 => Op::TruncateSlot { slot, size: self.offset() },
            6 => Op::ChmodSlot { slot, mode: self.mode() },
            7 => Op::Close { slot },
            _ => Op::WriteSlot { slot, offset: self.offset(), fill: self.fill() },
        }
    }
}
