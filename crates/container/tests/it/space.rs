//! Reclaiming dead space: after any overwriting, punching or truncation, a file occupies at most a
//! quarter more than a fresh copy, plus a constant. Compaction never changes the content, even if
//! it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{CX, Growing, Runs, contents, lower, open, reclaim};
use container::{BlockCodec, Container};
use memfs::{Count, Fault, Faults, MemFs, Op, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::Rng;
use vnode::{Cx, Errno};

const BLOCK: usize = 512;

/// Excess that is not worth the work: twice the slack of the format's page.
const CONSTANT: u64 = 128 << 10;

fn taken(fs: &MemFs) -> u64 {
    lower(fs).0.getattr(&CX).unwrap().blocks * 512
}

/// Returns the space that a fresh copy of these bytes occupies, written from start to end.
fn fresh(codec: &Arc<dyn BlockCodec>, bytes: &[u8]) -> u64 {
    let fs = MemFs::new();
    let file = open(codec, &fs).unwrap();
    for (at, part) in bytes.chunks(1 << 20).enumerate() {
        file.write(&CX, part, (at << 20) as u64).unwrap();
    }
    taken(&fs)
}

fn assert_bounded(codec: &Arc<dyn BlockCodec>, fs: &MemFs, bytes: &[u8], constant: u64, hint: &str) {
    let (taken, fresh) = (taken(fs), fresh(codec, bytes));
    assert!(taken <= fresh * 5 / 4 + constant, "{hint}: {taken} bytes in use, a fresh copy needs {fresh}");
}

/// Closes the file as its last user does.
fn close(file: &Container) {
    reclaim(file).unwrap();
    file.close(&CX).unwrap();
}

/// Returns noise, a run, or zeros.
fn content(random: &mut Rng, len: usize) -> Vec<u8> {
    match random.below(5) {
        0 => vec![random.bits() as u8; len],
        1 => vec![0; len],
        2 => {
            let noise = random.below(len);
            let mut bytes: Vec<u8> = (0..noise).map(|_| random.bits() as u8).collect();
            bytes.resize(len, 7);
            bytes
        }
        _ => (0..len).map(|_| random.bits() as u8).collect(),
    }
}

#[test]
fn a_hundred_thousand_random_overwrites() {
    const BLOCKS: u64 = 700;
    // Trailing zeros are not stored, so all lengths occur.
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(BLOCK as u32));
    let fs = MemFs::new();
    let mut file = open(&codec, &fs).unwrap();
    let mut random = Rng::new(11);
    let mut bytes = vec![7; BLOCKS as usize * BLOCK];
    file.write(&CX, &bytes, 0).unwrap();
    for step in 1..=100_000u64 {
        let at = random.below(BLOCKS) as usize * BLOCK;
        let mut data = vec![random.bits() as u8 | 1; random.below(BLOCK + 1)];
        data.resize(BLOCK, 0);
        file.write(&CX, &data, at as u64).unwrap();
        bytes[at..at + BLOCK].copy_from_slice(&data);
        if step.is_multiple_of(777) {
            file.sync(&CX, false).unwrap();
            reclaim(&file).unwrap();
        }
        if step.is_multiple_of(5000) {
            // Reopen after a sync, without one, and without a close.
            match step / 5000 % 3 {
                0 => file.sync(&CX, false).unwrap(),
                1 => {}
                _ => file = open(&codec, &fs).unwrap(),
            }
            if step / 5000 % 3 < 2 {
                close(&file);
                assert_bounded(&codec, &fs, &bytes, CONSTANT, &format!("step {step}"));
                file = open(&codec, &fs).unwrap();
            }
            assert!(contents(&file).unwrap() == bytes, "step {step}");
        }
    }
    while file.compact(&CX).unwrap() {}
    assert_bounded(&codec, &fs, &bytes, 0, "compacted");
    assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == bytes);
}

