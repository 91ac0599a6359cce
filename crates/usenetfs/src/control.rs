//! How a program asks for a conversion: by an extended attribute of the directory, through the layer.
//!
//! Setting [`CONVERT`] does a step under the layer's own locks; reading [`STATE`] says how far it is. Both are never listed, and stored nowhere.

use crate::layer::Wanted;
use crate::record::Phase;
use core::fmt;

/// `manage digits N`, `manage hash N`, `manage hash N LIMIT` or `unmanage N`, where a step moves up to N entries. For root and the directory's
/// owner; others get `EPERM`.
pub const CONVERT: &[u8] = b"user.usenetfs.convert";
/// A [`Progress`] as text.
pub const STATE: &[u8] = b"user.usenetfs.state";

/// What a directory is to become.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Managed by this scheme.
    Manage(Wanted),
    /// Flat.
    Unmanage,
}

impl Goal {
    /// The value of [`CONVERT`] for a step of up to `budget` entries.
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
        Some((goal, budget.parse().ok()?))
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

/// `flat N`, or phase, scheme and the entries that this conversion has moved: `filling digits 3000`.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.hash { "hash" } else { "digits" };
        match self.phase {
            None => write!(f, "flat {}", self.moved),
            Some(phase) => write!(f, "{} {scheme} {}", phase.name(), self.moved),
        }
    }
}
