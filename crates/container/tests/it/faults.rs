//! Faults: the lower file fails or the process is killed at every step; the disk is full.
//!
//! In each case every block has its old or its new content, the size is the old or the new one,
//! earlier changes are preserved, and the container keeps working.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{CX, Change, Growing, Runs, contents, lower, open, random_bytes, random_change};
use container::{BlockCodec, Container};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::sync::Arc;
use testkit::Rng;
use vnode::{Errno, OpenFile, Result};

const BLOCK: u64 = 512;

/// Checks that each block of `seen` equals that of one of the files, which are padded with zeros.
fn is_mix_of(seen: &[u8], files: &[&[u8]]) -> std::result::Result<(), String> {
    if !files.iter().any(|file| file.len() == seen.len()) {
        return Err(format!("{} bytes", seen.len()));
    }
    for (at, block) in seen.chunks(BLOCK as usize).enumerate() {
        let is_of = |file: &&&[u8]| {
            let start = (at * BLOCK as usize).min(file.len());
            let part = &file[start..(start + block.len()).min(file.len())];
            block.starts_with(part) && block[part.len()..].iter().all(|&byte| byte == 0)
        };
        if !files.iter().any(|file| is_of(&file)) {
            return Err(format!("block {at}"));
        }
    }
    Ok(())
}

/// Creates a file of two groups, with a hole and with blocks written once and twice, durable and
/// not.
fn prepared(codec: &Arc<dyn BlockCodec>, synced: bool, seed: u64) -> (Arc<MemFs>, Vec<u8>) {
    let fs = MemFs::new();
    let mut bytes = Vec::new();
    let mut random = Rng::new(seed);
    let file = open(codec, &fs).unwrap();
    let write = |offset, len, byte| Change::Write { offset, data: vec![byte; len] };
    let noise = Change::Write { offset: 700, data: random_bytes(&mut random, 4000) };
    for change in
        [write(0, 40_000, 1), Change::Punch { offset: 9000, len: 3000 }, Change::Sync, noise, write(39_000, 300, 4)]
    {
        change.apply(&file).unwrap();
        change.apply_to(&mut bytes);
    }
    if synced {
        file.sync(&CX, false).unwrap();
        file.close(&CX).unwrap();
    }
    (fs, bytes)
}

fn changes() -> Vec<Change> {
    let mut random = Rng::new(77);
    let write = |offset, data: Vec<u8>| Change::Write { offset, data };
    let mut changes = vec![
        write(0, vec![7; 512]),
        write(100, vec![7; 3000]),
        write(39_900, vec![8; 9000]),
        write(70_000, vec![8; 10]),
        write(24_000, vec![9; 1500]),
        Change::Truncate(0),
        Change::Truncate(1),
        Change::Truncate(30_000),
        Change::Truncate(100_000),
        Change::Punch { offset: 512, len: 1024 },
        Change::Punch { offset: 100, len: 30_000 },
        Change::Sync,
    ];
    changes.extend((0..20).map(|_| random_change(&mut random, BLOCK, 60_000)));
    changes
}

fn codecs() -> [Arc<dyn BlockCodec>; 2] {
    [Arc::new(Growing(BLOCK as u32)), Arc::new(Runs(BLOCK as u32))]
}

/// Changes the file further, to detect a bad internal state.
fn check_usable(file: &Container, mut bytes: Vec<u8>) {
    let more = [
        Change::Write { offset: bytes.len() as u64 + 300, data: vec![3; 2000] },
        Change::Write { offset: 200, data: vec![4; 1000] },
        Change::Sync,
        Change::Truncate(20_000),
        Change::Write { offset: 21_000, data: vec![5; 100] },
    ];
    for change in more {
        change.apply(file).unwrap();
        change.apply_to(&mut bytes);
        assert!(contents(file).unwrap() == bytes, "after {change:?}");
    }
}

/// Checks that `seen` is the old content, the new one, or that of an interrupted change.
fn check(seen: &[u8], old: &[u8], new: &[u8], change: &Change) {
    let partly = match change {
        // A partial write: some of its blocks, and the size up to them.
        Change::Write { offset, .. } => {
            let mut partly = new.to_vec();
            partly.truncate(seen.len().max(old.len()));
            (seen.len() as u64 > *offset).then_some(partly)
        }
        _ => None,
    };
    let files: Vec<&[u8]> = [old, new].into_iter().chain(partly.as_deref()).collect();
    is_mix_of(seen, &files).unwrap_or_else(|e| panic!("neither old nor new: {e}, after {change:?}"));
}

