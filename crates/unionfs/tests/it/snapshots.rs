//! Snapshots of a union in use, over memory: random programs, failures and crashes at each step.
//! The branches are directories of one file system that supports reflinks, and open files have host
//! files, as with passthrough: the tests play the kernel and write to those directly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::drain::send;
use crate::common::layer_ops::{CX, create, find, list, mkdir, name, read, write};
use crate::common::op::Op;
use crate::common::path::Path;
use crate::common::random_ops::OpChooser;
use crate::common::session::Session;
use crate::common::snapshot_world::{
    BRANCHES, OPEN, OPTIONS, World, assert_contents, branch, dump, snapshot, snapshot_to, strip_own, union_of,
};
use crate::common::test_union::check;
use crate::common::tree::{Caller, Tree};
use crate::common::view::{Numbers, Times, Walk, compare, learn_times, view};
use memfs::{Count, Dump, Fault, Faults, MemFs, Plan};
use serde_json::json;
use std::sync::Arc;
use testkit::Rng;
use testkit::seeds;
use unionfs::{BranchChange, BuildError, ChangePolicy, Delete, Metacopy, Mode, Options, Unionfs};
use vnode::{Errno, Layer, OpenFlags, SetAttr, Vnode};

#[test]
fn open_files_are_carried_to_the_new_branch() {
    let world = World::new();
    let parts = |disk: &Arc<MemFs>| ["a", "b", "c"].map(|dir| dump(disk, dir));
    let before = dump(&world.disk, "a");
    world.snapshot("new").unwrap();
    assert_contents(&*world.union, b"before", &world.numbers);
    let frozen = parts(&world.disk);
    // Only inode numbers and the identity log differ from the state before.
    let strip = |mut dump: Dump| {
        dump.0.retain(|path, _| !path.starts_with(b".wh..wh."));
        dump.without_directory_counts().without_ids()
    };
    assert_eq!(strip(frozen[0].clone()).differences(&strip(before)), "");
    world.kernel_writes(b"after!");
    assert_contents(&*world.union, b"after!", &world.numbers);
    for (file, kernel) in &world.open {
        file.write(&CX, b"A", 0).unwrap();
        file.fallocate(&CX, 0, 0, 100).unwrap();
        let mut bytes = [0; 6];
        kernel.read(&CX, &mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"After!");
    }
    for path in OPEN {
        let size = SetAttr { size: Some(6), mode: Some(0o600), ..SetAttr::default() };
        find(&*world.union, path).unwrap().setattr(&CX, &size, None).unwrap();
    }
    write(&*world.union, "dir/new", b"new");
    find(&*world.union, "dir").unwrap().unlink(&CX, name("other")).unwrap();
    assert_eq!(parts(&world.disk), frozen);
    // The next snapshot carries them again.
    world.snapshot("newer").unwrap();
    let second = dump(&world.disk, "new");
    world.kernel_writes(b"third!");
    for path in OPEN {
        assert_eq!(read(&*world.union, path), b"third!");
    }
    assert_eq!((parts(&world.disk), dump(&world.disk, "new")), (frozen, second));
    // Both snapshots, as unions of the older branches.
    drop(world.union);
    let old = union_of(&world.disk, &BRANCHES.map(|(dir, _)| (dir, Mode::ReadOnly))).unwrap();
    assert_contents(&*old, b"before", &world.numbers);
    let new = [("new", Mode::ReadOnly), ("a", Mode::ReadOnly), ("b", Mode::ReadOnly), ("c", Mode::ReadOnly)];
    let new = union_of(&world.disk, &new).unwrap();
    for path in OPEN {
        assert_eq!(read(&*new, path), b"After!");
    }
    assert_eq!(list(&*new, "dir"), ["f", "new", "sub"]);
}

