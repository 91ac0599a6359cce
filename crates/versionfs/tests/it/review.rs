//! Races between data and names, lost records, failed steps, and who gains what by them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use crate::common::store::{After, read, read_all};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Op, Plan};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Rng;
use versionfs::{Options, Storage, VersionFs};
use versionset::{Index, LINKS, Letter, STORE};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, SetAttr, Vnode, XattrFlags};

fn cx() -> Cx<'static> {
    Cx::internal(0, 0)
}

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

fn get(dir: &Arc<dyn Vnode>, entry: &[u8]) -> Arc<dyn Vnode> {
    dir.lookup(&cx(), name(entry)).unwrap().unwrap().vnode
}

fn write(fs: &Arc<VersionFs>, file: &[u8], data: &[u8]) {
    let opened = match fs.root().lookup(&cx(), name(file)).unwrap() {
        Some(entry) => entry.vnode.open(&cx(), OpenFlags::RDWR.with_trunc()).unwrap(),
        None => fs.root().create(&cx(), name(file), 0o644, OpenFlags::RDWR).unwrap().1,
    };
    assert_eq!(opened.write(&cx(), data, 0).unwrap(), data.len());
}

fn index(mem: &Arc<MemFs>, file: &[u8]) -> Index {
    let store = get(&mem.root(), STORE);
    Index::parse(&read(&get(&store, &versionset::index_name(file)))).0
}

fn command(dir: &Arc<dyn Vnode>, command: &str, input: &str) -> vnode::Result<String> {
    dir.control(&cx(), command, input.as_bytes()).map(|reply| String::from_utf8(reply).unwrap())
}

/// Reads a version as users do.
fn version(dir: &Arc<dyn Vnode>, file: &str, number: u64) -> Vec<u8> {
    let token = command(dir, "versionfs.open", &format!("{file} {number}")).unwrap();
    read(&get(dir, token.trim().as_bytes()))
}

fn fresh(data: &[u8]) -> (Arc<MemFs>, Arc<VersionFs>) {
    let mem = MemFs::new();
    let fs = VersionFs::new(mem.clone(), Options::default());
    write(&fs, b"a", data);
    (mem, fs)
}

fn lower(mem: &Arc<MemFs>) -> Arc<dyn Layer> {
    mem.clone()
}

/// Runs `during` on another thread after the operation of the lower file system with the number
/// `at`, and lets it proceed for a moment. Returns whether there was such an operation.
fn with_interruption(
    faults: &Faults,
    at: u64,
    during: impl FnOnce() + Send + 'static,
    operation: impl FnOnce(),
) -> bool {
    let (sender, receiver) = std::sync::mpsc::channel();
    faults.call_after(at, move || {
        let (done, is_done) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            during();
            let _ = done.send(());
        });
        // It may wait for a lock that the operation has.
        let _ = is_done.recv_timeout(Duration::from_millis(30));
        sender.send(thread).unwrap();
    });
    operation();
    let happened = !faults.forget_call();
    if happened {
        receiver.recv().unwrap().join().unwrap();
    }
    happened
}

/// A first write while the file is renamed: its version is before or behind the rename.
#[test]
fn a_write_during_a_rename_makes_a_version_of_the_name_that_the_file_has() {
    for exchanges in [false, true] {
        for at in 1.. {
            let faults = Faults::new();
            let mem = MemFs::with(MemOptions::default(), &faults);
            let fs = VersionFs::new(mem.clone(), Options::default());
            write(&fs, b"a", &[b'0'; 9000]);
            if exchanges {
                write(&fs, b"b", b"the other");
            }
            let file = get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap();
            let writer = Arc::clone(&file);
            let during = move || assert_eq!(writer.write(&cx(), b"1", 5000), Ok(1));
            let flags = RenameFlags { exchange: exchanges, ..RenameFlags::default() };
            let happened = with_interruption(&faults, at, during, || {
                fs.root().rename(&cx(), name(b"a"), &fs.root(), name(b"b"), flags).unwrap();
            });
            drop(file);
            if !happened {
                assert!(at > 5);
                break;
            }
            let newest = index(&mem, b"a").newest().cloned().unwrap();
            assert!(newest.cause.ends_head(), "{at}: {newest:?}");
            read_all(&lower(&mem), After::Success).unwrap_or_else(|error| panic!("{at}: {error}"));
        }
    }
}

