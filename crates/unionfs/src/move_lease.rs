//! The end of `unionctl --rebalance`, however that ends. While files move, the kernel reads and
//! writes no file of the union directly. A client that was killed can't end that, so the server
//! does when no request has come for a while.

use crate::mover::Goal;
use crate::node::Core;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the client may take between the reply to a step and the next request.
pub(crate) const LEASE: Duration = Duration::from_secs(5);
/// How often this is checked.
const TICK: Duration = Duration::from_millis(500);

impl Core {
    /// Ends a rebalancing whose client has vanished.
    pub(crate) fn watch_client(self: &Arc<Self>, id: u64) {
        let core: Weak<Self> = Arc::downgrade(self);
        let watch = move || {
            while let Some(core) = core.upgrade() {
                if !core.end_if_abandoned(id, LEASE) {
                    return;
                }
                drop(core);
                std::thread::sleep(TICK);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("rebalance".to_owned()).spawn(watch) {
            tracing::warn!(%error, "could not start the thread that ends an interrupted --rebalance");
        }
    }

    /// Ends this task if its last request is older than `lease`. Returns whether it goes on.
    fn end_if_abandoned(&self, id: u64, lease: Duration) -> bool {
        // A step is under way.
        let Some(mut slot) = self.mover.try_lock() else { return true };
        let Some(mover) = slot.as_ref().filter(|mover| mover.id == id && mover.goal != Goal::Drain) else {
            return false;
        };
        if mover.last_request.elapsed() < lease {
            return true;
        }
        match self.end_balance() {
            Ok(()) => {
                tracing::info!("moving files ended, because unionctl --rebalance was interrupted");
                *slot = None;
                false
            }
            Err(error) => {
                tracing::debug!(%error, "could not end moving files yet");
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::UnionVnode;
    use crate::options::Moving;
    use crate::{Branch, Mode, Options, Unionfs};
    use memfs::{Faults, MemFs, MemOptions};
    use vnode::{Cx, Layer, Vnode};

    const CX: Cx<'static> = Cx::internal(0, 0);

    fn send(root: &Arc<dyn Vnode>, request: &str) -> String {
        String::from_utf8(root.control(&CX, "unionfs.move", request.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn rebalancing_ends_with_its_client_and_leaves_drained_branches_alone() {
        let layers: Vec<_> = (0..3).map(|_| MemFs::with(MemOptions::default(), &Faults::new())).collect();
        let branch = |(at, layer): (usize, &Arc<MemFs>)| Branch {
            layer: layer.clone(),
            path: format!("/{at}").into(),
            mode: Mode::ReadWrite,
        };
        for (at, layer) in layers.iter().enumerate() {
            layer.set_space((at as u64 + 1) << 20);
        }
        let union = Unionfs::new(layers.iter().enumerate().map(branch).collect(), Options::default()).unwrap();
        let root = union.root();
        let name = vnode::Name::new(b"f").unwrap();
        let (_, file) = root.create(&CX, name, 0o644, vnode::OpenFlags::RDWR).unwrap();
        file.write(&CX, &vec![1; 600 << 10], 0).unwrap();
        drop(file);
        let core = &root.as_any().downcast_ref::<UnionVnode>().unwrap().core;
        let moving = || {
            let set = core.branches.get();
            set.order.iter().map(|member| member.moving).collect::<Vec<_>>()
        };
        assert!(send(&root, r#"{"do":"drain","branch":"/2"}"#).contains("id"));
        assert_eq!(moving(), [Moving::Stays, Moving::Stays, Moving::Drained]);
        assert!(send(&root, r#"{"do":"rebalance","within":5}"#).contains(r#""id":2"#));
        assert!(core.end_if_abandoned(2, LEASE) && !core.end_if_abandoned(1, Duration::ZERO));
        assert!(!core.end_if_abandoned(2, Duration::ZERO));
        assert_eq!(moving(), [Moving::Stays, Moving::Stays, Moving::Drained]);

        send(&root, r#"{"do":"end"}"#);
        assert_eq!(moving(), [Moving::Stays; 3]);
        assert!(send(&root, r#"{"do":"rebalance","within":5}"#).contains(r#""id":3"#));
        assert_eq!(moving(), [Moving::Moves; 3]);
        assert!(core.end_if_abandoned(3, LEASE) && !core.end_if_abandoned(3, Duration::ZERO));
        assert!(moving() == [Moving::Stays; 3] && !core.branches.get().moving);
        assert_eq!(root.control(&CX, "unionfs.move", br#"{"do":"step","id":3}"#), Err(vnode::Errno::STALE));
        // The client itself ends only what it began.
        assert!(send(&root, r#"{"do":"drain","branch":"/2"}"#).contains("id"));
        assert!(send(&root, r#"{"do":"rebalance","within":5}"#).contains("id"));
        assert_eq!(send(&root, r#"{"do":"end","of":"rebalance"}"#), "{}");
        assert_eq!(moving(), [Moving::Stays, Moving::Stays, Moving::Drained]);
    }
}
