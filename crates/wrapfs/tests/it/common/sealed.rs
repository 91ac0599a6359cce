//! A format with seals. Its sums need no key, so only accidents are detected, and tests that know
//! no key can't forge them.

use super::format::{ID, Summed};
use conformance::fixture::{ROOT, name};
use memfs::Faults;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wrapfs::Template;
use wrapfs::hooks::{FileFormat, FormatBlock, FormatHeader, Journal, Layout, Object, Seal, Sealed};
use wrapfs::vnode::{Cx, Errno, Layer, OpenFlags, Result};

/// Number of sums.
const SUMS: usize = 6;
/// Bytes of a header: the ID, the size, the shift, the sums, and a checksum.
pub(crate) const HEADER: usize = ID + 8 + 1 + 16 * SUMS + 8;

pub(crate) const JOURNAL: &[u8] = b"test.journal";

/// [`Summed`] with a seal.
#[derive(Debug, Default)]
pub(crate) struct SealedSums {
    /// Broken files are used as they are.
    pub(crate) ignores: bool,
    /// Faults end when this block is encoded.
    pub(crate) ends_faults: Option<(u64, Faults)>,
    /// Counts the weighed blocks, each of which takes a millisecond then.
    pub(crate) weighed: Option<Arc<AtomicUsize>>,
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl FileFormat for SealedSums {
    fn sealed(&self) -> Option<&dyn Sealed> {
        Some(self)
    }

    fn new_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &mut [u8]) -> Result<()> {
        assert_eq!(header.len(), HEADER);
        Summed.new_header(cx, file, &mut header[..ID])
    }

    fn check_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &[u8]) -> Result<()> {
        Summed.check_header(cx, file, header)
    }

    fn encode_block(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        if let Some((_, faults)) = self.ends_faults.as_ref().filter(|(number, _)| *number == at.number) {
            faults.disarm();
        }
        Summed.encode_block(cx, at, plain, stored)
    }

    fn decode_block(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        Summed.decode_block(cx, at, stored, plain)
    }
}

impl Sealed for SealedSums {
    fn fixed(&self) -> usize {
        ID
    }

    fn segments(&self) -> usize {
        SUMS
    }

    fn shift(&self) -> u32 {
        1
    }

    fn read_seal(&self, _cx: &Cx<'_>, at: &FormatHeader<'_>) -> Result<Seal> {
        let (body, sum) = at.header.split_at(HEADER - 8);
        if hash(body).to_le_bytes() != sum {
            return Err(Errno::IO);
        }
        let size = u64::from_le_bytes(body[ID..ID + 8].try_into().unwrap());
        let sums = body[ID + 9..].chunks(16).map(|sum| u128::from_le_bytes(sum.try_into().unwrap())).collect();
        Ok(Seal { size, shift: body[ID + 8].into(), sums })
    }

    fn write_seal(&self, _cx: &Cx<'_>, at: &FormatHeader<'_>, seal: &Seal, header: &mut [u8]) -> Result<()> {
        assert!(seal.sums.len() <= SUMS, "{seal:?}");
        header.fill(0);
        header[..ID].copy_from_slice(&at.header[..ID]);
        header[ID..ID + 8].copy_from_slice(&seal.size.to_le_bytes());
        header[ID + 8] = seal.shift as u8;
        header[ID + 9..].chunks_mut(16).zip(&seal.sums).for_each(|(to, sum)| to.copy_from_slice(&sum.to_le_bytes()));
        let sum = hash(&header[..HEADER - 8]);
        header[HEADER - 8..].copy_from_slice(&sum.to_le_bytes());
        Ok(())
    }

    fn weigh(&self, _cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8]) -> Result<u128> {
        if let Some(weighed) = &self.weighed {
            weighed.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if stored.iter().all(|&byte| byte == 0) {
            return Ok(0);
        }
        let low = hash(&[&at.header[..ID], &at.number.to_le_bytes(), stored].concat());
        Ok(u128::from(low).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834))
    }

    fn broken(&self, _cx: &Cx<'_>, _file: &Object<'_>, _bytes: Range<u64>) -> Result<()> {
        if self.ignores { Ok(()) } else { Err(Errno::IO) }
    }
}

pub(crate) fn layout(plain: u32) -> Layout {
    Layout::new(HEADER as u32, plain, plain + 9).unwrap()
}

pub(crate) fn sealed(below: Arc<dyn Layer>, plain: u64) -> Arc<dyn Layer> {
    let format = SealedSums::default();
    Template::over(below).format(layout(plain as u32), format).journal(Journal::new(JOURNAL)).build().unwrap()
}

/// Reads the file `f` through a new layer, in pieces of `piece` bytes.
pub(crate) fn read_anew(below: Arc<dyn Layer>, plain: u64, piece: usize) -> Result<Vec<u8>> {
    let layer = sealed(below, plain);
    let vnode = layer.root().lookup(&ROOT, name("f"))?.ok_or(Errno::NOENT)?.vnode;
    let file = vnode.open(&ROOT, OpenFlags::RDONLY)?;
    let size = vnode.getattr(&ROOT)?.size as usize;
    let mut bytes = vec![0xee; size];
    for (index, part) in bytes.chunks_mut(piece).enumerate() {
        assert_eq!(file.read(&ROOT, part, (index * piece) as u64)?, part.len());
    }
    Ok(bytes)
}
