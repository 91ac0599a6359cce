//! Mounting and unmounting a stack.

use crate::Config;
use crate::nodes::Nodes;
use crate::notifier::UpcallHandler;
use crate::ops::Server;
use crate::refusal_server::RefusalServer;
use core::fmt;
use core::time::Duration;
use fuse::{Filesystem, MountError, MountOptions, Session};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Layer, Result};

/// A mounted stack.
pub struct Mounted {
    session: Arc<Session>,
    layer: Arc<dyn Layer>,
    nodes: Arc<Nodes>,
    /// Has the nodes and open files of the mount, too.
    upcalls: Arc<UpcallHandler>,
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted").field("session", &self.session).field("layer", &self.layer).finish_non_exhaustive()
    }
}

/// Mounts `layer`. The mount is usable when this returns.
///
/// # Errors
/// The step that failed and the reason.
pub fn mount(layer: Arc<dyn Layer>, config: &Config) -> core::result::Result<Mounted, MountError> {
    let (options, fs, upcalls) = prepare(&layer, config);
    let session = Session::mount(&options, fs)?;
    Ok(Mounted { session, layer, nodes: Arc::clone(&upcalls.nodes), upcalls })
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
    let (options, fs, upcalls) = prepare(&layer, config);
    let session = Session::serve_device(&options, device, fs)?;
    Ok(Mounted { session, layer, nodes: Arc::clone(&upcalls.nodes), upcalls })
}

/// Returns the options of a mount of `layer`, its request handler, and the receiver of its reports.
fn prepare(layer: &Arc<dyn Layer>, config: &Config) -> (MountOptions, Arc<dyn Filesystem>, Arc<UpcallHandler>) {
    let mut options = config.mount.clone();
    options.may_hang |= layer.properties().may_hang;
    options.flags.read_only |= layer.properties().read_only;
    let audits = layer.properties().audits_refusals;
    let server = Server::new(layer.clone(), config);
    let upcalls = Arc::clone(&server.upcalls);
    let fs: Arc<dyn Filesystem> = if audits { Arc::new(RefusalServer::new(server)) } else { Arc::new(server) };
    (options, fs, upcalls)
}

impl Mounted {
    /// Blocks until the stack is unmounted, by [`Self::stop`] or umount(8), and lets the layers
    /// remove what they keep only while they are mounted.
    pub fn wait(&self) {
        self.session.wait();
        self.layer.unmounted();
    }

    /// Drops the layers, with their vnodes and open files, after [`Self::wait`]. Waits for that for
    /// at most `timeout`: a file system below can hang. Returns whether all were dropped.
    #[must_use]
    pub fn end(self, timeout: Duration) -> bool {
        let Self { session, layer, nodes, upcalls } = self;
        drop(session);
        let rest = Arc::downgrade(&layer);
        let (done, dropped) = std::sync::mpsc::channel();
        let drop_all = move || {
            drop((nodes, upcalls, layer));
            // Fails if the receiver has timed out.
            let _ = done.send(());
        };
        let started = std::thread::Builder::new().name("end".to_owned()).spawn(drop_all);
        started.is_ok() && dropped.recv_timeout(timeout).is_ok() && rest.strong_count() == 0
    }

    /// Unmounts, lazily if busy. May be called from any thread.
    ///
    /// # Errors
    /// Those of umount2(2) or fusermount3.
    pub fn stop(&self) -> core::result::Result<(), MountError> {
        self.session.stop()
    }

    /// Makes the kernel write the dirty pages of all files of the mount, which reach the layers as
    /// requests. Unlike sync(2), waits for no other file system. To be called from a thread that
    /// may wait long.
    ///
    /// # Errors
    /// `ENOTCONN` or `ENODEV` if the connection is closed; otherwise the first error, after the
    /// other files were written.
    pub fn write_back(&self) -> Result<()> {
        let kernel = self.session.notifier();
        // One that waits for a request that hangs must not keep these from being sent.
        kernel.send_directly();
        let mut result = Ok(());
        for node in self.nodes.all() {
            if self.nodes.get(node).is_ok_and(|vnode| vnode.kind() == Kind::Regular) {
                // The kernel writes pages before it drops them.
                match kernel.inval_inode(node, 0, 0) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error @ (Errno::NOTCONN | Errno::NODEV)) => return Err(error),
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        result
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
