//! `mount -o remount,...`: changes the flags of a mount. Other options can't be changed.

use crate::atime;
use crate::channel::{self, STACK};
use crate::cmdline::Cmdline;
use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use crate::options::Options;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use serde_json::Value;
use std::path::Path;

/// The option of mounts that can't become writable.
const CACHED: &str = "data=cached";

/// Returns the options of the mount that a remount can't change; none if the server does not reply.
fn given(dir: &Path) -> Vec<String> {
    let reply = channel::text(dir, STACK).unwrap_or_default();
    let stack: Value = serde_json::from_str(&reply).unwrap_or_default();
    let given = stack.get("given").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    given.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Changes the flags of the mount.
///
/// # Errors
/// Names the option that can't be changed, or the kernel's reason.
pub fn remount(cmdline: &Cmdline, options: &Options) -> Result<(), Failure> {
    let dir = cmdline.dir.display();
    // mount(8) adds the options of fstab; those that the mount already has are not a change.
    let before = given(&cmdline.dir);
    if let Some((name, _)) = options.fixed.iter().find(|(_, whole)| !before.contains(whole)) {
        return Err(Failure::usage(format!(
            "{dir}: option {name}: can't be changed by a remount; unmount it and mount it again"
        )));
    }
    if !options.read_only() && !options.bind && before.iter().any(|option| option == CACHED) {
        return Err(Failure::usage(format!(
            "{dir}: can't remount: data=cached is only for read-only mounts; add ro, or unmount it and mount it without data=cached"
        )));
    }
    if cmdline.fake {
        return Ok(());
    }
    let scope = if options.bind { MountFlags::BIND } else { MountFlags::empty() };
    let before = atime::of_mount(&cmdline.dir);
    rustix::mount::mount_remount(&cmdline.dir, options.flags | scope, c"").map_err(|errno| {
        let (exit, why) = match errno {
            Errno::PERM | Errno::ACCESS => (Exit::Usage, "only root may remount".to_owned()),
            Errno::INVAL => (Exit::Mount, "not a mount point".to_owned()),
            Errno::BUSY => (Exit::Mount, "files on it are open for writing; close them first".to_owned()),
            _ => (Exit::Mount, reason(errno)),
        };
        Failure { exit, reason: format!("{dir}: can't remount: {why}") }
    })?;
    if options.bind {
        return Ok(());
    }
    atime::notify_server(&cmdline.dir, before)
}