/// A first write while the name is removed: it makes a version of this name before that, or none.
#[test]
fn a_write_during_an_unlink_makes_no_version_of_a_name_that_is_gone() {
    for at in 1.. {
        let faults = Faults::new();
        let mem = MemFs::with(MemOptions::default(), &faults);
        let fs = VersionFs::new(mem.clone(), Options::default());
        write(&fs, b"a", &[b'0'; 9000]);
        let file = get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap();
        let writer = Arc::clone(&file);
        let during = move || assert_eq!(writer.write(&cx(), b"1", 5000), Ok(1));
        let happened = with_interruption(&faults, at, during, || fs.root().unlink(&cx(), name(b"a")).unwrap());
        drop(file);
        if !happened {
            assert!(at > 5);
            break;
        }
        assert!(index(&mem, b"a").newest().unwrap().cause.ends_head(), "{at}");
        read_all(&lower(&mem), After::Success).unwrap_or_else(|error| panic!("{at}: {error}"));
    }
}

/// The kernel looks a name up while it is removed, and the result comes late.
#[test]
fn a_late_lookup_does_not_tie_a_removed_file_to_the_name() {
    let faults = Faults::new();
    let mem = MemFs::with(MemOptions::default(), &faults);
    let fs = VersionFs::new(mem.clone(), Options::default());
    write(&fs, b"a", &[b'0'; 9000]);
    let file = get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap();
    let (root, remover) = (fs.root(), fs.root());
    faults.call_after(1, move || remover.unlink(&cx(), name(b"a")).unwrap());
    drop(root.lookup(&cx(), name(b"a")).unwrap());
    assert!(!faults.forget_call());
    write(&fs, b"a", &[b'n'; 9000]);
    write(&fs, b"a", &[b'm'; 9000]);
    // The newest version of the new file takes from it what is not saved.
    get(&fs.root(), b"a").setattr(&cx(), &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None).unwrap();
    let count = index(&mem, b"a").versions.len();
    file.write(&cx(), b"2", 1).unwrap();
    file.write(&cx(), b"3", 4999).unwrap();
    drop(file);
    get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap().write(&cx(), b"x", 1).unwrap();
    assert_eq!(index(&mem, b"a").versions.len(), count + 1);
    read_all(&lower(&mem), After::Success).unwrap();
    assert!(version(&fs.root(), "a", count as u64) == [b'm'; 9000]);
}

/// A program creates a file for writing only, another one opens it, the first overwrites bytes.
#[test]
fn a_file_that_was_created_for_writing_only_can_be_overwritten() {
    let fs = VersionFs::new(MemFs::new(), Options::default());
    let first = fs.root().create(&cx(), name(b"a"), 0o644, OpenFlags::WRONLY).unwrap().1;
    first.write(&cx(), b"hello", 0).unwrap();
    let second = get(&fs.root(), b"a").open(&cx(), OpenFlags::WRONLY).unwrap();
    assert_eq!(first.write(&cx(), b"J", 0), Ok(1));
    assert_eq!(second.write(&cx(), b"y", 4), Ok(1));
    assert_eq!(read(&get(&fs.root(), b"a")), b"Jelly"[..4].iter().chain(b"y").copied().collect::<Vec<_>>());
    assert_eq!(first.read(&cx(), &mut [0], 0), Err(Errno::BADF));
}

/// chmod(2) clears the set-group-ID bit for an owner who is not in the group.
#[test]
fn chmod_of_a_set_gives_nobody_the_rights_of_a_group() {
    let (mem, fs) = fresh(b"1");
    let owner = SetAttr { uid: Some(1000), gid: Some(50), ..SetAttr::default() };
    get(&mem.root(), b"a").setattr(&cx(), &owner, None).unwrap();
    let cancelled = AtomicBool::new(false);
    let user = Cx::new(1000, 1000, 0, 0, true, &cancelled);
    fs.root().control(&user, "versionfs.chmod", b"a 2755").unwrap();
    assert_eq!(get(&mem.root(), b"a").getattr(&cx()).unwrap().perm(), 0o755);
    fs.root().control(&cx(), "versionfs.chmod", b"a 2755").unwrap();
    assert_eq!(get(&mem.root(), b"a").getattr(&cx()).unwrap().perm(), 0o2755);
}

/// An open descriptor of a removed FIFO or symbolic link can be changed; nothing opens the object.
#[test]
fn attributes_of_removed_special_files_can_be_changed() {
    let fs = VersionFs::new(MemFs::new(), Options::default());
    let fifo = fs.root().mknod(&cx(), name(b"p"), Kind::Fifo.mode_bits() | 0o600, 0).unwrap().vnode;
    fs.root().unlink(&cx(), name(b"p")).unwrap();
    let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    assert_eq!(fifo.setattr(&cx(), &set, None).map(|attr| attr.perm()), Ok(0o640));
}

