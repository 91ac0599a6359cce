//! Errors of a comparison, commit or discard.

use crate::change::Conflict;
use core::fmt;
use unionfs::BuildError;
use vnode::Errno;

/// A step that failed for one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The path in the union, without a leading slash.
    pub path: Vec<u8>,
    /// The step, as in "can't STEP".
    pub step: &'static str,
    /// The error.
    pub errno: Errno,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, step, errno } = self;
        write!(f, "/{}: can't {step}: {errno}", path.escape_ascii())
    }
}

/// Why nothing was done, or why the work ended early.
#[derive(Clone, Debug)]
pub enum Error {
    /// The branches can't be used as a union.
    Branches(BuildError),
    /// A step failed.
    Failed(Failed),
    /// These paths have changed below since the upper branch got its version. Nothing was done.
    Conflicts(Vec<Conflict>),
    /// `part` can't be selected without `whole`. Nothing was done.
    Whole {
        /// The selected path.
        part: Vec<u8>,
        /// The path to select instead.
        whole: Vec<u8>,
        /// Why.
        reason: &'static str,
    },
    /// This path depends on branches below the target, which are unknown. Nothing was done.
    NeedsBelow {
        /// The path.
        path: Vec<u8>,
        /// What depends on them.
        reason: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Branches(error) => error.fmt(f),
            Self::Failed(failed) => failed.fmt(f),
            Self::Conflicts(conflicts) => {
                write!(f, "{} paths have changed below", conflicts.len())
            }
            Self::Whole { part, whole, reason } => {
                write!(
                    f,
                    "/{}: can't be selected alone, because /{} {reason}; select /{}",
                    part.escape_ascii(),
                    whole.escape_ascii(),
                    whole.escape_ascii()
                )
            }
            Self::NeedsBelow { path, reason } => write!(f, "/{}: {reason}", path.escape_ascii()),
        }
    }
}

impl core::error::Error for Error {}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Self::Branches(error)
    }
}

/// Adds the step and the path to an errno.
pub(crate) trait At<T> {
    fn at(self, step: &'static str, path: &[u8]) -> Result<T, Failed>;
}

impl<T> At<T> for vnode::Result<T> {
    fn at(self, step: &'static str, path: &[u8]) -> Result<T, Failed> {
        self.map_err(|errno| Failed { path: path.to_vec(), step, errno })
    }
}

/// Returns nothing if this user may not read something.
pub(crate) fn if_readable<T>(result: Result<T, Failed>) -> Result<Option<T>, Failed> {
    match result {
        Err(Failed { errno: Errno::ACCESS, .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// A step that failed, before its path is known.
pub(crate) struct StepFailed(pub(crate) &'static str, pub(crate) Errno);

impl StepFailed {
    pub(crate) fn at(self, path: &[u8]) -> Failed {
        Failed { path: path.to_vec(), step: self.0, errno: self.1 }
    }
}

/// Names the step of an errno.
pub(crate) trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, StepFailed>;
}

impl<T> Step<T> for vnode::Result<T> {
    fn step(self, step: &'static str) -> Result<T, StepFailed> {
        self.map_err(|errno| StepFailed(step, errno))
    }
}
