//! The space that heads and history take.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Name of the hidden directory that holds the versions of a directory's files.
const STORE: &str = ".;versions";

/// Blocks of a tree on a file system, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Space {
    /// The files and directories that users see.
    pub(crate) heads: u64,
    /// The stores of versions, and all that is in them.
    pub(crate) history: u64,
    /// Sizes of the files in the stores, without what blocks round up.
    pub(crate) history_sizes: u64,
    /// Number of files and directories in the stores.
    pub(crate) history_inodes: u64,
}

impl Space {
    /// Measures a tree. A file with several names counts once; as a head if one of them is visible.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut seen = HashSet::new();
        let mut space = Self::default();
        let mut stores = Vec::new();
        walk(root, &mut |path, data| {
            if path.file_name().is_some_and(|name| name == STORE) {
                stores.push(path.to_owned());
                return false;
            }
            if seen.insert(data.ino()) {
                space.heads += data.blocks() * 512;
            }
            true
        })?;
        for store in stores {
            walk(&store, &mut |_, data| {
                if seen.insert(data.ino()) {
                    space.history += data.blocks() * 512;
                    space.history_sizes += if data.is_dir() { 0 } else { data.size() };
                    space.history_inodes += 1;
                }
                true
            })?;
        }
        Ok(space)
    }

    pub(crate) fn total(self) -> u64 {
        self.heads + self.history
    }
}

/// Calls `each` for the tree's files and directories, the root first. If it returns false for a
/// directory, leaves out what is in it.
fn walk(path: &Path, each: &mut impl FnMut(&Path, &fs::Metadata) -> bool) -> Result<()> {
    let data = fs::symlink_metadata(path).with_context(|| format!("stat {}", path.display()))?;
    if !each(path, &data) || !data.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(|| format!("list {}", path.display()))? {
        walk(&entry.with_context(|| format!("list {}", path.display()))?.path(), each)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_history_unless_a_head_is_the_same_file() {
        let root = std::env::temp_dir().join(format!("strata-bench-space-{}", std::process::id()));
        let store = root.join("d").join(STORE);
        fs::create_dir_all(&store).unwrap();
        fs::write(root.join("d/head"), [1; 5000]).unwrap();
        fs::hard_link(root.join("d/head"), store.join("head;f2")).unwrap();
        fs::write(store.join("head;f1"), [2; 3000]).unwrap();
        let space = Space::of(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((space.history_sizes, space.history_inodes), (3000, 2));
        assert!(space.heads >= 5000 && space.history >= 3000 && space.total() == space.heads + space.history);
    }
}
