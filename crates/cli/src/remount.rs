//! `mount -o remount,...`: the flags of a mount, and nothing else of it, can be changed.

use crate::atime;
use crate::channel::{self, STACK};
use crate::cmdline::Cmdline;
use crate::exit::{Exit, Failure};
use crate::options::Options;
use crate::place::reason;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use serde_json::Value;
use std::path::Path;

/// The option of mounts that stay read-only.
const CACHED: &str = "data=cached";

/// The options that the mount was given and that hold for its life; none where it can't say.
fn given(dir: &Path) -> Vec<String> {
    let answer = channel::text(dir, STACK).unwrap_or_default();
    let stack: Value = serde_json::from_str(&answer).unwrap_or_default();
    let given = stack.get("given").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    given.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Changes the flags of the mount.
///
/// # Errors
/// Names what can't be changed, or why the kernel refused.
pub fn remount(cmdline: &Cmdline, options: &Options) -> Result<(), Failure> {
    let dir = cmdline.dir.display();
    // mount(8) adds the options of fstab: what is as it was is no change.
    let before = given(&cmdline.dir);
    if let Some((name, _)) = options.fixed.iter().find(|(_, whole)| !before.contains(whole)) {
        return Err(Failure::usage(format!(
            "option {name} can't be changed by a remount of {dir}: it holds for the life of a mount; unmount it and mount it again"
        )));
    }
    if !options.read_only() && !options.bind && before.iter().any(|option| option == CACHED) {
        return Err(Failure::usage(format!(
            "{dir}: mounted with data=cached, which is for read-only mounts: add ro, or unmount it and mount it without"
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
        Failure { exit, reason: format!("can't remount {dir}: {why}") }
    })?;
    if options.bind {
        return Ok(());
    }
    atime::tell(&cmdline.dir, before)
}
