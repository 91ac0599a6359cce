/// A generator of pseudo-random numbers. A seed yields the same sequence on every machine and in
/// every release, so that the seed of a failure repeats it.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
    algorithm: Algorithm,
}

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    SplitMix,
    Xorshift,
    XorshiftStar,
}

impl Rng {
    /// Creates a SplitMix64 generator, the one for new tests.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed, algorithm: Algorithm::SplitMix }
    }

    /// Creates a generator with the sequence (xorshift64) of the model of versionfs: another one
    /// would change what the seeds of its past failures do.
    #[must_use]
    pub fn xorshift(seed: u64) -> Self {
        Self::warmed_up(seed, Algorithm::Xorshift, 8)
    }

    /// Creates a generator with the sequence (xorshift64*) of the random operations of
    /// `conformance`: another one would change what the seeds of their past failures do.
    #[must_use]
    pub fn xorshift_star(seed: u64) -> Self {
        Self::warmed_up(seed, Algorithm::XorshiftStar, 4)
    }

    fn warmed_up(seed: u64, algorithm: Algorithm, rounds: usize) -> Self {
        // Zero is the only state that would never change.
        let mut rng = Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, algorithm };
        for _ in 0..rounds {
            rng.bits();
        }
        rng
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        match self.algorithm {
            Algorithm::SplitMix => {
                self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = self.state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            }
            Algorithm::Xorshift => {
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                self.state
            }
            Algorithm::XorshiftStar => {
                self.state ^= self.state >> 12;
                self.state ^= self.state << 25;
                self.state ^= self.state >> 27;
                self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
            }
        }
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    ///
    /// # Panics
    ///
    /// If `end` is negative.
    pub fn below<N: TryFrom<u64> + TryInto<u64>>(&mut self, end: N) -> N {
        let end = end.try_into().ok().expect("a number that is not negative");
        // The lower bits of xorshift are weak.
        let bits = match self.algorithm {
            Algorithm::SplitMix => self.bits(),
            Algorithm::Xorshift => self.bits() >> 33,
            Algorithm::XorshiftStar => self.bits() >> 11,
        };
        N::try_from(bits % end.max(1)).ok().expect("less than a number of this type")
    }

    /// Returns true with probability 1/`n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns true with a probability of `percent`.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of `choices`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.bits().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    /// Past failures are known by their seeds.
    #[test]
    fn the_sequences_never_change() {
        let start = |mut rng: Rng| ([rng.bits(), rng.bits()], std::array::from_fn(|_| rng.below(100)));
        let known = [
            (Rng::new(0), [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4], [79, 44, 47, 90, 13, 40]),
            (Rng::new(31), [0xd759_9677_879f_eaea, 0xbcd4_dd25_43bf_3fd8], [13, 33, 9, 37, 24, 47]),
            (Rng::xorshift(0), [0x7d3e_032e_9a79_08ff, 0x73a3_97e1_324c_252e], [61, 0, 95, 62, 34, 70]),
            (Rng::xorshift(16), [0xe23c_2801_482c_e729, 0x95ff_c3c6_742e_54a7], [83, 31, 39, 98, 1, 3]),
            (Rng::xorshift_star(0), [0x0e61_99b0_4d5a_a600, 0xc867_4bcb_42e3_aad9], [66, 43, 6, 3, 69, 23]),
            (Rng::xorshift_star(31), [0xdf03_d113_f15f_8ad2, 0xf420_0b05_5e30_fd7d], [27, 93, 43, 94, 96, 15]),
        ];
        for (rng, bits, numbers) in known {
            assert_eq!(start(rng), (bits, numbers));
        }
    }

    #[test]
    fn numbers_are_below_their_bound() {
        let mut rng = Rng::new(1);
        assert_eq!((rng.below(0_u64), rng.below(1_u8)), (0, 0));
        assert!((0..1000).all(|_| rng.below(i64::MAX) >= 0 && rng.below(7_u32) < 7));
        assert_eq!((rng.bytes(0).len(), rng.bytes(13).len()), (0, 13));
    }
}
