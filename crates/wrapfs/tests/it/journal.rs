//! The journal of a format: whenever the server is killed, also in the middle of a write, each
//! block has its old or its new contents afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::crash::{
    check, crash_everywhere, fail_and_crash_everywhere, fail_everywhere, fail_to_sync_everywhere, fill_the_disk,
    lose_power_everywhere,
};
use crate::common::format::{Change, Summed, changes, layer, layout, open, prepared, read_all};
use crate::common::untrusted;
use conformance::fixture::{ROOT, name, names, user};
use memfs::{Count, Fault, Faults, MemFs, Plan};
use proptest::prelude::{any, proptest};
use std::sync::{Arc, OnceLock};
use vnode::{Errno, Layer, OpenFlags, Operation, SetAttr, Vnode};
use wrapfs::Template;
use wrapfs::hooks::Journal;

pub(crate) const JOURNAL: &str = "test.journal";

pub(crate) fn kept(below: Arc<dyn Layer>, plain: u32, journal: Journal) -> Result<Arc<dyn Layer>, String> {
    Template::over(below).format(layout(plain), Summed).journal(journal).build()
}

pub(crate) fn journaled(below: Arc<dyn Layer>, plain: u64) -> Arc<dyn Layer> {
    kept(below, plain as u32, Journal::new(JOURNAL.as_bytes())).unwrap()
}

pub(crate) fn has_journal(below: &Arc<MemFs>) -> bool {
    below.without_faults().root().lookup(&ROOT, name(JOURNAL)).unwrap().is_some()
}

#[test]
fn layers_with_a_journal_conform() {
    conformance::run_all(|| journaled(MemFs::new(), 4096));
    conformance::run_all(|| kept(journaled(MemFs::new(), 4096), 1000, Journal::new(b"test.upper")).unwrap());
    conformance::run_all(|| kept(MemFs::new(), 100, Journal::new(b"test.other").durable()).unwrap());
}

#[test]
fn the_journal_is_hidden_and_removed_with_the_layer() {
    let below = MemFs::new();
    let mounted = journaled(below.clone(), 100);
    assert!(!has_journal(&below));
    let (_, file) = open(&mounted);
    file.write(&ROOT, &[1; 500], 0).unwrap();
    assert!(has_journal(&below));
    let root = mounted.root();
    assert_eq!(names(&root), ["f"]);
    assert!(root.lookup(&ROOT, name(JOURNAL)).unwrap().is_none());
    assert_eq!(root.mkdir(&ROOT, name(JOURNAL), 0o755).map(|_| ()), Err(Errno::INVAL));
    assert_eq!(root.unlink(&ROOT, name(JOURNAL)), Err(Errno::NOENT));
    let stored = below.root().lookup(&ROOT, name(JOURNAL)).unwrap().unwrap();
    assert_eq!((stored.attr.perm(), stored.attr.uid), (0o600, rustix_uid()));
    assert_eq!(mounted.vnode(&ROOT, stored.vnode.id()).map(|_| ()), Err(Errno::STALE));
    drop((mounted, root, stored));
    // The open file belongs to the layer.
    assert!(has_journal(&below));
    drop(file);
    assert!(!has_journal(&below));
}

/// The server ends without dropping the layer, since files and reports refer to it.
#[test]
fn the_journal_is_removed_by_an_unmount() {
    let below = MemFs::new();
    let mounted = Template::over(journaled(below.clone(), 100)).build().unwrap();
    let (_, file) = open(&mounted);
    file.write(&ROOT, &[1; 500], 0).unwrap();
    assert!(has_journal(&below));
    mounted.unmounted();
    assert!(!has_journal(&below));
    // A write that is late creates it again.
    file.write(&ROOT, &[2; 500], 0).unwrap();
    assert!(has_journal(&below));
    drop((mounted, file));
    assert!(!has_journal(&below));
}

