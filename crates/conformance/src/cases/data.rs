//! File data.

use crate::fixture::{APPEND, ROOT, attr, bytes, dir, errno, file, name, read_from};
use std::sync::atomic::AtomicBool;
use vnode::{Cx, Errno, Layer, MAY_BLOCK, OpenFlags, SetAttr, Whence};

const PAGE: u64 = 4096;

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// Reads are short only at the end of the file.
pub fn reads_end_at_the_end(layer: &dyn Layer) {
    let root = layer.root();
    let content: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
    let f = file(&root, "f", &content).vnode;
    let open = f.open(&ROOT, OpenFlags::RDONLY).unwrap();
    assert_eq!(read_from(&*open, 0, 20_000), content);
    assert_eq!(read_from(&*open, 9_990, 20), content[9_990..]);
    assert_eq!(read_from(&*open, 4_000, 200), content[4_000..4_200]);
    assert!(read_from(&*open, 10_000, 20).is_empty());
    assert!(read_from(&*open, 1 << 40, 20).is_empty());
    assert!(read_from(&*open, 0, 0).is_empty());
}

/// Writes within the file, beyond its end, and of length zero.
pub fn writes_at_offsets(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"0123456789").vnode;
    let open = f.open(&ROOT, OpenFlags::RDWR).unwrap();
    assert_eq!(open.write(&ROOT, b"ab", 3), Ok(2));
    assert_eq!(open.write(&ROOT, b"", 100), Ok(0));
    assert_eq!(attr(&f).size, 10);
    assert_eq!(open.write(&ROOT, b"z", 12), Ok(1));
    assert_eq!(bytes(&f), b"012ab56789\0\0z");
    let big: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    assert_eq!(open.write(&ROOT, &big, 5), Ok(big.len()));
    assert_eq!(read_from(&*open, 5, big.len()), big);
}

/// Whatever offset is given.
pub fn appends_go_to_the_end(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"one").vnode;
    let (a, b) = (f.open(&ROOT, APPEND).unwrap(), f.open(&ROOT, APPEND).unwrap());
    a.write(&ROOT, b"two", 0).unwrap();
    b.write(&ROOT, b"three", 1).unwrap();
    a.write(&ROOT, b"four", 99).unwrap();
    assert_eq!(bytes(&f), b"onetwothreefour");
    let (_, made) = root.create(&ROOT, name("g"), 0o644, APPEND).unwrap();
    made.write(&ROOT, b"x", 0).unwrap();
    made.write(&ROOT, b"y", 0).unwrap();
    assert_eq!(read_from(&*made, 0, 9), b"xy");
}

/// Truncated data does not reappear; extended ranges are zeros.
pub fn truncating(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", &[b'x'; 5000]).vnode;
    assert_eq!(f.setattr(&ROOT, &size(4098), None).unwrap().size, 4098);
    assert_eq!(f.setattr(&ROOT, &size(9000), None).unwrap().size, 9000);
    let now = bytes(&f);
    assert!(now[..4098].iter().all(|&b| b == b'x') && now[4098..].iter().all(|&b| b == 0));
    let open = f.open(&ROOT, OpenFlags::RDWR).unwrap();
    assert_eq!(f.setattr(&ROOT, &size(0), Some(&*open)).unwrap().size, 0);
    assert_eq!(f.setattr(&ROOT, &size(1 << 33), Some(&*open)).unwrap().size, 1 << 33);
    assert_eq!(read_from(&*open, (1 << 33) - 2, 9), [0, 0]);
    let d = dir(&root, "d");
    assert_eq!(errno(d.setattr(&ROOT, &size(0), None)), Errno::ISDIR);
    let s = root.symlink(&ROOT, name("s"), b"f").unwrap().vnode;
    assert_eq!(errno(s.setattr(&ROOT, &size(0), None)), Errno::INVAL);
}

/// `O_TRUNC`
pub fn opening_with_truncation(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"bytes").vnode;
    let open = f.open(&ROOT, OpenFlags::RDWR.with_trunc()).unwrap();
    assert_eq!(attr(&f).size, 0);
    open.write(&ROOT, b"new", 0).unwrap();
    assert_eq!(bytes(&f), b"new");
    assert_eq!(errno(dir(&root, "d").open(&ROOT, OpenFlags::RDONLY)), Errno::ISDIR);
}

/// `SEEK_DATA` and `SEEK_HOLE`. A file system without holes reports only data.
pub fn holes_are_found(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"").vnode;
    let open = f.open(&ROOT, OpenFlags::RDWR).unwrap();
    let far = 1 << 20;
    open.write(&ROOT, b"data", far).unwrap();
    open.fsync(&ROOT, false).unwrap();
    let end = far + 4;
    let data = open.seek(&ROOT, 0, Whence::Data).unwrap();
    assert!(data <= far);
    assert_eq!(open.seek(&ROOT, far, Whence::Data), Ok(far));
    assert_eq!(open.seek(&ROOT, far, Whence::Hole), Ok(end));
    let hole = open.seek(&ROOT, 0, Whence::Hole).unwrap();
    assert_eq!(hole, if data == 0 { end } else { 0 });
    for whence in [Whence::Data, Whence::Hole] {
        assert_eq!(open.seek(&ROOT, end, whence), Err(Errno::NXIO));
    }
    assert_eq!(read_from(&*open, far - 2, 9), b"\0\0data");
    f.setattr(&ROOT, &size(4 * far), None).unwrap();
    assert!(matches!(open.seek(&ROOT, 2 * far, Whence::Data), Err(Errno::NXIO) | Ok(0x20_0000)));
}

