//! What reading a configuration file needs besides its text.

use crate::problem::Problems;
use crate::settings::Origin;
use core::ops::Range as Span;

/// What all patterns of a file may cost, in units of 2 KiB of memory.
const MAX_COST: usize = 2048;

/// Finds users and groups by name, as getpwnam(3) and getgrnam(3) do.
pub trait Accounts {
    /// The ID of a user; `None` if there is none of this name.
    fn user(&self, name: &str) -> Option<u32>;
    /// The ID of a group; `None` if there is none of this name.
    fn group(&self, name: &str) -> Option<u32>;
}

/// What reading a file needs besides its text.
pub(crate) struct Context<'c> {
    pub(crate) origin: Origin,
    pub(crate) home: Option<&'c str>,
    pub(crate) accounts: &'c dyn Accounts,
    /// The user whose file it is.
    pub(crate) uid: Option<u32>,
    cost: usize,
}

impl<'c> Context<'c> {
    pub(crate) fn new(origin: Origin, home: Option<&'c str>, accounts: &'c dyn Accounts, uid: Option<u32>) -> Self {
        Self { origin, home, accounts, uid, cost: 0 }
    }

    pub(crate) fn add_cost(&mut self, cost: usize, span: &Span<usize>, problems: &mut Problems<'_>) {
        let before = self.cost;
        self.cost += cost;
        if before <= MAX_COST && self.cost > MAX_COST {
            problems.error(span, "the patterns of this file need too much memory; use fewer or shorter ones");
        }
    }
}
