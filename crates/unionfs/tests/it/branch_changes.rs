//! Inserting, removing and switching branches while the union is in use: the effect on open files,
//! inode numbers and the identity log, and the changes that are refused. `branch_sets.rs` tests
//! changes at every step of every operation.
#![allow(clippy::disallowed_methods, reason = "the tests create their own directories")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, find, name};
use hostfs::{HostFs, HostOptions};
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use unionfs::{
    Branch, BranchChange, BranchStatus, BuildError, ChangePolicy, InUse, Metacopy, Mode, OpenedFile, Options,
    Positions, Unionfs,
};
use vnode::{Errno, Kind, Layer, OpenFlags, Properties, RenameFlags, SetAttr, Vnode};

const TIMEOUT: Duration = Duration::from_secs(10);
const KEEP: ChangePolicy = ChangePolicy { patience: TIMEOUT, in_use: InUse::Keep, expected_generation: None };

/// Returns a branch in memory with the given files.
fn branch_layer(files: &[(&str, &[u8])]) -> Arc<MemFs> {
    branch_layer_with(&Faults::new(), files)
}

fn branch_layer_with(faults: &Faults, files: &[(&str, &[u8])]) -> Arc<MemFs> {
    let disk = MemFs::with(MemOptions::default(), faults);
    for (path, bytes) in files {
        let mut dir = disk.root();
        let mut names = path.split('/').peekable();
        while let Some(part) = names.next() {
            if names.peek().is_some() {
                dir = match dir.lookup(&CX, name(part)).unwrap() {
                    Some(entry) => entry.vnode,
                    None => dir.mkdir(&CX, name(part), 0o755).unwrap().vnode,
                };
            } else {
                let (_, file) = dir.create(&CX, name(part), 0o644, OpenFlags::WRONLY).unwrap();
                file.write(&CX, bytes, 0).unwrap();
            }
        }
    }
    disk
}

fn branch(layer: &Arc<MemFs>, path: &str, mode: Mode) -> Branch {
    Branch { layer: layer.clone(), path: path.into(), mode }
}

fn union(branches: Vec<Branch>) -> Arc<Unionfs> {
    Unionfs::new(branches, Options::default()).unwrap()
}

fn insert(at: usize, branch: Branch) -> BranchChange {
    BranchChange::Insert { at, branch }
}

fn content(vnode: &Arc<dyn Vnode>) -> Vec<u8> {
    read(&*vnode.open(&CX, OpenFlags::RDONLY).unwrap())
}

fn read(file: &dyn vnode::OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let got = file.read(&CX, &mut bytes, 0).unwrap();
    bytes.truncate(got);
    bytes
}

/// Returns the name of the entry after a position, and its position.
fn entry_after(dir: &dyn Vnode, position: u64) -> Option<(String, u64)> {
    let mut found = None;
    let mut sink = |entry: &vnode::DirEntry<'_>| {
        let first = found.is_none();
        if first {
            found = Some((entry.name.to_string(), entry.cookie));
        }
        first
    };
    dir.readdir(&CX, position, &mut sink).unwrap();
    found
}

/// With `positions=names`, a reader that continues after each change of the branches, and after a
/// remount, gets each name exactly once, also in a directory that gets a second part meanwhile.
#[test]
fn positions_of_names_survive_changes_of_the_branches() {
    let names: Vec<String> = (0..40).map(|n| format!("f{n}")).collect();
    let paths: Vec<String> = names.iter().map(|name| format!("d/{name}")).collect();
    let files: Vec<(&str, &[u8])> = paths.iter().map(|path| (path.as_str(), &b""[..])).collect();
    let (left, right, more) = (branch_layer(&files), branch_layer(&[]), branch_layer(&files[..20]));
    let fresh = || {
        let branches = vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)];
        Unionfs::new(branches, Options { positions: Positions::Names, ..Options::default() }).unwrap()
    };
    let mut union = fresh();
    let (mut found, mut position) = (Vec::new(), 0);
    while let Some((name, at)) = entry_after(&*find(&*union, "d").unwrap(), position) {
        found.push(name);
        position = at;
        match found.len() % 3 {
            0 => {
                union.change_branches(vec![insert(2, branch(&more, "/m", Mode::ReadOnly))], &KEEP).unwrap();
            }
            1 if found.len() > 1 => union.change_branches(vec![BranchChange::Remove("/m".into())], &KEEP).unwrap(),
            _ => {
                drop(union);
                union = fresh();
            }
        }
    }
    found.sort();
    let mut expected = names;
    expected.sort();
    assert_eq!(found, expected);
}

/// A reader that continues after a change of the branches gets each name exactly once, also with
/// the positions of a branch, and if the names that it has got are removed.
#[test]
fn listings_continue_after_changes_of_the_branches() {
    let names: Vec<String> = (0..40).map(|n| format!("f{n}")).collect();
    let paths: Vec<String> = names.iter().map(|name| format!("d/{name}")).collect();
    let files: Vec<(&str, &[u8])> = paths.iter().map(|path| (path.as_str(), &b""[..])).collect();
    let added = || insert(0, branch(&branch_layer(&[]), "/n", Mode::ReadWrite));
    let removed = || BranchChange::Remove("/n".into());
    for (begins_merged, removes) in [(false, false), (false, true), (true, false), (true, true)] {
        let old = branch_layer(&files);
        let union = union(vec![branch(&old, "/o", Mode::ReadWrite)]);
        let dir = find(&*union, "d").unwrap();
        if begins_merged {
            union.change_branches(vec![added()], &KEEP).unwrap();
        }
        let mut readers = [(Vec::new(), 0), (Vec::new(), 0)];
        let mut rounds = 0;
        loop {
            let before = readers[0].0.len();
            for (found, position) in &mut readers {
                if let Some((name, at)) = entry_after(&*dir, *position) {
                    found.push(name);
                    *position = at;
                }
            }
            let (first, second) = (&readers[0].0, &readers[1].0);
            if first.len() == before {
                break;
            }
            assert_eq!(first, second);
            rounds += 1;
            if removes {
                dir.unlink(&CX, name(first.last().unwrap())).unwrap();
            }
            // Others begin, with other positions.
            entry_after(&*dir, 0);
            match rounds {
                5 if begins_merged => union.change_branches(vec![removed()], &KEEP).unwrap(),
                20 if !begins_merged => union.change_branches(vec![removed()], &KEEP).unwrap(),
                5 | 25 => union.change_branches(vec![added()], &KEEP).unwrap(),
                _ => {}
            }
            if rounds == 10 {
                dir.create(&CX, name("new"), 0o644, OpenFlags::WRONLY).unwrap();
            }
        }
        for (mut found, _) in readers {
            found.retain(|name| name != "new");
            found.sort();
            let mut expected = names.clone();
            expected.sort();
            assert_eq!(found, expected, "begins merged: {begins_merged}, removes: {removes}");
        }
    }
}

#[test]
fn an_open_file_stays_usable_after_its_branch_is_removed() {
    let (left, right) = (branch_layer(&[("f", b"left")]), branch_layer(&[("f", b"right"), ("g", b"g")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadWrite)]);
    let vnode = find(&*union, "f").unwrap();
    let reader = vnode.open(&CX, OpenFlags::RDONLY).unwrap();
    let writer = vnode.open(&CX, OpenFlags::RDWR).unwrap();
    union.change_branches(vec![BranchChange::Remove("/l".into())], &KEEP).unwrap();
    assert_eq!(content(&find(&*union, "f").unwrap()), b"right");
    assert_eq!(read(&*reader), b"left");
    // The file can still be written to through the open file, like an unlinked one.
    writer.write(&CX, b"LEFT!", 0).unwrap();
    assert_eq!(read(&*reader), b"LEFT!");
    let size = SetAttr { size: Some(2), ..SetAttr::default() };
    assert_eq!(vnode.setattr(&CX, &size, Some(&*writer)).unwrap().size, 2);
    assert_eq!(content(&find(&*union, "f").unwrap()), b"right");
    assert_eq!(vnode.getattr(&CX).unwrap().size, 2);
    // Operations on the vnode without an open file return ESTALE.
    assert_eq!(vnode.open(&CX, OpenFlags::RDONLY).map(drop), Err(Errno::STALE));
    assert_eq!(vnode.setattr(&CX, &size, None).map(drop), Err(Errno::STALE));
    assert_eq!(union.root().link(&CX, name("again"), &vnode).map(drop), Err(Errno::STALE));
    assert_eq!(content(&find(&*left, "f").unwrap()), b"LE");
    // After the branch is inserted again it is the same file.
    drop((reader, writer));
    union.change_branches(vec![insert(0, branch(&left, "/l", Mode::ReadWrite))], &KEEP).unwrap();
    assert_eq!(find(&*union, "f").unwrap().id(), vnode.id());
    assert_eq!(content(&vnode), b"LE");
}

