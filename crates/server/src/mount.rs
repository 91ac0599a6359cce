use crate::Config;
use crate::ops::Server;
use crate::watching::Watching;
use fuse::{Filesystem, MountError, Session};
use std::sync::Arc;
use vnode::{Cx, Layer, Result};

/// A mounted stack.
#[derive(Debug)]
pub struct Mounted {
    session: Arc<Session>,
    layer: Arc<dyn Layer>,
}

/// Mounts `layer`. When this answers, the mount is usable.
///
/// # Errors
/// What step failed, and why.
pub fn mount(layer: Arc<dyn Layer>, config: &Config) -> core::result::Result<Mounted, MountError> {
    let mut options = config.mount.clone();
    options.may_hang |= layer.properties().may_hang;
    options.flags.read_only |= layer.properties().read_only;
    let watches = layer.properties().watches_refusals;
    let server = Server::new(layer.clone(), config);
    let fs: Arc<dyn Filesystem> = if watches { Arc::new(Watching::new(server)) } else { Arc::new(server) };
    let session = Session::mount(&options, fs)?;
    Ok(Mounted { session, layer })
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
    pub fn stop(&self) -> core::result::Result<(), MountError> {
        self.session.stop()
    }

    /// Brings what the layers have not yet written to their devices, and waits for that.
    ///
    /// # Errors
    /// Those of the layers.
    pub fn sync(&self) -> Result<()> {
        self.layer.sync(&Cx::internal(0, 0))
    }

    /// The session: counters, notifications, transport.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}
