//! A checked, compressed table of numbers in a version file.

use crate::content::read_exact;
use crate::wire::{Reader, Writer};
use vnode::{Cx, Errno, OpenFile, Result};

/// Largest table in bytes. Bounds the memory of an open version.
pub(crate) const MAX_TABLE: usize = 1024 * 1024;

/// Most entries of a table.
pub(crate) const MAX_ENTRIES: usize = 128 * 1024;

/// Length of the part before the table: its lengths before and after compression, a checksum.
const FIXED: u64 = 12;

/// Returns the bytes of a table. `None` if it is too large.
pub(crate) fn encode(plain: &[u8], level: i32) -> Option<Vec<u8>> {
    if plain.len() > MAX_TABLE {
        return None;
    }
    let compressed = zstd::bulk::compress(plain, level).ok().filter(|bytes| bytes.len() < plain.len());
    let stored = compressed.as_deref().unwrap_or(plain);
    let mut out = Writer::default();
    out.u32(u32::try_from(plain.len()).ok()?);
    out.u32(u32::try_from(stored.len()).ok()?);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&out.0), plain);
    out.u32(sum);
    out.0.extend_from_slice(stored);
    Some(out.0)
}

/// Reads a table at offset `at`. Returns it with the offset of its end.
///
/// # Errors
/// `EIO` if it is damaged; errors of the layer below.
pub(crate) fn read(cx: &Cx<'_>, file: &dyn OpenFile, at: u64) -> Result<(Vec<u8>, u64)> {
    let fixed = read_exact(cx, file, at, FIXED)?;
    let mut from = Reader(&fixed);
    let (plain_len, stored_len) = (from.u32().ok_or(Errno::IO)?, from.u32().ok_or(Errno::IO)?);
    let sum = from.u32().ok_or(Errno::IO)?;
    if plain_len as usize > MAX_TABLE || stored_len > plain_len {
        return Err(Errno::IO);
    }
    let mut table = read_exact(cx, file, at + FIXED, stored_len.into())?;
    if stored_len < plain_len {
        table = zstd::bulk::decompress(&table, plain_len as usize).map_err(|_| Errno::IO)?;
    }
    let checked = crc32c::crc32c(fixed.get(..8).unwrap_or_default());
    if table.len() != plain_len as usize || crc32c::crc32c_append(checked, &table) != sum {
        return Err(Errno::IO);
    }
    Ok((table, at + FIXED + u64::from(stored_len)))
}
