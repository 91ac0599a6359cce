//! Random programs against the model: operations, remounts in either delete mode, files kept open
//! across unlink, rename and copy-up, lower errors and crashes.
//!
//! `STRATA_SEED` runs only that seed, `STRATA_STEPS` sets the length of each program and
//! `STRATA_SEEDS` the number of programs for each set of branches. A failing program is shortened
//! before it is printed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::config::{Config, configs};
use crate::common::drain::{pass, send};
use crate::common::op::Op;
use crate::common::path::Path;
use crate::common::random_branches::random_config;
use crate::common::random_ops::OpChooser;
use crate::common::session::Session;
use crate::common::test_union::{Start, TestUnion, check};
use crate::common::tree::{Caller, Tree};
use crate::common::view::{Numbers, Times, Walk, compare, learn_times, view};
use memfs::{Count, Fault, MemOptions, Plan};
use std::time::Duration;
use testkit::Rng;
use testkit::seeds;
use unionfs::{Create, Delete, Order};
use vnode::Errno;

/// Without and with name indexes.
const INTERVALS: [Duration; 2] = [Duration::ZERO, Duration::from_secs(3600)];

#[derive(Clone, Debug)]
enum Step {
    Do(Caller, Op),
    /// An operation during which a lower operation fails.
    Failing(Op, Count, u64, Fault),
    /// An operation during which the machine crashes, at the n-th change of a branch.
    Crashing(Op, u64),
    Remount(Delete),
    /// One pass of draining the n-th branch.
    Drain(usize),
}

/// The state of a running program.
struct Run {
    union: TestUnion,
    session: Session,
    model: Tree,
    numbers: Numbers,
}

impl Run {
    fn new(start: &Start) -> Result<Self, String> {
        let union = start.union.fork();
        let session = union.mount()?;
        Ok(Self { union, session, model: start.tree.clone(), numbers: start.numbers.clone() })
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let mounted = matches!(step, Step::Remount(_));
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
            Step::Crashing(op, at) => return self.crash(op, *at),
            Step::Drain(branch) => {
                self.drain(branch % self.union.branches.len())?;
                Times::All
            }
            Step::Remount(delete) => {
                self.session.slots = Default::default();
                self.model.close_all();
                self.union.delete = *delete;
                self.remount()?;
                Times::All
            }
        };
        let seen = check(&self.session, &self.model, &mut self.numbers, times)?;
        if mounted {
            self.union.check_leftovers(&seen)?;
        }
        self.finish_step(&seen)
    }

    fn finish_step(&mut self, seen: &common::view::View) -> Result<(), String> {
        learn_times(seen, &mut self.model);
        self.numbers.retain(&self.model);
        self.union.check_read_only_branches()
    }

    fn drain(&self, branch: usize) -> Result<(), String> {
        let idle = self.union.idle_whiteouts();
        pass(&self.session, branch)?;
        self.union.check_idle_whiteouts(&idle)?;
        // Other branches must be able to take files later.
        if branch.is_multiple_of(2) {
            send(&self.session, &serde_json::json!({ "do": "end" })).map_err(|e| format!("end: {e}"))?;
        }
        Ok(())
    }

    fn remount(&mut self) -> Result<(), String> {
        // Drop the old union before mounting the new one over the same branches.
        self.session = Session::new(memfs::MemFs::new());
        self.session = self.union.mount()?;
        Ok(())
    }

    fn crash(&mut self, op: &Op, at: u64) -> Result<(), String> {
        self.union.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let got = self.session.run(Caller::ROOT, op);
        self.union = self.union.recover();
        self.remount()?;
        let seen = view(&*self.session.layer, Walk::User)?;
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
        self.union.check_leftovers(&seen)?;
        self.finish_step(&seen)
    }
}

fn program(start: &Start, seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let mut model = start.tree.clone();
    let mut all = Vec::new();
    while all.len() < steps {
        let keeps_open = !rng.one_in(3);
        let op = OpChooser { rng: &mut rng, beneath: Path::root(), keeps_open }.op(&model);
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
                Step::Crashing(op, 1 + rng.below(12) as u64)
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