pub(crate) fn rustix_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn a_kill_at_any_moment_leaves_old_or_new_blocks() {
    let (mut runs, mut repaired) = (0, 0);
    for plain in [100, 5000] {
        let (start, old) = prepared(plain);
        for change in changes(plain) {
            let mut new = old.clone();
            change.apply_to(&mut new, None);
            crash_everywhere(&|below| journaled(below, plain), &change, &start, |below, what| {
                repaired += u32::from(has_journal(&below));
                let mounted = journaled(below.clone(), plain);
                assert!(!has_journal(&below), "{what}");
                let size = check(&mounted, plain, (&old, &new), what);
                // The file remains usable.
                let (_, file) = open(&mounted);
                file.write(&ROOT, &[9; 350], size + 150).unwrap();
                assert_eq!(file.read(&ROOT, &mut [0; 500], size + 150), Ok(350));
                runs += 1;
            });
        }
    }
    assert!(runs > 1000 && repaired > 500, "{runs} {repaired}");
}

/// The old end of the file lies inside a block, which a failed write or growing has filled up.
#[test]
fn a_kill_while_a_failed_change_is_undone_leaves_old_or_new_blocks() {
    let mut runs = 0;
    for plain in [100, 5000] {
        let (start, old) = prepared(plain);
        let changes = [
            Change::Write(13 * plain, vec![7; 2 * plain as usize]),
            Change::Write(12 * plain + 1, vec![7; 3 * plain as usize]),
            Change::Write(11 * plain + 1, vec![7; 2 * plain as usize]),
            Change::Write(20 * plain + 3, vec![7; 9]),
            Change::Append(vec![8; 2 * plain as usize]),
            Change::Truncate(30 * plain + 5),
            Change::Truncate(14 * plain),
            Change::Truncate(12 * plain + 1),
            Change::Zero(0x10, 11 * plain + 3, 3 * plain),
            Change::Allocate(0, 20 * plain, 50),
        ];
        for change in changes {
            let mut new = old.clone();
            change.apply_to(&mut new, None);
            fail_and_crash_everywhere(&|below| journaled(below, plain), &change, &start, |below, what| {
                let mounted = journaled(below.clone(), plain);
                assert!(!has_journal(&below), "{what}");
                check(&mounted, plain, (&old, &new), what);
                runs += 1;
            });
        }
    }
    assert!(runs > 500, "{runs}");
}

/// A write can also stop inside a page. The bytes in its last block show whose it is, unless they
/// are in the first page of that block.
#[test]
fn an_append_that_stops_inside_a_page_is_undone() {
    const PLAIN: u64 = 5000;
    let stored = PLAIN + 9;
    let (start, mut old) = prepared(PLAIN);
    let (mut undone, mut stays) = (0, 0);
    for is_whole in [true, false] {
        for (pages, less) in (1..7).flat_map(|pages| [(pages, 100), (pages, 2000), (pages, 3900)]) {
            let faults = Faults::new();
            let below = start.fork(&faults);
            let (_, file) = open(&journaled(below.clone(), PLAIN));
            if is_whole {
                file.write(&ROOT, &[5; 5000], 12 * PLAIN).unwrap();
                old.resize(13 * PLAIN as usize, 5);
            } else {
                old.truncate((12 * PLAIN + PLAIN / 3) as usize);
            }
            faults.arm(Plan { count: Count::Changes, at: 2, fault: Fault::CrashInWrite { pages } });
            file.write(&ROOT, &vec![7; 25_000], old.len() as u64).unwrap_err();
            let mut new = old.clone();
            new.resize(old.len() + 25_000, 7);
            let below = below.recover(&Faults::new());
            let vnode = below.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
            let end = vnode.getattr(&ROOT).unwrap().size - less;
            if end <= layout(PLAIN as u32).stored_size(old.len() as u64) || end.is_multiple_of(4096) {
                continue;
            }
            vnode.setattr(&ROOT, &SetAttr { size: Some(end), ..SetAttr::default() }, None).unwrap();
            let block = 18 + (end - 18) / stored * stored;
            let first_of_write = 18 + (old.len() as u64).div_ceil(PLAIN) * stored;
            let mounted = journaled(below, PLAIN);
            if end / 4096 * 4096 <= block {
                // It can be the short block that another program has appended.
                assert!(open(&mounted).1.read(&ROOT, &mut [0; 5000], (block - 18) / stored * PLAIN).is_err());
                stays += 1;
                continue;
            }
            let size = check(&mounted, PLAIN, (&old, &new), &format!("{pages} pages"));
            let whole = (first_of_write - 18) / stored * PLAIN;
            assert!(size == old.len() as u64 || size == whole, "{size} bytes after {pages} pages");
            undone += 1;
        }
    }
    assert!(undone > 4 && stays > 0, "{undone} {stays}");
}

