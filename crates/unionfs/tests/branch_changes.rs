//! Inserting, removing and switching branches while the union is in use: the effect on open files,
//! inode numbers and the identity log, and the changes that are refused. `branch_sets.rs` tests
//! changes at every step of every operation.
#![allow(clippy::disallowed_methods, reason = "the tests create their own directories")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::layer_ops::{CX, find, name};
use hostfs::{HostFs, HostOptions};
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use std::time::Duration;
use unionfs::{Branch, BranchChange, BuildError, Metacopy, Mode, Options, Unionfs};
use vnode::{Errno, Kind, Layer, OpenFlags, RenameFlags, SetAttr, Vnode};

const TIMEOUT: Duration = Duration::from_secs(10);

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

#[test]
fn an_open_file_stays_usable_after_its_branch_is_removed() {
    let (left, right) = (branch_layer(&[("f", b"left")]), branch_layer(&[("f", b"right"), ("g", b"g")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadWrite), branch(&right, "/r", Mode::ReadWrite)]);
    let vnode = find(&*union, "f").unwrap();
    let reader = vnode.open(&CX, OpenFlags::RDONLY).unwrap();
    let writer = vnode.open(&CX, OpenFlags::RDWR).unwrap();
    union.change_branches(vec![BranchChange::Remove("/l".into())], TIMEOUT).unwrap();
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
    union.change_branches(vec![insert(0, branch(&left, "/l", Mode::ReadWrite))], TIMEOUT).unwrap();
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
    union.change_branches(vec![BranchChange::Remove("/r".into())], TIMEOUT).unwrap();
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
    union.change_branches(changes, TIMEOUT).unwrap();
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
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))], TIMEOUT).unwrap();
    let now = find(&*union, "f").unwrap();
    assert_ne!(now.id(), old.id());
    assert_eq!((content(&now), read(&*file)), (b"new".to_vec(), b"old".to_vec()));
    file.write(&CX, b"OLD", 0).unwrap();
    assert_eq!((content(&now), content(&old)), (b"new".to_vec(), b"OLD".to_vec()));
    assert_eq!(union.root().link(&CX, name("g"), &old).map(drop), Err(Errno::STALE));
    // The file is visible again after the branch that covered it is removed.
    union.change_branches(vec![BranchChange::Remove("/n".into())], TIMEOUT).unwrap();
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
    union.change_branches(vec![insert(9, branch(&more, "/m", Mode::ReadOnly))], TIMEOUT).unwrap();
    check(&union, 3);
    assert!(Arc::ptr_eq(&find(&*union, "d").unwrap(), &dir));
    // Remove the branch that their inode numbers came from.
    union.change_branches(vec![BranchChange::Remove("/r".into())], TIMEOUT).unwrap();
    check(&union, 2);
    union.change_branches(vec![BranchChange::Remove("/m".into())], TIMEOUT).unwrap();
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
    union.change_branches(vec![BranchChange::Remove("/r".into())], TIMEOUT).unwrap();
    for vnode in [&dir, &sub] {
        assert_eq!(vnode.lookup(&CX, name("f")).map(drop), Err(Errno::STALE));
        assert_eq!(vnode.getattr(&CX).map(drop), Err(Errno::STALE));
        assert_eq!(vnode.mkdir(&CX, name("x"), 0o755).map(drop), Err(Errno::STALE));
    }
    union.change_branches(vec![insert(1, branch(&right, "/r", Mode::ReadOnly))], TIMEOUT).unwrap();
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
    union.change_branches(vec![insert(1, branch(&layer, "/m", Mode::ReadOnly))], TIMEOUT).unwrap();
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
    union.change_branches(changes, TIMEOUT).unwrap();
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
            TIMEOUT,
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
    let refused = |changes| union.change_branches(changes, TIMEOUT).unwrap_err();
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
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite)), remove("/l")], TIMEOUT).unwrap();
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
        let _ = sender.send(union.change_branches(vec![insert(0, layer)], Duration::from_millis(50)));
    });
    union.root().unlink(&CX, name("f")).unwrap();
    assert_eq!(receiver.try_recv().unwrap(), Err(BuildError::Busy));
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))], TIMEOUT).unwrap();
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
                let done = changing.change_branches(changes, TIMEOUT);
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
    let scratch = std::env::temp_dir().join(format!("unionfs-changes-{}", std::process::id()));
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
    union.change_branches(changes, TIMEOUT).unwrap();
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
    std::fs::remove_dir_all(scratch).unwrap();
}

#[test]
fn a_read_only_union_can_become_writable_and_read_only_again() {
    let (new, left) = (branch_layer(&[]), branch_layer(&[("d/f", b"old")]));
    let union = union(vec![branch(&left, "/l", Mode::ReadOnly)]);
    let file = find(&*union, "d/f").unwrap();
    let number = file.id();
    let open = file.open(&CX, OpenFlags::RDONLY).unwrap();
    assert_eq!(union.root().mkdir(&CX, name("x"), 0o755).map(drop), Err(Errno::ROFS));
    union.change_branches(vec![insert(0, branch(&new, "/n", Mode::ReadWrite))], TIMEOUT).unwrap();
    assert!(!union.properties().read_only);
    file.open(&CX, OpenFlags::WRONLY).unwrap().write(&CX, b"new", 0).unwrap();
    assert_eq!(read(&*open), b"new");
    assert_eq!(find(&*union, "d/f").unwrap().id(), number);
    assert_eq!(find(&*new, "d").unwrap().kind(), Kind::Directory);
    union.change_branches(vec![BranchChange::Mode("/n".into(), Mode::ReadOnly)], TIMEOUT).unwrap();
    assert!(union.properties().read_only);
    assert_eq!(file.open(&CX, OpenFlags::WRONLY).map(drop), Err(Errno::ROFS));
    assert_eq!(content(&file), b"new");
    assert!(find(&*new, ".wh..wh.work").is_none());
}