/// A power failure can lose the end of the index while a removed file is in the store.
#[test]
fn a_version_whose_record_is_lost_is_found_again() {
    let (mem, fs) = fresh(b"first");
    write(&fs, b"a", b"second");
    let store = get(&mem.root(), STORE);
    let before = read(&get(&store, b"a;i"));
    fs.root().unlink(&cx(), name(b"a")).unwrap();
    drop(fs);
    let log = get(&store, b"a;i");
    log.setattr(&cx(), &SetAttr { size: Some(before.len() as u64), ..SetAttr::default() }, None).unwrap();

    let fs = VersionFs::new(mem.clone(), Options::default());
    assert_eq!(version(&fs.root(), "a", 2), b"second");
    write(&fs, b"a", b"third");
    write(&fs, b"a", b"fourth");
    assert_eq!(version(&fs.root(), "a", 1), b"first");
    assert_eq!(version(&fs.root(), "a", 2), b"second");
    assert_eq!(version(&fs.root(), "a", 3), b"third");
}

/// The record of a version did not fit. The set can be used although nothing can be created.
#[test]
fn a_full_file_system_leaves_sets_usable() {
    for (at, has_set) in [(1, false), (1, true), (2, true)] {
        let faults = Faults::new();
        let mem = MemFs::with(MemOptions::default(), &faults);
        let fs = VersionFs::new(mem.clone(), Options::default());
        write(&fs, b"a", b"0");
        if has_set {
            write(&fs, b"a", b"1");
        }
        let file = get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap();
        faults.arm(Plan { count: Count::Only(Op::Write), at, fault: Fault::Error(Errno::NOSPC) });
        assert_eq!(file.write(&cx(), b"2", 0), Err(Errno::NOSPC));
        faults.arm(Plan { count: Count::Only(Op::Create), at: 1, fault: Fault::Errors(Errno::NOSPC) });
        let list = command(&fs.root(), "versionfs.list", "a").unwrap();
        assert_eq!(list.lines().count(), 1 + usize::from(has_set), "{list}");
        drop(VersionFs::new(mem.clone(), Options::default()));
        command(&VersionFs::new(mem.clone(), Options::default()).root(), "versionfs.list", "a").unwrap();
    }
}

/// The bytes of a version file say what the version contained: who was denied that reads neither.
#[test]
fn raw_versions_have_the_acl_of_the_version() {
    let (_, fs) = fresh(b"secret");
    // user::rw- user:1000:r-- group::--- mask::r-- other::---
    let mut acl = vec![2, 0, 0, 0];
    for (tag, perm, id) in
        [(1_u16, 6_u16, u32::MAX), (2, 4, 1000), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes().into_iter().chain(perm.to_le_bytes()).chain(id.to_le_bytes()));
    }
    let a = get(&fs.root(), b"a");
    a.setxattr(&cx(), b"system.posix_acl_access", &acl, XattrFlags::default()).unwrap();
    a.open(&cx(), OpenFlags::RDWR).unwrap().write(&cx(), b"S", 0).unwrap();
    let token = command(&fs.root(), "versionfs.open", "a 2 raw").unwrap();
    let raw = get(&fs.root(), token.trim().as_bytes());
    let found = vnode::read_value(|out| raw.getxattr(&cx(), b"system.posix_acl_access", out));
    assert_eq!(found, Ok(acl));
}

/// Makes `a` a file with a version in the set of its inode, and one name left.
fn formerly_linked() -> (Arc<MemFs>, Arc<VersionFs>) {
    let (mem, fs) = fresh(&[b'0'; 9000]);
    let a = get(&fs.root(), b"a");
    fs.root().link(&cx(), name(b"c"), &a).unwrap();
    a.open(&cx(), OpenFlags::RDWR).unwrap().write(&cx(), b"1", 0).unwrap();
    fs.root().unlink(&cx(), name(b"c")).unwrap();
    (mem, fs)
}

