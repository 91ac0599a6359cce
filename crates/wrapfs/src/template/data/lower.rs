//! Access to the data of the file below.

use super::super::lower_io::{read_full, set_size, write_full};
use super::coding::Coding;
use super::scratch::Scratch;
use crate::hooks::{Block, Object, ObjectInfo};
use vnode::{Cx, OpenFile, Result, Vnode};

/// Maximum number of bytes that a thread that must not block reads or writes.
const QUICK: usize = 128 << 10;

/// Maximum size of a file.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// An encoded file, open for reading below, and for writing if it is written.
#[derive(Clone, Copy)]
pub(crate) struct CodedFile<'a> {
    pub(crate) coding: &'a Coding,
    pub(crate) vnode: &'a dyn Vnode,
    pub(crate) known: &'a dyn ObjectInfo,
    pub(crate) file: &'a dyn OpenFile,
}

/// Returns the same context with blocking allowed: something has been changed, or is about to be.
pub(crate) fn blocking<'a>(cx: &Cx<'a>) -> Cx<'a> {
    let mut cx = *cx;
    cx.may_block = true;
    cx
}

/// Fails with `MAY_BLOCK` if this many bytes take too long for a thread that must not block.
pub(crate) fn require_blocking_for(cx: &Cx<'_>, len: usize) -> Result<()> {
    if len > QUICK { cx.require_blocking() } else { Ok(()) }
}

impl CodedFile<'_> {
    pub(crate) fn object(&self) -> Object<'_> {
        Object::with(self.vnode, self.known)
    }

    pub(crate) fn size(&self, cx: &Cx<'_>) -> Result<u64> {
        Ok(self.vnode.getattr(cx)?.size)
    }

    /// Returns the offset of a block, or an offset beyond the maximum file size on overflow.
    pub(crate) fn start_of(&self, number: u64) -> u64 {
        number.saturating_mul(self.coding.block())
    }

    /// Fills `out`, or reads up to the end of the file. (A layer may return fewer bytes after an
    /// error.)
    pub(crate) fn read_below(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        read_full(self.file, cx, out, offset)
    }

    /// Writes as much as possible. Returns the number of bytes written, and the error if it is
    /// short.
    pub(crate) fn write_below(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> (usize, Result<()>) {
        write_full(self.file, cx, data, offset)
    }

    pub(crate) fn set_size_below(&self, cx: &Cx<'_>, size: u64) -> Result<()> {
        set_size(self.vnode, self.file, cx, size)
    }

    pub(crate) fn encode(&self, cx: &Cx<'_>, number: u64, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        self.coding.encode(cx, &Block { file: &self.object(), number }, plain, encoded)
    }

    pub(crate) fn decode(&self, cx: &Cx<'_>, number: u64, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        self.coding.decode(cx, &Block { file: &self.object(), number }, encoded, plain)
    }

    /// Reads an encoded block, up to the end of the file.
    pub(crate) fn old_block(&self, cx: &Cx<'_>, number: u64) -> Result<OldBlock> {
        let mut encoded = Scratch::take(self.coding.block() as usize);
        let len = self.read_below(cx, &mut encoded, self.start_of(number))?;
        Ok(OldBlock { encoded, len })
    }

    /// Reads and decodes a block, and pads `plain` with zeros.
    pub(crate) fn plain_block(&self, cx: &Cx<'_>, number: u64, plain: &mut [u8]) -> Result<OldBlock> {
        let old = self.old_block(cx, number)?;
        let whole = &mut Scratch::take(old.len);
        self.decode(cx, number, old.bytes(), whole)?;
        let kept = old.len.min(plain.len());
        let (head, tail) = plain.split_at_mut(kept);
        head.copy_from_slice(whole.get(..kept).unwrap_or_default());
        tail.fill(0);
        Ok(old)
    }
}

/// The bytes of an encoded block before it is changed.
pub(crate) struct OldBlock {
    encoded: Scratch,
    pub(crate) len: usize,
}

impl OldBlock {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.encoded.get(..self.len).unwrap_or_default()
    }
}
