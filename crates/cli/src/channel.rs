//! Commands to the servers of mounts: all that this program asks of a server, it asks here, through
//! the control channel of the mount ([`fuse::control`]).

use crate::exit::{Exit, Failure};
use crate::place::reason;
use fuse::control::{self, Error, INPUT_MAX, VERSION};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// All commands of a mount.
pub const COMMANDS: &str = "server.commands";
/// Which server it is, and what it holds.
pub const INFO: &str = "server.info";
/// How many requests of each kind it was sent.
pub const STATS: &str = "server.stats";
/// Of which layers it is made, and what they did.
pub const STACK: &str = "server.stack";
/// The level of its log.
pub const DEBUG: &str = "server.debug";
/// When reading moves times of access.
pub const ACCESS_TIMES: &str = "server.access-times";
/// That everything becomes durable.
pub const SYNC: &str = "server.sync";

/// Gives a command on the object at `path`.
///
/// # Errors
/// Where there is no mount of Strata, and what the server refuses.
pub fn ask(path: &Path, command: &str, input: &[u8]) -> Result<Vec<u8>, Failure> {
    call(path, command, input).map_err(|error| failure(path, command, error))
}

/// The same for a command without input that answers text.
///
/// # Errors
/// The same.
pub fn text(path: &Path, command: &str) -> Result<String, Failure> {
    String::from_utf8(ask(path, command, b"")?)
        .map_err(|_| Failure::system(format!("{}: {command}: the server's answer is not text", path.display())))
}

/// The same; the error is left to the caller to explain.
///
/// # Errors
/// [`Error`]; a path that can't be opened is an [`Error::Channel`].
pub fn call(path: &Path, command: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    call_on(open(path, command).map_err(Error::Channel)?, command, input)
}

/// The same on what is open.
///
/// # Errors
/// [`Error`]
pub fn call_on(file: impl AsFd, command: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    control::call(file, command, input)
}

/// Opens a file or directory to give a command on it. A command of the server means the same everywhere on the mount: where
/// the path leads to something else, which could not be opened without effect, it is given on the directory that this lies in.
///
/// # Errors
/// `EINVAL` for a command of a layer on such an object, and those of open(2).
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

/// What went wrong, and the way out.
#[must_use]
pub fn failure(path: &Path, command: &str, error: Error) -> Failure {
    let path = path.display();
    match error {
        Error::Foreign => Failure::mount(format!("{path}: not on a mount of Strata; findmnt lists all mounts")),
        Error::Version(version) => Failure::mount(format!(
            "{path}: its server speaks version {version} of the control protocol, this program version {VERSION}; \
             use the program that mounted it, or unmount it and mount it again"
        )),
        Error::Garbled => Failure::system(format!("{path}: {command}: the server's answer can't be read")),
        Error::Refused(errno) => refusal(&format!("{path}: {command}"), errno),
        Error::Channel(Errno::NOTCONN | Errno::CONNABORTED) => {
            Failure::mount(format!("{path}: the mount's server has ended; unmount it (umount -l)"))
        }
        Error::Channel(Errno::INVAL) => Failure::usage(format!(
            "{path}: neither a file nor a directory; name one of those, or the directory that it lies in"
        )),
        Error::Channel(Errno::TOOBIG) => {
            Failure::usage(format!("{path}: {command}: the input is too long: at most {INPUT_MAX} bytes"))
        }
        Error::Channel(errno @ (Errno::ACCESS | Errno::PERM)) => Failure::usage(format!(
            "{path}: {}; name a file or directory of the mount that you may read (without allow_other, only the user who \
             mounted may use a mount)",
            reason(errno)
        )),
        Error::Channel(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG)) => {
            Failure::usage(format!("{path}: {}; name a file or directory of the mount", reason(errno)))
        }
        Error::Channel(errno) => Failure::mount(format!("{path}: {}", reason(errno))),
    }
}

/// The server or a layer has refused the command.
fn refusal(what: &str, errno: Errno) -> Failure {
    let why = match errno {
        Errno::NOTTY => "there is no such command here; strata control --list lists them".to_owned(),
        Errno::OPNOTSUPP => "not for this file or directory; strata control --list says what it is for".to_owned(),
        Errno::INVAL => "the input is not understood; strata control --list says what it takes".to_owned(),
        Errno::PERM => "not permitted: most commands that change something are for root and the user who mounted; \
                        strata control --list says who may"
            .to_owned(),
        _ => return Failure { exit: Exit::Mount, reason: format!("{what}: {}", reason(errno)) },
    };
    Failure::usage(format!("{what}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_file_systems_are_told_apart() {
        let failure = text(Path::new("/"), STATS).unwrap_err();
        assert_eq!(
            (failure.exit, failure.reason.contains("/: not on a mount of Strata")),
            (Exit::Mount, true),
            "{failure}"
        );
        let failure = text(Path::new("/no/such/directory"), INFO).unwrap_err();
        assert!(failure.exit == Exit::Usage && failure.reason.contains("no such file"), "{failure}");
        // Not opened: that could do something. Its directory is asked, if anything.
        let failure = text(Path::new("/dev/null"), INFO).unwrap_err();
        assert!(failure.reason.contains("not on a mount of Strata"), "{failure}");
        let failure = ask(Path::new("/dev/null"), "lbfs.replicas", b"").unwrap_err();
        assert!(failure.reason.contains("neither a file nor a directory"), "{failure}");
    }

    #[test]
    fn every_error_names_the_path_and_a_way_out() {
        let path = Path::new("/mnt/x");
        let all = [
            (Error::Foreign, Exit::Mount, "findmnt"),
            (Error::Version(7), Exit::Mount, "version 7 of the control protocol, this program version 1"),
            (Error::Garbled, Exit::System, "can't be read"),
            (Error::Refused(Errno::PERM), Exit::Usage, "root and the user who mounted"),
            (Error::Refused(Errno::NOTTY), Exit::Usage, "strata control --list"),
            (Error::Refused(Errno::OPNOTSUPP), Exit::Usage, "not for this file or directory"),
            (Error::Refused(Errno::NOSPC), Exit::Mount, "a.b: "),
            (Error::Channel(Errno::NOTCONN), Exit::Mount, "umount -l"),
            (Error::Channel(Errno::ACCESS), Exit::Usage, "allow_other"),
            (Error::Channel(Errno::TOOBIG), Exit::Usage, "at most 8000 bytes"),
        ];
        for (error, exit, part) in all {
            let failure = failure(path, "a.b", error);
            let said = failure.reason.starts_with("/mnt/x: ") && failure.reason.contains(part);
            assert!(failure.exit == exit && said, "{error:?}: {failure}");
        }
    }
}
