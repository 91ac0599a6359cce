//! A layer that keeps state about the directory below it, such as versionfs its indexes, is mounted
//! once over a directory: two servers would overwrite each other's state.

use crate::exit::Failure;
use crate::{lower, users};
use hostfs::HostFs;
use std::path::Path;
use std::time::Duration;

/// Claims a directory for this server; another one has `wait` to end. The kernel releases the claim
/// when the server has ended, even if it is killed.
///
/// # Errors
/// Another server uses the directory: names its mount and process, and what to do.
pub fn claim(layer: &'static str, path: &Path, host: &HostFs, wait: Duration) -> Result<(), Failure> {
    match host.claim(wait) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let past =
                if layer == "versionfs" { ", or mount a read-only view of the past with -o at=TIME" } else { "" };
            let why = who_uses(layer, path, holder(host));
            Err(Failure::mount(format!("directory {}: in use by {why}{past}", path.display())))
        }
        Err(errno) => {
            tracing::warn!(
                %errno,
                "directory {}: its file system has no locks; mount {layer} over it only once",
                path.display()
            );
            Ok(())
        }
    }
}

/// Says who uses the directory, and what to do.
fn who_uses(layer: &str, path: &Path, holder: Option<u32>) -> String {
    let once = format!("{layer} can be mounted over a directory only once; use that mount, or unmount it first");
    let process = holder.map(|pid| format!(", process {pid}")).unwrap_or_default();
    match (lower::mount_of(path), holder) {
        (Some(point), _) => format!("the mount at {}{process}; {once}", point.display()),
        (None, Some(pid)) if is_in_this_namespace(pid) => {
            let users = users::served_by(pid).map(users::of_file_system).unwrap_or_default();
            let names: Vec<_> = users.iter().map(|user| format!("{} ({})", user.pid, user.command)).collect();
            let programs = if names.is_empty() { "programs".to_owned() } else { names.join(", ") };
            format!(
                "process {pid}, whose mount was detached (umount -l), and {programs} still use it; end these, or the server \
                 (kill {pid}, twice)"
            )
        }
        (None, _) => format!("a mount outside of this mount namespace{process}; {once}"),
    }
}

/// Whether a process has the mount namespace of this one.
fn is_in_this_namespace(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    namespace("self").is_some_and(|own| namespace(&pid.to_string()) == Some(own))
}

/// Returns the process that has the directory locked, from /proc/locks.
fn holder(host: &HostFs) -> Option<u32> {
    let stat = rustix::fs::fstat(host.directory()).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    find_holder(&locks, &format!("{major:02x}:{minor:02x}:{}", stat.st_ino))
}

/// Finds the process with a flock(2) lock on a file in the text of /proc/locks.
fn find_holder(locks: &str, file: &str) -> Option<u32> {
    let mut fields = locks.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    fields.find_map(|fields| match *fields {
        [_, "FLOCK", _, _, pid, at, ..] if at == file => pid.parse().ok().filter(|pid| *pid != 0),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostfs::HostOptions;

    const WAIT: Duration = Duration::from_secs(2);

    #[test]
    fn the_holder_is_named() {
        let locks = "1: POSIX  ADVISORY  WRITE 1 08:01:77 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 2 08:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 4711 08:01:77 0 EOF\n4: FLOCK  ADVISORY  WRITE 5 08:01:78 0 EOF\n";
        assert_eq!(find_holder(locks, "08:01:77"), Some(4711));
        assert_eq!(find_holder(locks, "08:01:79"), None);
        assert_eq!(find_holder("garbage", "08:01:77"), None);
    }

    #[test]
    fn only_one_server_gets_the_directory() {
        let dir = testkit::TempDir::new();
        let open = || HostFs::open(&dir, HostOptions::default()).unwrap();
        let (first, second) = (open(), open());
        claim("versionfs", &dir, &first, WAIT).unwrap();
        let refused = claim("versionfs", &dir, &second, WAIT).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&dir.display().to_string()) && text.contains("at=TIME"), "{text}");
        drop(first);
        claim("versionfs", &dir, &second, WAIT).unwrap();
        assert!(testkit::names(&dir).is_empty());
    }
}
