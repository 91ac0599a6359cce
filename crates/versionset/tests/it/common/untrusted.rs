//! Version files with any bytes.

use super::{CX, content, create};
use memfs::MemFs;
use std::sync::Arc;
use versionset::{
    Compressed, Content, Delta, Index, Letter, Over, Partial, Sparse, SparseCompressed, Text, read_header, write_full,
};
use vnode::{Layer as _, OpenFile};

/// The formats with a header.
pub(crate) const FORMATS: [(Letter, &[u8; 8]); 5] = [
    (Letter::Compressed, b"VERSCMP1"),
    (Letter::Sparse, b"VERSSPA1"),
    (Letter::SparseCompressed, b"VERSSPZ1"),
    (Letter::Delta, b"VERSDLT1"),
    (Letter::Text, b"VERSTXT1"),
];

/// Opens a version file over `newer`.
pub(crate) fn open(
    letter: Letter,
    file: Arc<dyn OpenFile>,
    len: u64,
    newer: Arc<dyn Content>,
) -> vnode::Result<Arc<dyn Content>> {
    fn over<P: Partial + 'static>(partial: P, newer: Arc<dyn Content>) -> Arc<dyn Content> {
        Arc::new(Over::new(partial, newer))
    }
    Ok(match letter {
        Letter::Compressed => Arc::new(Compressed::open(&CX, file, len)?),
        Letter::Sparse => Arc::new(Sparse::open(&CX, file, len, newer)?),
        Letter::SparseCompressed => over(SparseCompressed::open(&CX, file, len)?, newer),
        Letter::Delta => over(Delta::open(&CX, file, len)?, newer),
        _ => over(Text::open(&CX, file, len)?, newer),
    })
}

/// Reads a version file with these bytes in every way.
pub(crate) fn exercise(letter: Letter, bytes: &[u8], offsets: &[u64]) {
    let file = create(&MemFs::new().root(), b"x");
    write_full(&CX, &*file, bytes, 0).unwrap();
    let len = bytes.len() as u64;
    let _ = read_header(&CX, letter, &*file, len);
    let Ok(version) = open(letter, file, len, content(&[7; 10_000])) else { return };
    let mut out = vec![0; 20_000];
    for offset in offsets.iter().copied().chain([0, version.size().saturating_sub(1)]) {
        if let Ok(read) = version.read_at(&CX, &mut out, offset) {
            assert_eq!(read as u64, version.size().saturating_sub(offset).min(out.len() as u64));
        }
    }
}

/// Corrects the magic and the checksums, as far as there are enough bytes, so that the bytes get
/// past the first checks.
pub(crate) fn correct(magic: &[u8; 8], bytes: &mut [u8]) {
    let Some(start) = bytes.get_mut(..8) else { return };
    start.copy_from_slice(magic);
    let Some(header) = bytes.get(24..28).map(|len| u32::from_le_bytes(len.try_into().unwrap()) as usize) else {
        return;
    };
    put(bytes, 28, 0..28, 32..32 + header);
    let table = 32 + header;
    let Some(len) = bytes.get(table..table + 4).map(|len| u32::from_le_bytes(len.try_into().unwrap()) as usize) else {
        return;
    };
    // A table that is not compressed.
    if bytes.len() >= table + 8 {
        bytes.copy_within(table..table + 4, table + 4);
    }
    put(bytes, table + 8, table..table + 8, table + 12..table + 12 + len);
}

fn put(bytes: &mut [u8], at: usize, one: std::ops::Range<usize>, other: std::ops::Range<usize>) {
    let (Some(one), Some(other)) = (bytes.get(one), bytes.get(other)) else { return };
    let sum = crc32c::crc32c_append(crc32c::crc32c(one), other);
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}

/// Parses any bytes as an index, and writes it anew.
pub(crate) fn exercise_index(bytes: &[u8]) {
    let (index, _) = Index::parse(bytes);
    let (again, condition) = Index::parse(&index.to_bytes());
    assert_eq!(condition, versionset::Condition::Complete);
    assert_eq!(again.versions, index.versions);
}
