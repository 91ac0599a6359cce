//! Branches that hang or are lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, name, names};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testkit::{seen, until};
use unionfs::{Branch, BranchChange, BuildError, ChangePolicy, Mode, Options, Unionfs};
use vnode::{Cx, Errno, Layer, Vnode};

const CHECK_INTERVAL: Duration = Duration::from_millis(10);

struct TestUnion {
    faults: Vec<Faults>,
    branches: Vec<Arc<MemFs>>,
    union: Arc<Unionfs>,
    root: Arc<dyn Vnode>,
}

/// Returns a union of branches with these modes. Each has a file `fN`, a directory `dir` with a
/// file
/// `gN`, and a directory `ownN`.
fn union(modes: &[Mode]) -> TestUnion {
    union_with(modes, CHECK_INTERVAL)
}

/// Lets what the union knows of its branches expire.
fn expire() {
    thread::sleep(2 * CHECK_INTERVAL);
}

fn union_with(modes: &[Mode], check_interval: Duration) -> TestUnion {
    let faults: Vec<_> = modes.iter().map(|_| Faults::new()).collect();
    let branches: Vec<_> = faults.iter().map(|faults| MemFs::with(MemOptions::default(), faults)).collect();
    for (n, branch) in branches.iter().enumerate() {
        let root = branch.root();
        root.mknod(&CX, name(&format!("f{n}")), 0o100_644, 0).unwrap();
        root.mkdir(&CX, name(&format!("own{n}")), 0o755).unwrap();
        let dir = root.mkdir(&CX, name("dir"), 0o755).unwrap().vnode;
        dir.mknod(&CX, name(&format!("g{n}")), 0o100_644, 0).unwrap();
    }
    let listed = branches.iter().zip(modes).enumerate().map(|(n, (layer, &mode))| Branch {
        layer: layer.clone(),
        path: format!("/{n}").into(),
        mode,
    });
    let options = Options { check_interval, ..Options::default() };
    let union = Unionfs::new(listed.collect(), options).unwrap();
    TestUnion { faults, branches, root: union.root(), union }
}

fn find(dir: &Arc<dyn Vnode>, file: &str) -> Option<Arc<dyn Vnode>> {
    dir.lookup(&CX, name(file)).unwrap().map(|entry| entry.vnode)
}

#[test]
fn a_branch_that_hangs_delays_only_requests_that_need_it() {
    let test = union(&[Mode::ReadWrite, Mode::ReadOnly, Mode::NfsReadOnly]);
    let root = &test.root;
    let all = names(root);
    let dir = find(root, "dir").unwrap();
    assert_eq!(names(&dir).len(), 3);
    assert!(root.getattr(&CX).is_ok() && dir.getattr(&CX).is_ok());
    test.faults[2].hang();
    expire();
    // The first ones take a few seconds.
    assert!(root.getattr(&CX).is_ok());
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(root.getattr(&CX).unwrap().nlink, 2 + 4);
        assert!(root.listing_stamp(&CX).is_some());
        assert!(find(root, "f0").is_some() && find(root, "f1").is_some() && find(root, "none").is_none());
        assert!(find(root, "own1").is_some());
        // A directory in use that merges a part on the branch.
        let again = find(root, "dir").unwrap();
        assert!(Arc::ptr_eq(&again, &dir) && again.getattr(&CX).is_ok());
        assert!(find(&dir, "g1").is_some() && find(&dir, "none").is_none());
        assert_eq!(names(root), all);
        assert_eq!(names(&dir).len(), 3);
        assert!(root.statfs(&CX).is_ok());
        thread::sleep(CHECK_INTERVAL + CHECK_INTERVAL / 2);
    }
    root.mknod(&CX, name("new"), 0o100_644, 0).unwrap();
    dir.mknod(&CX, name("new"), 0o100_644, 0).unwrap();
    root.unlink(&CX, name("f1")).unwrap();
    assert!(find(root, "f1").is_none() && find(root, "new").is_some());
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(test.union.branches().branches[2].trouble, Some("hung"));

    // A request that needs the branch waits, and can be interrupted.
    let interrupted = AtomicBool::new(false);
    thread::scope(|scope| {
        let cx = || Cx::new(0, 0, 0, 0, true, &interrupted);
        let waits = [
            scope.spawn(move || root.lookup(&cx(), name("f2")).map(drop)),
            scope.spawn(move || root.lookup(&cx(), name("own2")).map(drop)),
        ];
        // Changes of the same name exclude each other, and are interrupted as well.
        let changes = [(); 2].map(|()| scope.spawn(move || root.mkdir(&cx(), name("f2"), 0o755).map(drop)));
        // They go on waiting.
        thread::sleep(Duration::from_millis(300));
        assert!(waits.iter().chain(&changes).all(|caller| !caller.is_finished()));
        interrupted.store(true, Ordering::Relaxed);
        for caller in waits.into_iter().chain(changes) {
            assert_eq!(caller.join().unwrap(), Err(Errno::INTR));
        }
    });

    test.faults[2].resume();
    until("the branch is used again", || seen(test.union.branches().branches[2].trouble, Option::is_none));
    assert!(find(root, "f2").is_some() && find(root, "own2").is_some());
    test.branches[2].root().mknod(&CX, name("later"), 0o100_644, 0).unwrap();
    expire();
    assert!(find(root, "later").is_some() && names(root).contains("later"));
}

