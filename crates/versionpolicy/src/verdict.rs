//! The versions of a file, and what happens to each of them.

use crate::settings::Generation;
use core::fmt;

pub(crate) const NANOS: i128 = 1_000_000_000;

/// The age in nanoseconds; 0 for a time in the future.
pub(crate) fn age(now: i128, died: i128) -> i128 {
    now.saturating_sub(died).max(0)
}

/// A version of a file. Times are nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionInfo {
    /// Its number.
    pub number: u64,
    /// When its content became the head.
    pub born: i128,
    /// When it ceased to be the head. Its age counts from then.
    pub died: i128,
    /// The bytes that it takes. 0 for a version that only refers to another file.
    pub stored: u64,
    /// Whether a user pinned it.
    pub pinned: bool,
    /// Whether it was marked as a landmark.
    pub landmark: bool,
    /// Whether a tag needs it.
    pub tagged: bool,
}

/// The time of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds since the epoch.
    pub at: i128,
    /// Seconds that the local zone is ahead of UTC, for days and weeks of `keep`. Pass the zone's
    /// standard time throughout the year: a change would shift the days of old versions.
    pub utc_offset: i32,
}

/// Why a version is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeepReason {
    /// It is pinned.
    Pinned,
    /// A tag needs it.
    Tagged,
    /// It was marked as a landmark.
    Landmark,
    /// It is younger than the minimum age.
    MinAge,
    /// It is one of the minimum number of newest versions.
    MinNumber,
    /// The newer versions take less than the minimum space.
    MinSpace,
    /// It is the newest version of such a period.
    Generation(Generation),
    /// It was the head for long, compared with its age.
    LongLived,
    /// No maximum is exceeded.
    WithinLimits,
}

/// Why a version is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiscardReason {
    /// It is older than the maximum age.
    MaxAge,
    /// There are more versions than the maximum number.
    MaxNumber,
    /// The versions take more than the maximum space.
    MaxSpace,
    /// Neither `keep` nor `landmarks` selects it.
    Thinned,
    /// The external policy discards it.
    External,
}

/// What happens to a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is kept.
    Keep(KeepReason),
    /// It is discarded.
    Discard(DiscardReason),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self {
            Self::Keep(KeepReason::Generation(generation)) => {
                return write!(f, "kept: selected by keep.{}", generation.name());
            }
            Self::Keep(KeepReason::Pinned) => "kept: pinned",
            Self::Keep(KeepReason::Tagged) => "kept: tagged",
            Self::Keep(KeepReason::Landmark) => "kept: marked as a landmark",
            Self::Keep(KeepReason::MinAge) => "kept: younger than age.min",
            Self::Keep(KeepReason::MinNumber) => "kept: within number.min",
            Self::Keep(KeepReason::MinSpace) => "kept: within space.min",
            Self::Keep(KeepReason::LongLived) => "kept: a landmark by its lifetime",
            Self::Keep(KeepReason::WithinLimits) => "kept: no maximum is exceeded",
            Self::Discard(DiscardReason::MaxAge) => "discarded: older than age.max",
            Self::Discard(DiscardReason::MaxNumber) => "discarded: exceeds number.max",
            Self::Discard(DiscardReason::MaxSpace) => "discarded: exceeds space.max",
            Self::Discard(DiscardReason::Thinned) => "discarded: not selected by keep or landmarks",
            Self::Discard(DiscardReason::External) => "discarded by the external policy",
        };
        f.write_str(reason)
    }
}

/// What happens to the versions of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Number and verdict of each version, in the order in which they were passed.
    pub verdicts: Vec<(u64, Verdict)>,
}

impl Decision {
    /// The numbers of the versions to discard, oldest first.
    pub fn discarded(&self) -> impl Iterator<Item = u64> + '_ {
        let discarded = |verdict: &Verdict| matches!(verdict, Verdict::Discard(_));
        self.verdicts.iter().filter(move |(_, verdict)| discarded(verdict)).map(|(number, _)| *number)
    }
}
