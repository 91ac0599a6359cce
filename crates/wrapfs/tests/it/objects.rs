//! State of objects in use: the layer's own state, and paths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Chain, Stretch};
use conformance::fixture::{ROOT, name, names};
use memfs::MemFs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use testkit::Rng;
use vnode::{Cx, Errno, Layer, OpenFlags, RenameFlags, Result, Vnode};
use wrapfs::Template;
use wrapfs::hooks::{Block, Data, Object, Objects, Op, OpSet, Operations, Reply, State, Verdict};

/// Counts states.
#[derive(Debug, Default)]
struct Counts {
    attached: AtomicU64,
    freed: AtomicU64,
}

/// A state that knows whether it may still be used.
#[derive(Debug)]
struct Tracked {
    id: u64,
    freed: AtomicBool,
}

/// Attaches state to each object that a hook sees.
#[derive(Clone, Debug, Default)]
struct Attaching(Arc<Counts>);

impl Attaching {
    fn touch(&self, object: &Object<'_>) {
        let state = object.attached().unwrap_or_else(|| {
            let new: State = Arc::new(Tracked { id: object.id(), freed: AtomicBool::new(false) });
            let attached = object.attach(Arc::clone(&new)).unwrap();
            if Arc::ptr_eq(&attached, &new) {
                self.0.attached.fetch_add(1, Ordering::SeqCst);
            }
            attached
        });
        let tracked = state.downcast_ref::<Tracked>().unwrap();
        assert_eq!(tracked.id, object.id());
        assert!(!tracked.freed.load(Ordering::SeqCst), "used after it was freed");
    }

    fn counts(&self) -> (u64, u64) {
        (self.0.attached.load(Ordering::SeqCst), self.0.freed.load(Ordering::SeqCst))
    }
}