#[test]
fn a_removed_branch_is_released_with_its_last_open_file() {
    let (left, right) = (branch_layer(&[("d/f", b"left")]), branch_layer(&[("d/g", b"right")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let dir = find(&*union, "d").unwrap();
    let file = find(&*union, "d/g").unwrap();
    let open = file.open(&CX, OpenFlags::RDONLY).unwrap();
    let watch = Arc::downgrade(&right);
    drop(right);
    union.change_branches(vec![BranchChange::Remove("/r".into())], &KEEP).unwrap();
    assert!(watch.upgrade().is_some(), "an open file must keep the branch");
    drop((open, file));
    assert!(watch.upgrade().is_none());
    assert!(dir.lookup(&CX, name("f")).unwrap().is_some());
}

#[test]
fn an_open_writer_continues_on_the_copy_when_its_branch_becomes_read_only() {
    let (new, left) = (branch_layer(&[]), branch_layer(&[("d/f", b"before")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite)]);
    let vnode = find(&*union, "d/f").unwrap();
    let (reader, writer) = (vnode.open(&CX, OpenFlags::RDONLY).unwrap(), vnode.open(&CX, OpenFlags::WRONLY).unwrap());
    let changes = vec![insert(0, branch(&new, "/n", Mode::ReadWrite)), BranchChange::Mode("/l".into(), Mode::ReadOnly)];
    union.change_branches(changes, &KEEP).unwrap();
    let dump = left.dump();
    writer.write(&CX, b"after!", 0).unwrap();
    assert_eq!(read(&*reader), b"after!");
    assert_eq!(content(&find(&*union, "d/f").unwrap()), b"after!");
    assert_eq!(content(&find(&*new, "d/f").unwrap()), b"after!");
    assert_eq!(find(&*union, "d/f").unwrap().id(), vnode.id());
    assert!(left.dump() == dump, "a branch that is read-only was changed");
}

#[test]
fn an_open_file_covered_by_a_new_branch_keeps_its_content() {
    let (new, left) = (branch_layer(&[("f", b"new")]), branch_layer(&[("f", b"old")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite)]);
    let old = find(&*union, "f").unwrap();
    let file = old.open(&CX, OpenFlags::RDWR).unwrap();
    let absent = union.root().lookup(&CX, name("g")).unwrap();
    assert!(absent.is_none());
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))], &KEEP).unwrap();
    let now = find(&*union, "f").unwrap();
    assert_ne!(now.id(), old.id());
    assert_eq!((content(&now), read(&*file)), (b"new".to_vec(), b"old".to_vec()));
    file.write(&CX, b"OLD", 0).unwrap();
    assert_eq!((content(&now), content(&old)), (b"new".to_vec(), b"OLD".to_vec()));
    assert_eq!(union.root().link(&CX, name("g"), &old).map(drop), Err(Errno::STALE));
    // The file is visible again after the branch that covered it is removed.
    union.change_branches(vec![BranchChange::Remove("/n".into())], &KEEP).unwrap();
    assert_eq!(find(&*union, "f").unwrap().id(), old.id());
}

#[test]
fn directories_in_use_keep_their_inode_numbers() {
    let (left, right) = (branch_layer(&[("d/l", b""), ("only/l", b"")]), branch_layer(&[("d/r", b"")]));
    let more = branch_layer(&[("d/m", b""), ("only/m", b"")]);
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let (dir, only) = (find(&*union, "d").unwrap(), find(&*union, "only").unwrap());
    let (one, two) = (dir.id(), only.id());
    let check = |union: &Unionfs, names: usize| {
        assert_eq!((find(union, "d").unwrap().id(), find(union, "only").unwrap().id()), (one, two));
        let mut listed = Vec::new();
        let mut sink = |entry: &vnode::DirEntry<'_>| {
            listed.push(entry.ino);
            true
        };
        union.root().readdir(&CX, 0, &mut sink).unwrap();
        listed.sort_unstable();
        let mut want = [one, two];
        want.sort_unstable();
        assert_eq!(listed, want);
        let mut count = 0;
        let mut sink = |_: &vnode::DirEntry<'_>| {
            count += 1;
            true
        };
        find(union, "d").unwrap().readdir(&CX, 0, &mut sink).unwrap();
        assert_eq!(count, names);
    };
    check(&union, 2);
    union.change_branches(vec![insert(9, branch(&more, "/m", Mode::ReadOnly))], &KEEP).unwrap();
    check(&union, 3);
    assert!(Arc::ptr_eq(&find(&*union, "d").unwrap(), &dir));
    // Remove the branch that their inode numbers came from.
    union.change_branches(vec![BranchChange::Remove("/r".into())], &KEEP).unwrap();
    check(&union, 2);
    union.change_branches(vec![BranchChange::Remove("/m".into())], &KEEP).unwrap();
    check(&union, 1);
    assert!(Arc::ptr_eq(&find(&*union, "only").unwrap(), &only));
    drop((dir, only, union));
    check(&self::union(vec![branch(&left, "/l", Mode::ReadWrite)]), 1);
}

