//! Random programs against the model: operations, remounts in either delete mode, files kept open
//! across unlink, rename and copy-up, lower errors and crashes.
//!
//! `STRATA_SEED` runs only that seed, `STRATA_STEPS` sets the length of each program and
//! `STRATA_SEEDS` the number of programs for each set of branches. A failing program is shortened
//! before it is printed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::admin::{Consents, fsck};
use crate::common::config::{Config, configs};
use crate::common::drain::{pass, send};
use crate::common::op::Op;
use crate::common::path::Path;
use crate::common::random_branches::random_config;
use crate::common::random_ops::OpChooser;
use crate::common::session::Session;
use crate::common::test_union::{Start, TestUnion, check};
use crate::common::tree::{Caller, Tree};
use crate::common::view::{Numbers, Times, compare, learn_times, view};
use memfs::{Count, Fault, MemOptions, Plan};
use std::sync::Arc;
use std::time::Duration;
use testkit::Rng;
use testkit::seeds;
use unionfs::fsck::{Finding, Problem, Severity};
use unionfs::offline::View;
use unionfs::{Branch, BranchChange, ChangePolicy, Create, Delete, Metacopy, Mode, Order, Unionfs};
use vnode::{Errno, Kind};

/// Without and with name indexes.
const INTERVALS: [Duration; 2] = [Duration::ZERO, Duration::from_secs(3600)];

#[derive(Clone, Debug)]
enum Step {
    Do(Caller, Op),
    /// An operation during which a lower operation fails.
    Failing(Op, Count, u64, Fault),
    /// An operation during which the machine crashes, at the n-th change of a branch. Then some of
    /// the branches may be replaced by copies, as by [`Self::Copy`].
    Crashing(Op, u64, Option<u64>),
    Remount(Delete),
    /// One pass of draining the n-th branch.
    Drain(usize),
    /// Copies of some branches are mounted in their place: one for each bit, or all if none is set.
    Copy(u64),
    /// A snapshot is taken.
    Snapshot,
    /// A new first branch is mounted, and the others are read-only from then on.
    Front,
}

/// The most branches that a program adds others to.
const MOST_BRANCHES: usize = 7;

/// The state of a running program.
struct Run {
    union: TestUnion,
    layer: Option<Arc<Unionfs>>,
    session: Session,
    model: Tree,
    numbers: Numbers,
}

impl Run {
    fn new(start: &Start) -> Result<Self, String> {
        let union = start.union.fork();
        let layer = union.union()?;
        let session = Session::new(layer.clone());
        let (model, numbers) = (start.tree.clone(), start.numbers.clone());
        Ok(Self { union, layer: Some(layer), session, model, numbers })
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let is_full = self.union.branches.len() == MOST_BRANCHES;
        let mounted = match step {
            Step::Front => !is_full,
            step => matches!(step, Step::Remount(_) | Step::Copy(_)),
        };
        let times = match step {
            Step::Do(caller, op) => {
                let got = self.session.run(*caller, op);
                match (self.model.apply(*caller, op), got) {
                    (Ok(()), Ok(())) => {}
                    (Err(permitted), Err(e)) if permitted.contains(&e) => {}
                    (want, got) => return Err(format!("returns {got:?}, expected {want:?}")),
                }
                Times::All
            }
            Step::Failing(op, count, at, fault) => {
                self.union.faults.arm(Plan { count: *count, at: *at, fault: *fault });
                let got = self.session.run(Caller::ROOT, op);
                self.union.faults.disarm();
                if got.is_ok() {
                    self.model.apply(Caller::ROOT, op).map_err(|r| format!("succeeds, expected one of {r:?}"))?;
                }
                Times::Files
            }
            Step::Crashing(op, at, copies) => return self.crash(op, *at, *copies),
            Step::Drain(branch) => {
                self.drain(branch % self.union.branches.len())?;
                Times::All
            }
            Step::Remount(delete) => {
                self.close_all();
                self.union.delete = *delete;
                self.remount()?;
                Times::All
            }
            Step::Copy(which) => {
                self.close_all();
                self.unmount();
                self.union.replace_by_copies(*which);
                self.numbers = Numbers::of_copies();
                self.remount()?;
                Times::Files
            }
            Step::Front | Step::Snapshot if is_full => Times::All,
            Step::Front => {
                self.close_all();
                self.unmount();
                self.union.add_first(self.union.new_first());
                self.remount()?;
                Times::Files
            }
            Step::Snapshot => {
                self.snapshot()?;
                Times::Files
            }
        };
        let seen = check(&self.session, &self.model, &mut self.numbers, times)?;
        if mounted {
            self.union.check_leftovers(&seen)?;
        }
        self.finish_step(&seen)
    }

