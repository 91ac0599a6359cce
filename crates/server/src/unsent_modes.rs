//! Files whose mode the kernel may not know.
//!
//! The kernel asks for it with the next permission check, and ignores the answer if the file's
//! attributes have changed meanwhile, or if it was told that they have. The check then uses the old
//! mode. That matters when the mode changes without the kernel:
//!
//! - The reply to a SETXATTR of an ACL has no mode. While a program appends to the file, all
//!   answers are ignored (`FUSE_I_SIZE_UNSTABLE`).
//! - The file is changed below the mount. If its data changed, too, the server drops the kernel's
//!   pages, mostly during the very request for the attributes.
//!
//! So an OPEN of such a file is checked here again, until the reply to a SETATTR has given the
//! kernel the mode: that one it never ignores.

use crate::caller;
use fuse::{Reply, Request};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vnode::{Cx, Errno, NumberMap, OpenFlags, Vnode};

/// Nodes of regular files that an ACL was set on, or whose data changed below, since a SETATTR.
#[derive(Default)]
pub(crate) struct UnsentModes {
    nodes: Mutex<NumberMap<()>>,
    count: AtomicUsize,
}

impl UnsentModes {
    fn nodes(&self) -> MutexGuard<'_, NumberMap<()>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the mode may change without the kernel.
    pub(crate) fn add(&self, node: u64) {
        let mut nodes = self.nodes();
        nodes.insert(node, ());
        self.count.store(nodes.len(), Ordering::Release);
    }

    /// Notes that the kernel gets the mode, or forgets the node.
    pub(crate) fn remove(&self, node: u64) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut nodes = self.nodes();
            nodes.remove(&node);
            self.count.store(nodes.len(), Ordering::Release);
        }
    }

    fn has(&self, node: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.nodes().contains_key(&node)
    }

    /// Checks that the caller may open a file, if the kernel may have checked by an old mode.
    ///
    /// # Errors
    /// `EACCES` if not; those of reading mode and ACL.
    pub(crate) fn check_open(
        &self,
        (rq, cx): (&Request<'_>, &Cx<'_>),
        (node, vnode): (u64, &dyn Vnode),
        (wanted, executes): (OpenFlags, bool),
    ) -> Reply<()> {
        if !self.has(node) {
            return Ok(());
        }
        let writes = if wanted.writes() || wanted.truncates() { access::WRITE } else { 0 };
        let mask = match (executes, wanted.reads()) {
            (true, _) => access::SEARCH,
            (false, true) => access::READ | writes,
            (false, false) => writes,
        };
        // Without /proc/PID/status, neither capabilities nor groups are known: the kernel's check
        // has to do.
        let is_refused = access::refused(cx, vnode, mask)? != 0;
        if is_refused && caller::overrides_modes(rq.pid, mask == access::READ) == Some(false) {
            return Err(Errno::ACCESS);
        }
        Ok(())
    }
}
