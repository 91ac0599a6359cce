//! What the file system below has free, and how much of the history remains.

use versionpolicy::{FREE_FRACTION, Rank, VolumeLimit};
use vnode::StatFs;

/// What is discarded for an operation at least, at the first time.
const FIRST: u64 = 1 << 20;
const FIRST_INODES: u64 = 16;

/// The part of the history that goes at least, as far as no minimum protects it, when an operation
/// needs room: a pass takes time.
pub(super) const SHARE: u64 = 16;

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, bytes: u64, inodes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.inodes = self.inodes.saturating_add(inodes);
    }

    pub(super) fn take(&mut self, bytes: u64, inodes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.inodes = self.inodes.saturating_sub(inodes);
    }

    pub(super) fn of(self, unit: Unit) -> u64 {
        if unit == Unit::Bytes { self.bytes } else { self.inodes }
    }
}

/// What is scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Inodes,
}

/// Who needs room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nobody waits for it.
    Ahead,
    /// The data of a program: on a native file system, it would have none either.
    Data(u32),
    /// A version, after so many passes.
    Version(u32),
}

/// What the file system below has, in one unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) unit: Unit,
    /// The bound of all versions together.
    pub(super) max: u64,
    pub(super) free: u64,
    /// What shall be free.
    pub(super) reserve: u64,
}

/// The same in both units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rooms {
    pub(super) bytes: Room,
    pub(super) inodes: Room,
    pub(super) size: u64,
}

impl Rooms {
    /// `None` if there is no bound to keep.
    pub(super) fn of(stat: &StatFs, limit: VolumeLimit) -> Option<Self> {
        let size = stat.blocks.saturating_mul(stat.frsize);
        let (max, reserve) = (limit.bytes(size), limit.reserve(size));
        if max.is_none() && reserve.is_none() {
            return None;
        }
        let free = stat.bavail.saturating_mul(stat.frsize);
        let bytes = Room { unit: Unit::Bytes, max: max.unwrap_or(u64::MAX), free, reserve: reserve.unwrap_or(0) };
        // The same part of them. Some file systems do not count inodes.
        let max = max.map(|max| u128::from(stat.files) * u128::from(max) / u128::from(size.max(1)));
        let max = max.and_then(|max| u64::try_from(max).ok()).unwrap_or(u64::MAX);
        let reserve = if reserve.is_some() { stat.files / FREE_FRACTION } else { 0 };
        Some(Self { bytes, inodes: Room { unit: Unit::Inodes, max, free: stat.ffree, reserve }, size })
    }

    pub(super) fn is_scarce(&self) -> bool {
        self.bytes.is_scarce() || self.inodes.is_scarce()
    }

    /// What is scarce; bytes, if nothing is.
    pub(super) fn scarce(&self) -> Room {
        if self.inodes.is_scarce() && !self.bytes.is_scarce() { self.inodes } else { self.bytes }
    }
}

impl Room {
    pub(super) fn is_scarce(&self) -> bool {
        self.free < self.reserve
    }

    /// What must go so that twice the reserve is free: programs go on writing during a pass.
    pub(super) fn shortage(&self) -> u64 {
        if self.is_scarce() { 2 * self.reserve - self.free } else { 0 }
    }
}

/// What remains of the history, in one unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// Versions that no minimum protects go until so much remains of all together.
    pub(super) all: u64,
    /// Versions that a minimum protects go until so much remains. [`u64::MAX`]: they stay.
    pub(super) protected: u64,
}

impl Left {
    pub(super) fn of(self, rank: Rank) -> u64 {
        if rank <= Rank::Loose { self.all } else { self.protected }
    }
}

/// Returns what goes at least for an operation that needs room.
pub(super) const fn first(unit: Unit, need: Need) -> u64 {
    let first = match unit {
        Unit::Bytes => FIRST,
        Unit::Inodes => FIRST_INODES,
    };
    match need {
        Need::Ahead => 0,
        Need::Data(tries) | Need::Version(tries) => first << (4 * tries),
    }
}

/// Returns what of `total` remains.
pub(super) fn left(total: u64, limit: VolumeLimit, room: Room, debt: u64, need: Need) -> Left {
    const ALL: u64 = u64::MAX;
    let max = room.max;
    // Some more, or the next version would exceed it again.
    let bound = if total > max { max - max / 10 } else { ALL };
    let needed = first(room.unit, need);
    let share = if need == Need::Ahead { 0 } else { total / SHARE };
    let wanted = needed.max(share).max(room.shortage());
    let without = |bytes: u64| if bytes == 0 { ALL } else { total.saturating_sub(bytes) };
    let mut protected = if limit.hard { bound } else { ALL };
    if wanted > 0 {
        // What exceeds the bound only because a minimum protects it.
        protected = protected.min(without(wanted).max(max));
    }
    if room.is_scarce() {
        // Where space is scarce, the history does not grow.
        protected = protected.min(without(debt));
    }
    if matches!(need, Need::Version(_)) {
        protected = protected.min(without(needed));
    }
    Left { all: bound.min(without(wanted)), protected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_versions_give_way_in_steps() {
        const LIMIT: VolumeLimit =
            VolumeLimit { max: versionpolicy::VolumeMax::Percent(25), hard: false, free: Some(50) };
        let room = |free| Room { unit: Unit::Bytes, max: 250, free, reserve: 50 };
        let protected = |total, free, debt, need| left(total, LIMIT, room(free), debt, need).protected;
        // Enough is free.
        assert_eq!(protected(600, 100, 7, Need::Ahead), u64::MAX);
        // Beyond the bound they go until twice the reserve is free.
        assert_eq!(protected(600, 40, 0, Need::Ahead), 540);
        assert_eq!(protected(260, 40, 0, Need::Ahead), 250);
        // Below it, what is new displaces as much.
        assert_eq!(protected(200, 40, 0, Need::Ahead), 250);
        assert_eq!(protected(200, 40, 30, Need::Ahead), 170);
        // Data gets what is beyond the bound, a version what it needs.
        assert_eq!(protected(200, 100, 0, Need::Data(0)), 250);
        assert_eq!(protected(200, 100, 0, Need::Version(0)), 0);
        let hard = VolumeLimit { hard: true, ..LIMIT };
        assert_eq!(left(600, hard, room(100), 0, Need::Ahead).protected, 225);
        assert_eq!(left(600, LIMIT, room(100), 0, Need::Ahead).all, 225);
    }
}
