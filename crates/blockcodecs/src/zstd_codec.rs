//! The codec for compression with Zstandard.

use container::{BlockAt, BlockCodec};
use core::fmt;
use core::ops::RangeInclusive;
use parking_lot::Mutex;
use vnode::{Errno, Result};
use zstd::bulk::{Compressor, Decompressor};

/// First byte of a block: the data follows uncompressed.
const RAW: u8 = 0;
/// First byte of a block: a Zstandard frame follows.
const FRAME: u8 = 1;

/// Maximum number of idle contexts that are kept.
const MAX_IDLE: usize = 16;

/// Compresses each block separately with Zstandard. A block that would not shrink by at least 1/32
/// is stored uncompressed.
pub struct Zstd {
    level: i32,
    block: u32,
    compressors: Mutex<Vec<Compressor<'static>>>,
    decompressors: Mutex<Vec<Decompressor<'static>>>,
}

impl Zstd {
    /// Returns the supported compression levels.
    #[must_use]
    pub fn levels() -> RangeInclusive<i32> {
        zstd::compression_level_range()
    }

    /// Creates a codec that uses blocks of `block` bytes in new files (a power of two, 512 to
    /// 1048576). Larger blocks compress better, smaller ones are faster for random reads. `level`
    /// is a Zstandard level: 1 to 22; 0 for the default; negative levels are faster still.
    ///
    /// # Errors
    /// `EINVAL` for an unsupported level.
    pub fn new(level: i32, block: u32) -> Result<Self> {
        if !Self::levels().contains(&level) {
            return Err(Errno::INVAL);
        }
        Ok(Self { level, block, compressors: Mutex::default(), decompressors: Mutex::default() })
    }

    /// Appends a frame to `out` and returns true. If compression saves too little, leaves `out`
    /// unchanged and returns false.
    fn compress(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let start = out.len();
        let limit = plain.len() - plain.len() / 32;
        out.resize(start + limit, 0);
        let known = self.compressors.lock().pop();
        let mut compressor = match known {
            Some(compressor) => compressor,
            None => Compressor::new(self.level).map_err(|_| Errno::NOMEM)?,
        };
        // This fails if the frame does not fit.
        let len = compressor.compress_to_buffer(plain, out.get_mut(start..).unwrap_or(&mut [])).ok();
        keep(&self.compressors, compressor);
        out.truncate(start + len.unwrap_or(0));
        Ok(len.is_some())
    }
}

fn keep<T>(pool: &Mutex<Vec<T>>, context: T) {
    let mut pool = pool.lock();
    if pool.len() < MAX_IDLE {
        pool.push(context);
    }
}

impl BlockCodec for Zstd {
    fn id(&self) -> [u8; 8] {
        *b"zstd\0\0\0\0"
    }

    fn block_size(&self) -> u32 {
        self.block
    }

    fn max_encoded(&self, plain: usize) -> usize {
        plain + 1
    }

    fn encode(&self, _at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.push(FRAME);
        if !self.compress(plain, out)? {
            out.truncate(start);
            out.push(RAW);
            out.extend_from_slice(plain);
        }
        Ok(())
    }

    fn decode(&self, _at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        match encoded.split_first() {
            Some((&RAW, plain)) if plain.len() == out.len() => {
                out.copy_from_slice(plain);
                Ok(())
            }
            Some((&FRAME, frame)) => {
                let known = self.decompressors.lock().pop();
                let mut decompressor = match known {
                    Some(decompressor) => decompressor,
                    None => Decompressor::new().map_err(|_| Errno::NOMEM)?,
                };
                let len = decompressor.decompress_to_buffer(frame, out).map_err(|_| Errno::IO);
                keep(&self.decompressors, decompressor);
                if len? == out.len() { Ok(()) } else { Err(Errno::IO) }
            }
            _ => Err(Errno::IO),
        }
    }
}

impl fmt::Debug for Zstd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zstd(level {}, blocks of {})", self.level, self.block)
    }
}
