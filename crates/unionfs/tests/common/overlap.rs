//! Random sets of branches that start with different trees, which overlap in part.

use super::config::{Access, Config, Fills, branch_tree, try_merge};
use super::op::Op;
use super::report::env;
use super::rng::Rng;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use vnode::Kind;

/// Names that the random operations choose, too.
const NAMES: [&str; 8] = ["a", "b", "both", "dir", "f", "h1", "sub", "x"];

/// The seeds of a run: `STRATA_SEED` alone, else `STRATA_SEEDS` or `count` of them from `STRATA_FIRST_SEED` on.
pub fn seeds(count: u64) -> RangeInclusive<u64> {
    match env("STRATA_SEED") {
        Some(seed) => seed..=seed,
        None => {
            let first = env("STRATA_FIRST_SEED").unwrap_or(1);
            first..=first + env("STRATA_SEEDS").unwrap_or(count) - 1
        }
    }
}

/// Two to five branches, `rw` and `ro` mixed in any order that can be mounted, with whiteouts, opaque
/// directories and hard links.
pub fn overlapping(seed: u64) -> Config {
    // The program that runs on the branches uses the seed itself.
    let rng = &mut Rng::new(seed ^ 0x5eed_0000_0000);
    let count = 2 + rng.below(4);
    let skeleton = skeleton(rng);
    let mut accesses = Vec::new();
    let mut branches = Vec::new();
    for at in 0..count {
        accesses.push(if at == 0 || rng.one_in(2) { Access::Rw } else { Access::Ro });
        branches.push(Planter::new(rng, seed, at).plant(&skeleton));
    }
    let name = format!("{accesses:?} {seed}");
    let mut links: Vec<(usize, Op)> = Vec::new();
    for (at, branch) in branches.iter().enumerate() {
        links.extend(branch.links(rng).into_iter().map(|link| (at, link)));
    }
    loop {
        let mut programs: Vec<Vec<Op>> = branches.iter().map(|branch| branch.fills.clone().done()).collect();
        for (at, link) in &links {
            // Before the times are set.
            let place = programs[*at].iter().position(|op| matches!(op, Op::Utimes { .. })).unwrap_or_default();
            programs[*at].insert(place, link.clone());
        }
        let trees: Vec<_> = programs.iter().map(|program| branch_tree(program)).collect();
        if try_merge(&trees).is_some() {
            return Config { name, branches: accesses.into_iter().zip(programs).collect(), prologue: vec![] };
        }
        // The union would hide some of a file's names.
        links.pop();
    }
}

/// The directories that branches may have, parents first.
fn skeleton(rng: &mut Rng) -> Vec<String> {
    let mut dirs = vec![String::new()];
    for _ in 0..3 + rng.below(8) {
        let parent = rng.pick(&dirs).clone();
        let name = *rng.pick(&NAMES);
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

/// Fills one branch.
struct Planter<'r> {
    rng: &'r mut Rng,
    planted: Planted,
}

/// A branch's program, and what it has made.
struct Planted {
    fills: Fills,
    dirs: Vec<String>,
    files: Vec<String>,
    taken: BTreeSet<String>,
}

impl<'r> Planter<'r> {
    fn new(rng: &'r mut Rng, seed: u64, at: usize) -> Self {
        let fills = Fills::new((seed as u8).wrapping_mul(7).wrapping_add(50 * at as u8));
        let planted = Planted { fills, dirs: vec![String::new()], files: Vec::new(), taken: BTreeSet::new() };
        Self { rng, planted }
    }

    fn with(&mut self, path: &str, make: impl FnOnce(Fills) -> Fills) {
        self.planted.fills = make(std::mem::take(&mut self.planted.fills));
        self.planted.taken.insert(path.to_owned());
    }

    fn plant(mut self, skeleton: &[String]) -> Planted {
        // Some branches have nearly all, some next to nothing.
        let share = *self.rng.pick(&[1, 2, 2, 3, 5]);
        for dir in skeleton {
            let parent = dir.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
            if self.planted.dirs.contains(&parent) && self.rng.one_in(share) {
                self.directory(dir);
            }
        }
        for _ in 0..self.rng.below(12) {
            self.something();
        }
        self.planted
    }

    fn directory(&mut self, dir: &str) {
        let mode = *self.rng.pick(&[0o755, 0o755, 0o700, 0o2775]);
        self.with(dir, |fills| fills.dir(dir, mode));
        self.planted.dirs.push(dir.to_owned());
        if self.rng.one_in(4) {
            let owner = self.rng.below(3) as u32;
            self.planted.fills = std::mem::take(&mut self.planted.fills).owner(dir, owner, owner);
        }
        if self.rng.one_in(8) {
            self.mark(&join(dir, ".wh..wh..opq"));
        }
    }

    fn mark(&mut self, path: &str) {
        if !self.planted.taken.contains(path) {
            self.with(path, |fills| fills.mark(path));
        }
    }

    /// A file, a whiteout, or a directory that other branches know nothing of.
    fn something(&mut self) {
        let dir = self.rng.pick(&self.planted.dirs).clone();
        let name = *self.rng.pick(&NAMES);
        let path = join(&dir, name);
        if self.rng.one_in(4) {
            self.mark(&join(&dir, &format!(".wh.{name}")));
            return;
        }
        if self.planted.taken.contains(&path) {
            return;
        }
        match self.rng.below(12) {
            0 | 1 => self.directory(&path),
            2 => self.with(&path, |fills| fills.symlink(&path, "some/where")),
            3 => self.with(&path, |fills| fills.special(&path, Kind::Fifo, 0)),
            _ => {
                let len = self.rng.below(200);
                let xattr = self.rng.one_in(4);
                self.with(&path, |fills| fills.file(&path, 0o644, len));
                if xattr {
                    self.planted.fills = std::mem::take(&mut self.planted.fills).xattr(&path, b"user.one", 7);
                }
                self.planted.files.push(path);
            }
        }
    }
}

impl Planted {
    /// Further names of its files, not yet made.
    fn links(&self, rng: &mut Rng) -> Vec<Op> {
        let mut links = Vec::new();
        let mut taken = self.taken.clone();
        for file in &self.files {
            if rng.one_in(3) {
                let (dir, name) = (rng.pick(&self.dirs).clone(), *rng.pick(&NAMES));
                let to = join(&dir, name);
                if taken.insert(to.clone()) {
                    links.push(Op::Link { from: file.as_str().into(), to: to.as_str().into() });
                }
            }
        }
        links
    }
}
