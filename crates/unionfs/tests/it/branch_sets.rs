//! Branch changes at every step of every operation.
//!
//! For each operation on the union, the set of branches changes at the k-th lower operation, for k
//! = 1, 2, 3, ..., while vnodes of all objects and open files are in use. The result of the
//! operation and the view afterwards must be those of the operation before or after the change. A
//! new union over the branches in their new order must have the same view and inode numbers.
//! Further runs let a lower operation fail after the change has begun, possibly one of the change
//! itself.
//!
//! As in `faults.rs`, `STRATA_PART`, `STRATA_THIN` and `STRATA_FULL` select other or more
//! operations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::config::{Access, BranchBuilder, Config, configs, threads_config};
use crate::common::op::Op;
use crate::common::op_matrix::{Breadth, single_path_ops, two_path_ops};
use crate::common::path::Path;
use crate::common::random_ops::OpChooser;
use crate::common::report::{Report, is_sampled};
use crate::common::session::{Session, find};
use crate::common::test_union::Start;
use crate::common::threads::{self, THREADS, beneath, run_thread};
use crate::common::tree::Caller;
use crate::common::view::{Object, View, Walk, expected, internal_cx, view};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use testkit::Rng;
use unionfs::{Branch, BranchChange, BuildError, ChangePolicy, Delete, Mode, Options, Unionfs};
use vnode::{Errno, Kind, Layer, Name, OpenFile, OpenFlags, Vnode};

/// A branch in memory, with its path and mode.
#[derive(Clone)]
struct TestBranch {
    path: String,
    mode: Mode,
    fs: Arc<MemFs>,
}

impl TestBranch {
    fn to_branch(&self) -> Branch {
        Branch { layer: self.fs.clone(), path: self.path.clone().into(), mode: self.mode }
    }
}

/// The branches of a union and those that may be inserted, with one fault plan for all.
struct BranchSet {
    faults: Faults,
    delete: Delete,
    present: Vec<TestBranch>,
    available: BTreeMap<&'static str, TestBranch>,
}

impl BranchSet {
    fn new(start: &Start) -> Self {
        let present = start.union.branches.iter().enumerate().map(|(at, (access, fs))| TestBranch {
            path: format!("/branch/{at}"),
            mode: if *access == Access::Rw { Mode::ReadWrite } else { Mode::ReadOnly },
            fs: fs.clone(),
        });
        let present = present.collect();
        let mut available = BTreeMap::new();
        for (name, program) in [("empty", BranchBuilder::new(0).build()), ("used", used()), ("layer", layer())] {
            let fs = MemFs::with(MemOptions::default(), &Faults::new());
            let mut session = Session::new(fs.clone());
            for op in &program {
                session.run(Caller::ROOT, op).unwrap();
            }
            available.insert(name, TestBranch { path: format!("/available/{name}"), mode: Mode::ReadOnly, fs });
        }
        Self { faults: Faults::new(), delete: start.union.delete, present, available }.fork()
    }

    fn fork(&self) -> Self {
        let faults = Faults::new();
        let copy = |branch: &TestBranch| TestBranch { fs: branch.fs.fork(&faults), ..branch.clone() };
        Self {
            present: self.present.iter().map(copy).collect(),
            available: self.available.iter().map(|(name, branch)| (*name, copy(branch))).collect(),
            delete: self.delete,
            faults,
        }
    }

    fn mount(&self) -> Arc<Unionfs> {
        let branches = self.present.iter().map(TestBranch::to_branch).collect();
        Unionfs::new(branches, Options { delete: self.delete, ..Options::default() }).unwrap()
    }
}

/// Returns a branch that another union has written to.
fn used() -> Vec<Op> {
    BranchBuilder::new(200)
        .dir("a", 0o755)
        .mark("a/.wh.f")
        .file("a/mine", 0o644, 9)
        .dir("both", 0o755)
        .file("both/same", 0o644, 8)
        .dir("opq", 0o755)
        .mark("opq/.wh..wh..opq")
        .mark(".wh.x")
        .file("h1", 0o600, 7)
        .dir("empty", 0o700)
        .build()
}

