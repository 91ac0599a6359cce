//! Snapshots that fail or are killed, again and again, and what else happens to a union meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, find, list, name, read, write};
use crate::common::snapshot_world::{
    BRANCHES, OPEN, World, assert_contents, branch, dump, snapshot_to, strip_own, union_of,
};
use memfs::{Count, Fault, Faults, MemFs, Plan};
use serde_json::{Value, json};
use std::sync::Arc;
use unionfs::{Branch, BuildError, Mode, Unionfs};
use vnode::{Errno, Layer, OpenFlags, RenameFlags};

/// Sends a request of the command that moves files.
fn send(union: &Unionfs, input: &Value) -> Value {
    let reply = union.root().control(&CX, "unionfs.move", input.to_string().as_bytes()).unwrap();
    serde_json::from_slice(&reply).unwrap()
}

/// A snapshot ends `--drain` and `--rebalance`: they take nothing from a branch that belongs to it.
#[test]
fn a_snapshot_ends_the_moving_of_files() {
    for begin in [json!({ "do": "drain", "branch": "/b" }), json!({ "do": "drain", "branch": "/a" })] {
        let world = World::new();
        for at in 0..20 {
            write(&*world.disk, &format!("b/dir/more{at}"), b"more");
        }
        let begun = send(&world.union, &begin);
        world.snapshot("new").unwrap();
        let frozen = ["a", "b", "c"].map(|dir| dump(&world.disk, dir));
        let reply = send(&world.union, &json!({ "do": "step", "id": begun["id"] }));
        println!("{begin}: {reply}");
        for (before, dir) in frozen.iter().zip(["a", "b", "c"]) {
            assert_eq!(dump(&world.disk, dir).differences(before), "", "{begin}: {dir}");
        }
        // The kernel writes new files itself.
        let (_, file) = world.union.root().create(&CX, name("fresh"), 0o644, OpenFlags::RDWR).unwrap();
        assert!(file.backing().is_some(), "{begin}");
    }
}

/// So does a branch that becomes read-only.
#[test]
fn a_read_only_branch_is_not_drained() {
    for (begin, mode) in
        [(json!({ "do": "drain", "branch": "/b" }), "/b"), (json!({ "do": "drain", "branch": "/a" }), "/b")]
    {
        let world = World::new();
        let begun = send(&world.union, &begin);
        let change = unionfs::BranchChange::Mode(mode.into(), Mode::ReadOnly);
        world.union.change_branches(vec![change], &unionfs::ChangePolicy::default()).unwrap();
        let before = dump(&world.disk, "b");
        let reply = send(&world.union, &json!({ "do": "step", "id": begun["id"] }));
        assert_eq!(dump(&world.disk, "b").differences(&before), "", "{begin}: {reply}");
        assert_eq!(reply.get("refused").is_some(), begin["branch"] == "/b", "{reply}");
    }
}

/// The old branch could not be completed, and a carried file was removed from the new one. Its
/// state in the snapshot is kept.
#[test]
fn removed_files_of_an_incomplete_snapshot_are_kept() {
    let mut kept = 0;
    for at in 1.. {
        let world = World::new();
        world.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Errors(Errno::IO) });
        let taken = world.snapshot("new");
        world.faults.disarm();
        if !world.faults.fired() {
            break;
        }
        if !matches!(taken, Err(BuildError::Incomplete(..))) {
            continue;
        }
        world.kernel_writes(b"after!");
        world.union.root().unlink(&CX, name("top")).unwrap();
        let World { disk, union, open, .. } = world;
        drop((union, open));
        drop(union_of(&disk, &BRANCHES).unwrap());
        let states: Vec<_> = disk.dump().0.into_values().filter(|node| node.data == b"before").collect();
        assert_eq!(states.len(), OPEN.len(), "{at}");
        kept += u32::from(find(&*disk, "a/.wh..wh.aside0").is_some());
        let newest = union_of(&disk, &ALL).unwrap();
        assert!(find(&*newest, "top").is_none(), "{at}");
        assert_eq!(read(&*newest, "dir/f"), b"after!", "{at}");
    }
    assert!(kept > 0);
}