impl Objects for Attaching {
    fn freed(&self, id: u64, state: State) {
        // No other references: the last call that used it has returned.
        let tracked = Arc::try_unwrap(state.downcast::<Tracked>().unwrap()).expect("a state in use is freed");
        assert_eq!(tracked.id, id);
        assert!(!tracked.freed.swap(true, Ordering::SeqCst), "freed twice");
        self.0.freed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Operations for Attaching {
    fn interest(&self) -> OpSet {
        OpSet::ALL
    }

    fn before(&self, _cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        match op {
            Op::Getattr { file } | Op::Open { file, .. } | Op::Read { file, .. } | Op::Write { file, .. } => {
                self.touch(file);
            }
            Op::Lookup { dir, .. } => self.touch(dir),
            Op::Link { dir, target, .. } | Op::Rename { dir, new_dir: target, .. } => {
                self.touch(dir);
                self.touch(target);
            }
            Op::Getxattr { file, name: b"user.path" } => {
                return match file.path() {
                    Some(path) => Ok(Verdict::Reply(Reply::Bytes(path))),
                    None => Err(Errno::NODATA),
                };
            }
            _ => {}
        }
        Ok(Verdict::Proceed)
    }
}

/// A codec that uses the file's state in each call.
#[derive(Debug)]
struct Using(Chain, Attaching);

impl Data for Using {
    fn block_size(&self) -> usize {
        self.0.block_size()
    }
    fn applies(&self, _cx: &Cx<'_>, file: &Object<'_>) -> Result<bool> {
        self.1.touch(file);
        Ok(true)
    }
    fn encode_data(&self, cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()> {
        self.1.touch(at.file);
        self.0.encode_data(cx, at, plain, encoded)
    }
    fn decode_data(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()> {
        self.1.touch(at.file);
        self.0.decode_data(cx, at, encoded, plain)
    }
}

fn attaching(lower: Arc<dyn Layer>) -> (Arc<dyn Layer>, Attaching) {
    let hook = Attaching::default();
    let template = Template::over(lower).objects(hook.clone()).operations(hook.clone());
    (template.data(Using(Chain(16), hook.clone())).build().unwrap(), hook)
}

#[test]
fn state_lives_as_long_as_its_object_is_in_use() {
    let (layer, hook) = attaching(MemFs::new());
    let root = layer.root();
    let (entry, file) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    // The state of the file, because its data is accessed.
    assert_eq!(hook.counts(), (1, 0));
    // Another vnode of the same object has the same state.
    let again = root.lookup(&ROOT, name("f")).unwrap().unwrap().vnode;
    again.getattr(&ROOT).unwrap();
    assert_eq!(hook.counts(), (2, 0), "that of the root is new");
    drop((entry, again));
    file.write(&ROOT, b"through the open file alone", 0).unwrap();
    root.unlink(&ROOT, name("f")).unwrap();
    file.write(&ROOT, b"and after its name is gone", 0).unwrap();
    assert_eq!(hook.counts(), (2, 0));
    drop(file);
    assert_eq!(hook.counts(), (2, 1));
    drop(root);
    assert_eq!(hook.counts(), (2, 1));
    drop(layer);
    assert_eq!(hook.counts(), (2, 2));
}

#[test]
fn a_panic_in_freed_is_contained() {
    #[derive(Debug)]
    struct Panics(Attaching);
    impl Objects for Panics {
        fn freed(&self, id: u64, state: State) {
            self.0.freed(id, state);
            panic!("for this test");
        }
    }
    let hook = Attaching::default();
    let layer = Template::over(MemFs::new()).objects(Panics(hook.clone())).operations(hook.clone()).build().unwrap();
    let dir = layer.root().mkdir(&ROOT, name("d"), 0o755).unwrap().vnode;
    dir.getattr(&ROOT).unwrap();
    drop(dir);
    assert_eq!(hook.counts(), (1, 1));
    layer.root().mkdir(&ROOT, name("e"), 0o755).unwrap();
}

#[test]
fn without_the_hook_no_state_is_attached() {
    #[derive(Debug)]
    struct Tries;
    impl Operations for Tries {
        fn interest(&self) -> OpSet {
            OpSet::ALL
        }
        fn before(&self, _cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
            if let Op::Getattr { file } = op {
                assert!(file.attach(Arc::new(7)).is_none() && file.attached().is_none() && file.path().is_none());
                assert_eq!(file.hold().unwrap().id(), file.id());
            }
            Ok(Verdict::Proceed)
        }
    }
    Template::over(MemFs::new()).operations(Tries).build().unwrap().root().getattr(&ROOT).unwrap();
    // A layer may request paths without state.
    Template::over(MemFs::new()).paths().build().unwrap().root().getattr(&ROOT).unwrap();
}

/// Threads use and drop the same objects: each state is freed once, and never while in use.
#[test]
fn state_is_freed_once_after_its_last_use() {
    let (layer, hook) = attaching(MemFs::new());
    for file in ["a", "b", "c"] {
        let (_, file) = layer.root().create(&ROOT, name(file), 0o644, OpenFlags::RDWR).unwrap();
        file.write(&ROOT, b"some words that are more than a block", 0).unwrap();
    }
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let layer = &layer;
            scope.spawn(move || {
                let mut rng = Rng::xorshift_star(seed);
                for _ in 0..4000 {
                    let at = ["a", "b", "c"][rng.below(3)];
                    let vnode = layer.root().lookup(&ROOT, name(at)).unwrap().unwrap().vnode;
                    if rng.one_in(2) {
                        vnode.getattr(&ROOT).unwrap();
                    }
                    if rng.one_in(2) {
                        let file = vnode.open(&ROOT, OpenFlags::RDONLY).unwrap();
                        drop(vnode);
                        assert_eq!(file.read(&ROOT, &mut [0; 40], 0), Ok(37));
                    }
                }
            });
        }
    });
    let (attached, freed) = hook.counts();
    assert!(attached > 100, "{attached}");
    // The state of the root is freed last.
    assert_eq!(freed, attached - 1);
    drop(layer);
    assert_eq!(hook.counts(), (attached, attached));
}

fn tracing_paths(lower: Arc<dyn Layer>) -> Arc<dyn Layer> {
    let hook = Attaching::default();
    Template::over(lower).names(Stretch(2)).operations(hook.clone()).objects(hook).paths().build().unwrap()
}

fn path(vnode: &Arc<dyn Vnode>) -> Option<String> {
    let mut out = [0; 4096];
    match vnode.getxattr(&ROOT, b"user.path", &mut out) {
        Ok(len) => Some(String::from_utf8(out[..len].to_vec()).unwrap()),
        Err(errno) => {
            assert_eq!(errno, Errno::NODATA);
            None
        }
    }
}

fn find(dir: &Arc<dyn Vnode>, at: &str) -> Arc<dyn Vnode> {
    dir.lookup(&ROOT, name(at)).unwrap().unwrap().vnode
}

fn rename(from: &Arc<dyn Vnode>, old: &str, to: &Arc<dyn Vnode>, new: &str, exchange: bool) {
    let flags = RenameFlags { exchange, ..RenameFlags::default() };
    from.rename(&ROOT, name(old), to, name(new), flags).unwrap();
}

#[test]
fn paths_follow_changes_through_the_layer() {
    let below = MemFs::new();
    let layer = tracing_paths(below.clone());
    let root = layer.root();
    assert_eq!(path(&root).unwrap(), "/");
    let a = root.mkdir(&ROOT, name("a"), 0o755).unwrap().vnode;
    let b = a.mkdir(&ROOT, name("b"), 0o755).unwrap().vnode;
    let (entry, _) = b.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    let f = entry.vnode;
    assert_eq!(path(&f).unwrap(), "/a/b/f");
    // A parent directory is renamed.
    rename(&root, "a", &root, "other", false);
    assert_eq!(path(&f).unwrap(), "/other/b/f");
    // A second name, used last and then removed.
    root.link(&ROOT, name("second"), &f).unwrap();
    assert_eq!(path(&f).unwrap(), "/second");
    root.unlink(&ROOT, name("second")).unwrap();
    assert_eq!(path(&f), None);
    find(&b, "f");
    assert_eq!(path(&f).unwrap(), "/other/b/f");
    // Two entries are exchanged; one is replaced.
    let c = root.mkdir(&ROOT, name("c"), 0o755).unwrap().vnode;
    rename(&b, "f", &root, "c", true);
    assert_eq!((path(&f).unwrap(), path(&c).unwrap()), ("/c".into(), "/other/b/f".into()));
    let (g, _) = root.create(&ROOT, name("g"), 0o644, OpenFlags::RDWR).unwrap();
    rename(&root, "c", &root, "g", false);
    assert_eq!((path(&f).unwrap(), path(&g.vnode)), ("/g".into(), None));
    // Failed operations change nothing; an unnamed file has no path.
    assert_eq!(root.rmdir(&ROOT, name("other")), Err(Errno::NOTEMPTY));
    assert_eq!(path(&b).unwrap(), "/other/b");
    let (unnamed, _) = root.tmpfile(&ROOT, 0o600, OpenFlags::RDWR).unwrap();
    assert_eq!(path(&unnamed.vnode), None);
    root.link(&ROOT, name("named"), &unnamed.vnode).unwrap();
    assert_eq!(path(&unnamed.vnode).unwrap(), "/named");
    // Renamed out of band: stale until it is looked up.
    below.root().rename(&ROOT, name("gg"), &below.root(), name("hh"), RenameFlags::default()).unwrap();
    assert_eq!(path(&f).unwrap(), "/g");
    find(&root, "h");
    assert_eq!(path(&f).unwrap(), "/h");
    // A parent directory that is not in use.
    let deep = find(&find(&root, "other"), "b");
    drop((a, b));
    assert_eq!(path(&deep), None);
    find(&root, "other");
    assert_eq!(path(&deep), None);
    let _other = find(&root, "other");
    assert_eq!(path(&deep).unwrap(), "/other/b");
}

/// After each of many random renames, every path resolves to its object.
#[test]
fn paths_resolve_to_their_objects() {
    for seed in 1..=5 {
        let layer = tracing_paths(MemFs::new());
        let mut rng = Rng::xorshift_star(seed);
        let mut dirs = vec![layer.root()];
        for _ in 0..12 {
            let parent = Arc::clone(&dirs[rng.below(dirs.len())]);
            let at = format!("d{}", dirs.len());
            dirs.push(parent.mkdir(&ROOT, name(&at), 0o755).unwrap().vnode);
        }
        let mut moved = 0;
        for step in 0..400 {
            let [from, to] = [0; 2].map(|_| Arc::clone(&dirs[rng.below(dirs.len())]));
            let listed = names(&from);
            let Some(old) = listed.get(rng.below(listed.len().max(1))) else { continue };
            let new = format!("d{}", rng.below(16));
            let flags = RenameFlags { exchange: rng.one_in(4), no_replace: false, whiteout: false };
            let done = from.rename(&ROOT, name(old), &to, name(&new), flags);
            moved += u32::from(done.is_ok());
            for dir in &dirs {
                let Some(path) = path(dir) else {
                    // A replaced directory.
                    assert_eq!(dir.getattr(&ROOT).map_or(0, |attr| attr.nlink), 0, "seed {seed}, step {step}");
                    continue;
                };
                let found =
                    path.split('/').filter(|part| !part.is_empty()).fold(layer.root(), |dir, at| find(&dir, at));
                assert_eq!(found.id(), dir.id(), "seed {seed}, step {step}: {path}");
            }
        }
        assert!(moved > 20, "{moved}");
    }
}
