//! Every operation on every interesting path of every set of branches, in both delete modes, without faults: the answer, the
//! view and the numbers must be the model's, at once and after a remount.
//!
//! A default run tries a part of the operations, chosen by a hash. `STRATA_PART=1`, `2`, ... try other
//! parts, `STRATA_THIN=n` makes the part one in n, and `STRATA_FULL=1` tries every pair of all paths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bed::{Bed, Start, check};
use common::config::{Config, configs};
use common::interesting::{Breadth, on_one_path, on_two_paths};
use common::op::Op;
use common::overlap::{overlapping, seeds};
use common::report::{Report, chosen, env};
use common::tree::Who;
use common::view::{Times, learn_times};
use memfs::MemOptions;
use unionfs::Delete;

/// One operation by itself: the answer and the view are the model's, live and after a remount.
fn run(start: &Start, op: &Op) -> Result<(), String> {
    let bed = start.bed.fork();
    let mut session = bed.mount()?;
    let (mut model, mut numbers) = (start.tree.clone(), start.numbers.clone());
    let got = session.run(Who::USER, op);
    match (model.apply(Who::USER, op), got) {
        (Ok(()), Ok(())) => {}
        (Err(permitted), Err(e)) if permitted.contains(&e) => {}
        (want, got) => return Err(format!("answers {got:?}, not {want:?}")),
    }
    let seen = check(&session, &model, &mut numbers, Times::All).map_err(|e| show(&bed, &e))?;
    learn_times(&seen, &mut model);
    remounted(&bed, session, model, numbers)
}

fn remounted(
    bed: &Bed,
    session: common::session::Session,
    mut model: common::tree::Tree,
    mut numbers: common::view::Numbers,
) -> Result<(), String> {
    drop(session);
    model.close_all();
    let session = bed.mount()?;
    let seen =
        check(&session, &model, &mut numbers, Times::All).map_err(|e| show(bed, &format!("after a remount: {e}")))?;
    bed.check_litter(&seen).map_err(|e| show(bed, &e))?;
    bed.check_branches()
}

fn show(bed: &Bed, e: &str) -> String {
    if env("STRATA_DUMP").is_some() { format!("{e}\nbranches:\n{:?}", bed.dump()) } else { e.to_owned() }
}

fn all_of(config: &Config) {
    let breadth = if env("STRATA_FULL").is_some() { Breadth::All } else { Breadth::Representative };
    let mut report = Report::default();
    part_of(config, breadth, (1, 8), &mut report);
    report.finish(&config.name);
}

/// One in so many operations on one path, and on two.
fn part_of(config: &Config, breadth: Breadth, thin: (u64, u64), report: &mut Report) {
    for delete in [Delete::Whiteout, Delete::All] {
        let start = Start::new(config, delete, MemOptions::default());
        let salt = format!("{} {delete:?}", config.name);
        let part = |ops: Vec<Op>, n| {
            let salt = &salt;
            ops.into_iter().filter(move |op| chosen(salt, &format!("{op:?}"), n))
        };
        let ops = part(on_one_path(&start.tree, Breadth::All), thin.0);
        for op in ops.chain(part(on_two_paths(&start.tree, breadth), thin.1)) {
            report.note(|| format!("{op:?} {delete:?} {}", config.name), run(&start, &op));
        }
    }
}

/// Branches that start with different trees: another set for each seed.
#[test]
fn different_trees() {
    let mut report = Report::default();
    for seed in seeds(24) {
        part_of(&overlapping(seed), Breadth::All, (4, 64), &mut report);
    }
    report.finish("different trees");
}

macro_rules! for_each_config {
    ($($test:ident = $at:expr;)*) => {
        $(#[test]
        fn $test() {
            all_of(&configs()[$at]);
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
