//! Random changes compared with a copy in memory: the same bytes, size and holes, also after each
//! reopening.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{CX, Change, Growing, Runs, contents, expected_seek, lower, open, place, random_change};
use container::{BlockCodec, Container, Probe, plain_size, probe};
use memfs::MemFs;
use proptest::prelude::*;
use std::sync::Arc;
use testkit::Rng;
use vnode::{Errno, Whence};

fn codec(which: u8, block: u32) -> Arc<dyn BlockCodec> {
    if which == 0 { Arc::new(Growing(block)) } else { Arc::new(Runs(block)) }
}

/// Compares everything that can be queried.
fn check(file: &Container, bytes: &[u8], block: u64, random: &mut Rng) {
    assert_eq!(file.size(), bytes.len() as u64);
    assert!(contents(file).unwrap() == bytes, "the contents differ");
    let end = bytes.len() as u64 + block;
    for _ in 0..4 {
        let (offset, len) = (place(random, block, end), place(random, block, end) as usize);
        let mut out = vec![0xee; len];
        let n = file.read(&CX, &mut out, offset).unwrap();
        let expected = bytes.get(offset as usize..).unwrap_or(&[]);
        let expected = &expected[..expected.len().min(len)];
        assert!(out[..n] == *expected, "{n} bytes at {offset}");
        for whence in [Whence::Data, Whence::Hole] {
            let expected = expected_seek(bytes, block as usize, offset, whence);
            assert_eq!(file.seek(&CX, offset, whence), expected, "{whence:?} at {offset}");
        }
    }
}

fn scenario(which: u8, block: u32, groups: u64, steps: u32, seed: u64) {
    let codec = codec(which, block);
    let fs = MemFs::new();
    let mut random = Rng::new(seed);
    let mut file = open(&codec, &fs).unwrap();
    let mut bytes = Vec::new();
    let most = (u64::from(block) * 48 * groups).clamp(1, 2 << 20).max(u64::from(block) * 3);
    for step in 0..steps {
        let change = random_change(&mut random, u64::from(block), most);
        change.apply(&file).unwrap();
        change.apply_to(&mut bytes);
        if random.below(8) == 0 {
            if random.below(2) == 0 {
                file.close(&CX).unwrap();
            }
            file = open(&codec, &fs).unwrap();
        }
        if random.below(6) == 0 || step + 1 == steps {
            check(&file, &bytes, u64::from(block), &mut random);
            assert_eq!(plain_size(&CX, &*lower(&fs).1), Ok(Some(bytes.len() as u64)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_blocks_many_groups(which in 0u8..2, bits in 9u32..13, seed: u64) {
        scenario(which, 1 << bits, 3, 120, seed);
    }

    #[test]
    fn large_blocks(which in 0u8..2, bits in 13u32..21, seed: u64) {
        scenario(which, 1 << bits, 1, 40, seed);
    }
}

/// One change at each combination of sizes and offsets around the boundaries.
#[test]
fn around_the_borders() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(512));
    let edges = [0, 1, 511, 512, 513, 1023, 1024, 1025, 512 * 48 - 1, 512 * 48, 512 * 48 + 1, 512 * 96 + 7];
    let mut random = Rng::new(1);
    for size in edges {
        for place in edges {
            for change in [
                Change::Truncate(place),
                Change::Write { offset: place, data: vec![9; 700] },
                Change::Punch { offset: place, len: 600 },
            ] {
                let fs = MemFs::new();
                let file = open(&codec, &fs).unwrap();
                let mut bytes = vec![5; size as usize];
                if size > 0 {
                    file.write(&CX, &bytes, 0).unwrap();
                }
                change.apply(&file).unwrap();
                change.apply_to(&mut bytes);
                check(&file, &bytes, 512, &mut random);
                check(&open(&codec, &fs).unwrap(), &bytes, 512, &mut random);
                // Truncated data does not reappear.
                let grown = bytes.len() as u64 + 3000;
                file.truncate(&CX, grown).unwrap();
                bytes.resize(grown as usize, 0);
                check(&open(&codec, &fs).unwrap(), &bytes, 512, &mut random);
            }
        }
    }
}

#[test]
fn a_read_reads_only_the_needed_blocks() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(4096));
    let fs = MemFs::new();
    open(&codec, &fs).unwrap().write(&CX, &[7; 400 * 4096], 0).unwrap();
    let file = open(&codec, &fs).unwrap();
    fs.faults().record();
    let mut out = [0; 100];
    file.read(&CX, &mut out, 4096 * 300 + 17).unwrap();
    // One read for the group's index, one for the block.
    assert_eq!(fs.faults().log(), [memfs::Op::Read; 2]);
    file.read(&CX, &mut out, 4096 * 300 + 117).unwrap();
    assert_eq!(fs.faults().log().len(), 2);
    let mut out = [0; 40 * 4096];
    file.read(&CX, &mut out, 4096 * 290).unwrap();
    assert_eq!(fs.faults().log(), [memfs::Op::Read; 3]);
}

