//! Readahead beyond the limit of INIT.
//!
//! In its reply to INIT a server can only lower the kernel's offer of 128 KiB
//! (`VM_READAHEAD_PAGES`). Root can write `read_ahead_kb` of the mount's backing device instead, as
//! for disks. The kernel reads that value when a file is opened, so it is set before the mount
//! becomes reachable.

use crate::Session;
use crate::mount::{self, Prepared};
use std::fs;

impl Session {
    /// Raises the mount's readahead beyond the agreed value if the options ask for it. A failure
    /// only logs a warning.
    pub(crate) fn raise_readahead(&self, prepared: &Prepared) {
        let Some(wanted) = self.options.readahead else { return };
        let agreed = self.agreed().map_or(0, |agreed| agreed.max_readahead);
        if wanted <= agreed {
            return;
        }
        match mount::root_of(prepared, self.mountpoint()) {
            Ok(root) => raise((root.stx_dev_major, root.stx_dev_minor), wanted, agreed),
            Err(error) => warn(wanted, agreed, &error.to_string()),
        }
    }

    /// Warns if the options ask for more readahead than an unprivileged mount can have.
    pub(crate) fn warn_about_readahead(&self) {
        let agreed = self.agreed().map_or(0, |agreed| agreed.max_readahead);
        if let Some(wanted) = self.options.readahead.filter(|&wanted| wanted > agreed) {
            warn(wanted, agreed, "only root can raise it");
        }
    }
}

fn raise((major, minor): (u32, u32), wanted: u32, agreed: u32) {
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    // Without O_CREAT: no file is created if sysfs is not mounted.
    let written = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, (wanted / 1024).to_string().as_bytes()));
    if let Err(error) = written {
        warn(wanted, agreed, &format!("{path}: {error}"));
    }
}

fn warn(wanted: u32, agreed: u32, reason: &str) {
    tracing::warn!("cannot raise readahead from {agreed} to {wanted} bytes: {reason}");
}
