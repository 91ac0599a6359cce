//! What recovery does not write over the bytes of another program is kept, and can be restored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::format::{Change, Summed, layer, layout, open, prepared, read_all};
use crate::common::sealed::{self, sealed as sealed_layer};
use crate::journal::{JOURNAL, has_journal, interrupted, journaled, rustix_uid};
use conformance::fixture::{ROOT, name, names};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::sync::Arc;
use wrapfs::hooks::Journal;
use wrapfs::vnode::{Errno, Kind, Layer, OpenFlags, Operation, SetAttr, SetTime, Time, Vnode};
use wrapfs::{KeptJournals, Template};

/// Where the first stored block of `f` has bytes of the interrupted write.
const TORN: u64 = 2000;

fn found(below: &Arc<MemFs>, of: &str) -> Arc<dyn Vnode> {
    below.root().lookup(&ROOT, name(of)).unwrap().unwrap().vnode
}

fn write(below: &Arc<MemFs>, of: &str, bytes: &[u8], offset: u64) {
    found(below, of).open(&ROOT, OpenFlags::RDWR).unwrap().write(&ROOT, bytes, offset).unwrap();
}

fn read(below: &Arc<MemFs>, of: &str) -> Vec<u8> {
    let vnode = found(below, of);
    let file = vnode.open(&ROOT, OpenFlags::RDONLY).unwrap();
    read_all(&*vnode, &*file).unwrap()
}

fn kept_journals(below: &Arc<MemFs>) -> KeptJournals {
    let owner = (rustix_uid(), rustix::process::getegid().as_raw());
    KeptJournals::new(below.clone(), JOURNAL.as_bytes(), (layout(5000), None), owner)
}

/// Returns an interrupted tree in which a page of `f` has both old and new bytes, and what `f`
/// would be without that.
fn torn() -> (Arc<MemFs>, Vec<u8>) {
    let (below, _, new) = interrupted();
    write(&below, "f", &[0x5a; 100], TORN);
    (below, new)
}

fn mount(below: &Arc<MemFs>) -> Result<Arc<dyn Layer>, String> {
    crate::journal::kept(below.clone(), 5000, Journal::new(JOURNAL.as_bytes()))
}

fn content(mounted: &Arc<dyn Layer>) -> wrapfs::vnode::Result<Vec<u8>> {
    let (vnode, file) = open(mounted);
    read_all(&*vnode, &*file)
}

#[test]
fn a_page_that_was_torn_can_be_restored() {
    let (below, new) = torn();
    let mounted = journaled(below.clone(), 5000);
    // The journal itself is hidden, as is what is kept.
    assert!(!has_journal(&below));
    assert_eq!(names(&mounted.root()), ["f"]);
    let mut all = names(&below.root());
    all.sort();
    assert_eq!(all, ["f", "test.journal.1"]);
    let (vnode, file) = open(&mounted);
    let mut block = vec![0; 5000];
    assert_eq!(file.read(&ROOT, &mut block, 0), Err(Errno::IO));
    // The other blocks of the write were restored.
    assert_eq!(file.read(&ROOT, &mut block, 5000), Ok(5000));
    assert!(block == new[5000..10_000]);
    // They can be changed again, and are not part of what is kept.
    file.write(&ROOT, &[3; 5000], 10_000).unwrap();
    drop((vnode, file, mounted));
    let kept = kept_journals(&below);
    assert_eq!(kept.numbers(), Ok(vec![1]));
    let writes = kept.writes(1).unwrap();
    assert_eq!(writes.len(), 1);
    let first = &writes[0];
    assert!(!first.replaces_seal);
    assert_eq!((&*first.path, first.bytes.clone(), first.problem), ("f", 0..5000, None));
    assert_eq!(first.inode, found(&below, "f").id());
    assert_eq!(kept.apply(1).unwrap(), writes);
    assert_eq!(kept.numbers(), Ok(vec![]));
    let mut expected = new;
    expected[10_000..15_000].fill(3);
    assert!(content(&journaled(below, 5000)).unwrap() == expected);
}

/// Mending the file in another way wins.
#[test]
fn a_file_that_was_changed_since_is_left_alone() {
    let (below, new) = torn();
    let mounted = journaled(below.clone(), 5000);
    open(&mounted).1.write(&ROOT, &[9; 5000], 0).unwrap();
    drop(mounted);
    let kept = kept_journals(&below);
    let writes = kept.apply(1).unwrap();
    assert_eq!(writes[0].problem, Some("the file was changed since"));
    assert_eq!(kept.numbers(), Ok(vec![1]));
    let mut expected = new;
    expected[..5000].fill(9);
    assert!(content(&journaled(below.clone(), 5000)).unwrap() == expected);
    below.root().unlink(&ROOT, name("f")).unwrap();
    assert_eq!(kept.apply(1).unwrap()[0].problem, Some("the file was removed"));
    assert_eq!(kept.apply(2), Err("test.journal.2: no such journal".to_owned()));
}

