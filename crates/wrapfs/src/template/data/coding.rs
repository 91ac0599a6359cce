use super::super::guard::guard;
use super::super::inverse;
use super::super::table::Table;
use super::inode::Inode;
use super::scratch::Scratch;
use super::zero::is_zero;
use crate::hooks::{Block, Data, MAX_BLOCK};
use std::sync::Arc;
use vnode::{Cx, Result};

/// Approximate number of bytes that are encoded and passed to the layer below at a time: small
/// enough for the second-level cache.
const CHUNK: usize = 256 << 10;

/// A [`Data`] hook in use.
#[derive(Debug)]
pub(crate) struct Coding {
    pub(crate) hook: Box<dyn Data>,
    pub(crate) table: Arc<Table<Inode>>,
    block: usize,
}

impl Coding {
    pub(crate) fn new(hook: Box<dyn Data>) -> Self {
        let returned = guard("block_size", || Ok(hook.block_size())).unwrap_or(0);
        let block = returned.clamp(1, MAX_BLOCK);
        if block != returned {
            tracing::error!(?hook, "block_size returned {returned}, which is out of range: using {block}");
        }
        Self { hook, table: Table::new(), block }
    }

    /// Returns the block size in bytes.
    pub(crate) const fn block(&self) -> u64 {
        self.block as u64
    }

    /// Returns the number of bytes processed at a time, in whole blocks.
    pub(crate) const fn chunk(&self) -> usize {
        if self.block < CHUNK { CHUNK / self.block * self.block } else { self.block }
    }

    /// Encodes a block. Blocks of zeros are stored as zeros, so that a hole is a hole on both
    /// sides. The one block whose encoding would be zeros is stored as the encoding of zeros, which
    /// is therefore free.
    pub(crate) fn encode(&self, cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        if is_zero(plain) {
            encoded.fill(0);
            return Ok(());
        }
        guard("encode_data", || self.hook.encode_data(cx, at, plain, encoded))?;
        if is_zero(encoded) {
            let zeros = zeros(plain.len());
            guard("encode_data", || self.hook.encode_data(cx, at, &zeros, encoded))?;
        }
        if inverse::CHECKED { self.check(cx, at, plain, encoded) } else { Ok(()) }
    }

    /// Decodes what was just encoded and compares it, in debug builds.
    fn check(&self, cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &[u8]) -> Result<()> {
        let mut again = Scratch::take(plain.len());
        let decoded = self.decode(cx, at, encoded, &mut again);
        let input = || format!("block {} of inode {}", at.number, at.file.id());
        inverse::check(["encode_data", "decode_data"], input, plain, decoded.map(|()| &*again))
    }

    /// Decodes a block: the inverse of [`Self::encode`].
    pub(crate) fn decode(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        if is_zero(encoded) {
            plain.fill(0);
            return Ok(());
        }
        guard("decode_data", || self.hook.decode_data(cx, at, encoded, plain))?;
        if is_zero(plain) {
            let zeros = zeros(encoded.len());
            guard("decode_data", || self.hook.decode_data(cx, at, &zeros, plain))?;
        }
        Ok(())
    }
}

fn zeros(len: usize) -> Scratch {
    let mut zeros = Scratch::take(len);
    zeros.fill(0);
    zeros
}
