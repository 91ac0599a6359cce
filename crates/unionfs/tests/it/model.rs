//! Single operations against the model, without faults: every operation on every path of
//! `op_matrix`, on every set of branches, in both delete modes. The result, the view and the inode
//! numbers must match the model, at once and after a remount.
//!
//! A default run tries a sample of the operations, selected by a hash. `STRATA_PART=1`, `2`, ...
//! select other samples, `STRATA_THIN=n` sets the sample to one in n, and `STRATA_FULL=1` tries
//! every pair of all paths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::config::{Config, configs};
use crate::common::op::Op;
use crate::common::op_matrix::{Breadth, single_path_ops, two_path_ops};
use crate::common::random_branches::random_config;
use crate::common::report::{Report, is_sampled};
use crate::common::test_union::{Start, TestUnion, check};
use crate::common::tree::Caller;
use crate::common::view::{Times, learn_times};
use memfs::MemOptions;
use testkit::seeds;
use unionfs::Delete;

/// Runs one operation; result and view must match the model, live and after a remount.
fn run_op(start: &Start, op: &Op) -> Result<(), String> {
    let union = start.union.fork();
    let mut session = union.mount()?;
    let (mut model, mut numbers) = (start.tree.clone(), start.numbers.clone());
    let got = session.run(Caller::USER, op);
    match (model.apply(Caller::USER, op), got) {
        (Ok(()), Ok(())) => {}
        (Err(permitted), Err(e)) if permitted.contains(&e) => {}
        (want, got) => return Err(format!("returns {got:?}, expected {want:?}")),
    }
    let seen = check(&session, &model, &mut numbers, Times::All).map_err(|e| with_dump(&union, &e))?;
    learn_times(&seen, &mut model);
    check_remount(&union, session, model, numbers)
}

fn check_remount(
    union: &TestUnion,
    session: common::session::Session,
    mut model: common::tree::Tree,
    mut numbers: common::view::Numbers,
) -> Result<(), String> {
    drop(session);
    model.close_all();
    let session = union.mount()?;
    let seen = check(&session, &model, &mut numbers, Times::All)
        .map_err(|e| with_dump(union, &format!("after a remount: {e}")))?;
    union.check_leftovers(&seen).map_err(|e| with_dump(union, &e))?;
    union.check_read_only_branches()
}

fn with_dump(union: &TestUnion, e: &str) -> String {
    if testkit::number("STRATA_DUMP").is_some() { format!("{e}\nbranches:\n{:?}", union.dump()) } else { e.to_owned() }
}

fn run_config(config: &Config) {
    let breadth = if testkit::number("STRATA_FULL").is_some() { Breadth::All } else { Breadth::Representative };
    let mut report = Report::default();
    run_sample(config, breadth, (1, 8), &mut report);
    report.finish(&config.name);
}

/// Runs one in `sample.0` of the single-path operations and one in `sample.1` of the two-path ones.
fn run_sample(config: &Config, breadth: Breadth, sample: (u64, u64), report: &mut Report) {
    for delete in [Delete::Whiteout, Delete::All] {
        let start = Start::new(config, delete, MemOptions::default());
        let salt = format!("{} {delete:?}", config.name);
        let select = |ops: Vec<Op>, n| {
            let salt = &salt;
            ops.into_iter().filter(move |op| is_sampled(salt, &format!("{op:?}"), n))
        };
        let ops = select(single_path_ops(&start.tree, Breadth::All), sample.0);
        for op in ops.chain(select(two_path_ops(&start.tree, breadth), sample.1)) {
            report.record(|| format!("{op:?} {delete:?} {}", config.name), run_op(&start, &op));
        }
    }
}

/// Random branches with overlapping trees, a new set for each seed.
#[test]
fn random_branches() {
    let mut report = Report::default();
    for seed in seeds(24) {
        run_sample(&random_config(seed), Breadth::All, (4, 64), &mut report);
    }
    report.finish("random branches");
}

macro_rules! for_each_config {
    ($($test:ident = $at:expr;)*) => {
        $(#[test]
        fn $test() {
            run_config(&configs()[$at]);
        })*

        #[test]
        fn every_configuration_is_tested() {
            assert_eq!([$($at),*].len(), configs().len());
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
    all_read_only = 10;
}
