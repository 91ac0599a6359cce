//! Which versions of one file are discarded.
//!
//! 1. *Protected* versions stay: pinned and tagged ones, landmarks set by hand, and the newest ones
//!    as far as a minimum of number, age or space reaches.
//! 2. `keep` and `landmarks`, or an external policy, thin out the rest (`thinning`).
//! 3. While a maximum is exceeded, the oldest version that is not protected is discarded.
//!
//! Each minimum protects an end of the list, so step 2 never changes what is protected. Applying
//! the rules to the result at the same time thus discards nothing more.

use crate::policies::Effective;
use crate::settings::Generation;
use crate::thinning::{Thinning, select};
use core::fmt;
use std::collections::HashSet;

pub(crate) const NANOS: i128 = 1_000_000_000;

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

/// Decides which versions of a file to discard. `versions` are all of them, oldest first. If the
/// policy has an external program, only what exceeds a maximum is discarded: see
/// [`crate::apply_answer`]. Linear in time.
#[must_use]
pub fn decide(policy: &Effective, versions: &[VersionInfo], now: Now) -> Decision {
    // The program may want what `keep` would discard.
    let thinning = if policy.external.is_some() { Thinning::External(HashSet::new()) } else { Thinning::Policy };
    decide_with(policy, versions, now, &thinning)
}

/// Whether a set could exceed a maximum, so that [`decide`] is worth its time. Cheap, for each new
/// version; the cleaner calls [`decide`] in any case.
#[must_use]
pub fn may_exceed(policy: &Effective, count: u64, stored: u64, oldest_died: i128, now: Now) -> bool {
    count > policy.number.max || stored > policy.space.max || age(now.at, oldest_died) > nanos(policy.age.max)
}

pub(crate) fn decide_with(policy: &Effective, versions: &[VersionInfo], now: Now, thinning: &Thinning) -> Decision {
    let died = monotonic(versions);
    let protected = protections(policy, versions, &died, now);
    let mut verdicts: Vec<_> = select(policy, versions, &died, &protected, now, thinning);
    let kept = || verdicts.iter().zip(versions).filter(|(verdict, _)| matches!(verdict, Verdict::Keep(_)));
    let mut count = kept().count() as u64;
    let mut space = kept().fold(0_u64, |sum, (_, version)| sum.saturating_add(version.stored));
    for (((verdict, version), died), protected) in verdicts.iter_mut().zip(versions).zip(&died).zip(&protected) {
        if protected.is_some() || matches!(verdict, Verdict::Discard(_)) {
            continue;
        }
        let reason = if age(now.at, *died) > nanos(policy.age.max) {
            DiscardReason::MaxAge
        } else if count > policy.number.max {
            DiscardReason::MaxNumber
        } else if space > policy.space.max {
            DiscardReason::MaxSpace
        } else {
            // Newer versions are younger, so no maximum is exceeded for them either.
            break;
        };
        *verdict = Verdict::Discard(reason);
        count -= 1;
        space = space.saturating_sub(version.stored);
    }
    Decision { verdicts: versions.iter().map(|version| version.number).zip(verdicts).collect() }
}

/// The times of death, made monotonic: a version died no earlier than older ones, whatever the
/// clock said.
pub(crate) fn monotonic(versions: &[VersionInfo]) -> Vec<i128> {
    let mut latest = i128::MIN;
    let later = |version: &VersionInfo| {
        latest = latest.max(version.died);
        latest
    };
    versions.iter().map(later).collect()
}

/// The age in nanoseconds; 0 for a time in the future.
pub(crate) fn age(now: i128, died: i128) -> i128 {
    now.saturating_sub(died).max(0)
}

/// Seconds as nanoseconds. No age exceeds [`crate::NO_LIMIT`].
fn nanos(seconds: u64) -> i128 {
    if seconds == crate::NO_LIMIT { i128::MAX } else { i128::from(seconds) * NANOS }
}

/// For each version, why nothing but its owner may discard it.
pub(crate) fn protections(
    policy: &Effective,
    versions: &[VersionInfo],
    died: &[i128],
    now: Now,
) -> Vec<Option<KeepReason>> {
    let mut protections = Vec::with_capacity(versions.len());
    let (mut newer, mut newer_space) = (0_u64, 0_u64);
    for (version, died) in versions.iter().zip(died).rev() {
        // The minimum age is above all, then the other minimums: `volume` depends on this order.
        let reason = if version.pinned {
            Some(KeepReason::Pinned)
        } else if version.tagged {
            Some(KeepReason::Tagged)
        } else if version.landmark {
            Some(KeepReason::Landmark)
        } else if age(now.at, *died) < nanos(policy.age.min) {
            Some(KeepReason::MinAge)
        } else if newer < policy.number.min {
            Some(KeepReason::MinNumber)
        } else if newer_space < policy.space.min {
            Some(KeepReason::MinSpace)
        } else {
            None
        };
        protections.push(reason);
        newer += 1;
        newer_space = newer_space.saturating_add(version.stored);
    }
    protections.reverse();
    protections
}