#[test]
fn a_failure_at_every_step() {
    let faults = [
        (Count::All, Fault::Error(Errno::IO)),
        (Count::Changes, Fault::Errors(Errno::NOSPC)),
        (Count::Changes, Fault::Error(Errno::NOSPC)),
    ];
    let mut runs = 0;
    for codec in codecs() {
        let (start, old) = prepared(&codec, true, 1);
        for change in changes() {
            let mut new = old.clone();
            change.apply_to(&mut new);
            for (count, fault) in faults {
                for at in 1.. {
                    let fs = start.fork(&Faults::new());
                    let file = open(&codec, &fs).unwrap();
                    fs.faults().arm(Plan { count, at, fault });
                    let answer = tried(&change, &file);
                    let fired = fs.faults().fired();
                    fs.faults().disarm();
                    let seen = contents(&file).unwrap_or_else(|e| panic!("{e:?} after {change:?}, step {at}"));
                    match answer {
                        Ok(true) => assert!(seen == new, "{change:?} succeeded, step {at}"),
                        _ => check(&seen, &old, &new, &change),
                    }
                    assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == seen, "reopened: {change:?}, step {at}");
                    check_usable(&file, seen);
                    runs += 1;
                    if !fired {
                        answer.unwrap();
                        break;
                    }
                }
            }
        }
    }
    assert!(runs > 500, "{runs}");
}

/// Like [`Change::apply`], but a write may be partial. Returns whether it was complete.
fn tried(change: &Change, file: &Container) -> Result<bool> {
    match change {
        Change::Write { offset, data } => Ok(file.write(&CX, data, *offset)? == data.len()),
        _ => change.apply(file).map(|()| true),
    }
}

#[test]
fn a_kill_at_every_step() {
    let mut runs = 0;
    for codec in codecs() {
        for synced in [false, true] {
            let (start, old) = prepared(&codec, synced, 2);
            for change in changes() {
                let mut new = old.clone();
                change.apply_to(&mut new);
                for at in 1.. {
                    let faults = Faults::new();
                    let fs = start.fork(&faults);
                    let file = open(&codec, &fs).unwrap();
                    faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
                    let answer = tried(&change, &file);
                    let fired = faults.fired();
                    drop(file);
                    let fs = fs.recover(&Faults::new());
                    let file = open(&codec, &fs).unwrap();
                    let seen = contents(&file).unwrap();
                    match answer {
                        Ok(true) => assert!(seen == new, "{change:?} succeeded, step {at}"),
                        _ => check(&seen, &old, &new, &change),
                    }
                    check_usable(&file, seen);
                    runs += 1;
                    if !fired {
                        break;
                    }
                }
            }
        }
    }
    assert!(runs > 300, "{runs}");
}

/// Only synced data survives, at every step.
#[test]
fn unsynced_bytes_are_lost() {
    let options = MemOptions { lose_data: true, ..MemOptions::default() };
    for codec in codecs() {
        let fs = MemFs::with(options, &Faults::new());
        let file = open(&codec, &fs).unwrap();
        let (mut bytes, mut durable, mut random) = (Vec::new(), Vec::new(), Rng::new(5));
        for _ in 0..150 {
            let change = random_change(&mut random, BLOCK, 60_000);
            change.apply(&file).unwrap();
            change.apply_to(&mut bytes);
            if change == Change::Sync {
                durable.clone_from(&bytes);
            }
            let after = open(&codec, &fs.recover(&Faults::new())).unwrap();
            let seen = contents(&after).unwrap();
            // The container may have synced the lower file since then for its own purposes.
            if change == Change::Sync {
                assert!(seen == durable);
            }
            check_usable(&after, seen);
        }
    }
}

#[test]
fn a_full_disk_is_survived() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(4096));
    for extra in 0..24 {
        let fs = MemFs::new();
        let file = open(&codec, &fs).unwrap();
        let old = vec![1; 20 * 4096];
        file.write(&CX, &old, 0).unwrap();
        let used = lower(&fs).0.getattr(&CX).unwrap().blocks * 512;
        fs.set_space(used + extra * 4096);
        // Overwritten repeatedly, as far as there is space for both versions.
        let mut bytes = old;
        for round in 2..6u8 {
            let data = vec![round; 20 * 4096];
            if let Ok(n) = file.write(&CX, &data, 0) {
                bytes[..n].copy_from_slice(&data[..n]);
            }
            assert!(contents(&file).unwrap() == bytes);
            assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == bytes);
        }
        // Truncation and punching free space, and need none.
        file.punch(&CX, 4096, 4096 * 8).unwrap();
        file.truncate(&CX, 4096 * 15).unwrap();
        file.sync(&CX, false).unwrap();
        bytes.truncate(4096 * 15);
        bytes[4096..4096 * 9].fill(0);
        assert!(contents(&file).unwrap() == bytes);
        file.write(&CX, &[9; 4096], 0).unwrap();
        bytes[..4096].fill(9);
        assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == bytes);
    }
}

#[test]
fn a_read_only_lower_file_is_readable() {
    let codec = &codecs()[0];
    let (fs, bytes) = prepared(codec, false, 3);
    let (vnode, _) = lower(&fs);
    let file: Arc<dyn OpenFile> = vnode.open(&CX, vnode::OpenFlags::RDONLY).unwrap();
    let file = Container::open(&CX, Arc::clone(codec), vnode, file).unwrap();
    assert!(contents(&file).unwrap() == bytes);
    assert_eq!(file.write(&CX, b"x", 0), Err(Errno::BADF));
    file.sync(&CX, false).unwrap();
    assert!(contents(&file).unwrap() == bytes);
}
