//! Which versions of one file are discarded.
//!
//! 1. *Protected* versions stay: pinned and tagged ones, landmarks set by hand, and the newest ones
//!    as far as a minimum of number, age or space reaches.
//! 2. `keep` and `landmarks`, or an external policy, thin out the rest (`thinning`).
//! 3. While a maximum is exceeded, the oldest version that is not protected is discarded.
//!
//! Each minimum protects an end of the list, so step 2 never changes what is protected. Applying
//! the rules to the result at the same time thus discards nothing more.

use crate::subject::Effective;
use crate::thinning::{Thinning, select};
use crate::verdict::{Decision, DiscardReason, KeepReason, NANOS, Now, Verdict, VersionInfo, age};
use std::collections::HashSet;

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
