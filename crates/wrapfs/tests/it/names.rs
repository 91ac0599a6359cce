//! Names that are encoded, hidden, or too long for the layer below.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Stretch, memory};
use conformance::fixture::{ROOT, name, names};
use memfs::{Count, Dump, Fault, Faults, MemFs, Plan};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, Result, Vnode};
use wrapfs::Template;
use wrapfs::hooks::{Matching, Names, Object};

fn stretched(lower: Arc<dyn Layer>) -> Arc<dyn Layer> {
    Template::over(lower).names(Stretch(30)).build().unwrap()
}

#[test]
fn long_name_layers_conform() {
    conformance::run_all(|| stretched(MemFs::new()));
    // All names are long ones.
    conformance::run_all(|| Template::over(MemFs::new()).names(Stretch(256)).build().unwrap());
}

#[test]
fn random_operations_see_no_difference() {
    for seed in 1..4 {
        conformance::random::compare(seed, 2000, &*stretched(MemFs::new()), &*MemFs::new());
        conformance::random::compare(
            seed,
            1000,
            &*Template::over(MemFs::new()).names(Stretch(256)).build().unwrap(),
            &*MemFs::new(),
        );
    }
}

#[test]
fn every_name_works_and_reserved_names_are_hidden() {
    /// The identity.
    #[derive(Debug)]
    struct Same;
    impl Names for Same {
        fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
            Ok(name.to_vec())
        }
        fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
            Ok(name.to_vec())
        }
    }
    let below = MemFs::new();
    let layer = Template::over(below.clone()).names(Same).build().unwrap();
    let root = layer.root();
    let like_its_own = format!(".wrapfs.o.{}", "0".repeat(64));
    root.mkdir(&ROOT, name(&like_its_own), 0o755).unwrap();
    root.mkdir(&ROOT, name(".wrapfs."), 0o755).unwrap();
    assert_eq!(names(&root), [".wrapfs.".to_owned(), like_its_own.clone()]);
    for lower in names(&below.root()) {
        assert!(root.lookup(&ROOT, name(&lower)).unwrap().is_none(), "{lower}");
    }
    assert_eq!(names(&below.root()).len(), 4);
    root.rmdir(&ROOT, name(&like_its_own)).unwrap();
    root.rmdir(&ROOT, name(".wrapfs.")).unwrap();
    assert_eq!(names(&below.root()), [""; 0]);
}

#[test]
fn side_files_follow_their_objects() {
    let below = MemFs::new();
    let layer = stretched(below.clone());
    let root = layer.root();
    let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    let long = "long-name";
    let (file, _) = root.create(&ROOT, name(long), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(names(&root), ["d", long]);
    assert_eq!(names(&below.root()).len(), 3);
    d.link(&ROOT, name("other-name"), &file.vnode).unwrap();
    let lower_d = below.root().lookup(&ROOT, name(&"d".repeat(30))).unwrap().unwrap().vnode;
    assert_eq!(names(&lower_d).len(), 2);
    // A rename between two names of one file does nothing, and both side files remain.
    root.rename(&ROOT, name(long), &d, name("other-name"), RenameFlags::default()).unwrap();
    assert_eq!((names(&root), names(&d)), (vec!["d".into(), long.into()], vec!["other-name".to_owned()]));
    let swap = RenameFlags { exchange: true, ..RenameFlags::default() };
    root.mkdir(&ROOT, name("short"), 0o755).unwrap();
    root.rename(&ROOT, name("short"), &d, name("other-name"), swap).unwrap();
    assert_eq!(d.lookup(&ROOT, name("other-name")).unwrap().unwrap().vnode.kind(), Kind::Directory);
    root.rename(&ROOT, name(long), &root, name("brief"), RenameFlags::default()).unwrap();
    d.rmdir(&ROOT, name("other-name")).unwrap();
    assert_eq!((names(&root), names(&d)), (vec!["brief".to_owned(), "d".into(), "short".into()], vec![]));
    assert_eq!((names(&below.root()).len(), names(&lower_d).len()), (3, 0));
}

#[test]
fn undecodable_names_are_hidden() {
    let below = MemFs::new();
    below.root().mkdir(&ROOT, name("abc"), 0o755).unwrap();
    let layer = Template::over(below).names(Stretch(2)).build().unwrap();
    let root = layer.root();
    assert_eq!(names(&root), [""; 0]);
    root.mkdir(&ROOT, name("d"), 0o755).unwrap();
    assert_eq!(names(&root), ["d"]);
}

/// Stores lower case: names may differ from the listed ones.
#[derive(Debug)]
struct Small(Matching);

impl Names for Small {
    fn matching(&self) -> Matching {
        self.0
    }
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_ascii_lowercase())
    }
    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }
}

