//! The beginning of the version files that are written at once: compressed versions and deltas.

use crate::content::read_exact;
use crate::header::{Header, MAX_HEADER};
use crate::wire::{Reader, Writer};
use vnode::{Cx, Errno, OpenFile, Result};

/// Length of the part before the header: the magic, the size, the base, the length of the header,
/// and the checksum of all that and the header.
const FIXED: u64 = 32;

/// What the beginning of a version file says.
#[derive(Debug)]
pub(crate) struct Start {
    /// Size of the content in bytes.
    pub(crate) size: u64,
    /// Number of the oldest version that missing bytes may come from; 0 if none are missing.
    pub(crate) base: u64,
    /// Attributes.
    pub(crate) header: Header,
    /// Where the rest of the file begins.
    pub(crate) end: u64,
}

/// Returns the bytes of a beginning.
///
/// # Errors
/// `E2BIG` if the extended attributes are too large.
pub(crate) fn encode(magic: &[u8; 8], size: u64, base: u64, header: &Header) -> Result<Vec<u8>> {
    let header = header.encode().ok_or(Errno::TOOBIG)?;
    let mut out = Writer::default();
    out.0.extend_from_slice(magic);
    out.u64(size);
    out.u64(base);
    out.u32(u32::try_from(header.len()).map_err(|_| Errno::TOOBIG)?);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&out.0), &header);
    out.u32(sum);
    out.0.extend_from_slice(&header);
    Ok(out.0)
}

/// Reads and checks the beginning of a file.
///
/// # Errors
/// `EIO` if it is damaged; errors of the layer below.
pub(crate) fn read(cx: &Cx<'_>, file: &dyn OpenFile, magic: &[u8; 8]) -> Result<Start> {
    let fixed = read_exact(cx, file, 0, FIXED)?;
    let mut from = Reader(&fixed);
    let is_ours = from.take(magic.len()) == Some(magic);
    let (size, base) = (from.u64().ok_or(Errno::IO)?, from.u64().ok_or(Errno::IO)?);
    let (len, sum) = (from.u32().ok_or(Errno::IO)?, from.u32().ok_or(Errno::IO)?);
    if !is_ours || len as usize > MAX_HEADER || size > i64::MAX.cast_unsigned() {
        return Err(Errno::IO);
    }
    let header = read_exact(cx, file, FIXED, len.into())?;
    let checked = fixed.get(..fixed.len() - 4).unwrap_or_default();
    if crc32c::crc32c_append(crc32c::crc32c(checked), &header) != sum {
        return Err(Errno::IO);
    }
    let header = Header::decode(&header).ok_or(Errno::IO)?;
    Ok(Start { size, base, header, end: FIXED + u64::from(len) })
}
