//! Sealed files: blocks that were put back, removed, added or replaced by holes are noticed, and
//! nothing that the layer itself does, or is killed while doing, is taken for that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::crash::{
    check, crash_everywhere, fail_everywhere, fail_to_sync_everywhere, fill_the_disk, lose_power_everywhere,
};
use crate::common::format::{Change, PUNCH, changes, open, prepared_with, read_all};
use crate::common::sealed::{HEADER, JOURNAL, SealedSums, layout, read_anew, sealed};
use conformance::fixture::{ROOT, name};
use memfs::{Count, Fault, Faults, MemFs, Op, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use testkit::Rng;
use vnode::{Attr, Cx, Errno, Layer, OpenFlags, Result, SetAttr, Whence};
use wrapfs::Template;
use wrapfs::hooks::{Attributes, Journal, Object};

fn prepared(plain: u64) -> (Arc<MemFs>, Vec<u8>) {
    prepared_with(&|below| sealed(below, plain), plain)
}

#[test]
fn sealed_layers_conform() {
    conformance::run_all(|| sealed(MemFs::new(), 4096));
    conformance::run_all(|| sealed(MemFs::new(), 100));
}

#[test]
fn zeroing_sets_the_mtime_everywhere() {
    common::zeroing_sets_the_mtime(&*sealed(MemFs::new(), 4096));
}

/// A file that outgrows its table several times, compared with plain bytes; the layer is mounted
/// anew all the time.
#[test]
fn random_changes_keep_the_seal() {
    for (seed, plain) in [(1, 10), (2, 100), (3, 1000), (4, 10), (5, 37)] {
        let below = MemFs::new();
        let mut mounted = sealed(below.clone(), plain);
        let (mut random, mut bytes) = (Rng::new(seed), Vec::new());
        for round in 0..400 {
            let most = plain * [20, 3, 300][round / 50 % 3];
            let change = Change::random(&mut random, plain, most);
            {
                let (vnode, file) = open(&mounted);
                let done = change.apply(&*vnode, &*file).unwrap_or_else(|e| panic!("{seed}, {round}: {change:?}: {e}"));
                change.apply_to(&mut bytes, done);
                assert!(read_all(&*vnode, &*file).unwrap() == bytes, "{seed}, {round}: {change:?}");
            }
            if round % 3 == 0 {
                mounted = sealed(below.clone(), plain);
            }
            if round % 5 == 0 {
                let (vnode, file) = open(&mounted);
                assert!(read_all(&*vnode, &*file).unwrap() == bytes, "{seed}, {round}: {change:?}, then mounted");
                let size = bytes.len() as u64;
                let hole = file.seek(&ROOT, 0, Whence::Hole);
                assert!(hole == Err(Errno::NXIO) && size == 0 || hole.unwrap() <= size);
            }
        }
    }
}

#[test]
fn a_kill_at_any_moment_leaves_a_sealed_file_readable() {
    let mut runs = 0;
    for plain in [100, 5000] {
        let (start, old) = prepared(plain);
        for change in changes(plain) {
            let mut new = old.clone();
            change.apply_to(&mut new, None);
            crash_everywhere(&|below| sealed(below, plain), &change, &start, |below, what| {
                let mounted = sealed(below.clone(), plain);
                let size = check(&mounted, plain, (&old, &new), what);
                let (_, file) = open(&mounted);
                file.write(&ROOT, &[9; 350], size + 150).unwrap();
                drop((mounted, file));
                let seen = read_anew(below, plain, 999).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(seen.len() as u64, size + 500);
                runs += 1;
            });
        }
    }
    assert!(runs > 1000, "{runs}");
}

#[test]
fn recovery_can_be_interrupted() {
    let (plain, mut runs) = (5000, 0);
    let (start, old) = prepared(plain);
    for change in [Change::Write(2500, vec![7; 15_000]), Change::Truncate(31_007), Change::Truncate(30_000)] {
        let mut new = old.clone();
        change.apply_to(&mut new, None);
        crash_everywhere(&|below| sealed(below, plain), &change, &start, |crashed, what| {
            for (at, fault) in (1..)
                .flat_map(|at| [Fault::CrashInWrite { pages: 1 }, Fault::Error(Errno::NOSPC)].map(|fault| (at, fault)))
            {
                let faults = Faults::new();
                let below = crashed.fork(&faults);
                faults.arm(Plan { count: Count::Changes, at, fault });
                let format = SealedSums::default();
                let again = Template::over(below.clone()).format(layout(5000), format).journal(Journal::new(JOURNAL));
                drop(again.build());
                let fired = faults.fired();
                check(&sealed(below.recover(&Faults::new()), plain), plain, (&old, &new), what);
                runs += 1;
                if !fired {
                    break;
                }
            }
        });
    }
    assert!(runs > 100, "{runs}");
}

/// Without fsync(2) of each step, blocks and header reach the medium in any order.
#[test]
fn a_power_failure_leaves_a_sealed_file_readable_with_a_durable_journal() {
    let mount = |below: Arc<MemFs>| {
        let template = Template::over(below).format(layout(100), SealedSums::default());
        template.journal(Journal::new(JOURNAL).durable()).build().unwrap()
    };
    lose_power_everywhere(&|below| mount(below), 100);
}

#[test]
fn a_failure_at_any_step_changes_all_or_nothing() {
    for plain in [100, 5000] {
        let (start, old) = prepared(plain);
        fail_everywhere(&|below| sealed(below, plain), plain, (&start, &old));
    }
}

/// If a change can't be made durable, it fails, and the file is as before or as after it.
#[test]
fn a_failure_to_sync_breaks_no_seal() {
    let plain = 100;
    let mount = |below: Arc<MemFs>| {
        let template = Template::over(below).format(layout(plain as u32), SealedSums::default());
        template.journal(Journal::new(JOURNAL).durable()).build().unwrap()
    };
    let (start, old) = prepared(plain);
    fail_to_sync_everywhere(&|below| mount(below), plain, (&start, &old));
}

/// Fails to return the attributes of a file that it has just truncated.
#[derive(Debug, Default)]
struct FailsLate(AtomicBool);

impl Attributes for FailsLate {
    fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, _attr: &mut Attr) -> Result<()> {
        if self.0.swap(false, Ordering::Relaxed) { Err(Errno::IO) } else { Ok(()) }
    }

    fn encode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, set: &mut SetAttr) -> Result<()> {
        self.0.store(set.size.is_some(), Ordering::Relaxed);
        Ok(())
    }
}

