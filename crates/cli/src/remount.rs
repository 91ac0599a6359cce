//! `mount -o remount,...`: the flags of a mount, and nothing else of it, can be changed.

use crate::cmdline::Cmdline;
use crate::exit::{Exit, Failure};
use crate::options::Options;
use crate::place::reason;
use rustix::io::Errno;
use rustix::mount::MountFlags;

/// Changes the flags of the mount.
///
/// # Errors
/// Names what can't be changed, or why the kernel refused.
pub fn remount(cmdline: &Cmdline, options: &Options) -> Result<(), Failure> {
    let dir = cmdline.dir.display();
    if let Some(name) = options.fixed {
        return Err(Failure::usage(format!(
            "option {name} can't be changed by a remount of {dir}: it holds for the life of a mount; unmount it and mount it again"
        )));
    }
    if cmdline.fake {
        return Ok(());
    }
    let scope = if options.bind { MountFlags::BIND } else { MountFlags::empty() };
    rustix::mount::mount_remount(&cmdline.dir, options.flags | scope, c"").map_err(|errno| {
        let (exit, why) = match errno {
            Errno::PERM | Errno::ACCESS => (Exit::Usage, "only root may remount".to_owned()),
            Errno::INVAL => (Exit::Mount, "not a mount point".to_owned()),
            Errno::BUSY => (Exit::Mount, "files on it are open for writing; close them first".to_owned()),
            _ => (Exit::Mount, reason(errno)),
        };
        Failure { exit, reason: format!("can't remount {dir}: {why}") }
    })
}
