//! The kernel parameter that enables FUSE over io_uring.
//!
//! It is off by default and system-wide. A run that needs it enables it with a message, saves the
//! previous value to a file and restores it. After a killed run, the next run finds the file.

use std::fs;
use std::path::{Path, PathBuf};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const SAVED_VALUE: &str = "/run/strata-bench.enable_uring";

/// Enables the parameter until dropped.
#[derive(Debug)]
pub(crate) struct EnabledRing {
    before: String,
    switch: PathBuf,
    saved: PathBuf,
}

/// Enables the ring. Returns `None` if it is already enabled or the kernel does not support it.
pub(crate) fn enable() -> Option<EnabledRing> {
    enable_at(Path::new(PARAMETER), Path::new(SAVED_VALUE))
}

fn enable_at(switch: &Path, saved: &Path) -> Option<EnabledRing> {
    let found = fs::read_to_string(switch).ok()?;
    let before = fs::read_to_string(saved).unwrap_or(found);
    if before.trim() == "Y" {
        return None;
    }
    if let Err(error) = fs::write(saved, &before).and_then(|()| fs::write(switch, "Y")) {
        eprintln!("strata-bench: {}: can't enable FUSE over io_uring: {error}", switch.display());
        // Nothing was changed, so there is nothing to restore.
        let _ = fs::remove_file(saved);
        return None;
    }
    eprintln!("strata-bench: {}: FUSE over io_uring enabled for this run", switch.display());
    Some(EnabledRing { before, switch: switch.to_owned(), saved: saved.to_owned() })
}

impl Drop for EnabledRing {
    fn drop(&mut self) {
        match fs::write(&self.switch, &self.before).and_then(|()| fs::remove_file(&self.saved)) {
            Ok(()) => eprintln!("strata-bench: FUSE over io_uring disabled again"),
            Err(error) => {
                eprintln!("strata-bench: {}: can't disable FUSE over io_uring: {error}", self.switch.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_is_restored_even_after_a_killed_run() {
        let dir = std::env::temp_dir().join(format!("strata-bench-uring-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (switch, saved) = (dir.join("switch"), dir.join("saved"));
        fs::write(&switch, "N\n").unwrap();

        std::mem::forget(enable_at(&switch, &saved).unwrap());
        assert_eq!(fs::read_to_string(&switch).unwrap(), "Y");
        drop(enable_at(&switch, &saved).unwrap());
        assert_eq!(fs::read_to_string(&switch).unwrap(), "N\n");
        assert!(!saved.exists());

        fs::write(&switch, "Y\n").unwrap();
        assert!(enable_at(&switch, &saved).is_none());
        fs::remove_dir_all(&dir).unwrap();
    }
}
