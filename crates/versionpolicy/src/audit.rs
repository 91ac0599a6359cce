//! The bounds of the audit log, which consists of segments of some megabytes.

use crate::bounds::read_range;
use crate::document::Table;
use crate::problem::Problems;
use crate::quantity::Quantity;
use crate::range::{NO_LIMIT, Range};
use crate::verdict::age;

/// The table `[audit]`. Without it, nothing of the log is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditLimit {
    /// How long records are kept, in seconds.
    pub age: Range,
    /// How much space the log takes, in bytes.
    pub space: Range,
}

/// A segment that receives no more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditSegment {
    /// When the next segment began, in nanoseconds since the epoch.
    pub ended: i128,
    /// Its size in bytes.
    pub size: u64,
}

impl AuditLimit {
    pub(crate) const NONE: Self = Self { age: Range::ALL, space: Range::ALL };

    pub(crate) fn read(table: &Table<'_>, problems: &mut Problems<'_>) -> Self {
        table.expect_keys(&["age", "space"], problems);
        let mut range = |key, quantity| read_range(table, key, quantity, problems).map(|bound| bound.value);
        let (age, space) = (range("age", Quantity::Duration), range("space", Quantity::Size));
        Self { age: age.unwrap_or(Range::ALL), space: space.unwrap_or(Range::ALL) }
    }

    /// Whether nothing is ever discarded.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        self.age.max == NO_LIMIT && self.space.max == NO_LIMIT
    }

    /// Whether to discard the oldest segment of a log of `all` bytes. A minimum wins over every
    /// maximum.
    #[must_use]
    pub fn discards(&self, oldest: AuditSegment, all: u64, now: i128) -> bool {
        let age = age(now, oldest.ended).unsigned_abs() / 1_000_000_000;
        let rest = all.saturating_sub(oldest.size);
        let is_kept = age < u128::from(self.age.min) || rest < self.space.min;
        let is_over = age > u128::from(self.age.max) || all > self.space.max;
        is_over && !is_kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const NONE: u64 = NO_LIMIT;

    /// Whether a segment of 10 bytes goes that ended some days ago.
    fn goes(age: (u64, u64), space: (u64, u64), days: u64, all: u64) -> bool {
        let range = |(min, max), unit: u64| Range { min: min * unit, max: if max == NONE { NONE } else { max * unit } };
        let limit = AuditLimit { age: range(age, DAY), space: range(space, 1) };
        let now = 1_700_000_000_000_000_000;
        limit.discards(AuditSegment { ended: now - i128::from(days * DAY) * 1_000_000_000, size: 10 }, all, now)
    }

    #[test]
    fn a_segment_goes_if_a_maximum_is_exceeded() {
        assert!(!goes((0, NONE), (0, NONE), 10_000, u64::MAX));
        assert!(!goes((0, 7), (0, NONE), 7, u64::MAX) && goes((0, 7), (0, NONE), 8, 15));
        assert!(!goes((0, NONE), (0, 35), 10_000, 35) && goes((0, NONE), (0, 35), 0, 36));
    }

    #[test]
    fn a_minimum_wins_over_every_maximum() {
        assert!(!goes((8, NONE), (0, 0), 7, 1000) && goes((8, NONE), (0, 0), 8, 1000));
        // What is left must not be less.
        assert!(!goes((0, 1), (36, NONE), 100, 45) && goes((0, 1), (35, NONE), 100, 45));
    }

    #[test]
    fn a_segment_of_the_future_has_no_age() {
        let limit = AuditLimit { age: Range { min: 1, max: 2 }, space: Range { min: 0, max: 0 } };
        assert!(!limit.discards(AuditSegment { ended: i128::MAX, size: 10 }, 100, 0));
        assert!(limit.discards(AuditSegment { ended: i128::MIN, size: 10 }, 100, 0));
    }
}