/// Without the journal, the first test would fail.
#[test]
fn without_a_journal_blocks_are_torn() {
    let plain = 5000;
    let (start, _) = prepared(plain);
    let faults = Faults::new();
    let below = start.fork(&faults);
    let (_, file) = open(&layer(below.clone(), plain as u32));
    faults.arm(Plan { count: Count::Changes, at: 1, fault: Fault::CrashInWrite { pages: 2 } });
    assert_eq!(file.write(&ROOT, &vec![7; 10_000], 0), Err(Errno::IO));
    let (_, file) = open(&layer(below.recover(&Faults::new()), plain as u32));
    assert_eq!(file.read(&ROOT, &mut vec![0; 5000], 5000), Err(Errno::IO));
}

#[test]
fn recovery_can_be_interrupted() {
    let plain = 5000;
    let (start, old) = prepared(plain);
    let mut runs = 0;
    let changes = [Change::Write(2500, vec![7; 15_000]), Change::Truncate(31_007), Change::Append(vec![8; 9000])];
    for change in changes {
        let mut new = old.clone();
        change.apply_to(&mut new, None);
        crash_everywhere(&|below| journaled(below, plain), &change, &start, |crashed, what| {
            if !has_journal(&crashed) {
                return;
            }
            for fault in [Fault::Crash, Fault::CrashInWrite { pages: 1 }, Fault::Error(Errno::IO)] {
                for at in 1.. {
                    let faults = Faults::new();
                    let below = crashed.fork(&faults);
                    faults.arm(Plan { count: Count::Changes, at, fault });
                    let interrupted = kept(below.clone(), plain as u32, Journal::new(JOURNAL.as_bytes()));
                    let fired = faults.fired();
                    if fired {
                        assert!(interrupted.unwrap_err().starts_with("journal test.journal: "), "{what}");
                        assert!(has_journal(&below.recover(&Faults::new())), "{what}, {fault:?} at {at}");
                    }
                    let mounted = journaled(below.recover(&Faults::new()), plain);
                    check(&mounted, plain, (&old, &new), &format!("{what}, then {fault:?} at {at}"));
                    runs += 1;
                    if !fired {
                        break;
                    }
                }
            }
        });
    }
    assert!(runs > 200, "{runs}");
}

#[test]
fn a_power_failure_leaves_old_or_new_blocks_of_a_durable_journal() {
    let durable = |below| kept(below, 100, Journal::new(JOURNAL.as_bytes()).durable()).unwrap();
    lose_power_everywhere(&|below| durable(below), 100);
}

/// Also errors of the journal, and of clearing it.
#[test]
fn a_failure_at_any_step_changes_all_or_nothing() {
    for plain in [100, 5000] {
        let (start, old) = prepared(plain);
        fail_everywhere(&|below| journaled(below, plain), plain, (&start, &old));
    }
}