/// Returns a read-only layer that overlaps with the other branches.
fn layer() -> Vec<Op> {
    BranchBuilder::new(230)
        .dir("a", 0o711)
        .file("a/f", 0o600, 50)
        .dir("a/sub", 0o755)
        .file("a/sub/more", 0o644, 51)
        .dir("both", 0o700)
        .file("both/layer", 0o644, 52)
        .mark("both/.wh.lower")
        .dir("both/dir", 0o755)
        .dir("y", 0o755)
        .file("x", 0o644, 53)
        .dir("fresh", 0o755)
        .file("fresh/f", 0o644, 54)
        .file("wf", 0o640, 55)
        .build()
}

/// A change of the set of branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetChange {
    /// Insert an empty read-write branch at the left; leave the others as they are.
    InsertWritable,
    /// The same, and make the other branches read-only.
    Freezing,
    /// Take a snapshot.
    Snapshot,
    /// Insert a branch with whiteouts and opaque directories at the left.
    InsertUsed,
    /// Insert a read-only branch as the second.
    InsertReadOnly,
    /// Append a read-only branch at the right end.
    Append,
    /// Remove the rightmost branch.
    RemoveRightmost,
    /// Remove the leftmost branch.
    RemoveLeftmost,
    /// Remove the second branch.
    RemoveSecond,
    /// Switch the rightmost branch between read-write and read-only.
    Switch,
    /// Make all branches read-only.
    Freeze,
}

const SET_CHANGES: [SetChange; 11] = [
    SetChange::InsertWritable,
    SetChange::Freezing,
    SetChange::Snapshot,
    SetChange::InsertUsed,
    SetChange::InsertReadOnly,
    SetChange::Append,
    SetChange::RemoveRightmost,
    SetChange::RemoveLeftmost,
    SetChange::RemoveSecond,
    SetChange::Switch,
    SetChange::Freeze,
];

impl SetChange {
    /// Returns the branch changes and the resulting branches; `None` if this set of branches does
    /// not permit the change.
    fn changes(self, branches: &BranchSet) -> Option<(Vec<BranchChange>, Vec<TestBranch>)> {
        let mut order = branches.present.clone();
        let insert = |at: usize, branch: &TestBranch| BranchChange::Insert { at, branch: branch.to_branch() };
        let mode = |branch: &mut TestBranch, mode: Mode| {
            branch.mode = mode;
            BranchChange::Mode(branch.path.clone().into(), mode)
        };
        let writable = |name: &str| TestBranch { mode: Mode::ReadWrite, ..branches.available[name].clone() };
        let mut changes = Vec::new();
        let mut remove = |order: &mut Vec<TestBranch>, at: usize| {
            let gone = order.remove(at);
            changes.push(BranchChange::Remove(gone.path.into()));
        };
        match self {
            Self::RemoveRightmost => remove(&mut order, branches.present.len() - 1),
            Self::RemoveLeftmost => remove(&mut order, 0),
            Self::RemoveSecond if order.len() > 2 => remove(&mut order, 1),
            Self::RemoveSecond => return None,
            Self::Snapshot => {
                changes.push(BranchChange::Snapshot(writable("empty").to_branch()));
                order.iter_mut().for_each(|branch| branch.mode = Mode::ReadOnly);
                order.insert(0, writable("empty"));
            }
            Self::InsertWritable | Self::Freezing => {
                let branch = writable("empty");
                changes.push(insert(0, &branch));
                if self == Self::Freezing {
                    for branch in order.iter_mut().filter(|branch| branch.mode == Mode::ReadWrite) {
                        changes.push(mode(branch, Mode::ReadOnly));
                    }
                }
                order.insert(0, branch);
            }
            Self::InsertUsed => {
                changes.push(insert(0, &writable("used")));
                order.insert(0, writable("used"));
            }
            Self::InsertReadOnly => {
                changes.push(insert(1, &branches.available["layer"]));
                order.insert(1, branches.available["layer"].clone());
            }
            Self::Append => {
                changes.push(insert(99, &branches.available["layer"]));
                order.push(branches.available["layer"].clone());
            }
            Self::Switch => {
                let last = order.last_mut()?;
                let other = if last.mode == Mode::ReadWrite { Mode::ReadOnly } else { Mode::ReadWrite };
                changes.push(mode(last, other));
            }
            Self::Freeze => changes.extend(order.iter_mut().map(|branch| mode(branch, Mode::ReadOnly))),
        }
        let writes = order.iter().any(|branch| branch.mode == Mode::ReadWrite);
        let allowed = order.first().is_some_and(|first| first.mode == Mode::ReadWrite || !writes);
        allowed.then_some((changes, order))
    }
}

