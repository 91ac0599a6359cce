//! Random programs, in step with the model: operations, remounts in either delete mode, files kept open over unlink, rename and
//! copy-up, failing and crashing branches.
//!
//! `STRATA_SEED` runs that one seed, `STRATA_STEPS` sets the length of each program, `STRATA_SEEDS` how many there are for each set of
//! branches. A program that fails is shortened before it is printed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bed::{Bed, Start, check};
use common::config::{Config, configs};
use common::op::Op;
use common::overlap::{overlapping, seeds};
use common::path::Path;
use common::random::Chooser;
use common::report::env;
use common::rng::Rng;
use common::session::Session;
use common::tree::{Tree, Who};
use common::view::{Numbers, Times, Walk, compare, learn_times, view};
use memfs::{Count, Fault, MemOptions, Plan};
use unionfs::Delete;
use vnode::Errno;

#[derive(Clone, Debug)]
enum Step {
    Do(Who, Op),
    /// While doing it, a lower operation fails.
    Failing(Op, Count, u64, Fault),
    /// While doing it, the machine crashes at that change.
    Crashing(Op, u64),
    Remount(Delete),
}

/// A program's state.
struct Run {
    bed: Bed,
    session: Session,
    model: Tree,
    numbers: Numbers,
}

impl Run {
    fn new(start: &Start) -> Result<Self, String> {
        let bed = start.bed.fork();
        let session = bed.mount()?;
        Ok(Self { bed, session, model: start.tree.clone(), numbers: start.numbers.clone() })
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let mounted = matches!(step, Step::Remount(_));
        let times = match step {
            Step::Do(who, op) => {
                let got = self.session.run(*who, op);
                match (self.model.apply(*who, op), got) {
                    (Ok(()), Ok(())) => {}
                    (Err(permitted), Err(e)) if permitted.contains(&e) => {}
                    (want, got) => return Err(format!("answers {got:?}, not {want:?}")),
                }
                Times::All
            }
            Step::Failing(op, count, at, fault) => {
                self.bed.faults.arm(Plan { count: *count, at: *at, fault: *fault });
                let got = self.session.run(Who::ROOT, op);
                self.bed.faults.disarm();
                if got.is_ok() {
                    self.model.apply(Who::ROOT, op).map_err(|r| format!("succeeds, and should be refused: {r:?}"))?;
                }
                Times::Files
            }
            Step::Crashing(op, at) => return self.crash(op, *at),
            Step::Remount(delete) => {
                self.session.slots = Default::default();
                self.model.close_all();
                self.bed.delete = *delete;
                self.remount()?;
                Times::All
            }
        };
        let seen = check(&self.session, &self.model, &mut self.numbers, times)?;
        if mounted {
            self.bed.check_litter(&seen)?;
        }
        self.settle(&seen)
    }

    fn settle(&mut self, seen: &common::view::View) -> Result<(), String> {
        learn_times(seen, &mut self.model);
        self.numbers.retain(&self.model);
        self.bed.check_branches()
    }

    fn remount(&mut self) -> Result<(), String> {
        // The old union goes before the new one comes.
        let nothing = memfs::MemFs::new();
        self.session = Session::new(nothing);
        self.session = self.bed.mount()?;
        Ok(())
    }

    fn crash(&mut self, op: &Op, at: u64) -> Result<(), String> {
        self.bed.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let got = self.session.run(Who::ROOT, op);
        self.bed = self.bed.recover();
        self.remount()?;
        let seen = view(&*self.session.layer, Walk::User)?;
        let mut new = self.model.clone();
        let changes = new.apply(Who::ROOT, op).is_ok();
        new.close_all();
        self.model.close_all();
        let mut numbers = self.numbers.clone();
        let as_new = if changes { compare(&seen, &new, &mut numbers, Times::Files) } else { Err("refused".into()) };
        match as_new {
            Ok(()) => (self.model, self.numbers) = (new, numbers),
            Err(as_new) => {
                compare(&seen, &self.model, &mut self.numbers, Times::Files).map_err(|as_old| {
                    format!("after a crash neither the old view:\n{as_old}\nnor the new:\n{as_new}")
                })?;
                if got.is_ok() && changes {
                    return Err(format!("success was answered, but after a crash:\n{as_new}"));
                }
            }
        }
        self.bed.check_litter(&seen)?;
        self.settle(&seen)
    }
}

