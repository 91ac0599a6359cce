//! Directories whose branches report out-of-band changes are not verified again, however old what
//! is known of them is. The branches are in memory, and the test makes the reports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, at, name, names};
use crate::common::reporting::{Reporting, Source, make};
use memfs::{Faults, Op};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use unionfs::{BranchChange, ChangePolicy, InUse, Options, Unionfs};
use vnode::{Layer, RenameFlags, Vnode};

/// What is known is never recent enough to be trusted without a verification.
const EXPIRED: Duration = Duration::from_nanos(1);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

/// A union of branches that share a source of reports. Each has a directory `d`.
struct Test {
    faults: Faults,
    source: Arc<Source>,
    branches: Vec<Arc<Reporting>>,
    union: Arc<Unionfs>,
    dir: Arc<dyn Vnode>,
}

impl Test {
    /// Returns a union of `count` branches, of which those listed in `silent` report nothing.
    fn new(count: usize, silent: &[usize], check_interval: Duration) -> Self {
        let (faults, source) = (Faults::new(), Source::new());
        let reports = |at: usize| (!silent.contains(&at)).then_some(&source);
        let branches: Vec<_> = (0..count).map(|at| Reporting::new(reports(at), &faults)).collect();
        for (n, branch) in branches.iter().enumerate() {
            let dir = branch.root().mkdir(&CX, name("d"), 0o755).unwrap().vnode;
            make(&dir, &format!("f{n}"));
            make(&dir, "same");
        }
        let listed = branches.iter().enumerate().map(|(at, branch)| branch.branch(at)).collect();
        let union = Unionfs::new(listed, Options { check_interval, ..Options::default() }).unwrap();
        let dir = at(&*union, "d");
        Self { faults, source, branches, union, dir }
    }

    /// Returns the directory's part on a branch.
    fn part(&self, branch: usize) -> Arc<dyn Vnode> {
        at(&*self.branches[branch].lower, "d")
    }

    fn list(&self) -> BTreeSet<String> {
        names(&self.dir)
    }

    fn has(&self, file: &str) -> bool {
        self.dir.lookup(&CX, name(file)).unwrap().is_some()
    }

    /// Returns the lower operations that `run` makes.
    fn cost(&self, run: impl FnOnce(&Self)) -> Vec<Op> {
        self.faults.record();
        run(self);
        self.faults.log()
    }
}

#[test]
fn known_directories_cost_the_same_with_any_number_of_branches() {
    for count in [3, 16, 256, 1024] {
        let test = Test::new(count, &[], EXPIRED);
        assert_eq!(test.list().len(), count + 1);
        let stamp = test.dir.listing_stamp(&CX);
        assert_eq!(test.cost(|test| assert_eq!(test.list().len(), count + 1)), [], "{count} branches: listing");
        assert_eq!(test.cost(|test| assert_eq!(test.dir.listing_stamp(&CX), stamp)), []);
        let last = format!("f{}", count - 1);
        assert_eq!(test.cost(|test| assert!(test.has(&last))), [Op::Lookup], "{count} branches: hit");
        assert_eq!(test.cost(|test| assert!(!test.has("none"))), [], "{count} branches: miss");
        // The directory's own attributes.
        assert_eq!(test.cost(|test| assert_eq!(test.dir.getattr(&CX).unwrap().nlink, 2)), [Op::Getattr]);
    }
}

/// While a report may be missing, the parts are verified.
#[test]
fn parts_are_verified_while_reports_are_under_way() {
    let test = Test::new(16, &[], EXPIRED);
    assert_eq!(test.list().len(), 17);
    assert!(!test.has("new"));
    test.source.set_complete(false);
    make(&test.part(9), "new");
    assert!(test.has("new"));
    let verified = test.cost(|test| assert!(test.list().contains("new")));
    assert!(verified.iter().filter(|op| **op == Op::Getattr).count() >= 16, "{verified:?}");
    test.part(9).unlink(&CX, name("new")).unwrap();
    assert!(!test.has("new") && !test.list().contains("new"));
    // The reports arrive.
    test.branches[9].report(&test.part(9), "new");
    test.source.set_complete(true);
    assert!(!test.has("new") && !test.list().contains("new"));
    test.list();
    assert_eq!(test.cost(|test| drop(test.list())), []);
}