/// Objects that a user has in use: vnodes of all objects, and open files.
struct InUse {
    vnodes: Vec<(Path, Arc<dyn Vnode>)>,
    files: Vec<(Path, Arc<dyn OpenFile>, Vec<u8>)>,
}

impl InUse {
    fn new(layer: &dyn Layer, seen: &View) -> Self {
        let mut in_use = Self { vnodes: Vec::new(), files: Vec::new() };
        for (path, object) in &seen.0 {
            let vnode = find(&internal_cx(), layer, path).unwrap();
            if object.kind == Kind::Regular {
                let file = vnode.open(&internal_cx(), OpenFlags::RDONLY).unwrap();
                in_use.files.push((path.clone(), file, object.bytes.to_vec()));
            }
            in_use.vnodes.push((path.clone(), vnode));
        }
        in_use
    }

    /// Checks that objects in use work or are stale, and that each remaining object has one vnode.
    fn check(&self, layer: &dyn Layer) -> Result<(), String> {
        for (path, vnode) in &self.vnodes {
            match vnode.getattr(&internal_cx()) {
                Ok(attr) if attr.ino != vnode.id() => {
                    return Err(format!("/{path:?}, in use: the inode number changed"));
                }
                Ok(_) | Err(Errno::STALE) => {}
                Err(e) => return Err(format!("/{path:?}, in use: getattr: {e}")),
            }
            let mut names = Vec::new();
            if vnode.kind() == Kind::Directory {
                match vnode.readdir(&internal_cx(), 0, &mut |entry| {
                    names.push(entry.name.as_bytes().to_vec());
                    true
                }) {
                    Ok(()) | Err(Errno::STALE) => {}
                    Err(e) => return Err(format!("/{path:?}, in use: readdir: {e}")),
                }
                for name in names {
                    if vnode.lookup(&internal_cx(), Name::new(&name).unwrap()).map_err(|e| e.to_string())?.is_none() {
                        return Err(format!("/{path:?}, in use: readdir lists a name that lookup does not find"));
                    }
                }
            }
            if let Ok(now) = find(&internal_cx(), layer, path)
                && now.id() == vnode.id()
                && now.kind() == vnode.kind()
                && !Arc::ptr_eq(&now, vnode)
            {
                return Err(format!("/{path:?}: two vnodes with one inode number"));
            }
        }
        Ok(())
    }
}

/// Returns a view without the values that may differ between two runs of one operation.
fn comparable(seen: &View) -> View {
    let mut view = seen.clone();
    for object in view.0.values_mut() {
        (object.ino, object.mtime) = (0, None);
        // The count depends on how a name was hidden: by a logged whiteout or by a branch change.
        object.nlink = 0;
    }
    view
}

type Answer = Result<(), Errno>;

/// The result of an operation, and the view afterwards.
type Outcome = (Answer, View);

/// An operation, and a change of the branches that happens during it.
struct Case<'a> {
    branches: &'a BranchSet,
    op: &'a Op,
    set_change: SetChange,
}

/// The permitted outcomes.
struct Permitted {
    /// The operation, then the change.
    operation_first: Outcome,
    /// The change, then the operation.
    change_first: Outcome,
    /// Only the change.
    change_only: View,
    /// Only the operation.
    operation_only: Outcome,
    /// Neither of them.
    neither: View,
}

impl Permitted {
    /// Whether the view is permitted after both the operation and the change, in either order. An
    /// operation that yielded to the change may already have copied directories up, with their
    /// attributes from before the change.
    fn allows(&self, what: &View, accepts: impl Fn(Answer) -> bool) -> bool {
        let all = [&self.operation_first, &self.change_first];
        let of_any = |path: &Path, object: &Object| all.iter().any(|(_, view)| view.0.get(path) == Some(object));
        all.iter().filter(|(answer, _)| accepts(*answer)).any(|(_, view)| {
            let keys = view.0.len() == what.0.len();
            keys && what.0.iter().all(|(path, object)| match view.0.get(path) {
                Some(one) if object.kind == Kind::Directory => one.kind == object.kind && of_any(path, object),
                one => one == Some(object),
            })
        })
    }
}

