/// A small random number generator (xorshift64*) that returns the same sequence for the same seed
/// on all platforms.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator. Any seed is allowed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Zero is the only state that would never change.
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            rng.bits();
        }
        rng
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.bits() >> 11) % end
    }

    /// Returns true with probability 1/n.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn a_seed_determines_the_sequence() {
        let sequence = |seed| {
            let mut rng = Rng::new(seed);
            std::array::from_fn::<_, 8, _>(|_| rng.below(100))
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
        assert_ne!(sequence(0), [0; 8]);
    }
}