#[test]
fn a_directory_without_a_remaining_branch_is_stale() {
    let (left, right) = (branch_layer(&[]), branch_layer(&[("d/sub/f", b"")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let (dir, sub) = (find(&*union, "d").unwrap(), find(&*union, "d/sub").unwrap());
    union.change_branches(vec![BranchChange::Remove("/r".into())], &KEEP).unwrap();
    for vnode in [&dir, &sub] {
        assert_eq!(vnode.lookup(&CX, name("f")).map(drop), Err(Errno::STALE));
        assert_eq!(vnode.getattr(&CX).map(drop), Err(Errno::STALE));
        assert_eq!(vnode.mkdir(&CX, name("x"), 0o755).map(drop), Err(Errno::STALE));
    }
    union.change_branches(vec![insert(1, branch(&right, "/r", Mode::ReadOnly))], &KEEP).unwrap();
    assert_eq!(find(&*union, "d/sub").unwrap().id(), sub.id());
    assert!(sub.lookup(&CX, name("f")).unwrap().is_some());
}

#[test]
fn negative_lookups_are_revalidated_after_a_branch_change() {
    let (left, right) = (branch_layer(&[("d/x", b"")]), branch_layer(&[("d/y", b"")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let dir = find(&*union, "d").unwrap();
    assert!(dir.lookup(&CX, name("new")).unwrap().is_none());
    let layer = branch_layer(&[("d/new", b"there")]);
    union.change_branches(vec![insert(1, branch(&layer, "/m", Mode::ReadOnly))], &KEEP).unwrap();
    assert_eq!(dir.create(&CX, name("new"), 0o644, OpenFlags::RDWR).map(drop), Err(Errno::EXIST));
}

#[test]
fn hard_links_and_inode_numbers_survive_a_new_leftmost_branch() {
    let (new, left, right) = (branch_layer(&[]), branch_layer(&[]), branch_layer(&[("d/one", b"1")]));
    let below = right.root().lookup(&CX, name("d")).unwrap().unwrap().vnode;
    let file = below.lookup(&CX, name("one")).unwrap().unwrap().vnode;
    below.link(&CX, name("two"), &file).unwrap();
    let branches = || vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)];
    let union = union(branches());
    let (one, two) = (find(&*union, "d/one").unwrap(), find(&*union, "d/two").unwrap());
    assert!(Arc::ptr_eq(&one, &two));
    one.open(&CX, OpenFlags::WRONLY).unwrap().write(&CX, b"2", 0).unwrap();
    let changes = vec![insert(0, branch(&new, "/n", Mode::ReadWrite)), BranchChange::Mode("/l".into(), Mode::ReadOnly)];
    union.change_branches(changes, &KEEP).unwrap();
    let dump = left.dump();
    one.open(&CX, OpenFlags::WRONLY).unwrap().write(&CX, b"3", 0).unwrap();
    assert_eq!(content(&find(&*union, "d/two").unwrap()), b"3");
    assert_eq!(one.getattr(&CX).unwrap().nlink, 2);
    assert!(left.dump() == dump);
    let number = one.id();
    drop((one, two, union));
    let mut all = branches();
    all[0].mode = Mode::ReadOnly;
    all.insert(0, branch(&new, "/n", Mode::ReadWrite));
    let union = self::union(all);
    let two = find(&*union, "d/two").unwrap();
    assert_eq!((two.id(), content(&two), two.getattr(&CX).unwrap().nlink), (number, b"3".to_vec(), 2));
    // Without the new branch the file has its earlier content.
    union
        .change_branches(
            vec![BranchChange::Mode("/l".into(), Mode::ReadWrite), BranchChange::Remove("/n".into())],
            &KEEP,
        )
        .unwrap();
    let two = find(&*union, "d/two").unwrap();
    assert_eq!((two.id(), content(&two), two.getattr(&CX).unwrap().nlink), (number, b"2".to_vec(), 2));
}

#[test]
fn invalid_branch_changes_are_refused_without_effect() {
    let (left, right, new) = (branch_layer(&[]), branch_layer(&[]), branch_layer(&[]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let remove = |path: &str| BranchChange::Remove(path.into());
    let refused = |changes| union.change_branches(changes, &KEEP).unwrap_err();
    assert_eq!(refused(vec![remove("/l"), remove("/r")]), BuildError::NoBranches);
    assert_eq!(refused(vec![remove("/n")]), BuildError::NoSuchBranch("/n".into()));
    assert_eq!(refused(vec![BranchChange::Mode("/n".into(), Mode::ReadOnly)]), BuildError::NoSuchBranch("/n".into()));
    assert_eq!(refused(vec![insert(0, branch(&new, "/r", Mode::ReadWrite))]), BuildError::Duplicate("/r".into()));
    assert_eq!(refused(vec![insert(0, branch(&new, "/n", Mode::ReadOnly))]), BuildError::LeftmostReadOnly("/n".into()));
    new.set_read_only(true);
    assert_eq!(
        refused(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))]),
        BuildError::NotWritable("/n".into(), Errno::ROFS)
    );
    // The refused changes have had no effect.
    union.root().mkdir(&CX, name("d"), 0o755).unwrap();
    assert!(find(&*left, "d").is_some());
    new.set_read_only(false);
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite)), remove("/l")], &KEEP).unwrap();
    assert!(find(&*union, "d").is_none());
}

#[test]
fn a_branch_change_fails_with_busy_after_its_timeout() {
    let faults = Faults::new();
    let (left, new) = (branch_layer_with(&faults, &[("f", b"")]), branch_layer(&[]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite)]);
    let (changing, layer) = (Arc::downgrade(&union), branch(&new, "/n", Mode::ReadWrite));
    let (sender, receiver) = std::sync::mpsc::channel();
    // The change runs on the thread of an unfinished removal, so that removal can't end before it.
    faults.call_at(1, move || {
        let union = changing.upgrade().unwrap();
        let _ = sender.send(
            union
                .change_branches(vec![insert(0, layer)], &ChangePolicy { patience: Duration::from_millis(50), ..KEEP }),
        );
    });
    union.root().unlink(&CX, name("f")).unwrap();
    assert_eq!(receiver.try_recv().unwrap(), Err(BuildError::Busy));
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))], &KEEP).unwrap();
}

#[test]
fn a_long_copy_up_yields_to_a_branch_change() {
    let faults = Faults::new();
    let big = vec![7; 13 << 20];
    let right = branch_layer_with(&faults, &[("big", &big)]);
    let (new, left) = (branch_layer_with(&faults, &[]), branch_layer_with(&faults, &[]));
    let mut yielded = false;
    for at in 1..100 {
        let (new, left, right) = (new.fork(&faults), left.fork(&faults), right.fork(&faults));
        let branches = vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)];
        let options = Options { metacopy: Metacopy::Off, ..Options::default() };
        let union = Unionfs::new(branches, options).unwrap();
        let big = find(&*union, "big").unwrap();
        let (changing, layer) = (union.clone(), branch(&new, "/n", Mode::ReadWrite));
        let (sender, receiver) = std::sync::mpsc::channel();
        faults.call_at(at, move || {
            let waiting = changing.clone();
            std::thread::spawn(move || {
                let changes = vec![insert(0, layer), BranchChange::Mode("/l".into(), Mode::ReadOnly)];
                let done = changing.change_branches(changes, &KEEP);
                drop(changing);
                let _ = sender.send(done);
            });
            while !waiting.change_is_waiting() {
                std::thread::yield_now();
            }
        });
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        big.setattr(&CX, &mode, None).unwrap();
        if faults.forget_call() {
            break;
        }
        receiver.recv_timeout(TIMEOUT).unwrap().unwrap();
        let copied = |disk: &Arc<MemFs>| find(&**disk, "big").is_some();
        assert_ne!(copied(&new), copied(&left), "step {at}");
        yielded |= copied(&new);
        assert_eq!(find(&*union, "big").unwrap().getattr(&CX).unwrap().mode & 0o777, 0o600);
    }
    assert!(yielded);
}

/// The kernel writes to a backing file directly, bypassing the union.
#[test]
fn renames_that_copy_a_file_return_ebusy_while_the_kernel_writes_to_its_backing_file() {
    let scratch = testkit::TempDir::new();
    let host = |dir: &str, mode| {
        let path = scratch.join(dir);
        std::fs::create_dir_all(path.join("d")).unwrap();
        Branch { layer: HostFs::open(&path, HostOptions::default()).unwrap(), path, mode }
    };
    let (new, left) = (host("new", Mode::ReadWrite), host("left", Mode::ReadWrite));
    std::fs::remove_dir(new.path.join("d")).unwrap();
    let (new_path, left_path) = (new.path.clone(), left.path.clone());
    let union = union(vec![left]);
    let (entry, file) = union.root().create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    let reader = entry.vnode.open(&CX, OpenFlags::RDONLY).unwrap();
    assert!(file.backing().is_some() && reader.backing().is_some());
    let changes = vec![insert(0, new), BranchChange::Mode(left_path, Mode::ReadOnly)];
    union.change_branches(changes, &KEEP).unwrap();
    // Files opened from now on get no backing file, but an earlier one can't be revoked.
    assert!(file.backing().is_none());
    let again = entry.vnode.open(&CX, OpenFlags::RDONLY).unwrap();
    assert!(again.backing().is_none());
    let to = find(&*union, "d").unwrap();
    let rename = || union.root().rename(&CX, name("f"), &to, name("f"), RenameFlags::default());
    assert_eq!(rename(), Err(Errno::BUSY));
    drop(file);
    rename().unwrap();
    assert!(new_path.join("d/f").exists());
    assert_eq!(again.read(&CX, &mut [0; 4], 0).unwrap(), 0);
    drop((union, entry, again, reader, to));
}

