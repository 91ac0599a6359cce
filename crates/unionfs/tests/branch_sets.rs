//! The set of branches changes at every step of every operation.
//!
//! For each operation, the set changes at the k-th operation on the branches, for k = 1, 2, 3, ...,
//! while vnodes of everything and some open files are in use. What the operation answers, and what
//! is seen afterwards, must be right for an operation before the change or after it; and a union
//! that is mounted anew over the same branches in their new order must show the same, with the same
//! numbers. A second plan lets an operation on a branch fail after that, be it one of the change.
//!
//! As in `faults.rs`, `STRATA_PART`, `STRATA_THIN` and `STRATA_FULL` choose other or more
//! operations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::config::{Access, BranchBuilder, Config, configs, threads_config};
use common::op::Op;
use common::op_matrix::{Breadth, single_path_ops, two_path_ops};
use common::path::Path;
use common::random_ops::OpChooser;
use common::report::{Report, env_number, is_sampled};
use common::rng::Rng;
use common::session::{Session, find};
use common::test_union::Start;
use common::threads::{self, THREADS, beneath, run_thread};
use common::tree::Caller;
use common::view::{Object, View, Walk, expected, internal_cx, view};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use unionfs::{Branch, BranchChange, BuildError, Delete, Mode, Options, Unionfs};
use vnode::{Errno, Kind, Layer, Name, OpenFile, OpenFlags, Vnode};

/// A branch in memory, known by its path.
#[derive(Clone)]
struct Disk {
    path: String,
    mode: Mode,
    fs: Arc<MemFs>,
}

impl Disk {
    fn branch(&self) -> Branch {
        Branch { layer: self.fs.clone(), path: self.path.clone().into(), mode: self.mode }
    }
}

/// Branches, those that may come in, and one plan of faults for all.
struct Disks {
    faults: Faults,
    delete: Delete,
    present: Vec<Disk>,
    spare: BTreeMap<&'static str, Disk>,
}

impl Disks {
    fn new(start: &Start) -> Self {
        let present = start.union.branches.iter().enumerate().map(|(at, (access, fs))| Disk {
            path: format!("/branch/{at}"),
            mode: if *access == Access::Rw { Mode::ReadWrite } else { Mode::ReadOnly },
            fs: fs.clone(),
        });
        let present = present.collect();
        let mut spare = BTreeMap::new();
        for (name, program) in [("empty", BranchBuilder::new(0).build()), ("used", used()), ("layer", layer())] {
            let fs = MemFs::with(MemOptions::default(), &Faults::new());
            let mut session = Session::new(fs.clone());
            for op in &program {
                session.run(Caller::ROOT, op).unwrap();
            }
            spare.insert(name, Disk { path: format!("/spare/{name}"), mode: Mode::ReadOnly, fs });
        }
        Self { faults: Faults::new(), delete: start.union.delete, present, spare }.fork()
    }

    fn fork(&self) -> Self {
        let faults = Faults::new();
        let copy = |disk: &Disk| Disk { fs: disk.fs.fork(&faults), ..disk.clone() };
        Self {
            present: self.present.iter().map(copy).collect(),
            spare: self.spare.iter().map(|(name, disk)| (*name, copy(disk))).collect(),
            delete: self.delete,
            faults,
        }
    }

    fn mount(&self) -> Arc<Unionfs> {
        let branches = self.present.iter().map(Disk::branch).collect();
        Unionfs::new(branches, Options { delete: self.delete, ..Options::default() }).unwrap()
    }
}

/// A branch that another union has written to.
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

