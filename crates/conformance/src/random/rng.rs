/// A small generator of random numbers (xorshift64*): the same ones for the same seed, everywhere and always.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Any seed will do.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Zero is the one state that it would never leave.
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            rng.bits();
        }
        rng
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.bits() >> 11) % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn a_seed_gives_one_sequence() {
        let sequence = |seed| {
            let mut rng = Rng::new(seed);
            std::array::from_fn::<_, 8, _>(|_| rng.below(100))
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
        assert_ne!(sequence(0), [0; 8]);
    }
}
