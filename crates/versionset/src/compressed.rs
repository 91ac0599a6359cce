//! Compressed versions: `foo;c8` (Versionfs paper, section 3.2, "Compress Mode").
//!
//! The whole content in chunks that are compressed separately with Zstandard, so a read decompresses
//! only what it needs. A chunk that does not shrink is stored as it is.

use crate::chunks::{CHUNK, ChunkReader, ChunkWriter};
use crate::content::{Content, clamp, fill_from};
use crate::header::Header;
use crate::names::Letter;
use crate::sparse::BLOCK;
use crate::start;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result};

const MAGIC: &[u8; 8] = b"VERSCMP1";

/// A compressed version.
#[derive(Debug)]
pub struct Compressed {
    chunks: ChunkReader,
}

impl Compressed {
    /// Whether compression can save space: not below one block of the lower file system.
    #[must_use]
    pub const fn worth_compressing(size: u64) -> bool {
        size > BLOCK
    }

    /// Writes `old` to `file`, which is empty. `level` is a Zstandard level (1 to 22, 0 for the
    /// default). Returns the length of the file in bytes, or `None` if it takes no fewer blocks than
    /// the content; the file is of no use then.
    ///
    /// # Errors
    /// `E2BIG` if the extended attributes are too large, `EINVAL` for the level; errors of `old` and
    /// of the layer below.
    pub fn write(
        cx: &Cx<'_>,
        file: Arc<dyn OpenFile>,
        header: &Header,
        old: &dyn Content,
        level: i32,
    ) -> Result<Option<u64>> {
        let size = old.size();
        let start = start::encode(MAGIC, size, 0, &header.stored_as(Letter::Compressed, size))?;
        crate::content::write_full(cx, &*file, &start, 0)?;
        let mut chunks = ChunkWriter::begin(file, start.len() as u64, size, level)?;
        let mut buffer = vec![0; CHUNK as usize];
        let mut at = 0;
        while at < size {
            let part = clamp(&mut buffer, at, size);
            fill_from(cx, old, part, at)?;
            at += part.len() as u64;
            chunks.add(cx, part)?;
        }
        let len = chunks.finish(cx)?;
        Ok((len.div_ceil(BLOCK) < size.div_ceil(BLOCK)).then_some(len))
    }

    /// Opens a compressed version of `len` bytes.
    ///
    /// # Errors
    /// `EIO` if the file is damaged; errors of the layer below.
    pub fn open(cx: &Cx<'_>, file: Arc<dyn OpenFile>, len: u64) -> Result<Self> {
        let start = start::read(cx, &*file, MAGIC)?;
        Ok(Self { chunks: ChunkReader::open(file, start.end, start.size, len)? })
    }

    /// Reads the header of a compressed version.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn header(cx: &Cx<'_>, file: &dyn OpenFile) -> Result<Header> {
        let start = start::read(cx, file, MAGIC)?;
        if start.header.version.letter == Letter::Compressed { Ok(start.header) } else { Err(Errno::IO) }
    }
}

impl Content for Compressed {
    fn size(&self) -> u64 {
        self.chunks.len()
    }

    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.chunks.read_at(cx, out, offset)
    }

    fn plain(&self) -> Option<&Arc<dyn OpenFile>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{all, bytes, damage_is_an_error, file, header, length, noise, of, put};
    use memfs::MemFs;

    fn stored(cx: &Cx<'_>, fs: &MemFs, old: &[u8]) -> (Arc<dyn OpenFile>, Option<u64>) {
        let dst = file(fs);
        let len = Compressed::write(cx, Arc::clone(&dst), &header(), &of(fs, old), 3).unwrap();
        assert!(len.is_none_or(|len| len == length(cx, &*dst)));
        (dst, len)
    }

    #[test]
    fn the_content_can_be_read_anywhere() {
        let fs = MemFs::new();
        let cx = Cx::internal(0, 0);
        for size in [0, 1, 4096, 4097, 131_071, 131_072, 131_073, 1_000_000] {
            for old in [bytes(size, 1), noise(size)] {
                let (dst, len) = stored(&cx, &fs, &old);
                let version = Compressed::open(&cx, Arc::clone(&dst), len.unwrap_or(u64::MAX)).unwrap();
                assert_eq!(all(&cx, &version).unwrap(), old);
                for at in [0, 1, size / 3, size.saturating_sub(1), size, size + 5] {
                    let mut out = vec![0; 140_000];
                    let read = version.read_at(&cx, &mut out, at as u64).unwrap();
                    assert_eq!(out[..read], old[at.min(size)..(at + out.len()).min(size)]);
                }
                let header = Compressed::header(&cx, &*dst).unwrap();
                assert_eq!(header.version.size, size as u64);
            }
        }
    }

    #[test]
    fn what_saves_nothing_is_reported() {
        let fs = MemFs::new();
        let cx = Cx::internal(0, 0);
        assert!(!Compressed::worth_compressing(4096) && Compressed::worth_compressing(4097));
        assert_eq!(stored(&cx, &fs, &noise(200_000)).1, None);
        assert_eq!(stored(&cx, &fs, &bytes(4096, 1)).1, None);
        let saved = stored(&cx, &fs, &vec![7; 200_000]).1.unwrap();
        assert!(saved < 4096, "{saved}");
    }

    #[test]
    fn damage_is_an_error_and_never_other_bytes() {
        let fs = MemFs::new();
        let cx = Cx::internal(0, 0);
        for old in [bytes(300_000, 1), noise(10_000), Vec::new()] {
            let (dst, _) = stored(&cx, &fs, &old);
            damage_is_an_error(&cx, &dst, &old, |len| Ok(Arc::new(Compressed::open(&cx, put(&fs, &cx, &dst), len)?)));
        }
    }
}
