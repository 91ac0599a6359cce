//! Checks that this user can mount FUSE file systems.

use crate::exit::Failure;
use crate::host_dir::reason;
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use std::path::Path;

const DEVICE: &str = "/dev/fuse";
const FUSERMOUNT: &str = "fusermount3";

/// Checks access to the device and, for users other than root, the presence of fusermount3.
///
/// # Errors
/// Names the missing device or program and the remedy.
pub fn check() -> Result<(), Failure> {
    check_access()?;
    if rustix::process::geteuid().is_root() || has_program(FUSERMOUNT) {
        return Ok(());
    }
    Err(Failure::system(format!(
        "{FUSERMOUNT}: not found, but required for users other than root; install it (apt-get install fuse3) or mount as root"
    )))
}

/// Checks access to the device.
///
/// # Errors
/// Names the device and the remedy.
pub fn check_access() -> Result<(), Failure> {
    match rustix::fs::accessat(CWD, DEVICE, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => Err(Failure::system(format!(
            "{DEVICE}: no such device; load the module with `modprobe fuse`, or pass it to the container (--device {DEVICE})"
        ))),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => Err(Failure::usage(format!(
            "{DEVICE}: {}; mount as root, or permit this user to read and write it",
            reason(errno)
        ))),
        Err(errno) => Err(Failure::system(format!("{DEVICE}: {}", reason(errno)))),
    }
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
    fn programs_are_found_in_path() {
        assert!(has_program("sh"));
        assert!(!has_program("no-such-program-anywhere"));
    }
}