/// A block that another program has cut off is not torn.
#[test]
fn what_another_program_has_cut_off_is_not_kept() {
    let (start, old) = prepared(5000);
    for (offset, len, cut, keeps) in
        [(40_000, 5000, 12_500, false), (0, 20_000, 10_000, false), (0, 20_000, 12_500, true)]
    {
        let faults = Faults::new();
        let below = start.fork(&faults);
        let (_, file) = open(&journaled(below.clone(), 5000));
        file.write(&ROOT, &[5], 0).unwrap();
        faults.arm(Plan { count: Count::Changes, at: 2, fault: Fault::CrashInWrite { pages: 1 } });
        file.write(&ROOT, &vec![7; len], offset).unwrap_err();
        let below = below.recover(&Faults::new());
        assert!(has_journal(&below));
        let (vnode, file) = open(&layer(below.clone(), 5000));
        let mut expected = old.clone();
        Change::Truncate(cut).apply_to(&mut expected, None);
        Change::Truncate(cut).apply(&*vnode, &*file).unwrap();
        let kept = kept_journals(&below);
        let mounted = journaled(below.clone(), 5000);
        assert!(!has_journal(&below));
        let whole = content(&mounted).unwrap();
        assert_eq!(whole.len(), expected.len());
        drop(mounted);
        assert_eq!(kept.numbers(), Ok(if keeps { vec![1] } else { vec![] }), "{cut}");
        if keeps {
            // The block at the end can be torn. Restoring it leaves no torn block.
            assert_eq!(kept.writes(1).unwrap()[0].bytes, 10_000..15_000);
            assert_eq!(kept.apply(1).unwrap()[0].problem, None);
            assert!(content(&journaled(below, 5000)).unwrap() == [7; 15_000]);
        }
    }
}

/// A crash at any step of a recovery, and of applying what it kept, loses nothing.
#[test]
fn keeping_can_be_interrupted() {
    let (start, new) = torn();
    let (mut at, mut runs) = (1, 0);
    loop {
        let faults = Faults::new();
        let below = start.fork(&faults);
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::CrashInWrite { pages: 1 } });
        let mounted = Template::over(below.clone()).format(layout(5000), Summed);
        let mounted = mounted.journal(Journal::new(JOURNAL.as_bytes())).build();
        let fired = faults.fired();
        assert_eq!(mounted.is_err(), fired, "{at}");
        drop(mounted);
        let below = below.recover(&Faults::new());
        drop(journaled(below.clone(), 5000));
        let mut applied = 0;
        for number in kept_journals(&below).numbers().unwrap() {
            for step in 1.. {
                let faults = Faults::new();
                let fork = below.fork(&faults);
                faults.arm(Plan { count: Count::Changes, at: step, fault: Fault::Crash });
                let _answer = kept_journals(&fork).apply(number);
                if !faults.fired() {
                    break;
                }
                let fork = fork.recover(&Faults::new());
                let _answer = kept_journals(&fork).apply(number);
                runs += 1;
            }
            // The first of two may be incomplete.
            if kept_journals(&below)
                .apply(number)
                .is_ok_and(|writes| writes.iter().all(|write| write.problem.is_none()))
            {
                applied += 1;
            }
        }
        assert!(applied > 0, "{at}");
        assert!(content(&journaled(below, 5000)).unwrap() == new, "{at}");
        if !fired {
            break;
        }
        at += 1;
    }
    assert!(at > 5 && runs > 5, "{at} {runs}");
}

