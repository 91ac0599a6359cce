use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mixes the bits of a number (the finalizer of SplitMix64).
pub(crate) const fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A lock-free generator of random numbers without cryptographic quality (SplitMix64).
#[derive(Debug)]
pub(crate) struct Rng(AtomicU64);

impl Rng {
    /// Returns a generator with a random seed.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(0)))
    }

    /// Returns 64 random bits.
    pub(crate) fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        mix(self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
    }

    /// Returns a random number of at least 0 and less than 1.
    pub(crate) fn fraction(&self) -> f64 {
        fraction(self.next())
    }
}

/// Converts the upper 53 bits to a number of at least 0 and less than 1.
pub(crate) fn fraction(bits: u64) -> f64 {
    const PARTS: f64 = 9_007_199_254_740_992.0;
    (bits >> 11) as f64 / PARTS
}