    fn close_all(&mut self) {
        self.session.slots = Default::default();
        self.model.close_all();
    }

    fn unmount(&mut self) {
        self.layer = None;
        self.session = Session::new(memfs::MemFs::new());
    }

    fn snapshot(&mut self) -> Result<(), String> {
        let (number, fs) = self.union.new_first();
        let branch = Branch { layer: fs.clone(), path: format!("/branch/{number}").into(), mode: Mode::ReadWrite };
        let changed = self
            .layer
            .iter()
            .map(|union| union.change_branches(vec![BranchChange::Snapshot(branch.clone())], &ChangePolicy::default()));
        changed.collect::<Result<(), _>>().map_err(|e| format!("snapshot: {e}"))?;
        self.union.add_first((number, fs));
        Ok(())
    }

    /// Checks that the tools agree with the union once it is unmounted.
    fn check_tools(&mut self) -> Result<(), String> {
        self.close_all();
        self.unmount();
        // What a kill leaves behind is removed by the next mount and unmount.
        self.remount()?;
        self.unmount();
        let tools = View::new(&self.union.pairs()).map_err(|e| format!("view: {e}"))?;
        let shown = view(&*tools.layer(), self.numbers.walk(Times::Files))?;
        compare(&shown, &self.model, &mut self.numbers, Times::Files)
            .map_err(|e| format!("in the view of the tools:\n{e}"))?;
        let found = fsck(&self.union, Consents::Safe)?;
        found.expect_no_failures()?;
        // In copies, names that were hidden keep a file without names in the index.
        let is_damage =
            |finding: &&&Finding| finding.severity() == Severity::Damage && finding.problem != Problem::IndexUnused;
        if let Some(damage) = found.errors().iter().find(is_damage) {
            return Err(format!("fsck finds {damage:?} in\n{:?}", self.union.dump()));
        }
        let tools = View::new(&self.union.pairs()).map_err(|e| format!("view: {e}"))?;
        let repaired = view(&*tools.layer(), self.numbers.walk(Times::Files))?;
        if repaired != shown {
            return Err(format!("a repair of {:?} changes the view to\n{repaired:?}", found.found));
        }
        Ok(())
    }

    fn finish_step(&mut self, seen: &common::view::View) -> Result<(), String> {
        learn_times(seen, &mut self.model);
        self.numbers.retain(&self.model);
        self.union.check_read_only_branches()
    }

    fn drain(&self, branch: usize) -> Result<(), String> {
        let idle = self.union.idle_whiteouts();
        pass(&self.session, self.union.numbers[branch])?;
        self.union.check_idle_whiteouts(&idle)?;
        // Other branches must be able to take files later.
        if branch.is_multiple_of(2) {
            send(&self.session, &serde_json::json!({ "do": "end" })).map_err(|e| format!("end: {e}"))?;
        }
        Ok(())
    }

    fn remount(&mut self) -> Result<(), String> {
        // Drop the old union before mounting the new one over the same branches.
        self.unmount();
        let layer = self.union.union()?;
        self.session = Session::new(layer.clone());
        self.layer = Some(layer);
        Ok(())
    }