#[test]
fn the_number_of_kept_journals_is_bounded() {
    let (below, _) = torn();
    for number in 1..=16_u8 {
        let kept = format!("{JOURNAL}.{number}");
        let (entry, _) = below.root().create(&ROOT, name(&kept), 0o600, OpenFlags::RDWR).unwrap();
        let time = Time { sec: if number == 7 { 5 } else { 1000 }, nsec: 0 };
        entry.vnode.setattr(&ROOT, &SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() }, None).unwrap();
    }
    // Attempts that fail remove none of them, unless the last step fails: removing the journal.
    let journals = |below: &Arc<MemFs>| -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = below.without_faults().dump().0.into_iter();
        all.filter(|(name, _)| name.starts_with(JOURNAL.as_bytes())).map(|(name, node)| (name, node.data)).collect()
    };
    let (before, mut failed) = (journals(&below), 0);
    for at in 1.. {
        let faults = Faults::new();
        let fork = below.fork(&faults);
        faults.arm(Plan { count: Count::Changes, at, fault: Fault::Error(Errno::IO) });
        mount(&fork).unwrap_err();
        let left = journals(&fork);
        if left.iter().any(|(name, data)| name == b"test.journal.7" && !data.is_empty()) {
            break;
        }
        assert!(left == before, "{at}");
        failed += 1;
    }
    assert!(failed > 5, "{failed}");
    let mounted = journaled(below.clone(), 5000);
    assert_eq!(names(&mounted.root()), ["f"]);
    assert_eq!(mounted.root().mkdir(&ROOT, name("test.journal.16"), 0o755).map(|_| ()), Err(Errno::INVAL));
    for shown in ["test.journal.17", "test.journal.0", "test.journal.01", "test.journal."] {
        mounted.root().mkdir(&ROOT, name(shown), 0o755).unwrap();
    }
    drop(mounted);
    // The oldest one was replaced.
    assert_eq!(kept_journals(&below).writes(7).unwrap().len(), 1);
    assert_eq!(kept_journals(&below).numbers().unwrap().len(), 16);
    assert!(kept_journals(&below).writes(8).unwrap_err().contains("it is damaged"));
}

/// Each mount would keep the same again, in place of the oldest.
#[test]
fn a_journal_that_cannot_be_removed_is_kept_once() {
    let (below, _) = torn();
    for _ in 0..3 {
        below.faults().arm(Plan { count: Count::Only(Operation::Unlink), at: 1, fault: Fault::Errors(Errno::IO) });
        let refused = mount(&below).map(|_| ()).unwrap_err();
        assert!(refused.contains("cannot be removed"), "{refused}");
    }
    below.faults().reset();
    mount(&below).unwrap();
    assert_eq!(kept_journals(&below).numbers(), Ok(vec![1]));
    assert!(!has_journal(&below));
}

/// Other objects have the names of kept journals. The journal itself then remains, renamed.
#[test]
fn directories_with_the_names_of_kept_journals_stop_nothing() {
    let (below, _) = torn();
    let mkdir = |of: &str| below.root().mkdir(&ROOT, name(of), 0o755).unwrap();
    (1..=15_u8).for_each(|number| drop(mkdir(&format!("{JOURNAL}.{number}"))));
    mkdir("test.journal.new");
    let before = read(&below, JOURNAL);
    // One name is left.
    let fork = below.fork(&Faults::new());
    drop(mount(&fork).unwrap());
    assert_eq!(kept_journals(&fork).writes(16).unwrap().len(), 1);
    // That journal is not complete before it has its name, so it cannot be replaced either.
    write(&fork, "f", &[0x5b; 100], 100);
    let (entry, file) = fork.root().create(&ROOT, name(JOURNAL), 0o600, OpenFlags::RDWR).unwrap();
    let owner = SetAttr { uid: Some(rustix_uid()), ..SetAttr::default() };
    entry.vnode.setattr(&ROOT, &owner, None).unwrap();
    file.write(&ROOT, &before, 0).unwrap();
    drop(mount(&fork).unwrap());
    assert_eq!(kept_journals(&fork).writes(16).unwrap().len(), 1);
    assert!(!has_journal(&fork) && read(&fork, "test.journal.17") == before);
    // None is left.
    mkdir("test.journal.16");
    drop(mount(&below).unwrap());
    assert!(!has_journal(&below) && read(&below, "test.journal.17") == before);
    // A directory in the place of the journal.
    mkdir(JOURNAL);
    drop(mount(&below).unwrap());
    assert!(!has_journal(&below) && found(&below, "test.journal.18").kind() == Kind::Directory);
}