/// `fallocate`, where supported.
pub fn allocating(layer: &dyn Layer) {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    let root = layer.root();
    let f = file(&root, "f", &[b'x'; 3 * PAGE as usize]).vnode;
    let open = f.open(&ROOT, OpenFlags::RDWR).unwrap();
    match open.fallocate(&ROOT, KEEP_SIZE, 0, 8 * PAGE) {
        Err(Errno::OPNOTSUPP) => return,
        other => other.unwrap(),
    }
    assert_eq!(attr(&f).size, 3 * PAGE);
    assert!(attr(&f).blocks >= 8 * PAGE / 512);
    open.fallocate(&ROOT, 0, 0, 4 * PAGE).unwrap();
    assert_eq!(attr(&f).size, 4 * PAGE);
    assert_eq!(open.fallocate(&ROOT, 0, 0, 0), Err(Errno::INVAL));
    match open.fallocate(&ROOT, PUNCH_HOLE | KEEP_SIZE, PAGE, PAGE) {
        Err(Errno::OPNOTSUPP) => return,
        other => other.unwrap(),
    }
    let now = bytes(&f);
    let filled = |byte: u8, page: usize| now[page * PAGE as usize..][..PAGE as usize].iter().all(|&b| b == byte);
    assert!(filled(b'x', 0) && filled(0, 1) && filled(b'x', 2) && filled(0, 3));
    assert_eq!(attr(&f).size, 4 * PAGE);
}

/// `copy_file_range` within a file and between two files.
pub fn copying(layer: &dyn Layer) {
    let root = layer.root();
    let content: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let from = file(&root, "from", &content).vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
    let target = file(&root, "to", b"").vnode;
    let to = target.open(&ROOT, OpenFlags::RDWR).unwrap();
    assert_eq!(to.copy_from(&ROOT, 0, &*from, 0, 100_000), Ok(100_000));
    assert_eq!(bytes(&target), content);
    assert_eq!(to.copy_from(&ROOT, 3, &*from, 99_990, 50), Ok(10));
    assert_eq!(read_from(&*to, 3, 10), content[99_990..]);
    assert_eq!(to.copy_from(&ROOT, 0, &*from, 100_000, 50), Ok(0));
    assert_eq!(to.copy_from(&ROOT, 0, &*from, 0, 0), Ok(0));
    assert_eq!(from.copy_from(&ROOT, 100_000, &*from, 0, 1000), Ok(1000));
    assert_eq!(read_from(&*from, 100_000, 2000), content[..1000]);
    assert_eq!(from.copy_from(&ROOT, 10, &*from, 0, 1000), Err(Errno::INVAL));
}

/// `EINTR` after the caller has been interrupted.
pub fn copies_can_be_interrupted(layer: &dyn Layer) {
    let root = layer.root();
    let from = file(&root, "from", b"bytes").vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
    let to = file(&root, "to", b"").vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
    let gave_up = AtomicBool::new(true);
    let cx = Cx::new(0, 0, 1, 0o022, true, &gave_up);
    assert_eq!(to.copy_from(&cx, 0, &*from, 0, 5), Err(Errno::INTR));
}

/// They succeed. Durability is tested elsewhere, with crashes.
pub fn flushes_and_syncs(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"bytes").vnode;
    let open = f.open(&ROOT, OpenFlags::RDWR).unwrap();
    open.write(&ROOT, b"x", 0).unwrap();
    open.flush(&ROOT).unwrap();
    open.fsync(&ROOT, true).unwrap();
    open.fsync(&ROOT, false).unwrap();
    root.fsync(&ROOT, false).unwrap();
    dir(&root, "d").fsync(&ROOT, true).unwrap();
    layer.sync(&ROOT).unwrap();
    // The file is still open.
    assert_eq!(read_from(&*open, 0, 9), b"xytes");
}

/// A nonblocking read returns everything or `MAY_BLOCK`, never a part.
pub fn nonblocking_reads(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", &[b'x'; 100_000]).vnode;
    let open = f.open(&ROOT, OpenFlags::RDONLY).unwrap();
    let never = AtomicBool::new(false);
    let cx = Cx::new(0, 0, 1, 0, false, &never);
    for (offset, expected) in [(0, 50_000), (99_000, 1_000), (100_000, 0)] {
        let mut out = vec![0; 50_000];
        let answer = open.read(&cx, &mut out, offset);
        assert!(answer == Ok(expected) || answer == Err(MAY_BLOCK), "{answer:?}");
    }
}

/// `EBADF` if the file is not open for the access.
pub fn access_modes_are_enforced(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"bytes").vnode;
    let (reader, writer) = (f.open(&ROOT, OpenFlags::RDONLY).unwrap(), f.open(&ROOT, OpenFlags::WRONLY).unwrap());
    assert_eq!(reader.write(&ROOT, b"x", 0), Err(Errno::BADF));
    assert_eq!(writer.read(&ROOT, &mut [0; 4], 0), Err(Errno::BADF));
    assert_eq!(bytes(&f), b"bytes");
}