/// A read-only layer that has much of what the others have.
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
enum Turn {
    /// A new branch takes the changes, the others stay as they are.
    InsertWritable,
    /// The same, and what took them until now is not changed any more.
    Snapshot,
    /// A branch with whiteouts and opaque directories comes in at the left.
    InsertUsed,
    /// A read-only branch comes in right of the leftmost.
    InsertReadOnly,
    /// A read-only branch comes in at the right end.
    Append,
    /// The rightmost branch goes.
    RemoveRightmost,
    /// The leftmost branch goes.
    RemoveLeftmost,
    /// The second branch goes.
    RemoveSecond,
    /// The rightmost branch becomes writable, or no longer is.
    Switch,
    /// Nothing can be written any more.
    Freeze,
}

const TURNS: [Turn; 10] = [
    Turn::InsertWritable,
    Turn::Snapshot,
    Turn::InsertUsed,
    Turn::InsertReadOnly,
    Turn::Append,
    Turn::RemoveRightmost,
    Turn::RemoveLeftmost,
    Turn::RemoveSecond,
    Turn::Switch,
    Turn::Freeze,
];

impl Turn {
    /// The changes that make it up, and the branches afterwards; `None` where it makes no sense or
    /// is not allowed.
    fn changes(self, disks: &Disks) -> Option<(Vec<BranchChange>, Vec<Disk>)> {
        let mut order = disks.present.clone();
        let insert = |at: usize, disk: &Disk| BranchChange::Insert { at, branch: disk.branch() };
        let mode = |disk: &mut Disk, mode: Mode| {
            disk.mode = mode;
            BranchChange::Mode(disk.path.clone().into(), mode)
        };
        let writable = |name: &str| Disk { mode: Mode::ReadWrite, ..disks.spare[name].clone() };
        let mut changes = Vec::new();
        let mut remove = |order: &mut Vec<Disk>, at: usize| {
            let gone = order.remove(at);
            changes.push(BranchChange::Remove(gone.path.into()));
        };
        match self {
            Self::RemoveRightmost => remove(&mut order, disks.present.len() - 1),
            Self::RemoveLeftmost => remove(&mut order, 0),
            Self::RemoveSecond if order.len() > 2 => remove(&mut order, 1),
            Self::RemoveSecond => return None,
            Self::InsertWritable | Self::Snapshot => {
                let disk = writable("empty");
                changes.push(insert(0, &disk));
                if self == Self::Snapshot {
                    for disk in order.iter_mut().filter(|disk| disk.mode == Mode::ReadWrite) {
                        changes.push(mode(disk, Mode::ReadOnly));
                    }
                }
                order.insert(0, disk);
            }
            Self::InsertUsed => {
                changes.push(insert(0, &writable("used")));
                order.insert(0, writable("used"));
            }
            Self::InsertReadOnly => {
                changes.push(insert(1, &disks.spare["layer"]));
                order.insert(1, disks.spare["layer"].clone());
            }
            Self::Append => {
                changes.push(insert(99, &disks.spare["layer"]));
                order.push(disks.spare["layer"].clone());
            }
            Self::Switch => {
                let last = order.last_mut()?;
                let other = if last.mode == Mode::ReadWrite { Mode::ReadOnly } else { Mode::ReadWrite };
                changes.push(mode(last, other));
            }
            Self::Freeze => changes.extend(order.iter_mut().map(|disk| mode(disk, Mode::ReadOnly))),
        }
        let writes = order.iter().any(|disk| disk.mode == Mode::ReadWrite);
        let allowed = order.first().is_some_and(|first| first.mode == Mode::ReadWrite || !writes);
        allowed.then_some((changes, order))
    }
}

/// What a user has in use: vnodes of everything, and open files.
struct Held {
    vnodes: Vec<(Path, Arc<dyn Vnode>)>,
    files: Vec<(Path, Arc<dyn OpenFile>, Vec<u8>)>,
}

impl Held {
    fn new(layer: &dyn Layer, seen: &View) -> Self {
        let mut held = Self { vnodes: Vec::new(), files: Vec::new() };
        for (path, object) in &seen.0 {
            let vnode = find(&internal_cx(), layer, path).unwrap();
            if object.kind == Kind::Regular {
                let file = vnode.open(&internal_cx(), OpenFlags::RDONLY).unwrap();
                held.files.push((path.clone(), file, object.bytes.to_vec()));
            }
            held.vnodes.push((path.clone(), vnode));
        }
        held
    }

