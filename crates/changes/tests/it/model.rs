//! Random branches and operations, in memory: the list of changes against a plain comparison of
//! both views; commit and discard of all and of parts; kills at each change of a branch.
//!
//! `STRATA_SEED` runs only that seed, `STRATA_SEEDS` the number of seeds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::case::*;
use changes::{Change, ChangeKind, CommitOptions, Error, Selection};
use memfs::{Count, Dump, Fault, MemOptions, Plan};
use std::time::UNIX_EPOCH;
use testkit::Rng;
use unionfs::offline::Writable;
use vnode::{Layer as _, Name, RenameFlags};

fn check_list(changes: &[Change], all: &Dump, below: &Dump) -> Result<(), String> {
    let (differing, with_links) = (differing(all, below), differing_with(all, below, true));
    let moves: Vec<&Change> = changes.iter().filter(|c| c.kind == ChangeKind::Renamed).collect();
    let moved =
        |path: &[u8]| moves.iter().any(|c| is_within(path, &c.path) || is_within(path, c.from.as_ref().unwrap()));
    for path in &differing {
        let listed = changes.iter().any(|c| match c.kind {
            ChangeKind::Removed => is_within(path, &c.path),
            // A directory in place of a file, or a file in place of a directory.
            ChangeKind::Changed => is_within(path, &c.path),
            _ => c.path == *path,
        });
        if !listed && !moved(path) {
            return Err(format!("/{} differs, but is not listed", path.escape_ascii()));
        }
    }
    for change in changes {
        let want = match change.kind {
            ChangeKind::Added => {
                (true, all.0.contains_key(&change.path) && (!below.0.contains_key(&change.path) || moved(&change.path)))
            }
            ChangeKind::Removed => (true, below.0.contains_key(&change.path) || moved(&change.path)),
            ChangeKind::Changed | ChangeKind::Attributes => {
                (true, with_links.contains(&change.path) || moved(&change.path))
            }
            ChangeKind::Renamed => (true, {
                let from = change.from.as_ref().unwrap();
                all.0.contains_key(&change.path)
                    && (below.0.contains_key(from) || moves.iter().any(|c| is_within(from, &c.path)))
            }),
        };
        if want.0 != want.1 {
            return Err(format!("{change:?} is listed wrongly"));
        }
    }
    Ok(())
}

#[test]
fn every_difference_is_listed() {
    run("list", 150, 40, MemOptions::default(), |case, _| {
        let changes = case.open().changes().map_err(|e| e.to_string())?;
        check_list(&changes, &case.view(0)?, &case.view(1)?)
    });
}

fn commit_all(case: &Case) -> Result<(), String> {
    let before = case.view(0)?;
    trace(case, "before");
    let outcome = case.commit(&Selection::all()).map_err(|e| e.to_string())?;
    if !outcome.failed.is_empty() {
        return Err(format!("failed: {:?}", outcome.failed));
    }
    committed(case, &before)
}

#[test]
fn a_commit_of_all_empties_the_upper_branch() {
    run("commit all", 150, 40, MemOptions::default(), |case, _| commit_all(case));
}

#[test]
fn a_discard_of_all_shows_what_is_below() {
    run("discard all", 150, 40, MemOptions::default(), |case, _| {
        let (below, raw) = (case.view(1)?, case.branches[1..].iter().map(|fs| fs.dump()).collect::<Vec<_>>());
        case.discard(&Selection::all()).map_err(|e| e.to_string())?;
        same("the union after the discard", &case.view(0)?, &below)?;
        if case.branches[1..].iter().map(|fs| fs.dump()).collect::<Vec<_>>() != raw {
            return Err("a branch below was changed".to_owned());
        }
        is_empty(case, 0)
    });
}

#[test]
fn a_partial_commit_leaves_the_union_as_it_is() {
    run("partial commit", 150, 40, MemOptions::default(), |case, seed| {
        let rng = &mut Rng::new(seed);
        let (before, miscounted) = (case.view(0)?, case.miscounted()?);
        for _ in 0..3 {
            let changes = case.open().changes().map_err(|e| e.to_string())?;
            let selection = some(&changes, rng);
            trace(case, &format!("{selection:?}"));
            match case.commit(&selection) {
                Ok(outcome) if outcome.failed.is_empty() => {
                    let after = case.open().changes().map_err(|e| e.to_string())?;
                    if let Some(left) = after.iter().find(|c| selection.includes(c)) {
                        return Err(format!("{left:?} was not committed"));
                    }
                }
                Ok(outcome) => return Err(format!("failed: {:?}", outcome.failed)),
                Err(Error::Whole { .. }) => {}
                Err(e) => return Err(e.to_string()),
            }
            same("the union after a partial commit", &case.view(0)?, &before)?;
            case.check_counts(&miscounted)?;
        }
        commit_all(case)
    });
}

