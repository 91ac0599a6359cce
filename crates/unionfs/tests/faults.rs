//! Every operation fails at every step.
//!
//! For each operation, the k-th operation on the branches fails, for k = 1, 2, 3, ... until none is left to fail. If the union
//! then answers an error, its view must be the old one; if it answers success, the new one; never a third. The same must be
//! found by a remount, with the same numbers, and with no unfinished work on the branches. After a crash at the k-th change the view is
//! the old or the new one.
//!
//! A default run tries a part of the operations, chosen by a hash, at every step. `STRATA_PART=1`, `2`, ... try other parts,
//! `STRATA_THIN=n` makes the part one in n, and `STRATA_FULL=1` tries everything (use `--release`: it is millions of runs).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bed::{Bed, Start, check};
use common::config::{Access, Config, Fills, configs};
use common::interesting::{Breadth, on_one_path, on_two_paths};
use common::op::Op;
use common::path::Path;
use common::report::{Report, chosen, env};
use common::session::Session;
use common::tree::{Tree, Who};
use common::view::{Numbers, Times, View, Walk, compare, learn_times, view};
use memfs::{Count, Fault, MemOptions, Plan};
use unionfs::Delete;
use vnode::{Errno, RenameFlags};

/// The ways to fail. (Reading can't run out of space, so only changes do.)
const ERRORS: [(Count, Fault); 5] = [
    (Count::All, Fault::Error(Errno::IO)),
    (Count::All, Fault::Errors(Errno::IO)),
    (Count::Changes, Fault::Errors(Errno::NOSPC)),
    // Room comes: a removal tries again with what was reserved for it.
    (Count::Changes, Fault::Error(Errno::NOSPC)),
    (Count::Changes, Fault::Error(Errno::ROFS)),
];

/// A model, and the numbers its objects have.
type Expected = (Tree, Numbers);

/// What one operation leads to from the start: before, after (or why it is refused).
struct Case<'a> {
    start: &'a Start,
    op: &'a Op,
    new: Result<Tree, Vec<Errno>>,
}

impl<'a> Case<'a> {
    fn new(start: &'a Start, op: &'a Op) -> Self {
        let mut new = start.tree.clone();
        let answer = new.apply(Who::USER, op);
        Self { start, op, new: answer.map(|()| new) }
    }

    fn old(&self) -> Expected {
        (self.start.tree.clone(), self.start.numbers.clone())
    }

    /// Runs with the fault at the k-th operation; answers whether there was a k-th.
    fn with_error(&self, count: Count, fault: Fault, k: u64) -> Result<bool, String> {
        let bed = self.start.bed.fork();
        let mut session = bed.mount()?;
        bed.faults.arm(Plan { count, at: k, fault });
        let answer = session.run(Who::USER, self.op);
        let fired = bed.faults.fired();
        bed.faults.disarm();
        let (mut model, mut numbers) = self.expected_after(answer, fault)?;
        let seen = check(&session, &model, &mut numbers, Times::Files).map_err(|e| format!("{answer:?}, but {e}"))?;
        learn_times(&seen, &mut model);
        drop(session);
        model.close_all();
        remounted(&bed, &mut model, &mut numbers).map_err(|e| format!("{answer:?}, after a remount: {e}"))?;
        Ok(fired)
    }

    fn expected_after(&self, answer: Result<(), Errno>, fault: Fault) -> Result<Expected, String> {
        let (mut old, numbers) = self.old();
        match (answer, &self.new) {
            (Ok(()), Ok(new)) => Ok((new.clone(), numbers)),
            (Ok(()), Err(refusal)) => Err(format!("succeeds, and should be refused with {refusal:?}")),
            (Err(e), new) => {
                let injected = match fault {
                    Fault::Error(e) | Fault::Errors(e) => e,
                    Fault::Crash => Errno::IO,
                };
                let refused = new.as_ref().is_err_and(|r| r.contains(&e));
                if e != injected && !refused {
                    return Err(format!("answers {e:?}, though {injected:?} happened"));
                }
                old.slots = [None; common::op::SLOTS];
                Ok((old, numbers))
            }
        }
    }

