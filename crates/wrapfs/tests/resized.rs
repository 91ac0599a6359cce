//! Data of another size: programs see a file like any other, and stat, truncate, append, holes and copies are exact.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{ROOT, name};
use memfs::MemFs;
use std::sync::Arc;
use vnode::{Errno, Layer, OpenFile, OpenFlags, Result, SeekFrom, SetAttr, SetTime, Time};
use wrapfs::container::{BlockAt, BlockCodec};
use wrapfs::{Foreign, Template};

const APPEND: OpenFlags = OpenFlags(OpenFlags::WRONLY.0 | 0o2000);

/// Runs of a byte become its number and the byte.
#[derive(Debug)]
struct Runs;

impl BlockCodec for Runs {
    fn id(&self) -> [u8; 8] {
        *b"runs\0\0\0\0"
    }

    fn block_size(&self) -> u32 {
        4096
    }

    fn max_encoded(&self, plain: usize) -> usize {
        2 * plain
    }

    fn encode(&self, _at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        for run in plain.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(255)) {
            out.extend([run.len() as u8, run[0]]);
        }
        Ok(())
    }

    fn decode(&self, _at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let runs = encoded.chunks(2).map(|pair| (pair.first(), pair.get(1)));
        let mut plain = Vec::new();
        for (len, byte) in runs {
            let (Some(len), Some(byte)) = (len, byte) else { return Err(Errno::IO) };
            plain.resize(plain.len() + usize::from(*len), *byte);
        }
        if plain.len() != out.len() {
            return Err(Errno::IO);
        }
        out.copy_from_slice(&plain);
        Ok(())
    }
}

fn resized(lower: Arc<dyn Layer>, foreign: Foreign) -> Arc<dyn Layer> {
    Template::over(lower).resizing(Arc::new(Runs), foreign).build()
}

fn read_all(file: &dyn OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let len = file.read(&ROOT, &mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

/// What a file that changes its size can't promise: room that is set aside.
#[test]
fn layers_with_data_of_another_size_behave() {
    for foreign in [Foreign::Plain, Foreign::Refuse] {
        conformance::run_all(|| resized(MemFs::new(), foreign));
    }
    conformance::run_all(|| resized(resized(MemFs::new(), Foreign::Refuse), Foreign::Refuse));
}

#[test]
fn sizes_are_plain_ones_open_or_not() {
    let below = MemFs::new();
    let layer = resized(below.clone(), Foreign::Refuse);
    let root = layer.root();
    let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDONLY).unwrap();
    assert_eq!(file.write(&ROOT, b"x", 0), Err(Errno::BADF));
    let writer = entry.vnode.open(&ROOT, APPEND).unwrap();
    writer.write(&ROOT, &[7; 100_000], 0).unwrap();
    writer.write(&ROOT, &[8; 5], 0).unwrap();
    assert_eq!(writer.read(&ROOT, &mut [0; 5], 0), Err(Errno::BADF));
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().size, 100_005);
    assert!(read_all(&*file).ends_with(&[7, 8, 8, 8, 8, 8]));
    drop((file, writer));
    assert_eq!(root.lookup(&ROOT, name("f")).unwrap().unwrap().attr.size, 100_005);
    // It is smaller below than its data.
    let lower = below.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    assert!(lower.attr.blocks * 512 < 50_000, "{} blocks", lower.attr.blocks);
    let again = resized(below, Foreign::Refuse);
    let found = again.root().lookup(&ROOT, name("f")).unwrap().unwrap();
    assert_eq!(found.attr.size, 100_005);
    let cut = SetAttr { size: Some(3), mode: Some(0o600), ..SetAttr::default() };
    let attr = found.vnode.setattr(&ROOT, &cut, None).unwrap();
    assert_eq!((attr.size, attr.perm()), (3, 0o600));
    assert_eq!(read_all(&*found.vnode.open(&ROOT, OpenFlags::RDWR).unwrap()), [7, 7, 7]);
    found.vnode.open(&ROOT, OpenFlags::WRONLY.with_trunc()).unwrap();
    assert_eq!(found.vnode.getattr(&ROOT).unwrap().size, 0);
}

#[test]
fn ranges_are_zeroed_and_holes_found() {
    const PUNCH: u32 = 3;
    const ZERO: u32 = 0x10;
    let root = resized(MemFs::new(), Foreign::Plain).root();
    let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &[7; 10_000], 0).unwrap();
    file.fallocate(&ROOT, PUNCH, 4000, 5000).unwrap();
    file.fallocate(&ROOT, ZERO, 9_900, 200).unwrap();
    let mut expected = vec![7; 10_000];
    expected[4000..9000].fill(0);
    expected[9900..].fill(0);
    expected.resize(10_100, 0);
    assert!(read_all(&*file) == expected);
    assert_eq!(file.seek(&ROOT, 0, SeekFrom::Hole), Ok(4096));
    assert_eq!(file.fallocate(&ROOT, 0, 0, 100), Err(Errno::OPNOTSUPP));
    let (_, copy) = root.create(&ROOT, name("copy"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(copy.copy_from(&ROOT, 50, &*file, 0, 1 << 20), Ok(10_100));
    assert!(read_all(&*copy)[50..] == expected);
    assert_eq!(
        file.copy_from(&ROOT, 10, &*entry.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap(), 0, 99),
        Err(Errno::INVAL)
    );
    assert_eq!(copy.reflink_from(&ROOT, &*file), Err(Errno::OPNOTSUPP));
}

#[test]
fn files_that_are_no_containers_are_left_alone() {
    let below = MemFs::new();
    let (_, plain) = below.root().create(&ROOT, name("plain"), 0o644, OpenFlags::RDWR).unwrap();
    plain.write(&ROOT, b"as it is", 0).unwrap();
    let (_, zeros) = below.root().create(&ROOT, name("zeros"), 0o644, OpenFlags::RDWR).unwrap();
    zeros.write(&ROOT, &[0; 5000], 0).unwrap();
    for at in ["plain", "zeros"] {
        let found = resized(below.clone(), Foreign::Plain).root().lookup(&ROOT, name(at)).unwrap().unwrap();
        let lower = below.root().lookup(&ROOT, name(at)).unwrap().unwrap();
        assert_eq!(found.attr.size, lower.attr.size);
        let file = found.vnode.open(&ROOT, APPEND).unwrap();
        file.write(&ROOT, b" now", 0).unwrap();
        assert!(read_all(&*lower.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap()).ends_with(b" now"));
    }
    let refused = resized(below, Foreign::Refuse).root();
    let found = refused.lookup(&ROOT, name("plain")).unwrap().unwrap();
    assert_eq!(found.vnode.open(&ROOT, OpenFlags::RDWR).map(|_| ()), Err(Errno::MEDIUMTYPE));
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    assert_eq!(found.vnode.setattr(&ROOT, &cut, None), Err(Errno::MEDIUMTYPE));
    assert_eq!(found.attr.size, 12);
    refused.unlink(&ROOT, name("plain")).unwrap();
}

/// What a container notes for itself does not move the time of the last change.
#[test]
fn times_that_were_set_stay() {
    let root = resized(MemFs::new(), Foreign::Refuse).root();
    let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &[7; 10_000], 0).unwrap();
    let time = Time { sec: 1000, nsec: 5 };
    let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
    entry.vnode.setattr(&ROOT, &set, Some(&*file)).unwrap();
    file.fsync(&ROOT, false).unwrap();
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().mtime, time);
    drop(file);
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().mtime, time);
}