/// A snapshot gives up if a write through the union takes too long: all changes wait meanwhile.
#[test]
fn a_long_write_is_waited_for_in_vain() {
    let world = World::new();
    let file = find(&*world.union, "dir/other").unwrap().open(&CX, OpenFlags::RDWR).unwrap();
    let (union, new) = (world.union.clone(), branch(&world.disk, "new", Mode::ReadWrite));
    let (done, result) = std::sync::mpsc::channel();
    world.faults.call_at(1, move || {
        let patience = std::time::Duration::from_millis(50);
        let policy = unionfs::ChangePolicy { patience, ..unionfs::ChangePolicy::default() };
        let change = unionfs::BranchChange::Snapshot(Branch { mode: Mode::ReadWrite, ..new });
        done.send(union.change_branches(vec![change], &policy)).unwrap();
    });
    file.write(&CX, b"during", 0).unwrap();
    assert_eq!(result.recv().unwrap(), Err(BuildError::Busy));
    world.faults.reset();
    world.snapshot("new").unwrap();
    assert_eq!(read(&*world.disk, "b/dir/other"), b"duringother");
}

/// Whatever fails once during a snapshot, the next one can be taken.
#[test]
fn the_next_snapshot_does_not_depend_on_what_failed() {
    for at in 1.. {
        let world = World::new();
        world.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Error(Errno::IO) });
        let taken = world.snapshot("new");
        world.faults.disarm();
        if !world.faults.fired() {
            break;
        }
        world.snapshot("newer").unwrap_or_else(|e| panic!("{at}: {taken:?}, then {e}"));
        let frozen = ["a", "b", "c", "new"].map(|dir| dump(&world.disk, dir));
        world.kernel_writes(b"final!");
        assert_contents(&*world.union, b"final!", &world.numbers);
        for (before, dir) in frozen.iter().zip(["a", "b", "c", "new"]) {
            assert_eq!(dump(&world.disk, dir).differences(before), "", "{at}: {dir}");
        }
    }
}

/// The file system fails for good during a snapshot. The union goes on as soon as it works again,
/// and so does the next mount.
#[test]
fn a_file_system_fails_for_good_during_a_snapshot() {
    let mut incomplete = 0;
    for at in 1.. {
        let world = World::new();
        let before = dump(&world.disk, "a").without_times();
        world.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Errors(Errno::IO) });
        let taken = world.snapshot("new");
        world.faults.disarm();
        if !world.faults.fired() {
            break;
        }
        let after = dump(&world.disk, "a").without_times();
        world.kernel_writes(b"after!");
        assert_contents_but_links(&*world.union, b"after!", &world.numbers);
        let generation = world.union.branches().generation;
        match &taken {
            Ok(()) => assert_eq!(generation, 2, "{at}"),
            Err(BuildError::Incomplete(..)) => {
                incomplete += 1;
                assert_eq!(generation, 2, "{at}");
            }
            Err(_) => {
                assert_eq!(generation, 1, "{at}");
                assert_eq!(strip_own(without_links(after)).differences(&strip_own(without_links(before))), "", "{at}");
            }
        }
        let World { disk, union, open, .. } = world;
        drop((union, open));
        let newest = remount(&disk, at);
        for path in OPEN {
            assert_eq!(read(&*newest, path), b"after!", "{at}: {path}");
        }
        drop(newest);
        let old = union_of(&disk, &BRANCHES).unwrap();
        let want: &[u8] = if generation == 2 { b"before" } else { b"after!" };
        for path in OPEN {
            assert_eq!(read(&*old, path), want, "{at}: {taken:?}: {path}");
        }
    }
    assert!(incomplete > 2, "{incomplete}");
}

fn without_links(mut dump: memfs::Dump) -> memfs::Dump {
    dump.0.values_mut().for_each(|node| node.nlink = 0);
    dump
}