    fn crash(&mut self, op: &Op, at: u64, copies: Option<u64>) -> Result<(), String> {
        self.union.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let got = self.session.run(Caller::ROOT, op);
        self.union = self.union.recover();
        if let Some(which) = copies {
            self.unmount();
            self.union.replace_by_copies(which);
            self.numbers = Numbers::of_copies();
        }
        self.remount()?;
        let seen = view(&*self.session.layer, self.numbers.walk(Times::All))?;
        let mut new = self.model.clone();
        let changes = new.apply(Caller::ROOT, op).is_ok();
        new.close_all();
        self.model.close_all();
        let mut numbers = self.numbers.clone();
        let as_new = if changes { compare(&seen, &new, &mut numbers, Times::Files) } else { Err("refused".into()) };
        match as_new {
            Ok(()) => (self.model, self.numbers) = (new, numbers),
            Err(as_new) => {
                compare(&seen, &self.model, &mut self.numbers, Times::Files).map_err(|as_old| {
                    format!("after a crash the view is neither the old one:\n{as_old}\nnor the new one:\n{as_new}")
                })?;
                if got.is_ok() && changes {
                    return Err(format!("the operation succeeded, but after a crash:\n{as_new}"));
                }
            }
        }
        // The first unmount after a crash looks for files in the index without names.
        self.remount()?;
        self.union.check_leftovers(&seen)?;
        self.finish_step(&seen)
    }
}

fn program(start: &Start, seed: u64, steps: usize) -> Vec<Step> {
    program_of(start, seed, steps, &|_, _| true)
}

/// Whether an operation gives a directory another path.
fn renames_directory(tree: &Tree, op: &Op) -> bool {
    let Op::Rename { from, to, .. } = op else { return false };
    let paths = tree.paths();
    [from, to].iter().any(|path| paths.get(path).is_some_and(|id| tree.node(*id).kind == Kind::Directory))
}

fn program_of(start: &Start, seed: u64, steps: usize, allows: &dyn Fn(&Tree, &Op) -> bool) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let mut model = start.tree.clone();
    let mut all = Vec::new();
    while all.len() < steps {
        let keeps_open = !rng.one_in(3);
        let op = OpChooser { rng: &mut rng, beneath: Path::root(), keeps_open }.op(&model);
        if !allows(&model, &op) {
            continue;
        }
        let caller = if rng.one_in(4) { Caller::USER } else { Caller::ROOT };
        // Most operations should succeed.
        let mut next = model.clone();
        let accepted = next.apply(caller, &op).is_ok();
        if !accepted && !rng.one_in(6) {
            continue;
        }
        let step = match rng.below(30) {
            0 => {
                model.close_all();
                Step::Remount(if rng.one_in(2) { Delete::All } else { Delete::Whiteout })
            }
            1 => {
                next.close_all();
                model = next;
                Step::Crashing(op, 1 + rng.below(12) as u64, None)
            }
            2 | 3 => {
                let fault = rng.pick(&[
                    Fault::Error(Errno::IO),
                    Fault::Errors(Errno::IO),
                    Fault::Errors(Errno::NOSPC),
                    Fault::Error(Errno::NOSPC),
                ]);
                let count = rng.pick(&[Count::All, Count::Changes]);
                Step::Failing(op, count, 1 + rng.below(15) as u64, fault)
            }
            _ => {
                model = next;
                Step::Do(caller, op)
            }
        };
        all.push(step);
    }
    all
}

