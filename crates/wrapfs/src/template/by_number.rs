//! Objects found by number: their names, and whether the layer shows them.

use super::core::Core;
use super::node::TemplateVnode;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, NameSink, Result, Vnode};

impl TemplateVnode {
    /// Passes the object's names, as this layer shows them, to `sink`.
    pub(crate) fn list_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        let mut failed = Ok(());
        self.lower.names(cx, &mut |dir, below| {
            let dir = Self::over(&self.core, Arc::clone(dir));
            match dir.decoded(cx, below) {
                Ok(Some(name)) => {
                    let dir: Arc<dyn Vnode> = Arc::new(dir);
                    Name::new(&name).map_or(true, |name| sink(&dir, name))
                }
                Ok(None) => true,
                Err(errno) => {
                    failed = Err(errno);
                    false
                }
            }
        })?;
        failed
    }
}

impl Core {
    /// Returns the vnode for an object that the layer below found by number. `ESTALE` for the
    /// store's own files and for objects that the layer does not show.
    pub(crate) fn wrap_found(self: &Arc<Self>, cx: &Cx<'_>, lower: Arc<dyn Vnode>) -> Result<TemplateVnode> {
        if self.names.is_some() && !self.is_shown(cx, &lower)? {
            return Err(Errno::STALE);
        }
        Ok(TemplateVnode::over(self, lower))
    }

    /// Whether an object below is visible in this layer. True for an object without names.
    fn is_shown(self: &Arc<Self>, cx: &Cx<'_>, lower: &Arc<dyn Vnode>) -> Result<bool> {
        let root = self.lower.root().id();
        let mut at = Arc::clone(lower);
        while at.id() != root {
            let (mut hidden, mut shown) = (false, None);
            let mut failed = Ok(());
            at.names(cx, &mut |dir, below| {
                match TemplateVnode::over(self, Arc::clone(dir)).decoded(cx, below) {
                    Ok(Some(_)) => shown = Some(Arc::clone(dir)),
                    Ok(None) => hidden = true,
                    Err(errno) => failed = Err(errno),
                }
                shown.is_none() && failed.is_ok()
            })?;
            failed?;
            match shown {
                Some(dir) => at = dir,
                None => return Ok(!hidden),
            }
        }
        Ok(true)
    }
}