impl Case<'_> {
    fn permitted(&self) -> Option<Permitted> {
        let look = |layer: &Arc<Unionfs>| comparable(&view(&**layer, Walk::Loose).unwrap());
        let run = |union: &Arc<Unionfs>| Session::new(union.clone()).run(Caller::USER, self.op);
        let set_change = |branches: &BranchSet, union: &Arc<Unionfs>| {
            self.set_change.changes(branches).map(|(changes, _)| union.change_branches(changes, &KEEP).unwrap())
        };
        let branches = self.branches.fork();
        let union = branches.mount();
        let neither = look(&union);
        set_change(&branches, &union)?;
        let change_only = look(&union);
        let change_first = (run(&union), look(&union));
        let branches = self.branches.fork();
        let union = branches.mount();
        let answer = run(&union);
        let operation_only = (answer, look(&union));
        set_change(&branches, &union)?;
        let operation_first = (answer, look(&union));
        Some(Permitted { operation_first, change_first, change_only, operation_only, neither })
    }

    /// Whether the view is that after only the change, apart from copies that the failed operation
    /// has made. A copy hides objects of an inserted branch and remains if its original is removed.
    fn differs_only_by_copies(&self, permitted: &Permitted, what: &View) -> bool {
        let removes =
            [SetChange::RemoveRightmost, SetChange::RemoveSecond, SetChange::RemoveLeftmost].contains(&self.set_change);
        let same =
            |(path, object)| what.0.get(path) == Some(object) || permitted.neither.0.get(path) == what.0.get(path);
        let known = |(path, object)| {
            permitted.change_only.0.contains_key(path) || (removes && permitted.neither.0.get(path) == Some(object))
        };
        permitted.change_only.0.iter().all(same) && what.0.iter().all(known)
    }

    /// Runs the operation with the change at the k-th lower operation, and then arms `fault` if
    /// given. Returns whether step k was reached.
    fn run(&self, permitted: &Permitted, k: u64, fault: Option<Plan>) -> Result<bool, String> {
        let mut branches = self.branches.fork();
        let union = branches.mount();
        let seen = view(&*union, Walk::Loose)?;
        let in_use = InUse::new(&*union, &seen);
        let (changes, order) = self.set_change.changes(&branches).ok_or("no such change")?;
        let changed = change_at(&union, &branches.faults, k, changes, fault);
        let mut answer = Session::new(union.clone()).run(Caller::USER, self.op);
        if answer == Err(Errno::STALE) {
            // The kernel repeats the path walk after ESTALE.
            answer = Session::new(union.clone()).run(Caller::USER, self.op);
        }
        let fired = !branches.faults.forget_call();
        let done = if fired {
            changed.recv_timeout(TIMEOUT * 2).map_err(|_| "the branch change hangs".to_owned())?
        } else {
            Err(BuildError::Busy)
        };
        branches.faults.disarm();
        let live = view(&*union, Walk::Loose).map_err(|e| format!("{answer:?}, {done:?}, {e}"))?;
        let what = comparable(&live);
        let matches = match (&done, fault) {
            (Err(_), None) if fired => return Err(format!("the branch change fails: {done:?}")),
            (Ok(()), None) => permitted.allows(&what, |permitted| permitted == answer),
            (Ok(()), Some(_)) if answer.is_ok() => permitted.allows(&what, |permitted| permitted.is_ok()),
            (Ok(()), Some(_)) => permitted.change_only == what || self.differs_only_by_copies(permitted, &what),
            (Err(_), _) if answer.is_ok() => permitted.operation_only.1 == what,
            (Err(_), _) => permitted.neither == what,
        };
        if !matches {
            let like =
                |(answer, seen): (Answer, &View), name: &str| format!("{name}: {answer:?}\n{}", diff(&what, seen));
            let all = [
                like((permitted.operation_first.0, &permitted.operation_first.1), "operation, change"),
                like((permitted.change_first.0, &permitted.change_first.1), "change, operation"),
                like((Ok(()), &permitted.change_only), "change"),
                like((permitted.operation_only.0, &permitted.operation_only.1), "operation"),
                like((Ok(()), &permitted.neither), "neither"),
            ];
            return Err(format!("operation: {answer:?}, change: {done:?}; compared with\n{}", all.join("\n")));
        }
        in_use.check(&*union).map_err(|e| format!("{answer:?}, {done:?}, {e}"))?;
        let live = view(&*union, Walk::Loose)?;
        drop((in_use, union));
        if done.is_ok() {
            branches.present = order;
        }
        check_remount(&branches, live).map_err(|e| format!("{answer:?}, {done:?}, {e}"))?;
        Ok(fired)
    }
}