/// A reader sees what is written after the snapshot.
#[test]
fn files_that_the_kernel_only_reads_are_carried_too() {
    let world = World::new();
    write(&*world.union, "read", b"old");
    let reader = find(&*world.union, "read").unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
    reader.bind();
    world.snapshot("new").unwrap();
    let writer = find(&*world.union, "read").unwrap().open(&CX, OpenFlags::WRONLY).unwrap();
    writer.write(&CX, b"new", 0).unwrap();
    let mut bytes = [0; 3];
    reader.read(&CX, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"new");
    assert_eq!(read(&*world.disk, "a/read"), b"old");
}

/// Files without a name are in no snapshot, and remain usable. An unnamed file can get a name.
#[test]
fn nameless_files_remain_usable() {
    let world = World::new();
    let root = world.union.root();
    let (gone, gone_file) = root.create(&CX, name("gone"), 0o600, OpenFlags::RDWR).unwrap();
    root.unlink(&CX, name("gone")).unwrap();
    let (unnamed, unnamed_file) = root.tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap();
    let number = unnamed.vnode.id();
    for file in [&gone_file, &unnamed_file] {
        file.bind();
        file.write(&CX, b"one", 0).unwrap();
    }
    let (other, other_file) = root.tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap();
    other_file.bind();
    world.snapshot("new").unwrap();
    let frozen = dump(&world.disk, "a");
    // The new branch has no part of this directory yet.
    let deep = find(&*world.union, "dir/sub").unwrap();
    deep.link(&CX, name("named"), &other.vnode).unwrap();
    other_file.write(&CX, b"deep", 0).unwrap();
    assert_eq!((read(&*world.union, "dir/sub/named"), other.vnode.getattr(&CX).unwrap().nlink), (b"deep".to_vec(), 1));
    for (vnode, file) in [(&gone.vnode, &gone_file), (&unnamed.vnode, &unnamed_file)] {
        file.write(&CX, b"two", 3).unwrap();
        let set = SetAttr { mode: Some(0o644), size: Some(5), ..SetAttr::default() };
        assert_eq!(vnode.setattr(&CX, &set, Some(&**file)).unwrap().size, 5);
    }
    assert_eq!(root.link(&CX, name("gone"), &gone.vnode).map(drop), Err(Errno::NOENT));
    root.link(&CX, name("named"), &unnamed.vnode).unwrap();
    unnamed_file.write(&CX, b"three", 5).unwrap();
    assert_eq!((read(&*world.union, "named"), dump(&world.disk, "a")), (b"onetwthree".to_vec(), frozen));
    assert_eq!((find(&*world.union, "named").unwrap().id(), read(&*world.disk, "new/named").len()), (number, 10));
}

#[test]
fn files_that_cannot_be_carried_prevent_the_snapshot() {
    // Without reflinks, on another file system, and with a second name.
    let blocked = |change: Result<(), BuildError>| match change {
        Err(BuildError::InUse(files)) => files.into_iter().map(|file| String::from_utf8(file.path).unwrap()).collect(),
        other => panic!("{other:?}"),
    };
    let check = |world: &World, dir: &str, disk: &Arc<MemFs>, want: &[&str]| {
        let before = dump(&world.disk, "a").without_times();
        let got: Vec<String> = blocked(snapshot(&world.union, disk, dir));
        assert_eq!(got, want);
        assert_eq!(world.union.branches().generation, 1);
        assert_eq!(list(&*disk.subtree(dir).unwrap(), ""), Vec::<String>::new());
        let mut after = dump(&world.disk, "a").without_times();
        after.0.remove(b".wh..wh.work".as_slice());
        let mut before = before;
        before.0.remove(b".wh..wh.work".as_slice());
        assert_eq!(before.0.len(), after.0.len());
        world.kernel_writes(b"still!");
        assert_contents(&*world.union, b"still!", &world.numbers);
    };
    let world = World::new();
    let other = MemFs::with(OPTIONS, &Faults::new());
    mkdir(&*other, "new");
    check(&world, "new", &other, &["/dir/f", "/dir/sub/log", "/moved/deep/log", "/top"]);
    let top = find(&*world.union, "top").unwrap();
    world.union.root().link(&CX, name("second"), &top).unwrap();
    match world.snapshot("new") {
        Err(BuildError::InUse(files)) => assert_eq!(files.len(), 1),
        other => panic!("{other:?}"),
    }
    world.union.root().unlink(&CX, name("second")).unwrap();
    world.snapshot("new").unwrap();
}

