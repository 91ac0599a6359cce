//! Failures and crashes at every step of a commit, a discard and a merge of snapshots, over memory.
//! Meanwhile the union shows what it should; run again without a fault, each one completes.
//!
//! `STRATA_SEED` runs only that seed, `STRATA_SEEDS` the number of seeds, `STRATA_FULL` every step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::case::*;
use changes::{Error, Selection};
use memfs::{Count, Dump, Fault, MemOptions, Plan};
use testkit::Rng;
use vnode::{Errno, Layer as _, Name, OpenFlags, SetAttr, SetTime, Time};

/// The faults to inject, and the operations of which the k-th fails. Only changes need space.
const FAULTS: [(Count, Fault); 4] = [
    (Count::All, Fault::Error(Errno::IO)),
    (Count::Changes, Fault::Error(Errno::NOSPC)),
    (Count::Changes, Fault::Errors(Errno::NOSPC)),
    (Count::Changes, Fault::Crash),
];

/// Number of steps that are tried for each fault, on average.
const STEPS: u64 = 8;

/// Runs `act` with faults, and then again without one. `check` is told whether it completed.
fn at_every_step(
    case: &Case,
    seed: u64,
    act: impl Fn(&Case) -> Result<(), Error>,
    check: impl Fn(&Case, bool) -> Result<(), String>,
) -> Result<(), String> {
    let rng = &mut Rng::new(seed);
    for (count, fault) in FAULTS {
        let whole = case.fork();
        act(&whole).map_err(|e| format!("without a fault: {e}"))?;
        check(&whole, true).map_err(|e| format!("without a fault: {e}{}", whole.dump()))?;
        let steps = if count == Count::All { whole.faults.operations() } else { whole.faults.changes() };
        let thin = if testkit::number("STRATA_FULL").is_some() { 1 } else { steps / STEPS + 1 };
        for at in (1..=steps).filter(|_| rng.one_in(thin)) {
            if testkit::number("STRATA_STEP").is_some_and(|step| step != at) {
                continue;
            }
            let run = case.fork();
            run.faults.arm(Plan { count, at, fault });
            let done = act(&run);
            let fired = run.faults.fired();
            run.faults.disarm();
            let run = if fault == Fault::Crash { run.recover() } else { run };
            let what = format!("{fault:?} at {count:?} {at} of {steps}");
            let result = match &done {
                Ok(()) => "success".to_owned(),
                Err(error) => error.to_string(),
            };
            trace(&run, &what);
            check(&run, done.is_ok() && fault != Fault::Crash)
                .map_err(|e| format!("{what} (fired: {fired}): {result}, then: {e}{}", run.dump()))?;
            act(&run).map_err(|e| format!("{what}: {result}, then again: {e}"))?;
            check(&run, true).map_err(|e| format!("{what}: {result}, then again: {e}{}", run.dump()))?;
        }
    }
    Ok(())
}

fn no_difference(what: &str, got: &Dump, want: &Dump, links: bool) -> Result<(), String> {
    match differing_with(got, want, links).first() {
        Some(path) => {
            let show = |dump: &Dump| dump.0.get(path).map_or_else(|| "nothing".to_owned(), ToString::to_string);
            Err(format!("/{} changed in {what}:\n  - {}\n  + {}", path.escape_ascii(), show(want), show(got)))
        }
        None => Ok(()),
    }
}

fn options() -> MemOptions {
    MemOptions { lose_data: true, ..MemOptions::default() }
}

fn commit(case: &Case, selection: &Selection) -> Result<(), Error> {
    match case.commit(selection)?.failed.into_iter().next() {
        Some(failed) => Err(Error::Failed(failed)),
        None => Ok(()),
    }
}

#[test]
fn a_failed_commit_changes_nothing_and_is_completed() {
    run("failed commit", 15, 25, options(), |case, seed| {
        let (before, miscounted) = (case.view(0)?, case.miscounted()?);
        at_every_step(
            case,
            seed,
            |case| commit(case, &Selection::all()),
            |case, done| {
                no_difference("the union", &case.view(0)?, &before, done)?;
                if !done {
                    return Ok(());
                }
                no_difference("the branches below", &case.view(1)?, &before, true)?;
                case.check_counts(&miscounted)?;
                emptied(case)
            },
        )
    });
}

