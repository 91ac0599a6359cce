use super::lower::{CodedFile, blocking};
use super::patch::Undo;
use vnode::{Attr, Cx, Result, SetAttr};

impl CodedFile<'_> {
    /// Changes attributes, including the size. The last block, before or after the change, is
    /// re-encoded at its new length.
    pub(crate) fn resize(&self, cx: &Cx<'_>, set: &SetAttr, size: u64, new_size: u64) -> Result<Attr> {
        let cx = &blocking(cx);
        self.finish(cx, Undo::default(), |undo| {
            let rest = new_size % self.coding.block();
            if new_size < size && rest > 0 {
                self.rewrite(cx, undo, new_size / self.coding.block(), rest, |_| {})?;
            }
            self.lengthen_last(cx, undo, size, new_size)?;
            self.vnode.setattr(cx, set, Some(self.file))
        })
    }
}

/// Whether the change of size changes the length of a block.
pub(crate) const fn changes_blocks(block: u64, size: u64, new_size: u64) -> bool {
    if new_size < size { !new_size.is_multiple_of(block) } else { new_size > size && !size.is_multiple_of(block) }
}
