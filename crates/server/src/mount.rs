//! Mounting and unmounting a stack.

use crate::Config;
use crate::ops::Server;
use crate::refusal_server::RefusalServer;
use fuse::{Filesystem, MountError, MountOptions, Session};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vnode::{Cx, Layer, Result};

/// A mounted stack.
#[derive(Debug)]
pub struct Mounted {
    session: Arc<Session>,
    layer: Arc<dyn Layer>,
}

/// Mounts `layer`. The mount is usable when this returns.
///
/// # Errors
/// The step that failed and the reason.
pub fn mount(layer: Arc<dyn Layer>, config: &Config) -> core::result::Result<Mounted, MountError> {
    let (options, fs) = prepare(&layer, config);
    let session = Session::mount(&options, fs)?;
    Ok(Mounted { session, layer })
}

/// Serves `layer` on the device of a [`fuse::Connection`], which another process mounts. Returns
/// once the mount is usable.
///
/// # Errors
/// The step that failed and the reason.
pub fn serve_device(
    layer: Arc<dyn Layer>,
    config: &Config,
    device: OwnedFd,
) -> core::result::Result<Mounted, MountError> {
    let (options, fs) = prepare(&layer, config);
    let session = Session::serve_device(&options, device, fs)?;
    Ok(Mounted { session, layer })
}

/// Returns the options of a mount of `layer`, and its request handler.
fn prepare(layer: &Arc<dyn Layer>, config: &Config) -> (MountOptions, Arc<dyn Filesystem>) {
    let mut options = config.mount.clone();
    options.may_hang |= layer.properties().may_hang;
    options.flags.read_only |= layer.properties().read_only;
    let audits = layer.properties().audits_refusals;
    let server = Server::new(layer.clone(), config);
    let fs: Arc<dyn Filesystem> = if audits { Arc::new(RefusalServer::new(server)) } else { Arc::new(server) };
    (options, fs)
}

impl Mounted {
    /// Blocks until the stack is unmounted, by [`Self::stop`] or umount(8), and lets the layers
    /// remove what they keep only while they are mounted.
    pub fn wait(&self) {
        self.session.wait();
        self.layer.unmounted();
    }

    /// Unmounts, lazily if busy. May be called from any thread.
    ///
    /// # Errors
    /// Those of umount2(2) or fusermount3.
    pub fn stop(&self) -> core::result::Result<(), MountError> {
        self.session.stop()
    }

    /// Writes all data that the layers have buffered to stable storage.
    ///
    /// # Errors
    /// Those of the layers.
    pub fn sync(&self) -> Result<()> {
        self.layer.sync(&Cx::internal(0, 0))
    }

    /// Returns the session: counters, notifications, transport.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}
