//! Writing.

use crate::batch::Batch;
use crate::container::Container;
use crate::geometry::{GROUP_BLOCKS, first_of, place_of};
use crate::head::Head;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Maximum number of plain bytes encoded before they are written; at least one block is.
const STEP: u64 = 1 << 20;

/// A partially written block and its new content.
type Patched = (u64, Arc<Vec<u8>>);

impl Container {
    /// Writes at `offset`; returns the length of a partial write. Blocks that are overwritten
    /// completely are not read first.
    ///
    /// # Errors
    /// `EFBIG`, `EIO` if a partially overwritten block can't be read, and errors of writing to the
    /// lower file.
    pub fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        cx.require_blocking()?;
        if data.is_empty() {
            return Ok(0);
        }
        let mut inner = self.inner.write();
        let head = self.head_for_change(cx, &mut inner)?;
        let room = head.fixed.geometry.max_size().checked_sub(offset).filter(|&room| room > 0).ok_or(Errno::FBIG)?;
        let data = data.get(..usize::try_from(room).unwrap_or(usize::MAX)).unwrap_or(data);
        let grows = offset + data.len() as u64 > head.state.size;
        if grows {
            self.clear_tail(cx, head)?;
        }
        let written = self.write_all(cx, head, data, offset);
        let counted = match written {
            Ok(n) if offset + n as u64 > head.state.size => self.set_size(cx, head, offset + n as u64),
            _ => Ok(()),
        };
        if grows && (counted.is_err() || written != Ok(data.len())) {
            // Blocks beyond the size may have been written.
            head.tail_is_clear = false;
            self.cache.forget_plain(..);
        }
        counted.and(written)
    }

    fn write_all(&self, cx: &Cx<'_>, head: &mut Head, data: &[u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write_step(cx, head, rest, offset + done as u64) {
                Ok(n) => done += n,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes to blocks of one group, at least to one block.
    fn write_step(&self, cx: &Cx<'_>, head: &mut Head, data: &[u8], offset: u64) -> Result<usize> {
        let size = head.fixed.geometry.block();
        let first = offset / size;
        let (group, _) = place_of(first);
        let last = (first_of(group) + GROUP_BLOCKS as u64).min(first + (STEP / size).max(1));
        let len = usize::try_from(last * size - offset).unwrap_or(usize::MAX).min(data.len());
        let data = data.get(..len).ok_or(Errno::IO)?;
        let patched = self.with_batch(cx, head, group, |this, head, batch| {
            let mut patched = Vec::new();
            let mut done = 0;
            while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
                let at = offset + done as u64;
                let portion = ((size - at % size) as usize).min(rest.len());
                patched.extend(this.stage(cx, head, batch, rest.get(..portion).unwrap_or(rest), at)?);
                done += portion;
            }
            Ok(patched)
        })?;
        for (block, plain) in patched {
            self.cache.put_plain(block, plain);
        }
        Ok(len)
    }

    /// Adds the new content of a block to the batch; `data` is the written part.
    fn stage(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        batch: &mut Batch<'_>,
        data: &[u8],
        offset: u64,
    ) -> Result<Option<Patched>> {
        let size = head.fixed.geometry.block();
        let (block, within) = (offset / size, (offset % size) as usize);
        let (_, at) = place_of(block);
        let end = within + data.len();
        let whole = within == 0 && (end as u64 == size || offset + data.len() as u64 >= head.state.size);
        if whole {
            batch.add(self, head, at, data)?;
            return Ok(None);
        }
        let old = self.plain(cx, head, block)?;
        let mut plain = Vec::with_capacity(size as usize);
        plain.extend_from_slice(&old);
        plain.resize(plain.len().max(end), 0);
        plain.get_mut(within..end).ok_or(Errno::IO)?.copy_from_slice(data);
        batch.add(self, head, at, &plain)?;
        Ok(Some((block, Arc::new(plain))))
    }
}
