//! Which versions beyond the minimums are selected to stay: generations and landmarks.

use crate::settings::{Generation, Generations, Keep};
use crate::subject::Effective;
use crate::verdict::{DiscardReason, KeepReason, NANOS, Now, Verdict, VersionInfo, age};
use std::collections::HashSet;

/// Who thins out the versions that no minimum protects.
pub(crate) enum Thinning {
    /// `keep` and `landmarks` of the policy.
    Policy,
    /// An external policy, which discards these numbers.
    External(HashSet<u64>),
}

/// How many times its lifetime a landmark may be old.
const LANDMARK_RATIO: i128 = 16;

/// Whether a version is a landmark by Elephant's heuristic: of changes that were made close to each
/// other, the last one matters. How close is close depends on the age, as people remember recent
/// changes in more detail than old ones.
///
/// A version is a landmark if it was the head for at least a sixteenth of its age, that is if `16 *
/// (died - born) >= now - died`. The gap to the next change is `died - born`, so this needs no
/// neighbours, and discarding other versions never changes it. Ages of landmarks grow
/// geometrically: of the versions between one minute and ten years old, at most 256 are landmarks.
#[must_use]
pub fn is_landmark(born: i128, died: i128, now: i128) -> bool {
    let lifetime = died.saturating_sub(born).max(0);
    lifetime > 0 && lifetime >= age(now, died) / LANDMARK_RATIO
}

/// Returns a verdict for each version, before maximums.
pub(crate) fn select(
    policy: &Effective,
    versions: &[VersionInfo],
    died: &[i128],
    protected: &[Option<KeepReason>],
    now: Now,
    thinning: &Thinning,
) -> Vec<Verdict> {
    let mut picker = match (thinning, policy.keep) {
        (Thinning::Policy, Keep::Generations(counts)) => Some(Picker::new(counts, now.utc_offset)),
        _ => None,
    };
    let mut verdicts = Vec::with_capacity(versions.len());
    // From the newest on: the first version of a period is its newest one.
    for ((version, died), protected) in versions.iter().zip(died).zip(protected).rev() {
        let generation = picker.as_mut().and_then(|picker| picker.pick(*died));
        let verdict = match (protected, thinning) {
            (Some(reason), _) => Verdict::Keep(*reason),
            (None, Thinning::External(numbers)) if numbers.contains(&version.number) => {
                Verdict::Discard(DiscardReason::External)
            }
            _ if picker.is_none() => Verdict::Keep(KeepReason::WithinLimits),
            _ => match generation {
                Some(generation) => Verdict::Keep(KeepReason::Generation(generation)),
                None if policy.landmarks && is_landmark(version.born, version.died, now.at) => {
                    Verdict::Keep(KeepReason::LongLived)
                }
                None => Verdict::Discard(DiscardReason::Thinned),
            },
        };
        verdicts.push(verdict);
    }
    verdicts.reverse();
    verdicts
}

/// Picks the newest version of each period, from the newest version on.
struct Picker {
    left: [u32; 5],
    /// The period of the last version.
    last: [Option<i128>; 5],
    utc_offset: i32,
}

impl Picker {
    fn new(Generations(left): Generations, utc_offset: i32) -> Self {
        Self { left, last: [None; 5], utc_offset }
    }

    /// Returns the shortest period whose newest version this is.
    fn pick(&mut self, died: i128) -> Option<Generation> {
        let mut picked = None;
        let periods = periods(died, self.utc_offset);
        let state = self.left.iter_mut().zip(&mut self.last);
        for ((generation, period), (left, last)) in Generation::ALL.into_iter().zip(periods).zip(state) {
            if *left > 0 && *last != Some(period) {
                *last = Some(period);
                *left -= u32::from(*left != u32::MAX);
                picked = picked.or(Some(generation));
            }
        }
        picked
    }
}

/// The number of the hour, day, week, month and year that contains a time.
fn periods(at: i128, utc_offset: i32) -> [i128; 5] {
    let seconds = at.div_euclid(NANOS) + i128::from(utc_offset);
    let days = seconds.div_euclid(86_400);
    let (year, month) = year_and_month(days);
    // The epoch was a Thursday; weeks begin on Monday.
    [seconds.div_euclid(3600), days, (days + 3).div_euclid(7), year * 12 + month, year]
}

/// The year and the month, from 0, of a number of days since the epoch (proleptic Gregorian).
fn year_and_month(days: i128) -> (i128, i128) {
    // Years from March to February put the leap day at their end. An era is 400 of them.
    let since = days + 719_468;
    let (era, day) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = (from_march + 2) % 12;
    (era * 400 + year + i128::from(month < 2), month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_of_days() {
        assert_eq!(year_and_month(0), (1970, 0));
        assert_eq!(year_and_month(-1), (1969, 11));
        assert_eq!(year_and_month(19_782), (2024, 1)); // 29 February 2024
        assert_eq!(year_and_month(19_783), (2024, 2));
        assert_eq!(year_and_month(20_780), (2026, 10)); // 23 November 2026
    }

    #[test]
    fn landmarks_are_few_however_many_versions() {
        let (now, second) = (10 * 365 * 86_400 * NANOS, NANOS);
        // A change each second for ten hours, then each hour for ten years.
        let hours = (1..87_000_i128).map(|hour| (now - (hour + 1) * 3600 * second, now - hour * 3600 * second));
        let seconds = (1..36_000_i128).map(|at| (now - (at + 1) * second, now - at * second));
        assert!(hours.filter(|(born, died)| is_landmark(*born, *died, now)).count() <= 17);
        assert!(seconds.filter(|(born, died)| is_landmark(*born, *died, now)).count() <= 17);
        assert!(is_landmark(0, 100, 1700) && !is_landmark(0, 100, 1800) && !is_landmark(5, 5, 5));
        assert!(is_landmark(0, 10, 5), "a clock that jumps back makes no age negative");
    }
}