    /// Runs with a crash at the k-th change; answers whether there was a k-th.
    fn with_crash(&self, k: u64) -> Result<bool, String> {
        let bed = self.start.bed.fork();
        let mut session = bed.mount()?;
        bed.faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
        let answer = session.run(Who::USER, self.op);
        let fired = bed.faults.fired();
        drop(session);
        let bed = bed.recover();
        let mut session = bed.mount()?;
        let seen = view(&*session.layer, Walk::Quick).map_err(|e| show(&bed, e))?;
        let (mut old, mut numbers) = self.old();
        old.close_all();
        let as_old = compare(&seen, &old, &mut numbers, Times::Files);
        let as_new = match &self.new {
            Ok(new) => {
                let (mut new, mut numbers) = (new.clone(), self.start.numbers.clone());
                new.close_all();
                compare(&seen, &new, &mut numbers, Times::Files)
            }
            Err(refusal) => Err(format!("none: it is refused with {refusal:?}")),
        };
        match (&as_old, as_new) {
            (_, Ok(())) => {}
            // Once success was answered, it must be there.
            (Ok(()), Err(_)) if answer.is_err() => {}
            (Ok(()), Err(e)) => return Err(show(&bed, format!("{answer:?}, but the old view, not the new:\n{e}"))),
            (Err(old), Err(new)) => {
                return Err(show(&bed, format!("{answer:?}, neither the old view:\n{old}\nnor the new:\n{new}")));
            }
        }
        bed.check_litter(&seen).map_err(|e| show(&bed, e))?;
        if as_old.is_ok() {
            self.again(&mut session).map_err(|e| show(&bed, e))?;
        }
        bed.check_branches()?;
        Ok(fired)
    }

    /// What a crash has left behind is in the way of nothing: the operation goes as if it had never been tried.
    fn again(&self, session: &mut Session) -> Result<(), String> {
        let (mut model, mut numbers) = self.old();
        model.close_all();
        let want = model.apply(Who::USER, self.op);
        let got = session.run(Who::USER, self.op);
        let same = match (&want, &got) {
            (Ok(()), got) => got.is_ok(),
            (Err(refusals), Err(e)) => refusals.contains(e),
            (Err(_), Ok(())) => false,
        };
        if !same {
            return Err(format!("tried again after the crash it answers {got:?}, should {want:?}"));
        }
        check(session, &model, &mut numbers, Times::Files).map_err(|e| format!("tried again after the crash: {e}"))?;
        Ok(())
    }
}

fn remounted(bed: &Bed, model: &mut Tree, numbers: &mut Numbers) -> Result<(), String> {
    let session = bed.mount()?;
    let seen = check(&session, model, numbers, Times::Files).map_err(|e| show(bed, e))?;
    bed.check_litter(&seen).map_err(|e| show(bed, e))?;
    bed.check_branches()
}

fn show(bed: &Bed, e: String) -> String {
    if env("STRATA_DUMP").is_some() { format!("{e}\nbranches:\n{:?}", bed.dump()) } else { e }
}

/// No operation takes more steps than this on trees of this size.
const MOST_STEPS: u64 = 2000;

/// Tries every step; gives up on an operation that goes on failing, perhaps also without a fault.
fn every_step(report: &mut Report, what: &str, mut run: impl FnMut(u64) -> Result<bool, String>) {
    let mut failing = 0;
    for k in 1..=MOST_STEPS {
        let outcome = run(k);
        let more = *outcome.as_ref().unwrap_or(&true);
        failing = if outcome.is_err() { failing + 1 } else { 0 };
        report.note(|| format!("{what}, step {k}"), outcome.map(|_| ()));
        if !more || failing == 100 {
            return;
        }
    }
    report.note(|| what.to_owned(), Err(format!("takes more than {MOST_STEPS} steps")));
}

/// The paths of a set of branches that are worth a try in a default run.
fn breadth() -> Breadth {
    if env("STRATA_FULL").is_some() { Breadth::All } else { Breadth::Representative }
}

fn ops(start: &Start, breadth: Breadth) -> Vec<Op> {
    let mut ops = on_one_path(&start.tree, breadth);
    ops.extend(on_two_paths(&start.tree, breadth));
    ops.retain(|op| !matches!(op, Op::Stat { .. }));
    ops
}

/// Is the operation tried in this run? One that the model refuses less often: its faults tell less.
fn is_tried(case: &Case<'_>, what: &str, n: u64) -> bool {
    chosen(what, &format!("{:?}", case.op), if case.new.is_ok() { n } else { 8 * n })
}

fn errors(config: &Config) {
    let mut report = Report::default();
    errors_on(config, breadth(), 128, &mut report);
    report.finish(&config.name);
}

/// One in `n` operations.
fn errors_on(config: &Config, breadth: Breadth, n: u64, report: &mut Report) {
    for delete in [Delete::Whiteout, Delete::All] {
        let start = Start::new(config, delete, MemOptions::default());
        for op in ops(&start, breadth) {
            let case = Case::new(&start, &op);
            for (count, fault) in ERRORS {
                let salt = format!("{} {delete:?} {fault:?}", config.name);
                if is_tried(&case, &salt, n) {
                    let what = format!("{op:?} {delete:?} {fault:?} {count:?} {}", config.name);
                    every_step(report, &what, |k| case.with_error(count, fault, k));
                }
            }
        }
    }
}