#[test]
fn the_new_branch_has_to_be_empty() {
    let world = World::new();
    write(&*world.disk, "new/file", b"");
    assert_eq!(world.snapshot("new"), Err(BuildError::NotEmpty("/new".into())));
    assert_eq!(list(&*world.disk, "new"), ["file"]);
    let remove = BranchChange::Remove("/c".into());
    let change = vec![BranchChange::Snapshot(branch(&world.disk, "newer", Mode::ReadWrite)), remove];
    let changed = world.union.change_branches(change, &ChangePolicy::default());
    assert_eq!(changed, Err(BuildError::SnapshotNotAlone));
    world.snapshot("newer").unwrap();
}

/// The first writes that come through the union after a snapshot copy the files up.
#[test]
fn files_that_the_union_writes_are_copied_up_later() {
    let world = World::new();
    let file = find(&*world.union, "dir/other").unwrap().open(&CX, OpenFlags::RDWR).unwrap();
    assert!(file.backing().is_none());
    file.write(&CX, b"snapshot", 0).unwrap();
    world.snapshot("new").unwrap();
    file.write(&CX, b"later", 0).unwrap();
    assert_eq!(read(&*world.union, "dir/other"), b"laterhother");
    assert_eq!(read(&*world.disk, "b/dir/other"), b"snapshother");
    assert_eq!(read(&*world.disk, "new/dir/other"), b"laterhother");
}

/// The new branch gets the attributes of the union's root, which it is the first part of.
#[test]
fn the_root_keeps_its_attributes() {
    let world = World::new();
    let set = SetAttr { mode: Some(0o1770), uid: Some(3), gid: Some(4), ..SetAttr::default() };
    let before = world.union.root().setattr(&CX, &set, None).unwrap();
    world.snapshot("new").unwrap();
    let after = world.union.root().getattr(&CX).unwrap();
    assert_eq!((after.mode, after.uid, after.gid, after.mtime), (before.mode, 3, 4, before.mtime));
}

/// Every step fails once: nothing has changed then, and the same snapshot can be taken later.
#[test]
fn a_snapshot_that_fails_changes_nothing() {
    for count in [Count::All, Count::Changes] {
        for errno in [Errno::IO, Errno::NOSPC] {
            for at in 1.. {
                let world = World::new();
                let before = dump(&world.disk, "a").without_times();
                let new = branch(&world.disk, "new", Mode::ReadWrite);
                world.faults.arm(Plan { count, at, fault: Fault::Error(errno) });
                let taken = snapshot_to(&world.union, new);
                world.faults.disarm();
                let fired = world.faults.fired();
                let generation = world.union.branches().generation;
                let context = format!("{count:?} {errno} {at}: {taken:?}");
                assert_eq!(taken.is_ok(), generation == 2, "{context}");
                if taken.is_err() {
                    let after = dump(&world.disk, "a").without_times();
                    assert_eq!(strip_own(after).differences(&strip_own(before)), "", "{context}");
                    world.kernel_writes(b"after!");
                    assert_contents(&*world.union, b"after!", &world.numbers);
                    world.snapshot("new").unwrap_or_else(|e| panic!("{context}: again: {e}"));
                }
                let frozen = dump(&world.disk, "a");
                world.kernel_writes(b"final!");
                assert_contents(&*world.union, b"final!", &world.numbers);
                assert_eq!(dump(&world.disk, "a").differences(&frozen), "", "{context}");
                if !fired {
                    break;
                }
            }
        }
    }
}

