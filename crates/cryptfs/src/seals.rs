//! Sealed files of bound volumes: docs/formats/cryptfs.md.

use crate::blocks::{EncryptedBlocks, Seals, header_id, keys_of};
use cryptformat::{BlockDamage, HEADER, SEGMENT_SHIFT, SEGMENTS};
use std::ops::Range;
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::{FormatBlock, FormatHeader, Object, Seal, Sealed};

fn errno(file: &Object<'_>, damage: &BlockDamage) -> Errno {
    tracing::warn!(inode = file.id(), "seal in the header: {damage}");
    Errno::IO
}

impl Sealed for EncryptedBlocks {
    fn fixed(&self) -> usize {
        HEADER
    }

    fn segments(&self) -> usize {
        SEGMENTS
    }

    fn shift(&self) -> u32 {
        SEGMENT_SHIFT
    }

    fn read_seal(&self, _cx: &Cx<'_>, at: &FormatHeader<'_>) -> Result<Seal> {
        let id = header_id(at.header)?;
        let read = keys_of(at.opened)?.with(|keys| Ok(keys.open_header(id, at.header)))?;
        let cryptformat::Seal { size, shift, sums } = read.map_err(|damage| errno(at.file, &damage))?;
        Ok(Seal { size, shift, sums })
    }

    fn write_seal(&self, _cx: &Cx<'_>, at: &FormatHeader<'_>, seal: &Seal, header: &mut [u8]) -> Result<()> {
        let id = header_id(at.header)?;
        let seal = cryptformat::Seal { size: seal.size, shift: seal.shift, sums: seal.sums.clone() };
        let written = keys_of(at.opened)?.with(|keys| Ok(keys.seal_header(id, &seal, header)))?;
        written.map_err(|damage| errno(at.file, &damage))
    }

    fn weigh(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8]) -> Result<u128> {
        let id = header_id(at.header)?;
        keys_of(at.opened)?.with(|keys| Ok(keys.weigh(id, at.number, stored)))
    }

    fn broken(&self, _cx: &Cx<'_>, file: &Object<'_>, bytes: Range<u64>) -> Result<()> {
        let inode = file.id();
        if bytes.is_empty() {
            tracing::warn!(inode, "the file was cut or extended below: it is {} bytes long now", bytes.end);
        } else {
            let (first, last) = (bytes.start, bytes.end - 1);
            tracing::warn!(inode, "bytes {first} to {last}: a block was put back, removed, or replaced by a hole");
        }
        if self.seals == Some(Seals::Ignored) { Ok(()) } else { Err(Errno::IO) }
    }
}