    /// What is in use answers, and what is still there is the same object.
    fn check(&self, layer: &dyn Layer) -> Result<(), String> {
        for (path, vnode) in &self.vnodes {
            match vnode.getattr(&internal_cx()) {
                Ok(attr) if attr.ino != vnode.id() => return Err(format!("/{path:?}: another number in use")),
                Ok(_) | Err(Errno::STALE) => {}
                Err(e) => return Err(format!("/{path:?}, in use, answers {e}")),
            }
            let mut names = Vec::new();
            if vnode.kind() == Kind::Directory {
                match vnode.readdir(&internal_cx(), 0, &mut |entry| {
                    names.push(entry.name.as_bytes().to_vec());
                    true
                }) {
                    Ok(()) | Err(Errno::STALE) => {}
                    Err(e) => return Err(format!("/{path:?}, in use, lists {e}")),
                }
                for name in names {
                    if vnode.lookup(&internal_cx(), Name::new(&name).unwrap()).map_err(|e| e.to_string())?.is_none() {
                        return Err(format!("/{path:?}, in use, lists what is not there"));
                    }
                }
            }
            if let Ok(now) = find(&internal_cx(), layer, path)
                && now.id() == vnode.id()
                && now.kind() == vnode.kind()
                && !Arc::ptr_eq(&now, vnode)
            {
                return Err(format!("/{path:?}: two vnodes of one number"));
            }
        }
        Ok(())
    }
}

/// A view without what may differ between two runs of one operation.
fn plain(seen: &View) -> View {
    let mut plain = seen.clone();
    for object in plain.0.values_mut() {
        (object.ino, object.mtime) = (0, None);
        // Which of the names are counted depends on what hid them.
        object.nlink = 0;
    }
    plain
}

type Answer = Result<(), Errno>;

/// What an operation answers, and what is seen afterwards.
type Outcome = (Answer, View);

/// An operation that a change of branches comes in the midst of.
struct Case<'a> {
    disks: &'a Disks,
    op: &'a Op,
    turn: Turn,
}

/// What is right.
struct Right {
    /// The operation before the change.
    before: Outcome,
    /// After it.
    after: Outcome,
    /// The change alone.
    without: View,
    /// The operation alone.
    alone: Outcome,
    /// Neither.
    start: View,
}

impl Right {
    /// Is that what is seen after the operation and the change, in one order or the other? An
    /// operation that gave way to the change may have copied directories by then: their attributes
    /// are those from before it.
    fn is_one(&self, what: &View, answers: impl Fn(Answer) -> bool) -> bool {
        let all = [&self.before, &self.after];
        let of_any = |path: &Path, object: &Object| all.iter().any(|(_, view)| view.0.get(path) == Some(object));
        all.iter().filter(|(answer, _)| answers(*answer)).any(|(_, view)| {
            let keys = view.0.len() == what.0.len();
            keys && what.0.iter().all(|(path, object)| match view.0.get(path) {
                Some(one) if object.kind == Kind::Directory => one.kind == object.kind && of_any(path, object),
                one => one == Some(object),
            })
        })
    }
}

