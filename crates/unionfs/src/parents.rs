//! Copies of directories: made only when something is to lie in them, with the attributes of the originals and no entries.

use crate::branch::Core;
use crate::node::{Lower, Place, UnionVnode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Attr, Cx, Errno, RenameFlags, Result, Vnode};

impl Core {
    /// Makes sure that `dir` has a part on `branch`, which lies left of its stack or is in it, and so have its parents.
    pub(crate) fn ensure_part(&self, cx: &Cx<'_>, dir: &Arc<UnionVnode>, branch: u16) -> Result<()> {
        let mut missing = Vec::new();
        let mut next = dir.clone();
        while next.part(branch)?.is_none() {
            let parent = next.place().ok_or(Errno::NOENT)?.parent;
            missing.push(next);
            next = parent;
        }
        while let Some(dir) = missing.pop() {
            self.copy_directory(cx, &dir, branch)?;
        }
        Ok(())
    }

    fn copy_directory(&self, cx: &Cx<'_>, dir: &Arc<UnionVnode>, branch: u16) -> Result<()> {
        loop {
            let place = dir.place().ok_or(Errno::NOENT)?;
            let _names = place.parent.dir()?.names.write();
            if !dir.place().is_some_and(|now| now.is(&place)) {
                continue;
            }
            if dir.gone.load(Ordering::Acquire) {
                return Err(Errno::NOENT);
            }
            let stack = dir.stack()?;
            if stack.iter().any(|part| part.branch == branch) {
                return Ok(());
            }
            let original = stack.first().filter(|first| first.branch > branch).ok_or(Errno::STALE)?;
            let parent = place.parent.part(branch)?.ok_or(Errno::STALE)?;
            let copy = self.publish_directory(cx, &parent, &place, original)?;
            let parts = std::iter::once(Lower { vnode: copy, branch }).chain(stack.iter().cloned());
            return dir.set_stack(parts.collect());
        }
    }

    /// Builds the copy aside and renames it into place.
    fn publish_directory(
        &self,
        cx: &Cx<'_>,
        parent: &Lower,
        place: &Place,
        original: &Lower,
    ) -> Result<Arc<dyn Vnode>> {
        let server = self.server(cx);
        let attr: Attr = original.vnode.getattr(cx)?;
        let (work, name, made) = self.begin_work(cx, parent.branch, |work, name| work.mkdir(&server, name, 0o700))?;
        let copy = made.vnode;
        let published = self.copy_attributes(cx, &original.vnode, &attr, &copy).and_then(|()| {
            self.keeping_times(cx, &parent.vnode, || {
                let flags = RenameFlags { no_replace: true, exchange: false };
                work.rename(&server, name.name()?, &parent.vnode, place.name()?, flags)
            })
        });
        if let Err(e) = published {
            if let Err(errno) = work.rmdir(&server, name.name()?) {
                tracing::warn!(%errno, "an unfinished directory stays in the work directory");
            }
            return Err(e);
        }
        Ok(copy)
    }
}
