//! Case-insensitive names, stored as created.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::memory;
use conformance::fixture::{ROOT, name, names, user};
use memfs::{Count, Dump, Fault, Faults, MemFs, Op, Plan};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;
use vnode::{Cx, Errno, Layer, MAY_BLOCK, OpenFlags, RenameFlags, Result, Vnode};
use wrapfs::Template;
use wrapfs::hooks::{Matching, Names, Object};

/// Ignores case. `0`: how often each byte is written below.
#[derive(Debug)]
struct AnyCase(usize);

impl Names for AnyCase {
    fn matching(&self) -> Matching {
        Matching::Folded
    }
    fn fold_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_ascii_lowercase())
    }
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.iter().flat_map(|&byte| std::iter::repeat_n(byte, self.0)).collect())
    }
    fn decode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let chunks = name.chunks(self.0);
        chunks.map(|same| same.iter().all(|b| *b == same[0]).then_some(same[0]).ok_or(Errno::INVAL)).collect()
    }
}

fn folding(lower: Arc<dyn Layer>) -> Arc<dyn Layer> {
    Template::over(lower).names(AnyCase(1)).build().unwrap()
}

fn make(dir: &Arc<dyn Vnode>, at: &str, content: &str) -> Result<()> {
    let (_, file) = dir.create(&ROOT, name(at), 0o644, OpenFlags::RDWR)?;
    file.write(&ROOT, content.as_bytes(), 0).map(|_| ())
}

fn content(dir: &Arc<dyn Vnode>, at: &str) -> Option<String> {
    let found = dir.lookup(&ROOT, name(at)).unwrap()?;
    let mut out = [0; 64];
    let len = found.vnode.open(&ROOT, OpenFlags::RDONLY).unwrap().read(&ROOT, &mut out, 0).unwrap();
    Some(String::from_utf8_lossy(&out[..len]).into_owned())
}

fn rename(dir: &Arc<dyn Vnode>, old: &str, new: &str) -> Result<()> {
    dir.rename(&ROOT, name(old), dir, name(new), RenameFlags::default())
}

/// Shows names that begin with `s` to root only.
#[derive(Debug)]
struct Secrets;

impl Names for Secrets {
    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }
    fn decode_filename(&self, cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        if cx.caller() != 0 && name.starts_with(b"S") { Err(Errno::INVAL) } else { Ok(name.to_vec()) }
    }
}

/// What one caller sees in a directory says nothing about another one.
#[test]
fn a_listing_is_not_shared_between_callers_that_see_different_names() {
    let lower = Template::over(MemFs::new()).names(Secrets).varies_by_caller().build().unwrap();
    let root = folding(lower).root();
    make(&root, "Secret", "text").unwrap();
    let stranger = user(7, 7, 0);
    for _ in 0..2 {
        assert!(root.lookup(&stranger, name("secret")).unwrap().is_none());
        assert!(root.lookup(&ROOT, name("secret")).unwrap().is_some());
    }
}

#[test]
fn folding_layers_conform() {
    for times in [1, 30, 256] {
        let fresh = || Template::over(MemFs::new()).names(AnyCase(times)).build().unwrap();
        conformance::run_all(fresh);
        conformance::random::compare(7, 1500, &*fresh(), &*MemFs::new());
    }
}

#[test]
fn names_keep_their_spelling_and_are_found_in_any_case() {
    for times in [1, 100] {
        let layer = Template::over(MemFs::new()).names(AnyCase(times)).build().unwrap();
        assert!(layer.properties().merges_names);
        let root = layer.root();
        make(&root, "ReadMe", "one").unwrap();
        assert_eq!(content(&root, "README").unwrap(), "one");
        assert_eq!(names(&root), ["ReadMe"]);
        // No second entry can be created in another spelling.
        assert_eq!(make(&root, "readme", ""), Err(Errno::EXIST));
        assert_eq!(root.mkdir(&ROOT, name("README"), 0o755).map(|_| ()), Err(Errno::EXIST));
        assert_eq!(root.mknod(&ROOT, name("readmE"), 0o100_644, 0).map(|_| ()), Err(Errno::EXIST));
        assert_eq!(root.symlink(&ROOT, name("rEADME"), b"t").map(|_| ()), Err(Errno::EXIST));
        let file = root.lookup(&ROOT, name("readme")).unwrap().unwrap().vnode;
        assert_eq!(root.link(&ROOT, name("READme"), &file).map(|_| ()), Err(Errno::EXIST));
        let no_replace = RenameFlags { no_replace: true, ..RenameFlags::default() };
        make(&root, "other", "two").unwrap();
        assert_eq!(root.rename(&ROOT, name("OTHER"), &root, name("README"), no_replace), Err(Errno::EXIST));
        // A replacement also replaces the spelling.
        rename(&root, "OTHER", "README").unwrap();
        assert_eq!((names(&root), content(&root, "readme").unwrap()), (vec!["ReadMe".to_owned()], "two".to_owned()));
        // The same entry: its spelling changes.
        rename(&root, "readme", "README").unwrap();
        assert_eq!(names(&root), ["README"]);
        root.unlink(&ROOT, name("readme")).unwrap();
        assert_eq!(root.unlink(&ROOT, name("README")), Err(Errno::NOENT));
        // Nothing of it remains.
        assert_eq!(content(&root, "ReadMe"), None);
        make(&root, "readme", "three").unwrap();
        assert_eq!((names(&root), content(&root, "README").unwrap()), (vec!["readme".to_owned()], "three".to_owned()));
    }
}

