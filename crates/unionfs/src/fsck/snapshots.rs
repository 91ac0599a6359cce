//! The check of what an interrupted snapshot has left in the branches. It comes before all others,
//! because a repair replaces files.

use super::finding::Problem;
use super::{Inspector, Spot};
use crate::carry_list::{Found, find};
use crate::carry_recovery::Unfinished;
use crate::options::Branch;
use crate::ownfiles::Own;
use crate::ownnames::SNAPSHOT;
use std::sync::Arc;
use vnode::{Cx, Result, Vnode};

/// Checks the branches for interrupted snapshots, and completes or reverts them as a mount does.
pub(super) fn check(cx: &Cx<'_>, branches: &[Branch], inspector: &mut dyn Inspector) {
    let mut path = b"/.wh..wh.work/".to_vec();
    path.extend(SNAPSHOT);
    for branch in branches {
        if let Err(errno) = check_one(cx, branch, &path, inspector) {
            inspector.not_checked(&branch.path, &path, errno);
        }
    }
}

fn check_one(cx: &Cx<'_>, branch: &Branch, path: &[u8], inspector: &mut dyn Inspector) -> Result<()> {
    let root = branch.layer.root();
    let Some((work, found)) = in_work(cx, &root)? else { return Ok(()) };
    let problem = match found.unfinished(cx)? {
        Unfinished::Nothing => return Ok(()),
        Unfinished::Leftovers => Problem::SnapshotLeftovers,
        Unfinished::Complete | Unfinished::Revert => Problem::SnapshotUnfinished,
    };
    let mut finding = Spot::new(problem, path).finding(branch);
    if finding.obstacle.is_some() && problem == Problem::SnapshotUnfinished {
        finding.obstacle = Some("the branch is read-only: list it as rw once, with the branches to its right");
    }
    if inspector.found(&finding) && finding.repair().is_some() {
        let result = found.finish(cx, &root, &work);
        inspector.repaired(&finding, result);
    }
    Ok(())
}

/// Returns the work directory of a branch, and what a snapshot has left in it.
fn in_work(cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<Option<(Arc<dyn Vnode>, Found)>> {
    let Some(work) = root.lookup(cx, Own::Work.name()?)? else { return Ok(None) };
    if Own::Work.why_foreign(cx, &work)?.is_some() {
        return Ok(None);
    }
    let found = find(cx, &work.vnode)?;
    Ok(Some((work.vnode, found)))
}