/// If a change can't be made durable, it fails, and the file is as before or as after it.
#[test]
fn a_failure_to_sync_breaks_no_block() {
    let durable = |below| kept(below, 100, Journal::new(JOURNAL.as_bytes()).durable()).unwrap();
    let (start, old) = prepared(100);
    fail_to_sync_everywhere(&|below| durable(below), 100, (&start, &old));
}

#[test]
fn a_full_disk_fails_writes_cleanly() {
    fill_the_disk(&|below| journaled(below, 4096));
}

/// Until a record can be cleared, its file must not change.
#[test]
fn a_record_that_cannot_be_cleared_protects_its_file() {
    let faults = Faults::new();
    let below = common::memory(&faults);
    let mounted = journaled(below.clone(), 100);
    let (vnode, file) = open(&mounted);
    let (_, other) = mounted.root().create(&ROOT, name("other"), 0o644, OpenFlags::RDWR).unwrap();
    file.write(&ROOT, &[1; 500], 0).unwrap();
    // The record and the blocks are written; then the disk fails.
    faults.arm(Plan { count: Count::Changes, at: 3, fault: Fault::Errors(Errno::IO) });
    assert_eq!(file.write(&ROOT, &[2; 500], 0), Ok(500));
    faults.arm(Plan { count: Count::Changes, at: 1, fault: Fault::Errors(Errno::IO) });
    assert_eq!(file.write(&ROOT, &[3; 500], 0), Err(Errno::IO));
    assert_eq!(faults.changes(), 2, "only attempts to clear the record");
    let cut = SetAttr { size: Some(100), ..SetAttr::default() };
    assert_eq!(vnode.setattr(&ROOT, &cut, None), Err(Errno::IO));
    assert_eq!(read_all(&*vnode, &*file), Ok(vec![2; 500]));
    // After a crash, the record is applied to the same contents.
    let again = journaled(below.recover(&Faults::new()), 100);
    assert_eq!(read_all(&*open(&again).0, &*open(&again).1), Ok(vec![2; 500]));
    // The disk works again.
    faults.reset();
    assert_eq!(other.write(&ROOT, &[4; 500], 0), Ok(500));
    assert_eq!(file.write(&ROOT, &[3; 500], 0), Ok(500));
    vnode.setattr(&ROOT, &cut, None).unwrap();
    let again = journaled(below.recover(&Faults::new()), 100);
    assert_eq!(read_all(&*open(&again).0, &*open(&again).1), Ok(vec![3; 100]));
    drop((mounted, vnode, file, other));
    assert!(!has_journal(&below));
}

/// Recovery takes back blocks that a write was adding. If their record can't be cleared, the write
/// fails, so that nobody believes that they are stored.
#[test]
fn a_write_whose_record_can_take_it_back_fails() {
    for (plain, offset) in [(100, 500), (100, 450), (5000, 500), (100, 900)] {
        for at in 1.. {
            let faults = Faults::new();
            let below = common::memory(&faults);
            let mounted = journaled(below.clone(), plain);
            let (vnode, file) = open(&mounted);
            file.write(&ROOT, &[1; 500], 0).unwrap();
            // From some write on, all writes fail: also both attempts to clear a record.
            faults.arm(Plan { count: Count::Only(Operation::Write), at, fault: Fault::Errors(Errno::IO) });
            let written = file.write(&ROOT, &[2; 500], offset);
            let fired = faults.fired();
            let again = journaled(below.recover(&Faults::new()), plain);
            let (found, reader) = open(&again);
            let seen = read_all(&*found, &*reader).unwrap();
            if written == Ok(500) {
                assert!(seen.ends_with(&[2; 500]), "{plain}, {offset}, write {at}: {} bytes", seen.len());
            }
            assert!(seen.starts_with(&[1; 450]), "{plain}, {offset}, write {at}");
            drop((vnode, file));
            if !fired {
                break;
            }
        }
    }
}