/// Checks a path that was discarded. It shows the file of the branches below; if other names of
/// that file, which were not discarded, lead to a changed copy, it is a name of the copy.
fn check_discarded(
    case: &Case,
    path: &Vec<u8>,
    (before, numbers): (&Dump, &Dump),
    (after, below): (&Dump, &Dump),
    dropped: &dyn Fn(&Vec<u8>) -> bool,
) -> Result<(), String> {
    let strip = |dump: &Dump, path| dump.0.get(path).map(|node| (node.data.clone(), node.perm, node.uid));
    // A file with one name was renamed, if another path has its number.
    let is_file = below.0.get(path).is_some_and(|node| node.kind != vnode::Kind::Directory && node.nlink > 1);
    let number = if is_file { case.number_below(path)? } else { None };
    let same = |(_, node): &(&Vec<u8>, &memfs::Node)| Some(node.ino) == number;
    let other = numbers.0.iter().filter(same).map(|(other, _)| other).find(|other| !dropped(other));
    let Some(other) = other else {
        let (now, want) = (strip(after, path), strip(below, path));
        return if now == want { Ok(()) } else { Err(format!("is {now:?}, below {want:?}")) };
    };
    let shown = |dump: &Dump, path| dump.0.get(path).map(|node| node.first.clone());
    if shown(after, path) != shown(after, other) || strip(after, path) != strip(before, other) {
        return Err(format!("is not a name of /{}", other.escape_ascii()));
    }
    Ok(())
}

#[test]
fn a_partial_discard_changes_what_is_selected() {
    run("partial discard", 150, 40, MemOptions::default(), |case, seed| {
        let rng = &mut Rng::new(seed);
        let below = case.view(1)?;
        for _ in 0..3 {
            let changes = case.open().changes().map_err(|e| e.to_string())?;
            let (before, numbers, miscounted) = (case.view(0)?, case.numbered(0)?, case.miscounted()?);
            let selection = some(&changes, rng);
            if testkit::number("STRATA_TRACE").is_some() {
                println!("{selection:?}");
            }
            trace(case, "before");
            let outcome = match case.discard(&selection) {
                Ok(outcome) => outcome,
                Err(Error::Whole { .. }) => continue,
                Err(e) => return Err(e.to_string()),
            };
            let after = case.view(0)?;
            same("the branches below", &case.view(1)?, &below)?;
            // Some branches below show a count that is wrong, since one hides names of another.
            let [shown, shown_below] = [case.numbered(0)?, case.numbered(1)?];
            let is_as_below = |path: &&Vec<u8>| {
                let count = |dump: &Dump| dump.0.get(*path).map(|node| node.nlink);
                count(&shown) == count(&shown_below)
            };
            let wrong_below = case.miscounted()?.iter().filter(is_as_below).cloned().collect();
            case.check_counts(&(&miscounted | &wrong_below))?;
            let dropped = |path: &Vec<u8>| {
                outcome
                    .done
                    .iter()
                    .any(|c| is_within(path, &c.path) || c.from.as_ref().is_some_and(|from| is_within(path, from)))
            };
            let other = differing(&before, &after).into_iter().find(|path| !dropped(path));
            if let Some(path) = other {
                return Err(format!("/{} changed, but was not selected: {selection:?}", path.escape_ascii()));
            }
            let in_moved = |change: &Change| {
                changes.iter().any(|c| c.kind == ChangeKind::Renamed && is_within(&change.path, &c.path))
            };
            for change in outcome.done.iter().filter(|c| !c.is_dir() && !in_moved(c)) {
                for path in [Some(&change.path), change.from.as_ref()].into_iter().flatten() {
                    check_discarded(case, path, (&before, &numbers), (&after, &below), &dropped)
                        .map_err(|e| format!("/{}: {change:?}: {e}", path.escape_ascii()))?;
                }
            }
        }
        Ok(())
    });
}

