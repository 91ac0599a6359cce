//! Lower errors and crashes at every step of every operation.
//!
//! For each operation on the union, the k-th lower operation fails, for k = 1, 2, 3, ... until the
//! operation completes without reaching step k. If the union returns an error, the view must be
//! unchanged; if it returns success, the view must be the new one. A remount must find the same
//! view and inode numbers, and must leave no unfinished work on the branches. After a crash at the
//! k-th change the view must be the old or the new one.
//!
//! A default run tries a sample of the operations, selected by a hash, at every step.
//! `STRATA_PART=1`, `2`, ... select other samples, `STRATA_THIN=n` sets the sample to one in n, and
//! `STRATA_FULL=1` tries everything (millions of runs: use `--release`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::config::{Access, BranchBuilder, Config, configs};
use crate::common::op::Op;
use crate::common::op_matrix::{Breadth, single_path_ops, two_path_ops};
use crate::common::path::Path;
use crate::common::report::{Report, is_sampled};
use crate::common::session::Session;
use crate::common::test_union::{Start, TestUnion, check};
use crate::common::tree::{Caller, Tree};
use crate::common::view::{Numbers, Times, View, Walk, compare, learn_times, view};
use memfs::{Count, Fault, MemOptions, Plan};
use unionfs::Delete;
use vnode::{Errno, RenameFlags};

/// The faults to inject. Only changes fail with ENOSPC, because reads need no space.
const ERRORS: [(Count, Fault); 5] = [
    (Count::All, Fault::Error(Errno::IO)),
    (Count::All, Fault::Errors(Errno::IO)),
    (Count::Changes, Fault::Errors(Errno::NOSPC)),
    // Only one change fails: a removal then retries with the reserved space.
    (Count::Changes, Fault::Error(Errno::NOSPC)),
    (Count::Changes, Fault::Error(Errno::ROFS)),
];

/// The expected tree, and the inode numbers of its objects.
type Expected = (Tree, Numbers);

/// One operation, with the expected tree after it or the permitted errors.
struct Case<'a> {
    start: &'a Start,
    op: &'a Op,
    new: Result<Tree, Vec<Errno>>,
}

impl<'a> Case<'a> {
    fn new(start: &'a Start, op: &'a Op) -> Self {
        let mut new = start.tree.clone();
        let answer = new.apply(Caller::USER, op);
        Self { start, op, new: answer.map(|()| new) }
    }

    fn old(&self) -> Expected {
        (self.start.tree.clone(), self.start.numbers.clone())
    }

    /// Runs with a fault at the k-th lower operation; returns whether that step was reached.
    fn with_error(&self, count: Count, fault: Fault, k: u64) -> Result<bool, String> {
        let union = self.start.union.fork();
        let mut session = union.mount()?;
        union.faults.arm(Plan { count, at: k, fault });
        let answer = session.run(Caller::USER, self.op);
        let fired = union.faults.fired();
        union.faults.disarm();
        let (mut model, mut numbers) = self.expected_after(answer, fault)?;
        let seen = check(&session, &model, &mut numbers, Times::Files).map_err(|e| format!("{answer:?}, but {e}"))?;
        learn_times(&seen, &mut model);
        drop(session);
        model.close_all();
        check_remount(&union, &mut model, &mut numbers).map_err(|e| format!("{answer:?}, after a remount: {e}"))?;
        Ok(fired)
    }

    fn expected_after(&self, answer: Result<(), Errno>, fault: Fault) -> Result<Expected, String> {
        let (mut old, numbers) = self.old();
        match (answer, &self.new) {
            (Ok(()), Ok(new)) => Ok((new.clone(), numbers)),
            (Ok(()), Err(refusal)) => Err(format!("succeeds, expected one of {refusal:?}")),
            (Err(e), new) => {
                let injected = match fault {
                    Fault::Error(e) | Fault::Errors(e) | Fault::ShortWrite { errno: e, .. } => e,
                    Fault::Crash | Fault::CrashInWrite { .. } => Errno::IO,
                };
                let refused = new.as_ref().is_err_and(|r| r.contains(&e));
                if e != injected && !refused {
                    return Err(format!("returns {e:?}, but {injected:?} was injected"));
                }
                old.slots = [None; common::op::SLOTS];
                Ok((old, numbers))
            }
        }
    }