impl Case<'_> {
    fn right(&self) -> Option<Right> {
        let look = |layer: &Arc<Unionfs>| plain(&view(&**layer, Walk::Loose).unwrap());
        let run = |union: &Arc<Unionfs>| Session::new(union.clone()).run(Caller::USER, self.op);
        let turn = |disks: &Disks, union: &Arc<Unionfs>| {
            self.turn.changes(disks).map(|(changes, _)| union.change_branches(changes, PATIENCE).unwrap())
        };
        let disks = self.disks.fork();
        let union = disks.mount();
        let start = look(&union);
        turn(&disks, &union)?;
        let without = look(&union);
        let after = (run(&union), look(&union));
        let disks = self.disks.fork();
        let union = disks.mount();
        let answer = run(&union);
        let alone = (answer, look(&union));
        turn(&disks, &union)?;
        Some(Right { before: (answer, look(&union)), after, without, alone, start })
    }

    /// Is that the view after the change alone, but for what the operation has copied up before it
    /// failed? That covers what the change brings, and stays where the change takes the original
    /// away.
    fn copied(&self, right: &Right, what: &View) -> bool {
        let removes = [Turn::RemoveRightmost, Turn::RemoveSecond, Turn::RemoveLeftmost].contains(&self.turn);
        let same = |(path, object)| what.0.get(path) == Some(object) || right.start.0.get(path) == what.0.get(path);
        let known =
            |(path, object)| right.without.0.contains_key(path) || (removes && right.start.0.get(path) == Some(object));
        right.without.0.iter().all(same) && what.0.iter().all(known)
    }

    /// The change comes at the k-th step; answers whether there is one. `fault`: then that happens
    /// at that step.
    fn run(&self, right: &Right, k: u64, fault: Option<Plan>) -> Result<bool, String> {
        let mut disks = self.disks.fork();
        let union = disks.mount();
        let seen = view(&*union, Walk::Loose)?;
        let held = Held::new(&*union, &seen);
        let (changes, order) = self.turn.changes(&disks).ok_or("no such change")?;
        let changed = change_at(&union, &disks.faults, k, changes, fault);
        let mut answer = Session::new(union.clone()).run(Caller::USER, self.op);
        if answer == Err(Errno::STALE) {
            // The kernel goes the whole way once more.
            answer = Session::new(union.clone()).run(Caller::USER, self.op);
        }
        let fired = !disks.faults.forget_call();
        let done = if fired {
            changed.recv_timeout(PATIENCE * 2).map_err(|_| "the change hangs".to_owned())?
        } else {
            Err(BuildError::Busy)
        };
        disks.faults.disarm();
        let live = view(&*union, Walk::Loose).map_err(|e| format!("{answer:?}, {done:?}, {e}"))?;
        let what = plain(&live);
        let matches = match (&done, fault) {
            (Err(_), None) if fired => return Err(format!("the change fails: {done:?}")),
            (Ok(()), None) => right.is_one(&what, |right| right == answer),
            (Ok(()), Some(_)) if answer.is_ok() => right.is_one(&what, |right| right.is_ok()),
            (Ok(()), Some(_)) => right.without == what || self.copied(right, &what),
            (Err(_), _) if answer.is_ok() => right.alone.1 == what,
            (Err(_), _) => right.start == what,
        };
        if !matches {
            let like =
                |(answer, seen): (Answer, &View), name: &str| format!("{name}: {answer:?}\n{}", diff(&what, seen));
            let all = [
                like((right.before.0, &right.before.1), "operation, change"),
                like((right.after.0, &right.after.1), "change, operation"),
                like((Ok(()), &right.without), "change"),
                like((right.alone.0, &right.alone.1), "operation"),
                like((Ok(()), &right.start), "neither"),
            ];
            return Err(format!("answers {answer:?} and {done:?}; against\n{}", all.join("\n")));
        }
        held.check(&*union).map_err(|e| format!("{answer:?}, {done:?}, {e}"))?;
        let live = view(&*union, Walk::Loose)?;
        drop((held, union));
        if done.is_ok() {
            disks.present = order;
        }
        same_anew(&disks, live).map_err(|e| format!("{answer:?}, {done:?}, {e}"))?;
        Ok(fired)
    }
}

