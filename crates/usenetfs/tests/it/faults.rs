//! Faults at every lower operation of every change in managed directories. After an error or a
//! crash, the entries are in the old or the new state. None is lost or duplicated, and a remount
//! shows the same state.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::{Count, Fault, Faults, MemFs, Plan};
use std::collections::BTreeMap;
use std::sync::Arc;
use usenetfs::{SchemeChoice, UsenetFs};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, Result, SetAttr, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);
const DIGITS: SchemeChoice = SchemeChoice { hash: false, limit: None };
/// A limit so small that two further names split a bucket.
const HASH: SchemeChoice = SchemeChoice { hash: true, limit: Some(2) };
const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };

/// Upper bound for the number of lower operations of a change.
const MAX_OPERATIONS: u64 = 1000;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn over(below: &Arc<MemFs>, wanted: SchemeChoice) -> Arc<dyn Vnode> {
    UsenetFs::new(below.clone(), wanted).root()
}

/// Returns the parent directory and the last name of a path.
fn parent<'a>(root: &Arc<dyn Vnode>, path: &'a str) -> Result<(Arc<dyn Vnode>, Name<'a>)> {
    let Some((dirs, last)) = path.rsplit_once('/') else { return Ok((Arc::clone(root), name(path))) };
    let mut dir = Arc::clone(root);
    for at in dirs.split('/') {
        dir = dir.lookup(&CX, name(at))?.ok_or(Errno::NOENT)?.vnode;
    }
    Ok((dir, name(last)))
}