/// Runs a program; returns the index of the failing step and the message if it fails.
fn failure(start: &Start, program: &[Step]) -> Option<(usize, String)> {
    let attempt = || -> Result<(), (usize, String)> {
        let mut run = Run::new(start).map_err(|e| (0, e))?;
        for (at, step) in program.iter().enumerate() {
            run.step(step).map_err(|e| {
                let dump = if testkit::number("STRATA_DUMP").is_some() {
                    format!("\nbranches: {:?}", run.union.dump())
                } else {
                    String::new()
                };
                (at, e + &dump)
            })?;
        }
        if run.union.metacopy == Metacopy::Off {
            run.check_tools().map_err(|e| (program.len() - 1, format!("at the end: {e}")))?;
        }
        Ok(())
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)) {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Some((program.len() - 1, format!("panic: {}", text.unwrap_or("?"))))
        }
    }
}

/// Removes the steps that are not needed to make the program fail.
fn shorten(start: &Start, mut program: Vec<Step>, mut failed: (usize, String)) -> (Vec<Step>, String) {
    program.truncate(failed.0 + 1);
    let mut chunk = program.len().div_ceil(2);
    loop {
        let mut at = 0;
        while at < program.len() {
            let mut shorter = program.clone();
            shorter.drain(at..(at + chunk).min(program.len()));
            match failure(start, &shorter) {
                Some(f) => {
                    shorter.truncate(f.0 + 1);
                    (program, failed) = (shorter, f);
                }
                None => at += chunk,
            }
        }
        if chunk == 1 {
            return (program, failed.1);
        }
        chunk = chunk.div_ceil(2);
    }
}

/// Runs the program of one seed; a failure is shortened and printed.
fn run_seed(config: &Config, start: &Start, delete: Delete, seed: u64, steps: usize) {
    println!("{}: {delete:?}: STRATA_SEED={seed} STRATA_STEPS={steps}", config.name);
    run_program(config, start, delete, seed, program(start, seed, steps));
}

fn run_program(config: &Config, start: &Start, delete: Delete, seed: u64, program: Vec<Step>) {
    if let Some(failed) = failure(start, &program) {
        let at = failed.0;
        let (program, e) = shorten(start, program, failed);
        let listing: Vec<String> = program.iter().map(|s| format!("    {s:?}")).collect();
        let branches = format!("{:?}", start.union.dump());
        panic!(
            "{}, {delete:?}, seed {seed}, step {at}; branches\n{branches}\nshortened to\n{}\n{e}",
            config.name,
            listing.join("\n")
        );
    }
}

fn run_config(at: usize) {
    let config: &Config = &configs()[at];
    let steps = testkit::number("STRATA_STEPS").unwrap_or(200) as usize;
    let seeds: Vec<u64> = match testkit::number("STRATA_SEED") {
        Some(seed) => vec![seed],
        None => testkit::seeds(2).map(|n| n * 1000 + at as u64).collect(),
    };
    for delete in [Delete::Whiteout, Delete::All] {
        let mut start = Start::new(config, delete, MemOptions::default());
        for (&seed, interval) in seeds.iter().flat_map(|seed| INTERVALS.map(|interval| (seed, interval))) {
            start.union.interval = interval;
            run_seed(config, &start, delete, seed, steps);
        }
    }
}

/// Random branches with overlapping trees, a new set for each seed.
#[test]
fn random_branches() {
    let steps = testkit::number("STRATA_STEPS").unwrap_or(60) as usize;
    for seed in seeds(40) {
        let config = random_config(seed);
        for delete in [Delete::Whiteout, Delete::All] {
            let mut start = Start::new(&config, delete, MemOptions::default());
            for interval in INTERVALS {
                start.union.interval = interval;
                run_seed(&config, &start, delete, seed, steps);
            }
        }
    }
}