fn crashes(config: &Config) {
    let mut report = Report::default();
    crashes_on(config, breadth(), 32, &mut report);
    report.finish(&config.name);
}

/// One in `n` operations.
fn crashes_on(config: &Config, breadth: Breadth, n: u64, report: &mut Report) {
    for delete in [Delete::Whiteout, Delete::All] {
        let start = Start::new(config, delete, MemOptions::default());
        for op in ops(&start, breadth) {
            let case = Case::new(&start, &op);
            if is_tried(&case, &format!("{} {delete:?} crash", config.name), n) {
                let what = format!("{op:?} {delete:?} crash {}", config.name);
                every_step(report, &what, |k| case.with_crash(k));
            }
        }
    }
}

/// Branches that start with different trees: another set for each seed, and a few operations on each.
mod different_trees {
    use super::{Breadth, Report, crashes_on, errors_on};
    use crate::common::overlap::{overlapping, seeds};

    #[test]
    fn errors() {
        let mut report = Report::default();
        for seed in seeds(12) {
            errors_on(&overlapping(seed), Breadth::All, 512, &mut report);
        }
        report.finish("different trees");
    }

    #[test]
    fn crashes() {
        let mut report = Report::default();
        for seed in seeds(12) {
            crashes_on(&overlapping(seed), Breadth::All, 128, &mut report);
        }
        report.finish("different trees");
    }
}

/// The crash that an operation leaves work for, and then a mount that fails at its j-th step: the next mount finds the old or the
/// new view all the same.
fn interrupted_recovery(case: &Case<'_>, k: u64, j: u64) -> Result<(bool, bool), String> {
    let bed = case.start.bed.fork();
    let mut session = bed.mount()?;
    bed.faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
    // Whether it succeeds does not matter here.
    let _ = session.run(Who::USER, case.op);
    let crashed = bed.faults.fired();
    drop(session);
    let bed = bed.recover();
    bed.faults.arm(Plan { count: Count::All, at: j, fault: Fault::Crash });
    let _ = bed.mount();
    let interrupted = bed.faults.fired();
    let bed = bed.recover();
    let session = bed.mount()?;
    let seen = view(&*session.layer, Walk::Quick).map_err(|e| show(&bed, e))?;
    case.is_old_or_new(&seen).map_err(|e| show(&bed, e))?;
    bed.check_litter(&seen).map_err(|e| show(&bed, e))?;
    Ok((crashed, interrupted))
}

impl Case<'_> {
    fn is_old_or_new(&self, seen: &View) -> Result<(), String> {
        let one = |mut tree: Tree| {
            tree.close_all();
            compare(seen, &tree, &mut self.start.numbers.clone(), Times::Files)
        };
        let (old, new) =
            (one(self.start.tree.clone()), one(self.new.clone().unwrap_or_else(|_| self.start.tree.clone())));
        match (old, new) {
            (Err(old), Err(new)) => Err(format!("neither the old view:\n{old}\nnor the new:\n{new}")),
            _ => Ok(()),
        }
    }
}

#[test]
fn recovery_can_be_interrupted() {
    let rename = |from: &str, to: &str, exchange| Op::Rename {
        from: from.into(),
        to: to.into(),
        flags: RenameFlags { exchange, ..RenameFlags::default() },
    };
    let ops = [
        // Onto a directory that is only logically empty: exchanged under a record.
        rename("a", "empty", false),
        rename("opq", "both", true),
        Op::Rmdir { path: "empty".into() },
        Op::Mkdir { path: "wf".into(), mode: 0o700 },
        Op::Chmod { path: "a/f".into(), mode: 0o600 },
    ];
    let mut report = Report::default();
    // The second has whiteouts in its empty directory.
    for at in [1, 3] {
        let start = Start::new(&configs()[at], Delete::Whiteout, MemOptions::default());
        for op in &ops {
            let case = Case::new(&start, op);
            let (mut k, mut crashed) = (1, true);
            while crashed {
                let (mut j, mut interrupted) = (1, true);
                while interrupted && j < MOST_STEPS {
                    let outcome = interrupted_recovery(&case, k, j);
                    (crashed, interrupted) = *outcome.as_ref().unwrap_or(&(true, true));
                    report.note(|| format!("{op:?} crash {k}, then {j}"), outcome.map(|_| ()));
                    j += 1;
                }
                k += 1;
            }
        }
    }
    report.finish("recovery");
}