/// The layer below truncates a file, and fails then.
#[test]
fn a_truncation_that_fails_late_is_made() {
    let plain = 100;
    let (start, old) = prepared(plain);
    for size in [0, 1, 150, 300, old.len() as u64 - 1] {
        let below = start.fork(&Faults::new());
        let late = Template::over(below.clone()).attributes(FailsLate::default()).build().unwrap();
        let mounted = sealed(late, plain);
        let (vnode, file) = open(&mounted);
        let cut = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(vnode.setattr(&ROOT, &cut, Some(&*file)).map(|_| ()), Err(Errno::IO));
        assert!(read_all(&*vnode, &*file).unwrap() == old[..size as usize], "{size}");
        drop((vnode, file, mounted));
        assert!(read_anew(below, plain, 100).unwrap() == old[..size as usize], "{size}, mounted again");
    }
}

#[test]
fn a_full_disk_fails_writes_cleanly() {
    fill_the_disk(&|below| sealed(below, 4096));
}

/// A record that could not be cleared would take the file back to an older seal, so nothing else is
/// written until it is.
#[test]
fn a_record_that_remains_stops_the_write() {
    let (plain, count) = (4096, 200);
    let below = MemFs::new();
    let format = SealedSums { ends_faults: Some((70, below.faults().clone())), ..SealedSums::default() };
    let mounted = Template::over(below.clone()).format(layout(4096), format).journal(Journal::new(JOURNAL)).build();
    let (_, file) = open(&mounted.unwrap());
    assert_eq!(file.write(&ROOT, &vec![5; count * plain], 0), Ok(count * plain));
    // The first part writes its record, blocks and header, and fails to clear the record, twice.
    below.faults().arm(Plan { count: Count::Only(Op::Write), at: 4, fault: Fault::Errors(Errno::IO) });
    let written = file.write(&ROOT, &vec![6; count * plain], 0).unwrap();
    assert!(below.faults().fired() && written > 0);
    let seen = read_anew(below.recover(&Faults::new()), plain as u64, 1000).unwrap();
    assert!(seen[..written].iter().all(|&byte| byte == 6) && seen[written..].iter().all(|&byte| byte == 5));
}