#[test]
fn a_read_only_union_can_become_writable_and_read_only_again() {
    let (new, left) = (branch_layer(&[]), branch_layer(&[("d/f", b"old")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadOnly)]);
    let file = find(&*union, "d/f").unwrap();
    let number = file.id();
    let open = file.open(&CX, OpenFlags::RDONLY).unwrap();
    assert_eq!(union.root().mkdir(&CX, name("x"), 0o755).map(drop), Err(Errno::ROFS));
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))], &KEEP).unwrap();
    assert!(!union.properties().read_only);
    file.open(&CX, OpenFlags::WRONLY).unwrap().write(&CX, b"new", 0).unwrap();
    assert_eq!(read(&*open), b"new");
    assert_eq!(find(&*union, "d/f").unwrap().id(), number);
    assert_eq!(find(&*new, "d").unwrap().kind(), Kind::Directory);
    union.change_branches(vec![BranchChange::Mode("/n".into(), Mode::ReadOnly)], &KEEP).unwrap();
    assert!(union.properties().read_only);
    assert_eq!(file.open(&CX, OpenFlags::WRONLY).map(drop), Err(Errno::ROFS));
    assert_eq!(content(&file), b"new");
    assert!(find(&*new, ".wh..wh.work").is_none());
}

const REFUSE: ChangePolicy = ChangePolicy { in_use: InUse::Refuse, ..KEEP };

fn remove(path: &str) -> BranchChange {
    BranchChange::Remove(path.into())
}

/// Returns branch, path in the union and "open for writing" of the files that block a change.
fn blockers(outcome: Result<(), BuildError>) -> Vec<(String, String, bool)> {
    let Err(BuildError::InUse(files)) = outcome else { panic!("{outcome:?}") };
    let text = |file: &OpenedFile| (file.branch.display().to_string(), String::from_utf8(file.path.clone()).unwrap());
    files.iter().map(|file| (text(file).0, text(file).1, file.writing)).collect()
}

fn open_counts(union: &Unionfs) -> Vec<u64> {
    union.branches().branches.iter().map(|branch| branch.open_files).collect()
}

#[test]
fn a_branch_with_open_files_is_not_removed() {
    let (left, right) =
        (branch_layer(&[("d/f", b"left"), ("g", b"g")]), branch_layer(&[("d/f", b"right"), ("d/r", b"")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadWrite)]);
    let file = find(&*union, "d/f").unwrap();
    let reader = file.open(&CX, OpenFlags::RDONLY).unwrap();
    let again = file.open(&CX, OpenFlags::RDONLY).unwrap();
    let writer = find(&*union, "g").unwrap().open(&CX, OpenFlags::WRONLY).unwrap();
    let (_, unnamed) = union.root().tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap();
    assert_eq!(open_counts(&union), [4, 0]);
    // Several files, one without a name. Another branch is removed in the same change.
    let changes = || vec![remove("/l"), BranchChange::Mode("/r".into(), Mode::ReadOnly)];
    let blocked = blockers(union.change_branches(changes(), &REFUSE));
    let blocker = |path: &str, writing| ("/l".to_owned(), path.to_owned(), writing);
    assert_eq!(blocked, [blocker("", true), blocker("/d/f", false), blocker("/g", true)]);
    let Err(BuildError::InUse(files)) = union.change_branches(changes(), &REFUSE) else { panic!() };
    assert_eq!(files[1].number, file.id());
    let text = BuildError::InUse(files).to_string();
    assert!(text.starts_with("branch /l is in use: a file without a name (inode "), "{text}");
    assert!(text.ends_with(") and 2 more files are open"), "{text}");
    // Nothing has changed.
    assert_eq!(union.branches().generation, 1);
    writer.write(&CX, b"G", 0).unwrap();
    assert_eq!((content(&find(&*union, "g").unwrap()), read(&*reader)), (b"G".to_vec(), b"left".to_vec()));
    drop((writer, unnamed, reader));
    let blocked = blockers(union.change_branches(vec![remove("/l")], &REFUSE));
    assert_eq!(blocked, [blocker("/d/f", false)]);
    assert_eq!(open_counts(&union), [1, 0]);
    drop(again);
    union.change_branches(vec![remove("/l")], &REFUSE).unwrap();
    assert_eq!(content(&find(&*union, "d/f").unwrap()), b"right");
    assert_eq!(open_counts(&union), [0]);
}

#[test]
fn directories_in_use_do_not_block_a_removal() {
    let (left, right) = (branch_layer(&[]), branch_layer(&[("d/sub/f", b"")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let (dir, file) = (find(&*union, "d/sub").unwrap(), find(&*union, "d/sub/f").unwrap());
    dir.readdir(&CX, 0, &mut |_| true).unwrap();
    union.change_branches(vec![remove("/r")], &REFUSE).unwrap();
    assert_eq!(dir.lookup(&CX, name("f")).map(drop), Err(Errno::STALE));
    assert_eq!(file.open(&CX, OpenFlags::RDONLY).map(drop), Err(Errno::STALE));
}

/// A file that was copied up while it was open follows its copy, although the branch of the
/// original is removed before it is used again.
#[test]
fn a_copied_file_does_not_block_the_removal_of_its_original() {
    let (left, right) = (branch_layer(&[]), branch_layer(&[("f", b"old")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let file = find(&*union, "f").unwrap();
    let reader = file.open(&CX, OpenFlags::RDONLY).unwrap();
    assert_eq!(blockers(union.change_branches(vec![remove("/r")], &REFUSE)).len(), 1);
    let writer = file.open(&CX, OpenFlags::WRONLY).unwrap();
    writer.write(&CX, b"new", 0).unwrap();
    assert_eq!(open_counts(&union), [2, 0]);
    union.change_branches(vec![remove("/r")], &REFUSE).unwrap();
    writer.write(&CX, b"NEW", 0).unwrap();
    assert_eq!((read(&*reader), content(&file)), (b"NEW".to_vec(), b"NEW".to_vec()));
}

/// Without the branch, programs would continue with the older file that the name leads to then.
#[test]
fn a_copy_of_a_file_on_another_branch_is_in_use_too() {
    let (left, right) = (branch_layer(&[]), branch_layer(&[("f", b"old")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let file = find(&*union, "f").unwrap();
    let writer = file.open(&CX, OpenFlags::RDWR).unwrap();
    writer.write(&CX, b"new", 0).unwrap();
    let changes = || vec![remove("/l")];
    assert_eq!(blockers(union.change_branches(changes(), &REFUSE)), [("/l".to_owned(), "/f".to_owned(), true)]);
    drop(writer);
    union.change_branches(changes(), &REFUSE).unwrap();
    assert_eq!(content(&file), b"old");
}

/// The file is covered by another one of its name: it has no name.
#[test]
fn a_covered_file_is_in_use() {
    let (new, left) = (branch_layer(&[("f", b"new")]), branch_layer(&[("f", b"old")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite)]);
    let file = find(&*union, "f").unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
    let both = vec![insert(0, branch(&new, "/n", Mode::ReadWrite)), remove("/l")];
    assert_eq!(blockers(union.change_branches(both, &REFUSE)), [("/l".to_owned(), "/f".to_owned(), false)]);
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))], &REFUSE).unwrap();
    assert_eq!(blockers(union.change_branches(vec![remove("/l")], &REFUSE)), [("/l".to_owned(), String::new(), false)]);
    assert_eq!(read(&*file), b"old");
    drop(file);
    union.change_branches(vec![remove("/l")], &REFUSE).unwrap();
}

#[test]
fn a_change_of_outdated_branches_is_refused() {
    let (left, new) = (branch_layer(&[]), branch_layer(&[]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite)]);
    let seen = union.branches();
    assert_eq!((seen.generation, seen.branches.len()), (1, 1));
    let status = BranchStatus {
        path: "/l".into(),
        mode: Mode::ReadWrite,
        turned_read_only: false,
        trouble: None,
        open_files: 0,
    };
    assert_eq!(seen.branches, [status]);
    let policy = ChangePolicy { expected_generation: Some(1), ..REFUSE };
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))], &policy).unwrap();
    assert_eq!(union.branches().generation, 2);
    assert_eq!(union.change_branches(vec![remove("/n")], &policy), Err(BuildError::Changed));
    let policy = ChangePolicy { expected_generation: Some(2), ..REFUSE };
    union.change_branches(vec![remove("/n")], &policy).unwrap();
    assert_eq!(union.branches().branches[0].path, std::path::Path::new("/l"));
}