/// Returns a tree whose server was killed in the middle of overwriting `f`, and its contents.
pub(crate) fn interrupted() -> (Arc<MemFs>, Vec<u8>, Vec<u8>) {
    let (start, old) = prepared(5000);
    let faults = Faults::new();
    let below = start.fork(&faults);
    let (_, file) = open(&journaled(below.clone(), 5000));
    file.write(&ROOT, &[5], 0).unwrap();
    faults.arm(Plan { count: Count::Changes, at: 2, fault: Fault::CrashInWrite { pages: 2 } });
    file.write(&ROOT, &vec![7; 20_000], 0).unwrap_err();
    let mut new = old.clone();
    new[..20_000].fill(7);
    let below = below.recover(&Faults::new());
    assert!(has_journal(&below));
    (below, old, new)
}

#[test]
fn an_overwrite_is_completed() {
    let (below, _, new) = interrupted();
    let mounted = journaled(below, 5000);
    let (vnode, file) = open(&mounted);
    assert!(read_all(&*vnode, &*file).unwrap() == new);
}

/// A file that was changed since is left alone: another program may have written it.
#[test]
fn records_about_other_contents_are_ignored() {
    type Elsewhere = fn(&Arc<dyn Vnode>);
    let changed: [(&str, Elsewhere); 3] = [
        ("removed", |root| root.unlink(&ROOT, name("f")).unwrap()),
        ("header", |root| {
            let found = root.lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
            found.open(&ROOT, OpenFlags::RDWR).unwrap().write(&ROOT, &[7; 18], 0).unwrap();
        }),
        ("journal", |root| {
            let found = root.lookup(&ROOT, name(JOURNAL)).unwrap().unwrap().vnode;
            found.open(&ROOT, OpenFlags::RDWR).unwrap().write(&ROOT, b"?", 4096 + 9000).unwrap();
        }),
    ];
    for (what, change) in changed {
        let (below, ..) = interrupted();
        let root: Arc<dyn Vnode> = below.root();
        change(&root);
        let before = below.dump().0.get(&b"f"[..]).map(|node| node.data.clone());
        let mounted = journaled(below.clone(), 5000);
        assert_eq!(below.dump().0.get(&b"f"[..]).map(|node| node.data.clone()), before, "{what}");
        assert!(!has_journal(&below), "{what}");
        drop(mounted);
    }
}

/// Another program, such as a mount without the journal, changes the file after the server was
/// killed: this stays, and all other blocks are old or new ones.
#[test]
fn what_another_program_has_changed_since_stays() {
    const PLAIN: u64 = 5000;
    let writes = [0, 1, 6, 12, 13].map(|block| Change::Write(block * PLAIN, vec![0xe5; PLAIN as usize]));
    let cuts = [1, 9, 13, 14, 16, 25].map(|blocks| Change::Truncate(blocks * PLAIN));
    let (start, old) = prepared(PLAIN);
    let mut runs = 0;
    for change in changes(PLAIN) {
        let mut new = old.clone();
        change.apply_to(&mut new, None);
        crash_everywhere(&|below| journaled(below, PLAIN), &change, &start, |crashed, what| {
            if !has_journal(&crashed) {
                return;
            }
            for theirs in writes.iter().chain(&cuts) {
                let below = crashed.fork(&Faults::new());
                let other = layer(below.clone(), PLAIN as u32);
                let (vnode, file) = open(&other);
                // Fails if it must read a torn block.
                if theirs.apply(&*vnode, &*file).is_err() {
                    continue;
                }
                let (mut old, mut new, cut) = (old.clone(), new.clone(), matches!(theirs, Change::Truncate(_)));
                theirs.apply_to(&mut old, None);
                theirs.apply_to(&mut new, None);
                let size = vnode.getattr(&ROOT).unwrap().size;
                drop((vnode, file, other));
                let mounted = journaled(below.clone(), PLAIN);
                assert!(!has_journal(&below), "{what}");
                let what = format!("{what}, then {theirs:?}");
                let now = check(&mounted, PLAIN, (&old, &new), &what);
                if let Change::Write(offset, data) = theirs {
                    let mut out = vec![0; data.len()];
                    assert_eq!(open(&mounted).1.read(&ROOT, &mut out, *offset), Ok(out.len()), "{what}");
                    assert!(out == *data, "{what}");
                }
                assert!(now == size || !cut, "{what}: {now} bytes in place of {size}");
                runs += 1;
            }
        });
    }
    assert!(runs > 1000, "{runs}");
}