/// A union that is mounted anew shows the same.
fn same_anew(disks: &Disks, live: View) -> Result<(), String> {
    let writes = disks.present.iter().any(|disk| disk.mode == Mode::ReadWrite);
    let union = disks.mount();
    let fresh = view(&*union, Walk::Loose).map_err(|e| format!("mounted anew: {e}"))?;
    // A union that writes nothing has no log of its numbers.
    let numbered = |mut view: View| {
        if !writes {
            view.0.values_mut().for_each(|object| object.ino = 0);
        }
        // The mount itself may have made a log in the root.
        view.0.entry(Path::root()).and_modify(|root| root.mtime = None);
        view
    };
    let (live, fresh) = (numbered(live), numbered(fresh));
    if live == fresh {
        return Ok(());
    }
    Err(diff(&live, &fresh))
}

/// What differs between two views.
fn diff(live: &View, fresh: &View) -> String {
    let differ = |path: &&Path| live.0.get(*path) != fresh.0.get(*path);
    let paths: std::collections::BTreeSet<&Path> = live.0.keys().chain(fresh.0.keys()).collect();
    let lines = paths
        .iter()
        .filter(|path| differ(path))
        .map(|path| format!("/{path:?}: {:?}, not {:?}", live.0.get(*path), fresh.0.get(*path)));
    lines.collect::<Vec<_>>().join("\n")
}

/// How long a change waits for operations under way: only what hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// The branches change at the k-th step from here on.
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
            let done = changer.change_branches(changes, PATIENCE);
            drop(changer);
            let _ = ended.send(());
            let _ = sender.send(done);
        });
        // An operation that looks goes on when the change is done; one that changes something lets
        // it wait.
        let patience = Instant::now() + Duration::from_millis(200);
        while end.try_recv().is_err() && !union.change_is_waiting() && Instant::now() < patience {
            std::thread::yield_now();
        }
    });
    receiver
}

/// No operation takes more steps than this on trees of this size.
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
    let breadth = if env_number("STRATA_FULL").is_some() { Breadth::All } else { Breadth::Representative };
    let mut ops = single_path_ops(&start.tree, breadth);
    ops.extend(two_path_ops(&start.tree, breadth));
    ops
}

