//! fsck.unionfs on branches that an interrupted snapshot has left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, find, read};
use crate::common::snapshot_world::{BRANCHES, OPEN, World, assert_contents, branch, union_of};
use memfs::{Count, Fault, Faults, MemFs, Plan};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use unionfs::fsck::{CheckError, Consent, Finding, Inspector, Problem, Severity, check};
use unionfs::{BuildError, Mode};
use vnode::{Errno, OpenFlags};

/// An administrator who agrees to repairs up to `consent`.
struct Admin {
    consent: Option<Consent>,
    found: Vec<Finding>,
    repaired: usize,
    failed: Vec<String>,
}

impl Inspector for Admin {
    fn found(&mut self, finding: &Finding) -> bool {
        self.found.push(finding.clone());
        finding.repair().is_some_and(|repair| Some(repair.consent) <= self.consent)
    }

    fn repaired(&mut self, finding: &Finding, result: vnode::Result<()>) {
        match result {
            Ok(()) => self.repaired += 1,
            Err(errno) => self.failed.push(format!("{finding:?}: {errno}")),
        }
    }

    fn not_checked(&mut self, branch: &Path, path: &[u8], errno: Errno) {
        self.failed.push(format!("{} {}: {errno}", branch.display(), path.escape_ascii()));
    }

    fn restarts(&mut self) {}

    fn progress(&mut self, _checked: u64, _known: u64) -> bool {
        true
    }
}