/// A thread opens and closes files of a branch while the branch is removed and inserted: an open
/// either makes the removal fail or does not succeed on the branch.
#[test]
fn no_file_is_opened_on_a_branch_between_check_and_removal() {
    let (left, right) = (branch_layer(&[]), branch_layer(&[("d/f", b"there")]));
    let right_branch = || branch(&right, "/r", Mode::ReadOnly);
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), right_branch()]);
    let stop = Arc::new(AtomicBool::new(false));
    // Number of threads that have opened the file. On a busy machine one may begin late.
    let ready = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (union, stop, ready) = (union.clone(), stop.clone(), ready.clone());
            std::thread::spawn(move || {
                let (mut opened, mut absent) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let found = union.root().lookup(&CX, name("d")).unwrap();
                    let found = found.map(|dir| dir.vnode.lookup(&CX, name("f")));
                    let file = match found {
                        None | Some(Ok(None) | Err(Errno::STALE)) => None,
                        Some(found) => Some(found.unwrap().unwrap().vnode.open(&CX, OpenFlags::RDONLY)),
                    };
                    match file {
                        None | Some(Err(Errno::STALE)) => absent += 1,
                        Some(file) => {
                            let file = file.unwrap();
                            for _ in 0..3 {
                                // While it is open, the branch is in the set.
                                assert_eq!(union.branches().branches.len(), 2);
                                assert_eq!(read(&*file), b"there");
                            }
                            opened += 1;
                            if opened == 1 {
                                ready.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                }
                (opened, absent)
            })
        })
        .collect();
    let (mut removed, mut refused) = (0, 0);
    while removed < 100 || refused < 20 || ready.load(Ordering::Relaxed) < 2 {
        match union.change_branches(vec![remove("/r")], &REFUSE) {
            Ok(()) => {
                removed += 1;
                std::thread::yield_now();
                union.change_branches(vec![insert(1, right_branch())], &REFUSE).unwrap();
            }
            Err(BuildError::InUse(files)) => {
                assert_eq!(files.len(), 1);
                refused += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let (opened, absent) = thread.join().unwrap();
        println!("{opened} opened, {absent} absent, {removed} removed, {refused} refused");
        assert!(opened > 0);
    }
    assert_eq!(open_counts(&union).iter().sum::<u64>(), 0);
}

const COPYUP: ChangePolicy = ChangePolicy { in_use: InUse::CopyUp, ..KEEP };

fn replace_leftmost(new: &Arc<MemFs>) -> Vec<BranchChange> {
    vec![insert(0, branch(new, "/n", Mode::ReadWrite)), remove("/l")]
}

/// Returns the paths of all objects of a branch that users would see.
fn user_paths(layer: &dyn Layer) -> Vec<String> {
    fn walk(dir: &Arc<dyn Vnode>, path: &str, found: &mut Vec<String>) {
        let mut names = Vec::new();
        let mut sink = |entry: &vnode::DirEntry<'_>| {
            names.push((String::from_utf8(entry.name.as_bytes().to_vec()).unwrap(), entry.kind));
            true
        };
        dir.readdir(&CX, 0, &mut sink).unwrap();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        for (entry, kind) in names.into_iter().filter(|(name, _)| !name.starts_with(".wh.")) {
            let path = format!("{path}/{entry}");
            if kind == Kind::Directory {
                walk(&dir.lookup(&CX, name(&entry)).unwrap().unwrap().vnode, &path, found);
            }
            found.push(path);
        }
    }
    let mut found = Vec::new();
    walk(&layer.root(), "", &mut found);
    found
}

#[test]
fn files_in_use_are_copied_to_a_branch_that_remains() {
    let (left, right) = (branch_layer(&[]), branch_layer(&[("d/f", b"data"), ("d/closed", b""), ("g", b"g")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadWrite)]);
    let (dir, file) = (find(&*union, "d").unwrap(), find(&*union, "d/f").unwrap());
    let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    file.setattr(&CX, &mode, None).unwrap();
    let before = file.getattr(&CX).unwrap();
    let reader = file.open(&CX, OpenFlags::RDONLY).unwrap();
    let writer = find(&*union, "g").unwrap().open(&CX, OpenFlags::RDWR).unwrap();
    union.change_branches(vec![remove("/r")], &COPYUP).unwrap();
    assert_eq!(read(&*reader), b"data");
    let after = find(&*union, "d/f").unwrap().getattr(&CX).unwrap();
    assert_eq!((after.ino, after.perm(), after.mtime, after.nlink), (before.ino, 0o640, before.mtime, 1));
    writer.write(&CX, b"G", 0).unwrap();
    assert_eq!(content(&find(&*left, "g").unwrap()), b"G");
    assert_eq!(content(&find(&*right, "g").unwrap()), b"g");
    assert_eq!(user_paths(&*union), ["/d/f", "/d", "/g"]);
    assert_eq!(find(&*union, "d").unwrap().id(), dir.id());
    assert!(Arc::ptr_eq(&find(&*union, "d").unwrap(), &dir));
    assert_eq!(open_counts(&union), [2]);
}

#[test]
fn files_in_use_are_copied_to_a_branch_inserted_by_the_same_change() {
    let (new, left, right) = (
        branch_layer(&[]),
        branch_layer(&[("d/e/f", b"data"), ("d/r", b"l"), ("g", b"g")]),
        branch_layer(&[("d/r", b"r")]),
    );
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let (dir, file) = (find(&*union, "d/e").unwrap(), find(&*union, "d/e/f").unwrap());
    let merged = find(&*union, "d").unwrap();
    let reader = file.open(&CX, OpenFlags::RDONLY).unwrap();
    let writer = find(&*union, "g").unwrap().open(&CX, OpenFlags::RDWR).unwrap();
    let second = find(&*union, "g").unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
    let dump = left.dump();
    union.change_branches(replace_leftmost(&new), &COPYUP).unwrap();
    assert_eq!(read(&*reader), b"data");
    writer.write(&CX, b"G2", 0).unwrap();
    assert_eq!((read(&*second), content(&find(&*union, "g").unwrap())), (b"G2".to_vec(), b"G2".to_vec()));
    assert_eq!(content(&find(&*new, "g").unwrap()), b"G2");
    assert!(left.dump() == dump, "the removed branch was changed");
    assert_eq!(user_paths(&*union), ["/d/e/f", "/d/e", "/d/r", "/d", "/g"]);
    assert_eq!(content(&find(&*union, "d/r").unwrap()), b"r");
    // Objects in use keep their numbers, and are the same vnodes.
    for (path, vnode) in [("d/e", &dir), ("d/e/f", &file), ("d", &merged)] {
        assert!(Arc::ptr_eq(&find(&*union, path).unwrap(), vnode), "{path}");
    }
    let number = file.id();
    dir.create(&CX, name("more"), 0o644, OpenFlags::RDWR).unwrap();
    drop((dir, file, merged, reader, writer, second, union));
    let union = self::union(vec![branch(&new, "/n", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    assert_eq!(find(&*union, "d/e/f").unwrap().id(), number);
    assert_eq!(user_paths(&*union), ["/d/e/f", "/d/e/more", "/d/e", "/d/r", "/d", "/g"]);
}

#[test]
fn files_without_a_name_are_copied_too() {
    let (new, left) = (
        branch_layer(&[("covered", b"other")]),
        branch_layer(&[("gone", b"gone"), ("two", b"two"), ("covered", b"old")]),
    );
    let two = find(&*left, "two").unwrap();
    left.root().link(&CX, name("again"), &two).unwrap();
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite)]);
    let open = |path| find(&*union, path).unwrap().open(&CX, OpenFlags::RDWR).unwrap();
    let (gone, linked, covered) = (open("gone"), open("two"), open("covered"));
    let (entry, unnamed) = union.root().tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap();
    unnamed.write(&CX, b"unnamed", 0).unwrap();
    union.root().unlink(&CX, name("gone")).unwrap();
    union.change_branches(replace_leftmost(&new), &COPYUP).unwrap();
    let dump = left.dump();
    let all = [(&gone, "gone"), (&linked, "two"), (&covered, "old"), (&unnamed, "unnamed")];
    for (file, bytes) in all {
        assert_eq!(read(&**file), bytes.as_bytes());
        file.write(&CX, b"NEW", 0).unwrap();
        assert_eq!(read(&**file)[..3], *b"NEW");
    }
    assert_eq!(content(&find(&*union, "covered").unwrap()), b"other");
    assert_eq!(content(&find(&*union, "two").unwrap()), b"NEW");
    assert!(find(&*union, "gone").is_none());
    // A file without a name can still get one.
    union.root().link(&CX, name("named"), &entry.vnode).unwrap();
    assert_eq!(content(&find(&*union, "named").unwrap()), b"NEWamed");
    assert!(left.dump() == dump, "the removed branch was changed");
}