    /// Runs with a crash at the k-th change; returns whether that step was reached.
    fn with_crash(&self, k: u64) -> Result<bool, String> {
        let union = self.start.union.fork();
        let mut session = union.mount()?;
        union.faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
        let answer = session.run(Caller::USER, self.op);
        let fired = union.faults.fired();
        drop(session);
        let union = union.recover();
        let mut session = union.mount()?;
        let seen = view(&*session.layer, Walk::Quick).map_err(|e| with_dump(&union, e))?;
        let (mut old, mut numbers) = self.old();
        old.close_all();
        let as_old = compare(&seen, &old, &mut numbers, Times::Files);
        let as_new = match &self.new {
            Ok(new) => {
                let (mut new, mut numbers) = (new.clone(), self.start.numbers.clone());
                new.close_all();
                compare(&seen, &new, &mut numbers, Times::Files)
            }
            Err(refusal) => Err(format!("none: the operation is refused with {refusal:?}")),
        };
        match (&as_old, as_new) {
            (_, Ok(())) => {}
            // After a successful reply the old view is not permitted.
            (Ok(()), Err(_)) if answer.is_err() => {}
            (Ok(()), Err(e)) => {
                return Err(with_dump(
                    &union,
                    format!("{answer:?}, but the view is the old one, not the new one:\n{e}"),
                ));
            }
            (Err(old), Err(new)) => {
                return Err(with_dump(
                    &union,
                    format!("{answer:?}, the view is neither the old one:\n{old}\nnor the new one:\n{new}"),
                ));
            }
        }
        union.check_leftovers(&seen).map_err(|e| with_dump(&union, e))?;
        if as_old.is_ok() {
            self.retry(&mut session).map_err(|e| with_dump(&union, e))?;
        }
        union.check_read_only_branches()?;
        Ok(fired)
    }

    /// Retries the operation after a crash: leftovers must not change its result.
    fn retry(&self, session: &mut Session) -> Result<(), String> {
        let (mut model, mut numbers) = self.old();
        model.close_all();
        let want = model.apply(Caller::USER, self.op);
        let got = session.run(Caller::USER, self.op);
        let same = match (&want, &got) {
            (Ok(()), got) => got.is_ok(),
            (Err(refusals), Err(e)) => refusals.contains(e),
            (Err(_), Ok(())) => false,
        };
        if !same {
            return Err(format!("retried after the crash it returns {got:?}, expected {want:?}"));
        }
        check(session, &model, &mut numbers, Times::Files).map_err(|e| format!("retried after the crash: {e}"))?;
        Ok(())
    }
}

fn check_remount(union: &TestUnion, model: &mut Tree, numbers: &mut Numbers) -> Result<(), String> {
    let session = union.mount()?;
    let seen = check(&session, model, numbers, Times::Files).map_err(|e| with_dump(union, e))?;
    union.check_leftovers(&seen).map_err(|e| with_dump(union, e))?;
    union.check_read_only_branches()
}

fn with_dump(union: &TestUnion, e: String) -> String {
    if testkit::number("STRATA_DUMP").is_some() { format!("{e}\nbranches:\n{:?}", union.dump()) } else { e }
}

/// Upper bound for the steps of one operation on trees of this size.
const MAX_STEPS: u64 = 2000;

/// Runs with a fault at each step in turn. Stops after 100 failures in a row, since such an
/// operation probably fails without a fault, too.
fn every_step(report: &mut Report, what: &str, mut run: impl FnMut(u64) -> Result<bool, String>) {
    let mut failing = 0;
    for k in 1..=MAX_STEPS {
        let outcome = run(k);
        let more = *outcome.as_ref().unwrap_or(&true);
        failing = if outcome.is_err() { failing + 1 } else { 0 };
        report.record(|| format!("{what}, step {k}"), outcome.map(|_| ()));
        if !more || failing == 100 {
            return;
        }
    }
    report.record(|| what.to_owned(), Err(format!("takes more than {MAX_STEPS} steps")));
}

