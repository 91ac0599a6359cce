//! Splitting content into blocks.

use crate::Content;
use fastcdc::v2020::FastCDC;
use vnode::{Cx, Result};

/// Sizes of blocks in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Content up to this size is one block.
    pub single: u32,
    /// Smallest block of larger content, except its last one.
    pub min: u32,
    /// Average size.
    pub avg: u32,
    /// Largest block, at most 1 MiB.
    pub max: u32,
}

/// Splits content at places that its bytes determine, so that an insertion changes only the blocks
/// around it.
pub(crate) struct Chunker<'a> {
    content: Content<'a>,
    sizes: BlockSizes,
    buffer: Vec<u8>,
    /// Where the bytes after those of the buffer begin in the content.
    next: u64,
    ended: bool,
    single: bool,
}

impl<'a> Chunker<'a> {
    /// Reads the first bytes.
    pub(crate) fn new(cx: &Cx<'_>, content: Content<'a>, sizes: BlockSizes) -> Result<Self> {
        let mut chunker = Self { content, sizes, buffer: Vec::new(), next: 0, ended: false, single: false };
        chunker.fill(cx, sizes.single as usize + 1)?;
        chunker.single = chunker.ended && chunker.buffer.len() <= sizes.single as usize;
        Ok(chunker)
    }

    fn fill(&mut self, cx: &Cx<'_>, len: usize) -> Result<()> {
        while !self.ended && self.buffer.len() < len {
            cx.check()?;
            let at = self.buffer.len();
            self.buffer.resize(len, 0);
            let read = (self.content)(self.buffer.get_mut(at..).unwrap_or_default(), self.next);
            self.buffer.truncate(at + *read.as_ref().unwrap_or(&0));
            let read = read?;
            self.next += read as u64;
            self.ended = read == 0;
        }
        Ok(())
    }

    /// Returns the next block, or `None` at the end.
    pub(crate) fn next(&mut self, cx: &Cx<'_>) -> Result<Option<Vec<u8>>> {
        if self.single {
            self.single = false;
            return Ok(Some(core::mem::take(&mut self.buffer)).filter(|block| !block.is_empty()));
        }
        self.fill(cx, self.sizes.max as usize)?;
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let BlockSizes { min, avg, max, .. } = self.sizes;
        let cutter = FastCDC::new(&self.buffer, min as usize, avg as usize, max as usize);
        let (_, end) = cutter.cut(0, self.buffer.len());
        let rest = self.buffer.split_off(end.clamp(1, self.buffer.len()));
        Ok(Some(core::mem::replace(&mut self.buffer, rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CX: Cx<'static> = Cx::internal(0, 0);
    const SIZES: BlockSizes = BlockSizes { single: 1000, min: 256, avg: 1024, max: 4096 };

    fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut read = |out: &mut [u8], at: u64| {
            let from = &bytes[at as usize..];
            // Short reads are not the end.
            let len = from.len().min(out.len()).min(700);
            out[..len].copy_from_slice(&from[..len]);
            Ok(len)
        };
        let mut chunker = Chunker::new(&CX, &mut read, SIZES).unwrap();
        core::iter::from_fn(|| chunker.next(&CX).unwrap()).collect()
    }

    #[test]
    fn small_content_is_one_block_and_the_rest_splits_at_its_bytes() {
        assert_eq!(split(b""), Vec::<Vec<u8>>::new());
        assert_eq!(split(&[1; 1000]), [vec![1; 1000]]);
        let mut bytes: Vec<u8> = (0..30_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let old = split(&bytes);
        assert_eq!(old.concat(), bytes);
        assert!(old.len() > 8 && old.iter().all(|block| block.len() <= 4096), "{}", old.len());
        bytes.splice(10_000..10_000, *b"inserted");
        let new = split(&bytes);
        assert_eq!(new.concat(), bytes);
        assert!(new.iter().filter(|block| !old.contains(block)).count() <= 3);
    }
}
