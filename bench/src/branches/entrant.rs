//! The file systems that are compared over the same branches, and how each is mounted.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::contender::{Contender, DAY, Kind, Running, mergerfs_options};
use crate::overlay;
use crate::scratch::ScratchFs;

/// By default the name is a list of the branches, which can be too long for an option.
const MERGERFS_NAME: &str = "fsname=mergerfs";

/// A contender with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Entrant {
    Native,
    Overlayfs,
    Mergerfs,
    /// All branches are writable; removing a name hides the others with a whiteout.
    Unionfs,
    /// All branches are writable; removing a name removes all of them.
    UnionfsAll,
    /// The first branch is writable, as overlayfs's is.
    UnionfsRo,
}

impl Entrant {
    pub(crate) const ALL: [Self; 6] =
        [Self::Native, Self::Overlayfs, Self::Mergerfs, Self::Unionfs, Self::UnionfsAll, Self::UnionfsRo];

    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Native => Kind::Native,
            Self::Overlayfs => Kind::Overlayfs,
            Self::Mergerfs => Kind::Mergerfs,
            Self::Unionfs | Self::UnionfsAll | Self::UnionfsRo => Kind::Unionfs,
        }
    }

    /// Returns the name in tables and figures.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Native | Self::Overlayfs | Self::Mergerfs => self.kind().name(),
            Self::Unionfs => "unionfs",
            Self::UnionfsAll => "unionfs, delete=all",
            Self::UnionfsRo => "unionfs, ro branches",
        }
    }

    /// Returns the maximum number of branches, if it is below the greatest number measured.
    pub(crate) fn most_branches(self) -> Option<usize> {
        // The branch above the lower directories is the upper one.
        (self == Self::Overlayfs).then_some(overlay::MOST_LOWER + 1)
    }

    /// Returns its mount options for the report, with the branches named B0, B1 and so on.
    pub(crate) fn settings(self) -> String {
        match self {
            Self::Native => String::new(),
            Self::Overlayfs => "lowerdir+=B1,lowerdir+=B2,...,upperdir=B0,workdir=WORK".to_owned(),
            Self::Mergerfs => format!("-o {MERGERFS_NAME},{} B0=RW:B1=RW:... MNT", mergerfs_options()),
            Self::Unionfs | Self::UnionfsAll => format!("none MNT -o {}", self.union_options("B0=rw:B1=rw:...")),
            Self::UnionfsRo => format!("none MNT -o {}", self.union_options("B0=rw:B1=ro:...")),
        }
    }

    /// Returns the union's options.
    fn union_options(self, dirs: &str) -> String {
        let delete = if self == Self::UnionfsAll { "all" } else { "whiteout" };
        format!("dirs={dirs},delete={delete},cache={DAY}")
    }

    /// Returns the union's list of branches.
    fn union_list(self, branches: &[PathBuf]) -> String {
        let mut list = String::new();
        for (n, branch) in branches.iter().enumerate() {
            let mode = if n > 0 && self == Self::UnionfsRo { "ro" } else { "rw" };
            let _ = writeln!(list, "{}={mode}", branch.display());
        }
        list
    }

    /// Creates that many empty branches; a single directory for the native file system.
    pub(crate) fn branches(self, scratch: &ScratchFs, count: usize) -> Result<Vec<PathBuf>> {
        let count = if self == Self::Native { 1 } else { count };
        let branches: Vec<_> = (0..count).map(|n| scratch.disk().join(format!("b{n:04}"))).collect();
        let others = ["work", "empty"].map(|name| scratch.disk().join(name));
        for dir in branches.iter().chain(&others) {
            fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(branches)
    }

    /// Mounts it over the branches. `contender` is of its kind.
    pub(crate) fn mount(self, contender: &Contender, scratch: &ScratchFs, branches: &[PathBuf]) -> Result<Running> {
        let (first, others) = branches.split_first().context("a union has a branch")?;
        let disk = scratch.disk();
        match self {
            Self::Native => Ok(Running::unmounted(first.clone())),
            Self::Overlayfs => contender.attach(scratch, |point| {
                let empty = [disk.join("empty")];
                overlay::mount(point, first, &disk.join("work"), if others.is_empty() { &empty } else { others })
            }),
            Self::Mergerfs => contender.attach(scratch, |point| {
                let list: Vec<String> = branches.iter().map(|branch| format!("{}=RW", branch.display())).collect();
                let options = format!("{MERGERFS_NAME},{}", mergerfs_options());
                contender.run(&["-o".into(), options.into(), list.join(":").into(), point.into()], &scratch.log())
            }),
            Self::Unionfs | Self::UnionfsAll | Self::UnionfsRo => contender.attach(scratch, |point| {
                let file = scratch.log().with_extension("list");
                fs::write(&file, self.union_list(branches)).with_context(|| format!("write {}", file.display()))?;
                let options = self.union_options(&format!("@{}", file.display()));
                contender.run(&["none".into(), point.into(), "-o".into(), options.into()], &scratch.log())
            }),
        }
    }
}