/// Returns which paths this run tries.
fn breadth() -> Breadth {
    if testkit::number("STRATA_FULL").is_some() { Breadth::All } else { Breadth::Representative }
}

fn ops(start: &Start, breadth: Breadth) -> Vec<Op> {
    let mut ops = single_path_ops(&start.tree, breadth);
    ops.extend(two_path_ops(&start.tree, breadth));
    ops.retain(|op| !matches!(op, Op::Stat { .. }));
    ops
}

/// Whether this run tries the operation. Operations that the model refuses are sampled less often,
/// because faults have less effect on them.
fn is_tried(case: &Case<'_>, what: &str, n: u64) -> bool {
    is_sampled(what, &format!("{:?}", case.op), if case.new.is_ok() { n } else { 8 * n })
}

fn errors(config: &Config) {
    let mut report = Report::default();
    errors_on(config, breadth(), 128, &mut report);
    report.finish(&config.name);
}

/// Samples one in `n` operations.
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

/// Samples one in `n` operations.
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

/// Random branches with overlapping trees: a new set for each seed, and a few operations on each.
mod random_branches {
    use super::{Breadth, Report, crashes_on, errors_on};
    use crate::common::random_branches::random_config;
    use testkit::seeds;

    #[test]
    fn errors() {
        let mut report = Report::default();
        for seed in seeds(12) {
            errors_on(&random_config(seed), Breadth::All, 512, &mut report);
        }
        report.finish("random branches");
    }

    #[test]
    fn crashes() {
        let mut report = Report::default();
        for seed in seeds(12) {
            crashes_on(&random_config(seed), Breadth::All, 128, &mut report);
        }
        report.finish("random branches");
    }
}

/// Crashes the operation at its k-th change, then the recovering mount at its j-th step. The next
/// mount must find the old or the new view. Returns whether each of the two steps was reached.
fn interrupted_recovery(case: &Case<'_>, k: u64, j: u64) -> Result<(bool, bool), String> {
    let union = case.start.union.fork();
    let mut session = union.mount()?;
    union.faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
    // The operation may complete before the crash.
    let _ = session.run(Caller::USER, case.op);
    let crashed = union.faults.fired();
    drop(session);
    let union = union.recover();
    union.faults.arm(Plan { count: Count::All, at: j, fault: Fault::Crash });
    let _ = union.mount();
    let interrupted = union.faults.fired();
    let union = union.recover();
    let session = union.mount()?;
    let seen = view(&*session.layer, Walk::Quick).map_err(|e| with_dump(&union, e))?;
    case.is_old_or_new(&seen).map_err(|e| with_dump(&union, e))?;
    union.check_leftovers(&seen).map_err(|e| with_dump(&union, e))?;
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
            (Err(old), Err(new)) => Err(format!("the view is neither the old one:\n{old}\nnor the new one:\n{new}")),
            _ => Ok(()),
        }
    }
}

#[test]
fn recovery_survives_a_second_crash() {
    let rename = |from: &str, to: &str, exchange| Op::Rename {
        from: from.into(),
        to: to.into(),
        flags: RenameFlags { exchange, ..RenameFlags::default() },
    };
    let ops = [
        // The target is empty only in the union, so a logged exchange replaces it.
        rename("a", "empty", false),
        rename("opq", "both", true),
        Op::Rmdir { path: "empty".into() },
        Op::Mkdir { path: "wf".into(), mode: 0o700 },
        Op::Chmod { path: "a/f".into(), mode: 0o600 },
    ];
    let mut report = Report::default();
    // In the second configuration the empty directory holds whiteouts.
    for at in [1, 3] {
        let start = Start::new(&configs()[at], Delete::Whiteout, MemOptions::default());
        for op in &ops {
            let case = Case::new(&start, op);
            let (mut k, mut crashed) = (1, true);
            while crashed {
                let (mut j, mut interrupted) = (1, true);
                while interrupted && j < MAX_STEPS {
                    let outcome = interrupted_recovery(&case, k, j);
                    (crashed, interrupted) = *outcome.as_ref().unwrap_or(&(true, true));
                    report.record(|| format!("{op:?} crash {k}, then {j}"), outcome.map(|_| ()));
                    j += 1;
                }
                k += 1;
            }
        }
    }
    report.finish("recovery");
}