/// A merged directory whose removal fails or is cut off is still the same object: a whiteout beside it has ended its stack, but its
/// number stays.
#[test]
fn an_interrupted_removal_leaves_the_number() {
    let rename = |from: &str, to: &str| Op::Rename { from: from.into(), to: to.into(), flags: RenameFlags::default() };
    let ops = [
        Op::Rmdir { path: "d/bare".into() },
        Op::Rmdir { path: "d/marked".into() },
        rename("new", "d/bare"),
        rename("new", "d/marked"),
        rename("d/both", "d/marked"),
    ];
    let upper = || {
        let fills = Fills::new(1).dir("d", 0o755).dir("d/bare", 0o755).dir("d/marked", 0o755).dir("new", 0o755);
        fills.mark("d/marked/.wh.f").mark("d/marked/.wh.g").dir("d/both", 0o755).done()
    };
    let lower = || {
        let fills =
            Fills::new(9).dir("d", 0o755).dir("d/bare", 0o700).dir("d/marked", 0o700).file("d/marked/f", 0o644, 5);
        fills.dir("d/both", 0o755).file("d/both/f", 0o644, 5).done()
    };
    let mut report = Report::default();
    for (at, access) in [Access::Rw, Access::Ro, Access::Rw].into_iter().enumerate() {
        let mut branches = vec![(Access::Rw, upper()), (access, lower())];
        if at == 2 {
            branches.insert(0, (Access::Rw, Fills::new(0).done()));
        }
        let config = Config { name: format!("removal {at}"), branches, prologue: vec![] };
        for delete in [Delete::Whiteout, Delete::All] {
            let start = Start::new(&config, delete, MemOptions::default());
            for op in &ops {
                let case = Case::new(&start, op);
                every_step(&mut report, &format!("{op:?} {at} {delete:?} crash"), |k| case.with_crash(k));
                for (count, fault) in ERRORS {
                    let what = format!("{op:?} {at} {delete:?} {count:?} {fault:?}");
                    every_step(&mut report, &what, |k| case.with_error(count, fault, k));
                }
            }
        }
    }
    report.finish("interrupted removal");
}

/// A copy that was published is whole on the disk, and so is the redirect of a directory that was moved: the user wrote nothing
/// that could be lost.
#[test]
fn copies_survive_a_power_failure() {
    let options = MemOptions { lose_data: true, ..MemOptions::default() };
    let start = Start::new(&configs()[0], Delete::Whiteout, options);
    let to = |to: &str| (Path::from("a/sub/deep"), Path::from(to));
    let flags = RenameFlags::default();
    let ops = [
        Op::Chmod { path: "a/f".into(), mode: 0o600 },
        Op::Chown { path: "sparse".into(), uid: 5, gid: 5 },
        Op::Rename { from: to("new").0, to: to("new").1, flags },
        Op::Link { from: to("both/new").0, to: to("both/new").1 },
        Op::Unlink { path: "both/same".into() },
        Op::Rename { from: "a".into(), to: "moved".into(), flags },
        Op::Rename { from: "a".into(), to: "both".into(), flags: RenameFlags { exchange: true, ..flags } },
    ];
    let mut report = Report::default();
    for op in &ops {
        let case = Case::new(&start, op);
        every_step(&mut report, &format!("{op:?} power failure"), |k| {
            let bed = start.bed.fork();
            let mut session = bed.mount()?;
            bed.faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
            let _ = session.run(Who::USER, op);
            let fired = bed.faults.fired();
            drop(session);
            let bed = bed.recover();
            let session = bed.mount()?;
            let seen = view(&*session.layer, Walk::Quick).map_err(|e| show(&bed, e))?;
            // The identity log may have lost its end, and with it a number.
            let fresh = Start { bed: bed.fork(), tree: start.tree.clone(), numbers: Numbers::default() };
            let case = Case { start: &fresh, op, new: case.new.clone() };
            case.is_old_or_new(&seen).map_err(|e| show(&bed, e)).map(|()| fired)
        });
    }
    report.finish("power failure");
}

macro_rules! for_each_config {
    ($($name:ident = $at:expr;)*) => {
        $(mod $name {
            #[test]
            fn errors() {
                super::errors(&super::configs()[$at]);
            }

            #[test]
            fn crashes() {
                super::crashes(&super::configs()[$at]);
            }
        })*

        #[test]
        fn every_configuration_is_tested() {
            // All but the one that can't be written.
            assert_eq!([$($at),*].len() + 1, configs().len());
        }
    };
}

for_each_config! {
    empty_over_read_only = 0;
    used_over_read_only = 1;
    two_writable_over_read_only = 2;
    writable_over_two_read_only = 3;
    read_only_between_writable = 4;
    two_writable = 5;
    redirects = 6;
    one_branch = 7;
    metacopies = 8;
    metacopies_between = 9;
}
