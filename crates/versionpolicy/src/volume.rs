//! The bounds of the history of a whole volume.

use crate::document::Table;
use crate::problem::Problems;
use crate::quantity::Quantity;
use crate::retention::{monotonic, protections};
use crate::settings::Versions;
use crate::subject::Effective;
use crate::verdict::{KeepReason, Now, VersionInfo};

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

/// The part of a file system that [`VolumeLimit::free`] is at most.
pub const FREE_FRACTION: u64 = 20;

/// The bounds of the history of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeLimit {
    /// The most space.
    pub max: VolumeMax,
    /// Whether versions that a minimum protects are discarded once no others are left.
    pub hard: bool,
    /// The free space in bytes below which the history yields. `None`: it never does, and a
    /// change that needs room for a version fails on a full disk.
    pub free: Option<u64>,
}

impl VolumeLimit {
    pub(crate) const NONE: Self = Self { max: VolumeMax::Unlimited, hard: false, free: None };

    /// The free space in bytes below which the history yields on a file system of `size` bytes:
    /// at most a twentieth of it. `None` if it never does.
    #[must_use]
    pub fn reserve(&self, size: u64) -> Option<u64> {
        self.free.map(|free| free.min(size / FREE_FRACTION))
    }

    /// The bound in bytes, on a file system of `size` bytes; `None` without one.
    #[must_use]
    pub fn bytes(&self, size: u64) -> Option<u64> {
        match self.max {
            VolumeMax::Bytes(bytes) => Some(bytes),
            VolumeMax::Percent(percent) => u64::try_from(u128::from(size) * u128::from(percent) / 100).ok(),
            VolumeMax::Unlimited => None,
        }
    }
}

/// The table `[volume]` of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeTable {
    max: Option<VolumeMax>,
    hard: Option<bool>,
    /// `Some(None)`: the word `none`.
    free: Option<Option<u64>>,
}

impl VolumeTable {
    pub(crate) fn read(table: &Table<'_>, problems: &mut Problems<'_>) -> Self {
        table.expect_keys(&["max", "hard", "free"], problems);
        let hard = table.get("hard").and_then(|node| node.boolean(problems));
        let max = table.get("max").and_then(|node| {
            node.parse("a size such as \"100GiB\" or \"25%\"", problems, |text| match text.strip_suffix('%') {
                _ if text == "none" => Ok(VolumeMax::Unlimited),
                Some(percent) => match percent.trim().parse() {
                    Ok(percent @ 1..=100) => Ok(VolumeMax::Percent(percent)),
                    _ => {
                        Err(format!("\"{text}\" is not a percentage; write a whole number from 1 to 100 before the %"))
                    }
                },
                None => Quantity::Size.parse(text).map(VolumeMax::Bytes),
            })
        });
        let free = table.get("free").and_then(|node| {
            node.parse("a size such as \"1GiB\", or \"none\"", problems, |text| match text {
                "none" => Ok(None),
                _ => Quantity::Size.parse(text).map(Some),
            })
        });
        Self { max, hard, free }
    }

    /// Replaces the bounds that the file sets.
    pub(crate) fn over(self, limit: VolumeLimit) -> VolumeLimit {
        VolumeLimit {
            max: self.max.unwrap_or(limit.max),
            hard: self.hard.unwrap_or(limit.hard),
            free: self.free.unwrap_or(limit.free),
        }
    }
}

/// The order in which versions of a volume are discarded, by what protects them. Pinned and tagged
/// versions and landmarks set by hand have no rank: they stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// Its file is one of which only removals make versions ([`Versions::Removed`]), or none.
    Excluded,
    /// No minimum protects it.
    Loose,
    /// A minimum number or space does.
    Number,
    /// It is younger than its minimum age.
    Age,
}

impl Rank {
    fn of(protection: Option<KeepReason>) -> Option<Self> {
        match protection {
            None => Some(Self::Loose),
            Some(KeepReason::MinNumber | KeepReason::MinSpace) => Some(Self::Number),
            Some(KeepReason::MinAge) => Some(Self::Age),
            Some(_) => None,
        }
    }
}

/// For each version of a file, oldest first, its rank and when it died. Of all versions of a
/// volume, those with the least rank go first, and among them those that died first.
#[must_use]
pub fn ranks(policy: &Effective, versions: &[VersionInfo], now: Now) -> Vec<(Option<Rank>, i128)> {
    let died = monotonic(versions);
    let protected = protections(policy, versions, &died, now);
    // What the rules exclude goes before all others, whatever minimum protects it.
    let is_excluded = policy.versions != Versions::All;
    let rank = |protection| Rank::of(protection).map(|rank| if is_excluded { Rank::Excluded } else { rank });
    protected.into_iter().map(rank).zip(died).collect()
}
