//! How a program asks for a conversion: by commands of the mount's control channel, on the directory.
//!
//! [`CONVERT`] does a step under the layer's own locks; [`STATE`] says how far it is. Both answer a [`Progress`].

use crate::layer::Wanted;
use crate::node::UsenetVnode;
use crate::record::Phase;
use core::fmt;
use vnode::{Command, Cx, Errno, Kind, Result, Vnode as _, Who};

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

impl UsenetVnode {
    /// Answers the layer's own commands on a directory; all else goes to the layer below.
    pub(crate) fn obey(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        if self.kind() != Kind::Directory || ![STATE.name, CONVERT.name].contains(&command) {
            return self.lower.control(cx, command, input);
        }
        let progress = if command == STATE.name {
            if !input.is_empty() {
                return Err(Errno::INVAL);
            }
            self.progress(cx)?
        } else {
            let (goal, budget) = Goal::parse(input).ok_or(Errno::INVAL)?;
            if cx.uid != 0 && self.lower.getattr(cx)?.uid != cx.uid {
                return Err(Errno::PERM);
            }
            self.convert(cx, goal, budget)?
        };
        Ok(progress.to_string().into_bytes())
    }
}