/// Returns the stored bytes of `f`.
fn stored(below: &Arc<MemFs>) -> Vec<u8> {
    let (vnode, file) = open(&(Arc::clone(below) as Arc<dyn Layer>));
    read_all(&*vnode, &*file).unwrap()
}

/// Returns a copy of the tree in which `f` has other stored bytes.
fn forged(below: &Arc<MemFs>, bytes: &[u8]) -> Arc<MemFs> {
    let forged = below.fork(&Faults::new());
    let found = forged.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
    let file = found.open(&ROOT, OpenFlags::RDWR).unwrap();
    found.setattr(&ROOT, &SetAttr { size: Some(bytes.len() as u64), ..SetAttr::default() }, None).unwrap();
    file.write(&ROOT, bytes, 0).unwrap();
    forged
}

/// Two states of a file, of different lengths and with a hole, whose blocks all differ.
fn two_states(plain: u64) -> (Arc<MemFs>, Vec<u8>, Vec<u8>) {
    let (below, bytes) = prepared(plain);
    let old = stored(&below);
    let mounted = sealed(below.clone(), plain);
    let (_, file) = open(&mounted);
    file.write(&ROOT, &vec![77; bytes.len() + 2 * plain as usize], 0).unwrap();
    file.fallocate(&ROOT, PUNCH, 9 * plain, plain).unwrap();
    drop((mounted, file));
    let new = stored(&below);
    (below, old, new)
}

