//! `noatime`, `relatime`, `strictatime`, `nodiratime`: the kernel applies them where files are read, which is below the mount. So the
//! server applies them to its private clones of the mounts at the bottom.

use crate::exit::Failure;
use crate::place::reason;
use crate::stats;
use fuse::control::{self, access_times as bits};
use hostfs::{AccessTimes, HostFs, When};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::path::Path;
use std::sync::Arc;

/// What the options of a new mount ask for. What they don't mention is left to the mount on which each directory lies.
pub(crate) fn of_options(flags: MountFlags) -> AccessTimes {
    let when = if flags.contains(MountFlags::NOATIME) {
        Some(When::Never)
    } else if flags.contains(MountFlags::STRICTATIME) {
        Some(When::Always)
    } else {
        flags.contains(MountFlags::RELATIME).then_some(When::Relative)
    };
    AccessTimes { when, directories: flags.contains(MountFlags::NODIRATIME).then_some(false) }
}

/// What the flags of the mount at `dir` say, and whether it is read-only.
pub(crate) fn of_mount(dir: &Path) -> Option<(AccessTimes, bool)> {
    let flags = rustix::fs::statvfs(dir).ok()?.f_flag;
    Some((AccessTimes::of_mount(flags), flags.contains(StatVfsMountFlags::RDONLY)))
}

/// Tells the server of the mount at `dir` what a remount has changed of its flags, which were `before`. mount(8) names all flags of
/// a mount, those that nobody has asked for, too.
pub(crate) fn tell(dir: &Path, before: Option<(AccessTimes, bool)>) -> Result<(), Failure> {
    let (Some((before, was_read_only)), Some((now, read_only))) = (before, of_mount(dir)) else { return Ok(()) };
    let changed = AccessTimes {
        when: now.when.filter(|_| now.when != before.when),
        directories: now.directories.filter(|_| now.directories != before.directories),
    };
    let mode = match (was_read_only, read_only) {
        (false, true) => bits::READ_ONLY,
        (true, false) => bits::READ_WRITE,
        _ => 0,
    };
    let changed = encode(changed) | mode;
    // A directory of the mount may be mounted elsewhere: its flags are its own.
    if changed == 0 || stats::check(dir).is_err() {
        return Ok(());
    }
    rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|root| control::set_access_times(root, changed))
        .map_err(|errno| {
            let why = match errno {
                Errno::NOTTY => "its server is older than this program; mount it anew".to_owned(),
                _ => reason(errno),
            };
            Failure::mount(format!("{}: when reading moves times of access stays as it is: {why}", dir.display()))
        })
}

fn encode(times: AccessTimes) -> u32 {
    let when = match times.when {
        None => 0,
        Some(When::Never) => bits::NOATIME,
        Some(When::Relative) => bits::RELATIME,
        Some(When::Always) => bits::STRICTATIME,
    };
    let directories = match times.directories {
        None => 0,
        Some(true) => bits::DIRATIME,
        Some(false) => bits::NODIRATIME,
    };
    when | directories
}

fn decode(times: u32) -> AccessTimes {
    let has = |bit| times & bit != 0;
    let when = [(bits::NOATIME, When::Never), (bits::RELATIME, When::Relative), (bits::STRICTATIME, When::Always)];
    AccessTimes {
        when: when.into_iter().find(|(bit, _)| has(*bit)).map(|(_, when)| when),
        directories: if has(bits::NODIRATIME) { Some(false) } else { has(bits::DIRATIME).then_some(true) },
    }
}

/// The directories at the bottom that can be written.
#[derive(Debug)]
pub(crate) struct Bottoms(pub(crate) Vec<Arc<HostFs>>);

impl server::AccessTimes for Bottoms {
    fn set(&self, times: u32) -> vnode::Result<()> {
        let suspended = (times & bits::READ_ONLY != 0).then_some(true);
        let suspended = suspended.or((times & bits::READ_WRITE != 0).then_some(false));
        let times = decode(times);
        self.0.iter().try_for_each(|fs| {
            if let Some(Err(errno)) = suspended.map(|suspended| fs.suspend_access_times(suspended)) {
                tracing::debug!(%errno, "reading still moves times of access");
            }
            fs.set_access_times(times)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for when in [None, Some(When::Never), Some(When::Relative), Some(When::Always)] {
            for directories in [None, Some(true), Some(false)] {
                let times = AccessTimes { when, directories };
                assert_eq!(decode(encode(times)), times);
            }
        }
    }

    #[test]
    fn without_an_option_nothing_is_asked_for() {
        assert_eq!(of_options(MountFlags::RDONLY | MountFlags::NODEV), AccessTimes::default());
        let flags = MountFlags::NOATIME | MountFlags::NODIRATIME;
        assert_eq!(of_options(flags), AccessTimes { when: Some(When::Never), directories: Some(false) });
        assert_eq!(of_options(MountFlags::STRICTATIME).when, Some(When::Always));
    }
}
