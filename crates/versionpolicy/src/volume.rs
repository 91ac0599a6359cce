//! The bound for the history of a whole volume, for millions of files in bounded memory.
//!
//! A first pass over all sets adds up how many bytes died when ([`VolumeUsage`]). From that follows
//! until which time of death versions must go ([`VolumeCut`]). A second pass asks for each set
//! which versions these are.

use crate::document::Table;
use crate::problem::Problems;
use crate::quantity::Quantity;
use crate::retention::{monotonic, protections};
use crate::subject::Effective;
use crate::verdict::{KeepReason, Now, VersionInfo, age};

/// The most space that all versions of a volume take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMax {
    /// Bytes.
    Bytes(u64),
    /// Percent of the size of the file system below.
    Percent(u8),
    /// No limit.
    Unlimited,
}

/// The table `[volume]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeLimit {
    /// The most space.
    pub max: VolumeMax,
    /// Whether versions that a minimum protects are discarded once no others are left.
    pub hard: bool,
}

impl VolumeLimit {
    pub(crate) const NONE: Self = Self { max: VolumeMax::Unlimited, hard: false };

    /// The bound in bytes, on a file system of `size` bytes; `None` without one.
    #[must_use]
    pub fn bytes(&self, size: u64) -> Option<u64> {
        match self.max {
            VolumeMax::Bytes(bytes) => Some(bytes),
            VolumeMax::Percent(percent) => u64::try_from(u128::from(size) * u128::from(percent) / 100).ok(),
            VolumeMax::Unlimited => None,
        }
    }

    pub(crate) fn read(table: &Table<'_>, problems: &mut Problems<'_>) -> Option<Self> {
        table.expect_keys(&["max", "hard"], problems);
        let hard = table.get("hard").and_then(|node| node.boolean(problems)).unwrap_or(false);
        let node = table.get("max");
        if node.is_none() && table.get("hard").is_some() {
            problems.warning(&table.span, "hard has no effect without max; add for example max = \"25%\"");
        }
        let max = node?.parse("a size such as \"100GiB\" or \"25%\"", problems, |text| match text.strip_suffix('%') {
            _ if text == "none" => Ok(VolumeMax::Unlimited),
            Some(percent) => match percent.trim().parse() {
                Ok(percent @ 1..=100) => Ok(VolumeMax::Percent(percent)),
                _ => Err(format!("\"{text}\" is not a percentage; write a whole number from 1 to 100 before the %")),
            },
            None => Quantity::Size.parse(text).map(VolumeMax::Bytes),
        });
        max.map(|max| Self { max, hard })
    }
}

/// The buckets of a histogram over ages: 64 for each power of two, so a bucket spans 1.6 % of the
/// age of its versions.
const PER_OCTAVE: u32 = 64;
const BUCKETS: usize = 128 * PER_OCTAVE as usize;

/// The order of the ranks in which versions are discarded; `None`: never.
fn rank(protection: Option<KeepReason>) -> Option<usize> {
    match protection {
        None => Some(0),
        Some(KeepReason::MinNumber | KeepReason::MinSpace) => Some(1),
        Some(KeepReason::MinAge) => Some(2),
        Some(_) => None,
    }
}

/// The space that all versions take, by rank and age. About 200 KiB.
#[derive(Clone, Debug)]
pub struct VolumeUsage {
    now: Now,
    total: u64,
    ranks: [Vec<u64>; 3],
}