#[test]
fn only_files_that_cannot_be_copied_are_named() {
    let (left, right) = (branch_layer(&[("f", b"f")]), branch_layer(&[("g", b"g")]));
    let read_only = branch_layer(&[("f", b"new")]);
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let open = |path| find(&*union, path).unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
    let (f, g) = (open("f"), open("g"));
    let blocker = |branch: &str, path: &str| (branch.to_owned(), path.to_owned(), false);
    // No branch that remains can be written.
    let outcome = union.change_branches(vec![remove("/l")], &COPYUP);
    assert_eq!(blockers(outcome), [blocker("/l", "/f")]);
    let both = vec![remove("/l"), remove("/r"), insert(0, branch(&read_only, "/n", Mode::ReadOnly))];
    assert_eq!(blockers(union.change_branches(both, &COPYUP)), [blocker("/l", "/f"), blocker("/r", "/g")]);
    let to_read_only = vec![BranchChange::Mode("/l".into(), Mode::ReadOnly), remove("/r")];
    assert_eq!(blockers(union.change_branches(to_read_only, &COPYUP)), [blocker("/r", "/g")]);
    assert_eq!((user_paths(&*left), union.branches().generation), (vec!["/f".to_owned()], 1));
    // `g` is copied; a file on the same branch as the copy can't be.
    let last = branch_layer(&[]);
    let append = vec![insert(9, branch(&last, "/m", Mode::ReadOnly)), remove("/r")];
    union.change_branches(append, &COPYUP).unwrap();
    assert_eq!((read(&*f), read(&*g)), (b"f".to_vec(), b"g".to_vec()));
    assert_eq!(user_paths(&*left), ["/f", "/g"]);
}

/// The kernel writes to one file directly and reads the other one.
#[test]
fn backing_files_and_a_removal_that_copies() {
    let scratch = testkit::TempDir::new();
    let host = |dir: &str, mode| {
        let path = scratch.join(dir);
        std::fs::create_dir_all(&path).unwrap();
        Branch { layer: HostFs::open(&path, HostOptions::default()).unwrap(), path, mode }
    };
    let (new, left) = (host("new", Mode::ReadWrite), host("left", Mode::ReadWrite));
    let (new_path, left_path) = (new.path.clone(), left.path.clone());
    let union = union(vec![left]);
    std::fs::write(left_path.join("read"), "old").unwrap();
    let bound = find(&*union, "read").unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
    bound.bind();
    let reader = find(&*union, "read").unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
    let (_, writer) = union.root().create(&CX, name("written"), 0o644, OpenFlags::RDWR).unwrap();
    assert!(writer.backing().is_some());
    writer.bind();
    let changes = || vec![insert(0, new.clone()), BranchChange::Remove(left_path.clone())];
    let blocked = blockers(union.change_branches(changes(), &COPYUP));
    assert_eq!(blocked, [(left_path.display().to_string(), "/written".to_owned(), true)]);
    assert!(!new_path.join("read").exists());
    writer.write(&CX, b"w", 0).unwrap();
    drop(writer);
    union.change_branches(changes(), &COPYUP).unwrap();
    find(&*union, "read").unwrap().open(&CX, OpenFlags::WRONLY).unwrap().write(&CX, b"NEW", 0).unwrap();
    assert_eq!((read(&*bound), read(&*reader)), (b"old".to_vec(), b"NEW".to_vec()));
    assert!(find(&*union, "written").is_none());
    assert_eq!(std::fs::read(left_path.join("written")).unwrap(), b"w");
    drop((union, bound, reader));
}

/// Makes the union create a metacopy of `big` on `/l`.
fn with_metacopy(left: &Arc<MemFs>, right: &Arc<MemFs>) -> Arc<Unionfs> {
    let union = union(vec![branch(left, "/l", Mode::ReadWrite), branch(right, "/r", Mode::ReadOnly)]);
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    for path in ["big", "other"] {
        find(&*union, path).unwrap().setattr(&CX, &mode, None).unwrap();
    }
    assert!(find(&**left, ".wh..wh.meta.big").is_some());
    union
}

#[test]
fn files_with_metacopies_are_in_use_on_both_branches() {
    let big = vec![7; 9000];
    let files: [(&str, &[u8]); 2] = [("big", &big), ("other", &big)];
    let (left, right) = (branch_layer(&[]), branch_layer(&files));
    let union = with_metacopy(&left, &right);
    let reader = find(&*union, "big").unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
    let names = |branch: &str| vec![(branch.to_owned(), "/big".to_owned(), false)];
    for path in ["/l", "/r"] {
        assert_eq!(blockers(union.change_branches(vec![remove(path)], &REFUSE)), names(path));
    }
    // The file in use is completed; the other one disappears with its data.
    union.change_branches(vec![remove("/r")], &COPYUP).unwrap();
    let check = |paths: &[&str]| {
        assert_eq!(user_paths(&*union), paths);
        for path in ["big", "other"] {
            let found = find(&*union, path);
            assert_eq!(found.is_some(), paths.contains(&&*format!("/{path}")), "{path}");
            if let Some(file) = found {
                assert_eq!((file.getattr(&CX).unwrap().perm(), file.getattr(&CX).unwrap().size), (0o600, 9000));
                let mut bytes = vec![0; 9001];
                assert_eq!(file.open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut bytes, 0), Ok(9000));
                assert!(bytes[..9000] == big);
            }
        }
    };
    check(&["/big"]);
    assert!(find(&*left, ".wh..wh.meta.big").is_none() && find(&*left, ".wh..wh.meta.other").is_some());
    // A name of a file that is absent at present can be used.
    union.root().mkdir(&CX, name("dir"), 0o755).unwrap();
    union.root().rmdir(&CX, name("dir")).unwrap();
    union.change_branches(vec![insert(9, branch(&right, "/r", Mode::ReadOnly))], &REFUSE).unwrap();
    check(&["/big", "/other"]);
    let mut bytes = vec![0; 9001];
    assert_eq!(reader.read(&CX, &mut bytes, 0), Ok(9000));
}

