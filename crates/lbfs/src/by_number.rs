//! Objects by number. Numbers are hashes of paths, so the path of an object that is not live is
//! found by walking the tree.

use crate::node::{Core, Node};
use std::sync::Arc;
use vnode::{Cx, Errno, Found, Kind, Name, NameSink, Result, Vnode};

impl Core {
    /// Returns the vnode with this number.
    pub(crate) fn by_number(&self, cx: &Cx<'_>, root: &Arc<Node>, number: u64) -> Result<Arc<dyn Vnode>> {
        if let Some(live) = self.table.by_number(number) {
            return Ok(live);
        }
        let root: Arc<dyn Vnode> = Arc::clone(root) as Arc<dyn Vnode>;
        let listed = self.listed.find(cx, &root, number, 1)?;
        let found = match listed.into_iter().next() {
            None => self.exact.find(cx, &root, number, 1)?.into_iter().next(),
            found => found,
        };
        found.map(|found| found.entry.vnode).ok_or(Errno::STALE)
    }
}

impl Node {
    /// Passes the name of its lookup to `sink`, then its other names.
    pub(crate) fn report_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        let Some((parent, name)) = &self.at else { return Ok(()) };
        let parent: Arc<dyn Vnode> = Arc::clone(parent) as Arc<dyn Vnode>;
        if !sink(&parent, Name::new(name)?) || self.kind_of() == Kind::Directory {
            return Ok(());
        }
        let names = self.getattr(cx)?.nlink as usize;
        if names < 2 {
            return Ok(());
        }
        let root: Arc<dyn Vnode> = self.top()?;
        for Found { dir, name: other, .. } in self.fs.exact.find(cx, &root, self.number(), names)? {
            let known = dir.id() == parent.id() && other == *name;
            if !known && !sink(&dir, Name::new(&other)?) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the root of the tree.
    fn top(&self) -> Result<Arc<Self>> {
        let mut at = self.to_arc()?;
        while let Some((parent, _)) = &at.at {
            at = Arc::clone(parent);
        }
        Ok(at)
    }
}
