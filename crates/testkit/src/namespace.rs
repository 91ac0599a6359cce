use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::UnshareFlags;
use std::process::Command;

/// Set in a test that has processes of its own.
const OWN_PROCESSES: &str = "STRATA_TEST_OWN_PROCESSES";

/// Runs the calling test once more in a PID namespace of its own, with a /proc that shows only its
/// processes, all of which it may read: the machine's first process can be unreadable even for
/// root. Returns whether this is the outer run, which has nothing left to do.
///
/// # Panics
///
/// If the inner run fails; without root.
#[must_use]
pub fn runs_with_own_processes() -> bool {
    if std::env::var_os(OWN_PROCESSES).is_some() {
        return false;
    }
    crate::need_root("it has a PID namespace");
    let thread = std::thread::current();
    let test = thread.name().expect("the thread of a test has its name");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--propagation", "private"]);
    command.arg(std::env::current_exe().expect("the test's own path")).args(["--exact", test, "--nocapture"]);
    let status = command.env(OWN_PROCESSES, "1").status().expect("unshare, of util-linux");
    assert!(status.success(), "{test} in its own PID namespace: {status}");
    true
}

/// Moves the calling thread into a mount namespace of its own, without propagation: nobody else
/// sees what it mounts, and all of it ends with the thread.
///
/// # Panics
///
/// Without root.
pub fn own_mounts() {
    crate::need_root("it mounts");
    // Only the mount namespace is unshared; no descriptor of this process depends on it.
    #[expect(deprecated, reason = "deprecated for the sake of UnshareFlags::FILES, which is not used here")]
    rustix::thread::unshare(UnshareFlags::NEWNS).expect("a mount namespace");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private mounts");
}