/// A report about one part does not cause a verification of all others.
#[test]
fn a_report_concerns_one_part() {
    for interval in [EXPIRED, LONG] {
        let test = Test::new(256, &[], interval);
        assert_eq!(test.list().len(), 257);
        for round in 0..3 {
            let new = format!("new{round}");
            assert!(!test.has(&new));
            test.branches[77 + round].make(&test.part(77 + round), &new);
            let cost = test.cost(|test| assert!(test.has(&new) && !test.has("none")));
            assert!(cost.len() < 64, "{} operations", cost.len());
            assert!(test.list().contains(&new));
            let removed = format!("f{}", 100 + round);
            test.part(100 + round).unlink(&CX, name(&removed)).unwrap();
            test.branches[100 + round].report(&test.part(100 + round), &removed);
            assert!(!test.has(&removed) && !test.list().contains(&removed));
            make(&test.part(5), &format!(".wh.f{}", 200 + round));
            test.branches[5].report(&test.part(5), &format!(".wh.f{}", 200 + round));
            let hidden = format!("f{}", 200 + round);
            assert!(!test.has(&hidden) && !test.list().contains(&hidden));
        }
    }
}

/// Reports that were lost make everything unknown.
#[test]
fn lost_reports_are_not_missed() {
    for interval in [EXPIRED, LONG] {
        let test = Test::new(16, &[], interval);
        assert_eq!(test.list().len(), 17);
        assert!(!test.has("lost") && test.has("f7"));
        test.source.set_complete(false);
        make(&test.part(3), "lost");
        test.part(7).unlink(&CX, name("f7")).unwrap();
        test.branches[3].upcalls().everything_changed();
        test.source.set_complete(true);
        assert!(test.has("lost") && !test.has("f7"));
        let names = test.list();
        assert!(names.contains("lost") && !names.contains("f7"));
    }
}

/// Changes that are reported while the union reads the parts, at each point.
#[test]
fn changes_during_a_read_are_not_missed() {
    for part in [0, 3, 7] {
        for step in 1.. {
            let test = Test::new(8, &[], EXPIRED);
            let (dir, branch) = (test.part(part), test.branches[part].clone());
            let whole = test.branches[part].lower.without_faults();
            // The lookup has read the parts already, to count subdirectories.
            branch.upcalls().everything_changed();
            test.faults.call_at(step, move || {
                // Past the fault plan, which is locked by this call.
                make(&at(&*whole, "d"), "new");
                branch.report(&dir, "new");
            });
            // Builds the index and the listing.
            test.list();
            if test.faults.forget_call() {
                assert!(step > 8 * 2, "the stamp and the names of each part");
                break;
            }
            assert!(test.has("new"), "part {part}, step {step}");
            assert!(test.list().contains("new"), "part {part}, step {step}");
            assert!(step < 200, "the call was never too late");
        }
    }
}

/// As above, where the reports of the changes are lost.
#[test]
fn lost_reports_during_a_read_are_not_missed() {
    for step in 1.. {
        let test = Test::new(8, &[], EXPIRED);
        let (branch, source) = (test.branches[5].clone(), test.source.clone());
        let whole = test.branches[5].lower.without_faults();
        branch.upcalls().everything_changed();
        test.faults.call_at(step, move || {
            source.set_complete(false);
            make(&at(&*whole, "d"), "new");
            branch.upcalls().everything_changed();
            source.set_complete(true);
        });
        test.list();
        if test.faults.forget_call() {
            assert!(step > 8 * 2, "the stamp and the names of each part");
            break;
        }
        assert!(test.has("new"), "step {step}");
        assert!(test.list().contains("new"), "step {step}");
        assert!(step < 200, "the call was never too late");
    }
}