/// The server is killed at every step, while the kernel continues to write. With the old branches
/// and with the new one, the next mount has all that was written, and the snapshot is there as a
/// whole or not at all.
#[test]
fn a_kill_at_any_step_loses_nothing() {
    let (mut taken, mut reverted) = (0, 0);
    for at in 1.. {
        let world = World::new();
        let new = branch(&world.disk, "new", Mode::ReadWrite);
        world.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _outcome = snapshot_to(&world.union, new);
        if !world.faults.fired() {
            break;
        }
        for new_first in [true, false] {
            match check_after_kill(&world, new_first) {
                true => taken += 1,
                false => reverted += 1,
            }
        }
    }
    assert!(taken > 10 && reverted > 20, "{taken} {reverted}");
}

/// Returns whether the snapshot was taken.
fn check_after_kill(world: &World, new_first: bool) -> bool {
    let disk = world.disk.recover(&Faults::new());
    // The kernel still has the files, wherever they are.
    let everywhere = |content: &[u8]| {
        let mut names = Vec::new();
        for (path, node) in &disk.dump().0 {
            if node.data == content {
                names.push((String::from_utf8(path.clone()).unwrap(), node.ino));
            }
        }
        names
    };
    let files = everywhere(b"before");
    let last = |path: &&str| {
        let new = files.iter().find(|(name, _)| *name == format!("new/{path}"));
        new.or_else(|| files.iter().find(|(name, _)| *name == format!("a/{path}"))).unwrap().1
    };
    let kernel: Vec<u64> = OPEN.iter().map(last).collect();
    for number in &kernel {
        disk.vnode(&CX, *number).unwrap().open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"after!", 0).unwrap();
    }
    let all = [("new", Mode::ReadWrite), ("a", Mode::ReadOnly), ("b", Mode::ReadOnly), ("c", Mode::ReadOnly)];
    let newest = if new_first {
        match union_of(&disk, &all) {
            Ok(union) => union,
            // As the message says.
            Err(BuildError::UnfinishedSnapshot(_)) => {
                drop(union_of(&disk, &BRANCHES).unwrap());
                union_of(&disk, &all).unwrap()
            }
            Err(other) => panic!("{other}"),
        }
    } else {
        drop(union_of(&disk, &BRANCHES).unwrap());
        union_of(&disk, &all).unwrap()
    };
    for path in OPEN {
        assert_eq!(read(&*newest, path), b"after!", "{path}");
        assert_eq!(find(&*newest, path).unwrap().getattr(&CX).unwrap().nlink, 1, "{path}");
    }
    let contents: Vec<Vec<u8>> = OPEN.iter().map(|path| read(&*disk, &format!("a/{path}"))).collect();
    let is_taken = contents[0] == b"before";
    assert!(contents.iter().all(|content| *content == contents[0]), "{contents:?}");
    if is_taken {
        // Otherwise the union has other branches than before.
        assert_contents(&*newest, b"after!", &world.numbers);
    }
    for path in OPEN {
        assert_eq!(find(&*disk, &format!("new/{path}")).is_some(), is_taken, "{path}");
    }
    drop(newest);
    // The old branches alone.
    let old = union_of(&disk, &BRANCHES).unwrap();
    let want: &[u8] = if is_taken { b"before" } else { b"after!" };
    assert_contents(&*old, want, &world.numbers);
    drop(old);
    for dir in ["a", "new"] {
        let work = find(&*disk, &format!("{dir}/.wh..wh.work"));
        assert!(work.is_none_or(|work| work.lookup(&CX, name("snapshot")).unwrap().is_none()), "{dir}");
    }
    is_taken
}

/// A snapshot that was taken during a random program.
struct Taken {
    /// Its branches, from left to right.
    branches: Vec<String>,
    /// What they contained.
    dumps: Vec<Dump>,
    /// What users saw.
    model: Tree,
    numbers: Numbers,
}

