//! The error of mounting and unmounting.

use crate::Errno;
use core::fmt;
use std::error::Error;
use std::io;

/// Error of mounting or unmounting: the failed step, the system's reason, and further details.
#[derive(Debug)]
pub struct MountError {
    step: &'static str,
    detail: Option<String>,
    source: Option<io::Error>,
}

impl MountError {
    pub(crate) fn new(step: &'static str, reason: impl Into<io::Error>) -> Self {
        Self { step, detail: None, source: Some(reason.into()) }
    }

    pub(crate) fn without_reason(step: &'static str, detail: impl Into<String>) -> Self {
        Self { step, detail: Some(detail.into()), source: None }
    }

    pub(crate) fn with_detail(mut self, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        if !detail.is_empty() {
            self.detail = Some(detail);
        }
        self
    }

    /// Returns the step that failed.
    #[must_use]
    pub const fn step(&self) -> &'static str {
        self.step
    }

    /// Returns the errno of the failed system call, if there was one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        self.source.as_ref().and_then(Errno::from_io_error)
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.step)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        Ok(())
    }
}

impl Error for MountError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|e| e as &(dyn Error + 'static))
    }
}
