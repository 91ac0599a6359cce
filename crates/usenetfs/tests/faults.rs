//! Every change of entries in managed directories fails, or is killed, at every operation below: then entries are as they were before
//! or as they are after, none lost, none twice, and the same when mounted again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use memfs::{Count, Fault, Faults, MemFs, Plan};
use std::collections::BTreeMap;
use std::sync::Arc;
use usenetfs::{UsenetFs, Wanted};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, Result, SetAttr, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);
const DIGITS: Wanted = Wanted { hash: false, limit: None };
/// Any two names more split a bucket.
const HASH: Wanted = Wanted { hash: true, limit: Some(2) };
const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };

/// More operations than any change takes here.
const MOST: u64 = 1000;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn over(below: &Arc<MemFs>, wanted: Wanted) -> Arc<dyn Vnode> {
    UsenetFs::new(below.clone(), wanted).root()
}

/// The directory of a path, and the last name.
fn parent<'a>(root: &Arc<dyn Vnode>, path: &'a str) -> Result<(Arc<dyn Vnode>, Name<'a>)> {
    let Some((dirs, last)) = path.rsplit_once('/') else { return Ok((Arc::clone(root), name(path))) };
    let mut dir = Arc::clone(root);
    for at in dirs.split('/') {
        dir = dir.lookup(&CX, name(at))?.ok_or(Errno::NOENT)?.vnode;
    }
    Ok((dir, name(last)))
}

/// What is tried.
#[derive(Clone, Copy, Debug)]
enum Op {
    Create(&'static str),
    Mkdir(&'static str),
    Symlink(&'static str),
    /// Another name of a file.
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str, RenameFlags),
    /// An empty directory becomes managed, or flat.
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
    // Managed itself, and empty: what is hidden in it goes first.
    Op::Rmdir("empty"),
    Op::Rmdir("m/4321"),
    // Refused.
    Op::Rmdir("m"),
    Op::Rmdir("full"),
    // In, out, within.
    Op::Rename("flat/1", "m/55555", PLAIN),
    Op::Rename("flat/1", "m/word", PLAIN),
    Op::Rename("m/12345", "flat/2", PLAIN),
    Op::Rename("m/overview", "flat/2", PLAIN),
    Op::Rename("m/12345", "m/54321", PLAIN),
    Op::Rename("m/12345", "m/word", PLAIN),
    Op::Rename("m/7000", "m/7001", PLAIN),
    Op::Rename("m/12345", "full/12345", PLAIN),
    // Over something.
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

/// A managed directory with entries of all kinds; one that is empty, but has what the layer keeps; one that is not.
fn start(wanted: Wanted) -> Arc<MemFs> {
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
    // Keys of hashes are random: with so many entries some operation or other finds a bucket that is full, and splits it.
    let m = root.lookup(&CX, name("m")).unwrap().unwrap().vnode;
    for n in 30_000..30_010_u32 {
        m.mknod(&CX, name(&n.to_string()), 0o100_644, 0).unwrap();
    }
    for path in ["full/1", "full/10", "empty/1", "empty/a", "m/4321/9"] {
        make(Op::Unlink(path));
    }
    below
}

/// Paths with what is there: its number and kind. A listing and look-ups agree.
type View = BTreeMap<String, (u64, Kind)>;

fn view(root: &Arc<dyn Vnode>) -> View {
    let mut view = View::new();
    look(root, "", &mut view);
    view
}

fn look(dir: &Arc<dyn Vnode>, path: &str, view: &mut View) {
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
            look(&found, &format!("{path}/"), view);
        }
        assert!(view.insert(path, (ino, kind)).is_none(), "{at} is listed twice");
    }
    assert_eq!(dir.getattr(&CX).unwrap().nlink, 2 + subdirs, "{path}");
}

/// What was made by the operation has whatever number it got.
fn same(seen: &View, want: &View, old: &View) -> bool {
    let known = |view: &View| -> Vec<_> {
        let is_old = |ino: u64| old.values().any(|(known, _)| *known == ino);
        view.iter().map(|(path, (ino, kind))| (path.clone(), is_old(*ino).then_some(*ino), *kind)).collect()
    };
    known(seen) == known(want)
}

/// An operation, and the views before and after.
struct Case {
    wanted: Wanted,
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

    /// Looks at the view; true: it is the new one.
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

    /// Once more, without faults: it goes as if it had never been tried.
    fn again(&self, root: &Arc<dyn Vnode>, what: &str) {
        assert_eq!(self.op.run(root), self.answer, "{:?} {:?} again, {what}", self.op, self.wanted);
        assert!(self.is_new(root, what));
    }

    /// `run` answers whether there was a k-th operation to fail at.
    fn at_every_step(&self, run: impl Fn(&Self, u64) -> bool) {
        let end = (1..MOST).find(|&k| !run(self, k));
        assert!(end.is_some(), "{:?} {:?} takes too many operations", self.op, self.wanted);
    }

    fn with_error(&self, plan: Plan) -> bool {
        let what = format!("{:?} at {}", plan.fault, plan.at);
        let faults = Faults::new();
        let below = self.start.fork(&faults);
        let root = over(&below, self.wanted);
        // In use, so that what is known of them is still believed afterwards.
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
            still_in_use(&root);
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

/// New entries find the buckets they need, whatever an operation has removed of them.
fn still_in_use(root: &Arc<dyn Vnode>) {
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
fn an_error_at_every_operation_leaves_the_old_view_or_the_new() {
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
fn a_kill_at_every_change_leaves_the_old_view_or_the_new() {
    for case in Case::all() {
        case.at_every_step(Case::with_crash);
    }
}
