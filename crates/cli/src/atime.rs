//! `noatime`, `relatime`, `strictatime` and `nodiratime`. The kernel updates access times on the
//! mount where the data is read, which is the lower one. The server therefore applies these options
//! to its private clones of the lower mounts.

use crate::channel::{self, ACCESS_TIMES};
use crate::exit::Failure;
use crate::host_dir::reason;
use crate::mountinfo;
use fuse::control::Error;
use hostfs::{AccessTimes, HostFs, When};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::path::Path;
use std::sync::{Arc, Weak};
use vnode::CommandAccess;

/// Returns the access-time settings that the options of a new mount request. Settings that they
/// don't mention are those of each lower mount.
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

/// Returns the access-time flags of the mount at `dir`, and whether it is read-only.
pub(crate) fn of_mount(dir: &Path) -> Option<(AccessTimes, bool)> {
    let flags = rustix::fs::statvfs(dir).ok()?.f_flag;
    Some((AccessTimes::of_mount(flags), flags.contains(StatVfsMountFlags::RDONLY)))
}

/// Notifies the server of the mount at `dir` of the flags that a remount has changed. `before` are
/// the flags before the remount. A comparison is necessary because mount(8) passes all flags of a
/// mount, not only those that the user named.
pub(crate) fn notify_server(dir: &Path, before: Option<(AccessTimes, bool)>) -> Result<(), Failure> {
    let (Some((before, was_read_only)), Some((now, read_only))) = (before, of_mount(dir)) else { return Ok(()) };
    let changed = AccessTimes {
        when: now.when.filter(|_| now.when != before.when),
        directories: now.directories.filter(|_| now.directories != before.directories),
    };
    let changed = Change { times: changed, read_only: (was_read_only != read_only).then_some(read_only) };
    // A bind mount of a subdirectory has separate flags.
    if changed == Change::default() || mountinfo::is_root(dir) == Some(false) {
        return Ok(());
    }
    match channel::call(dir, ACCESS_TIMES, changed.words().as_bytes()) {
        Ok(_) | Err(Error::Foreign) => Ok(()),
        Err(Error::Refused(errno)) => Err(Failure::mount(format!(
            "{}: remounted, but the access-time options are unchanged: {}",
            dir.display(),
            reason(errno)
        ))),
        Err(error) => Err(channel::failure(dir, ACCESS_TIMES, error)),
    }
}

/// A change of a mount's flags. Fields that are `None` are unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Change {
    times: AccessTimes,
    /// Whether the mount becomes read-only, in which case reads do not update access times.
    read_only: Option<bool>,
}

/// The words of the command's input, separated by blanks.
const WHEN: [(&str, When); 3] = [("noatime", When::Never), ("relatime", When::Relative), ("strictatime", When::Always)];
const DIRECTORIES: [(&str, bool); 2] = [("diratime", true), ("nodiratime", false)];
const READ_ONLY: [(&str, bool); 2] = [("ro", true), ("rw", false)];

impl Change {
    fn words(&self) -> String {
        fn word<T: PartialEq>(table: &[(&'static str, T)], value: Option<&T>) -> Option<&'static str> {
            table.iter().find(|(_, known)| Some(known) == value).map(|(word, _)| *word)
        }
        let when = word(&WHEN, self.times.when.as_ref());
        let words =
            [when, word(&DIRECTORIES, self.times.directories.as_ref()), word(&READ_ONLY, self.read_only.as_ref())];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Parses the words. Returns `None` for an unknown word or an empty input.
    fn read(words: &[u8]) -> Option<Self> {
        fn value<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
            table.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
        }
        let mut change = Self::default();
        for word in core::str::from_utf8(words).ok()?.split_ascii_whitespace() {
            let (when, directories) = (value(&WHEN, word), value(&DIRECTORIES, word));
            let read_only = value(&READ_ONLY, word);
            if when.is_none() && directories.is_none() && read_only.is_none() {
                return None;
            }
            change.times.when = when.or(change.times.when);
            change.times.directories = directories.or(change.times.directories);
            change.read_only = read_only.or(change.read_only);
        }
        (change != Self::default()).then_some(change)
    }
}

/// Returns the writable directories at the bottom of the stack.
pub(crate) struct WritableDirs(pub(crate) Box<dyn Fn() -> Vec<Weak<HostFs>> + Send + Sync>);

impl core::fmt::Debug for WritableDirs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries((self.0)()).finish()
    }
}

impl WritableDirs {
    /// Returns the server command that changes when reads update access times.
    pub(crate) fn command(self) -> server::Command {
        let declared = vnode::Command {
            name: ACCESS_TIMES,
            help: "Sets when reads update access times on the lower file systems. Input: noatime, relatime, strictatime, \
                   diratime, nodiratime, ro (suspend updates), rw (resume updates), separated by blanks. mount -o remount \
                   sends this command.",
            access: CommandAccess::Owner,
        };
        let run = move |given: &server::Invocation<'_>| {
            let change = Change::read(given.input).ok_or(Errno::INVAL)?;
            self.set(change).map(|()| Vec::new())
        };
        server::Command { declared, run: Arc::new(run) }
    }

    fn set(&self, change: Change) -> vnode::Result<()> {
        (self.0)().iter().filter_map(Weak::upgrade).try_for_each(|fs| {
            if let Some(Err(errno)) = change.read_only.map(|suspended| fs.suspend_access_times(suspended)) {
                tracing::debug!(%errno, "can't suspend access-time updates");
            }
            fs.set_access_times(change.times)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for when in [None, Some(When::Never), Some(When::Relative), Some(When::Always)] {
            for directories in [None, Some(true), Some(false)] {
                for read_only in [None, Some(true), Some(false)] {
                    let change = Change { times: AccessTimes { when, directories }, read_only };
                    let nothing = change == Change::default();
                    assert_eq!(Change::read(change.words().as_bytes()), (!nothing).then_some(change));
                }
            }
        }
    }

    #[test]
    fn unknown_words_are_refused() {
        for bad in [&b""[..], b" ", b"atime", b"noatime,ro", b"ro x", b"\xff"] {
            assert_eq!(Change::read(bad), None);
        }
        assert_eq!(Change::read(b" ro\nnoatime  ").unwrap().words(), "noatime ro");
    }

    #[test]
    fn options_that_are_not_given_change_nothing() {
        assert_eq!(of_options(MountFlags::RDONLY | MountFlags::NODEV), AccessTimes::default());
        let flags = MountFlags::NOATIME | MountFlags::NODIRATIME;
        assert_eq!(of_options(flags), AccessTimes { when: Some(When::Never), directories: Some(false) });
        assert_eq!(of_options(MountFlags::STRICTATIME).when, Some(When::Always));
    }
}