impl VolumeUsage {
    /// Begins the first pass.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self { now, total: 0, ranks: [(); 3].map(|()| vec![0; BUCKETS]) }
    }

    /// Adds the versions of a file, oldest first.
    pub fn add(&mut self, policy: &Effective, versions: &[VersionInfo]) {
        let died = monotonic(versions);
        let protected = protections(policy, versions, &died, self.now);
        for ((version, died), protected) in versions.iter().zip(&died).zip(protected) {
            self.total = self.total.saturating_add(version.stored);
            let bucket = bucket(age(self.now.at, *died));
            let of_rank = rank(protected).and_then(|rank| self.ranks.get_mut(rank));
            if let Some(bytes) = of_rank.and_then(|buckets| buckets.get_mut(bucket)) {
                *bytes = bytes.saturating_add(version.stored);
            }
        }
    }

    /// The bytes that all versions take.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Ends the first pass: what to discard so that at most `max` bytes remain. The order:
    ///
    /// 1. versions that no minimum protects, across all files in the order of their death;
    /// 2. if `hard`: those that a minimum number or space protects, in the same order;
    /// 3. if `hard`: those younger than their minimum age.
    ///
    /// Pinned and tagged versions and landmarks set by hand always stay.
    #[must_use]
    pub fn cut(&self, max: u64, hard: bool) -> VolumeCut {
        let mut excess = self.total.saturating_sub(max);
        let mut cut = VolumeCut { now: self.now, from: [BUCKETS; 3], budget: [0; 3], missing: 0 };
        for (rank, buckets) in self.ranks.iter().enumerate().take(if hard { 3 } else { 1 }) {
            for (bucket, bytes) in buckets.iter().enumerate().rev() {
                if excess == 0 {
                    return cut;
                }
                if let (Some(from), Some(budget)) = (cut.from.get_mut(rank), cut.budget.get_mut(rank)) {
                    (*from, *budget) = (bucket, excess.min(*bytes));
                }
                excess = excess.saturating_sub(*bytes);
            }
        }
        cut.missing = excess;
        cut
    }
}

/// Which versions of a volume to discard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCut {
    now: Now,
    /// For each rank the youngest bucket from which versions are discarded. Older ones are
    /// discarded whole.
    from: [usize; 3],
    /// The bytes that are still to be discarded from this bucket.
    budget: [u64; 3],
    missing: u64,
}

impl VolumeCut {
    /// The bytes by which the volume still exceeds its bound after the second pass.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Whether nothing is to be discarded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from == [BUCKETS; 3]
    }

    /// The numbers of the versions of a file to discard, oldest first. Call it once for each file:
    /// it counts what is still to be discarded among versions of nearly the same age.
    #[must_use]
    pub fn discard(&mut self, policy: &Effective, versions: &[VersionInfo]) -> Vec<u64> {
        let died = monotonic(versions);
        let protected = protections(policy, versions, &died, self.now);
        let mut discarded = Vec::new();
        for ((version, died), protected) in versions.iter().zip(&died).zip(protected) {
            let Some(rank) = rank(protected) else { continue };
            let (Some(from), Some(budget)) = (self.from.get(rank), self.budget.get_mut(rank)) else { continue };
            let bucket = bucket(age(self.now.at, *died));
            if bucket < *from || (bucket == *from && *budget == 0) {
                continue;
            }
            if bucket == *from {
                *budget = budget.saturating_sub(version.stored);
            }
            discarded.push(version.number);
        }
        discarded
    }
}

/// The bucket of an age: logarithmic, linear within a power of two.
fn bucket(age: i128) -> usize {
    let age = age.unsigned_abs();
    let Some(octave) = age.checked_ilog2() else { return 0 };
    // The six bits after the leading one.
    let fraction = if octave >= 6 { age >> (octave - 6) } else { age << (6 - octave) } & 63;
    let bucket = octave * PER_OCTAVE + u32::try_from(fraction).unwrap_or(0);
    usize::try_from(bucket).unwrap_or(BUCKETS - 1).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_with_the_age() {
        let ages = (0..120).flat_map(|shift| [1_i128 << shift, (1_i128 << shift) + (1_i128 << shift) / 3]);
        let buckets: Vec<_> = core::iter::once(0).chain(ages).chain([i128::MAX]).map(bucket).collect();
        assert!(buckets.is_sorted() && buckets.iter().all(|bucket| *bucket < BUCKETS));
        assert_ne!(bucket(86_400 * 1_000_000_000), bucket(90_000 * 1_000_000_000));
    }
}
