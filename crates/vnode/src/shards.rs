//! Tables keyed by vnode number: distribution over shards, and hashing within a shard.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Number of shards of a vnode table.
pub const SHARDS: usize = 32;

/// The `SHARDS`-th root of two, as a multiple of 2^-32.
const STEP: u64 = 4_389_011_187;

/// The end of each shard's part of the 32-bit hash space. Part k is 2^(k/SHARDS) times as wide as
/// the first.
const ENDS: [u32; SHARDS] = ends();

const fn ends() -> [u32; SHARDS] {
    let mut widths = [0u64; SHARDS];
    let (mut width, mut total, mut k) = (1u64 << 24, 0u64, 0);
    while k < SHARDS {
        widths[k] = width;
        total += width;
        width = (width * STEP) >> 32;
        k += 1;
    }
    let mut ends = [u32::MAX; SHARDS];
    let (mut sum, mut k) = (0u64, 0);
    while k + 1 < SHARDS {
        sum += widths[k];
        ends[k] = ((sum << 32) / total) as u32;
        k += 1;
    }
    ends
}

/// Returns the shard of a vnode number, below [`SHARDS`].
///
/// The shards are unequal, each slightly larger than the previous one. A hash table doubles when it
/// is full. Equal shards would all double at the same time, leaving half of the memory unused;
/// unequal shards double one after another, so memory grows smoothly with the number of vnodes.
#[must_use]
pub fn shard_of(number: u64) -> usize {
    let mixed = (number ^ (number >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let hash = u32::try_from(mixed >> 32).unwrap_or(0);
    ENDS.partition_point(|&end| end <= hash).min(SHARDS - 1)
}

/// A map keyed by vnode number.
pub type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// Hashes vnode numbers. They differ mostly in the low bits, so one multiplication spreads them
/// well enough.
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_sizes_are_balanced() {
        let mut counts = [0u32; SHARDS];
        for number in 0..1_000_000u64 {
            counts[shard_of((7 << 48) | number)] += 1;
        }
        let (first, last) = (f64::from(counts[0]), f64::from(counts[SHARDS - 1]));
        assert!((1.7..2.2).contains(&(last / first)), "{counts:?}");
        assert!(counts.iter().all(|&n| n > 15_000), "{counts:?}");
    }

    #[test]
    fn extreme_numbers_map_to_a_shard() {
        for number in [0, 1, u64::MAX, 1 << 63, u64::from(u32::MAX)] {
            assert!(shard_of(number) < SHARDS);
        }
    }
}