#[test]
fn zeros_take_no_space_and_small_files_are_dense() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(65536));
    let fs = MemFs::new();
    let file = open(&codec, &fs).unwrap();
    file.write(&CX, &[3; 100], 0).unwrap();
    let attr = lower(&fs).0.getattr(&CX).unwrap();
    assert_eq!((attr.blocks, attr.size), (16, 4096 + 128));
    let before = attr.blocks;
    file.write(&CX, &vec![0; 4 << 20], 200).unwrap();
    assert_eq!(lower(&fs).0.getattr(&CX).unwrap().blocks, before);
    file.truncate(&CX, 1 << 40).unwrap();
    assert_eq!(lower(&fs).0.getattr(&CX).unwrap().blocks, before);
    assert_eq!((file.size(), file.seek(&CX, 65536, Whence::Data)), (1 << 40, Err(Errno::NXIO)));
    file.truncate(&CX, 0).unwrap();
    assert_eq!(lower(&fs).0.getattr(&CX).unwrap().size, 0);
}

#[test]
fn freed_space_is_returned() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(65536));
    let fs = MemFs::new();
    let file = open(&codec, &fs).unwrap();
    let all = vec![3; 8 << 20];
    file.write(&CX, &all, 0).unwrap();
    let full = lower(&fs).0.getattr(&CX).unwrap().blocks;
    assert!(full < (8 << 20) / 512 * 102 / 100, "{full}");
    file.punch(&CX, 1 << 20, 6 << 20).unwrap();
    let punched = lower(&fs).0.getattr(&CX).unwrap().blocks;
    assert!(punched < full * 30 / 100, "{punched} of {full}");
    // Overwritten and synced repeatedly, it keeps about the same size.
    for round in 0..6 {
        file.write(&CX, &vec![round + 1; 8 << 20], 0).unwrap();
        file.sync(&CX, false).unwrap();
        while file.reclaim(&CX).unwrap() {}
    }
    let again = lower(&fs).0.getattr(&CX).unwrap().blocks;
    assert!(again < full * 105 / 100, "{again} bytes, {full} at first");
    file.truncate(&CX, 65536).unwrap();
    assert!(lower(&fs).0.getattr(&CX).unwrap().blocks < full * 40 / 100);
}