/// The tested operations.
#[derive(Clone, Copy, Debug)]
enum Op {
    Create(&'static str),
    Mkdir(&'static str),
    Symlink(&'static str),
    /// Create a hard link.
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str, RenameFlags),
    /// Make an empty directory managed, or flat.
    Chmod(&'static str, u32),
}

impl Op {
    fn run(self, root: &Arc<dyn Vnode>) -> Result<()> {
        match self {
            Self::Create(path) => {
                let (dir, last) = parent(root, path)?;
                dir.create(&CX, last, 0o644, OpenFlags::RDWR).map(|_| ())
            }
            Self::Mkdir(path) => {
                let (dir, last) = parent(root, path)?;
                dir.mkdir(&CX, last, 0o755).map(|_| ())
            }
            Self::Symlink(path) => {
                let (dir, last) = parent(root, path)?;
                dir.symlink(&CX, last, b"to").map(|_| ())
            }
            Self::Link(from, to) => {
                let ((dir, last), (new_dir, new_last)) = (parent(root, from)?, parent(root, to)?);
                let file = dir.lookup(&CX, last)?.ok_or(Errno::NOENT)?.vnode;
                new_dir.link(&CX, new_last, &file).map(|_| ())
            }
            Self::Unlink(path) => {
                let (dir, last) = parent(root, path)?;
                dir.unlink(&CX, last)
            }
            Self::Rmdir(path) => {
                let (dir, last) = parent(root, path)?;
                dir.rmdir(&CX, last)
            }
            Self::Rename(from, to, flags) => {
                let ((dir, last), (new_dir, new_last)) = (parent(root, from)?, parent(root, to)?);
                dir.rename(&CX, last, &new_dir, new_last, flags)
            }
            Self::Chmod(path, mode) => {
                let (dir, last) = parent(root, path)?;
                let at = dir.lookup(&CX, last)?.ok_or(Errno::NOENT)?.vnode;
                at.setattr(&CX, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).map(|_| ())
            }
        }
    }
}

const OPS: [Op; 37] = [
    Op::Create("m/123"),
    Op::Create("m/90345"),
    Op::Create("m/new"),
    Op::Create("m/5001"),
    Op::Create("flat/123"),
    Op::Mkdir("m/345"),
    Op::Mkdir("m/77777"),
    Op::Symlink("m/66666"),
    Op::Link("m/1", "m/88888"),
    Op::Link("flat/1", "m/99999"),
    Op::Unlink("m/1"),
    Op::Unlink("m/12345"),
    Op::Unlink("m/overview"),
    Op::Rmdir("m/7000"),
    Op::Rmdir("m/dir"),
    // An empty managed directory: its hidden objects are removed first.
    Op::Rmdir("empty"),
    Op::Rmdir("m/4321"),
    // Refused.
    Op::Rmdir("m"),
    Op::Rmdir("full"),
    // Into, out of and within a managed directory.
    Op::Rename("flat/1", "m/55555", PLAIN),
    Op::Rename("flat/1", "m/word", PLAIN),
    Op::Rename("m/12345", "flat/2", PLAIN),
    Op::Rename("m/overview", "flat/2", PLAIN),
    Op::Rename("m/12345", "m/54321", PLAIN),
    Op::Rename("m/12345", "m/word", PLAIN),
    Op::Rename("m/7000", "m/7001", PLAIN),
    Op::Rename("m/12345", "full/12345", PLAIN),
    // Over an existing entry.
    Op::Rename("m/12345", "m/1", PLAIN),
    Op::Rename("flat/1", "m/overview", PLAIN),
    Op::Rename("m/1", "flat/1", PLAIN),
    Op::Rename("m/7000", "empty", PLAIN),
    Op::Rename("m/7000", "m/4321", PLAIN),
    Op::Rename("full", "m/4321", PLAIN),
    Op::Rename("m/7000", "full", PLAIN),
    Op::Rename("m/1", "m/overview", EXCHANGE),
    Op::Chmod("empty", 0o755),
    Op::Chmod("bare", 0o4755),
];

/// Creates a managed directory with entries of all types, an empty one with hidden objects of the
/// layer, and a flat directory.
fn start(wanted: SchemeChoice) -> Arc<MemFs> {
    let below = MemFs::new();
    let root = over(&below, wanted);
    let make = |op: Op| op.run(&root).unwrap();
    let managed = |path| {
        make(Op::Mkdir(path));
        make(Op::Chmod(path, 0o4755));
    };
    for path in ["m", "empty", "full", "m/4321"] {
        managed(path);
    }
    for path in ["flat", "bare", "m/7000", "m/dir"] {
        make(Op::Mkdir(path));
    }
    for path in [
        "m/1",
        "m/2",
        "m/3",
        "m/12345",
        "m/overview",
        "flat/1",
        "full/10",
        "full/9990",
        "full/1",
        "empty/1",
        "empty/a",
        "m/4321/9",
    ] {
        make(Op::Create(path));
    }
    // Hash keys are random. With this many entries, some operations meet a full bucket and split
    // it.
    let m = root.lookup(&CX, name("m")).unwrap().unwrap().vnode;
    for n in 30_000..30_010_u32 {
        m.mknod(&CX, name(&n.to_string()), 0o100_644, 0).unwrap();
    }
    for path in ["full/1", "full/10", "empty/1", "empty/a", "m/4321/9"] {
        make(Op::Unlink(path));
    }
    below
}

/// Inode number and type by path. Listings and lookups agree on them.
type View = BTreeMap<String, (u64, Kind)>;

fn view(root: &Arc<dyn Vnode>) -> View {
    let mut view = View::new();
    add_to_view(root, "", &mut view);
    view
}

fn add_to_view(dir: &Arc<dyn Vnode>, path: &str, view: &mut View) {
    let mut listed = Vec::new();
    dir.readdir(&CX, 0, &mut |e| {
        listed.push((String::from_utf8(e.name.as_bytes().to_vec()).unwrap(), e.ino, e.kind));
        true
    })
    .unwrap();
    let mut subdirs = 0;
    for (at, ino, kind) in listed {
        let path = format!("{path}{at}");
        let found = dir.lookup(&CX, name(&at)).unwrap().unwrap_or_else(|| panic!("{path} is listed, not found")).vnode;
        assert_eq!((found.id(), found.kind()), (ino, kind), "{path}");
        if kind == Kind::Directory {
            subdirs += 1;
            add_to_view(&found, &format!("{path}/"), view);
        }
        assert!(view.insert(path, (ino, kind)).is_none(), "{at} is listed twice");
    }
    assert_eq!(dir.getattr(&CX).unwrap().nlink, 2 + subdirs, "{path}");
}

/// Compares views. Objects that the operation created may have any number.
fn same(seen: &View, want: &View, old: &View) -> bool {
    let known = |view: &View| -> Vec<_> {
        let is_old = |ino: u64| old.values().any(|(known, _)| *known == ino);
        view.iter().map(|(path, (ino, kind))| (path.clone(), is_old(*ino).then_some(*ino), *kind)).collect()
    };
    known(seen) == known(want)
}

/// An operation, with the views before and after it.
struct Case {
    wanted: SchemeChoice,
    start: Arc<MemFs>,
    op: Op,
    old: View,
    new: View,
    answer: Result<()>,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        [DIGITS, HASH].into_iter().flat_map(|wanted| {
            let start = start(wanted);
            OPS.into_iter().map(move |op| {
                let root = over(&start.fork(&Faults::new()), wanted);
                let old = view(&root);
                let answer = op.run(&root);
                Self { wanted, start: start.clone(), op, old, new: view(&root), answer }
            })
        })
    }

    /// Asserts that the view is the old or the new one. Returns whether it is the new one.
    fn is_new(&self, root: &Arc<dyn Vnode>, what: &str) -> bool {
        let seen = view(root);
        let (is_old, is_new) = (same(&seen, &self.old, &self.old), same(&seen, &self.new, &self.old));
        assert!(
            is_old || is_new,
            "{:?} {:?}, {what}: neither the old view nor the new:\n{seen:?}",
            self.op,
            self.wanted
        );
        is_new
    }

    /// Repeats the operation without faults. It must succeed as if it had not been tried before.
    fn again(&self, root: &Arc<dyn Vnode>, what: &str) {
        assert_eq!(self.op.run(root), self.answer, "{:?} {:?} again, {what}", self.op, self.wanted);
        assert!(self.is_new(root, what));
    }

    /// `run` returns whether the k-th operation existed.
    fn at_every_step(&self, run: impl Fn(&Self, u64) -> bool) {
        let end = (1..MAX_OPERATIONS).find(|&k| !run(self, k));
        assert!(end.is_some(), "{:?} {:?} takes too many operations", self.op, self.wanted);
    }

    fn with_error(&self, plan: Plan) -> bool {
        let what = format!("{:?} at {}", plan.fault, plan.at);
        let faults = Faults::new();
        let below = self.start.fork(&faults);
        let root = over(&below, self.wanted);
        // Keep the directories in use, so that their cached state persists.
        let _used = ["m/1", "full/1", "empty/1"].map(|path| {
            let (dir, last) = parent(&root, path).unwrap();
            dir.lookup(&CX, last).unwrap();
            dir
        });
        faults.arm(plan);
        let answer = self.op.run(&root);
        let fired = faults.fired();
        faults.disarm();
        let is_new = self.is_new(&root, &what);
        let changes = !same(&self.new, &self.old, &self.old);
        assert!(!changes || is_new == answer.is_ok(), "{:?} {:?}, {what}: {answer:?}", self.op, self.wanted);
        assert!(fired || answer == self.answer);
        let mounted = over(&below, self.wanted);
        assert_eq!(self.is_new(&mounted, &format!("{what}, mounted again")), is_new);
        if answer != self.answer {
            self.again(if plan.at.is_multiple_of(2) { &root } else { &mounted }, &what);
        } else {
            assert_usable(&root);
        }
        fired
    }

    fn with_crash(&self, k: u64) -> bool {
        let what = format!("killed at change {k}");
        let faults = Faults::new();
        let below = self.start.fork(&faults);
        let root = over(&below, self.wanted);
        faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
        let answer = self.op.run(&root);
        drop(root);
        let root = over(&below.recover(&Faults::new()), self.wanted);
        let is_new = self.is_new(&root, &what);
        assert!(is_new || answer.is_err(), "{:?} {:?}, {what}: it was done", self.op, self.wanted);
        if !is_new {
            self.again(&root, &what);
        }
        faults.fired()
    }
}

/// Asserts that new entries can be created, even if the operation has removed buckets.
fn assert_usable(root: &Arc<dyn Vnode>) {
    for path in ["m", "full", "empty", "m/4321"] {
        let (dir, last) = parent(root, path).unwrap();
        let Some(found) = dir.lookup(&CX, last).unwrap() else { continue };
        for new in ["10", "1", "9990", "a"].map(name) {
            match found.vnode.create(&CX, new, 0o644, OpenFlags::RDWR) {
                Ok(_) => found.vnode.unlink(&CX, new).unwrap(),
                Err(errno) => assert_eq!(errno, Errno::EXIST, "{path}/{new}"),
            }
        }
    }
}

#[test]
fn an_error_at_any_operation_leaves_the_old_or_the_new_state() {
    for case in Case::all() {
        for (count, fault) in [
            (Count::All, Fault::Error(Errno::IO)),
            (Count::All, Fault::Errors(Errno::IO)),
            (Count::Changes, Fault::Errors(Errno::NOSPC)),
        ] {
            case.at_every_step(|case, k| case.with_error(Plan { count, at: k, fault }));
        }
    }
}

#[test]
fn a_crash_at_any_change_leaves_the_old_or_the_new_state() {
    for case in Case::all() {
        case.at_every_step(Case::with_crash);
    }
}
