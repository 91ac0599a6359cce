//! Errors of an export or import.

use crate::error::Failed;
use core::fmt;

/// Why a branch was not exported, or an archive not imported.
#[derive(Debug)]
pub enum LayerError {
    /// Reading or writing the archive failed.
    Stream(std::io::Error),
    /// The archive is malformed or incomplete.
    Archive {
        /// The position in the archive, in bytes.
        at: u64,
        /// What is wrong.
        reason: String,
    },
    /// This path can't be exported or imported.
    Refused {
        /// The path, without a leading slash.
        path: Vec<u8>,
        /// The reason, and the remedy.
        reason: String,
    },
    /// A step failed on the branch.
    Failed(Failed),
    /// The directory to import into has entries.
    NotEmpty,
    /// What was imported before an error could not be removed.
    Remains {
        /// The error of the import.
        cause: Box<LayerError>,
        /// The error of the removal.
        failed: Failed,
    },
}

impl LayerError {
    pub(crate) fn refused(path: &[u8], reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_vec(), reason: reason.into() }
    }
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(error) => error.fmt(f),
            Self::Archive { at, reason } => write!(f, "byte {at}: {reason}"),
            Self::Refused { path, reason } => write!(f, "{}: {reason}", path.escape_ascii()),
            Self::Failed(failed) => failed.fmt(f),
            Self::NotEmpty => f.write_str("the directory is not empty"),
            Self::Remains { cause, failed } => write!(f, "{cause}; a part of the archive remains, because of {failed}"),
        }
    }
}

impl core::error::Error for LayerError {}

impl From<Failed> for LayerError {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

impl From<std::io::Error> for LayerError {
    fn from(error: std::io::Error) -> Self {
        Self::Stream(error)
    }
}
