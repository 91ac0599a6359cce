//! The kernel's switch for FUSE over io_uring.
//!
//! It is off unless an administrator has switched it on, and it is system-wide: so a run that needs it says so, remembers
//! what it was in a file, and puts it back. Should a run be killed before it could, the next one finds the file.

use std::fs;
use std::path::{Path, PathBuf};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const REMEMBERED: &str = "/run/strata-bench.enable_uring";

/// Switched on until this is dropped.
#[derive(Debug)]
pub(crate) struct SwitchedOn {
    before: String,
    switch: PathBuf,
    remembered: PathBuf,
}

/// Switches the ring on. `None` if it is on already or the kernel has none.
pub(crate) fn switch_on() -> Option<SwitchedOn> {
    switch_on_at(Path::new(SWITCH), Path::new(REMEMBERED))
}

fn switch_on_at(switch: &Path, remembered: &Path) -> Option<SwitchedOn> {
    let found = fs::read_to_string(switch).ok()?;
    let before = fs::read_to_string(remembered).unwrap_or(found);
    if before.trim() == "Y" {
        return None;
    }
    if let Err(error) = fs::write(remembered, &before).and_then(|()| fs::write(switch, "Y")) {
        eprintln!("strata-bench: FUSE over io_uring stays off: {}: {error}", switch.display());
        // Nothing was switched, so there is nothing to remember.
        let _ = fs::remove_file(remembered);
        return None;
    }
    eprintln!("strata-bench: FUSE over io_uring is switched on for this run ({})", switch.display());
    Some(SwitchedOn { before, switch: switch.to_owned(), remembered: remembered.to_owned() })
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        match fs::write(&self.switch, &self.before).and_then(|()| fs::remove_file(&self.remembered)) {
            Ok(()) => eprintln!("strata-bench: FUSE over io_uring is switched off again"),
            Err(error) => eprintln!("strata-bench: FUSE over io_uring stays on: {}: {error}", self.switch.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_put_back_even_after_a_run_that_died() {
        let dir = std::env::temp_dir().join(format!("strata-bench-uring-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (switch, remembered) = (dir.join("switch"), dir.join("remembered"));
        fs::write(&switch, "N\n").unwrap();

        std::mem::forget(switch_on_at(&switch, &remembered).unwrap());
        assert_eq!(fs::read_to_string(&switch).unwrap(), "Y");
        drop(switch_on_at(&switch, &remembered).unwrap());
        assert_eq!(fs::read_to_string(&switch).unwrap(), "N\n");
        assert!(!remembered.exists());

        fs::write(&switch, "Y\n").unwrap();
        assert!(switch_on_at(&switch, &remembered).is_none());
        fs::remove_dir_all(&dir).unwrap();
    }
}
