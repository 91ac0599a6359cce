//! Options of the layer.

use std::time::{SystemTime, UNIX_EPOCH};
use vnode::Time;

/// How versions are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// As the policies say.
    #[default]
    Policy,
    /// As ordinary files.
    Full,
    /// Compressed.
    Compress,
    /// As the blocks that differ from the next newer version.
    Sparse,
    /// As the blocks that differ, compressed.
    SparseCompress,
    /// As the byte ranges that differ.
    Delta,
    /// As the lines that differ.
    Text,
    /// As content-addressed blocks of the whole volume.
    Blocks,
}

impl Storage {
    /// Returns the policy's value; `None` if the policies decide.
    pub(crate) const fn of_policy(self) -> Option<versionpolicy::Storage> {
        match self {
            Self::Policy => None,
            Self::Full => Some(versionpolicy::Storage::Full),
            Self::Compress => Some(versionpolicy::Storage::Compress),
            Self::Sparse => Some(versionpolicy::Storage::Sparse),
            Self::SparseCompress => Some(versionpolicy::Storage::SparseCompress),
            Self::Delta => Some(versionpolicy::Storage::Delta),
            Self::Text => Some(versionpolicy::Storage::Text),
            Self::Blocks => Some(versionpolicy::Storage::Blocks),
        }
    }
}

/// When an overwritten block is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyOn {
    /// If the new bytes differ from the old ones.
    #[default]
    Change,
    /// At every write.
    Write,
}

/// What happens to a change if there is no room for the version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoSpace {
    /// It fails with the errno of the layer below, such as `ENOSPC`.
    #[default]
    Fail,
    /// It is made without a version, where no older version depends on the bytes. Files can be
    /// removed and renamed then, too.
    Skip,
}

impl NoSpace {
    /// Returns the policy's value.
    pub(crate) const fn of_policy(self) -> versionpolicy::NoSpace {
        match self {
            Self::Fail => versionpolicy::NoSpace::Fail,
            Self::Skip => versionpolicy::NoSpace::Skip,
        }
    }
}

/// The settings of a mount.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How versions are stored.
    pub storage: Storage,
    /// When an overwritten block is kept.
    pub copy_on: CopyOn,
    /// What happens to a change without room for the version.
    pub no_space: NoSpace,
    /// Whether every modifying operation makes a version.
    pub comprehensive: bool,
    /// Whether every directory has a hidden directory `.versions`.
    pub versions: bool,
    /// Whether old versions take the bytes they lack from a head even if it was changed unseen.
    pub trust_heads: bool,
    /// Whether only the past is shown, while another server may change the version sets: they are
    /// read again at each use.
    pub read_only: bool,
    /// Whether a thread converts versions and applies the policies. Otherwise only commands do.
    pub background: bool,
    /// Whether every operation is recorded in the audit log.
    pub audit: bool,
    /// Size in bytes at which a segment of the audit log is followed by a new one.
    pub audit_segment: u64,
    /// Returns the current time. Tests pass one of their own.
    pub clock: fn() -> Time,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            storage: Storage::default(),
            copy_on: CopyOn::default(),
            no_space: NoSpace::default(),
            comprehensive: false,
            versions: false,
            trust_heads: false,
            read_only: false,
            background: false,
            audit: false,
            audit_segment: 4 * 1024 * 1024,
            clock: system_time,
        }
    }
}

/// Returns the time of the host's clock.
fn system_time() -> Time {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Time { sec: since.as_secs().cast_signed(), nsec: since.subsec_nanos() },
        Err(_) => Time::default(),
    }
}
