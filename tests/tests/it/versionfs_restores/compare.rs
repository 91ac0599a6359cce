//! Comparison of trees: what the history keeps of them, and which names are one file.

use rustix::fs::FileType;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use strata_tests::tree::{Node, Times, Tree, difference};

/// What is compared beside names, bytes, modes, owners and attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// Times of modification. A change of them alone makes a version with `comprehensive` only.
    pub(super) times: bool,
    /// Owners, modes, times and attributes of what is no file: their changes make no version.
    pub(super) others: bool,
}

/// A tree differs from what is expected.
#[derive(Debug)]
pub(super) struct Difference {
    /// A path with a difference.
    pub(super) path: String,
    pub(super) text: String,
}

/// Returns the difference, if there is one.
pub(super) fn compare(want: &Tree, got: &Tree, scope: Scope) -> Option<Difference> {
    let (kept_want, kept_got) = (kept(want, scope), kept(got, scope));
    let mut text = difference(&kept_want, &kept_got, Times::Exact);
    let mut paths = kept_want.keys().chain(kept_got.keys());
    let mut first = paths.find(|path| kept_want.get(*path) != kept_got.get(*path)).cloned();
    let (groups_want, groups_got) = (groups(want, got), groups(got, want));
    for (path, wanted) in &groups_want {
        let found = &groups_got[path];
        if wanted != found {
            let [path, wanted, found] = [path, wanted, found].map(|path| path.escape_ascii());
            let _ = writeln!(text, "{path}: is the file of {found}, expected that of {wanted}");
            first = first.or_else(|| Some(path.to_string().into_bytes()));
        }
    }
    let path = String::from_utf8_lossy(&first?).into_owned();
    Some(Difference { path, text })
}

/// Returns a tree without what is not compared.
fn kept(tree: &Tree, scope: Scope) -> Tree {
    let mut tree = tree.clone();
    for node in tree.values_mut() {
        (node.atime, node.nlink, node.ino, node.btime, node.dev) = ((0, 0), 0, 0, (0, 0), (0, 0));
        if !scope.times || kind(node).is_dir() {
            node.mtime = (0, 0);
        }
        if !kind(node).is_file() && !scope.others {
            node.mode &= !0o7777;
            (node.owner, node.mtime) = ((0, 0), (0, 0));
            node.xattrs.clear();
        }
    }
    tree
}

fn kind(node: &Node) -> FileType {
    FileType::from_raw_mode(node.mode)
}

/// Returns for each file in both trees the first name of its file in `tree`.
fn groups<'a>(tree: &'a Tree, other: &Tree) -> BTreeMap<&'a [u8], &'a [u8]> {
    let is_file = |tree: &Tree, path: &Vec<u8>| tree.get(path).is_some_and(|node| kind(node).is_file());
    let mut first: HashMap<u64, &[u8]> = HashMap::new();
    let both = tree.iter().filter(|(path, _)| is_file(tree, path) && is_file(other, path));
    both.map(|(path, node)| (&**path, *first.entry(node.ino).or_insert(path))).collect()
}

/// Returns the part of a tree at and below `path`.
pub(super) fn part(tree: &Tree, path: &str) -> Tree {
    let below = tree.iter().filter_map(|(at, node)| {
        let rest = at.strip_prefix(path.as_bytes())?;
        let rest = if path.is_empty() || rest.is_empty() { rest } else { rest.strip_prefix(b"/")? };
        Some((rest.to_vec(), node.clone()))
    });
    below.collect()
}
