//! Exclusive use of a directory by one server.

use crate::layer::HostFs;
use crate::vnode_impl::HostVnode;
use rustix::fd::OwnedFd;
use rustix::fs::FlockOperation;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Errno, Layer, Result};

/// Interval between attempts, because flock(2) has no timeout.
const PAUSE: Duration = Duration::from_millis(5);

impl HostFs {
    /// Returns the descriptor of the root, which only this layer uses.
    fn root_fd(&self) -> Result<Arc<OwnedFd>> {
        let root = self.root();
        let root = root.as_any().downcast_ref::<HostVnode>().ok_or(Errno::IO)?;
        Ok(Arc::clone(&root.fs().root))
    }

    /// Claims the directory for the lifetime of this layer, by an exclusive flock(2) on it. Returns
    /// false if another process still holds the lock after `timeout`.
    ///
    /// A killed server may still execute a system call after its process seems to be gone: a thread
    /// that waits for the disk ends later. The kernel releases the lock only when the last such
    /// thread has ended. The holder of the lock therefore knows that no write of a previous server
    /// is outstanding.
    ///
    /// # Errors
    /// The `errno` of flock(2) if the file system does not support it.
    pub fn claim(&self, timeout: Duration) -> Result<bool> {
        let root = self.root_fd()?;
        let end = Instant::now() + timeout;
        loop {
            match rustix::fs::flock(&*root, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::AGAIN) if Instant::now() >= end => return Ok(false),
                Err(Errno::AGAIN) => std::thread::sleep(PAUSE),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Releases the claim: this layer no longer writes to the directory.
    pub fn release_claim(&self) {
        // Without locks there is no claim either.
        let _released = self.root_fd().and_then(|root| rustix::fs::flock(&*root, FlockOperation::Unlock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostOptions;

    #[test]
    fn a_claim_lasts_until_its_last_descriptor_is_closed() {
        let dir = testkit::TempDir::new();
        let open = || HostFs::open(&dir, HostOptions::default()).unwrap();
        let (first, second) = (open(), open());
        assert_eq!(first.claim(Duration::ZERO), Ok(true));
        assert_eq!(first.claim(Duration::ZERO), Ok(true), "already claimed");
        assert_eq!(second.claim(Duration::from_millis(20)), Ok(false));
        // Simulates a thread that is still in a system call and keeps the descriptor.
        let late = rustix::io::fcntl_dupfd_cloexec(&*first.root_fd().unwrap(), 0).unwrap();
        drop(first);
        assert_eq!(second.claim(Duration::ZERO), Ok(false));
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(late);
        });
        assert_eq!(second.claim(Duration::from_secs(20)), Ok(true));
        ends.join().unwrap();
        assert!(testkit::names(&dir).is_empty());
    }
}
