//! Finding an object on a replica, by the names on the way to it.

use crate::fault::{Fault, Outcome};
use crate::node::Node;
use crate::replica::Opened;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, Result, Vnode};

impl Node {
    /// Does `op` on the object of that replica, which is looked for again if it is not the one any more that it was.
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

    /// Finds the object on a replica by the names on the way to it.
    pub(crate) fn locate(&self, replica: usize, opened: &Opened, cx: &Cx<'_>) -> Outcome<Arc<dyn Vnode>> {
        match self.walk(replica, opened, cx, true) {
            // A directory on the way is another one by now.
            Err(Fault::Errno(Errno::STALE)) => self.walk(replica, opened, cx, false),
            other => other,
        }
    }

    /// From the nearest directory that is known there, or from the root.
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