/// The only good copy is removed after the file is durable.
#[test]
fn what_is_restored_survives_a_power_failure() {
    let below = MemFs::with(MemOptions { lose_data: true, ..MemOptions::default() }, &Faults::new());
    let mounted = journaled(below.clone(), 5000);
    let (_, file) = open(&mounted);
    file.write(&ROOT, &[5; 30_000], 0).unwrap();
    file.fsync(&ROOT, false).unwrap();
    mounted.root().fsync(&ROOT, false).unwrap();
    drop((mounted, file));
    let (_, file) = open(&journaled(below.clone(), 5000));
    file.write(&ROOT, &[5], 0).unwrap();
    // The record and the blocks are written; the record is not cleared.
    below.faults().arm(Plan { count: Count::Changes, at: 3, fault: Fault::Errors(Errno::IO) });
    file.write(&ROOT, &[7; 20_000], 0).unwrap();
    drop(file);
    below.faults().reset();
    assert!(has_journal(&below));
    write(&below, "f", &[0x5a; 100], TORN);
    found(&below, "f").open(&ROOT, OpenFlags::RDWR).unwrap().fsync(&ROOT, false).unwrap();
    drop(mount(&below).unwrap());
    // The kept journal is durable, too.
    let below = below.recover(&Faults::new());
    assert_eq!(kept_journals(&below).apply(1).unwrap()[0].problem, None);
    assert_eq!(kept_journals(&below).numbers(), Ok(vec![]));
    let below = below.recover(&Faults::new());
    let mut block = vec![0; 5000];
    assert_eq!(open(&journaled(below, 5000)).1.read(&ROOT, &mut block, 0), Ok(5000));
    assert!(block == [7; 5000]);
}

#[test]
fn a_damaged_journal_is_moved_aside() {
    let (below, ..) = interrupted();
    write(&below, JOURNAL, b"?", 20);
    let before = read(&below, JOURNAL);
    drop(journaled(below.clone(), 5000));
    assert!(!has_journal(&below));
    assert!(read(&below, "test.journal.1") == before);
}

/// Bytes that its checksum does not cover.
#[test]
fn a_journal_with_a_damaged_header_is_not_of_another_version() {
    for at in 28..32 {
        let (below, ..) = interrupted();
        write(&below, JOURNAL, b"?", at);
        drop(mount(&below).unwrap());
        assert!(!has_journal(&below));
        assert_eq!(kept_journals(&below).numbers(), Ok(vec![1]));
    }
}

#[test]
fn a_journal_that_is_no_file_is_moved_aside() {
    let (below, ..) = interrupted();
    below.root().unlink(&ROOT, name(JOURNAL)).unwrap();
    below.root().mknod(&ROOT, name(JOURNAL), 0o010_600, 0).unwrap();
    let mounted = journaled(below.clone(), 5000);
    assert!(!has_journal(&below));
    open(&mounted).1.write(&ROOT, &[1; 500], 30_000).unwrap();
    assert!(has_journal(&below));
    assert!(kept_journals(&below).writes(1).unwrap_err().contains("it is not a file"));
}

/// A seal covers the whole file, so nothing of the record was applied, and all of it is kept.
#[test]
fn a_sealed_file_is_restored_as_a_whole() {
    for torn_at in [2000, sealed::HEADER as u64 + 300] {
        let below = MemFs::new();
        let mounted = sealed_layer(below.clone(), 5000);
        open(&mounted).1.write(&ROOT, &[5; 30_000], 0).unwrap();
        drop(mounted);
        let faults = Faults::new();
        let below = below.fork(&faults);
        let mounted = sealed_layer(below.clone(), 5000);
        let (_, file) = open(&mounted);
        file.write(&ROOT, &[5], 0).unwrap();
        faults.arm(Plan { count: Count::Changes, at: 2, fault: Fault::CrashInWrite { pages: 2 } });
        file.write(&ROOT, &[7; 20_000], 0).unwrap_err();
        let below = below.recover(&Faults::new());
        write(&below, "f", &[0x5a; 100], torn_at);
        let mounted = sealed_layer(below.clone(), 5000);
        assert!(
            mounted.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode.open(&ROOT, OpenFlags::RDWR).is_err()
                || open(&mounted).1.read(&ROOT, &mut [0; 5000], 0) == Err(Errno::IO)
        );
        drop(mounted);
        let owner = (rustix_uid(), rustix::process::getegid().as_raw());
        let fixed = Some(crate::common::format::ID);
        let kept = KeptJournals::new(below.clone(), sealed::JOURNAL, (sealed::layout(5000), fixed), owner);
        assert!(kept.writes(1).unwrap()[0].replaces_seal);
        assert_eq!(kept.apply(1).unwrap()[0].problem, None, "{torn_at}");
        let mut expected = vec![7; 20_000];
        expected.resize(30_000, 5);
        assert!(content(&sealed_layer(below, 5000)).unwrap() == expected);
    }
}

