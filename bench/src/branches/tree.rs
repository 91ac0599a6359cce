//! The tree of the micro-benchmarks, and how it is distributed over branches.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::layout::file_name;
use crate::scratch::Size;

/// Files per directory. The papers' tree, 100 copies of OpenSSH, has 31 on average.
pub(crate) const FILES: u32 = 32;

/// Which branches have a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Distribution {
    /// One each, in turn.
    Dist,
    /// All.
    Dup,
}

impl Distribution {
    pub(crate) const ALL: [Self; 2] = [Self::Dist, Self::Dup];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dist => "DIST",
            Self::Dup => "DUP",
        }
    }
}

/// Directories with [`FILES`] empty files each. All branches have all directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Tree {
    /// An even number.
    pub(crate) directories: u32,
}

impl Tree {
    /// Returns the tree for that number of branches. It is smaller for many branches, because in
    /// DUP each of them has all files.
    pub(crate) fn of(branches: usize, quick: bool) -> Self {
        let directories = match branches {
            _ if quick => 4,
            0..=16 => 64,
            17..=64 => 32,
            65..=256 => 16,
            _ => 4,
        };
        Self { directories }
    }

    /// Returns the size of a file system that can hold it on that many branches, with whiteouts and
    /// what unions set aside on each branch.
    pub(crate) fn size(self, branches: usize, distribution: Distribution) -> Size {
        let (branches, directories) = (branches as u64, u64::from(self.directories));
        let files = directories * u64::from(FILES);
        let copies = if distribution == Distribution::Dup { files * branches } else { files };
        let inodes = copies + files + branches * (2 * directories + 8) + 10_000;
        Size { bytes: (256 << 20) + inodes * 512 + branches * ((directories * 4096) + (128 << 10)), inodes }
    }

    /// Creates it.
    pub(crate) fn populate(self, branches: &[PathBuf], distribution: Distribution) -> Result<()> {
        let mut turns = (0..branches.len()).cycle();
        for directory in 0..self.directories {
            let parts: Vec<PathBuf> = branches.iter().map(|branch| branch.join(directory_name(directory))).collect();
            parts
                .iter()
                .try_for_each(|part| fs::create_dir(part).with_context(|| format!("create {}", part.display())))?;
            for file in 0..FILES {
                let turn = turns.next();
                let has = |index| distribution == Distribution::Dup || Some(index) == turn;
                for (_, part) in parts.iter().enumerate().filter(|(index, _)| has(*index)) {
                    create(&part.join(file_name(file)))?;
                }
            }
        }
        Ok(())
    }
}

fn create(path: &Path) -> Result<()> {
    fs::File::create_new(path).map(drop).with_context(|| format!("create {}", path.display()))
}

/// Returns the name of a directory.
pub(crate) fn directory_name(directory: u32) -> String {
    format!("d{directory:03}")
}

/// Moves the tree `from` to the branches, file by file in turn. A directory gets to the branches
/// that get one of its entries. All have to be on one file system.
pub(crate) fn deal(from: &Path, branches: &[PathBuf]) -> Result<()> {
    let mut turns = branches.iter().cycle();
    deal_directory(from, Path::new(""), &mut turns)?;
    fs::remove_dir_all(from).with_context(|| format!("remove {}", from.display()))
}

fn deal_directory<'a>(from: &Path, at: &Path, turns: &mut impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let dir = from.join(at);
    let what = || format!("list {}", dir.display());
    let entries = fs::read_dir(&dir).with_context(what)?.collect::<std::io::Result<Vec<_>>>().with_context(what)?;
    let mut names = Vec::new();
    for entry in entries {
        names.push((entry.file_name(), entry.file_type().with_context(what)?.is_dir()));
    }
    // The same order in every run.
    names.sort();
    for (name, is_dir) in names {
        let path = at.join(&name);
        if is_dir {
            deal_directory(from, &path, turns)?;
            continue;
        }
        let Some(branch) = turns.next() else { return Ok(()) };
        let target = branch.join(&path);
        fs::create_dir_all(branch.join(at))
            .and_then(|()| fs::rename(from.join(&path), &target))
            .with_context(|| format!("move a file to {}", target.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of its own, removed when dropped.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("strata-bench-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn branches(&self, count: usize) -> Vec<PathBuf> {
            let branches: Vec<_> = (0..count).map(|n| self.0.join(format!("b{n}"))).collect();
            branches.iter().for_each(|branch| fs::create_dir(branch).unwrap());
            branches
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn count(branch: &Path, directory: u32) -> usize {
        fs::read_dir(branch.join(directory_name(directory))).unwrap().count()
    }

    #[test]
    fn distributed_files_are_on_one_branch_and_duplicated_ones_on_all() {
        let tree = Tree { directories: 2 };
        for (distribution, expected) in [(Distribution::Dist, [11, 11, 10]), (Distribution::Dup, [32, 32, 32])] {
            let dir = Temporary::new(distribution.name());
            let branches = dir.branches(3);
            tree.populate(&branches, distribution).unwrap();
            assert_eq!([0, 1, 2].map(|n: usize| count(&branches[n], 0)), expected);
            if distribution == Distribution::Dist {
                // The turns go on in the next directory.
                assert_eq!([0, 1, 2].map(|n: usize| count(&branches[n], 1)), [11, 10, 11]);
            }
        }
    }

    #[test]
    fn a_dealt_tree_keeps_its_paths_and_times() {
        let dir = Temporary::new("deal");
        let branches = dir.branches(2);
        let from = dir.0.join("from");
        fs::create_dir_all(from.join("a/b")).unwrap();
        for file in ["a/b/1", "a/2", "3"] {
            fs::write(from.join(file), file).unwrap();
        }
        let before = fs::metadata(from.join("3")).unwrap().modified().unwrap();
        deal(&from, &branches).unwrap();
        // Sorted by name: "3", then "2" of the directory a, then the directory b.
        for (branch, file) in [(0, "3"), (1, "a/2"), (0, "a/b/1")] {
            assert_eq!(fs::read_to_string(branches[branch].join(file)).unwrap(), file);
        }
        assert_eq!(fs::metadata(branches[0].join("3")).unwrap().modified().unwrap(), before);
        assert!(!from.exists() && !branches[1].join("a/b").exists());
    }
}