/// Each change at every step of one in `n` operations; the same with a fault after it.
fn steps(at: usize, n: u64) {
    let config: &Config = &configs()[at];
    let mut report = Report::default();
    let start = Start::new(config, Delete::Whiteout, MemOptions::default());
    let disks = Disks::new(&start);
    for turn in TURNS {
        for op in ops(&start) {
            if !is_sampled(&format!("{} {turn:?}", config.name), &format!("{op:?}"), n) {
                continue;
            }
            let case = Case { disks: &disks, op: &op, turn };
            let Some(right) = case.right() else { continue };
            every_step(&mut report, &format!("{op:?} {turn:?} {}", config.name), |k| case.run(&right, k, None));
            for (fault, count) in [(Fault::Error(Errno::IO), Count::All), (Fault::Errors(Errno::NOSPC), Count::Changes)]
            {
                let what = format!("{op:?} {turn:?} {fault:?} {}", config.name);
                every_step(&mut report, &what, |k| {
                    let at = 1 + (k * 7 + op_hash(&op)) % 23;
                    case.run(&right, k, Some(Plan { count, at, fault }))
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
    steps(0, 4000);
}

#[test]
fn used_over_read_only() {
    steps(1, 4000);
}

#[test]
fn two_writable_over_read_only() {
    steps(2, 4000);
}

#[test]
fn writable_over_two_read_only() {
    steps(3, 4000);
}

#[test]
fn read_only_between_writable() {
    steps(4, 4000);
}

#[test]
fn two_writable() {
    steps(5, 4000);
}

#[test]
fn redirects() {
    steps(6, 4000);
}

#[test]
fn one_branch() {
    steps(7, 4000);
}

#[test]
fn read_only() {
    steps(8, 4000);
}

/// A branch of its own that nothing is on.
fn empty_disk(path: &str, mode: Mode) -> Disk {
    Disk { path: path.to_owned(), mode, fs: MemFs::with(MemOptions::default(), &Faults::new()) }
}

/// One change of a set that leaves what is seen as it is: a new branch takes the changes, one that
/// is empty comes or goes, or the branches at the right are written to or not.
fn turn_unseen(disks: &mut Disks, round: usize) -> Vec<BranchChange> {
    let set = |disk: &mut Disk, mode: Mode| {
        disk.mode = mode;
        BranchChange::Mode(disk.path.clone().into(), mode)
    };
    let empty = disks.present.iter().position(|disk| disk.path.starts_with("/between"));
    match (round % 4, empty) {
        (0, _) => {
            let new = empty_disk(&format!("/left/{round}"), Mode::ReadWrite);
            let mut changes = vec![BranchChange::Insert { at: 0, branch: new.branch() }];
            if round.is_multiple_of(8) {
                changes.extend(disks.present.iter_mut().map(|disk| set(disk, Mode::ReadOnly)));
            }
            disks.present.insert(0, new);
            changes
        }
        (1, None) => {
            let new = empty_disk(&format!("/between/{round}"), Mode::ReadOnly);
            let change = BranchChange::Insert { at: 1, branch: new.branch() };
            disks.present.insert(1, new);
            vec![change]
        }
        (1, Some(at)) => {
            let gone = disks.present.remove(at);
            vec![BranchChange::Remove(gone.path.into())]
        }
        _ => {
            // What is on a branch that goes again would go with it.
            let mut others: Vec<&mut Disk> = disks.present.iter_mut().skip(1).collect();
            others.retain(|disk| !disk.path.starts_with("/between"));
            let at = round % others.len();
            vec![set(others[at], if round % 4 == 2 { Mode::ReadWrite } else { Mode::ReadOnly })]
        }
    }
}

/// Threads that read and write while the set changes all the time, in ways that nobody may see:
/// each operation answers what its model says, and at the end all is there.
#[test]
fn threads_notice_no_change() {
    for delete in [Delete::Whiteout, Delete::All] {
        let seed = env_number("STRATA_SEED").unwrap_or(43);
        let steps = env_number("STRATA_STEPS").unwrap_or(400) as usize;
        println!("STRATA_SEED={seed} STRATA_STEPS={steps}");
        let start = Start::new(&threads_config(THREADS), delete, MemOptions::default());
        let mut disks = Disks::new(&start);
        let union = disks.mount();
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
                    let changes = turn_unseen(&mut disks, round);
                    union.change_branches(changes, PATIENCE).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
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
        same_anew(&disks, live).unwrap_or_else(|e| panic!("seed {seed}, after {round} changes: {e}"));
    }
}

/// Threads that walk, read and write while branches with content come and go: nothing hangs, nobody
/// sees half of anything, and at the end a union that is mounted anew shows the same.
#[test]
fn threads_see_whole_sets() {
    let start = Start::new(&configs()[2], Delete::Whiteout, MemOptions::default());
    let mut disks = Disks::new(&start);
    let union = disks.mount();
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
                    // What is not answered before nor after any change.
                    Err(e @ (Errno::IO | Errno::BADF | Errno::AGAIN | Errno::FAULT)) => {
                        panic!("{op:?}: {e}")
                    }
                    _ => count += 1,
                }
            }
            count
        }));
    }
    for turn in TURNS.iter().cycle().take(80) {
        std::thread::sleep(Duration::from_millis(3));
        // Each comes back after it went.
        let Some((changes, order)) = turn.changes(&disks) else { continue };
        match union.change_branches(changes, PATIENCE) {
            Ok(()) => disks.present = order,
            Err(BuildError::NoBranches | BuildError::Duplicate(_)) => {}
            Err(e) => panic!("{turn:?}: {e}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    let counts: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    println!("{counts:?} operations");
    let live = view(&*union, Walk::Loose).unwrap();
    drop(union);
    same_anew(&disks, live).unwrap();
}