#[test]
fn files_other_than_containers_are_refused() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(512));
    let fs = MemFs::new();
    let (_, file) = lower(&fs);
    assert_eq!(probe(&CX, &*file), Ok(Probe::Empty));
    file.write(&CX, b"plain text", 0).unwrap();
    assert_eq!((probe(&CX, &*file), plain_size(&CX, &*file)), (Ok(Probe::Foreign), Ok(None)));
    assert_eq!(open(&codec, &fs).map(|_| ()), Err(Errno::MEDIUMTYPE));

    let fs = MemFs::new();
    open(&codec, &fs).unwrap().write(&CX, b"hello", 0).unwrap();
    let found = probe(&CX, &*lower(&fs).1);
    assert_eq!(found, Ok(Probe::Container { size: 5, codec: *b"growing\0" }));
    let other: Arc<dyn BlockCodec> = Arc::new(Runs(512));
    assert_eq!(open(&other, &fs).map(|_| ()), Err(Errno::MEDIUMTYPE));
    // Files with another block size are still readable.
    let same: Arc<dyn BlockCodec> = Arc::new(Growing(8192));
    assert_eq!(contents(&open(&same, &fs).unwrap()), Ok(b"hello".to_vec()));
    lower(&fs).1.write(&CX, &[2], 8).unwrap();
    assert_eq!(probe(&CX, &*lower(&fs).1), Err(Errno::IO));

    // A file whose first page never reached the disk.
    let fs = MemFs::new();
    lower(&fs).1.write(&CX, &[1; 100], 5000).unwrap();
    assert_eq!(probe(&CX, &*lower(&fs).1), Ok(Probe::Blank));
    let file = open(&codec, &fs).unwrap();
    assert_eq!(contents(&file), Ok(vec![]));
    file.write(&CX, b"hello", 0).unwrap();
    assert_eq!(contents(&open(&codec, &fs).unwrap()), Ok(b"hello".to_vec()));

    let bad: Arc<dyn BlockCodec> = Arc::new(Growing(1000));
    assert_eq!(open(&bad, &MemFs::new()).map(|_| ()), Err(Errno::INVAL));
}

#[test]
fn exceeded_limits_return_their_errnos() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(4096));
    let fs = MemFs::new();
    let file = open(&codec, &fs).unwrap();
    file.write(&CX, b"x", 0).unwrap();
    assert_eq!(file.write(&CX, b"x", u64::MAX), Err(Errno::FBIG));
    assert_eq!(file.truncate(&CX, u64::MAX), Err(Errno::FBIG));
    assert_eq!(file.truncate(&CX, i64::MAX as u64), Err(Errno::FBIG));
    assert_eq!(file.write(&CX, &[], u64::MAX), Ok(0));
    // Near the format's maximum size.
    let far = 1 << 61;
    file.write(&CX, b"far", far).unwrap();
    let mut out = [0; 10];
    assert_eq!(file.read(&CX, &mut out, far), Ok(3));
    assert_eq!((&out[..3], file.size()), (&b"far"[..], far + 3));
    assert_eq!(file.seek(&CX, 4096, Whence::Data), Ok(far));
    assert_eq!(file.seek(&CX, 0, Whence::Hole), Ok(4096));
    file.punch(&CX, 0, u64::MAX).unwrap();
    assert_eq!(file.seek(&CX, 0, Whence::Data), Err(Errno::NXIO));
}

#[test]
fn concurrent_readers_see_complete_writes() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Runs(4096));
    let fs = MemFs::new();
    let file = open(&codec, &fs).unwrap();
    const LEN: usize = 100_000;
    file.write(&CX, &[1; LEN], 0).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut out = vec![0; LEN];
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(file.read(&CX, &mut out, 0), Ok(LEN));
                    assert!(out.iter().all(|&byte| byte == out[0] && byte > 0), "a partial write is visible");
                }
            });
        }
        for round in 0..200u32 {
            file.write(&CX, &[(round % 250) as u8 + 1; LEN], 0).unwrap();
            if round % 20 == 0 {
                file.sync(&CX, false).unwrap();
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_caller_that_must_not_block_is_not_blocked() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(512));
    let fs = MemFs::new();
    let file = open(&codec, &fs).unwrap();
    let cancelled = std::sync::atomic::AtomicBool::new(false);
    let hasty = vnode::Cx::new(0, 0, 1, 0, false, &cancelled);
    assert_eq!(file.write(&hasty, b"x", 0), Err(vnode::MAY_BLOCK));
    assert_eq!(file.truncate(&hasty, 5), Err(vnode::MAY_BLOCK));
    file.write(&CX, &[1; 1 << 20], 0).unwrap();
    assert_eq!(file.read(&hasty, &mut [0; 4096], 0), Ok(4096));
    assert_eq!(file.read(&hasty, &mut vec![0; 1 << 20], 0), Err(vnode::MAY_BLOCK));
}