/// Replaces the journal by one of version 1 with the same records, written at `time`.
fn as_version_1(below: &Arc<MemFs>, time: u64) {
    let mut bytes = read(below, JOURNAL);
    let number = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[7] = b'1';
    let sum = crc32c::crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&sum.to_le_bytes());
    let slot = number(&bytes, 20) as usize;
    for start in (4096..bytes.len()).step_by(slot) {
        let record = &mut bytes[start..];
        if record[..8] != *b"STRAREC2" {
            continue;
        }
        let (len, total) = (number(record, 12) as usize, number(record, 96) as usize);
        // Marks are made of segments of at most a page, in blocks of 5009 bytes from offset 18 on.
        let mut marks = 0;
        let (mut at, end) = (18, 18 + total);
        while at < end {
            at = end.min((at / 4096 + 1) * 4096).min(at + 5009 - (at - 18) % 5009);
            marks += 8;
        }
        let data = record[128 + marks..128 + marks + len].to_vec();
        record[7] = b'1';
        record[96..104].copy_from_slice(&time.to_le_bytes());
        record[104..128].fill(0);
        record[128..128 + len].copy_from_slice(&data);
        let sum = crc32c::crc32c(&record[12..128 + len]);
        record[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    write(below, JOURNAL, &bytes, 0);
}

#[test]
fn a_journal_of_version_1_is_applied() {
    let (below, _, new) = interrupted();
    let changed = found(&below, "f").getattr(&ROOT).unwrap().ctime.sec.cast_unsigned();
    as_version_1(&below, changed);
    assert!(content(&journaled(below.clone(), 5000)).unwrap() == new);
    assert!(!has_journal(&below));
    assert_eq!(kept_journals(&below).numbers(), Ok(vec![]));
}

/// The record has no checksums of the bytes before the change, so only the time tells.
#[test]
fn version_1_is_not_applied_to_a_file_that_was_changed_later() {
    let (below, _, new) = interrupted();
    let set = |sec| SetAttr { mtime: Some(SetTime::At(Time { sec, nsec: 0 })), ..SetAttr::default() };
    found(&below, "f").setattr(&ROOT, &set(1), None).unwrap();
    let changed = found(&below, "f").getattr(&ROOT).unwrap().ctime.sec.cast_unsigned();
    as_version_1(&below, changed.saturating_sub(6));
    let before = read(&below, "f");
    drop(journaled(below.clone(), 5000));
    assert!(read(&below, "f") == before);
    let kept = kept_journals(&below);
    assert_eq!(kept.writes(1).unwrap()[0].bytes, 0..20_000);
    assert_eq!(kept.apply(1).unwrap()[0].problem, None);
    assert!(content(&journaled(below, 5000)).unwrap() == new);
}

/// A recovery that failed later has changed the file.
#[test]
fn version_1_can_be_recovered_again() {
    let (below, _, new) = interrupted();
    let applied = below.fork(&Faults::new());
    drop(mount(&applied).unwrap());
    write(&below, "f", &read(&applied, "f"), 0);
    let changed = found(&below, "f").getattr(&ROOT).unwrap().ctime.sec.cast_unsigned();
    as_version_1(&below, changed.saturating_sub(400));
    assert!(content(&mount(&below).unwrap()).unwrap() == new);
    assert!(!has_journal(&below));
    assert_eq!(kept_journals(&below).numbers(), Ok(vec![]));
}

/// Zeros behind the old end were written by another program, unless the machine lost power.
#[test]
fn a_file_that_another_program_made_longer_stays_long() {
    const PLAIN: u64 = 5000;
    let (start, old) = prepared(PLAIN);
    let faults = Faults::new();
    let below = start.fork(&faults);
    let (_, file) = open(&journaled(below.clone(), PLAIN));
    // The last block becomes whole first, in a change of its own.
    file.write(&ROOT, &[6; 5000], old.len() as u64 / PLAIN * PLAIN).unwrap();
    faults.arm(Plan { count: Count::Changes, at: 2, fault: Fault::Crash });
    file.write(&ROOT, &vec![7; 30_000], 15 * PLAIN).unwrap_err();
    let below = below.recover(&Faults::new());
    for blocks in [14, 15, 16, 18, 21, 30] {
        let below = below.fork(&Faults::new());
        assert!(has_journal(&below));
        let (vnode, file) = open(&layer(below.clone(), PLAIN as u32));
        Change::Truncate(blocks * PLAIN).apply(&*vnode, &*file).unwrap();
        let mounted = journaled(below, PLAIN);
        assert_eq!(open(&mounted).0.getattr(&ROOT).unwrap().size, blocks * PLAIN);
    }
}
