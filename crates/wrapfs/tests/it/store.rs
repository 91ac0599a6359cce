//! Layers with their own name store: each directory has encoding state, and long names have side
//! files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::memory;
use crate::common::store::{COPY, LEFTOVER, STATE, Store, encoded};
use conformance::fixture::{ROOT, name, names};
use memfs::{Count, Dump, Fault, Faults, MemFs, Op, Plan};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Cx, Errno, Kind, Layer, MAY_BLOCK, OpenFlags, RenameFlags, Result, SetAttr, Vnode, XattrFlags};
use wrapfs::Template;
use wrapfs::hooks::{LongName, NameStore, Role, StateFile};

/// Names of more than ten bytes are long.
fn stored(lower: Arc<dyn Layer>) -> Arc<dyn Layer> {
    Store::new(20).over(lower)
}

#[test]
fn name_store_layers_conform() {
    conformance::run_all(|| stored(MemFs::new()));
    // All names are long ones.
    conformance::run_all(|| Store::new(1).over(MemFs::new()));
    conformance::run_all(|| stored(stored(MemFs::new())));
    conformance::run_all(|| Store::new(20).copied().over(MemFs::new()));
}

#[test]
fn random_operations_see_no_difference() {
    for seed in 1..4 {
        conformance::random::compare(seed, 2000, &*stored(MemFs::new()), &*MemFs::new());
        conformance::random::compare(seed, 1000, &*Store::new(1).over(MemFs::new()), &*MemFs::new());
    }
}

fn find(dir: &Arc<dyn Vnode>, at: &str) -> Arc<dyn Vnode> {
    dir.lookup(&ROOT, name(at)).unwrap().unwrap().vnode
}

fn rename(from: &Arc<dyn Vnode>, old: &str, to: &Arc<dyn Vnode>, new: &str) -> Result<()> {
    from.rename(&ROOT, name(old), to, name(new), RenameFlags::default())
}