/// Gives a branch's root the attributes of another's: users see those of the first branch.
fn copy_root(disk: &Arc<MemFs>, from: &str, to: &str) {
    let (from, to) = (find(&**disk, from).unwrap(), find(&**disk, to).unwrap());
    let attr = from.getattr(&CX).unwrap();
    let set = SetAttr { mode: Some(attr.perm()), uid: Some(attr.uid), gid: Some(attr.gid), ..SetAttr::default() };
    to.setattr(&CX, &set, None).unwrap();
    let mut names = vec![0; 4096];
    let len = from.listxattr(&CX, &mut names).unwrap();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 4096];
        let len = from.getxattr(&CX, name, &mut value).unwrap();
        to.setxattr(&CX, name, &value[..len], vnode::XattrFlags::default()).unwrap();
    }
}

/// Another change of the branches than a snapshot: inserts an empty branch, switches one to
/// read-only, or moves some of a branch's files. Returns whether it was made.
fn change_branches(
    rng: &mut Rng,
    session: &Session,
    union: &Unionfs,
    disk: &Arc<MemFs>,
    dirs: &mut Vec<String>,
) -> bool {
    let policy = ChangePolicy::default();
    match rng.below(3) {
        0 => {
            let name = format!("s{}", dirs.len());
            mkdir(&**disk, &name);
            let at = rng.below(dirs.len() + 1);
            copy_root(disk, &dirs[0], &name);
            let mode = if at == 0 || rng.one_in(2) { Mode::ReadWrite } else { Mode::ReadOnly };
            let change = BranchChange::Insert { at, branch: branch(disk, &name, mode) };
            union.change_branches(vec![change], &policy).unwrap();
            dirs.insert(at, name);
            true
        }
        1 => {
            let at = 1 + rng.below(dirs.len());
            let Some(dir) = dirs.get(at) else { return false };
            let change = BranchChange::Mode(format!("/{dir}").into(), Mode::ReadOnly);
            match union.change_branches(vec![change], &policy) {
                Ok(()) => true,
                Err(BuildError::InUse(_)) => false,
                Err(other) => panic!("{other}"),
            }
        }
        _ => {
            let from = rng.pick(dirs);
            let begun = send(session, &json!({ "do": "drain", "branch": format!("/{from}") })).unwrap();
            let Some(id) = begun.get("id") else { return false };
            let reply = send(session, &json!({ "do": "step", "id": id })).unwrap();
            if rng.one_in(2) {
                send(session, &json!({ "do": "end" })).unwrap();
            }
            reply["files"] != 0
        }
    }
}