type Branches = [(&'static str, Mode)];

/// Checks the branches. Returns what was found that is an error, and the number of repairs.
fn fsck(disk: &Arc<MemFs>, branches: &Branches, consent: Option<Consent>) -> (Vec<Finding>, usize) {
    let (admin, checked) = try_fsck(disk, branches, consent);
    assert_eq!((checked, &admin.failed), (Ok(()), &Vec::new()));
    (admin.found, admin.repaired)
}

fn try_fsck(disk: &Arc<MemFs>, branches: &Branches, consent: Option<Consent>) -> (Admin, Result<(), CheckError>) {
    let branches: Vec<_> = branches.iter().map(|(dir, mode)| branch(disk, dir, *mode)).collect();
    let mut admin = Admin { consent, found: Vec::new(), repaired: 0, failed: Vec::new() };
    let checked = check(&branches, &mut admin);
    admin.found.retain(|finding| finding.severity() != Severity::Note);
    (admin, checked)
}

const ALL: [(&str, Mode); 4] =
    [("new", Mode::ReadWrite), ("a", Mode::ReadOnly), ("b", Mode::ReadOnly), ("c", Mode::ReadOnly)];
const BOTH: [(&str, Mode); 4] =
    [("new", Mode::ReadWrite), ("a", Mode::ReadWrite), ("b", Mode::ReadWrite), ("c", Mode::ReadOnly)];

/// Returns what a mount of the old branches shows after a kill, and then one of all branches.
fn as_mounted(image: &Arc<MemFs>) -> [Vec<Vec<u8>>; 2] {
    let disk = image.fork(&Faults::new());
    let contents = |branches: &Branches| {
        let union = union_of(&disk, branches).unwrap();
        OPEN.iter().map(|path| read(&*union, path)).collect()
    };
    [contents(&BRANCHES), contents(&ALL)]
}

/// The state after a kill at each step of a snapshot, while the kernel goes on writing; each state
/// once.
fn states() -> Vec<(Arc<MemFs>, Vec<u64>)> {
    let (mut states, mut known) = (Vec::new(), BTreeSet::new());
    for at in 1.. {
        let Some((world, disk)) = World::killed_at(at) else { break };
        world_goes_on(&disk);
        if known.insert(format!("{:?}", disk.dump().without_times())) {
            states.push((disk, world.numbers));
        }
    }
    states
}

/// Lets the kernel write to the files: those in the new branch, or else in the old one.
fn world_goes_on(disk: &Arc<MemFs>) {
    for path in OPEN {
        let file = find(&**disk, &format!("new/{path}")).or_else(|| find(&**disk, &format!("a/{path}"))).unwrap();
        file.open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"after!", 0).unwrap();
    }
}

/// What happened in a run of the test.
#[derive(Debug, Default)]
struct Counts {
    unfinished: usize,
    leftovers: usize,
    refused: usize,
    kills: usize,
}

/// `-n` changes nothing; `-p` and `-y` do what a mount does, in whatever list of branches they find
/// the snapshot; a kill during a repair changes nothing about that.
#[test]
fn interrupted_snapshots_are_repaired_as_by_a_mount() {
    let mut counts = Counts::default();
    let thin = testkit::number("STRATA_THIN").unwrap_or(16) as usize;
    for (number, state) in states().iter().enumerate() {
        let want = as_mounted(&state.0);
        for (at, branches) in [&BRANCHES[..], &ALL[..], &BOTH[..]].into_iter().enumerate() {
            let before = state.0.dump();
            let (found, _) = fsck(&state.0, branches, None);
            assert_eq!(state.0.dump().differences(&before), "", "{number}");
            counts.unfinished += found.iter().filter(|finding| finding.problem == Problem::SnapshotUnfinished).count();
            counts.leftovers += found.iter().filter(|finding| finding.problem == Problem::SnapshotLeftovers).count();
            // `-y` does the same as `-p`.
            let both = [Consent::Safe, Consent::Ask];
            for consent in both.into_iter().take(if number % 8 == at { 2 } else { 1 }) {
                repair(state, branches, consent, 0, &want, &mut counts);
                let steps = (1 + (3 * number + at) as u64 % 5..).step_by(5);
                if (number + at) % thin == 0 {
                    let _all =
                        steps.take_while(|&step| repair(state, branches, consent, step, &want, &mut counts)).count();
                }
            }
        }
    }
    println!("{counts:?}");
    let Counts { unfinished, leftovers, refused, kills } = counts;
    assert!(unfinished > 10 && leftovers > 10 && refused > 3 && kills > 10);
}

/// Repairs a state, with a kill at a step unless that is 0. Returns whether the step was reached.
fn repair(
    (image, numbers): &(Arc<MemFs>, Vec<u64>),
    branches: &Branches,
    consent: Consent,
    step: u64,
    want: &[Vec<Vec<u8>>; 2],
    counts: &mut Counts,
) -> bool {
    let faults = Faults::new();
    let mut disk = image.fork(&faults);
    if step > 0 {
        faults.arm(Plan { count: Count::Changes, at: step, fault: Fault::Crash });
        let _interrupted = try_fsck(&disk, branches, Some(consent));
        if !faults.fired() {
            return false;
        }
        disk = disk.recover(&Faults::new());
        counts.kills += 1;
    }
    let context = format!("{branches:?}, {consent:?}, step {step}");
    let (found, _) = fsck(&disk, branches, Some(consent));
    let (left, repaired) = fsck(&disk, branches, Some(consent));
    assert_eq!(repaired, 0, "{context}: {found:?}, then {left:?}");
    let mounted = union_of(&disk, branches);
    if left.is_empty() {
        drop(mounted.unwrap());
    } else {
        assert!(left.iter().all(|finding| finding.obstacle.is_some()), "{context}: {left:?}");
        assert!(matches!(mounted, Err(BuildError::UnfinishedSnapshot(_))), "{context}");
        counts.refused += 1;
    }
    assert_eq!(as_mounted(&disk), *want, "{context}: {found:?}");
    drop(union_of(&disk, &BRANCHES).unwrap());
    let newest = union_of(&disk, &ALL).unwrap();
    for path in OPEN {
        assert_eq!(find(&*newest, path).unwrap().getattr(&CX).unwrap().nlink, 1, "{context}: {path}");
    }
    drop(newest);
    assert_contents(&*union_of(&disk, &BRANCHES).unwrap(), &want[0][0], numbers);
    true
}
