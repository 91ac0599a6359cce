//! Control commands: all communication with the servers of mounts passes through the control
//! channel of the mount ([`fuse::control`]).

use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use fuse::control::{self, Error, INPUT_MAX, VERSION};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Lists the commands of the mount.
pub const COMMANDS: &str = "server.commands";
/// Returns the server's process, transport, open files and inodes.
pub const INFO: &str = "server.info";
/// Returns the number of requests of each type.
pub const STATS: &str = "server.stats";
/// Returns the layers and their operation counts.
pub const STACK: &str = "server.stack";
/// Returns or sets the log level.
pub const DEBUG: &str = "server.debug";
/// Sets when reads update access times.
pub const ACCESS_TIMES: &str = "server.access-times";
/// Writes all changes to stable storage.
pub const SYNC: &str = "server.sync";

/// Sends a command for the object at `path` and returns the reply.
///
/// # Errors
/// The path is not on a Strata mount, or the server refuses the command.
pub fn send(path: &Path, command: &str, input: &[u8]) -> Result<Vec<u8>, Failure> {
    call(path, command, input).map_err(|error| failure(path, command, error))
}

/// Sends a command without input and returns its reply, which is text.
///
/// # Errors
/// Those of [`send`]; the reply is not UTF-8.
pub fn text(path: &Path, command: &str) -> Result<String, Failure> {
    String::from_utf8(send(path, command, b"")?)
        .map_err(|_| Failure::system(format!("{}: {command}: the server's reply is not text", path.display())))
}

/// Sends a command as [`send`] does, but returns the raw error.
///
/// # Errors
/// [`Error`]; [`Error::Channel`] if the path can't be opened.
pub fn call(path: &Path, command: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    call_on(open(path, command).map_err(Error::Channel)?, command, input)
}

/// Sends a command through an open file or directory.
///
/// # Errors
/// [`Error`]
pub fn call_on(file: impl AsFd, command: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    control::call(file, command, input)
}

/// Opens a file or directory to send a command through it. Opening a device, FIFO or socket may
/// have side effects. Server commands act on the whole mount, so for such a path this function
/// opens the parent directory instead.
///
/// # Errors
/// `EINVAL` for a layer's command on such an object, and those of open(2).
pub fn open(path: &Path, command: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let kind = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode);
    let path = match path.parent().filter(|_| !matches!(kind, FileType::RegularFile | FileType::Directory)) {
        None => path,
        Some(_) if !command.starts_with("server.") => return Err(Errno::INVAL),
        Some(here) if here.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    rustix::fs::open(path, flags, Mode::empty())
}

/// Returns the message and exit status for an error.
#[must_use]
pub fn failure(path: &Path, command: &str, error: Error) -> Failure {
    let path = path.display();
    match error {
        Error::Foreign => Failure::mount(format!("{path}: {error}; findmnt lists all mounts")),
        Error::Version(version) => Failure::mount(format!(
            "{path}: the server uses version {version} of the control protocol, this program version {VERSION}; \
             use the program that mounted it, or unmount it and mount it again"
        )),
        Error::Garbled => Failure::system(format!("{path}: {command}: the server's reply can't be parsed")),
        Error::Refused(errno) => refusal(&path.to_string(), command, errno),
        Error::Channel(Errno::NOTCONN | Errno::CONNABORTED) => {
            Failure::mount(format!("{path}: the mount's server has exited; unmount it (umount -l)"))
        }
        Error::Channel(Errno::INVAL) => Failure::usage(format!(
            "{path}: neither a file nor a directory; use a file or directory, such as its parent"
        )),
        Error::Channel(Errno::TOOBIG) => {
            Failure::usage(format!("{path}: {command}: the input is too long: at most {INPUT_MAX} bytes"))
        }
        Error::Channel(errno @ (Errno::ACCESS | Errno::PERM)) => Failure::usage(format!(
            "{path}: {}; use a file or directory of the mount that you may read (without allow_other, only the mounting user \
             has access)",
            reason(errno)
        )),
        Error::Channel(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG)) => {
            Failure::usage(format!("{path}: {}; use a file or directory of the mount", reason(errno)))
        }
        Error::Channel(errno) => Failure::mount(format!("{path}: {}", reason(errno))),
    }
}

/// Returns the failure for a command that the server or a layer refused.
fn refusal(path: &str, command: &str, errno: Errno) -> Failure {
    let list = format!("strata control --list {path}");
    let why = match errno {
        Errno::NOTTY => format!("no such command on this mount; {list} lists the commands"),
        Errno::OPNOTSUPP => format!("not supported for this file or directory; {list} describes the command"),
        Errno::INVAL => format!("invalid input; {list} describes the command"),
        Errno::PERM => format!(
            "not permitted: most commands that change the mount are restricted to root and the mounting user; see {list}"
        ),
        _ => return Failure { exit: Exit::Mount, reason: format!("{path}: {command}: {}", reason(errno)) },
    };
    Failure::usage(format!("{path}: {command}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_strata_mounts_are_refused() {
        let failure = text(Path::new("/"), STATS).unwrap_err();
        assert_eq!(
            (failure.exit, failure.reason.contains("/: not on a Strata mount")),
            (Exit::Mount, true),
            "{failure}"
        );
        let failure = text(Path::new("/no/such/directory"), INFO).unwrap_err();
        assert!(failure.exit == Exit::Usage && failure.reason.contains("no such file"), "{failure}");
        // Devices are not opened; the command is sent through the parent directory.
        let failure = text(Path::new("/dev/null"), INFO).unwrap_err();
        assert!(failure.reason.contains("not on a Strata mount"), "{failure}");
        let failure = send(Path::new("/dev/null"), "lbfs.replicas", b"").unwrap_err();
        assert!(failure.reason.contains("neither a file nor a directory"), "{failure}");
    }

    #[test]
    fn every_error_names_the_path_and_a_remedy() {
        let path = Path::new("/mnt/x");
        let all = [
            (Error::Foreign, Exit::Mount, "findmnt"),
            (Error::Version(7), Exit::Mount, "version 7 of the control protocol, this program version 1"),
            (Error::Garbled, Exit::System, "can't be parsed"),
            (Error::Refused(Errno::PERM), Exit::Usage, "root and the mounting user"),
            (Error::Refused(Errno::NOTTY), Exit::Usage, "strata control --list /mnt/x"),
            (Error::Refused(Errno::OPNOTSUPP), Exit::Usage, "not supported for this file or directory"),
            (Error::Refused(Errno::NOSPC), Exit::Mount, "a.b: "),
            (Error::Channel(Errno::NOTCONN), Exit::Mount, "umount -l"),
            (Error::Channel(Errno::ACCESS), Exit::Usage, "allow_other"),
            (Error::Channel(Errno::TOOBIG), Exit::Usage, "at most 8000 bytes"),
        ];
        for (error, exit, part) in all {
            let failure = failure(path, "a.b", error);
            let matches = failure.reason.starts_with("/mnt/x: ") && failure.reason.contains(part);
            assert!(failure.exit == exit && matches, "{error:?}: {failure}");
        }
    }
}