#[test]
fn several_names_may_refer_to_one_entry() {
    let below = MemFs::new();
    below.root().mkdir(&ROOT, name("UP"), 0o755).unwrap();
    let layer = Template::over(below).names(Small(Matching::Encoded)).build().unwrap();
    let root = layer.root();
    assert!(root.lookup(&ROOT, name("UP")).unwrap().is_none());
    root.mkdir(&ROOT, name("Dir"), 0o755).unwrap();
    assert_eq!(names(&root), ["dir"]);
    assert!(root.lookup(&ROOT, name("DIR")).unwrap().is_some());
    assert_eq!(root.mkdir(&ROOT, name("dIR"), 0o755).map(|_| ()), Err(Errno::EXIST));
    // Layers above report it too.
    assert!(
        layer.properties().merges_names
            && Template::over(layer).names(Stretch(2)).build().unwrap().properties().merges_names
    );
}

/// The kernel caches the names of a layer that does not declare merging, so such a layer must not
/// merge names.
#[test]
fn undeclared_merging_is_refused() {
    let layer = Template::over(MemFs::new()).names(Small(Matching::Exact)).build().unwrap();
    let root = layer.root();
    assert!(!layer.properties().merges_names);
    assert_eq!(root.mkdir(&ROOT, name("Dir"), 0o755).map(|_| ()), Err(Errno::INVAL));
    root.mkdir(&ROOT, name("dir"), 0o755).unwrap();
    assert!(root.lookup(&ROOT, name("Dir")).unwrap().is_none());
    assert_eq!(root.rmdir(&ROOT, name("DIR")), Err(Errno::NOENT));
    assert_eq!(rename(&root, "dir", "Other", false), Err(Errno::INVAL));
    assert_eq!(names(&root), ["dir"]);
}

#[test]
fn invalid_encoded_names_are_refused() {
    #[derive(Debug)]
    struct Bad(&'static [u8]);
    impl Names for Bad {
        fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, _name: &[u8]) -> Result<Vec<u8>> {
            Ok(self.0.to_vec())
        }
        fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, _name: &[u8]) -> Result<Vec<u8>> {
            panic!("for this test")
        }
    }
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", b"panics"] {
        let below = MemFs::new();
        let root = Template::over(below.clone()).names(Bad(bad)).build().unwrap().root();
        assert_eq!(root.mkdir(&ROOT, name("d"), 0o755).map(|_| ()), Err(Errno::IO), "{}", bad.escape_ascii());
        assert_eq!(names(&below.root()), [""; 0]);
    }
    let huge = "x".repeat(255);
    let root = Template::over(MemFs::new()).names(Stretch(300)).build().unwrap().root();
    assert_eq!(root.mkdir(&ROOT, name(&huge), 0o755).map(|_| ()), Err(Errno::NAMETOOLONG));
}

/// The size of a symbolic link is that of its decoded target.
#[test]
fn targets_are_encoded() {
    #[derive(Debug)]
    struct Twice;
    impl Names for Twice {
        fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
            Ok(name.to_vec())
        }
        fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
            Ok(name.to_vec())
        }
        fn encode_target(&self, _cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
            Ok([target, target].concat())
        }
        fn decode_target(&self, _cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
            Ok(target[..target.len() / 2].to_vec())
        }
    }
    let below = MemFs::new();
    let root = Template::over(below.clone()).names(Twice).build().unwrap().root();
    let link = root.symlink(&ROOT, name("l"), b"target").unwrap();
    assert_eq!((link.attr.size, link.vnode.getattr(&ROOT).unwrap().size), (6, 6));
    assert_eq!(link.vnode.readlink(&ROOT).unwrap(), b"target");
    let lower = below.root().lookup(&ROOT, name("l")).unwrap().unwrap().vnode;
    assert_eq!(lower.readlink(&ROOT).unwrap(), b"targettarget");
}

