//! The order in which snapshots are merged into one branch.

use crate::branches::{Branches, Source, cx};
use crate::error::{At, Error};
use crate::journal::Journal;
use crate::ops::{is_dir, list, lookup};
use unionfs::offline::{LINK_INDEX, METACOPIES};

/// A step of a merge: all changes of one branch move to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeStep {
    /// The branch whose changes move.
    pub from: usize,
    /// The branch that gets them, right of it.
    pub to: usize,
}

impl Branches {
    /// Returns the steps that merge the first `snapshots` of these branches into the next one. The
    /// numbers are positions of the branches, from left to right.
    ///
    /// The oldest snapshot is merged first, so that each file is copied once. But a branch can
    /// refer to files right of it by their inode numbers: by a metacopy, or by the copy of a file
    /// with several names. These files must remain until that branch is merged, so the newest
    /// snapshot is merged first then, into the one right of it. A merge that was interrupted may
    /// have taken these references away already, so it goes on in this order, too: the other one
    /// would move files to the target that a newer snapshot hides, and then drop what hides them.
    ///
    /// # Errors
    /// The branches can't be read.
    pub fn merge_steps(&self, snapshots: usize) -> Result<Vec<MergeStep>, Error> {
        // The oldest one's files remain until it is merged itself.
        for source in [&self.upper].into_iter().chain(&self.below).take(snapshots.saturating_sub(1)) {
            if refers_by_number(source)? || is_interrupted(source)? {
                return Ok((0..snapshots).map(|from| MergeStep { from, to: from + 1 }).collect());
            }
        }
        Ok((0..snapshots).rev().map(|from| MergeStep { from, to: snapshots }).collect())
    }
}

/// Whether a run that moves the changes of this branch was interrupted.
fn is_interrupted(source: &Source) -> Result<bool, Error> {
    Ok(Journal::read(&cx(), &source.layer.root()).at("read the journal", b"")?.is_some())
}

fn refers_by_number(source: &Source) -> Result<bool, Error> {
    let (cx, root) = (cx(), source.layer.root());
    if lookup(&cx, &root, METACOPIES).at("look up the mark of metacopies", b"")?.is_some() {
        return Ok(true);
    }
    let index = lookup(&cx, &root, LINK_INDEX).at("look up the index of hard links", b"")?;
    let Some(index) = index.filter(|entry| is_dir(&entry.vnode)) else { return Ok(false) };
    Ok(!list(&cx, &index.vnode).at("list the index of hard links", b"")?.is_empty())
}