/// link(2) failed. The name that did not come to be later belongs to another file, whose history is
/// removed.
#[test]
fn a_failed_link_does_not_tie_a_name_to_the_file() {
    for at in 1.. {
        let (mem, fs) = formerly_linked();
        drop(fs);
        let faults = Faults::new();
        let mem = mem.fork(&faults);
        let fs = VersionFs::new(mem.clone(), Options::default());
        let a = get(&fs.root(), b"a");
        faults.arm(Plan { count: Count::All, at, fault: Fault::Error(Errno::NOSPC) });
        let linked = fs.root().link(&cx(), name(b"b"), &a);
        let fired = faults.fired();
        faults.disarm();
        if !fired {
            assert!(at > 5 && linked.is_ok());
            break;
        }
        if linked.is_ok() {
            continue;
        }
        write(&fs, b"b", b"other");
        write(&fs, b"b", b"other still");
        let list = command(&fs.root(), "versionfs.list", "b").unwrap();
        assert_eq!(list.lines().count(), 2, "{at}: {list}");
        command(&fs.root(), "versionfs.unlink", "b").unwrap();
        let links = get(&get(&mem.root(), STORE), LINKS);
        let (kept, _) = Index::parse(&read(&get(&links, format!("{:x}.0;i", a.id()).as_bytes())));
        // Of the write, and of the removal of the other name.
        assert_eq!(kept.versions.len(), 2, "{at}");
        assert!(version(&fs.root(), "a", 1) == [b'0'; 9000], "{at}");
    }
}

/// A kill after the rename and before its record: the next mount finds the set of the inode.
#[test]
fn a_rename_that_was_interrupted_does_not_orphan_the_set_of_the_inode() {
    let (mem, fs) = formerly_linked();
    drop(fs);
    mem.root().rename(&cx(), name(b"a"), &mem.root(), name(b"b"), RenameFlags::default()).unwrap();
    let fs = VersionFs::new(mem.clone(), Options::default());
    get(&fs.root(), b"b").open(&cx(), OpenFlags::RDWR).unwrap().write(&cx(), b"2", 5000).unwrap();
    read_all(&lower(&mem), After::Kill).unwrap();
    let links = get(&get(&mem.root(), STORE), LINKS);
    let stem = format!("{:x}.0", get(&fs.root(), b"b").id());
    let (index, _) = Index::parse(&read(&get(&links, format!("{stem};i").as_bytes())));
    // Of two writes, and of the removal of the other name.
    assert_eq!(index.versions.len(), 3);
}

/// A set can't be moved below itself: nothing moves.
#[test]
fn a_move_of_a_set_that_fails_moves_nothing() {
    let mem = MemFs::new();
    let fs = VersionFs::new(mem.clone(), Options::default());
    let root = fs.root();
    root.mkdir(&cx(), name(b"d"), 0o755).unwrap();
    root.rmdir(&cx(), name(b"d")).unwrap();
    let dir = root.mkdir(&cx(), name(b"d"), 0o755).unwrap().vnode;
    let sub = dir.mkdir(&cx(), name(b"sub"), 0o755).unwrap().vnode;
    assert!(command(&root, "versionfs.rename", &format!("d {} x", sub.id())).is_err());
    assert_eq!(index(&mem, b"d").versions.len(), 1);
    assert!(get(&mem.root(), STORE).lookup(&cx(), name(b"d;d1")).unwrap().is_some());
    assert_eq!(command(&sub, "versionfs.list", "x"), Err(Errno::NOENT));
    command(&root, "versionfs.rename", &format!("d {} y", root.id())).unwrap();
    assert_eq!(index(&mem, b"y").versions.len(), 1);
}

/// An editor saves by renaming a new file over the old one, and old versions are discarded.
#[test]
fn an_index_does_not_grow_by_versions_that_are_gone() {
    let (mem, fs) = fresh(b"0");
    for step in 0..600_u32 {
        write(&fs, b"new", step.to_string().as_bytes());
        fs.root().rename(&cx(), name(b"new"), &fs.root(), name(b"a"), RenameFlags::default()).unwrap();
        let oldest = *index(&mem, b"a").versions.keys().next().unwrap();
        if step > 3 {
            command(&fs.root(), "versionfs.discard", &format!("a {oldest}")).unwrap();
        }
    }
    let size = get(&get(&mem.root(), STORE), b"a;i").getattr(&cx()).unwrap().size;
    assert!(size < 20_000, "{size}");
    assert_eq!(index(&mem, b"a").versions.len(), 4);
}

/// Several threads change two names of one file, rename, remove and create beside them. Changes of
/// names are made one at a time: the kernel locks the directory.
#[test]
fn threads_leave_only_versions_that_can_be_read() {
    for seed in 1..12 {
        let (mem, fs) = fresh(&[b'0'; 9000]);
        fs.root().link(&cx(), name(b"b"), &get(&fs.root(), b"a")).unwrap();
        let names = Mutex::new(());
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (fs, locked) = (&fs, &names);
                scope.spawn(move || {
                    let mut rng = Rng::xorshift(seed * 10 + thread);
                    for _ in 0..150 {
                        let names = [&b"a"[..], b"b", b"c", b"d"];
                        let (one, other) = (rng.pick(&names), rng.pick(&names));
                        step(fs, locked, &mut rng, one, other);
                    }
                });
            }
        });
        read_all(&lower(&mem), After::Success).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