fn program(start: &Start, seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let mut model = start.tree.clone();
    let mut all = Vec::new();
    while all.len() < steps {
        let keeps_open = !rng.one_in(3);
        let op = Chooser { rng: &mut rng, beneath: Path::root(), keeps_open }.op(&model);
        let who = if rng.one_in(4) { Who::USER } else { Who::ROOT };
        // Most of what is done should succeed.
        let mut next = model.clone();
        let accepted = next.apply(who, &op).is_ok();
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
                let fault = *rng.pick(&[
                    Fault::Error(Errno::IO),
                    Fault::Errors(Errno::IO),
                    Fault::Errors(Errno::NOSPC),
                    Fault::Error(Errno::NOSPC),
                ]);
                let count = *rng.pick(&[Count::All, Count::Changes]);
                Step::Failing(op, count, 1 + rng.below(15) as u64, fault)
            }
            _ => {
                model = next;
                Step::Do(who, op)
            }
        };
        all.push(step);
    }
    all
}

/// Where and how a program fails.
fn failure(start: &Start, program: &[Step]) -> Option<(usize, String)> {
    let attempt = || -> Result<(), (usize, String)> {
        let mut run = Run::new(start).map_err(|e| (0, e))?;
        for (at, step) in program.iter().enumerate() {
            run.step(step).map_err(|e| {
                let dump = if env("STRATA_DUMP").is_some() {
                    format!("\nbranches: {:?}", run.bed.dump())
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

/// Leaves out what is not needed for the program to fail.
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

/// Runs the program of a seed.
fn run_seed(config: &Config, start: &Start, delete: Delete, seed: u64, steps: usize) {
    println!("{}: {delete:?}: STRATA_SEED={seed} STRATA_STEPS={steps}", config.name);
    let program = program(start, seed, steps);
    if let Some(failed) = failure(start, &program) {
        let at = failed.0;
        let (program, e) = shorten(start, program, failed);
        let listing: Vec<String> = program.iter().map(|s| format!("    {s:?}")).collect();
        let branches = format!("{:?}", start.bed.dump());
        panic!(
            "{}, {delete:?}, seed {seed}, step {at}; branches\n{branches}\nshortened to\n{}\n{e}",
            config.name,
            listing.join("\n")
        );
    }
}

fn random(at: usize) {
    let config: &Config = &configs()[at];
    let steps = env("STRATA_STEPS").unwrap_or(200) as usize;
    let seeds: Vec<u64> = match env("STRATA_SEED") {
        Some(seed) => vec![seed],
        None => (1..=env("STRATA_SEEDS").unwrap_or(2)).map(|n| n * 1000 + at as u64).collect(),
    };
    for delete in [Delete::Whiteout, Delete::All] {
        let start = Start::new(config, delete, MemOptions::default());
        for &seed in &seeds {
            run_seed(config, &start, delete, seed, steps);
        }
    }
}

/// Each seed with branches of its own, which start with different trees.
#[test]
fn different_trees() {
    let steps = env("STRATA_STEPS").unwrap_or(60) as usize;
    for seed in seeds(40) {
        let config = overlapping(seed);
        for delete in [Delete::Whiteout, Delete::All] {
            let start = Start::new(&config, delete, MemOptions::default());
            run_seed(&config, &start, delete, seed, steps);
        }
    }
}

#[test]
fn empty_over_read_only() {
    random(0);
}

#[test]
fn used_over_read_only() {
    random(1);
}

#[test]
fn two_writable_over_read_only() {
    random(2);
}

#[test]
fn writable_over_two_read_only() {
    random(3);
}

#[test]
fn read_only_between_writable() {
    random(4);
}

#[test]
fn two_writable() {
    random(5);
}

#[test]
fn redirects() {
    random(6);
}

#[test]
fn metacopies() {
    random(8);
}

#[test]
fn metacopies_between() {
    random(9);
}

#[test]
fn one_branch() {
    random(7);
}
