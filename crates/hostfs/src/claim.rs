//! One writer at a time.

use crate::layer::HostFs;
use crate::vnode_impl::HostVnode;
use rustix::fd::OwnedFd;
use rustix::fs::FlockOperation;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Errno, Layer, Result};

/// Between two tries. flock(2) knows no time limit.
const PAUSE: Duration = Duration::from_millis(5);

impl HostFs {
    /// The descriptor of the root, which the layer has for itself.
    fn own_root(&self) -> Result<Arc<OwnedFd>> {
        let root = self.root();
        let root = root.as_any().downcast_ref::<HostVnode>().ok_or(Errno::IO)?;
        Ok(Arc::clone(&root.fs().root))
    }

    /// Claims the directory for this layer, as long as it lives, by an exclusive flock(2) on it. Answers false if somebody else
    /// still has it after `patience`.
    ///
    /// A server that was killed may still be in the midst of a system call when its process seems to be gone: a thread of it that
    /// waits for the disk ends later. The kernel gives the lock away only when the last of them has ended, so whoever has it
    /// knows that nothing of an earlier server is still to come.
    ///
    /// # Errors
    /// Where the file system has no such locks: their `errno`.
    pub fn claim(&self, patience: Duration) -> Result<bool> {
        let root = self.own_root()?;
        let end = Instant::now() + patience;
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostOptions;

    #[test]
    fn one_has_it_until_the_last_of_its_descriptors_is_gone() {
        let dir = std::env::temp_dir().join(format!("hostfs-claim-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let open = || HostFs::open(&dir, HostOptions::default()).unwrap();
        let (first, second) = (open(), open());
        assert_eq!(first.claim(Duration::ZERO), Ok(true));
        assert_eq!(first.claim(Duration::ZERO), Ok(true), "it has it already");
        assert_eq!(second.claim(Duration::from_millis(20)), Ok(false));
        // As a thread that is still in a system call keeps it.
        let late = rustix::io::fcntl_dupfd_cloexec(&*first.own_root().unwrap(), 0).unwrap();
        drop(first);
        assert_eq!(second.claim(Duration::ZERO), Ok(false));
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(late);
        });
        assert_eq!(second.claim(Duration::from_secs(20)), Ok(true));
        ends.join().unwrap();
        std::fs::remove_dir(&dir).unwrap();
    }
}