/// The attributes of a file in use are on the branch that is removed, its data elsewhere.
#[test]
fn attributes_of_files_in_use_are_kept() {
    let big = vec![7; 9000];
    let files: [(&str, &[u8]); 2] = [("big", &big), ("other", &big)];
    let (new, left, right) = (branch_layer(&[]), branch_layer(&[]), branch_layer(&files));
    let union = with_metacopy(&left, &right);
    let reader = find(&*union, "big").unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
    assert_eq!(blockers(union.change_branches(vec![remove("/l")], &COPYUP)).len(), 1);
    let dump = (left.dump(), right.dump());
    union.change_branches(replace_leftmost(&new), &COPYUP).unwrap();
    assert_eq!(find(&*union, "big").unwrap().getattr(&CX).unwrap().perm(), 0o600);
    assert_eq!(find(&*union, "other").unwrap().getattr(&CX).unwrap().perm(), 0o644);
    assert_eq!(find(&*new, "big").unwrap().getattr(&CX).unwrap().size, 9000);
    let mut bytes = vec![0; 9001];
    assert_eq!(reader.read(&CX, &mut bytes, 0), Ok(9000));
    assert!(bytes[..9000] == big && (left.dump(), right.dump()) == dump);
}

/// A union with files in use on the leftmost branch `/l`, and an empty branch to replace it.
struct Replaced {
    faults: Faults,
    new: Arc<MemFs>,
    left: Arc<MemFs>,
    right: Arc<MemFs>,
}

impl Replaced {
    fn new() -> Self {
        let faults = Faults::new();
        let (left, right) =
            (branch_layer(&[("d/e/f", b"f"), ("d/two", b"2"), ("g", b"g")]), branch_layer(&[("d/r", b"r")]));
        let dir = find(&*left, "d").unwrap();
        dir.link(&CX, name("again"), &find(&*left, "d/two").unwrap()).unwrap();
        Self { new: branch_layer(&[]).fork(&faults), left: left.fork(&faults), right: right.fork(&faults), faults }
    }

    fn branches(&self, leftmost: &Arc<MemFs>, path: &str) -> Vec<Branch> {
        vec![branch(leftmost, path, Mode::ReadWrite), branch(&self.right, "/r", Mode::ReadOnly)]
    }

    /// Returns open files, with what they read.
    fn in_use(union: &Unionfs) -> Vec<(Arc<dyn vnode::OpenFile>, Vec<u8>)> {
        let open = |path, flags| find(union, path).unwrap().open(&CX, flags).unwrap();
        let (_, unnamed) = union.root().tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap();
        unnamed.write(&CX, b"unnamed", 0).unwrap();
        vec![
            (open("d/e/f", OpenFlags::RDONLY), b"f".to_vec()),
            (open("d/e/f", OpenFlags::RDWR), b"f".to_vec()),
            (open("d/two", OpenFlags::RDWR), b"2".to_vec()),
            (open("g", OpenFlags::RDWR), b"g".to_vec()),
            (open("d/r", OpenFlags::RDONLY), b"r".to_vec()),
            (unnamed, b"unnamed".to_vec()),
        ]
    }
}

const BEFORE: [&str; 7] = ["/d/again", "/d/e/f", "/d/e", "/d/r", "/d/two", "/d", "/g"];
const AFTER: [&str; 6] = ["/d/e/f", "/d/e", "/d/r", "/d/two", "/d", "/g"];

/// If any step of the change fails, the set is unchanged, no open file has noticed anything, and
/// the change can be repeated.
#[test]
fn a_failed_copy_of_files_in_use_has_no_effect() {
    use memfs::{Count, Fault, Plan};
    let plans = [
        (Count::All, Fault::Error(Errno::IO)),
        (Count::Changes, Fault::Error(Errno::NOSPC)),
        (Count::Changes, Fault::Errors(Errno::NOSPC)),
        (Count::All, Fault::Errors(Errno::IO)),
    ];
    let start = Replaced::new();
    for (count, fault) in plans {
        let (mut failed, mut tidy) = (0, 0);
        for at in 1.. {
            let faults = Faults::new();
            let fork = |disk: &Arc<MemFs>| disk.fork(&faults);
            let test = Replaced {
                new: fork(&start.new),
                left: fork(&start.left),
                right: fork(&start.right),
                faults: faults.clone(),
            };
            let union = union(test.branches(&test.left, "/l"));
            let files = Replaced::in_use(&union);
            let number = find(&*union, "d/e/f").unwrap().id();
            test.faults.arm(Plan { count, at, fault });
            let outcome = union.change_branches(replace_leftmost(&test.new), &COPYUP);
            let fired = test.faults.fired();
            test.faults.disarm();
            let what = format!("{fault:?} at {at}: {outcome:?}");
            for (file, bytes) in &files {
                assert_eq!(read(&**file), *bytes, "{what}");
            }
            let expected: &[&str] = if outcome.is_ok() { &AFTER } else { &BEFORE };
            assert_eq!(user_paths(&*union), expected, "{what}");
            assert_eq!(find(&*union, "d/e/f").unwrap().id(), number, "{what}");
            files[1].0.write(&CX, b"written", 0).unwrap();
            files[3].0.write(&CX, b"written", 0).unwrap();
            files[5].0.write(&CX, b"written", 0).unwrap();
            assert_eq!((read(&*files[0].0), read(&*files[5].0)), (b"written".to_vec(), b"written".to_vec()), "{what}");
            if outcome.is_err() {
                failed += 1;
                assert_eq!(content(&find(&*test.left, "g").unwrap()), b"written", "{what}");
                let left_over = user_paths(&*test.new);
                // If all operations fail, the copies can't be removed either.
                assert!(left_over.is_empty() || matches!(fault, Fault::Errors(_)), "{what}: {left_over:?}");
                if left_over.is_empty() {
                    tidy += 1;
                    union
                        .change_branches(replace_leftmost(&test.new), &COPYUP)
                        .unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(user_paths(&*union), AFTER, "{what}");
                }
            }
            if find(&*test.new, "g").is_some() {
                for path in ["d/e/f", "g"] {
                    assert_eq!(content(&find(&*union, path).unwrap()), b"written", "{what}");
                }
                assert_eq!(find(&*union, "d/e/f").unwrap().id(), number, "{what}");
            }
            if !fired {
                break;
            }
        }
        println!("{fault:?}: {failed} failed, {tidy} repeated");
        assert!(failed > 20 && tidy > 10, "{failed} {tidy}");
    }
}

/// A server that is killed leaves the old branches as they were, and on the new one at most
/// complete copies.
#[test]
fn a_kill_while_files_in_use_are_copied_loses_nothing() {
    use memfs::{Count, Fault, Plan};
    let start = Replaced::new();
    for at in 1.. {
        let faults = Faults::new();
        let fork = |disk: &Arc<MemFs>| disk.fork(&faults);
        let test = Replaced {
            new: fork(&start.new),
            left: fork(&start.left),
            right: fork(&start.right),
            faults: faults.clone(),
        };
        let union = union(test.branches(&test.left, "/l"));
        let files = Replaced::in_use(&union);
        test.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _ = union.change_branches(replace_leftmost(&test.new), &COPYUP);
        let fired = test.faults.fired();
        drop((files, union));
        let recovered = |disk: &Arc<MemFs>| disk.recover(&Faults::new());
        let after =
            Replaced { new: recovered(&test.new), left: recovered(&test.left), right: recovered(&test.right), faults };
        let union = self::union(after.branches(&after.left, "/l"));
        assert_eq!(user_paths(&*union), BEFORE, "{at}");
        for (path, bytes) in [("d/e/f", "f"), ("d/two", "2"), ("d/again", "2"), ("g", "g"), ("d/r", "r")] {
            assert_eq!(content(&find(&*union, path).unwrap()), bytes.as_bytes(), "{at}");
        }
        drop(union);
        let union = self::union(after.branches(&after.new, "/n"));
        for (path, bytes) in [("d/e/f", "f"), ("d/two", "2"), ("g", "g")] {
            let found = find(&*union, path);
            assert!(found.is_none_or(|file| content(&file) == bytes.as_bytes()), "{at} {path}");
        }
        if !fired {
            break;
        }
    }
}