/// Runs random operations with snapshots and other changes of the branches in between, with files
/// that stay open. At the end each old branch is what it was, and a union of the old branches shows
/// what users saw.
fn run_program(seed: u64, delete: Delete, steps: usize) {
    println!("{delete:?}: STRATA_SEED={seed} STRATA_STEPS={steps}");
    let mut rng = Rng::new(seed);
    let disk = MemFs::with(OPTIONS, &Faults::new());
    let mut dirs = vec!["first".to_owned()];
    mkdir(&*disk, "first");
    let options = Options { delete, metacopy: Metacopy::Above(30), ..Options::default() };
    let union = Unionfs::new(vec![branch(&disk, "first", Mode::ReadWrite)], options).unwrap();
    let mut session = Session::new(union.clone());
    let (mut model, mut numbers) = (Tree::new(), Numbers::default());
    learn_times(&view(&*union, Walk::User).unwrap(), &mut model);
    let (mut taken, mut refused, mut changed): (Vec<Taken>, usize, usize) = (Vec::new(), 0, 0);
    let mut done = 0;
    while done < steps {
        if rng.one_in(16) {
            changed += usize::from(change_branches(&mut rng, &session, &union, &disk, &mut dirs));
        } else if rng.one_in(12) {
            let name = format!("s{}", dirs.len());
            mkdir(&*disk, &name);
            match snapshot(&union, &disk, &name) {
                Ok(()) => {
                    let mut closed = model.clone();
                    closed.close_all();
                    let mut numbers = numbers.clone();
                    numbers.retain(&closed);
                    let dumps = dirs.iter().map(|dir| dump(&disk, dir)).collect();
                    taken.push(Taken { branches: dirs.clone(), dumps, model: closed, numbers });
                    dirs.insert(0, name);
                }
                // A file with several names.
                Err(BuildError::InUse(_)) => {
                    refused += 1;
                    disk.root().rmdir(&CX, common::layer_ops::name(&name)).unwrap();
                }
                Err(other) => panic!("seed {seed}, step {done}: {other}"),
            }
        } else {
            let op = OpChooser { rng: &mut rng, beneath: Path::root(), keeps_open: true }.op(&model);
            let caller = if rng.one_in(4) { Caller::USER } else { Caller::ROOT };
            let got = session.run(caller, &op);
            let before = model.clone();
            match (model.apply(caller, &op), got) {
                (Ok(()), Ok(())) => {}
                // The kernel writes a file that was opened before another branch became the first.
                (Ok(()), Err(Errno::BUSY))
                    if changed > 0 && matches!(op, Op::Rename { .. } | Op::Link { .. } | Op::LinkSlot { .. }) =>
                {
                    model = before;
                }
                (Err(permitted), Err(e)) if permitted.contains(&e) => {}
                (want, got) => panic!("seed {seed}, step {done}: {op:?}: returns {got:?}, expected {want:?}"),
            }
            // The kernel gets the host file of some.
            for slot in session.slots.iter().flatten() {
                // A reader of a file with several names would not follow a copy.
                if slot.flags.writes() && slot.file.backing().is_some() && rng.one_in(2) {
                    slot.file.bind();
                }
            }
        }
        done += 1;
        let seen = check(&session, &model, &mut numbers, Times::Files)
            .unwrap_or_else(|e| panic!("seed {seed}, step {done}:\n{e}"));
        learn_times(&seen, &mut model);
        numbers.retain(&model);
    }
    session.slots = Default::default();
    drop((session, union));
    println!("{} snapshots, {refused} refused, {changed} other changes", taken.len());
    assert!(!taken.is_empty() || refused > 0 || steps < 40);
    for mut one in taken {
        for (dir, before) in one.branches.iter().zip(&one.dumps) {
            assert_eq!(dump(&disk, dir).differences(before), "", "seed {seed}, branch {dir}");
        }
        let branches: Vec<_> = one.branches.iter().map(|dir| (dir.as_str(), Mode::ReadOnly)).collect();
        let old = union_of(&disk, &branches).unwrap();
        compare(&view(&*old, Walk::User).unwrap(), &one.model, &mut one.numbers, Times::Files)
            .unwrap_or_else(|e| panic!("seed {seed}, snapshot of {:?}:\n{e}", one.branches));
    }
}

#[test]
fn random_programs_with_snapshots() {
    let steps = testkit::number("STRATA_STEPS").unwrap_or(120) as usize;
    for seed in seeds(30) {
        for delete in [Delete::Whiteout, Delete::All] {
            run_program(seed, delete, steps);
        }
    }
}

#[test]
fn an_empty_union_has_snapshots() {
    let disk = MemFs::with(OPTIONS, &Faults::new());
    mkdir(&*disk, "a");
    mkdir(&*disk, "b");
    let union = union_of(&disk, &[("a", Mode::ReadWrite)]).unwrap();
    snapshot(&union, &disk, "b").unwrap();
    create(&*union, "f").unwrap();
    assert_eq!((list(&*disk, "a"), find(&*disk, "b/f").is_some()), (vec![".wh..wh.ident".to_owned()], true));
    let lower: Arc<dyn Vnode> = find(&*disk, "b/f").unwrap();
    assert_eq!(lower.getattr(&CX).unwrap().size, 0);
}
