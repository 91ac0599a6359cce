//! Compression of blocks with Zstandard, alone or as the difference to a similar block.

use vnode::{Errno, Result};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound};

/// The first bytes of every Zstandard frame. They are not stored.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Compresses `plain`; `prefix` is the similar block. Returns a frame without its magic number.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn compress(level: i32, plain: &[u8], prefix: Option<&[u8]>) -> Result<Vec<u8>> {
    let failed = |_| Errno::NOMEM;
    let mut context = CCtx::try_create().ok_or(Errno::NOMEM)?;
    // The window must reach back to the start of the prefix.
    let window = (plain.len() + prefix.map_or(0, <[u8]>::len)).next_power_of_two().max(1024).ilog2();
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::WindowLog(window),
    ] {
        context.set_parameter(parameter).map_err(failed)?;
    }
    if let Some(prefix) = prefix {
        context.ref_prefix(prefix).map_err(failed)?;
    }
    let mut frame = Vec::with_capacity(compress_bound(plain.len()));
    context.compress2(&mut frame, plain).map_err(failed)?;
    Ok(frame.get(MAGIC.len()..).unwrap_or_default().to_vec())
}

/// Reverses [`compress`] for a block of `len` plain bytes.
///
/// # Errors
/// `EIO` if `frame` is no frame of `len` bytes; `ENOMEM`.
pub(crate) fn decompress(frame: &[u8], len: usize, prefix: Option<&[u8]>) -> Result<Vec<u8>> {
    let whole = [&MAGIC, frame].concat();
    let mut context = DCtx::try_create().ok_or(Errno::NOMEM)?;
    if let Some(prefix) = prefix {
        context.ref_prefix(prefix).map_err(|_| Errno::NOMEM)?;
    }
    let mut plain = Vec::with_capacity(len);
    context.decompress(&mut plain, &whole).map_err(|_| Errno::IO)?;
    if plain.len() == len { Ok(plain) } else { Err(Errno::IO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_small_and_needs_its_prefix() {
        let old: Vec<u8> = (0..20_000_u32).flat_map(|i| (i.wrapping_mul(2_654_435_761) >> 7).to_le_bytes()).collect();
        let mut new = old.clone();
        new.splice(30_000..30_010, *b"another text");
        let alone = compress(19, &new, None).unwrap();
        let difference = compress(19, &new, Some(&old)).unwrap();
        assert!(difference.len() < 100 && alone.len() > 10_000, "{} {}", difference.len(), alone.len());
        assert_eq!(decompress(&alone, new.len(), None), Ok(new.clone()));
        assert_eq!(decompress(&difference, new.len(), Some(&old)), Ok(new.clone()));
        assert!(decompress(&difference, new.len(), None) != Ok(new.clone()));
        assert_eq!(decompress(&alone, new.len() - 1, None), Err(Errno::IO));
        assert_eq!(decompress(&alone, new.len() + 1, None), Err(Errno::IO));
    }
}