/// Threads open files, write to them and read them back, while the leftmost branch is replaced
/// again and again: no write is lost, and no open file is left behind.
#[test]
fn open_files_survive_replaced_branches() {
    let base = branch_layer(&[]);
    let first = branch_layer(&[("a", b"0"), ("b", b"0"), ("c", b"0")]);
    let union = union(vec![branch(&first, "/new/0", Mode::ReadWrite), branch(&base, "/base", Mode::ReadOnly)]);
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|path| {
            let (union, stop) = (union.clone(), stop.clone());
            // Stays open, so that the file exists in each set of branches.
            let anchor = find(&*union, path).unwrap().open(&CX, OpenFlags::RDONLY).unwrap();
            std::thread::spawn(move || {
                let mut count = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let file = loop {
                        match find(&*union, path).unwrap().open(&CX, OpenFlags::RDWR) {
                            Ok(file) => break file,
                            Err(Errno::STALE) => {}
                            Err(e) => panic!("{e}"),
                        }
                    };
                    for _ in 0..5 {
                        count += 1;
                        let text = format!("{count:08}").into_bytes();
                        assert_eq!(file.write(&CX, &text, 0), Ok(8));
                        assert_eq!((read(&*file), read(&*anchor)), (text.clone(), text));
                    }
                }
                (path, count, anchor)
            })
        })
        .collect();
    let mut last = first;
    for round in 1..=60 {
        let new = branch_layer(&[]);
        let changes = vec![
            insert(0, branch(&new, &format!("/new/{round}"), Mode::ReadWrite)),
            remove(&format!("/new/{}", round - 1)),
        ];
        union.change_branches(changes, &COPYUP).unwrap();
        // Files that were open before are written to the new branch.
        last = new;
        // The threads write meanwhile.
        std::thread::sleep(Duration::from_millis(2));
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let (path, count, anchor) = thread.join().unwrap();
        let text = format!("{count:08}").into_bytes();
        println!("{path}: {count} writes");
        assert!(count > 60);
        assert_eq!((read(&*anchor), content(&find(&*last, path).unwrap())), (text.clone(), text));
    }
    assert_eq!(open_counts(&union), [0, 0]);
}

/// The union's own directories in the root of its only branch are not counted.
#[test]
fn the_link_count_of_the_root_is_that_of_its_visible_subdirectories() {
    let (left, right) = (branch_layer(&[("d/f", b"")]), branch_layer(&[("e/f", b""), ("e/g", b"")]));
    let file = find(&*right, "e/f").unwrap();
    find(&*right, "e").unwrap().link(&CX, name("again"), &file).unwrap();
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadOnly)]);
    let links = || union.root().getattr(&CX).unwrap().nlink;
    assert_eq!(links(), 4);
    // Creates the work directory and the index of hard links.
    find(&*union, "e/f").unwrap().open(&CX, OpenFlags::WRONLY).unwrap();
    assert!(find(&*left, ".wh..wh.links").is_some() && find(&*left, ".wh..wh.work").is_some());
    union.change_branches(vec![remove("/r")], &REFUSE).unwrap();
    assert_eq!(user_paths(&*union).iter().filter(|path| path.len() == 2).count(), 2);
    assert_eq!(links(), 4);
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    assert_eq!(union.root().setattr(&CX, &mode, None).unwrap().nlink, 4);
    union.root().mkdir(&CX, name("new"), 0o755).unwrap();
    assert_eq!(links(), 5);
}

/// A layer of a branch that has other properties.
#[derive(Debug)]
struct Special(Arc<MemFs>, Properties);

impl Layer for Special {
    fn root(&self) -> Arc<dyn Vnode> {
        self.0.root()
    }
    fn properties(&self) -> Properties {
        self.1
    }
    fn attach(&self, upcalls: Arc<dyn vnode::Upcalls>) {
        self.0.attach(upcalls);
    }
    fn reports(&self) -> Option<Arc<dyn vnode::Reports>> {
        None
    }
    fn vnode(&self, cx: &vnode::Cx<'_>, number: u64) -> vnode::Result<Arc<dyn Vnode>> {
        self.0.vnode(cx, number)
    }
    fn commands(&self) -> Vec<vnode::Command> {
        self.0.commands()
    }
    fn sync(&self, cx: &vnode::Cx<'_>) -> vnode::Result<()> {
        self.0.sync(cx)
    }
    fn unmounted(&self) {}
}

/// Ignores all notifications.
#[derive(Debug)]
struct Server;

impl vnode::Upcalls for Server {
    fn entry_changed(&self, _dir: u64, _name: vnode::Name<'_>) {}
    fn directory_entry_changed(&self, _dir: u64, _name: vnode::Name<'_>) {}
    fn attributes_changed(&self, _vnode: u64) {}
    fn data_changed(&self, _vnode: u64, _range: std::ops::Range<u64>) {}
    fn data_moved(&self, _vnode: u64) {}
    fn everything_changed(&self) {}
    fn stop_passthrough(&self, _vnode: u64, drained: vnode::Drained) {
        drained();
    }
    fn allow_passthrough(&self, _vnode: u64) {}
    fn passthrough(&self) -> Vec<u64> {
        Vec::new()
    }
    fn maybe_mapped(&self) -> Vec<u64> {
        Vec::new()
    }
    fn is_host_file_unused(&self, _file: std::os::fd::BorrowedFd<'_>, _readers: bool) -> bool {
        true
    }
    fn settle(&self, _timeout: Duration) -> bool {
        true
    }
}

#[test]
fn branches_for_which_the_server_is_not_prepared_are_refused() {
    let none = Properties::default();
    let special = [
        Properties { varies_by_caller: true, ..none },
        Properties { attributes_vary_by_caller: true, ..none },
        Properties { data_varies_by_caller: true, ..none },
        Properties { merges_names: true, ..none },
        Properties { needs_flush: true, ..none },
        Properties { may_hang: true, ..none },
    ];
    let new = |properties| Branch {
        layer: Arc::new(Special(branch_layer(&[]), properties)),
        path: "/special".into(),
        mode: Mode::ReadOnly,
    };
    for properties in special {
        let first = branch_layer(&[]);
        let union = union(vec![branch(&first, "/l", Mode::ReadWrite)]);
        // Before the server asks, the properties follow the set.
        union.change_branches(vec![insert(1, new(properties))], &REFUSE).unwrap();
        assert_eq!(union.properties(), properties);
        union.change_branches(vec![remove("/special")], &REFUSE).unwrap();
        union.attach(Arc::new(Server));
        let refused = union.change_branches(vec![insert(1, new(properties))], &REFUSE).unwrap_err();
        assert!(matches!(&refused, BuildError::NeedsRemount(path, _) if path == std::path::Path::new("/special")));
        assert!(refused.to_string().contains("mount it again"), "{refused}");
        let watches = Properties { audits_refusals: true, ..none };
        union.change_branches(vec![insert(1, new(watches))], &REFUSE).unwrap();
        assert_eq!(union.properties(), none);
    }
    // A property that was announced remains.
    for properties in special {
        let first = branch_layer(&[]);
        let union = union(vec![branch(&first, "/l", Mode::ReadWrite), new(properties)]);
        union.attach(Arc::new(Server));
        union.change_branches(vec![remove("/special")], &REFUSE).unwrap();
        assert_eq!(union.properties(), properties);
        union.change_branches(vec![insert(1, new(properties))], &REFUSE).unwrap();
    }
    let first = branch_layer(&[]);
    let union = union(vec![branch(&first, "/l", Mode::ReadWrite)]);
    union.attach(Arc::new(Server));
    let network = branch(&first, "/nfs", Mode::NfsReadOnly);
    let refused = union.change_branches(vec![insert(1, network)], &REFUSE);
    assert!(matches!(refused, Err(BuildError::NeedsRemount(..))), "{refused:?}");
}
