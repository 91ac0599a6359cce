//! Objects by number, for file handles.

use crate::node::{Body, Node};
use crate::number;
use classify::ViewId;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, NameSink, Result, Vnode};

impl Node {
    /// Returns the object with this number, if the caller's view has it.
    pub(crate) fn by_number(root: &Arc<Self>, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let fs = &root.fs;
        let view = fs.view_of(cx)?;
        if number == number::ROOT {
            return Ok(Arc::clone(root) as Arc<dyn Vnode>);
        }
        if let Some(node) = fs.table.by_number(number) {
            node.lower_in(cx, view)?;
            return Ok(node);
        }
        let lower = fs.view(view)?.layer.vnode(cx, number::convert(view, number))?;
        let node = match lower.kind() {
            Kind::Directory => Self::of_directory(root, cx, view, &lower)?,
            _ => Self::single(fs, view, lower, None),
        };
        if node.number() == number { Ok(node) } else { Err(Errno::STALE) }
    }

    /// Returns the vnode of a view's directory, by the names on the way to it.
    fn of_directory(root: &Arc<Self>, cx: &Cx<'_>, view: ViewId, lower: &Arc<dyn Vnode>) -> Result<Arc<Self>> {
        let mut path = Vec::new();
        let mut at = Arc::clone(lower);
        while at.id() != number::ROOT {
            let mut above = None;
            at.names(cx, &mut |dir, name| {
                above = Some((Arc::clone(dir), Box::<[u8]>::from(name.as_bytes())));
                false
            })?;
            let (parent, name) = above.ok_or(Errno::STALE)?;
            path.push((name, std::mem::replace(&mut at, parent)));
        }
        let mut node = Arc::clone(root);
        for (name, lower) in path.into_iter().rev() {
            node = Self::directory(&node, &name, view, &lower);
        }
        Ok(node)
    }

    /// Passes the names of the object in the caller's view.
    pub(crate) fn pass_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        let lower = self.lower(cx)?;
        if let Body::Directory(merged) = &self.body {
            // A removed directory has no name.
            if let Some(at) = merged.at()
                && lower.vnode.getattr(cx)?.nlink > 0
            {
                let parent: Arc<dyn Vnode> = at.parent;
                let _more = sink(&parent, vnode::Name::new(&at.name)?);
            }
            return Ok(());
        }
        let root = self.fs.root()?;
        let mut result = Ok(());
        lower.vnode.names(cx, &mut |dir, name| match Self::of_directory(&root, cx, lower.view, dir) {
            Ok(dir) => {
                let dir: Arc<dyn Vnode> = dir;
                sink(&dir, name)
            }
            Err(errno) => {
                result = Err(errno);
                false
            }
        })?;
        result
    }
}
