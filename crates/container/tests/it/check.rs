//! Detection of damage at every byte, and repair where the previous version of a block is intact.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::untrusted::with_bytes;
use crate::common::{CX, Growing, contents, lower, open, random_change};
use container::{BlockCodec, Damage, Report, check};
use memfs::{Count, Fault, Faults, MemFs, Plan};
use std::sync::Arc;
use testkit::Rng;
use vnode::Errno;

const BLOCK: u64 = 512;

fn codec() -> Arc<dyn BlockCodec> {
    Arc::new(Growing(BLOCK as u32))
}

fn checked(fs: &MemFs, known: bool, repair: bool) -> (Vec<Damage>, Option<Report>) {
    let mut found = Vec::new();
    let by_id = |id: [u8; 8]| (known && id == *b"growing\0").then(codec);
    let report = check(&CX, &lower(fs).0, &by_id, repair, &mut |damage| found.push(damage)).unwrap();
    (found, report)
}

fn stored(fs: &MemFs) -> Vec<u8> {
    let (vnode, file) = lower(fs);
    let mut bytes = vec![0; vnode.getattr(&CX).unwrap().size as usize];
    file.read(&CX, &mut bytes, 0).unwrap();
    bytes
}

/// Returns a file with ten durable blocks, five of them written twice, and its first and last
/// content.
fn sample() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let fs = MemFs::new();
    let file = open(&codec(), &fs).unwrap();
    let first: Vec<u8> = (0..5000).map(|i| (i % 251) as u8 + 1).collect();
    file.write(&CX, &first, 0).unwrap();
    file.sync(&CX, false).unwrap();
    let mut last = first.clone();
    last[..2560].fill(9);
    file.write(&CX, &last[..2560], 0).unwrap();
    file.sync(&CX, false).unwrap();
    file.close(&CX).unwrap();
    (stored(&fs), first, last)
}

#[test]
fn every_damaged_byte_is_found_and_repaired_if_possible() {
    let (bytes, first, last) = sample();
    let clean = with_bytes(&bytes);
    let (found, report) = checked(&clean, true, true);
    let report = report.unwrap();
    assert_eq!((found, report.blocks, report.size, report.decoded), (vec![], 10, 5000, true));
    assert!(stored(&clean) == bytes, "the repair changed an intact file");
    let (mut repaired, mut lost) = (0, 0);
    for at in (0..bytes.len()).step_by(3) {
        let mut bad = bytes.clone();
        bad[at] ^= 0x20;
        let fs = with_bytes(&bad);
        // Either the data read is correct, or damage is found.
        let read = open(&codec(), &fs).and_then(|file| contents(&file));
        let known = at % 2 == 0;
        let (found, report) = checked(&fs, known, false);
        assert!(stored(&fs) == bad, "the check changed the file");
        assert!(read.as_ref() == Ok(&last) || !found.is_empty() || at < 8, "byte {at}: {read:?}");
        let (again, after) = checked(&fs, known, true);
        assert_eq!(found, again, "byte {at}");
        let Some(after) = after else { continue };
        assert_eq!(report.unwrap().left, after.left + after.repaired);
        assert_eq!(after.repaired, found.iter().filter(|damage| damage.is_repairable()).count() as u64);
        repaired += after.repaired;
        lost += after.left;
        let (left, _) = checked(&fs, known, true);
        assert_eq!(left.len() as u64, after.left, "byte {at}: {left:?}");
        if after.left == 0 {
            let seen = contents(&open(&codec(), &fs).unwrap()).unwrap();
            for (number, block) in seen.chunks(512).enumerate() {
                let start = number * 512;
                let of = |file: &[u8]| &file[start..start + block.len()] == block;
                assert!(of(&last) || of(&first), "byte {at}: block {number}");
            }
        }
    }
    assert!(repaired > 300 && lost > 600, "{repaired} {lost}");
}

#[test]
fn a_crash_leaves_no_damage() {
    let codec = codec();
    for at in 1..60 {
        let start = with_bytes(&sample().0);
        let faults = Faults::new();
        let fs = start.fork(&faults);
        let file = open(&codec, &fs).unwrap();
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let mut random = Rng::new(at);
        for _ in 0..10 {
            let _cut_off = random_change(&mut random, BLOCK, 9000).apply(&file);
        }
        drop(file);
        let fs = fs.recover(&Faults::new());
        let before = contents(&open(&codec, &fs).unwrap()).unwrap();
        for repair in [false, true] {
            let (found, _) = checked(&fs, true, repair);
            assert_eq!(found, [], "step {at}");
        }
        assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == before);
    }
}

#[test]
fn a_repair_reclaims_dead_space() {
    let fs = MemFs::new();
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(4096));
    let file = open(&codec, &fs).unwrap();
    for round in 1..4u8 {
        file.write(&CX, &vec![round; 1 << 20], 0).unwrap();
        file.sync(&CX, false).unwrap();
    }
    drop(file);
    let taken = || lower(&fs).0.getattr(&CX).unwrap();
    let before = taken();
    let (found, report) = checked(&fs, true, true);
    let report = report.unwrap();
    assert!(found.is_empty() && report.reclaimed > 1 << 20, "{report:?}");
    assert_eq!(taken().blocks * 512, before.blocks * 512 - report.reclaimed);
    assert_eq!(taken().mtime, before.mtime);
    assert!(contents(&open(&codec, &fs).unwrap()).unwrap() == vec![3; 1 << 20]);
    assert_eq!(checked(&fs, true, true).1.unwrap().reclaimed, 0);
}

#[test]
fn files_other_than_containers_are_skipped() {
    for bytes in [&b""[..], b"plain text", &[0; 3000]] {
        assert_eq!(checked(&with_bytes(bytes), true, true), (vec![], None));
    }
    let mut later = sample().0;
    later[8] = 2;
    let sum = crc32c::crc32c(&later[..60]).to_le_bytes();
    later[60..64].copy_from_slice(&sum);
    let fs = with_bytes(&later);
    assert_eq!(check(&CX, &lower(&fs).0, &|_| None, false, &mut |_| {}), Err(Errno::MEDIUMTYPE));
}