fn step(fs: &Arc<VersionFs>, names: &Mutex<()>, rng: &mut Rng, one: &[u8], other: &[u8]) {
    let root = fs.root();
    let what = rng.below(10);
    let _names = (what < 5).then(|| names.lock().unwrap());
    // Any of these may fail because another thread was faster.
    match what {
        0 => {
            let _ = root.unlink(&cx(), name(one));
        }
        1 => {
            let _ = root.rename(&cx(), name(one), &root, name(other), RenameFlags::default());
        }
        2 => {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            let _ = root.rename(&cx(), name(one), &root, name(other), flags);
        }
        3 => {
            if let Ok(Some(entry)) = root.lookup(&cx(), name(one)) {
                drop(root.link(&cx(), name(other), &entry.vnode));
            }
        }
        4 => drop(root.create(&cx(), name(one), 0o644, OpenFlags::RDWR)),
        _ => {
            let Ok(Some(entry)) = root.lookup(&cx(), name(one)) else { return };
            let flags = if rng.chance(30) { OpenFlags::RDWR.with_trunc() } else { OpenFlags::RDWR };
            let Ok(file) = entry.vnode.open(&cx(), flags) else { return };
            for _ in 0..1 + rng.below(3) {
                let data = vec![rng.below(250); 1 + rng.below(6000)];
                let _ = file.write(&cx(), &data, rng.below(9000) as u64);
            }
        }
    }
}

/// One of two names of a file is exchanged with another file: each name knows where its file came
/// from.
#[test]
fn an_exchange_with_a_linked_file_records_both_births() {
    let (mem, fs) = fresh(b"linked");
    let root = fs.root();
    root.link(&cx(), name(b"b"), &get(&root, b"a")).unwrap();
    write(&fs, b"plain", b"plain");
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    root.rename(&cx(), name(b"a"), &root, name(b"plain"), flags).unwrap();
    let from = |of: &[u8]| index(&mem, of).birth.and_then(|birth| birth.from).map(|place| place.name.to_vec());
    assert_eq!((from(b"a"), from(b"plain")), (Some(b"plain".to_vec()), Some(b"a".to_vec())));
}

/// Returns the object that a token refers to.
fn opened(fs: &Arc<VersionFs>, input: &str) -> Arc<dyn Vnode> {
    let token = command(&fs.root(), "versionfs.open", input).unwrap();
    get(&fs.root(), token.trim().as_bytes())
}

/// The kernel checks permissions by the object that it has, and not by a new one.
#[test]
fn past_objects_in_use_have_the_owner_and_mode_of_now() {
    let (_, fs) = fresh(b"secret");
    write(&fs, b"a", b"public");
    fs.root().symlink(&cx(), name(b"l"), b"target").unwrap();
    fs.root().unlink(&cx(), name(b"l")).unwrap();
    let (plain, raw, link) = (opened(&fs, "a 1"), opened(&fs, "a 1 raw"), opened(&fs, "l 1"));
    assert_eq!(plain.getattr(&cx()).unwrap().perm(), 0o644);
    command(&fs.root(), "versionfs.chmod", "a 600").unwrap();
    for file in ["a", "l"] {
        command(&fs.root(), "versionfs.chown", &format!("{file} 7 8")).unwrap();
    }
    for (object, perm) in [(plain, 0o600), (raw, 0o600), (link, 0o777)] {
        let attr = object.getattr(&cx()).unwrap();
        assert_eq!((attr.perm(), attr.uid, attr.gid), (perm, 7, 8));
    }
}

/// An open version does not show what gets its name and number after its removal.
#[test]
fn a_past_object_in_use_does_not_become_another_version() {
    let (_, fs) = fresh(b"mine");
    write(&fs, b"a", b"more");
    let (plain, raw) = (opened(&fs, "a 1"), opened(&fs, "a 1 raw"));
    let open = plain.open(&cx(), OpenFlags::RDONLY).unwrap();
    command(&fs.root(), "versionfs.unlink", "a").unwrap();
    write(&fs, b"a", b"your");
    write(&fs, b"a", b"last");
    let (new_plain, new_raw) = (opened(&fs, "a 1"), opened(&fs, "a 1 raw"));
    assert_ne!((plain.id(), raw.id()), (new_plain.id(), new_raw.id()));
    assert_eq!(read(&new_plain), b"your");
    assert_eq!(open.read(&cx(), &mut [0; 4], 0), Err(Errno::STALE));
    drop(open);
    assert_eq!(plain.open(&cx(), OpenFlags::RDONLY).map(drop), Err(Errno::STALE));
    assert_eq!(plain.listxattr(&cx(), &mut []), Err(Errno::STALE));
    command(&fs.root(), "versionfs.chmod", "a 666").unwrap();
    assert_eq!(plain.getattr(&cx()).unwrap().perm(), 0o644);
}

