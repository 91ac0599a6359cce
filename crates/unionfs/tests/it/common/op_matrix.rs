//! The operations to try on a tree: each kind of operation on each path and on each pair of paths.

use super::op::{Fill, Op};
use super::path::Path;
use super::tree::Tree;
use vnode::{Kind, RenameFlags, Time, XattrFlags};

/// How many paths are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breadth {
    /// Every path and every pair.
    All,
    /// One path for each combination of objects that the branches can have there.
    Representative,
}

/// Paths of `config.rs` that differ in what the branches have there, in at least one configuration.
const REPRESENTATIVE: [&str; 17] = [
    "a",
    "a/f",
    "a/sub",
    "both",
    "both/same",
    "both/dir",
    "both/upper",
    "x",
    "y",
    "h1",
    "empty",
    "opq",
    "wd",
    "u1",
    "sym",
    "moved",
    "sparse",
];

/// Returns paths that do not exist in the tree: free, hidden, reserved or too long.
fn absent_paths(tree: &Tree) -> Vec<Path> {
    let mut paths: Vec<Path> =
        ["new", "a/new", "both/gone", "wf", "opq/hidden", "a/sub/new", "empty/new", ".wh.x", "a/.wh..wh..opq"]
            .map(Path::from)
            .to_vec();
    paths.push(super::config::long('m', 252).as_str().into());
    paths.push(Path::from("a").join(super::config::long('o', 255).as_bytes()));
    paths.push("h1/below-a-file".into());
    paths.retain(|p| !tree.paths().contains_key(p));
    paths
}

/// Returns the paths to try.
fn paths(tree: &Tree, breadth: Breadth) -> Vec<Path> {
    let mut paths: Vec<Path> = tree.paths().into_keys().filter(|p| *p != Path::root()).collect();
    paths.extend(absent_paths(tree));
    if breadth == Breadth::Representative {
        let wanted: Vec<Path> = REPRESENTATIVE
            .iter()
            .copied()
            .chain(["new", "both/gone", "both/lower", "moved/f"])
            .map(Path::from)
            .collect();
        paths.retain(|p| wanted.contains(p));
    }
    paths
}

/// Returns every operation on one path.
pub fn single_path_ops(tree: &Tree, breadth: Breadth) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut all = paths(tree, Breadth::All);
    if breadth == Breadth::Representative {
        // Single paths are cheap: leave out only duplicates of other cases.
        all.retain(|p| {
            !["both/dir/low", "a/sub/link", "fifo", "a/.wh..wh..opq", "a/sub/new"].map(Path::from).contains(p)
        });
    }
    for path in all {
        let kind = tree.find(&path).ok().map(|id| tree.node(id).kind);
        ops.push(Op::Create { path: path.clone(), mode: 0o666 });
        ops.push(Op::Mkdir { path: path.clone(), mode: 0o777 });
        ops.push(Op::Unlink { path: path.clone() });
        ops.push(Op::Rmdir { path: path.clone() });
        ops.push(Op::Stat { path: path.clone() });
        if kind.is_none() {
            ops.push(Op::Symlink { path: path.clone(), target: b"some/where".to_vec() });
            ops.push(Op::Mknod { path: path.clone(), mode: Kind::Fifo.mode_bits() | 0o644, rdev: 0 });
            ops.push(Op::Mknod { path: path.clone(), mode: Kind::BlockDevice.mode_bits() | 0o644, rdev: 0x801 });
        }
        if kind != Some(Kind::Symlink) {
            ops.push(Op::Chmod { path: path.clone(), mode: 0o700 });
        }
        ops.push(Op::Chown { path: path.clone(), uid: 33, gid: 44 });
        ops.push(Op::Utimes { path: path.clone(), mtime: Time { sec: 77, nsec: 999_999_999 } });
        if kind == Some(Kind::Regular) || kind.is_none() {
            push_regular_file_ops(&path, &mut ops);
        }
        if matches!(kind, Some(Kind::Regular | Kind::Directory) | None) {
            let replace = XattrFlags { replace: true, create: false };
            ops.push(Op::Setxattr {
                path: path.clone(),
                name: b"user.new",
                value: Fill { seed: 1, len: 5 },
                flags: XattrFlags::default(),
            });
            ops.push(Op::Setxattr {
                path: path.clone(),
                name: b"user.one",
                value: Fill { seed: 2, len: 6 },
                flags: replace,
            });
            ops.push(Op::Removexattr { path: path.clone(), name: b"user.one" });
        }
        if kind == Some(Kind::Directory) || kind.is_none() {
            ops.push(Op::Tmpfile { slot: 0, dir: path.clone(), mode: 0o600 });
        }
    }
    ops
}

fn push_regular_file_ops(path: &Path, ops: &mut Vec<Op>) {
    let path = || path.clone();
    ops.push(Op::Truncate { path: path(), size: 0 });
    ops.push(Op::Truncate { path: path(), size: 50 });
    ops.push(Op::Truncate { path: path(), size: 9000 });
    ops.push(Op::Write { path: path(), offset: 5, fill: Fill { seed: 200, len: 40 } });
    ops.push(Op::Append { path: path(), fill: Fill { seed: 201, len: 40 } });
    ops.push(Op::OpenTrunc { path: path() });
    ops.push(Op::Fallocate { path: path(), mode: 0, offset: 10, len: 5000 });
    ops.push(Op::Fallocate { path: path(), mode: 3, offset: 4, len: 40 });
    ops.push(Op::Open { slot: 0, path: path(), flags: 0 });
    ops.push(Op::Open { slot: 0, path: path(), flags: 2 });
    ops.push(Op::Open { slot: 0, path: path(), flags: 1 | 0o1000 });
}

/// Returns every operation on two paths.
pub fn two_path_ops(tree: &Tree, breadth: Breadth) -> Vec<Op> {
    let mut ops = Vec::new();
    let all = paths(tree, breadth);
    let flags = [(false, false, false), (true, false, false), (false, true, false), (false, false, true)];
    for from in &all {
        for to in &all {
            if tree.find(from).is_err() && tree.find(to).is_err() && breadth == Breadth::Representative {
                continue;
            }
            for (no_replace, exchange, whiteout) in flags {
                let flags = RenameFlags { no_replace, exchange, whiteout };
                if no_replace && tree.find(to).is_ok() && breadth == Breadth::Representative {
                    // Refused before the first lower operation, so faults have no effect.
                    continue;
                }
                ops.push(Op::Rename { from: from.clone(), to: to.clone(), flags });
            }
            ops.push(Op::Link { from: from.clone(), to: to.clone() });
            let is_file = |p: &Path| tree.find(p).is_ok_and(|id| tree.node(id).kind == Kind::Regular);
            if breadth == Breadth::Representative && is_file(from) && is_file(to) && from != to {
                ops.push(Op::CopyRange { from: from.clone(), to: to.clone() });
            }
        }
    }
    ops
}
