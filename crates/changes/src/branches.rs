//! The branches of a union that is not mounted, and views of them.

use crate::error::{At, Error};
use crate::ops::is_within;
use std::path::PathBuf;
use std::sync::Arc;
use unionfs::offline::{Copied, View, Writable};
use vnode::{Cx, Layer, Vnode};

/// A branch.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its file system, whose root is the branch's root.
    pub layer: Arc<dyn Layer>,
    /// Its path, as in the list of the union's branches: the union's records refer to it.
    pub path: PathBuf,
}

/// The kind of tree below the last of the given branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// Nothing: all branches of the union are given. Whiteouts remain only where they hide
    /// something; a target that is the last branch gets none.
    Ground,
    /// Other branches, which are not known. All whiteouts and opaque marks remain.
    Unknown,
}

/// The branches of a union that is not mounted.
///
/// The caller makes sure that no server writes to the upper branch or the target meanwhile.
#[derive(Clone, Debug)]
pub struct Branches {
    pub(crate) upper: Source,
    /// The target, and the branches to its right.
    pub(crate) below: Vec<Source>,
    pub(crate) floor: Floor,
    /// The paths of the target at which something is mounted.
    mount_points: Vec<Vec<u8>>,
}

/// What the branches show.
#[derive(Debug)]
pub(crate) struct Views {
    /// All branches.
    pub(crate) all: View,
    /// Those below the upper one.
    pub(crate) below: View,
}

impl Branches {
    /// Returns the branches `upper` and `below`, from left to right.
    #[must_use]
    pub fn new(upper: Source, below: Vec<Source>, floor: Floor) -> Self {
        Self { upper, below, floor, mount_points: Vec::new() }
    }

    /// Returns the branches with the paths of the target at which something is mounted. The host
    /// does not remove a directory in which there is one.
    #[must_use]
    pub fn with_mount_points(mut self, paths: Vec<Vec<u8>>) -> Self {
        self.mount_points = paths;
        self
    }

    /// Whether something is mounted at a path of the target, or beneath it.
    pub(crate) fn is_mounted_within(&self, path: &[u8]) -> bool {
        self.mount_points.iter().any(|point| is_within(point, path))
    }

    /// Returns the present state of the branches. Built anew after each change.
    pub(crate) fn views(&self) -> Result<Views, Error> {
        let all = self.pairs();
        let below = all.get(1..).unwrap_or_default();
        Ok(Views { all: View::new(&all)?, below: View::new(below)? })
    }

    /// Returns the union of all branches, which changes the upper one only.
    pub(crate) fn writable(&self) -> Result<Writable, Error> {
        Ok(Writable::new(&self.pairs())?)
    }

    /// Returns the union of the target and the branches below it, which changes the target only.
    pub(crate) fn below_writable(&self) -> Result<Writable, Error> {
        Ok(Writable::new(self.pairs().get(1..).unwrap_or_default())?)
    }

    pub(crate) fn pairs(&self) -> Vec<(Arc<dyn Layer>, PathBuf)> {
        let sources = [&self.upper].into_iter().chain(&self.below);
        sources.map(|source| (Arc::clone(&source.layer), source.path.clone())).collect()
    }

    /// Returns whether the upper branch is a copy of the directory that a union wrote.
    pub(crate) fn upper_copied(&self) -> Result<Option<Copied>, Error> {
        Ok(unionfs::offline::copied(&cx(), &self.pairs()).at("read the identity log", b"")?)
    }

    /// Records when the upper branch was recognised as a copy, if it is one and no mount has done
    /// that.
    pub(crate) fn note_copy(&self) -> Result<(), Error> {
        if self.upper_copied()?.is_some_and(|copied| copied.at.is_none()) {
            drop(self.writable()?);
        }
        Ok(())
    }

    /// Returns the root of the upper branch itself.
    pub(crate) fn upper_root(&self) -> Arc<dyn Vnode> {
        self.upper.layer.root()
    }

    /// Returns the root of the target itself.
    pub(crate) fn target_root(&self) -> Result<Arc<dyn Vnode>, Error> {
        let target = self.below.first().ok_or(Error::Branches(unionfs::BuildError::NoBranches))?;
        Ok(target.layer.root())
    }

    /// Whether something may lie below the target.
    pub(crate) fn has_more_below(&self) -> bool {
        self.below.len() > 1 || self.floor == Floor::Unknown
    }
}

/// Returns the context of all operations: this process.
pub(crate) fn cx() -> Cx<'static> {
    Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}