/// Random operations on pools while files move between their branches.
#[test]
fn random_moves() {
    let steps = testkit::number("STRATA_STEPS").unwrap_or(50) as usize;
    let orders = [Order::Inherit, Order::MostFree, Order::RoundRobin];
    for seed in seeds(60) {
        let config = random_config(seed);
        for delete in [Delete::Whiteout, Delete::All] {
            let mut start = Start::new(&config, delete, MemOptions::default());
            start.union.create = Create { order: orders[seed as usize % orders.len()], ..Create::default() };
            println!("{}: {delete:?}: STRATA_SEED={seed} STRATA_STEPS={steps}", config.name);
            let mut rng = Rng::new(seed);
            let mut all = Vec::new();
            for step in program(&start, seed, steps) {
                if rng.one_in(4) {
                    all.push(Step::Drain(rng.below(5)));
                }
                all.push(step);
            }
            for interval in INTERVALS {
                start.union.interval = interval;
                run_program(&config, &start, delete, seed, all.clone());
            }
        }
    }
}

/// Random operations while the branches change: they are copied, new ones become the first,
/// snapshots are taken, files move, and the machine crashes. The tools agree with the union.
#[test]
fn random_copies() {
    let steps = testkit::number("STRATA_STEPS").unwrap_or(40) as usize;
    for seed in seeds(60) {
        let config = random_config(seed);
        // In copies of branches, the names of a file are found by the path that it had. So no
        // directory is renamed, and no name is removed from a branch further right.
        let delete = Delete::Whiteout;
        let start = Start::new(&config, delete, MemOptions { identified: true, ..MemOptions::default() });
        println!("{}: {delete:?}: STRATA_SEED={seed} STRATA_STEPS={steps}", config.name);
        let mut rng = Rng::new(seed);
        let which = |rng: &mut Rng| if rng.one_in(2) { 0 } else { 1 + rng.below(31) as u64 };
        let mut all = Vec::new();
        for step in program_of(&start, seed, steps, &|tree, op| !renames_directory(tree, op)) {
            match rng.below(24) {
                0 | 1 => all.push(Step::Copy(which(&mut rng))),
                2 => all.push(Step::Snapshot),
                3 => all.push(Step::Front),
                4 => all.push(Step::Drain(rng.below(5))),
                _ => {}
            }
            all.push(match step {
                Step::Crashing(op, at, None) if rng.one_in(2) => Step::Crashing(op, at, Some(which(&mut rng))),
                Step::Remount(_) => Step::Remount(delete),
                step => step,
            });
        }
        run_program(&config, &start, delete, seed, all);
    }
}

/// The same with policies that choose the branch of new objects. The branches differ in size, and
/// the smallest have less than the minimum free space.
#[test]
fn random_pools() {
    let steps = testkit::number("STRATA_STEPS").unwrap_or(60) as usize;
    let orders = [Order::First, Order::MostFree, Order::LeastFree, Order::RoundRobin, Order::Proportional];
    for seed in seeds(60) {
        let config = random_config(seed);
        for delete in [Delete::Whiteout, Delete::All] {
            let mut start = Start::new(&config, delete, MemOptions::default());
            let order = orders[seed as usize % orders.len()];
            start.union.create = Create { order, existing_path: seed % 7 == 0, min_free: 24 << 20 };
            for (at, (_, branch)) in start.union.branches.iter().enumerate() {
                branch.set_space(((seed + at as u64 * 3) % 5 + 1) * (16 << 20));
            }
            for interval in INTERVALS {
                start.union.interval = interval;
                run_seed(&config, &start, delete, seed, steps);
            }
        }
    }
}

#[test]
fn empty_over_read_only() {
    run_config(0);
}

#[test]
fn used_over_read_only() {
    run_config(1);
}

#[test]
fn two_writable_over_read_only() {
    run_config(2);
}

#[test]
fn writable_over_two_read_only() {
    run_config(3);
}

#[test]
fn read_only_between_writable() {
    run_config(4);
}

#[test]
fn two_writable() {
    run_config(5);
}

#[test]
fn redirects() {
    run_config(6);
}

#[test]
fn metacopies() {
    run_config(8);
}

#[test]
fn metacopies_between() {
    run_config(9);
}

#[test]
fn one_branch() {
    run_config(7);
}
