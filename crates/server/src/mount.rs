use crate::Config;
use crate::ops::Server;
use fuse::{MountError, Session};
use std::sync::Arc;
use vnode::Layer;

/// A mounted stack.
#[derive(Debug)]
pub struct Mounted {
    session: Arc<Session>,
}

/// Mounts `layer`. When this answers, the mount is usable.
///
/// # Errors
/// What step failed, and why.
pub fn mount(layer: Arc<dyn Layer>, config: &Config) -> Result<Mounted, MountError> {
    let mut options = config.mount.clone();
    options.may_hang |= layer.may_hang();
    let server = Server::new(layer, config);
    let session = Session::mount(&options, Arc::new(server))?;
    Ok(Mounted { session })
}

impl Mounted {
    /// Blocks until it is unmounted, by [`Self::stop`] or by umount(8).
    pub fn wait(&self) {
        self.session.wait();
    }

    /// Unmounts, lazily if it is busy. May be called from any thread.
    ///
    /// # Errors
    /// What umount2(2) or fusermount3 says.
    pub fn stop(&self) -> Result<(), MountError> {
        self.session.stop()
    }

    /// The session: counters, notifications, transport.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}