/// A merged directory whose removal fails or is interrupted keeps its inode number, although a
/// whiteout already hides its lower parts.
#[test]
fn an_interrupted_removal_keeps_the_inode_number() {
    let rename = |from: &str, to: &str| Op::Rename { from: from.into(), to: to.into(), flags: RenameFlags::default() };
    let ops = [
        Op::Rmdir { path: "d/bare".into() },
        Op::Rmdir { path: "d/marked".into() },
        rename("new", "d/bare"),
        rename("new", "d/marked"),
        rename("d/both", "d/marked"),
    ];
    let upper = || {
        let builder =
            BranchBuilder::new(1).dir("d", 0o755).dir("d/bare", 0o755).dir("d/marked", 0o755).dir("new", 0o755);
        builder.mark("d/marked/.wh.f").mark("d/marked/.wh.g").dir("d/both", 0o755).build()
    };
    let lower = || {
        let builder = BranchBuilder::new(9).dir("d", 0o755).dir("d/bare", 0o700).dir("d/marked", 0o700).file(
            "d/marked/f",
            0o644,
            5,
        );
        builder.dir("d/both", 0o755).file("d/both/f", 0o644, 5).build()
    };
    let mut report = Report::default();
    for (at, access) in [Access::Rw, Access::Ro, Access::Rw].into_iter().enumerate() {
        let mut branches = vec![(Access::Rw, upper()), (access, lower())];
        if at == 2 {
            branches.insert(0, (Access::Rw, BranchBuilder::new(0).build()));
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

/// Published copies and redirects are durable: since the user wrote no data, a power failure must
/// not lose any.
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
            let union = start.union.fork();
            let mut session = union.mount()?;
            union.faults.arm(Plan { count: Count::Changes, at: k, fault: Fault::Crash });
            let _ = session.run(Caller::USER, op);
            let fired = union.faults.fired();
            drop(session);
            let union = union.recover();
            let session = union.mount()?;
            let seen = view(&*session.layer, Walk::Quick).map_err(|e| with_dump(&union, e))?;
            // The identity log may lose its last records, and with them an inode number.
            let fresh = Start { union: union.fork(), tree: start.tree.clone(), numbers: Numbers::default() };
            let case = Case { start: &fresh, op, new: case.new.clone() };
            case.is_old_or_new(&seen).map_err(|e| with_dump(&union, e)).map(|()| fired)
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
            // All but the read-only one.
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

/// An index entry that an error kept from being removed is removed at the unmount.
#[test]
fn an_index_entry_whose_removal_failed_does_not_remain() {
    use crate::common::layer_ops::{CX, at, find, list, mkdir, name, write};
    let config = Config {
        name: "index entry".to_owned(),
        branches: vec![(Access::Rw, vec![]), (Access::Ro, BranchBuilder::new(1).dir("d", 0o755).build())],
        prologue: vec![],
    };
    let start = Start::new(&config, Delete::Whiteout, MemOptions::default());
    let mut failed = 0;
    for step in 1.. {
        let union = start.union.fork();
        let below = &*union.branches[1].1;
        write(below, "a", b"text");
        at(below, "").link(&CX, name("b"), &at(below, "a")).unwrap();
        mkdir(below, "e");
        let session = union.mount().unwrap();
        let root = at(&*session.layer, "");
        let file = at(&*session.layer, "a").open(&CX, vnode::OpenFlags::RDWR).unwrap();
        file.write(&CX, b"changed", 0).unwrap();
        drop(file);
        root.unlink(&CX, name("a")).unwrap();
        union.faults.arm(Plan { count: Count::Changes, at: step, fault: Fault::Errors(Errno::IO) });
        let done = root.unlink(&CX, name("b"));
        let hit = union.faults.fired();
        union.faults.disarm();
        drop((root, session));
        let entries =
            |path: &str| find(&*union.branches[0].1, path).map_or(0, |_| list(&*union.branches[0].1, path).len());
        assert_eq!(entries(".wh..wh.links"), usize::from(done.is_err()), "step {step}: {done:?}");
        if !hit {
            break;
        }
        failed += u32::from(done.is_ok());
    }
    assert!(failed > 0);
}
