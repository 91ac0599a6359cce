//! How a program asks for a conversion: by commands of the mount's control channel, on the directory.
//!
//! [`CONVERT`] does a step under the layer's own locks; [`STATE`] says how far it is. Both answer a [`Progress`].

use crate::record::Phase;
use crate::scheme::Wanted;
use core::fmt;
use vnode::{Command, Who};

/// Does a step of a conversion.
pub const CONVERT: Command = Command {
    name: "usenetfs.convert",
    help: "On a directory, given by root or its owner: moves up to N entries. Input: 'manage digits N', 'manage hash N', \
           'manage hash N LIMIT' or 'unmanage N'; N is 10000 at most. Answers as usenetfs.state does. usenetctl repeats it \
           until all is done.",
    // The directory's owner is known only here.
    who: Who::Anyone,
};
/// Says how far a conversion is.
pub const STATE: Command = Command {
    name: "usenetfs.state",
    help: "On a directory: answers as JSON its phase (flat, stable, or that of a conversion), its scheme, and how many \
           entries the conversion has moved.",
    who: Who::Anyone,
};
/// The most entries that one step moves: users of the directory wait for it.
const STEP_MAX: usize = 10_000;

/// What a directory is to become.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Managed by this scheme.
    Manage(Wanted),
    /// Flat.
    Unmanage,
}

impl Goal {
    /// The input of [`CONVERT`] for a step of up to `budget` entries.
    #[must_use]
    pub fn text(&self, budget: usize) -> String {
        match self {
            Self::Unmanage => format!("unmanage {budget}"),
            Self::Manage(Wanted { hash: false, .. }) => format!("manage digits {budget}"),
            Self::Manage(Wanted { hash: true, limit: None }) => format!("manage hash {budget}"),
            Self::Manage(Wanted { hash: true, limit: Some(limit) }) => format!("manage hash {budget} {limit}"),
        }
    }

    /// Reads what [`Self::text`] wrote; `None`: it is not that.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<(Self, usize)> {
        let words: Vec<&str> = core::str::from_utf8(text).ok()?.split(' ').collect();
        let (goal, budget) = match *words.as_slice() {
            ["unmanage", budget] => (Self::Unmanage, budget),
            ["manage", "digits", budget] => (Self::Manage(Wanted::default()), budget),
            ["manage", "hash", budget] => (Self::Manage(Wanted { hash: true, limit: None }), budget),
            ["manage", "hash", budget, limit] => {
                let limit = limit.parse().ok().filter(|limit| (2..=1_000_000).contains(limit))?;
                (Self::Manage(Wanted { hash: true, limit: Some(limit) }), budget)
            }
            _ => return None,
        };
        let budget: usize = budget.parse().ok()?;
        Some((goal, budget.min(STEP_MAX)))
    }
}

/// What a directory is, and how far a conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// `None`: it is flat.
    pub(crate) phase: Option<Phase>,
    pub(crate) hash: bool,
    pub(crate) moved: u64,
}

impl Progress {
    /// Is there nothing left of a conversion?
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.phase, None | Some(Phase::Stable))
    }
}

/// As JSON: `{"phase":"filling","scheme":"digits","moved":3000}`; flat directories have the scheme `null`.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.hash { "\"hash\"" } else { "\"digits\"" };
        let (phase, scheme) = self.phase.map_or(("flat", "null"), |phase| (phase.name(), scheme));
        write!(f, r#"{{"phase":"{phase}","scheme":{scheme},"moved":{}}}"#, self.moved)
    }
}