fn assert_contents_but_links(layer: &dyn Layer, want: &[u8], numbers: &[u64]) {
    for (path, number) in OPEN.iter().zip(numbers) {
        assert_eq!((read(layer, path), find(layer, path).unwrap().id()), (want.to_vec(), *number), "{path}");
    }
}

const ALL: [(&str, Mode); 4] =
    [("new", Mode::ReadWrite), ("a", Mode::ReadOnly), ("b", Mode::ReadOnly), ("c", Mode::ReadOnly)];

/// Mounts the new branch and the old ones, after the old ones alone if the message says so.
fn remount(disk: &Arc<MemFs>, at: u64) -> Arc<Unionfs> {
    match union_of(disk, &ALL) {
        Ok(union) => union,
        Err(BuildError::UnfinishedSnapshot(_)) => {
            drop(union_of(disk, &BRANCHES).unwrap());
            union_of(disk, &ALL).unwrap()
        }
        Err(other) => panic!("{at}: {other}"),
    }
}

/// The server is killed during a snapshot, and again at each step of the mount that completes or
/// reverts it.
#[test]
fn recovery_is_killed_too() {
    let (mut kills, mut states) = (0, std::collections::BTreeSet::new());
    for at in 1.. {
        let Some((world, image)) = World::killed_at(at) else { break };
        // Each state once.
        let key = image.dump().without_times();
        if !states.insert(format!("{key:?}")) {
            continue;
        }
        for branches in [&BRANCHES[..], &ALL[..]] {
            for step in 1.. {
                let faults = Faults::new();
                let disk = image.fork(&faults);
                faults.arm(Plan { count: Count::Changes, at: step, fault: Fault::Crash });
                let mounted = union_of(&disk, branches);
                let fired = faults.fired();
                drop(mounted);
                if !fired {
                    break;
                }
                kills += 1;
                let disk = disk.recover(&Faults::new());
                let newest = remount(&disk, at);
                for path in OPEN {
                    assert_eq!(read(&*newest, path), b"before", "{at} {step}: {path}");
                    assert_eq!(find(&*newest, path).unwrap().getattr(&CX).unwrap().nlink, 1, "{at} {step}: {path}");
                }
                drop(newest);
                let old = union_of(&disk, &BRANCHES).unwrap();
                assert_contents(&*old, b"before", &world.numbers);
            }
        }
    }
    assert!(kills > 100, "{kills}");
}

/// The server is killed before a snapshot is committed. The old branches are used alone, and the
/// new one later: no old file comes back.
#[test]
fn an_interrupted_snapshot_hides_no_later_change() {
    let mut linked = 0;
    for at in 1.. {
        let Some((_world, disk)) = World::killed_at(at) else { break };
        let old = union_of(&disk, &BRANCHES).unwrap();
        if read(&*disk, "a/top") == b"before"
            && find(&*disk, "new/top").is_some_and(|top| top.getattr(&CX).unwrap().nlink == 1)
        {
            // The snapshot was taken.
            continue;
        }
        linked += u32::from(find(&*disk, "new/top").is_some());
        // As an editor does, and rm -r.
        let root = old.root();
        write(&*old, "fresh", b"fresh");
        root.rename(&CX, name("fresh"), &root, name("top"), RenameFlags::default()).unwrap();
        let sub = find(&*old, "dir/sub").unwrap();
        sub.unlink(&CX, name("log")).unwrap();
        find(&*old, "dir").unwrap().rmdir(&CX, name("sub")).unwrap();
        drop((root, sub, old));
        let newest = union_of(&disk, &ALL).unwrap();
        assert_eq!(read(&*newest, "top"), b"fresh", "{at}");
        assert_eq!(list(&*newest, "dir"), ["f", "other"], "{at}");
        assert_eq!(read(&*newest, "dir/f"), b"before", "{at}");
        drop(newest);
        let other = union_of(&disk, &BRANCHES).unwrap();
        snapshot_to(&other, branch(&disk, "new", Mode::ReadWrite)).unwrap_or_else(|e| panic!("{at}: {e}"));
    }
    assert!(linked > 3, "{linked}");
}
