//! Successive releases of one source tree.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Setting;
use crate::process;
use crate::scratch::{self, Mounted};

/// The archives in order of release, as `sha256sum` prints them. scripts/bench.sh fetches them.
const LIST: &str = include_str!("../../data/releases.sha256");
/// Releases of a smoke test.
const QUICK: usize = 12;

/// The releases, unpacked in memory.
pub(crate) struct Releases {
    trees: Vec<PathBuf>,
    _ram: Mounted,
}

/// Returns the names of the archives that an experiment uses.
pub(crate) fn archives(quick: bool) -> Vec<&'static str> {
    let names = LIST.lines().filter_map(|line| line.split_whitespace().nth(1));
    names.take(if quick { QUICK } else { usize::MAX }).collect()
}

/// Unpacks an archive of the cache into a new directory.
pub(crate) fn unpack(cache: &Path, name: &str, to: &Path, log: &Path) -> Result<()> {
    let archive = cache.join("releases").join(name);
    ensure!(archive.is_file(), "{} is missing: scripts/bench.sh fetches it", archive.display());
    fs::create_dir(to).with_context(|| format!("create {}", to.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(to).arg("--strip-components=1");
    process::run(&mut tar, log)
}

impl Releases {
    pub(super) fn unpack(setting: &Setting<'_>) -> Result<Self> {
        setting.progress.show("unpacking the releases");
        let ram = scratch::tmpfs(&crate::isolation::base()?.join("releases"))?;
        let mut trees = Vec::new();
        for name in archives(setting.options.quick) {
            let tree = ram.at.join(name);
            unpack(&setting.options.cache, name, &tree, &ram.at.join("log"))?;
            trees.push(tree);
        }
        Ok(Self { trees, _ram: ram })
    }

    /// Copies all releases over each other into the directory `to`, as a user would.
    pub(crate) fn copy(&self, to: &Path, log: &Path) -> Result<()> {
        let script = "to=$1; shift; mkdir -p \"$to\"; for tree; do cp -R \"$tree/.\" \"$to\" || exit; done";
        process::run(Command::new("sh").args(["-c", script, "sh"]).arg(to).args(&self.trees), log)
    }

    /// Calls `each` for every release in turn.
    pub(crate) fn in_turn(&self, each: impl FnMut(&PathBuf) -> Result<()>) -> Result<()> {
        self.trees.iter().try_for_each(each)
    }

    /// Returns the contents that every file had, oldest first, without the last one. At most `kept`
    /// for each file, the newest.
    pub(crate) fn versions(&self, kept: usize) -> Result<BTreeMap<PathBuf, Vec<Vec<u8>>>> {
        let mut all: BTreeMap<PathBuf, Vec<Vec<u8>>> = BTreeMap::new();
        for tree in &self.trees {
            for file in files(tree)? {
                let bytes = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
                let contents =
                    all.entry(file.strip_prefix(tree).context("a file outside its tree")?.into()).or_default();
                if contents.last() != Some(&bytes) {
                    contents.push(bytes);
                }
            }
        }
        for contents in all.values_mut() {
            contents.pop();
            contents.drain(..contents.len().saturating_sub(kept));
        }
        all.retain(|_, contents| !contents.is_empty());
        Ok(all)
    }
}

/// Writes each version as a regular file of its own.
pub(crate) fn store(versions: &BTreeMap<PathBuf, Vec<Vec<u8>>>, to: &Path) -> Result<()> {
    for (path, contents) in versions {
        let dir = to.join(path.parent().unwrap_or(Path::new("")));
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        for (n, bytes) in contents.iter().enumerate() {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(format!(",{n}"));
            fs::write(dir.join(&name), bytes).with_context(|| format!("write {}", dir.join(name).display()))?;
        }
    }
    Ok(())
}

/// Returns the regular files of a tree, sorted.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("list {}", root.display()))? {
        let entry = entry.with_context(|| format!("list {}", root.display()))?;
        let kind = entry.file_type().with_context(|| format!("stat {}", entry.path().display()))?;
        if kind.is_dir() {
            found.extend(files(&entry.path())?);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the directories of a tree, the root first, sorted.
pub(crate) fn directories(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![root.to_owned()];
    for entry in fs::read_dir(root).with_context(|| format!("list {}", root.display()))? {
        let entry = entry.with_context(|| format!("list {}", root.display()))?;
        if entry.file_type().with_context(|| format!("stat {}", entry.path().display()))?.is_dir() {
            found.extend(directories(&entry.path())?);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_as_many_releases_as_the_paper() {
        assert_eq!((archives(false).len(), archives(true).len()), (128, QUICK));
        assert!(LIST.lines().all(|line| line.split_whitespace().next().is_some_and(|sum| sum.len() == 64)));
    }
}