#[test]
fn a_failed_commit_of_some_changes_nothing_and_is_completed() {
    run("failed partial commit", 15, 25, options(), |case, seed| {
        let (before, miscounted) = (case.view(0)?, case.miscounted()?);
        let changes = case.open().changes().map_err(|e| e.to_string())?;
        let selection = some(&changes, &mut Rng::new(seed));
        if case.fork().commit(&selection).is_err() {
            return Ok(());
        }
        at_every_step(
            case,
            seed,
            |case| commit(case, &selection),
            |case, done| {
                no_difference("the union", &case.view(0)?, &before, done)?;
                if done { case.check_counts(&miscounted) } else { Ok(()) }
            },
        )
    });
}

#[test]
fn a_failed_discard_loses_nothing_else_and_is_completed() {
    run("failed discard", 15, 25, options(), |case, seed| {
        let (before, below) = (case.view(0)?, case.view(1)?);
        let raw: Vec<Dump> = case.branches[1..].iter().map(|fs| fs.dump()).collect();
        let changes = case.open().changes().map_err(|e| e.to_string())?;
        let selection = match seed % 2 {
            0 => Selection::all(),
            _ => some(&changes, &mut Rng::new(seed)),
        };
        let whole = case.fork();
        let Ok(outcome) = whole.discard(&selection) else { return Ok(()) };
        let after = whole.view(0)?;
        let dropped = |path: &[u8]| {
            outcome
                .done
                .iter()
                .any(|c| is_within(path, &c.path) || c.from.as_ref().is_some_and(|from| is_within(path, from)))
        };
        at_every_step(
            case,
            seed,
            |case| case.discard(&selection).map(drop),
            |case, done| {
                if case.branches[1..].iter().map(|fs| fs.without_faults().dump()).collect::<Vec<_>>() != raw {
                    return Err("a branch below was changed".to_owned());
                }
                let now = case.view(0)?;
                if done {
                    return no_difference("the union", &now, &after, true);
                }
                let strip = |dump: &Dump, path: &Vec<u8>| {
                    dump.0.get(path).map(|node| (node.kind, node.data.clone(), node.perm))
                };
                for path in differing(&now, &before) {
                    if !dropped(&path) {
                        return Err(format!("/{} changed, but was not selected", path.escape_ascii()));
                    }
                    let (now, old, new) = (strip(&now, &path), strip(&before, &path), strip(&below, &path));
                    if now != old && now != new && now.is_none() {
                        return Err(format!("/{} is neither old nor new", path.escape_ascii()));
                    }
                }
                Ok(())
            },
        )
    });
}

/// Checks that a snapshot has nothing any more.
fn is_merged(case: &Case, at: usize) -> Result<(), String> {
    let dump = Dump::of(&*case.branches[at].without_faults()).unwrap();
    match dump.0.keys().find(|path| !path.is_empty()) {
        Some(path) => Err(format!("snapshot {at} still has /{}", path.escape_ascii())),
        None => Ok(()),
    }
}

/// Number of snapshots that are merged into the branch right of them.
const SNAPSHOTS: usize = 2;

#[test]
fn a_failed_merge_changes_nothing_and_is_completed() {
    let branches = |seed| case_with_snapshots(seed, options(), 12, SNAPSHOTS);
    run_on("failed merge", 12, branches, |case, seed| {
        let below = seed % 4 != 1;
        let before = case.view(0)?;
        if let Err(refused) = case.fork().merge(SNAPSHOTS, below) {
            return match refused {
                Error::NeedsBelow { .. } if !below => Ok(()),
                other => Err(other.to_string()),
            };
        }
        at_every_step(
            case,
            seed,
            |case| case.merge(SNAPSHOTS, below),
            |case, done| {
                no_difference("the union", &case.view(0)?, &before, done)?;
                if !done {
                    return Ok(());
                }
                no_difference("the target", &case.view(SNAPSHOTS)?, &before, true)?;
                (0..SNAPSHOTS).try_for_each(|at| is_merged(case, at))
            },
        )
    });
}