type Step = fn(&Arc<dyn Vnode>) -> Result<()>;

/// One operation each, from a tree with a long and a short file, and long and short directories.
const STEPS: [(&str, Step); 11] = [
    ("create", |root| root.create(&ROOT, name("brand-new-file"), 0o644, OpenFlags::RDWR).map(|_| ())),
    ("mkdir", |root| root.mkdir(&ROOT, name("brand-new-dir"), 0o755).map(|_| ())),
    ("symlink", |root| root.symlink(&ROOT, name("brand-new-link"), b"t").map(|_| ())),
    ("link", |root| {
        let file = root.lookup(&ROOT, name("f"))?.ok_or(Errno::NOENT)?;
        root.link(&ROOT, name("second-name"), &file.vnode).map(|_| ())
    }),
    ("unlink", |root| root.unlink(&ROOT, name("a-long-file"))),
    ("rmdir", |root| root.rmdir(&ROOT, name("a-long-directory"))),
    ("rename to long", |root| rename(root, "f", "another-name", false)),
    ("rename to short", |root| rename(root, "a-long-file", "g", false)),
    ("rename between long", |root| rename(root, "a-long-file", "another-name", false)),
    ("rename onto", |root| rename(root, "d", "a-long-directory", false)),
    ("exchange", |root| rename(root, "d", "a-long-file", true)),
];

fn rename(root: &Arc<dyn Vnode>, old: &str, new: &str, exchange: bool) -> Result<()> {
    root.rename(&ROOT, name(old), root, name(new), RenameFlags { exchange, ..RenameFlags::default() })
}

fn start(faults: &Faults) -> (Arc<MemFs>, Arc<dyn Layer>) {
    let below = memory(faults);
    let layer = stretched(below.clone());
    let root = layer.root();
    for file in ["f", "a-long-file"] {
        let (_, open) = root.create(&ROOT, name(file), 0o644, OpenFlags::RDWR).unwrap();
        open.write(&ROOT, file.as_bytes(), 0).unwrap();
    }
    for dir in ["d", "a-long-directory"] {
        root.mkdir(&ROOT, name(dir), 0o755).unwrap();
    }
    (below, layer)
}

fn view(layer: &dyn Layer) -> Dump {
    Dump::of(layer).unwrap().without_times()
}

/// After an error the view is the old one, after success the new one, and no leftovers remain
/// below.
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
                    let (_, layer) = start(&faults);
                    faults.arm(Plan { count, at, fault });
                    let answer = step(&layer.root());
                    let fired = faults.fired();
                    faults.disarm();
                    let now = view(&*layer);
                    let expected = if answer.is_ok() { &new } else { &old };
                    let differences = now.differences(expected);
                    assert!(differences.is_empty(), "{what}, {fault:?} at {at}: {answer:?}\n{differences}");
                    if !fired {
                        break;
                    }
                }
            }
        }
    }
}

/// After a crash the view is the old or the new one, and leftovers do not prevent the removal of
/// directories.
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
            let layer = stretched(below.clone());
            let now = view(&*layer);
            assert!(now == new || (now == old && answer.is_err()), "{what}, crash at {at}: {answer:?}\n{now:?}");
            // Repeated, the operation succeeds or reports that it was done.
            match step(&layer.root()) {
                Ok(()) | Err(Errno::NOENT | Errno::EXIST) => {}
                Err(errno) => panic!("{what} again: {errno}"),
            }
            if !crashed {
                break;
            }
        }
    }
}

