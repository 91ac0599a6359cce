//! The source tree that is unpacked: successive releases, each in a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cli::Options;
use crate::process;
use crate::scratch::{self, Mounted};
use crate::versions::releases;

/// Number of releases: about 15,000 files of 110 MB.
const RELEASES: usize = 40;
/// Number for a smoke test.
const QUICK: usize = 2;

/// An uncompressed archive in memory.
pub(super) struct Archive {
    pub(super) path: PathBuf,
    /// The sums of all files, as md5sum reads them.
    pub(super) sums: PathBuf,
    pub(super) amounts: Amounts,
    _ram: Mounted,
}

/// What is in the tree.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Amounts {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl Archive {
    /// Unpacks the releases from the cache, and packs them into one archive.
    pub(super) fn build(options: &Options) -> Result<Self> {
        let ram = scratch::tmpfs(&crate::isolation::base()?.join("archive"))?;
        let (tree, path, sums, log) =
            (ram.at.join("tree"), ram.at.join("tree.tar"), ram.at.join("sums"), ram.at.join("log"));
        fs::create_dir(&tree).with_context(|| format!("create {}", tree.display()))?;
        let count = if options.quick { QUICK } else { RELEASES };
        for name in releases::archives(options.quick).into_iter().take(count) {
            releases::unpack(&options.cache, name, &tree.join(name), &log)?;
        }
        let script = "find . -type f -exec md5sum {} + >\"$1\" && tar -cf \"$2\" .";
        let mut pack = Command::new("sh");
        process::run(pack.args(["-c", script, "sh"]).arg(&sums).arg(&path).current_dir(&tree), &log)?;
        let amounts = Amounts::of(&tree)?;
        fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
        Ok(Self { path, sums, amounts, _ram: ram })
    }
}

impl Amounts {
    fn of(tree: &Path) -> Result<Self> {
        let mut amounts = Self { files: 0, bytes: 0 };
        for file in releases::files(tree)? {
            let size = fs::metadata(&file).with_context(|| format!("stat {}", file.display()))?.len();
            amounts = Self { files: amounts.files + 1, bytes: amounts.bytes + size };
        }
        Ok(amounts)
    }
}
