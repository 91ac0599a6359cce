//! Ends a mount that nobody can reach any more: no process but servers is left in its mount
//! namespace.
//!
//! A mount namespace ends with its last process, and with it all its mounts. The server of a mount
//! is such a process, unless it was started in another namespace. It would keep the namespace, the
//! mount and itself: after a container without a PID namespace, or a service of systemd with
//! `PrivateMounts=`. A new mount of the same branches would be a second server that writes them.
//!
//! So the server does what the kernel would: it detaches the mount in this namespace, and only
//! there. Where it was propagated to other namespaces it stays, and files that are open can be
//! used.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::MountPropagationFlags;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the server looks.
const INTERVAL: Duration = Duration::from_secs(3);

/// Starts a thread that ends the mount at `point` once nobody can reach it. Not in the namespace of
/// the first process, which never ends.
pub(crate) fn watch(point: PathBuf) {
    let Some(own) = Namespace::own().filter(|own| !own.is_of("1") && fuse::proc_shows_callers()) else { return };
    let thread = std::thread::Builder::new().name("alone".to_owned()).stack_size(256 * 1024);
    if let Err(error) = thread.spawn(move || wait(&own, &point)) {
        tracing::warn!(%error, "no thread that notices the end of the mount namespace");
    }
}

fn wait(own: &Namespace, point: &Path) {
    let mut alone = false;
    loop {
        std::thread::sleep(INTERVAL);
        // Twice, because a process may just be starting another one.
        let before = std::mem::replace(&mut alone, !own.is_used());
        if before && alone && !own.is_held() {
            break;
        }
    }
    tracing::info!("{}: no other process is left in the mount namespace: unmounting", point.display());
    if let Err(errno) = rustix::mount::mount_change(point, MountPropagationFlags::PRIVATE) {
        tracing::debug!(%errno, "could not make the mount private");
    }
    // As an administrator would.
    if let Err(errno) = kill(Pid::this(), Signal::SIGTERM) {
        tracing::warn!(%errno, "could not end the mount");
    }
}

/// A mount namespace, as the links in /proc name it: `mnt:[4026531840]`.
struct Namespace(OsString);

impl Namespace {
    fn own() -> Option<Self> {
        fs::read_link("/proc/self/ns/mnt").ok().map(|link| Self(link.into()))
    }

    /// Whether it is that of a process. Not if that can't be found out: a process of another user.
    fn is_of(&self, pid: &str) -> bool {
        fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|link| link.as_os_str() == self.0)
    }

    /// Whether a process other than a server is in it, with any of its threads.
    fn is_used(&self) -> bool {
        processes().any(|pid| {
            let mut threads = numbers(&format!("/proc/{pid}/task"));
            threads.any(|thread| self.is_of(&format!("{pid}/task/{thread}"))) && !is_server(&pid)
        })
    }

    /// Whether it lasts without a process: it is mounted somewhere, or a process has it open.
    fn is_held(&self) -> bool {
        processes().any(|pid| {
            let contains = |text: Vec<u8>| text.windows(self.0.len()).any(|part| part == self.0.as_bytes());
            let is_open =
                |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == self.0);
            fs::read(format!("/proc/{pid}/mountinfo")).is_ok_and(contains)
                || fs::read_dir(format!("/proc/{pid}/fd"))
                    .is_ok_and(|mut files| files.any(|file| file.is_ok_and(is_open)))
        })
    }
}

fn processes() -> impl Iterator<Item = String> {
    numbers("/proc")
}

/// Returns the entries of a directory that are numbers.
fn numbers(dir: &str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.parse::<u32>().is_ok())
}

/// Whether a process is this one, or the server of another mount.
fn is_server(pid: &str) -> bool {
    let program = |pid: &str| {
        let file = statx(CWD, format!("/proc/{pid}/exe"), AtFlags::empty(), StatxFlags::INO).ok()?;
        Some((file.stx_dev_major, file.stx_dev_minor, file.stx_ino))
    };
    let is_named_so = || {
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.strip_prefix(b"@").unwrap_or(&name).starts_with(b"mount.")
    };
    pid.parse() == Ok(std::process::id())
        || (program("self").is_some() && program(pid) == program("self") && is_named_so())
}
