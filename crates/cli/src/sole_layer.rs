//! A layer that keeps state about the directory below it, such as versionfs its indexes, is mounted
//! once over a directory: two servers would overwrite each other's state.

use crate::exit::Failure;
use crate::{lower, users};
use hostfs::{HostFs, HostOptions};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
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
            let why = who_uses(layer, path, holder(host.directory()));
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

/// Claims a directory that a command reads, so that no server writes to it meanwhile, until the
/// result is dropped. A server that was just unmounted has five seconds to end.
///
/// # Errors
/// It can't be opened, or a server uses it: names its mount and process, and what to do.
pub fn hold(layer: &'static str, path: &Path) -> Result<Arc<HostFs>, Failure> {
    let wrong = |errno| Failure::system(format!("{}: {errno}", path.display()));
    let host = HostFs::open(path, HostOptions::default()).map_err(wrong)?;
    claim(layer, path, &host, Duration::from_secs(5)).map_err(|failure| Failure::system(failure.reason))?;
    Ok(host)
}

/// Says who uses the directory, and what to do.
fn who_uses(layer: &str, path: &Path, holder: Option<u32>) -> String {
    let once = format!("{layer} can be mounted over a directory only once; use that mount, or unmount it first");
    let process = holder.map(|pid| format!(", process {pid}")).unwrap_or_default();
    if let Some(pid) = holder.filter(|pid| !may_be_server(*pid)) {
        return format!(
            "process {pid} ({}), which is no server: it has locked the directory (flock(2)); end it, and let only the \
             server's user open the directory",
            name_of(pid)
        );
    }
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

/// Whether a process can be a server: it runs this program, and not as cryptctl, or it is not known
/// what it runs.
fn may_be_server(pid: u32) -> bool {
    let program = |process: &str| {
        let path = std::fs::read_link(format!("/proc/{process}/exe")).ok()?;
        let name = path.file_name()?.as_bytes();
        // After an update of the program.
        Some(name.strip_suffix(b" (deleted)").unwrap_or(name).to_vec())
    };
    program(&pid.to_string()).is_none_or(|theirs| program("self") == Some(theirs) && name_of(pid) != "cryptctl")
}

/// Returns the name of a process.
fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Whether a process has the mount namespace of this one.
fn is_in_this_namespace(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    namespace("self").is_some_and(|own| namespace(&pid.to_string()) == Some(own))
}

/// Returns the process that has the directory locked, from /proc/locks.
fn holder(directory: BorrowedFd<'_>) -> Option<u32> {
    let stat = rustix::fs::fstat(directory).ok()?;
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
    fn a_command_does_not_read_what_a_server_writes() {
        let dir = testkit::TempDir::new();
        let host = HostFs::open(&dir, HostOptions::default()).unwrap();
        claim("cryptfs", &dir, &host, WAIT).unwrap();
        let refused = hold("cryptfs", &dir).unwrap_err().to_string();
        assert!(refused.contains("in use by"), "{refused}");
        drop(host);
        let held = hold("cryptfs", &dir).unwrap();
        let host = HostFs::open(&dir, HostOptions::default()).unwrap();
        claim("cryptfs", &dir, &host, Duration::ZERO).unwrap_err();
        drop(held);
        claim("cryptfs", &dir, &host, WAIT).unwrap();
    }

    /// Every user who may open the directory can lock it.
    #[test]
    fn a_program_that_locked_the_directory_is_named() {
        let dir = testkit::TempDir::new();
        let mut command = std::process::Command::new("flock");
        let lock = command.arg(&*dir).args(["sh", "-c", "echo locked; exec cat"]);
        let lock = lock.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = lock.spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 7]).unwrap();
        let host = HostFs::open(&dir, HostOptions::default()).unwrap();
        let text = claim("cryptfs", &dir, &host, Duration::ZERO).unwrap_err().to_string();
        assert!(
            text.contains(&format!("in use by process {} (", child.id())) && text.contains("is no server"),
            "{text}"
        );
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        claim("cryptfs", &dir, &host, WAIT).unwrap();
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
