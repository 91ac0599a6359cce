//! Can this user mount a FUSE file system at all?

use crate::exit::Failure;
use crate::place::reason;
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use std::path::Path;

const DEVICE: &str = "/dev/fuse";
const BY_USERS: &str = "fusermount3";

/// Looks for the device and, for a user, for the program that mounts for users.
///
/// # Errors
/// Names what is missing and how to get it.
pub fn check() -> Result<(), Failure> {
    match rustix::fs::accessat(CWD, DEVICE, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS) {
        Ok(()) => {}
        Err(Errno::NOENT) => {
            return Err(Failure::system(format!(
                "{DEVICE}: no such device; load the module with `modprobe fuse`, or give it to the container (--device {DEVICE})"
            )));
        }
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
            return Err(Failure::usage(format!(
                "{DEVICE}: {}; mount as root, or let this user read and write it",
                reason(errno)
            )));
        }
        Err(errno) => return Err(Failure::system(format!("{DEVICE}: {}", reason(errno)))),
    }
    if rustix::process::geteuid().is_root() || has_program(BY_USERS) {
        return Ok(());
    }
    Err(Failure::system(format!(
        "{BY_USERS}: not found, and only root mounts without it; install it (apt-get install fuse3) or mount as root"
    )))
}

fn has_program(name: &str) -> bool {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin"].map(Path::new).map(Path::to_owned);
    std::env::split_paths(&dirs)
        .chain(usual)
        .any(|dir| rustix::fs::accessat(CWD, dir.join(name), Access::EXEC_OK, AtFlags::empty()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for() {
        assert!(has_program("sh"));
        assert!(!has_program("no-such-program-anywhere"));
    }
}
