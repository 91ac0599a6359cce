//! The seal of a file on a bound volume.

use super::report::{Blocks, Kind, Place, Report};
use cryptformat::{Layout, Seal};

/// The seal of a file, and the sums of the blocks found.
pub(super) struct Weighing {
    seal: Seal,
    found: Vec<u128>,
}

impl Weighing {
    pub(super) fn new(seal: Seal) -> Self {
        Self { found: vec![0; seal.sums.len()], seal }
    }

    /// Adds the weight of a block. Blocks behind the end of the file are not counted: its length is
    /// reported.
    pub(super) fn add(&mut self, number: u64, weight: u128) {
        let segment = usize::try_from(number >> self.seal.shift).ok();
        if let Some(sum) = segment.and_then(|segment| self.found.get_mut(segment)) {
            *sum = sum.wrapping_add(weight);
        }
    }

    /// Reports what differs from the seal. `stored` is the stored size.
    pub(super) fn report(&self, layout: &Layout, stored: u64, place: &Place, report: &mut Report) {
        let size = self.seal.size;
        let right = layout.stored_size(size).unwrap_or(u64::MAX).max(layout.header as u64);
        if stored != right {
            let what = if stored < right { "cut" } else { "extended" };
            let now = layout.plain_size(stored);
            report.found(Kind::Seal, place, &format!("{what} without the key: it has {now} bytes instead of {size}"));
        }
        let plain = layout.plain as u64;
        let count = size.div_ceil(plain);
        let differ = |(_, (found, sealed)): &(usize, (&u128, &u128))| found != sealed;
        for (segment, _) in self.found.iter().zip(&self.seal.sums).enumerate().filter(differ) {
            let first = (segment as u64) << self.seal.shift;
            let last = (first + (1 << self.seal.shift)).min(count).saturating_sub(1);
            let bytes = (first * plain < size).then(|| (first * plain, ((last + 1) * plain).min(size) - 1));
            let text = "some of these were put back from another version, damaged, or replaced by holes";
            report.found_seal(place, text, Blocks { first, last, bytes });
        }
    }
}