#[test]
fn leftovers_do_not_prevent_rmdir() {
    let side_file = |dir: &Arc<dyn Vnode>| {
        // A side file that a crash cut short before its object was created.
        let leftover = format!(".wrapfs.n.{}", "a".repeat(64));
        dir.create(&ROOT, name(&leftover), 0o644, OpenFlags::RDWR).unwrap();
    };
    let below = MemFs::new();
    let layer = stretched(below.clone());
    let root = layer.root();
    for dir in ["d", "e", "f"] {
        root.mkdir(&ROOT, name(dir), 0o755).unwrap();
        side_file(&below.root().lookup(&ROOT, name(&dir.repeat(30))).unwrap().unwrap().vnode);
    }
    assert_eq!(names(&root.lookup(&ROOT, name("d")).unwrap().unwrap().vnode), [""; 0]);
    root.rmdir(&ROOT, name("d")).unwrap();
    root.rename(&ROOT, name("e"), &root, name("f"), RenameFlags::default()).unwrap();
    assert_eq!(names(&root), ["f"]);
    // A directory with entries is not removed, and its leftover remains.
    let f = root.lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
    f.mkdir(&ROOT, name("x"), 0o755).unwrap();
    assert_eq!(root.rmdir(&ROOT, name("f")), Err(Errno::NOTEMPTY));
    assert_eq!(names(&f), ["x"]);
}

#[test]
fn a_damaged_side_file_hides_its_object_until_rewritten() {
    let below = MemFs::new();
    let layer = stretched(below.clone());
    let root = layer.root();
    root.mkdir(&ROOT, name("a-long-directory"), 0o755).unwrap();
    let side_file = names(&below.root()).into_iter().find(|name| name.starts_with(".wrapfs.n.")).unwrap();
    let vnode = below.root().lookup(&ROOT, Name::new(side_file.as_bytes()).unwrap()).unwrap().unwrap().vnode;
    vnode.open(&ROOT, OpenFlags::RDWR).unwrap().write(&ROOT, b"damage", 3).unwrap();
    assert_eq!(names(&root), [""; 0]);
    // The object is found by its name and has not moved.
    assert!(root.lookup(&ROOT, name("a-long-directory")).unwrap().is_some());
    assert_eq!(root.mkdir(&ROOT, name("a-long-directory"), 0o755).map(|_| ()), Err(Errno::EXIST));
    assert_eq!(names(&root), ["a-long-directory"]);
}

/// Numbers of the layer's own files and of hidden objects are stale, however they were obtained.
#[test]
fn hidden_objects_are_not_found_by_number() {
    let below = MemFs::new();
    let layer = stretched(below.clone());
    let long = "n".repeat(200);
    let (shown, hidden) = {
        let root = layer.root();
        let d = root.mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
        d.mknod(&ROOT, name(&long), 0o100_644, 0).unwrap();
        d.mknod(&ROOT, name("short"), 0o100_644, 0).unwrap();
        // An undecodable name, and an object below it.
        let undecodable = below.root().mkdir(&ROOT, name("?"), 0o755).unwrap().vnode;
        assert_eq!(names(&root), ["d"]);
        let inside = undecodable.mkdir(&ROOT, name("inside"), 0o755).unwrap().vnode;
        let encoded = |vnode: &Arc<dyn Vnode>| below.vnode(&ROOT, vnode.id()).unwrap();
        let side_files = names(&encoded(&d)).into_iter().filter(|name| name.starts_with(".wrapfs.n."));
        let side_files: Vec<u64> =
            side_files.map(|n| encoded(&d).lookup(&ROOT, name(&n)).unwrap().unwrap().attr.ino).collect();
        assert_eq!(side_files.len(), 1);
        (conformance::handles::Handles::of(&*layer), [side_files, vec![undecodable.id(), inside.id()]].concat())
    };
    assert_eq!(shown.count(), 3);
    shown.check(&*layer);
    for number in hidden {
        assert!(below.vnode(&ROOT, number).is_ok());
        assert_eq!(layer.vnode(&ROOT, number).map(drop), Err(Errno::STALE), "{number}");
    }
}
