use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::UnshareFlags;

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
