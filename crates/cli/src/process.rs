//! The process that serves: what it lets go of, and what it asks of the kernel for itself.

use crate::exit::Failure;
use crate::place::reason;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::LinkNameSpaceType;
use std::ffi::CString;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// Enters a mount namespace, given as a file that stands for it or as the number of a process in it. Only a
/// process with one thread can.
///
/// # Errors
/// Names the file and the reason.
pub fn enter_namespace(namespace: &Path) -> Result<(), Failure> {
    let number = namespace.to_str().filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
    let path = number.map_or_else(|| namespace.to_owned(), |pid| PathBuf::from(format!("/proc/{pid}/ns/mnt")));
    let refuse = |errno| Failure::usage(format!("mount namespace {}: {}", path.display(), reason(errno)));
    let fd = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(refuse)?;
    rustix::thread::move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(refuse)
}

/// Closes descriptors that a shell or mount(8) left open, so that they pin nothing for the life of the mount. To be called
/// before anything of our own is open.
pub fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|&fd| fd > 2).collect();
    for fd in numbers {
        // The descriptor that listed them is among them, and closed already.
        let _ = nix::unistd::close(fd);
    }
}

/// Leaves the caller's session and terminal, and ends with the caller until [`outlive_parent`].
///
/// # Errors
/// Where the kernel refuses.
pub fn leave_session() -> Result<(), Failure> {
    let refuse = |errno| Failure::system(format!("can't run in the background: {}", reason(errno)));
    // Fails only for the leader of a group, which a process just started by another is not, unless a user runs it by hand.
    let _ = rustix::process::setsid();
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(refuse)
}

/// The mount is there: nobody's end ends it.
pub fn outlive_parent() {
    let _ = rustix::process::set_parent_process_death_signal(None);
}

/// Makes the process fit to serve a file system. What a user may not have is left as it is.
pub fn settle(program: &str) {
    // What ps(1) shows; started by way of /proc/self/exe, it would be "exe".
    if let Ok(name) = CString::new(program) {
        let _ = rustix::thread::set_name(&name);
    }
    // The kernel gives each request its caller's umask.
    rustix::process::umask(Mode::empty());
    // A working directory pins its file system.
    let _ = std::env::set_current_dir("/");
    raise_descriptors();
    if rustix::process::geteuid().is_root() {
        be_spared();
        // The kernel must not write dirty pages of this mount to find memory for its server.
        let _ = rustix::process::configure_io_flusher_behavior(true);
    }
}

/// How many descriptors a server asks for: as many as the kernel allows a process unless it was told otherwise.
const DESCRIPTORS: u64 = 1 << 20;

/// For how many the kernel makes its table at once. Each time it must enlarge the table of a process that has threads, whoever opens
/// something waits for some milliseconds.
const TABLE: u64 = 8192;

/// Raises the limit of descriptors: each file that a caller has open is one of the server's. Beyond the hard limit the superuser only may.
fn raise_descriptors() {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    let system = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    let most = DESCRIPTORS.min(system.unwrap_or(DESCRIPTORS));
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
    let last = i32::try_from(TABLE.min(limit).saturating_sub(1)).unwrap_or(0);
    // The table stays as large as it once was.
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last));
}

/// Killing the server frees little memory and takes a file system away: it comes last, but still before the machine stops.
fn be_spared() {
    const ADJUST: &str = "/proc/self/oom_score_adj";
    const LAST: i32 = -900;
    let now = std::fs::read_to_string(ADJUST).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if now.is_some_and(|now| now > LAST) {
        let _ = std::fs::write(ADJUST, LAST.to_string());
    }
}

/// May this process change the owner of a file to another user? Root may, and root of a user namespace that has others.
#[must_use]
pub fn may_chown() -> bool {
    let capable = rustix::thread::capabilities(None).map_or_else(
        |_| rustix::process::geteuid().is_root(),
        |sets| sets.effective.contains(rustix::thread::CapabilitySet::CHOWN),
    );
    capable
        && ["/proc/self/uid_map", "/proc/self/gid_map"].iter().all(|map| {
            // Where /proc is missing nothing speaks against it.
            std::fs::read_to_string(map).map_or(true, |map| mapped_ids(&map) > 1)
        })
}

/// How many users or groups a user namespace has (user_namespaces(7)).
fn mapped_ids(map: &str) -> u64 {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_namespace_are_counted() {
        assert_eq!(mapped_ids("         0          0 4294967295\n"), 4_294_967_295);
        assert_eq!(mapped_ids("         0       1000          1\n"), 1);
        assert_eq!(mapped_ids("         0       1000          1\n         1     100000      65536\n"), 65_537);
        assert_eq!(mapped_ids(""), 0);
    }
}