/// Crashes at changes of the branches, then runs the same again.
fn crash(
    case: &Case,
    seed: u64,
    act: impl Fn(&Case) -> Result<(), Error>,
    check: impl Fn(&Case, bool) -> Result<(), String>,
) -> Result<(), String> {
    let whole = case.fork();
    act(&whole).map_err(|e| e.to_string())?;
    let changes = whole.faults.changes();
    let rng = &mut Rng::new(seed);
    for at in (1..=changes).filter(|_| changes < 40 || rng.one_in(8)) {
        if testkit::number("STRATA_STEP").is_some_and(|step| step != at) {
            continue;
        }
        let run = case.fork();
        run.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _crashed = act(&run);
        let run = run.recover();
        trace(&run, "after the crash");
        check(&run, false).map_err(|e| format!("crash at change {at} of {changes}, then: {e}"))?;
        act(&run).map_err(|e| format!("crash at change {at} of {changes}, then again: {e}"))?;
        check(&run, true).map_err(|e| format!("crash at change {at} of {changes}, then again: {e}{}", run.dump()))?;
    }
    Ok(())
}

#[test]
fn a_killed_commit_is_completed() {
    run("killed commit", 60, 25, lose(), |case, seed| {
        let (before, miscounted) = (case.view(0)?, case.miscounted()?);
        let act = |case: &Case| case.commit(&Selection::all()).map(drop);
        crash(case, seed, act, |case, done| match done {
            // The times of a directory may be those of an interrupted step.
            false => match differing(&case.view(0)?, &before).first() {
                Some(path) => Err(format!("/{} changed in the union", path.escape_ascii())),
                None => Ok(()),
            },
            true => {
                for (what, view) in [("union", case.view(0)?), ("branches below", case.view(1)?)] {
                    if let Some(path) = differing_with(&view, &before, true).first() {
                        let nodes = (before.0.get(path), view.0.get(path));
                        return Err(format!("/{} changed in the {what}: {nodes:?}", path.escape_ascii()));
                    }
                }
                case.check_counts(&miscounted)?;
                emptied(case)
            }
        })
    });
}

#[test]
fn a_killed_discard_is_completed() {
    run("killed discard", 60, 25, lose(), |case, seed| {
        let (before, below) = (case.view(0)?, case.view(1)?);
        let act = |case: &Case| case.discard(&Selection::all()).map(drop);
        crash(case, seed, act, |case, done| {
            let now = case.view(0)?;
            if done {
                return same("the union", &without_times(now), &without_times(below.clone()));
            }
            // Each path is in the old or the new state, or in that of a renamed directory.
            let strip =
                |dump: &Dump, path: &Vec<u8>| dump.0.get(path).map(|node| (node.kind, node.data.clone(), node.perm));
            for path in differing(&now, &before) {
                let (now, old, new) = (strip(&now, &path), strip(&before, &path), strip(&below, &path));
                if now != old && now != new && now.is_none() {
                    return Err(format!("/{} is neither old nor new", path.escape_ascii()));
                }
            }
            Ok(())
        })
    });
}

/// A renamed directory shows what the branches below have at its old path. If it is left out
/// because of a conflict, so is what would change that.
#[test]
fn a_renamed_directory_that_is_left_out_does_not_change() {
    let cx = crate::common::view::internal_cx();
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    let faults = memfs::Faults::new();
    let branches: Vec<_> = (0..2).map(|_| memfs::MemFs::with(MemOptions::default(), &faults)).collect();
    let below = branches[1].root().mkdir(&cx, name("old"), 0o755).unwrap().vnode;
    below.mkdir(&cx, name("inner"), 0o755).unwrap();
    below.mknod(&cx, name("file"), 0o100_644, 0).unwrap();
    let case = Case { faults, branches, names: vec![0, 1] };
    {
        let union = Writable::new(&case.pairs(0)).unwrap();
        let root = union.root();
        root.rename(&cx, name("old"), &root, name("new"), RenameFlags::default()).unwrap();
        let again = root.mkdir(&cx, name("old"), 0o755).unwrap().vnode;
        again.mknod(&cx, name("added"), 0o100_644, 0).unwrap();
        root.mknod(&cx, name("other"), 0o100_644, 0).unwrap();
    }
    let before = case.view(0).unwrap();
    // Everything below has changed since then.
    let options = CommitOptions { skip_conflicts: true, since: Some(UNIX_EPOCH), ..CommitOptions::default() };
    let outcome = case.open().commit(&Selection::all(), &options, &mut |_| {}).unwrap();
    assert_eq!(outcome.conflicts.iter().map(|c| &*c.path).collect::<Vec<_>>(), [b"new"]);
    assert_eq!(outcome.done.iter().map(|c| &*c.path).collect::<Vec<_>>(), [b"other"]);
    same("the union", &without_times(case.view(0).unwrap()), &without_times(before)).unwrap();
    // A part of the new directory can't be selected alone.
    let part = Selection::of([b"old/added".to_vec()]);
    assert!(matches!(case.commit(&part), Err(Error::Whole { whole, .. }) if whole == b"old"));
    commit_all(&case).unwrap();
}
