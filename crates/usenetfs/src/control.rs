//! The commands for conversions, which are sent through the mount's control channel on a directory.
//!
//! [`CONVERT`] performs a step under the layer's locks; [`STATE`] queries the progress. Both return
//! a [`Progress`].

use crate::record::Phase;
use crate::scheme::SchemeChoice;
use core::fmt;
use vnode::{Command, CommandAccess};

/// Performs a step of a conversion.
pub const CONVERT: Command = Command {
    name: "usenetfs.convert",
    help: "On a directory, by root or its owner: moves up to N entries. Input: 'manage digits N', 'manage hash N', \
           'manage hash N LIMIT' or 'unmanage N'; N is 10000 at most. Returns the same as usenetfs.state. usenetctl repeats the \
           command until the conversion is complete.",
    // The command itself checks for the directory's owner, whom the server does not know.
    access: CommandAccess::Anyone,
};
/// Returns the progress of a conversion.
pub const STATE: Command = Command {
    name: "usenetfs.state",
    help: "On a directory: returns as JSON its phase (flat, stable, or that of a conversion), its scheme, and the number of \
           entries that the conversion has moved.",
    access: CommandAccess::Anyone,
};
/// Maximum number of entries that one step moves. Callers that use the directory wait for the step.
const STEP_MAX: usize = 10_000;

/// The goal of a conversion.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Managed by this scheme.
    Manage(SchemeChoice),
    /// Flat.
    Unmanage,
}

impl Goal {
    /// Returns the input of [`CONVERT`] for a step of up to `budget` entries.
    #[must_use]
    pub fn text(&self, budget: usize) -> String {
        match self {
            Self::Unmanage => format!("unmanage {budget}"),
            Self::Manage(SchemeChoice { hash: false, .. }) => format!("manage digits {budget}"),
            Self::Manage(SchemeChoice { hash: true, limit: None }) => format!("manage hash {budget}"),
            Self::Manage(SchemeChoice { hash: true, limit: Some(limit) }) => format!("manage hash {budget} {limit}"),
        }
    }

    /// Parses the output of [`Self::text`]; returns `None` if it is invalid.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<(Self, usize)> {
        let words: Vec<&str> = core::str::from_utf8(text).ok()?.split(' ').collect();
        let (goal, budget) = match *words.as_slice() {
            ["unmanage", budget] => (Self::Unmanage, budget),
            ["manage", "digits", budget] => (Self::Manage(SchemeChoice::default()), budget),
            ["manage", "hash", budget] => (Self::Manage(SchemeChoice { hash: true, limit: None }), budget),
            ["manage", "hash", budget, limit] => {
                let limit = limit.parse().ok().filter(|limit| (2..=1_000_000).contains(limit))?;
                (Self::Manage(SchemeChoice { hash: true, limit: Some(limit) }), budget)
            }
            _ => return None,
        };
        let budget: usize = budget.parse().ok()?;
        Some((goal, budget.min(STEP_MAX)))
    }
}

/// Layout of a directory, and progress of its conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// `None` for a flat directory.
    pub(crate) phase: Option<Phase>,
    pub(crate) hash: bool,
    pub(crate) moved: u64,
}

impl Progress {
    /// Whether no conversion is in progress.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.phase, None | Some(Phase::Stable))
    }
}

/// Formats the progress as JSON: `{"phase":"filling","scheme":"digits","moved":3000}`. The scheme
/// of flat directories is `null`.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.hash { "\"hash\"" } else { "\"digits\"" };
        let (phase, scheme) = self.phase.map_or(("flat", "null"), |phase| (phase.name(), scheme));
        write!(f, r#"{{"phase":"{phase}","scheme":{scheme},"moved":{}}}"#, self.moved)
    }
}
