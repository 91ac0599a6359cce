//! Exit statuses, all of them, and the error that carries one.

use core::fmt;
use std::process::ExitCode;

/// How a command ends. The mount helpers use the statuses of mount(8), `strata` those that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It worked: for a mount helper, the mount can be used.
    Success = 0,
    /// A wrong command line, or one that this user may not give.
    Usage = 1,
    /// The system lacks something: a device, memory, a process.
    System = 2,
    /// A fault in the program itself.
    Internal = 4,
    /// Stopped by a signal before it was done.
    Interrupted = 8,
    /// The mount failed: a directory that can't be used, or the kernel said no.
    Mount = 32,
    /// `strata check`: wrong arguments.
    CheckUsage = 16,
    /// `strata lower`: the command was found and can't be run.
    NotExecutable = 126,
    /// `strata lower`: there is no such command.
    NotFound = 127,
}

impl Exit {
    /// Every status of a mount with its meaning, for the manual pages.
    pub const TABLE: &[(Self, &str)] = &[
        (Self::Success, "success: the file system is mounted and can be used"),
        (Self::Usage, "incorrect command line or options, or no permission"),
        (Self::System, "the system lacks something that is needed: /dev/fuse, fusermount3, memory, a process"),
        (Self::Internal, "a fault in the program"),
        (Self::Interrupted, "interrupted before the mount was done"),
        (Self::Mount, "the mount failed: a branch or the mount point can't be used, or the kernel refused"),
    ];

    /// `strata check`, as fsck(8): damage was repaired.
    pub const REPAIRED: Self = Self::Usage;
    /// `strata check`: damage is left.
    pub const DAMAGED: Self = Self::Internal;
    /// `strata check`: something could not be checked.
    pub const NOT_CHECKED: Self = Self::Interrupted;

    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status of that number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::TABLE.iter().map(|&(exit, _)| exit).find(|exit| exit.code() == code)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command failed: one line that names the path or option, the reason and the way out, and the exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit status.
    pub exit: Exit,
    /// The line, without the program's name and without an end of line.
    pub reason: String,
}

impl Failure {
    /// A wrong command line, or no permission.
    pub fn usage(reason: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, reason: reason.into() }
    }

    /// The same with another reason, made of this one.
    #[must_use]
    pub fn map(self, reason: impl FnOnce(String) -> String) -> Self {
        Self { reason: reason(self.reason), ..self }
    }

    /// Something that the system lacks.
    pub fn system(reason: impl Into<String>) -> Self {
        Self { exit: Exit::System, reason: reason.into() }
    }

    /// A mount that failed.
    pub fn mount(reason: impl Into<String>) -> Self {
        Self { exit: Exit::Mount, reason: reason.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl core::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_in_the_table_once() {
        for (exit, _) in Exit::TABLE {
            assert_eq!(Exit::from_code(exit.code()), Some(*exit));
        }
        assert_eq!(Exit::from_code(3), None);
    }
}
