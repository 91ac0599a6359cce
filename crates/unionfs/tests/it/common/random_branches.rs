//! Random sets of branches whose trees overlap in part.

use super::config::{Access, BranchBuilder, Config, branch_tree, try_merge};
use super::op::Op;
use std::collections::BTreeSet;
use testkit::Rng;
use vnode::Kind;

/// Names of entries, chosen from those that the random operations use.
const NAMES: [&str; 8] = ["a", "b", "both", "dir", "f", "h1", "sub", "x"];

/// Returns two to five branches, `rw` and `ro` mixed in any order that can be mounted, with
/// whiteouts, opaque directories and hard links.
pub fn random_config(seed: u64) -> Config {
    // The unmodified seed drives the operations that run on these branches.
    let rng = &mut Rng::new(seed ^ 0x5eed_0000_0000);
    let count = 2 + rng.below(4);
    let skeleton = skeleton(rng);
    let mut accesses = Vec::new();
    let mut branches = Vec::new();
    for at in 0..count {
        accesses.push(if at == 0 || rng.one_in(2) { Access::Rw } else { Access::Ro });
        branches.push(RandomBranchBuilder::new(rng, seed, at).build(&skeleton));
    }
    let name = format!("{accesses:?} {seed}");
    let mut links: Vec<(usize, Op)> = Vec::new();
    for (at, branch) in branches.iter().enumerate() {
        links.extend(branch.links(rng).into_iter().map(|link| (at, link)));
    }
    loop {
        let mut programs: Vec<Vec<Op>> = branches.iter().map(|branch| branch.builder.clone().build()).collect();
        for (at, link) in &links {
            // Links go before the operations that set the times.
            let place = programs[*at].iter().position(|op| matches!(op, Op::Utimes { .. })).unwrap_or_default();
            programs[*at].insert(place, link.clone());
        }
        let trees: Vec<_> = programs.iter().map(|program| branch_tree(program)).collect();
        if try_merge(&trees).is_some() {
            return Config { name, branches: accesses.into_iter().zip(programs).collect(), prologue: vec![] };
        }
        // The union would hide some names of a file and show others: drop a link and try again.
        links.pop();
    }
}

/// Returns directories that any of the branches may have, parents first.
fn skeleton(rng: &mut Rng) -> Vec<String> {
    let mut dirs = vec![String::new()];
    for _ in 0..3 + rng.below(8) {
        let parent = rng.pick(&dirs);
        let name = rng.pick(&NAMES);
        let dir = join(&parent, name);
        if dir.matches('/').count() < 4 && !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs.remove(0);
    dirs
}

fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// Builds one branch.
struct RandomBranchBuilder<'r> {
    rng: &'r mut Rng,
    branch: RandomBranch,
}

/// The operations that fill a branch, and the paths that they create.
struct RandomBranch {
    builder: BranchBuilder,
    dirs: Vec<String>,
    files: Vec<String>,
    taken: BTreeSet<String>,
}

impl<'r> RandomBranchBuilder<'r> {
    fn new(rng: &'r mut Rng, seed: u64, at: usize) -> Self {
        let builder = BranchBuilder::new((seed as u8).wrapping_mul(7).wrapping_add(50 * at as u8));
        let branch = RandomBranch { builder, dirs: vec![String::new()], files: Vec::new(), taken: BTreeSet::new() };
        Self { rng, branch }
    }

    fn with(&mut self, path: &str, make: impl FnOnce(BranchBuilder) -> BranchBuilder) {
        self.branch.builder = make(std::mem::take(&mut self.branch.builder));
        self.branch.taken.insert(path.to_owned());
    }

    fn build(mut self, skeleton: &[String]) -> RandomBranch {
        // Some branches get nearly all directories, some almost none.
        let share = self.rng.pick(&[1, 2, 2, 3, 5]);
        for dir in skeleton {
            let parent = dir.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
            if self.branch.dirs.contains(&parent) && self.rng.one_in(share) {
                self.directory(dir);
            }
        }
        for _ in 0..self.rng.below(12) {
            self.random_entry();
        }
        self.branch
    }

    fn directory(&mut self, dir: &str) {
        let mode = self.rng.pick(&[0o755, 0o755, 0o700, 0o2775]);
        self.with(dir, |builder| builder.dir(dir, mode));
        self.branch.dirs.push(dir.to_owned());
        if self.rng.one_in(4) {
            let owner = self.rng.below(3) as u32;
            self.branch.builder = std::mem::take(&mut self.branch.builder).owner(dir, owner, owner);
        }
        if self.rng.one_in(8) {
            self.mark(&join(dir, ".wh..wh..opq"));
        }
    }

    fn mark(&mut self, path: &str) {
        if !self.branch.taken.contains(path) {
            self.with(path, |builder| builder.mark(path));
        }
    }

    /// Adds a file, a whiteout, or a directory that is not in the skeleton.
    fn random_entry(&mut self) {
        let dir = self.rng.pick(&self.branch.dirs);
        let name = self.rng.pick(&NAMES);
        let path = join(&dir, name);
        if self.rng.one_in(4) {
            self.mark(&join(&dir, &format!(".wh.{name}")));
            return;
        }
        if self.branch.taken.contains(&path) {
            return;
        }
        match self.rng.below(12) {
            0 | 1 => self.directory(&path),
            2 => self.with(&path, |builder| builder.symlink(&path, "some/where")),
            3 => self.with(&path, |builder| builder.special(&path, Kind::Fifo, 0)),
            _ => {
                let len = self.rng.below(200);
                let xattr = self.rng.one_in(4);
                self.with(&path, |builder| builder.file(&path, 0o644, len));
                if xattr {
                    self.branch.builder = std::mem::take(&mut self.branch.builder).xattr(&path, b"user.one", 7);
                }
                self.branch.files.push(path);
            }
        }
    }
}

impl RandomBranch {
    /// Returns operations that create hard links to files of this branch.
    fn links(&self, rng: &mut Rng) -> Vec<Op> {
        let mut links = Vec::new();
        let mut taken = self.taken.clone();
        for file in &self.files {
            if rng.one_in(3) {
                let (dir, name) = (rng.pick(&self.dirs), rng.pick(&NAMES));
                let to = join(&dir, name);
                if taken.insert(to.clone()) {
                    links.push(Op::Link { from: file.as_str().into(), to: to.as_str().into() });
                }
            }
        }
        links
    }
}