#[test]
fn directories_can_be_used_in_any_case() {
    let root = folding(MemFs::new()).root();
    let a = root.mkdir(&ROOT, name("Dir"), 0o755).unwrap().vnode;
    let b = root.mkdir(&ROOT, name("Other"), 0o755).unwrap().vnode;
    make(&a, "File", "x").unwrap();
    let found = root.lookup(&ROOT, name("DIR")).unwrap().unwrap().vnode;
    assert_eq!((found.id(), content(&found, "FILE").unwrap()), (a.id(), "x".to_owned()));
    assert_eq!(root.rmdir(&ROOT, name("dir")), Err(Errno::NOTEMPTY));
    a.rename(&ROOT, name("file"), &b, name("Moved"), RenameFlags::default()).unwrap();
    assert_eq!((names(&a), names(&b)), (vec![], vec!["Moved".to_owned()]));
    assert_eq!((content(&a, "FILE"), content(&b, "MOVED").unwrap()), (None, "x".to_owned()));
    let swap = RenameFlags { exchange: true, ..RenameFlags::default() };
    root.rename(&ROOT, name("DIR"), &root, name("OTHER"), swap).unwrap();
    assert_eq!((names(&a), names(&root)), (vec![], vec!["Dir".to_owned(), "Other".to_owned()]));
    assert_eq!(content(&root.lookup(&ROOT, name("dir")).unwrap().unwrap().vnode, "moved").unwrap(), "x");
    root.rmdir(&ROOT, name("OTHER")).unwrap();
    assert_eq!(names(&root), ["Dir"]);
}

/// A rename between two names of one file does nothing: both names remain.
#[test]
fn hard_links_stay() {
    let root = folding(MemFs::new()).root();
    make(&root, "One", "x").unwrap();
    let file = root.lookup(&ROOT, name("one")).unwrap().unwrap().vnode;
    root.link(&ROOT, name("Two"), &file).unwrap();
    assert_eq!(content(&root, "TWO").unwrap(), "x");
    rename(&root, "ONE", "TWO").unwrap();
    assert_eq!(names(&root), ["One", "Two"]);
    assert_eq!((content(&root, "oNE").unwrap(), content(&root, "tWO").unwrap()), ("x".to_owned(), "x".to_owned()));
    assert_eq!(make(&root, "oNe", ""), Err(Errno::EXIST));
}

#[test]
fn colliding_names_below_resolve_to_the_exact_or_first_one() {
    let below = MemFs::new();
    for twin in ["b", "B"] {
        make(&below.root(), twin, twin).unwrap();
    }
    make(&below.root(), "aX", "aX").unwrap();
    make(&below.root(), "Ax", "Ax").unwrap();
    let root = folding(below).root();
    assert_eq!((content(&root, "b").unwrap(), content(&root, "B").unwrap()), ("b".to_owned(), "B".to_owned()));
    assert_eq!(content(&root, "AX").unwrap(), "Ax");
    root.unlink(&ROOT, name("AX")).unwrap();
    assert_eq!(content(&root, "AX").unwrap(), "aX");
    assert_eq!(make(&root, "ax", ""), Err(Errno::EXIST));
    // Renaming one onto the other works with exact names.
    rename(&root, "b", "B").unwrap();
    assert_eq!((names(&root), content(&root, "b").unwrap()), (vec!["B".to_owned(), "aX".to_owned()], "b".to_owned()));
}

#[test]
fn lookups_share_one_listing() {
    let faults = Faults::new();
    let root = folding(memory(&faults)).root();
    make(&root, "first", "").unwrap();
    faults.record();
    for i in 0..100 {
        make(&root, &format!("File-{i}"), "").unwrap();
        assert!(root.lookup(&ROOT, name(&format!("FILE-{i}"))).unwrap().is_some());
        assert!(root.lookup(&ROOT, name(&format!("none-{i}"))).unwrap().is_none());
        if i % 3 == 0 {
            root.unlink(&ROOT, name(&format!("FILE-{i}"))).unwrap();
            assert!(root.lookup(&ROOT, name(&format!("FILE-{i}"))).unwrap().is_none());
        }
    }
    let listings = faults.log().iter().filter(|op| **op == Op::Readdir).count();
    assert!(listings <= 3, "{listings} listings");
}