#[test]
fn versions_of_all_formats_have_their_extended_attributes() {
    let storages = [
        (Storage::Full, "f"),
        (Storage::Sparse, "s"),
        (Storage::Compress, "c"),
        (Storage::SparseCompress, "z"),
        (Storage::Delta, "x"),
        (Storage::Text, "t"),
        (Storage::Blocks, "b"),
    ];
    for (storage, letter) in storages {
        let fs = VersionFs::new(MemFs::new(), Options { storage, ..Options::default() });
        write(&fs, b"a", &[b'1'; 20_000]);
        get(&fs.root(), b"a").setxattr(&cx(), b"user.k", b"old", XattrFlags::default()).unwrap();
        write(&fs, b"a", &[b'2'; 20_000]);
        get(&fs.root(), b"a").setxattr(&cx(), b"user.k", b"new", XattrFlags::default()).unwrap();
        for _ in 0..2 {
            let old = opened(&fs, "a 2");
            let value = vnode::read_value(|out| old.getxattr(&cx(), b"user.k", out));
            assert_eq!(value, Ok(b"old".to_vec()), "{storage:?}");
            command(&fs.root(), "versionfs.convert", "").unwrap();
        }
        let list = command(&fs.root(), "versionfs.list", "a").unwrap();
        assert_eq!(list.lines().nth(2).unwrap().split(' ').nth(1), Some(letter), "{list}");
        // It becomes the newest one, which is in a format of its own.
        command(&fs.root(), "versionfs.discard", "a 3").unwrap();
        let (old, modified) = (opened(&fs, "a 2"), list.lines().nth(2).unwrap().split(' ').nth(8));
        let value = vnode::read_value(|out| old.getxattr(&cx(), b"user.k", out));
        let now = command(&fs.root(), "versionfs.list", "a").unwrap();
        assert_eq!(value, Ok(b"old".to_vec()), "{storage:?}: {now}");
        assert_eq!(now.lines().nth(2).unwrap().split(' ').nth(8), modified, "{storage:?}");
    }
}

/// Names before a rename that is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Absent,
    Replaced,
    Exchanged,
}

/// What happens to the new name after an interrupted rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sequel {
    Overwritten,
    ReplacedAgain,
    Removed,
}

/// Interrupts a rename of `a` to `b`, and mounts again. Returns whether the rename was done without
/// a record of where the file came from.
fn interrupted_rename(plan: Plan, target: Target, sequel: Sequel) -> bool {
    let faults = Faults::new();
    let mem = MemFs::with(MemOptions::default(), &faults);
    let fs = VersionFs::new(mem.clone(), Options::default());
    write(&fs, b"a", b"moved");
    if target != Target::Absent {
        write(&fs, b"b", b"victim");
    }
    let object = get(&mem.root(), b"a").id();
    faults.arm(plan);
    let flags = RenameFlags { exchange: target == Target::Exchanged, ..RenameFlags::default() };
    let result = fs.root().rename(&cx(), name(b"a"), &fs.root(), name(b"b"), flags);
    drop(fs);
    faults.reset();
    let fs = VersionFs::new(mem.clone(), Options::default());
    let found = mem.root().lookup(&cx(), name(b"b")).unwrap();
    let is_moved = found.is_some_and(|entry| entry.vnode.id() == object);
    assert!(is_moved || result.is_err());
    if !is_moved {
        return false;
    }
    let store = get(&mem.root(), STORE);
    let has_index = store.lookup(&cx(), name(b"b;i")).unwrap().is_some();
    let lacks_birth = !has_index || index(&mem, b"b").birth.is_none();
    let check = |when| {
        let case = format!("{plan:?} {target:?} {sequel:?} {when}");
        assert_eq!(version(&fs.root(), "a", 1), b"moved", "{case}");
        if target != Target::Absent {
            assert_eq!(version(&fs.root(), "b", 1), b"victim", "{case}");
        }
    };
    check("at first");
    match sequel {
        Sequel::Overwritten => write(&fs, b"b", b"next"),
        Sequel::ReplacedAgain => {
            write(&fs, b"x", b"next");
            fs.root().rename(&cx(), name(b"x"), &fs.root(), name(b"b"), RenameFlags::default()).unwrap();
        }
        Sequel::Removed => fs.root().unlink(&cx(), name(b"b")).unwrap(),
    }
    check("then");
    write(&fs, b"b", b"last");
    check("at last");
    lacks_birth
}

