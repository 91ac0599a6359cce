//! Lookup of an object on a replica, by its path.

use crate::fault::{Fault, Outcome};
use crate::node::Node;
use crate::replica::Opened;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, Result, Vnode};

impl Node {
    /// Runs `op` on the object's lower vnode on a replica. A stale vnode is looked up again.
    pub(crate) fn perform<T>(
        &self,
        replica: usize,
        opened: &Opened,
        cx: &Cx<'_>,
        op: &impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T>,
    ) -> Outcome<T> {
        if let Some(lower) = self.lower(replica, opened.number) {
            match op(&lower, cx) {
                Err(Errno::STALE) => self.unbind(replica),
                other => return other.map_err(Fault::Errno),
            }
        }
        let lower = self.locate(replica, opened, cx)?;
        self.bind(replica, opened.number, &lower);
        op(&lower, cx).map_err(Fault::Errno)
    }

    /// Looks up the object on a replica by its path.
    pub(crate) fn locate(&self, replica: usize, opened: &Opened, cx: &Cx<'_>) -> Outcome<Arc<dyn Vnode>> {
        match self.walk(replica, opened, cx, true) {
            // A cached directory on the path is stale.
            Err(Fault::Errno(Errno::STALE)) => self.walk(replica, opened, cx, false),
            other => other,
        }
    }

    /// Walks the path from the root or, if `trusting`, from the nearest ancestor with a cached
    /// lower vnode.
    fn walk(&self, replica: usize, opened: &Opened, cx: &Cx<'_>, trusting: bool) -> Outcome<Arc<dyn Vnode>> {
        let mut missing = Vec::new();
        let mut here = self;
        let mut lower = loop {
            let Some((parent, name)) = &here.at else { break Arc::clone(opened.root().map_err(Fault::Errno)?) };
            missing.push((here, name));
            if trusting && let Some(known) = parent.lower(replica, opened.number) {
                break known;
            }
            here = parent;
        };
        for (node, name) in missing.into_iter().rev() {
            let name = Name::new(name).map_err(Fault::Errno)?;
            let found = match lower.lookup(cx, name) {
                Ok(Some(entry)) if entry.vnode.kind() == node.kind_of() => entry.vnode,
                Ok(_) | Err(Errno::NOTDIR | Errno::NOENT) => return Err(Fault::Missing),
                Err(errno) => return Err(Fault::Errno(errno)),
            };
            if node.kind_of() == Kind::Directory {
                node.bind(replica, opened.number, &found);
            }
            lower = found;
        }
        Ok(lower)
    }
}