#[test]
fn changes_below_are_noticed() {
    let below = MemFs::new();
    let root = folding(below.clone()).root();
    make(&root, "Name", "x").unwrap();
    assert!(root.lookup(&ROOT, name("OTHER")).unwrap().is_none());
    // A cached name that no longer exists is noticed at once.
    rename(&below.root(), "Name", "nAME").unwrap();
    assert_eq!(content(&root, "NAME").unwrap(), "x");
    // A name that did not exist is noticed within a second.
    make(&below.root(), "oTHER", "y").unwrap();
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(content(&root, "OTHER").unwrap(), "y");
}

#[test]
fn nonblocking_threads_do_not_list() {
    let root = folding(MemFs::new()).root();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let hurried = Cx::new(0, 0, 0, 0, false, &stop);
    assert_eq!(root.lookup(&hurried, name("none")).map(|_| ()), Err(MAY_BLOCK));
    assert!(root.lookup(&ROOT, name("none")).unwrap().is_none());
    assert_eq!(root.lookup(&hurried, name("none")).map(|_| ()), Ok(()));
    assert_eq!(root.mkdir(&hurried, name("d"), 0o755).map(|_| ()), Ok(()));
}

/// Two programs that concurrently create a name in two spellings get one entry.
#[test]
fn two_spellings_never_become_two_entries() {
    let root = folding(MemFs::new()).root();
    for round in 0..200 {
        let both = Barrier::new(2);
        let made = thread::scope(|scope| {
            let race = |spelling: String| {
                let (root, both) = (&root, &both);
                scope.spawn(move || {
                    both.wait();
                    root.mkdir(&ROOT, name(&spelling), 0o755).map(|_| ())
                })
            };
            let threads = [race(format!("dir-{round}")), race(format!("DIR-{round}"))];
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(made.contains(&Ok(())) && made.contains(&Err(Errno::EXIST)), "{made:?}");
    }
    assert_eq!(names(&root).len(), 200);
}

type Step = fn(&Arc<dyn Vnode>) -> Result<()>;

const STEPS: [(&str, Step); 8] = [
    ("create", |root| make(root, "New", "")),
    ("mkdir", |root| root.mkdir(&ROOT, name("New"), 0o755).map(|_| ())),
    ("unlink", |root| root.unlink(&ROOT, name("FILE"))),
    ("rmdir", |root| root.rmdir(&ROOT, name("DIR"))),
    ("rename", |root| rename(root, "FILE", "Else")),
    ("respell", |root| rename(root, "file", "FILE")),
    ("replace", |root| rename(root, "OTHER", "FILE")),
    ("exchange", |root| {
        let swap = RenameFlags { exchange: true, ..RenameFlags::default() };
        root.rename(&ROOT, name("FILE"), root, name("DIR"), swap)
    }),
];

/// After an error the view is the old one, after success the new one, and cached listings are
/// correct in both cases.
#[test]
fn a_failure_at_any_step_changes_all_or_nothing() {
    let start = |faults: &Faults| {
        let layer = folding(memory(faults));
        let root = layer.root();
        make(&root, "File", "1").unwrap();
        make(&root, "Other", "2").unwrap();
        root.mkdir(&ROOT, name("Dir"), 0o755).unwrap();
        layer
    };
    let view = |layer: &dyn Layer| Dump::of(layer).unwrap().without_times();
    for (what, step) in STEPS {
        let layer = start(&Faults::new());
        let old = view(&*layer);
        step(&layer.root()).unwrap();
        let new = view(&*layer);
        assert_ne!(old, new, "{what}");
        for fault in [Fault::Error(Errno::IO), Fault::Errors(Errno::NOSPC)] {
            for at in 1.. {
                let faults = Faults::new();
                let layer = start(&faults);
                faults.arm(Plan { count: Count::All, at, fault });
                let answer = step(&layer.root());
                let fired = faults.fired();
                faults.disarm();
                // `create` also writes to the file.
                let expected = if answer.is_ok() { &new } else { &old };
                let differences = view(&*layer).differences(expected);
                let is_write = what == "create" && answer.is_err() && content(&layer.root(), "NEW").is_some();
                assert!(differences.is_empty() || is_write, "{what}, {fault:?} at {at}: {answer:?}\n{differences}");
                for listed in names(&layer.root()) {
                    let other = listed.to_uppercase();
                    assert!(layer.root().lookup(&ROOT, name(&other)).unwrap().is_some(), "{what} at {at}: {other}");
                }
                if !fired {
                    break;
                }
            }
        }
    }
}