#[test]
fn mixtures_of_two_states_are_noticed() {
    let plain = 100;
    let (below, old, new) = two_states(plain);
    let bad = |bytes: &[u8], what: &str| {
        for piece in [37, 100, 5000] {
            assert_eq!(read_anew(forged(&below, bytes), plain, piece), Err(Errno::IO), "{what}");
        }
        // Nor can it be changed, and so be given a seal, before it is emptied.
        let below = forged(&below, bytes);
        let mounted = sealed(below.clone(), plain);
        let vnode = mounted.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
        let size = vnode.getattr(&ROOT).unwrap().size;
        if let Ok(file) = vnode.open(&ROOT, OpenFlags::RDWR) {
            let _answers = (
                file.write(&ROOT, &[1; 30], 15),
                file.write(&ROOT, &[1; 30], size),
                file.write(&ROOT, &[1; 30], size + 950),
                file.fallocate(&ROOT, PUNCH, 150, 300),
            );
        }
        for size in [size + 1000, size.saturating_sub(30)].into_iter().filter(|&size| size > 0) {
            let _answer = vnode.setattr(&ROOT, &SetAttr { size: Some(size), ..SetAttr::default() }, None);
        }
        assert_eq!(read_anew(below.clone(), plain, 100), Err(Errno::IO), "{what}, after changes");
        vnode.setattr(&ROOT, &SetAttr { size: Some(0), ..SetAttr::default() }, None).unwrap();
        let file = vnode.open(&ROOT, OpenFlags::RDWR).unwrap();
        assert_eq!(file.write(&ROOT, b"again", 0), Ok(5));
        assert_eq!(read_anew(below, plain, 100).unwrap(), b"again");
    };
    assert!(read_anew(forged(&below, &old), plain, 37).is_ok() && read_anew(forged(&below, &new), plain, 37).is_ok());
    let block = layout(plain as u32).stored() as usize;
    let count = (new.len() - HEADER).div_ceil(block);
    for number in 0..count {
        let range = HEADER + number * block..(HEADER + (number + 1) * block).min(new.len());
        let mut mixed = new.clone();
        if let Some(part) = old.get(range.clone()).filter(|part| *part != &new[range.clone()]) {
            mixed[range.clone()].copy_from_slice(part);
            bad(&mixed, &format!("block {number} put back"));
        }
        if new[range.clone()].iter().any(|&byte| byte != 0) && range.len() == block {
            mixed[range.clone()].fill(0);
            bad(&mixed, &format!("block {number} turned into a hole"));
        }
        let mut swapped = new.clone();
        if number > 0 && range.len() == block && new[range.clone()] != new[HEADER..HEADER + block] {
            swapped.copy_within(range.clone(), HEADER);
            bad(&swapped, &format!("block {number} moved"));
        }
        for cut in [range.start, range.start + 1, range.start + 5, range.end - 1] {
            bad(&new[..cut], &format!("cut at {cut}"));
        }
    }
    bad(&[&old[..HEADER], &new[HEADER..]].concat(), "the header put back");
    bad(&[&new[..HEADER], &old[HEADER..]].concat(), "all blocks put back");
    bad(&new[..HEADER - 1], "cut in the header");
    bad(&new[..1], "cut to one byte");
    bad(&[&new[..], &[0][..]].concat(), "a byte more");
    bad(&[&new[..], &vec![0; block - (new.len() - HEADER) % block]].concat(), "a hole more");
    bad(&[&new[..], &vec![0; 20 * block]].concat(), "many holes more");
    for at in 0..HEADER {
        let mut flipped = new.clone();
        flipped[at] ^= 4;
        assert_eq!(read_anew(forged(&below, &flipped), plain, 100), Err(Errno::IO), "byte {at} of the header");
    }
}

/// A block that was put back is not sealed by a truncation to a part of it, whatever its place in
/// its segment.
#[test]
fn truncation_seals_no_block_that_was_put_back() {
    let plain = 100;
    let (below, old, new) = two_states(plain);
    let block = layout(plain as u32).stored() as usize;
    for number in 0..(old.len() - HEADER) / block {
        let mut mixed = new.clone();
        let range = HEADER + number * block..HEADER + (number + 1) * block;
        mixed[range.clone()].copy_from_slice(&old[range]);
        let below = forged(&below, &mixed);
        let vnode = sealed(below, plain).root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
        let size = Some(number as u64 * plain + 40);
        let answer = vnode.setattr(&ROOT, &SetAttr { size, ..SetAttr::default() }, None);
        // A state that both have is no mixture.
        let is_same = new == mixed;
        assert_eq!(answer.err(), (!is_same).then_some(Errno::IO), "block {number}");
    }
}