#[test]
fn data_overwritten_with_constants() {
    for (block, codec) in [(512, 1), (4096, 0), (65_536, 0), (65_536, 1)] {
        let codec: Arc<dyn BlockCodec> = if codec == 0 { Arc::new(Runs(block)) } else { Arc::new(Growing(block)) };
        let fs = MemFs::new();
        let file = open(&codec, &fs).unwrap();
        let mut random = Rng::new(2);
        let mut bytes: Vec<u8> = (0..3 << 20).map(|_| random.bits() as u8).collect();
        file.write(&CX, &bytes, 0).unwrap();
        close(&file);
        // In another session, in pieces that don't match the blocks, from end to start.
        let file = open(&codec, &fs).unwrap();
        for at in (0..bytes.len() / 100_000).rev() {
            let data = vec![at as u8 | 1; 100_000];
            file.write(&CX, &data, at as u64 * 100_000).unwrap();
            bytes[at * 100_000..][..100_000].copy_from_slice(&data);
        }
        close(&file);
        assert_bounded(&codec, &fs, &bytes, CONSTANT.max(2 * u64::from(block)), &format!("blocks of {block}"));
        assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == bytes);
    }
}

#[test]
fn punched_holes_and_cuts_return_space() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(4096));
    let fs = MemFs::new();
    let file = open(&codec, &fs).unwrap();
    let len = 8 << 20;
    file.write(&CX, &vec![7; len], 0).unwrap();
    file.sync(&CX, false).unwrap();
    let full = taken(&fs);
    // A small hole is released with the next fsync, a large one immediately.
    file.punch(&CX, 1 << 20, 256 << 10).unwrap();
    file.sync(&CX, false).unwrap();
    reclaim(&file).unwrap();
    assert!(taken(&fs) <= full - (248 << 10), "{} of {full}", taken(&fs));
    file.punch(&CX, 2 << 20, 4 << 20).unwrap();
    assert!(taken(&fs) <= full - (4300 << 10), "{} of {full}", taken(&fs));
    // After a truncation within a group and a punch of everything, only the header is left.
    let before = taken(&fs);
    file.truncate(&CX, len as u64 - (160 << 10)).unwrap();
    file.sync(&CX, false).unwrap();
    reclaim(&file).unwrap();
    assert!(taken(&fs) <= before - (150 << 10), "{} of {before}", taken(&fs));
    file.punch(&CX, 0, u64::MAX).unwrap();
    assert!(taken(&fs) <= 8192, "{}", taken(&fs));
    let size = len - (160 << 10);
    assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == vec![0; size]);
    file.write(&CX, &vec![9; size], 0).unwrap();
    assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == vec![9; size]);
}

/// Each session overwrites too little to be worth a scan.
#[test]
fn many_small_sessions() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Runs(BLOCK as u32));
    let fs = MemFs::new();
    let mut random = Rng::new(3);
    let mut bytes: Vec<u8> = (0..1 << 20).map(|_| random.bits() as u8).collect();
    let file = open(&codec, &fs).unwrap();
    file.write(&CX, &bytes, 0).unwrap();
    close(&file);
    for round in 0..150 {
        let file = open(&codec, &fs).unwrap();
        for _ in 0..10 {
            let at = random.below(bytes.len() as u64 - 700) as usize;
            let data = content(&mut random, 700);
            file.write(&CX, &data, at as u64).unwrap();
            bytes[at..at + 700].copy_from_slice(&data);
        }
        if random.below(3) == 0 {
            file.sync(&CX, false).unwrap();
        }
        close(&file);
        if round % 50 == 49 {
            assert_bounded(&codec, &fs, &bytes, CONSTANT, &format!("round {round}"));
        }
    }
    assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == bytes);
}

/// Creates three groups full of gaps, so that blocks must be relocated.
fn loose(synced: bool) -> (Arc<dyn BlockCodec>, Arc<MemFs>, Vec<u8>) {
    let codec: Arc<dyn BlockCodec> = Arc::new(Runs(BLOCK as u32));
    let fs = MemFs::new();
    let mut random = Rng::new(4);
    let mut bytes: Vec<u8> = (0..130 * BLOCK).map(|_| random.bits() as u8).collect();
    let file = open(&codec, &fs).unwrap();
    file.write(&CX, &bytes, 0).unwrap();
    file.sync(&CX, false).unwrap();
    for at in (0..130).filter(|at| at % 4 != 0) {
        let data = vec![at as u8; BLOCK];
        file.write(&CX, &data, (at * BLOCK) as u64).unwrap();
        bytes[at * BLOCK..][..BLOCK].copy_from_slice(&data);
    }
    if synced {
        file.sync(&CX, false).unwrap();
        file.close(&CX).unwrap();
    }
    (codec, fs, bytes)
}

fn compact(file: &Container) -> vnode::Result<()> {
    while file.compact(&CX)? {}
    Ok(())
}