/// Checks that a new union over the same branches has the same view.
fn check_remount(branches: &BranchSet, live: View) -> Result<(), String> {
    let writes = branches.present.iter().any(|branch| branch.mode == Mode::ReadWrite);
    let union = branches.mount();
    let fresh = view(&*union, Walk::Loose).map_err(|e| format!("after a remount: {e}"))?;
    // A read-only union has no identity log, so its inode numbers may change.
    let numbered = |mut view: View| {
        if !writes {
            view.0.values_mut().for_each(|object| object.ino = 0);
        }
        // The mount may have created the identity log in the root.
        view.0.entry(Path::root()).and_modify(|root| root.mtime = None);
        view
    };
    let (live, fresh) = (numbered(live), numbered(fresh));
    if live == fresh {
        return Ok(());
    }
    Err(diff(&live, &fresh))
}

/// Returns the differences between two views.
fn diff(live: &View, fresh: &View) -> String {
    let differ = |path: &&Path| live.0.get(*path) != fresh.0.get(*path);
    let paths: std::collections::BTreeSet<&Path> = live.0.keys().chain(fresh.0.keys()).collect();
    let lines = paths
        .iter()
        .filter(|path| differ(path))
        .map(|path| format!("/{path:?}: {:?}, expected {:?}", live.0.get(*path), fresh.0.get(*path)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Time limit for a branch change, long enough that only a deadlock exceeds it.
const TIMEOUT: Duration = Duration::from_secs(20);
const KEEP: ChangePolicy = ChangePolicy { patience: TIMEOUT, in_use: unionfs::InUse::Keep, expected_generation: None };

/// Arranges for the branches to change at the k-th lower operation from now on.
fn change_at(
    union: &Arc<Unionfs>,
    faults: &Faults,
    k: u64,
    changes: Vec<BranchChange>,
    fault: Option<Plan>,
) -> mpsc::Receiver<Result<(), BuildError>> {
    let (sender, receiver) = mpsc::channel();
    let (union, arm) = (Arc::downgrade(union), faults.clone());
    faults.call_at(k, move || {
        let Some(union) = union.upgrade() else { return };
        if let Some(plan) = fault {
            arm.arm(plan);
        }
        let (ended, end) = mpsc::channel();
        let changer = union.clone();
        std::thread::spawn(move || {
            let done = changer.change_branches(changes, &KEEP);
            drop(changer);
            let _ = ended.send(());
            let _ = sender.send(done);
        });
        // The change completes during an operation that only reads, but waits for one that changes
        // the union. Continue the operation in either case.
        let patience = Instant::now() + Duration::from_millis(200);
        while end.try_recv().is_err() && !union.change_is_waiting() && Instant::now() < patience {
            std::thread::yield_now();
        }
    });
    receiver
}

/// Upper bound for the steps of one operation on trees of this size.
const MAX_STEPS: u64 = 3000;

fn every_step(report: &mut Report, what: &str, mut run: impl FnMut(u64) -> Result<bool, String>) {
    let mut failing = 0;
    for k in 1..=MAX_STEPS {
        let outcome = run(k);
        let more = *outcome.as_ref().unwrap_or(&true);
        failing = if outcome.is_err() { failing + 1 } else { 0 };
        report.record(|| format!("{what}, step {k}"), outcome.map(|_| ()));
        if !more || failing == 20 {
            return;
        }
    }
    report.record(|| what.to_owned(), Err(format!("takes more than {MAX_STEPS} steps")));
}

fn ops(start: &Start) -> Vec<Op> {
    let breadth = if testkit::number("STRATA_FULL").is_some() { Breadth::All } else { Breadth::Representative };
    let mut ops = single_path_ops(&start.tree, breadth);
    ops.extend(two_path_ops(&start.tree, breadth));
    ops
}

/// Tries each change at every step of one in `n` operations, without and with a fault after it.
fn run_config(at: usize, n: u64) {
    let config: &Config = &configs()[at];
    let mut report = Report::default();
    let start = Start::new(config, Delete::Whiteout, MemOptions::default());
    let branches = BranchSet::new(&start);
    for set_change in SET_CHANGES {
        for op in ops(&start) {
            if !is_sampled(&format!("{} {set_change:?}", config.name), &format!("{op:?}"), n) {
                continue;
            }
            let case = Case { branches: &branches, op: &op, set_change };
            let Some(permitted) = case.permitted() else { continue };
            every_step(&mut report, &format!("{op:?} {set_change:?} {}", config.name), |k| {
                case.run(&permitted, k, None)
            });
            for (fault, count) in [(Fault::Error(Errno::IO), Count::All), (Fault::Errors(Errno::NOSPC), Count::Changes)]
            {
                let what = format!("{op:?} {set_change:?} {fault:?} {}", config.name);
                every_step(&mut report, &what, |k| {
                    let at = 1 + (k * 7 + op_hash(&op)) % 23;
                    case.run(&permitted, k, Some(Plan { count, at, fault }))
                });
            }
        }
    }
    report.finish(&config.name);
}

fn op_hash(op: &Op) -> u64 {
    format!("{op:?}").bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

#[test]
fn empty_over_read_only() {
    run_config(0, 4000);
}

#[test]
fn used_over_read_only() {
    run_config(1, 4000);
}

#[test]
fn two_writable_over_read_only() {
    run_config(2, 4000);
}

#[test]
fn writable_over_two_read_only() {
    run_config(3, 4000);
}

#[test]
fn read_only_between_writable() {
    run_config(4, 4000);
}

#[test]
fn two_writable() {
    run_config(5, 4000);
}

#[test]
fn redirects() {
    run_config(6, 4000);
}

#[test]
fn one_branch() {
    run_config(7, 4000);
}

#[test]
fn metacopies() {
    run_config(8, 4000);
}

/// Returns a new empty branch.
fn empty_branch(path: &str, mode: Mode) -> TestBranch {
    TestBranch { path: path.to_owned(), mode, fs: MemFs::with(MemOptions::default(), &Faults::new()) }
}

/// Returns a change that does not alter the view: a new read-write branch at the left, an empty
/// branch inserted or removed, or another mode of a branch at the right end.
fn invisible_change(branches: &mut BranchSet, round: usize) -> Vec<BranchChange> {
    let set = |branch: &mut TestBranch, mode: Mode| {
        branch.mode = mode;
        BranchChange::Mode(branch.path.clone().into(), mode)
    };
    let empty = branches.present.iter().position(|branch| branch.path.starts_with("/between"));
    match (round % 4, empty) {
        (0, _) => {
            let new = empty_branch(&format!("/left/{round}"), Mode::ReadWrite);
            let mut changes = vec![BranchChange::Insert { at: 0, branch: new.to_branch() }];
            if round.is_multiple_of(8) {
                changes.extend(branches.present.iter_mut().map(|branch| set(branch, Mode::ReadOnly)));
            }
            branches.present.insert(0, new);
            changes
        }
        (1, None) => {
            let new = empty_branch(&format!("/between/{round}"), Mode::ReadOnly);
            let change = BranchChange::Insert { at: 1, branch: new.to_branch() };
            branches.present.insert(1, new);
            vec![change]
        }
        (1, Some(at)) => {
            let gone = branches.present.remove(at);
            vec![BranchChange::Remove(gone.path.into())]
        }
        _ => {
            // Not the inserted branches: files written to them would disappear with them.
            let mut others: Vec<&mut TestBranch> = branches.present.iter_mut().skip(1).collect();
            others.retain(|branch| !branch.path.starts_with("/between"));
            let at = round % others.len();
            vec![set(others[at], if round % 4 == 2 { Mode::ReadWrite } else { Mode::ReadOnly })]
        }
    }
}

/// Threads read and write while the branches change in ways that do not alter the view: each
/// operation must return what its model expects, and at the end each private directory must match
/// its model.
#[test]
fn threads_match_their_models_during_invisible_branch_changes() {
    for delete in [Delete::Whiteout, Delete::All] {
        let seed = testkit::number("STRATA_SEED").unwrap_or(43);
        let steps = testkit::number("STRATA_STEPS").unwrap_or(400) as usize;
        println!("STRATA_SEED={seed} STRATA_STEPS={steps}");
        let start = Start::new(&threads_config(THREADS), delete, MemOptions::default());
        let mut branches = BranchSet::new(&start);
        let union = branches.mount();
        let (sender, receiver) = mpsc::channel();
        for thread in 0..THREADS {
            let (layer, model, sender) = (union.clone() as Arc<dyn Layer>, start.tree.clone(), sender.clone());
            let own = Path::from(format!("t{thread}").as_str());
            std::thread::spawn(move || {
                let outcome = run_thread(layer, model, &own, seed * 100 + thread as u64, steps);
                let _ = sender.send((own, outcome));
            });
        }
        drop(sender);
        let mut models = Vec::new();
        let begun = Instant::now();
        let mut round = 0;
        while models.len() < THREADS {
            match receiver.recv_timeout(Duration::from_millis(5)) {
                Ok((own, Ok(model))) => models.push((own, model)),
                Ok((own, Err(e))) => panic!("/{own:?}, seed {seed}: {e}"),
                Err(mpsc::RecvTimeoutError::Disconnected) => panic!("seed {seed}: a thread panicked"),
                Err(mpsc::RecvTimeoutError::Timeout) if begun.elapsed() > threads::TIMEOUT => {
                    panic!("seed {seed}: the threads hang")
                }
                Err(mpsc::RecvTimeoutError::Timeout) if round < 60 => {
                    let changes = invisible_change(&mut branches, round);
                    union.change_branches(changes, &KEEP).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                    round += 1;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
        let live = view(&*union, Walk::User).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for (own, model) in &models {
            let (got, mut want) = (beneath(&live, own), beneath(&expected(model), own));
            want.0.values_mut().for_each(|object| object.mtime = None);
            assert!(got == want, "seed {seed}, after {round} changes, /{own:?}:\n{}", diff(&got, &want));
        }
        drop(union);
        check_remount(&branches, live).unwrap_or_else(|e| panic!("seed {seed}, after {round} changes: {e}"));
    }
}

/// Threads walk, read and write while branches with content are inserted and removed: no thread
/// hangs or gets an error that neither set of branches explains, and a remount finds the same view.
#[test]
fn threads_survive_visible_branch_changes() {
    let start = Start::new(&configs()[2], Delete::Whiteout, MemOptions::default());
    let mut branches = BranchSet::new(&start);
    let union = branches.mount();
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for thread in 0..THREADS as u64 {
        let (union, stop, tree) = (union.clone(), stop.clone(), start.tree.clone());
        threads.push(std::thread::spawn(move || {
            let mut rng = Rng::new(thread + 1);
            let mut session = Session::new(union.clone());
            let mut count = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let op = OpChooser { rng: &mut rng, beneath: Path::root(), keeps_open: true }.op(&tree);
                match session.run(Caller::ROOT, &op) {
                    // No operation returns these errors before or after any change.
                    Err(e @ (Errno::IO | Errno::BADF | Errno::AGAIN | Errno::FAULT)) => {
                        panic!("{op:?}: {e}")
                    }
                    _ => count += 1,
                }
            }
            count
        }));
    }
    // After whole cycles, the set has no branch left over from an earlier one. It could redirect
    // other names to directories that were renamed since: these would be visible twice.
    for set_change in SET_CHANGES.repeat(7) {
        // The threads use the union meanwhile.
        std::thread::sleep(Duration::from_millis(3));
        // A removed branch can be inserted again in a later round.
        let Some((changes, order)) = set_change.changes(&branches) else { continue };
        match union.change_branches(changes, &KEEP) {
            Ok(()) => branches.present = order,
            Err(BuildError::NoBranches | BuildError::Duplicate(_)) => {}
            Err(e) => panic!("{set_change:?}: {e}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    let counts: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    println!("{counts:?} operations");
    let live = view(&*union, Walk::Loose).unwrap();
    drop(union);
    check_remount(&branches, live).unwrap();
}