/// A change that is undone leaves no segment marked as checked that was not.
#[test]
fn undone_changes_check_nothing() {
    let plain = 100;
    let (below, old, new) = two_states(plain);
    let block = layout(plain as u32).stored() as usize;
    let count = (new.len() - HEADER).div_ceil(block);
    for number in 0..(old.len() - HEADER) / block {
        let mut mixed = new.clone();
        let range = HEADER + number * block..HEADER + (number + 1) * block;
        mixed[range.clone()].copy_from_slice(&old[range]);
        if mixed == new {
            continue;
        }
        for size in [30, 100, 430, 800, 1000 * plain, 1000 * plain + 30] {
            let below = forged(&below, &mixed);
            let (vnode, file) = open(&sealed(below.clone(), plain));
            // The first one sets the time of the root again, where the journal is created.
            below.faults().arm(Plan { count: Count::Only(Op::Setattr), at: 2, fault: Fault::Error(Errno::IO) });
            let answer = vnode.setattr(&ROOT, &SetAttr { size: Some(size), ..SetAttr::default() }, Some(&*file));
            assert_eq!(answer.err(), Some(Errno::IO));
            below.faults().disarm();
            assert_eq!(vnode.getattr(&ROOT).unwrap().size.div_ceil(plain), count as u64);
            let read = file.read(&ROOT, &mut [0; 100], number as u64 * plain);
            assert_eq!(read, Err(Errno::IO), "block {number}, size {size}");
        }
    }
}

/// Storage that answers with an old block only while a change reads it does not get it sealed.
#[test]
fn storage_with_changing_answers_is_noticed() {
    let plain = 100;
    let (below, old, new) = two_states(plain);
    let block = layout(plain as u32).stored() as usize;
    let (at, range) = ((HEADER + 6 * block) as u64, HEADER + 6 * block..HEADER + 7 * block);
    let (old, new) = (old[range.clone()].to_vec(), new[range].to_vec());
    let put = |below: &Arc<dyn Layer>, bytes: &[u8]| {
        open(below).1.write(&ROOT, bytes, at).unwrap();
    };
    let mut runs = 0;
    for change in [Change::Write(630, vec![1; 30]), Change::Write(550, vec![1; 100]), Change::Truncate(650)] {
        for step in 1.. {
            let below = below.fork(&Faults::new());
            let mounted = sealed(below.clone(), plain);
            let (vnode, file) = open(&mounted);
            read_all(&*vnode, &*file).unwrap();
            let direct: Arc<dyn Layer> = below.without_faults();
            put(&direct, &old);
            let (again, true_block) = (Arc::clone(&direct), new.clone());
            below.faults().call_after(step, move || {
                open(&again).1.write(&ROOT, &true_block, at).unwrap();
            });
            let _answer = change.apply(&*vnode, &*file);
            let left = below.faults().forget_call();
            drop((vnode, file, mounted));
            match read_anew(below, plain, 100) {
                Ok(bytes) => assert!(!bytes[600..700.min(bytes.len())].contains(&5), "{change:?}, step {step}"),
                Err(errno) => assert_eq!(errno, Errno::IO),
            }
            runs += 1;
            if left {
                break;
            }
        }
    }
    assert!(runs > 15, "{runs}");
}

/// Only a segment with a damaged block fails, and holes are found only where the seal says so.
#[test]
fn other_segments_remain_readable() {
    let plain = 100;
    let (below, old, new) = two_states(plain);
    let block = layout(plain as u32).stored() as usize;
    let mut mixed = new.clone();
    let range = HEADER + 8 * block..HEADER + 9 * block;
    mixed[range.clone()].copy_from_slice(&old[range.clone()]);
    let (_, file) = open(&sealed(forged(&below, &mixed), plain));
    // 15 blocks in 6 segments: each has 4.
    let reads = |offset| file.read(&ROOT, &mut [0; 100], offset).is_ok();
    assert_eq!(
        [0, 300, 350, 799, 800, 1100, 1150, 1199, 1200, 1400].map(reads),
        [true, true, true, false, false, false, false, false, true, true]
    );
    assert_eq!(file.write(&ROOT, &[1; 30], 20), Ok(30));
    assert_eq!(file.write(&ROOT, &[1; 30], 820), Err(Errno::IO));
    mixed[range].fill(0);
    let (_, file) = open(&sealed(forged(&below, &mixed), plain));
    assert_eq!(file.seek(&ROOT, 0, Whence::Hole), Err(Errno::IO));
}