#[test]
fn compaction_interrupted_at_every_step() {
    for synced in [false, true] {
        let (codec, start, bytes) = loose(synced);
        let before = taken(&start);
        let mut runs = 0;
        for fault in [Fault::Crash, Fault::Error(Errno::IO), Fault::Error(Errno::NOSPC), Fault::Errors(Errno::NOSPC)] {
            for at in 1.. {
                let faults = Faults::new();
                let fs = start.fork(&faults);
                let file = open(&codec, &fs).unwrap();
                let count = if fault == Fault::Error(Errno::IO) { Count::All } else { Count::Changes };
                faults.arm(Plan { count, at, fault });
                let answer = compact(&file);
                let fired = faults.fired();
                let fs = if fault == Fault::Crash {
                    drop(file);
                    fs.recover(&Faults::new())
                } else {
                    faults.disarm();
                    assert!(contents(&file).unwrap() == bytes, "{fault:?}, step {at}");
                    fs
                };
                let file = open(&codec, &fs).unwrap();
                assert!(contents(&file).unwrap() == bytes, "{fault:?}, step {at}");
                compact(&file).unwrap();
                assert_bounded(&codec, &fs, &bytes, 0, &format!("{fault:?}, step {at}"));
                assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == bytes, "{fault:?}, step {at}");
                runs += 1;
                if !fired {
                    answer.unwrap();
                    break;
                }
            }
        }
        assert!(runs > 60, "{runs}");
        assert!(before > fresh(&codec, &bytes) * 3 / 2, "no dead space to reclaim");
    }
}

/// Without an fsync, and without space for relocated blocks, sync and reads still succeed.
#[test]
fn compaction_without_punch_support_or_free_space() {
    for errno in [Errno::OPNOTSUPP, Errno::NOSPC, Errno::INVAL] {
        let (codec, fs, bytes) = loose(false);
        let file = open(&codec, &fs).unwrap();
        fs.faults().arm(Plan { count: Count::Only(Op::Fallocate), at: 1, fault: Fault::Errors(errno) });
        for _ in 0..3 {
            file.sync(&CX, false).unwrap();
            assert_eq!(compact(&file), Err(errno));
        }
        fs.faults().disarm();
        assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == bytes);
    }
    // Without a free page nothing can be relocated; a few are enough.
    let (codec, fs, bytes) = loose(true);
    let file = open(&codec, &fs).unwrap();
    fs.set_space(taken(&fs));
    assert_eq!(compact(&file), Err(Errno::NOSPC));
    assert!(contents(&file).unwrap() == bytes);
    fs.set_space(taken(&fs) + (64 << 10));
    compact(&file).unwrap();
    assert_bounded(&codec, &fs, &bytes, 0, "full");
    assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == bytes);
}

#[test]
fn an_interrupted_compaction_continues() {
    let (codec, fs, bytes) = loose(true);
    let file = open(&codec, &fs).unwrap();
    let cancelled = AtomicBool::new(true);
    let hasty = Cx::new(0, 0, 1, 0, true, &cancelled);
    assert_eq!(file.compact(&hasty), Err(Errno::INTR));
    assert_eq!(file.compact(&Cx::new(0, 0, 1, 0, false, &AtomicBool::new(false))), Err(vnode::MAY_BLOCK));
    compact(&file).unwrap();
    assert_bounded(&codec, &fs, &bytes, 0, "interrupted");
}

#[test]
fn readers_and_writers_during_compaction() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Runs(BLOCK as u32));
    let fs = MemFs::new();
    let file = open(&codec, &fs).unwrap();
    const LEN: usize = 300 * BLOCK;
    file.write(&CX, &[1; LEN], 0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = vec![0; LEN];
            while !done.load(Ordering::Relaxed) {
                assert_eq!(file.read(&CX, &mut out, 0), Ok(LEN));
                // Each block comes from one write.
                for block in out.chunks(BLOCK) {
                    assert!(block.iter().all(|&byte| byte == block[0] && byte > 0));
                }
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.compact(&CX).unwrap();
            }
        });
        let mut random = Rng::new(9);
        for round in 0..3000u64 {
            let (at, len) = (random.below(300), 1 + random.below(20));
            let len = len.min(300 - at) as usize * BLOCK;
            file.write(&CX, &vec![(round % 250) as u8 + 1; len], at * BLOCK as u64).unwrap();
            if round % 50 == 0 {
                file.sync(&CX, false).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    compact(&file).unwrap();
    let bytes = contents(&file).unwrap();
    assert_bounded(&codec, &fs, &bytes, 0, "at the end");
}
