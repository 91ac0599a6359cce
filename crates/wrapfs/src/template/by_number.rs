//! Objects that were found by number: their names, and which of them the layer shows at all.

use super::core::Core;
use super::node::TemplateVnode;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, NameSink, Result, Vnode};

impl TemplateVnode {
    /// The names of the object below, as this layer shows them.
    pub(crate) fn tell_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
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
    /// The vnode over an object that was found below by its number. `ESTALE` for what this layer
    /// keeps for itself, or does not show for another reason.
    pub(crate) fn raise_found(self: &Arc<Self>, cx: &Cx<'_>, lower: Arc<dyn Vnode>) -> Result<TemplateVnode> {
        if self.names.is_some() && !self.is_shown(cx, &lower)? {
            return Err(Errno::STALE);
        }
        Ok(TemplateVnode::over(self, lower))
    }

    /// Do names of this layer lead to an object below? Yes for one that has no name any more.
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
