//! Set-up of the server process: detaching from the caller, resource limits and kernel settings.

use crate::exit::Failure;
use crate::host_dir::reason;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::LinkNameSpaceType;
use std::ffi::CString;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// Enters a mount namespace, given as a namespace file or as the ID of a process in it. The kernel
/// permits this only to a single-threaded process.
///
/// # Errors
/// Names the file and the reason.
pub fn enter_namespace(namespace: &Path) -> Result<(), Failure> {
    let number = namespace.to_str().filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
    let path = number.map_or_else(|| namespace.to_owned(), |pid| PathBuf::from(format!("/proc/{pid}/ns/mnt")));
    let refuse =
        |errno| Failure::usage(format!("mount namespace {}: can't enter it: {}", path.display(), reason(errno)));
    let fd = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(refuse)?;
    rustix::thread::move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(refuse)
}

/// Closes inherited descriptors above 2, which would pin files for the life of the mount. To be
/// called before this process opens its own.
pub fn close_inherited() {
    close_all_but(-1);
}

/// As [`close_inherited`], except for one descriptor.
pub fn close_inherited_except(kept: &impl std::os::fd::AsFd) {
    close_all_but(std::os::fd::AsRawFd::as_raw_fd(&kept.as_fd()));
}

fn close_all_but(kept: i32) {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&fd| fd > 2 && fd != kept)
        .collect();
    for fd in numbers {
        // The list includes the descriptor of the directory stream, which is closed already.
        let _ = nix::unistd::close(fd);
    }
}

/// Requests SIGTERM if the parent dies before [`outlive_parent`].
///
/// # Errors
/// The parent-death signal can't be set.
pub fn follow_parent() -> Result<(), Failure> {
    let refuse = |errno| Failure::system(format!("can't run in the background: {}", reason(errno)));
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(refuse)
}

/// Starts a new session and clears the parent-death signal, so that the server outlives its parent.
///
/// Only once the file system is mounted and the mount point needs no lookup any more: below autofs,
/// such a lookup waits for the automounter, except in its process group.
pub fn outlive_parent() {
    // Fails only for a process group leader. The spawned server is not one, unless a user runs it
    // by hand.
    let _ = rustix::process::setsid();
    let _ = rustix::process::set_parent_process_death_signal(None);
}

/// Configures the process to serve a file system. Settings that need privileges are skipped without
/// them.
pub fn configure(program: &str) {
    // Without this, ps(1) would show "exe", since the server is started through /proc/self/exe.
    if let Ok(name) = CString::new(program) {
        let _ = rustix::thread::set_name(&name);
    }
    // Each request carries its caller's umask.
    rustix::process::umask(Mode::empty());
    // A working directory pins its file system.
    let _ = std::env::set_current_dir("/");
    raise_descriptor_limit();
    if rustix::process::geteuid().is_root() {
        lower_oom_score();
        // The kernel must not write dirty pages of this mount to find memory for its server.
        let _ = rustix::process::configure_io_flusher_behavior(true);
    }
}

/// Requested descriptor limit: the kernel's default for `fs.nr_open`.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// Initial size of the descriptor table. In a process with threads, each enlargement of the table
/// delays an open by some milliseconds.
const PREALLOCATED: u64 = 8192;

/// Raises the descriptor limit, since each file that a caller has open occupies a descriptor of the
/// server. Only a privileged process can raise it beyond the hard limit.
fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    let system = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    let most = MAX_DESCRIPTORS.min(system.unwrap_or(MAX_DESCRIPTORS));
    let raise = |limit: u64| {
        let wanted = Rlimit { current: Some(limit), maximum: maximum.map(|maximum| maximum.max(limit)) };
        rustix::process::setrlimit(Resource::Nofile, wanted).is_ok()
    };
    let hard = maximum.unwrap_or(most).min(most);
    let raised = maximum.is_some_and(|maximum| maximum < most) && raise(most);
    if !raised && current.is_some_and(|current| current < hard) {
        let _ = raise(hard);
    }
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(most);
    let last = i32::try_from(PREALLOCATED.min(limit).saturating_sub(1)).unwrap_or(0);
    // The kernel never shrinks the table, so one high descriptor allocates it in full.
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last));
}

/// Makes the server a late choice of the OOM killer: killing it frees little memory and breaks a
/// mount. It remains killable, so that the machine can recover.
fn lower_oom_score() {
    const ADJUST: &str = "/proc/self/oom_score_adj";
    const SCORE: i32 = -900;
    let now = std::fs::read_to_string(ADJUST).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if now.is_some_and(|now| now > SCORE) {
        let _ = std::fs::write(ADJUST, SCORE.to_string());
    }
}

/// Whether this process can change the owner of a file to another user: root can, and so can root
/// of a user namespace that maps more than one user and group.
#[must_use]
pub fn may_chown() -> bool {
    let capable = rustix::thread::capabilities(None).map_or_else(
        |_| rustix::process::geteuid().is_root(),
        |sets| sets.effective.contains(rustix::thread::CapabilitySet::CHOWN),
    );
    capable
        && ["/proc/self/uid_map", "/proc/self/gid_map"].iter().all(|map| {
            // Without /proc, assume that several IDs are mapped.
            std::fs::read_to_string(map).map_or(true, |map| mapped_ids(&map) > 1)
        })
}

/// Number of IDs in a uid_map or gid_map (user_namespaces(7)).
fn mapped_ids(map: &str) -> u64 {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_user_namespace_are_counted() {
        assert_eq!(mapped_ids("         0          0 4294967295\n"), 4_294_967_295);
        assert_eq!(mapped_ids("         0       1000          1\n"), 1);
        assert_eq!(mapped_ids("         0       1000          1\n         1     100000      65536\n"), 65_537);
        assert_eq!(mapped_ids(""), 0);
    }
}
