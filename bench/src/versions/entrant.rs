//! The file systems that are compared, and how each is mounted.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::contender::{Contender, DAY, Kind, Running};
use crate::scratch::ScratchFs;

/// Name of the policy file.
const CONFIG: &str = "versionfs.conf";

/// A storage policy: the format that versions have in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Storage {
    Full,
    Compress,
    Sparse,
    SparseCompress,
    Delta,
    /// Content-addressed blocks
    Blocks,
    /// Text differences
    Text,
}

impl Storage {
    pub(crate) const ALL: [Self; 7] =
        [Self::Full, Self::Compress, Self::Sparse, Self::SparseCompress, Self::Delta, Self::Blocks, Self::Text];
    /// Those of the paper's comparison of copy-on-write with copy-on-change.
    pub(crate) const COMPARED: [Self; 3] = [Self::Full, Self::Compress, Self::Sparse];

    /// Returns the value of the mount option.
    fn option(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Compress => "compress",
            Self::Sparse => "sparse",
            Self::SparseCompress => "sparse-compress",
            Self::Delta => "delta",
            Self::Blocks => "blocks",
            Self::Text => "text",
        }
    }
}

/// A contender with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "&'static str")]
pub(crate) enum Entrant {
    Native,
    /// wrapfs, which the goals refer to.
    Null,
    /// versionfs: blocks that change make a version.
    OnChange(Storage),
    /// versionfs: blocks that are written make a version, even if the bytes are the same.
    OnWrite(Storage),
}

impl From<Entrant> for &'static str {
    fn from(entrant: Entrant) -> Self {
        entrant.label()
    }
}

impl Entrant {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Native => Kind::Native,
            Self::Null => Kind::Wrapfs,
            Self::OnChange(_) | Self::OnWrite(_) => Kind::Versionfs,
        }
    }

    /// Whether it keeps versions.
    pub(crate) fn keeps_versions(self) -> bool {
        self.kind() == Kind::Versionfs
    }

    pub(crate) fn storage(self) -> Option<Storage> {
        match self {
            Self::Native | Self::Null => None,
            Self::OnChange(storage) | Self::OnWrite(storage) => Some(storage),
        }
    }

    /// Returns the name in tables and figures.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Null => "null layer",
            Self::OnChange(storage) => storage.option(),
            Self::OnWrite(Storage::Full) => "full, copy-on-write",
            Self::OnWrite(Storage::Compress) => "compress, copy-on-write",
            Self::OnWrite(Storage::Sparse) => "sparse, copy-on-write",
            Self::OnWrite(Storage::SparseCompress) => "sparse-compress, copy-on-write",
            Self::OnWrite(Storage::Delta) => "delta, copy-on-write",
            Self::OnWrite(Storage::Blocks) => "blocks, copy-on-write",
            Self::OnWrite(Storage::Text) => "text, copy-on-write",
        }
    }

    /// Returns the mount options. `config` is the policy file.
    fn options(self, config: &Path) -> String {
        let mut options = format!("cache={DAY}");
        if let Some(storage) = self.storage() {
            options += &format!(",storage={}", storage.option());
            if matches!(self, Self::OnWrite(_)) {
                options += ",copy-on=write";
            }
            options += &format!(",config={}", config.display());
        }
        options
    }

    /// Returns its mount arguments for the report.
    pub(crate) fn settings(self) -> String {
        match self {
            Self::Native => String::new(),
            _ => format!("DIR MNT -o {}", self.options(Path::new(CONFIG))),
        }
    }

    /// Creates the directory that is mounted.
    pub(crate) fn directory(scratch: &ScratchFs) -> Result<PathBuf> {
        let dir = scratch.disk().join("only");
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    /// Mounts the directory. `contender` is of its kind; `bound` limits the versions that are kept.
    /// The built-in policy does not apply: it keeps no versions of object files, for example.
    pub(crate) fn mount(self, contender: &Contender, scratch: &ScratchFs, bound: Option<&str>) -> Result<Running> {
        let dir = Self::directory(scratch)?;
        if self == Self::Native {
            return Ok(Running::unmounted(dir));
        }
        let config = scratch.log().with_file_name(CONFIG);
        let policy = format!("builtin = false\n{}\n", bound.unwrap_or_default());
        fs::write(&config, policy).with_context(|| format!("write {}", config.display()))?;
        contender.attach(scratch, |point| {
            let arguments = [dir.into(), point.into(), "-o".into(), self.options(&config).into()];
            contender.run(&arguments, &scratch.log())
        })
    }
}