/// A file of the past that was found while it was the present one.
#[test]
fn a_past_file_in_use_outlives_renames() {
    let (_, fs) = fresh(b"first");
    let dir = fs.root().mkdir(&cx(), name(b"d"), 0o755).unwrap().vnode;
    let now = (Options::default().clock)();
    let token = command(&fs.root(), "versionfs.at", &format!("{}.{:09}", now.sec, now.nsec)).unwrap();
    let past = get(&get(&fs.root(), token.trim().as_bytes()), b"a");
    assert_eq!(read(&past), b"first");
    fs.root().rename(&cx(), name(b"a"), &dir, name(b"b"), RenameFlags::default()).unwrap();
    assert_eq!(read(&past), b"first");
    dir.rename(&cx(), name(b"b"), &fs.root(), name(b"c"), RenameFlags::default()).unwrap();
    assert_eq!(read(&past), b"first");
    write(&fs, b"c", b"second");
    write(&fs, b"a", b"another");
    assert_eq!(read(&past), b"first");
    fs.root().unlink(&cx(), name(b"c")).unwrap();
    assert_eq!(read(&past), b"first");
}

/// A kill or a full file system interrupts a rename at any step. The versions of both names show
/// what the names had, whatever happens to the file later.
#[test]
fn an_interrupted_rename_confuses_no_versions() {
    let crashes = (1..40).map(|at| Plan { count: Count::Changes, at, fault: Fault::Crash });
    let full = (1..10).map(|at| Plan { count: Count::Only(Op::Write), at, fault: Fault::Error(Errno::NOSPC) });
    let mut without_birth = 0;
    for plan in crashes.chain(full) {
        for target in [Target::Absent, Target::Replaced, Target::Exchanged] {
            for sequel in [Sequel::Overwritten, Sequel::ReplacedAgain, Sequel::Removed] {
                without_birth += u32::from(interrupted_rename(plan, target, sequel));
            }
        }
    }
    assert!(without_birth >= 18, "{without_birth}");
}

/// `cp 'a;1' a` copies by copy_file_range. The bytes of the version come from the head.
#[test]
fn a_version_is_copied_over_its_own_head() {
    let (first, second) = ([b"1".repeat(10_000), b"same".repeat(60_000)].concat(), b"2".repeat(10_000));
    let (_mem, fs) = fresh(&first);
    get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap().write(&cx(), &second, 0).unwrap();
    let source = opened(&fs, "a 1").open(&cx(), OpenFlags::RDONLY).unwrap();
    let head = get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR.with_trunc()).unwrap();

    let (sender, receiver) = std::sync::mpsc::channel();
    let size = first.len() as u64;
    std::thread::spawn(move || {
        let mut done = 0;
        while done < size {
            match head.copy_from(&cx(), done, &*source, done, size).unwrap() {
                0 => break,
                copied => done += copied,
            }
        }
        sender.send((done, head.reflink_from(&cx(), &*source))).unwrap();
    });
    let (copied, reflinked) = receiver.recv_timeout(Duration::from_secs(20)).expect("the copy waits for itself");
    assert_eq!((copied, reflinked), (size, Err(Errno::OPNOTSUPP)));
    assert!(read(&get(&fs.root(), b"a")) == first && version(&fs.root(), "a", 1) == first);
    let changed = version(&fs.root(), "a", 2);
    assert!(changed[..10_000] == second && changed[10_000..] == first[10_000..]);
}