/// A merge that a full disk interrupted goes on in the order in which it began, although the newest
/// snapshot does not refer to the older ones any more.
#[test]
fn an_interrupted_merge_keeps_its_order() {
    let case = case_with_snapshots(4, options(), 12, SNAPSHOTS);
    let before = case.view(0).unwrap();
    let whole = case.fork();
    whole.merge(SNAPSHOTS, true).unwrap();
    let mut failed = 0;
    for at in 1..=whole.faults.changes() {
        let run = case.fork();
        run.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Error(Errno::NOSPC) });
        let done = run.merge(SNAPSHOTS, true);
        run.faults.disarm();
        failed += u32::from(done.is_err());
        run.merge(SNAPSHOTS, true).unwrap_or_else(|e| panic!("step {at}: {done:?}, then again: {e}"));
        no_difference("the union", &run.view(0).unwrap(), &before, false).unwrap_or_else(|e| panic!("step {at}: {e}"));
    }
    assert!(failed > 20, "{failed}");
}

fn write(fs: &memfs::MemFs, name: &'static str, text: &[u8], mtime: i64) {
    let (cx, name) = (crate::common::view::internal_cx(), Name::new(name.as_bytes()).unwrap());
    let root = fs.root();
    let file = match root.lookup(&cx, name).unwrap() {
        Some(entry) => entry.vnode,
        None => root.mknod(&cx, name, 0o100_644, 0).unwrap().vnode,
    };
    file.open(&cx, OpenFlags::RDWR).unwrap().write(&cx, text, 0).unwrap();
    let time = SetTime::At(Time { sec: mtime, nsec: 0 });
    file.setattr(&cx, &SetAttr { mtime: Some(time), ..SetAttr::default() }, None).unwrap();
}

/// A file that was written after it was created is no conflict if a killed merge has moved one of
/// its names.
#[test]
fn a_killed_merge_is_completed_without_conflicts() {
    let faults = memfs::Faults::new();
    let branches: Vec<_> = (0..2).map(|_| memfs::MemFs::with(MemOptions::default(), &faults)).collect();
    for name in ["a", "b"] {
        write(&branches[0], name, b"mine", 1 << 39);
        let (cx, root) = (crate::common::view::internal_cx(), branches[0].root());
        let linked = root.lookup(&cx, Name::new(name.as_bytes()).unwrap()).unwrap().unwrap().vnode;
        root.link(&cx, Name::new(format!("{name}2").as_bytes()).unwrap(), &linked).unwrap();
    }
    write(&branches[1], "b", b"old", 4);
    let case = Case { faults, branches, names: vec![0, 1] };
    let options = changes::CommitOptions { merging: true, ..changes::CommitOptions::default() };
    let commit = |case: &Case| case.open().commit(&Selection::all(), &options, &mut |_| {});
    let whole = case.fork();
    commit(&whole).unwrap();
    let steps = whole.faults.changes();
    for at in 1..=steps {
        let run = case.fork();
        run.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _crashed = commit(&run);
        let run = run.recover();
        commit(&run).unwrap_or_else(|e| panic!("killed at step {at} of {steps}: {e}"));
    }
}

/// A later run does not take a file that was written below after the kill for its own work.
#[test]
fn a_file_written_below_after_a_kill_is_a_conflict() {
    let faults = memfs::Faults::new();
    let branches: Vec<_> = (0..2).map(|_| memfs::MemFs::with(MemOptions::default(), &faults)).collect();
    for name in ["a", "b"] {
        write(&branches[0], name, b"mine", 5);
        write(&branches[1], name, b"old", 4);
    }
    let case = Case { faults, branches, names: vec![0, 1] };
    let options = changes::CommitOptions { merging: true, ..changes::CommitOptions::default() };
    let commit = |case: &Case| case.open().commit(&Selection::all(), &options, &mut |_| {});
    let future = 1 << 40;
    for later in [false, true] {
        let run = case.fork();
        // After the first file was renamed to its name.
        let renames = Plan { count: Count::Only(memfs::Op::Rename), at: 3, fault: Fault::Crash };
        run.faults.arm(renames);
        commit(&run).unwrap_err();
        let run = run.recover();
        let text = |fs: &memfs::MemFs, path: &[u8]| Dump::of(fs).unwrap().0[path].data.clone();
        assert_eq!((text(&run.branches[1], b"a"), text(&run.branches[1], b"b")), (b"mine".to_vec(), b"old".to_vec()));
        if later {
            write(&run.branches[1], "b", b"theirs", future);
        }
        match commit(&run) {
            Err(Error::Conflicts(conflicts)) => assert!(later && conflicts.len() == 1 && conflicts[0].path == b"b"),
            other => assert!(!later && other.is_ok(), "{other:?}"),
        }
        assert_eq!(text(&run.branches[1], b"b"), if later { b"theirs".to_vec() } else { b"mine".to_vec() });
    }
}