#[test]
fn a_journal_that_cannot_be_applied_fails_the_mount() {
    let mount = |below: &Arc<MemFs>, plain| kept(below.clone(), plain, Journal::new(JOURNAL.as_bytes())).unwrap_err();
    let chmod = |below: &Arc<MemFs>, set: SetAttr| {
        let journal = below.root().lookup(&ROOT, name(JOURNAL)).unwrap().unwrap().vnode;
        journal.setattr(&ROOT, &set, None).unwrap();
    };
    // Others could have written it.
    let (below, ..) = interrupted();
    chmod(&below, SetAttr { mode: Some(0o620), ..SetAttr::default() });
    assert!(mount(&below, 5000).contains("it is not a file that only user"));
    chmod(&below, SetAttr { mode: Some(0o600), uid: Some(77), ..SetAttr::default() });
    assert!(mount(&below, 5000).contains("it is not a file that only user"));
    chmod(&below, SetAttr { uid: Some(rustix_uid()), ..SetAttr::default() });
    below.root().link(&ROOT, name("link"), &below.root().lookup(&ROOT, name(JOURNAL)).unwrap().unwrap().vnode).unwrap();
    assert!(mount(&below, 5000).contains("it is not a file that only user"));
    below.root().unlink(&ROOT, name("link")).unwrap();
    // Another layout.
    assert!(mount(&below, 100).contains("it is of another version, or of other files"));
    // A read-only layer does not touch it.
    let read_only =
        Template::over(below.clone()).format(layout(5000), Summed).journal(Journal::new(JOURNAL.as_bytes()));
    let read_only = read_only.read_only().build().unwrap();
    assert_eq!(names(&read_only.root()), ["f"]);
    assert!(has_journal(&below));
    assert_eq!(
        mount(
            &{
                below.set_read_only(false);
                below.faults().arm(Plan { count: Count::All, at: 6, fault: Fault::Error(Errno::IO) });
                below.clone()
            },
            5000
        )
        .split(": ")
        .next(),
        Some("journal test.journal")
    );
    below.faults().reset();
    let (vnode, file) = open(&journaled(below, 5000));
    assert_eq!(read_all(&*vnode, &*file).unwrap()[..20_000], vec![7; 20_000]);
    // Settings that make no sense.
    let over = || Template::over(MemFs::new());
    assert_eq!(over().journal(Journal::new(b"j")).build().unwrap_err(), "a journal needs a file format");
    let slash = over().format(layout(10), Summed).journal(Journal::new(b"a/b")).build().unwrap_err();
    assert_eq!(slash, "journal a/b: this is not a file name");
}

/// The owner of a file may have removed its write permission while it was being written.
#[test]
fn a_file_without_write_permission_is_restored() {
    let (below, _, new) = interrupted();
    // A copy of the tree made it readable.
    let journal = below.root().lookup(&ROOT, name(JOURNAL)).unwrap().unwrap().vnode;
    journal.setattr(&ROOT, &SetAttr { mode: Some(0o644), ..SetAttr::default() }, None).unwrap();
    let found = below.root().lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
    found.setattr(&ROOT, &SetAttr { mode: Some(0o400), ..SetAttr::default() }, None).unwrap();
    let mounted = journaled(below, 5000);
    let (vnode, file) = (mounted.root().lookup(&ROOT, name("f")).unwrap().unwrap(), open(&mounted).1);
    assert!(read_all(&*vnode.vnode, &*file).unwrap() == new);
    assert_eq!(vnode.attr.perm(), 0o400);
}

