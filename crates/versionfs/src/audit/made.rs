//! The versions that the operation of this thread makes.
//!
//! They are made several calls below the operation, in all the ways in which a version can be made.
//! An operation runs on one thread, so they are collected there.

use crate::set::Set;
use std::cell::RefCell;

/// A version that an operation made.
#[derive(Clone, Debug)]
pub(crate) struct MadeVersion {
    /// The number of the directory of the set; 0 for the set of an inode with several names.
    pub(crate) dir: u64,
    /// The stem of the set.
    pub(crate) stem: Box<[u8]>,
    pub(crate) number: u64,
}

thread_local! {
    /// `None`: nobody wants to know.
    static MADE: RefCell<Option<Vec<MadeVersion>>> = const { RefCell::new(None) };
}

/// Notes that a version was made.
pub(crate) fn note(set: &Set, number: u64) {
    MADE.with_borrow_mut(|made| {
        if let Some(made) = made {
            let dir = if set.is_link() { 0 } else { set.home_id() };
            made.push(MadeVersion { dir, stem: (*set.stem).into(), number });
        }
    });
}

/// Collects the versions while it exists. A second layer of this kind in the stack has an operation
/// of its own within that of the first one.
#[derive(Debug)]
pub(super) struct Noted {
    outer: Option<Vec<MadeVersion>>,
}

impl Noted {
    pub(super) fn begin() -> Self {
        Self { outer: MADE.replace(Some(Vec::new())) }
    }

    /// Returns the versions that were made since [`Self::begin`].
    pub(super) fn end(mut self) -> Vec<MadeVersion> {
        MADE.replace(self.outer.take()).unwrap_or_default()
    }
}