/// A read-only layer can read a broken file as it is.
#[test]
fn broken_seals_can_be_ignored() {
    let plain = 100;
    let (below, old, new) = two_states(plain);
    let block = layout(plain as u32).stored() as usize;
    let mut mixed = new[..HEADER + 10 * block].to_vec();
    mixed[HEADER..HEADER + block].copy_from_slice(&old[HEADER..HEADER + block]);
    let format = SealedSums { ignores: true, ..SealedSums::default() };
    let layer = Template::over(forged(&below, &mixed)).format(layout(100), format).read_only().build().unwrap();
    let found = layer.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
    let bytes = read_all(&*found, &*found.open(&ROOT, OpenFlags::RDONLY).unwrap()).unwrap();
    assert_eq!((bytes.len(), &bytes[..100], &bytes[100..900]), (1000, &[5; 100][..], &[77; 800][..]));
}

/// The length of a broken file is what an attacker chose. It must not decide how much memory is
/// used.
#[test]
fn an_extended_file_takes_no_memory() {
    let plain = 100;
    let (below, _, new) = two_states(plain);
    let forged = forged(&below, &new);
    let found = forged.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
    found.setattr(&ROOT, &SetAttr { size: Some(1 << 55), ..SetAttr::default() }, None).unwrap();
    let format = SealedSums { ignores: true, ..SealedSums::default() };
    let layer = Template::over(forged).format(layout(100), format).read_only().build().unwrap();
    let found = layer.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
    let file = found.open(&ROOT, OpenFlags::RDONLY).unwrap();
    let mut bytes = [1; 100];
    assert_eq!((file.read(&ROOT, &mut bytes, 800), bytes), (Ok(100), [77; 100]));
    assert_eq!((file.read(&ROOT, &mut bytes, 1 << 54), bytes), (Ok(100), [0; 100]));
}

/// Concurrent reads within a segment check it once.
#[test]
fn concurrent_readers_share_a_check() {
    let plain = 100;
    let below = MemFs::new();
    let (_, file) = open(&sealed(below.clone(), plain));
    file.write(&ROOT, &vec![5; 40_000], 0).unwrap();
    drop(file);
    let weighed = Arc::new(AtomicUsize::new(0));
    let format = SealedSums { weighed: Some(Arc::clone(&weighed)), ..SealedSums::default() };
    let layer = Template::over(below).format(layout(100), format).journal(Journal::new(JOURNAL)).build().unwrap();
    let (_, file) = open(&layer);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let file = &file;
            scope.spawn(move || assert_eq!(file.read(&ROOT, &mut [0; 100], number * 5000), Ok(100)));
        }
    });
    // They are in the first three segments of 128 blocks.
    assert_eq!(weighed.load(Ordering::Relaxed), 384);
}

/// Checking a large hole reads none of it, and punching it writes nothing.
#[test]
fn large_holes_cost_nothing() {
    let below = MemFs::new();
    let (vnode, file) = open(&sealed(below.clone(), 4096));
    file.write(&ROOT, b"start", 0).unwrap();
    let end = 1 << 50;
    file.write(&ROOT, b"end", end).unwrap();
    drop((vnode, file));
    let (vnode, file) = open(&sealed(below, 4096));
    let mut bytes = [1; 6];
    assert_eq!((file.read(&ROOT, &mut bytes, end - 3), bytes), (Ok(6), *b"\0\0\0end"));
    assert_eq!((file.read(&ROOT, &mut bytes, 0), bytes), (Ok(6), *b"start\0"));
    assert_eq!(file.fallocate(&ROOT, PUNCH, 4096, end - 4096), Ok(()));
    assert_eq!(file.read(&ROOT, &mut bytes, end - 3), Ok(6));
    assert_eq!(vnode.getattr(&ROOT).unwrap().size, end + 3);
    vnode.setattr(&ROOT, &SetAttr { size: Some(end - 1), ..SetAttr::default() }, None).unwrap();
    assert_eq!(file.read(&ROOT, &mut bytes, end - 3), Ok(2));
}