#[test]
fn a_hung_branch_can_be_removed() {
    let test = union(&[Mode::ReadWrite, Mode::ReadOnly, Mode::NfsReadOnly]);
    let dir = find(&test.root, "dir").unwrap();
    assert_eq!(names(&test.root).len(), 7);
    test.faults[2].hang();
    let policy = ChangePolicy::default();
    test.union.change_branches(vec![BranchChange::Remove("/2".into())], &policy).unwrap();
    assert!(find(&test.root, "f2").is_none() && find(&test.root, "f1").is_some());
    assert_eq!(names(&dir).len(), 2);
    test.faults[2].resume();
}

#[test]
fn a_lost_branch_is_skipped_if_its_mode_says_so() {
    for mode in [Mode::ReadOnlySkip, Mode::NfsReadOnlySkip] {
        let test = union(&[Mode::ReadWrite, Mode::ReadOnly, mode]);
        let root = &test.root;
        let all = names(root);
        let dir = find(root, "dir").unwrap();
        assert_eq!(names(&dir).len(), 3);
        for errno in [Errno::NOTCONN, Errno::STALE, Errno::IO] {
            test.faults[2].arm(Plan { count: Count::All, at: 1, fault: Fault::Errors(errno) });
            expire();
            assert!(find(root, "f2").is_none() && find(root, "own2").is_none() && find(root, "f1").is_some());
            let left: BTreeSet<_> = all.iter().filter(|name| !name.ends_with('2')).cloned().collect();
            assert_eq!(names(root), left);
            assert!(root.getattr(&CX).is_ok() && root.statfs(&CX).is_ok());
            let dir = find(root, "dir").unwrap();
            assert_eq!(names(&dir), ["g0", "g1"].map(str::to_owned).into());
            assert_eq!(test.union.branches().branches[2].trouble, Some("lost"));
            test.faults[2].disarm();
            until("the branch is used again", || find(root, "f2").is_some());
            assert_eq!(test.union.branches().branches[2].trouble, None);
            expire();
            assert_eq!(names(root), all);
            assert_eq!(names(&find(root, "dir").unwrap()).len(), 3);
        }
        drop(dir);
    }
}

#[test]
fn a_lost_branch_that_is_not_skipped_fails_what_needs_it() {
    let test = union(&[Mode::ReadWrite, Mode::ReadOnly, Mode::NfsReadOnly]);
    let root = &test.root;
    let all = names(root);
    let dir = find(root, "dir").unwrap();
    assert_eq!(names(&dir).len(), 3);
    test.faults[2].arm(Plan { count: Count::All, at: 1, fault: Fault::Errors(Errno::NOTCONN) });
    expire();
    assert_eq!(root.lookup(&CX, name("f2")).map(drop), Err(Errno::IO));
    assert_eq!(root.readdir(&CX, 0, &mut |_| true), Err(Errno::IO));
    assert!(find(root, "f1").is_some() && root.getattr(&CX).is_ok());
    assert!(Arc::ptr_eq(&find(root, "dir").unwrap(), &dir) && find(&dir, "g1").is_some());
    assert_eq!(test.union.branches().branches[2].trouble, Some("lost"));
    test.faults[2].disarm();
    // The branch is tried again after a second.
    thread::sleep(Duration::from_millis(1100));
    assert!(find(root, "f2").is_some());
    assert_eq!(names(root), all);
}

#[test]
fn skipping_can_be_switched() {
    let test = union(&[Mode::ReadWrite, Mode::ReadOnly, Mode::NfsReadOnly]);
    let switch = |branch: &str, mode| {
        test.union.change_branches(vec![BranchChange::Mode(branch.into(), mode)], &ChangePolicy::default())
    };
    assert!(matches!(switch("/1", Mode::ReadOnlySkip), Err(BuildError::NeedsRemount(..))));
    switch("/2", Mode::NfsReadOnlySkip).unwrap();
    test.faults[2].arm(Plan { count: Count::All, at: 1, fault: Fault::Errors(Errno::NOTCONN) });
    assert!(find(&test.root, "f2").is_none());
}

#[test]
fn slow_branches_are_asked_at_the_same_time() {
    let mut modes = vec![Mode::NfsReadOnly; 17];
    modes[0] = Mode::ReadWrite;
    let test = union_with(&modes, Duration::from_secs(10));
    let delay = Duration::from_millis(100);
    test.faults.iter().skip(1).for_each(|faults| faults.delay(delay));
    let time = |run: &dyn Fn()| {
        let begun = Instant::now();
        run();
        begun.elapsed()
    };
    // Of the 16 branches, name and whiteout are asked for at the same time.
    let lookup = time(&|| assert!(find(&test.root, "f16").is_some()));
    assert!(lookup < 3 * delay, "{lookup:?}");
    let missing = time(&|| assert!(find(&test.root, "none").is_none()));
    assert!(missing < 3 * delay, "{missing:?}");
    // The times of the parts, their names, and the subdirectory that all have: its name and its
    // opaque marks.
    let listing = time(&|| assert_eq!(names(&test.root).len(), 17 + 17 + 1));
    assert!(listing < 9 * delay, "{listing:?}");
    // And its times and names, to count its subdirectories.
    let dir = time(&|| assert!(find(&test.root, "dir").is_some()));
    assert!(dir < 9 * delay, "{dir:?}");
    println!("with a delay of {delay:?}: {lookup:?}, {missing:?}, {listing:?}, {dir:?}");
}