/// The size of the buffers that the layer proposes to programs is the same however it is asked.
#[test]
fn every_answer_proposes_large_buffers() {
    let (mem, fs) = fresh(b"1");
    let root = fs.root();
    let below = mem.root().getattr(&cx()).unwrap().blksize;
    assert_eq!(root.getattr(&cx()).unwrap().blksize, below);
    let size = get(&root, b"a").getattr(&cx()).unwrap().blksize;
    assert!(size >= 64 * 1024, "{size}");
    let (created, _) = root.create(&cx(), name(b"b"), 0o644, OpenFlags::WRONLY).unwrap();
    let (nameless, _) = root.tmpfile(&cx(), 0o644, OpenFlags::RDWR).unwrap();
    let linked = root.link(&cx(), name(b"c"), &get(&root, b"a")).unwrap();
    let made = root.mknod(&cx(), name(b"d"), 0o100_644, 0).unwrap();
    let found = root.lookup(&cx(), name(b"a")).unwrap().unwrap();
    let changed = |set| get(&root, b"a").setattr(&cx(), &set, None).unwrap().blksize;
    let answers = [
        created.attr.blksize,
        nameless.attr.blksize,
        linked.attr.blksize,
        made.attr.blksize,
        found.attr.blksize,
        changed(SetAttr { mode: Some(0o600), ..SetAttr::default() }),
        changed(SetAttr { size: Some(0), ..SetAttr::default() }),
        changed(SetAttr::default()),
    ];
    assert_eq!(answers, [size; 8]);
    let dir = root.mkdir(&cx(), name(b"e"), 0o755).unwrap();
    let link = root.symlink(&cx(), name(b"f"), b"a").unwrap();
    assert_eq!([dir.attr.blksize, link.attr.blksize], [below; 2]);
}

/// A version before an append takes no bytes from the file. Whatever is overwritten later, it keeps
/// them; and it is converted, unlike one before a change of attributes.
#[test]
fn versions_before_appends_contain_no_blocks() {
    for size in [1, 4095, 4096, 5000, 8192] {
        for storage in [Storage::Sparse, Storage::Compress] {
            let (mem, old) = (MemFs::new(), vec![b'a'; size]);
            let fs = VersionFs::new(mem.clone(), Options { storage, ..Options::default() });
            write(&fs, b"a", &old);
            let append = |data: &[u8]| {
                let file = get(&fs.root(), b"a").open(&cx(), OpenFlags(0o2001)).unwrap();
                assert_eq!(file.write(&cx(), data, 0).unwrap(), data.len());
            };
            append(b"more");
            let stored = get(&get(&mem.root(), STORE), b"a;s1");
            let len = stored.getattr(&cx()).unwrap().size;
            let sparse = versionset::Sparse::reopen(&cx(), stored.open(&cx(), OpenFlags::RDONLY).unwrap(), len);
            assert!(sparse.unwrap().is_empty(), "{size}");
            append(b"and more");
            command(&fs.root(), "versionfs.convert", "").unwrap();
            let index = index(&mem, b"a");
            let letters: Vec<_> = index.versions.values().map(|version| version.letter).collect();
            let letter = |len| match storage {
                Storage::Sparse => Letter::Sparse,
                _ if len > 4096 => Letter::Compressed,
                _ => Letter::Full,
            };
            assert_eq!(letters, [letter(size), letter(size + 4)], "{size}");
            let overwritten = get(&fs.root(), b"a").open(&cx(), OpenFlags::RDWR).unwrap();
            overwritten.write(&cx(), &vec![b'b'; size + 12], 0).unwrap();
            drop(overwritten);
            let next = [&*old, b"more"].concat();
            assert!(version(&fs.root(), "a", 1) == old && version(&fs.root(), "a", 2) == next, "{size}");
            assert!(version(&fs.root(), "a", 3) == [&*next, b"and more"].concat(), "{size}");
        }
    }
}

/// A program renames a file that it has open, and writes on. The former name shows what the file
/// was until then.
#[test]
fn what_is_written_after_a_rename_is_no_version_of_the_former_name() {
    for is_new in [true, false] {
        let fs = VersionFs::new(MemFs::new(), Options::default());
        if !is_new {
            write(&fs, b"f", b"the oldest");
        }
        let root = fs.root();
        let file = match is_new {
            true => root.create(&cx(), name(b"f"), 0o644, OpenFlags::RDWR).unwrap().1,
            false => get(&root, b"f").open(&cx(), OpenFlags::RDWR).unwrap(),
        };
        file.write(&cx(), b"first half", 0).unwrap();
        root.rename(&cx(), name(b"f"), &root, name(b"g"), RenameFlags::default()).unwrap();
        file.write(&cx(), b"SECOND", 0).unwrap();
        file.write(&cx(), b"THIRD", 3).unwrap();
        drop(file);
        let list = command(&root, "versionfs.list", "f").unwrap();
        let newest = list.lines().rfind(|line| !line.starts_with("set")).unwrap();
        let number = newest.split(' ').next().unwrap();
        let token = command(&root, "versionfs.open", &format!("f {number}")).unwrap();
        let shown = read(&get(&root, token.trim_end().as_bytes()));
        assert_eq!(shown.escape_ascii().to_string(), "first half", "new: {is_new}\n{list}");
        assert_eq!(read(&get(&root, b"g")), b"SECTHIRDlf");
    }
}