/// The root keeps its time when the journal is created, but not over the time of a user's change.
#[test]
fn creating_the_journal_keeps_the_times_of_other_changes() {
    let prepare = || {
        let below = MemFs::new();
        let mounted = kept(below.clone(), 100, Journal::new(JOURNAL.as_bytes()).durable()).unwrap();
        let (_, file) = open(&mounted);
        (below, mounted, file)
    };
    let mtime = |below: &Arc<MemFs>| below.without_faults().root().getattr(&ROOT).unwrap().mtime;
    let (below, _mounted, file) = prepare();
    let before = mtime(&below);
    below.faults().record();
    file.write(&ROOT, &[1; 500], 0).unwrap();
    assert!(has_journal(&below));
    assert_eq!(mtime(&below), before);
    let log = below.faults().log();
    let synced = log.iter().position(|op| *op == Operation::Fsync).unwrap() as u64 + 1;
    for at in [synced, synced + 1] {
        let (below, _mounted, file) = prepare();
        let (of_user, users) = (Arc::new(OnceLock::new()), below.clone());
        let seen = of_user.clone();
        below.faults().call_at(at, move || {
            let root = users.without_faults().root();
            root.mkdir(&ROOT, name("theirs"), 0o755).unwrap();
            seen.set(root.getattr(&ROOT).unwrap().mtime).unwrap();
        });
        file.write(&ROOT, &[1; 500], 0).unwrap();
        assert_eq!(Some(&mtime(&below)), of_user.get());
    }
}

#[test]
fn a_second_server_is_noticed() {
    let below = MemFs::new();
    let (first, second) = (journaled(below.clone(), 100), journaled(below.clone(), 100));
    let (_, file) = open(&first);
    file.write(&ROOT, &[1; 500], 0).unwrap();
    let (entry, other) = second.root().create(&ROOT, name("g"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(other.write(&ROOT, &[1; 500], 0), Err(Errno::BUSY));
    assert_eq!(entry.vnode.getattr(&ROOT).unwrap().size, 0);
    drop((second, entry, other));
    assert!(has_journal(&below));
}

#[test]
fn writers_of_several_files_share_the_journal() {
    let below = MemFs::new();
    let mounted = journaled(below.clone(), 1000);
    std::thread::scope(|scope| {
        for index in 0..4_u8 {
            let root = mounted.root();
            scope.spawn(move || {
                let cx = user(0, 0, 0);
                let (_, file) = root.create(&cx, name(&format!("{index}")), 0o644, OpenFlags::RDWR).unwrap();
                for round in 0..100_u64 {
                    let at = round * 777 % 20_000;
                    file.write(&cx, &[index; 3000], at).unwrap();
                    let mut out = [0; 3000];
                    assert_eq!(file.read(&cx, &mut out, at), Ok(3000));
                    assert!(out == [index; 3000]);
                }
            });
        }
    });
    let journal = below.root().lookup(&ROOT, name(JOURNAL)).unwrap().unwrap().attr.size;
    // At most one slot per thread.
    assert!(journal <= 4096 + 4 * (300 << 10), "{journal}");
    drop(mounted);
    assert!(!has_journal(&below));
}

proptest! {
    #[test]
    fn any_journal_can_be_read(records: Vec<u8>, corrected: bool) {
        untrusted::recover(&records, corrected);
    }

    /// Records about the file, with sizes near its own.
    #[test]
    fn any_record_can_be_applied(
        mut fields in proptest::array::uniform4(0..1500_u64),
        near in 0..3_usize,
        data in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        if let Some(field) = fields.get_mut(near) {
            *field = 644;
        }
        let mut record = vec![0; 64];
        record.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        record.resize(128, 0);
        record.extend(data);
        untrusted::recover(&record, true);
    }
}