fn bytes(dir: &Arc<dyn Vnode>, at: &str) -> Vec<u8> {
    let mut bytes = vec![0; 500];
    let len = find(dir, at).open(&ROOT, OpenFlags::RDONLY).unwrap().read(&ROOT, &mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

fn overwrite(dir: &Arc<dyn Vnode>, at: &str, with: &[u8]) {
    let file = find(dir, at).open(&ROOT, OpenFlags::RDWR.with_trunc()).unwrap();
    file.write(&ROOT, with, 0).unwrap();
}

/// Returns the key of a directory's names.
fn key(dir: &Arc<dyn Vnode>) -> u8 {
    bytes(dir, STATE)[2]
}

#[test]
fn each_directory_keeps_its_own_state() {
    let below = MemFs::new();
    let layer = stored(below.clone());
    let root = layer.root();
    let [d, e] = ["d", "e"].map(|at| root.mkdir(&ROOT, name(at), 0o755).unwrap().vnode);
    for dir in [&d, &e] {
        dir.mkdir(&ROOT, name("sub"), 0o755).unwrap();
    }
    let lower = below.root();
    let root_key = key(&lower);
    let [lower_d, lower_e] = ["d", "e"].map(|at| find(&lower, &encoded(at.as_bytes(), root_key)));
    assert_ne!(key(&lower_d), key(&lower_e));
    assert_eq!(names(&lower_d), [encoded(b"sub", key(&lower_d)), STATE.to_owned()]);
    assert_eq!(find(&lower, STATE).getattr(&ROOT).unwrap().perm(), 0o444);
    // The state moves with its directory, and no name in it is re-encoded.
    let before = key(&lower_d);
    rename(&root, "d", &e, "moved").unwrap();
    assert_eq!(key(&lower_d), before);
    assert_eq!(names(&find(&e, "moved")), ["sub"]);
    // The state file cannot be seen, opened or created.
    assert_eq!((names(&root), names(&e)), (vec!["e".to_owned()], vec!["moved".into(), "sub".into()]));
    assert!(root.lookup(&ROOT, name(STATE)).unwrap().is_none());
    // A directory's attributes are the same at once and later.
    let made = root.mkdir(&ROOT, name("x"), 0o755).unwrap();
    assert_eq!(made.vnode.getattr(&ROOT), Ok(made.attr));
}

#[test]
fn an_empty_directory_is_removed_with_its_state() {
    let below = MemFs::new();
    let layer = stored(below.clone());
    let root = layer.root();
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    d.mkdir(&ROOT, name("with-a-long-name"), 0o755).unwrap();
    assert_eq!(root.rmdir(&ROOT, name("d")), Err(Errno::NOTEMPTY));
    assert_eq!(names(&d), ["with-a-long-name"]);
    d.rmdir(&ROOT, name("with-a-long-name")).unwrap();
    let lower_d = find(&below.root(), &encoded(b"d", key(&below.root())));
    assert_eq!(names(&lower_d), [STATE]);
    root.rmdir(&ROOT, name("d")).unwrap();
    assert_eq!(names(&below.root()), [STATE]);
    // While still in use, it has no entries, and none can be created.
    assert_eq!(names(&d), [""; 0]);
    assert!(d.lookup(&ROOT, name("x")).unwrap().is_none());
    assert_eq!(d.mkdir(&ROOT, name("x"), 0o755).map(drop), Err(Errno::NOENT));
    // Replaced by a rename, except with RENAME_NOREPLACE.
    let [a, b] = ["a", "b"].map(|at| root.mkdir(&ROOT, name(at), 0o755).unwrap().vnode);
    a.mkdir(&ROOT, name("in-a"), 0o755).unwrap();
    let keep = RenameFlags { no_replace: true, ..RenameFlags::default() };
    assert_eq!(root.rename(&ROOT, name("a"), &root, name("b"), keep), Err(Errno::EXIST));
    assert_eq!(rename(&root, "b", &root, "a"), Err(Errno::NOTEMPTY));
    assert_eq!((names(&root), names(&a), names(&b)), (vec!["a".into(), "b".into()], vec!["in-a".to_owned()], vec![]));
    rename(&root, "a", &root, "b").unwrap();
    assert_eq!((names(&root), names(&find(&root, "b"))), (vec!["b".to_owned()], vec!["in-a".to_owned()]));
}

#[test]
fn long_names_use_the_stores_side_files() {
    let below = MemFs::new();
    let root = stored(below.clone()).root();
    let long = "quite-a-long-name";
    let (file, _) = root.create(&ROOT, name(long), 0o644, OpenFlags::RDWR).unwrap();
    let lower = below.root();
    let side = names(&lower).into_iter().find(|at| at.ends_with(".name")).unwrap();
    assert_eq!(bytes(&lower, &side), encoded(long.as_bytes(), key(&lower)).into_bytes());
    assert_eq!(find(&lower, &side).getattr(&ROOT).unwrap().perm(), 0o400);
    assert_eq!(find(&lower, side.strip_suffix(".name").unwrap()).id(), file.vnode.id());
    // Each name of a file has its own side file, a different one in each directory.
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    d.link(&ROOT, name(long), &file.vnode).unwrap();
    let lower_d = find(&lower, &encoded(b"d", key(&lower)));
    assert_eq!(names(&lower_d).len(), 3);
    root.unlink(&ROOT, name(long)).unwrap();
    assert_eq!((names(&root), names(&d)), (vec!["d".to_owned()], vec![long.to_owned()]));
    assert_eq!(names(&lower).len(), 2);
    rename(&d, long, &root, "short").unwrap();
    assert_eq!((names(&root), names(&lower_d)), (vec!["d".into(), "short".to_owned()], vec![STATE.to_owned()]));
    // A FIFO in place of a side file is replaced.
    lower.mknod(&ROOT, name(&side), 0o010_644, 0).unwrap();
    root.create(&ROOT, name(long), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(bytes(&lower, &side), encoded(long.as_bytes(), key(&lower)).into_bytes());
}

/// A name stored as is that belongs under its hash would be listed but not found.
#[test]
fn a_misplaced_name_is_hidden() {
    let below = MemFs::new();
    let root = stored(below.clone()).root();
    root.mkdir(&ROOT, name("d"), 0o755).unwrap();
    let stray = encoded(b"quite-a-long-name", key(&below.root()));
    below.root().mkdir(&ROOT, name(&stray), 0o755).unwrap();
    below.root().mkdir(&ROOT, name("store.other"), 0o755).unwrap();
    assert_eq!(names(&root), ["d"]);
    assert!(root.lookup(&ROOT, name("quite-a-long-name")).unwrap().is_none());
    // The side file of another object does not name this one.
    root.mkdir(&ROOT, name("second-long-name"), 0o755).unwrap();
    root.mkdir(&ROOT, name("third-long-name-"), 0o755).unwrap();
    let sides: Vec<_> = names(&below.root()).into_iter().filter(|at| at.ends_with(".name")).collect();
    let second = bytes(&below.root(), &sides[0]);
    overwrite(&below.root(), &sides[1], &second);
    assert_eq!(names(&root).len(), 2);
}

#[test]
fn names_are_listed_with_their_directories() {
    let root = stored(MemFs::new()).root();
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    let (file, _) = d.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    root.link(&ROOT, name("quite-a-long-name"), &file.vnode).unwrap();
    let mut told = Vec::new();
    file.vnode
        .names(&ROOT, &mut |dir, name| {
            told.push((dir.id(), String::from_utf8(name.as_bytes().to_vec()).unwrap()));
            true
        })
        .unwrap();
    told.sort();
    let mut expected = vec![(root.id(), "quite-a-long-name".to_owned()), (d.id(), "f".to_owned())];
    expected.sort();
    assert_eq!(told, expected);
}

/// Numbers resolve to visible objects only, not to directory state or side files.
#[test]
fn objects_are_found_by_number() {
    let below = MemFs::new();
    let layer = stored(below.clone());
    let hidden: Vec<u64> = {
        let d = layer.root().mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
        d.mkdir(&ROOT, name("quite-a-long-name"), 0o755).unwrap();
        let lower_d = below.vnode(&ROOT, d.id()).unwrap();
        let own = names(&lower_d).into_iter().filter(|at| at == STATE || at.ends_with(".name"));
        own.map(|at| find(&lower_d, &at).id()).collect()
    };
    assert_eq!(hidden.len(), 2);
    let shown = conformance::handles::Handles::of(&*layer);
    assert_eq!(shown.count(), 2);
    // As a newly started server finds them.
    shown.check(&*stored(below.clone()));
    for number in hidden {
        assert_eq!(layer.vnode(&ROOT, number).map(drop), Err(Errno::STALE), "{number}");
    }
}

/// Out-of-band changes are noticed at once by operations that create entries, and within a second
/// by others.
#[test]
fn an_out_of_band_change_of_state_is_noticed() {
    let below = MemFs::new();
    let root = stored(below.clone()).root();
    root.mkdir(&ROOT, name("d"), 0o755).unwrap();
    let lower = below.root();
    let old = key(&lower);
    let new = old ^ 0x55;
    overwrite(&lower, STATE, &[b'S', b'=', new, !new]);
    rename(&lower, &encoded(b"d", old), &lower, &encoded(b"d", new)).unwrap();
    // A name encoded with the old state would not be found later.
    root.mkdir(&ROOT, name("e"), 0o755).unwrap();
    let mut expected = vec![encoded(b"d", new), encoded(b"e", new), STATE.to_owned()];
    expected.sort();
    assert_eq!((names(&lower), names(&root)), (expected, vec!["d".to_owned(), "e".into()]));
    // Lookups notice it too.
    overwrite(&lower, STATE, &[b'S', b'=', old, !old]);
    assert_eq!(names(&root).len(), 2, "all names decode to something");
    rename(&lower, &encoded(b"d", new), &lower, &encoded(b"d", old)).unwrap();
    // The state is read again after a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(root.lookup(&ROOT, name("d")).unwrap().is_some());
}

#[test]
fn a_directory_without_a_state() {
    let below = MemFs::new();
    let lower = below.root();
    let layer = stored(below.clone());
    let root = layer.root();
    // The root of an empty tree, and a directory left by a crash: both are empty directories.
    assert_eq!(names(&root), [""; 0]);
    assert!(root.lookup(&ROOT, name("x")).unwrap().is_none());
    assert_eq!(root.unlink(&ROOT, name("x")), Err(Errno::NOENT));
    assert_eq!(names(&lower), [""; 0], "looking makes nothing");
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    let lower_d = find(&lower, &encoded(b"d", key(&lower)));
    for damage in [&b""[..], b"S", b"S=ab", b"S=\x01\xfe and more"] {
        // Cut short while being written: replaced before the first entry.
        overwrite(&lower_d, STATE, damage);
        assert_eq!(names(&d), [""; 0]);
        d.symlink(&ROOT, name("sub"), b"t").unwrap();
        assert_eq!(names(&d), ["sub"]);
        // With entries in the directory, the state counts as damaged and is not replaced.
        overwrite(&lower_d, STATE, damage);
        let now = Dump::of(&*below).unwrap();
        assert_eq!(d.mkdir(&ROOT, name("more"), 0o755).map(drop), Err(Errno::IO));
        assert_eq!(d.unlink(&ROOT, name("sub")), Err(Errno::IO));
        assert_eq!(rename(&root, "d", &d, "x"), Err(Errno::IO));
        assert_eq!(d.readdir(&ROOT, 0, &mut |_| true), Err(Errno::IO));
        assert_eq!(root.rmdir(&ROOT, name("d")), Err(Errno::NOTEMPTY));
        assert!(Dump::of(&*below).unwrap() == now);
        lower_d.unlink(&ROOT, name(STATE)).unwrap();
        assert_eq!(d.readdir(&ROOT, 0, &mut |_| true), Err(Errno::IO));
        let inside = names(&lower_d);
        lower_d.unlink(&ROOT, name(&inside[0])).unwrap();
        assert_eq!(names(&d), [""; 0]);
        d.mkdir(&ROOT, name("again"), 0o755).unwrap();
        d.rmdir(&ROOT, name("again")).unwrap();
    }
    // Another object in place of the state file is never followed, opened or removed.
    lower_d.unlink(&ROOT, name(STATE)).unwrap();
    lower_d.symlink(&ROOT, name(STATE), STATE.as_bytes()).unwrap();
    assert_eq!(names(&d), [""; 0]);
    root.rmdir(&ROOT, name("d")).unwrap();
    assert_eq!(names(&root), [""; 0]);
}

/// With a copy in an extended attribute, a directory survives the loss of its state file, which is
/// then not synced.
#[test]
fn a_lost_state_is_restored_from_its_copy() {
    let faults = Faults::new();
    let below = memory(&faults);
    let (lower, store) = (below.root(), Store::new(80).copied());
    let root = store.over(below.clone()).root();
    faults.record();
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    assert!(!faults.log().contains(&Op::Fsync), "{:?}", faults.log());
    d.mkdir(&ROOT, name("inside"), 0o755).unwrap();
    let lower_d = find(&lower, &encoded(b"d", key(&lower)));
    let state = bytes(&lower_d, STATE);
    for damage in [&b""[..], b"S", b"\0\0\0\0"] {
        overwrite(&lower_d, STATE, damage);
        // A new server finds the damaged file.
        let root = store.over(below.clone()).root();
        assert_eq!(names(&find(&root, "d")), ["inside"], "{damage:?}");
        assert_eq!(bytes(&lower_d, STATE), state);
    }
    lower_d.unlink(&ROOT, name(STATE)).unwrap();
    let root = store.over(below.clone()).root();
    assert_eq!(names(&find(&root, "d")), ["inside"]);
    assert_eq!(bytes(&lower_d, STATE), state);
    // Something else was put in its place. A FIFO is replaced, a directory is not.
    lower_d.unlink(&ROOT, name(STATE)).unwrap();
    lower_d.mknod(&ROOT, name(STATE), 0o010_644, 0).unwrap();
    assert_eq!(names(&find(&store.over(below.clone()).root(), "d")), ["inside"]);
    assert_eq!(bytes(&lower_d, STATE), state);
    lower_d.unlink(&ROOT, name(STATE)).unwrap();
    lower_d.mkdir(&ROOT, name(STATE), 0o755).unwrap();
    assert_eq!(names(&find(&store.over(below.clone()).root(), "d")), ["inside"]);
    lower_d.rmdir(&ROOT, name(STATE)).unwrap();
    let root = store.over(below.clone()).root();
    assert_eq!(names(&find(&root, "d")), ["inside"]);
    // A valid file is not replaced by the copy; an invalid copy is not used.
    let other = store.new_state(&ROOT).unwrap();
    overwrite(&lower_d, STATE, &other);
    let root = store.over(below.clone()).root();
    assert_eq!(names(&find(&root, "d")).len(), 1);
    assert_eq!(bytes(&lower_d, STATE), other);
    lower_d.setxattr(&ROOT, COPY, b"S=ab", XattrFlags::default()).unwrap();
    lower_d.unlink(&ROOT, name(STATE)).unwrap();
    let root = store.over(below.clone()).root();
    assert_eq!(find(&root, "d").readdir(&ROOT, 0, &mut |_| true), Err(Errno::IO));
}

#[test]
fn leftovers_do_not_prevent_removal() {
    let below = MemFs::new();
    let lower = below.root();
    let root = stored(below.clone()).root();
    for at in ["d", "e", "f"] {
        root.mkdir(&ROOT, name(at), 0o755).unwrap();
        let dir = find(&lower, &encoded(at.as_bytes(), key(&lower)));
        for leftover in [LEFTOVER, "store.long.0123456789abcdef.name"] {
            dir.create(&ROOT, name(leftover), 0o644, OpenFlags::RDWR).unwrap();
        }
    }
    assert_eq!(names(&find(&root, "d")), [""; 0]);
    root.rmdir(&ROOT, name("d")).unwrap();
    rename(&root, "e", &root, "f").unwrap();
    assert_eq!(names(&root), ["f"]);
    // A reserved name that is not a leftover prevents removal.
    let dir = find(&lower, &encoded(b"f", key(&lower)));
    dir.create(&ROOT, name("store.other"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(root.rmdir(&ROOT, name("f")), Err(Errno::NOTEMPTY));
    assert_eq!(names(&dir).len(), 4);
}

/// The requests to the layer below for a lookup in a directory that is in use, and in one that is
/// not.
#[test]
fn the_state_is_read_once() {
    let faults = Faults::new();
    let below = memory(&faults);
    let layer = stored(below);
    let d = layer.root().mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    for at in ["x", "y", "z"] {
        d.mkdir(&ROOT, name(at), 0o755).unwrap();
    }
    faults.record();
    for _ in 0..10 {
        assert!(d.lookup(&ROOT, name("y")).unwrap().is_some());
    }
    assert_eq!(faults.log(), vec![Op::Lookup; 10]);
    faults.record();
    assert_eq!(names(&d).len(), 3);
    assert_eq!(faults.log().iter().filter(|op| **op == Op::Lookup).count(), 1, "{:?}", faults.log());
    // It is durable before the directory can have an entry.
    faults.record();
    d.mkdir(&ROOT, name("v"), 0o755).unwrap();
    let log = faults.log();
    let written = log.iter().position(|op| *op == Op::Write).unwrap();
    assert_eq!(log[written - 1..=written + 1], [Op::Create, Op::Write, Op::Fsync], "{log:?}");
    drop(d);
    faults.record();
    find(&layer.root(), "d").lookup(&ROOT, name("y")).unwrap();
    let opened = faults.log().iter().filter(|op| **op == Op::Open).count();
    assert_eq!(opened, 1, "nobody had it in use: {:?}", faults.log());
}

type Step = fn(&Arc<dyn Vnode>) -> Result<()>;

/// One operation each, from a tree with a long and a short file, and long and short directories.
const STEPS: [(&str, Step); 14] = [
    ("create", |root| root.create(&ROOT, name("brand-new-file"), 0o644, OpenFlags::RDWR).map(drop)),
    ("create, short", |root| root.create(&ROOT, name("new"), 0o644, OpenFlags::RDWR).map(drop)),
    ("mkdir", |root| root.mkdir(&ROOT, name("brand-new-dir"), 0o755).map(drop)),
    ("mkdir, short", |root| root.mkdir(&ROOT, name("new"), 0o755).map(drop)),
    ("mkdir in an empty one", |root| within(root, "d")?.mkdir(&ROOT, name("new"), 0o755).map(drop)),
    ("symlink", |root| root.symlink(&ROOT, name("brand-new-link"), b"t").map(drop)),
    ("link", |root| root.link(&ROOT, name("second-name"), &within(root, "f")?).map(drop)),
    ("unlink", |root| root.unlink(&ROOT, name("a-long-file"))),
    ("rmdir", |root| root.rmdir(&ROOT, name("a-long-directory"))),
    ("rename to long", |root| rename(root, "f", root, "another-name")),
    ("rename into", |root| rename(root, "a-long-file", &within(root, "d")?, "another-name")),
    ("rename between long", |root| rename(root, "a-long-file", root, "another-name")),
    ("rename onto", |root| rename(root, "full", root, "a-long-directory")),
    ("exchange", |root| {
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        root.rename(&ROOT, name("full"), root, name("a-long-file"), flags)
    }),
];

fn within(root: &Arc<dyn Vnode>, at: &str) -> Result<Arc<dyn Vnode>> {
    Ok(root.lookup(&ROOT, name(at))?.ok_or(Errno::NOENT)?.vnode)
}

fn start(faults: &Faults) -> (Arc<MemFs>, Arc<dyn Layer>) {
    let below = memory(faults);
    let layer = stored(below.clone());
    let root = layer.root();
    for file in ["f", "a-long-file"] {
        let (_, open) = root.create(&ROOT, name(file), 0o644, OpenFlags::RDWR).unwrap();
        open.write(&ROOT, file.as_bytes(), 0).unwrap();
    }
    for dir in ["d", "full", "a-long-directory"] {
        root.mkdir(&ROOT, name(dir), 0o755).unwrap();
    }
    find(&root, "full").mkdir(&ROOT, name("inside"), 0o755).unwrap();
    // A crash left this directory without state.
    find(&below.root(), &encoded(b"d", key(&below.root()))).unlink(&ROOT, name(STATE)).unwrap();
    // Drop all cached state.
    let layer = stored(below.clone());
    (below, layer)
}

fn view(layer: &dyn Layer) -> Dump {
    Dump::of(layer).unwrap().without_times()
}

/// After an error the view is the old one, after success the new one, and a second attempt works.
#[test]
fn a_failure_at_any_step_changes_all_or_nothing() {
    for (what, step) in STEPS {
        let (_, layer) = start(&Faults::new());
        let old = view(&*layer);
        step(&layer.root()).unwrap();
        let new = view(&*layer);
        assert_ne!(old, new, "{what}");
        for count in [Count::All, Count::Changes] {
            for fault in [Fault::Error(Errno::IO), Fault::Errors(Errno::NOSPC)] {
                for at in 1.. {
                    let faults = Faults::new();
                    let (below, layer) = start(&faults);
                    faults.arm(Plan { count, at, fault });
                    let answer = step(&layer.root());
                    let fired = faults.fired();
                    faults.disarm();
                    // As the layer has it cached, and as it is below.
                    for layer in [&layer, &stored(below.clone())] {
                        let expected = if answer.is_ok() { &new } else { &old };
                        let differences = view(&**layer).differences(expected);
                        assert!(differences.is_empty(), "{what}, {fault:?} at {at}: {answer:?}\n{differences}");
                    }
                    if answer.is_err() {
                        assert_eq!(step(&layer.root()), Ok(()), "{what}, {fault:?} at {at}, again");
                        let now = view(&*stored(below)).without_ids();
                        let differences = now.differences(&new.clone().without_ids());
                        assert!(differences.is_empty(), "{what}, {fault:?} at {at}, again\n{differences}");
                    }
                    if !fired {
                        break;
                    }
                }
            }
        }
    }
}

/// After a crash the view is the old or the new one, everything in it can be used, and all of it
/// can be removed.
#[test]
fn a_crash_at_any_step_leaves_the_old_or_the_new() {
    for (what, step) in STEPS {
        let (_, layer) = start(&Faults::new());
        let old = view(&*layer);
        step(&layer.root()).unwrap();
        let new = view(&*layer);
        for at in 1.. {
            let faults = Faults::new();
            let (below, layer) = start(&faults);
            faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
            let answer = step(&layer.root());
            let crashed = faults.crashed();
            let below = below.recover(&Faults::new());
            let layer = stored(below.clone());
            let now = view(&*layer);
            assert!(now == new || (now == old && answer.is_err()), "{what}, crash at {at}: {answer:?}\n{now:?}");
            // Repeated, the operation succeeds or reports that it was done.
            match step(&layer.root()) {
                Ok(()) | Err(Errno::NOENT | Errno::EXIST) => {}
                Err(errno) => panic!("{what} again: {errno}"),
            }
            remove_all(&layer.root());
            let left = names(&below.root());
            assert!(left.iter().all(|at| at == STATE || at.ends_with(".name")), "{what}, crash at {at}: {left:?}");
            if !crashed {
                break;
            }
        }
    }
}

/// Uses and removes everything in a directory.
fn remove_all(dir: &Arc<dyn Vnode>) {
    for at in names(dir) {
        let entry = find(dir, &at);
        if entry.kind() == Kind::Directory {
            entry.create(&ROOT, name("one-more-with-a-long-name"), 0o644, OpenFlags::RDWR).unwrap();
            remove_all(&entry);
            dir.rmdir(&ROOT, name(&at)).unwrap();
        } else {
            dir.unlink(&ROOT, name(&at)).unwrap();
        }
    }
}

/// A thread that must not block gets `MAY_BLOCK` before any change, and the operation works on one
/// that may block.
#[test]
fn nonblocking_threads_do_not_wait() {
    let cancelled = AtomicBool::new(false);
    let hasty = Cx::new(0, 0, 0, 0, false, &cancelled);
    let below = MemFs::new();
    let root = stored(below.clone()).root();
    assert_eq!(root.create(&hasty, name("f"), 0o644, OpenFlags::RDWR).map(drop), Err(MAY_BLOCK));
    assert_eq!(root.mkdir(&hasty, name("d"), 0o755).map(drop), Err(MAY_BLOCK));
    assert_eq!(names(&below.root()), [""; 0]);
    root.mkdir(&ROOT, name("d"), 0o755).unwrap();
    assert_eq!(root.rmdir(&hasty, name("d")), Err(MAY_BLOCK));
    // With existing state, nothing blocks.
    root.create(&hasty, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(names(&root), ["d", "f"]);
}

/// Threads fill and remove the same directories: created entries are found, and only empty
/// directories are removed.
#[test]
fn directories_are_created_and_removed_concurrently() {
    let below = MemFs::new();
    let layer = stored(below.clone());
    let made = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (root, made) = (layer.root(), &made);
            scope.spawn(move || {
                for round in 0..300 {
                    let dir = ["d", "e"][(round / 3) % 2];
                    let _ = root.mkdir(&ROOT, name(dir), 0o755);
                    let inside = format!("of-{thread}-{round}");
                    if let Ok(Some(entry)) = root.lookup(&ROOT, name(dir)) {
                        match entry.vnode.mkdir(&ROOT, name(&inside), 0o755) {
                            Ok(_) => {
                                made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                                assert!(entry.vnode.lookup(&ROOT, name(&inside)).unwrap().is_some(), "{inside}");
                                entry.vnode.rmdir(&ROOT, name(&inside)).unwrap();
                            }
                            Err(errno) => assert_eq!(errno, Errno::NOENT),
                        }
                    }
                    match root.rmdir(&ROOT, name(dir)) {
                        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                        Err(errno) => panic!("{errno}"),
                    }
                    let _ = rename(&root, "d", &root, "e");
                }
            });
        }
    });
    assert!(made.into_inner() > 50);
    remove_all(&layer.root());
    assert_eq!(names(&below.root()), [STATE]);
}

/// A store that only reserves some names needs no name hook.
#[test]
fn a_store_without_a_name_hook() {
    #[derive(Debug)]
    struct Hides;
    impl NameStore for Hides {
        fn role(&self, name: &[u8]) -> Role {
            if name == b".config" { Role::Own } else { Role::Name }
        }
        fn long_name(&self, _encoded: &[u8]) -> Option<LongName> {
            None
        }
        fn encoded_name(&self, _object: &[u8], _content: &[u8]) -> Option<Vec<u8>> {
            None
        }
    }
    let below = MemFs::new();
    below.root().mkdir(&ROOT, name(".config"), 0o755).unwrap();
    let root = Template::over(below.clone()).store(Hides).build().unwrap().root();
    root.mkdir(&ROOT, name("d"), 0o755).unwrap();
    assert_eq!(names(&root), ["d"]);
    assert!(root.lookup(&ROOT, name(".config")).unwrap().is_none());
    assert_eq!(root.mkdir(&ROOT, name(".config"), 0o755).map(drop), Err(Errno::INVAL));
    assert_eq!(root.rmdir(&ROOT, name(".config")), Err(Errno::NOENT));
    assert_eq!(rename(&root, "d", &root, ".config"), Err(Errno::INVAL));
    assert_eq!(names(&below.root()), [".config", "d"]);
}

#[test]
fn a_store_with_invalid_results() {
    /// The defect.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Wrong {
        StateName,
        StateBytes,
        LongObject,
        Panics,
    }
    #[derive(Debug)]
    struct Bad(Wrong);
    impl NameStore for Bad {
        fn role(&self, _name: &[u8]) -> Role {
            assert!(self.0 != Wrong::Panics, "for this test");
            Role::Name
        }
        fn long_name(&self, encoded: &[u8]) -> Option<LongName> {
            let long = LongName { object: b"a/b".to_vec(), side: b"s".to_vec(), content: encoded.to_vec() };
            (self.0 == Wrong::LongObject).then_some(long)
        }
        fn encoded_name(&self, _object: &[u8], _content: &[u8]) -> Option<Vec<u8>> {
            None
        }
        fn state_file(&self) -> Option<StateFile> {
            let name = if self.0 == Wrong::StateName { b"a/b".to_vec() } else { b"state".to_vec() };
            (self.0 != Wrong::LongObject && self.0 != Wrong::Panics).then_some(StateFile {
                name,
                mode: 0o444,
                longest: 9,
                copy: None,
            })
        }
        fn is_state(&self, _state: &[u8]) -> bool {
            false
        }
    }
    for (wrong, errno) in [
        (Wrong::StateName, Errno::ROFS),
        (Wrong::StateBytes, Errno::IO),
        (Wrong::LongObject, Errno::IO),
        (Wrong::Panics, Errno::IO),
    ] {
        let below = MemFs::new();
        let root = Template::over(below.clone()).store(Bad(wrong)).build().unwrap().root();
        assert_eq!(root.mkdir(&ROOT, name("d"), 0o755).map(drop), Err(errno), "{wrong:?}");
        assert_eq!(names(&below.root()), [""; 0], "{wrong:?}");
    }
}

/// Directories without write permission are created and removed like others.
#[test]
fn modes_and_times_follow_the_callers_request() {
    let layer = stored(MemFs::new());
    let root = layer.root();
    let made = root.mkdir(&ROOT, name("d"), 0o555).unwrap();
    assert_eq!((made.attr.perm(), made.attr.nlink), (0o555, 2));
    let set = SetAttr { mode: Some(0), ..SetAttr::default() };
    assert_eq!(made.vnode.setattr(&ROOT, &set, None).unwrap().perm(), 0);
    root.rmdir(&ROOT, name("d")).unwrap();
    let user = Cx::internal(7, 8);
    let made = root.mkdir(&user, name("of-a-user-and-long"), 0o700).unwrap();
    assert_eq!((made.attr.uid, made.attr.gid), (7, 8));
}
