//! All exit statuses, and the error type that carries one.

use core::fmt;
use std::process::ExitCode;

/// Exit status of a command. The mount helpers use the statuses of mount(8); `strata` uses those
/// that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success. For a mount helper: the mount is usable.
    Success = 0,
    /// Invalid command line, or no permission.
    Usage = 1,
    /// System error: a device, memory or process is not available.
    System = 2,
    /// `strata commit`, `snapmerge`: files have changed below. Nothing was done.
    Conflict = 3,
    /// A bug in the program.
    Internal = 4,
    /// `strata commit`, `snapmerge`: some changes failed and remain.
    Partial = 5,
    /// Interrupted by a signal before it was done.
    Interrupted = 8,
    /// The mount failed: a directory is unusable, or the kernel refused.
    Mount = 32,
    /// `strata check`: wrong arguments.
    CheckUsage = 16,
    /// `strata run`: the sandbox failed, or what it wrote could not be committed.
    SandboxFailed = 125,
    /// `strata lower` and `strata run`: the command exists but can't be executed.
    NotExecutable = 126,
    /// `strata lower` and `strata run`: the command does not exist.
    NotFound = 127,
}

impl Exit {
    /// The statuses of the mount helpers with their meanings, for the manual pages.
    pub const TABLE: &[(Self, &str)] = &[
        (Self::Success, "success: the file system is mounted and usable"),
        (Self::Usage, "invalid command line or options, or no permission"),
        (Self::System, "system error: /dev/fuse, fusermount3, memory or a process is not available"),
        (Self::Internal, "a bug in the program"),
        (Self::Interrupted, "interrupted before the file system was mounted"),
        (Self::Mount, "the mount failed: a branch or the mount point is unusable, or the kernel refused"),
    ];

    /// `strata diff`: there are differences. The values are those of diff(1).
    pub const DIFFERENT: Self = Self::Usage;
    /// `strata diff`: any failure.
    pub const TROUBLE: Self = Self::System;
    /// `strata check`: damage was repaired. The values are those of fsck(8).
    pub const REPAIRED: Self = Self::Usage;
    /// `strata check`: some damage could not be repaired.
    pub const DAMAGED: Self = Self::Internal;
    /// `strata check`: some files could not be checked.
    pub const NOT_CHECKED: Self = Self::Interrupted;

    /// Returns the numeric status.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the mount helper's status with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::TABLE.iter().map(|&(exit, _)| exit).find(|exit| exit.code() == code)
    }
}

/// Exit status of `fsck.unionfs`, as fsck(8) defines it: the sum of the conditions that hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsckExit(u8);

impl FsckExit {
    /// No errors.
    pub const CLEAN: Self = Self(0);
    /// Errors were corrected.
    pub const CORRECTED: Self = Self(1);
    /// Errors are left.
    pub const UNCORRECTED: Self = Self(4);
    /// The check failed, or some objects could not be checked.
    pub const OPERATION: Self = Self(8);
    /// Wrong arguments.
    pub const USAGE: Self = Self(16);
    /// The administrator cancelled the check.
    pub const CANCELLED: Self = Self(32);

    /// Returns the status for the conditions of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the numeric status.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

impl From<FsckExit> for ExitCode {
    fn from(exit: FsckExit) -> Self {
        Self::from(exit.code())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// A failed command: an exit status, and one line that names the path or option, the reason and the
/// remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit status.
    pub exit: Exit,
    /// The line, without the program's name and without a newline.
    pub reason: String,
}

impl Failure {
    /// Returns a failure with status [`Exit::Usage`].
    pub fn usage(reason: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, reason: reason.into() }
    }

    /// Returns this failure with its reason transformed.
    #[must_use]
    pub fn map(self, reason: impl FnOnce(String) -> String) -> Self {
        Self { reason: reason(self.reason), ..self }
    }

    /// Returns a failure with status [`Exit::System`].
    pub fn system(reason: impl Into<String>) -> Self {
        Self { exit: Exit::System, reason: reason.into() }
    }

    /// Returns a failure with status [`Exit::Mount`].
    pub fn mount(reason: impl Into<String>) -> Self {
        Self { exit: Exit::Mount, reason: reason.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_numbers(&self.reason))
    }
}

impl core::error::Error for Failure {}

/// Removes the numbers of errors, ` (os error 5)`, that the standard library and rustix append to
/// their names: they tell users nothing.
#[must_use]
pub fn without_numbers(text: &str) -> String {
    const BEFORE: &str = " (os error ";
    let mut parts = text.split(BEFORE);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) if rest.len() + 1 < part.len() => out += rest,
            _ => out = out + BEFORE + part,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_no_numbers_of_errors() {
        let failure = Failure::system("/a: Input/output error (os error 5); /b: File exists (os error 17)");
        assert_eq!(failure.to_string(), "/a: Input/output error; /b: File exists");
        for other in ["", "text", "a (os error )", "a (os error 5", "a (os error five)"] {
            assert_eq!(without_numbers(other), other);
        }
    }

    #[test]
    fn every_status_is_in_the_table_once() {
        for (exit, _) in Exit::TABLE {
            assert_eq!(Exit::from_code(exit.code()), Some(*exit));
        }
        assert_eq!(Exit::from_code(3), None);
    }
}
