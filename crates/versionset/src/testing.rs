//! Helpers of the unit tests.

use crate::content::{Content, Plain, read_full, write_full};
use crate::header::Header;
use crate::version::tests::example;
use core::sync::atomic::{AtomicU64, Ordering};
use memfs::MemFs;
use std::sync::Arc;
use vnode::{Cx, Errno, Layer as _, Name, OpenFile, OpenFlags, Result};

/// Creates an empty file.
pub(crate) fn file(fs: &MemFs) -> Arc<dyn OpenFile> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
    let name = Name::new(name.as_bytes()).unwrap();
    fs.root().create(&Cx::internal(0, 0), name, 0o600, OpenFlags::RDWR).unwrap().1
}

/// Returns a content with these bytes.
pub(crate) fn of(fs: &MemFs, bytes: &[u8]) -> Plain {
    let file = file(fs);
    write_full(&Cx::internal(0, 0), &*file, bytes, 0).unwrap();
    Plain::new(file, bytes.len() as u64)
}

pub(crate) fn length(cx: &Cx<'_>, file: &dyn OpenFile) -> u64 {
    whole(cx, file).len() as u64
}

/// Reads a file.
pub(crate) fn whole(cx: &Cx<'_>, file: &dyn OpenFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        match read_full(cx, file, &mut buffer, bytes.len() as u64).unwrap() {
            0 => return bytes,
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

/// Returns a file with the same bytes.
pub(crate) fn put(fs: &MemFs, cx: &Cx<'_>, from: &Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
    let copy = file(fs);
    write_full(cx, &*copy, &whole(cx, &**from), 0).unwrap();
    copy
}

pub(crate) fn header() -> Header {
    Header { version: example(8), xattrs: vec![(b"user.x".to_vec(), b"y".to_vec())] }
}

/// Reads a content.
pub(crate) fn all(cx: &Cx<'_>, content: &dyn Content) -> Result<Vec<u8>> {
    // The size of a damaged version may be anything.
    let mut bytes = vec![0; usize::try_from(content.size().min(10_000_000)).unwrap()];
    let read = content.read_at(cx, &mut bytes, 0)?;
    assert_eq!(read, bytes.len());
    Ok(bytes)
}

/// Returns bytes that compress well.
pub(crate) fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 31 + i / 4096 + seed) % 251).unwrap()).collect()
}

/// Returns bytes that do not compress.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    testkit::Rng::new(0).bytes(len)
}

/// Changes each of up to 3,000 bytes of a file. `open`, which gets the length, must then fail with
/// `EIO`, or the content does, or its bytes are right.
pub(crate) fn damage_is_an_error(
    cx: &Cx<'_>,
    file: &Arc<dyn OpenFile>,
    right: &[u8],
    open: impl Fn(u64) -> Result<Arc<dyn Content>>,
) {
    let undamaged = whole(cx, &**file);
    let check = |what: &str, at: usize, len: usize| match open(len as u64).and_then(|version| all(cx, &*version)) {
        Ok(read) => assert!(read == right, "{what} {at}"),
        Err(errno) => assert!(matches!(errno, Errno::IO | Errno::NOMEM), "{what} {at}: {errno}"),
    };
    for at in (0..undamaged.len()).step_by(undamaged.len() / 3000 + 1) {
        for mask in [0x01, 0x80, 0xff] {
            write_full(cx, &**file, &[undamaged[at] ^ mask], at as u64).unwrap();
            check("byte", at, undamaged.len());
        }
        write_full(cx, &**file, &undamaged[at..=at], at as u64).unwrap();
    }
}