/// Only the parts on branches that report nothing are verified.
#[test]
fn branches_without_reports_are_verified() {
    let test = Test::new(64, &[20, 40], EXPIRED);
    assert_eq!(test.list().len(), 65);
    assert_eq!(test.cost(|test| drop(test.list())), [Op::Getattr, Op::Getattr]);
    make(&test.part(20), "new");
    test.part(40).unlink(&CX, name("f40")).unwrap();
    assert!(test.has("new") && !test.has("f40"));
    let names = test.list();
    assert!(names.contains("new") && !names.contains("f40"));
    test.branches[21].make(&test.part(21), "other");
    assert!(test.has("other") && test.list().contains("other"));
}

/// A branch that is added while the union is in use is verified until it reports its changes.
#[test]
fn an_added_branch_reports_too() {
    let test = Test::new(4, &[], EXPIRED);
    assert_eq!(test.list().len(), 5);
    let added = Reporting::new(Some(&test.source), &test.faults);
    let part = added.root().mkdir(&CX, name("d"), 0o755).unwrap().vnode;
    make(&part, "added");
    let policy = ChangePolicy { patience: Duration::from_secs(10), in_use: InUse::Keep, expected_generation: None };
    let change = |change| test.union.change_branches(vec![change], &policy).unwrap();
    change(BranchChange::Insert { at: 2, branch: added.branch(9) });
    assert!(test.has("added") && test.list().contains("added"));
    assert_eq!(test.cost(|test| drop(test.list())), []);
    make(&part, "more");
    added.report(&part, "more");
    assert!(test.has("more") && test.list().contains("more"));
    change(BranchChange::Remove("/9".into()));
    assert!(!test.has("more") && !test.list().contains("added"));
    test.branches[1].make(&test.part(1), "new");
    assert!(test.has("new") && test.list().contains("new"));
}

/// A directory gets a part on a branch where it had none, and its other parts are renamed.
#[test]
fn new_and_renamed_parts_are_reported() {
    let test = Test::new(8, &[], EXPIRED);
    let root = test.union.root();
    for branch in [1, 4] {
        test.branches[branch].root().mkdir(&CX, name("sub"), 0o755).unwrap();
    }
    for branch in [1, 4] {
        test.branches[branch].upcalls().directory_entry_changed(test.branches[branch].root().id(), name("sub"));
    }
    let sub = root.lookup(&CX, name("sub")).unwrap().unwrap().vnode;
    assert!(names(&sub).is_empty());
    let new = test.branches[6].root().mkdir(&CX, name("sub"), 0o755).unwrap().vnode;
    test.branches[6].upcalls().directory_entry_changed(test.branches[6].root().id(), name("sub"));
    test.branches[6].make(&new, "in new");
    assert_eq!(names(&sub).len(), 1);
    let top = test.branches[4].root();
    top.rename(&CX, name("sub"), &top, name("moved"), RenameFlags::default()).unwrap();
    for entry in ["sub", "moved"] {
        test.branches[4].upcalls().directory_entry_changed(top.id(), name(entry));
    }
    make(&top.lookup(&CX, name("moved")).unwrap().unwrap().vnode, "in moved");
    assert!(names(&root).contains("moved"));
    let moved = root.lookup(&CX, name("moved")).unwrap().unwrap().vnode;
    assert!(names(&moved).contains("in moved") && names(&sub).len() == 1);
}

/// Changes through the union are not reported, and visible at once.
#[test]
fn own_changes_are_visible_at_once() {
    let test = Test::new(16, &[], EXPIRED);
    let all = test.list();
    make(&test.dir, "new");
    assert!(test.has("new") && test.list().contains("new"));
    test.dir.rename(&CX, name("new"), &test.dir, name("newer"), RenameFlags::default()).unwrap();
    assert!(!test.has("new") && test.has("newer") && test.list().contains("newer"));
    for file in ["newer", "same", "f0", "f9"] {
        test.dir.unlink(&CX, name(file)).unwrap();
        assert!(!test.has(file) && !test.list().contains(file), "{file}");
    }
    assert_eq!(test.list().len(), all.len() - 3);
    make(&test.dir, "f9");
    assert!(test.has("f9") && test.list().contains("f9"));
    // Out of band, a file below the name that the union hid appears again.
    test.part(0).unlink(&CX, name(".wh.same")).unwrap();
    test.branches[0].report(&test.part(0), ".wh.same");
    assert!(test.has("same") && test.list().contains("same"));
}
