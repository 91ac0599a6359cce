//! A model of version history, the layer under test, and a reader of what is in the stores.

// Each test program uses only some of this.
#![allow(dead_code, unreachable_pub)]

pub mod history;
pub mod ops;
pub mod policies;
pub mod store;
pub mod world;

use std::cell::Cell;
use vnode::Time;

thread_local! {
    static NOW: Cell<i64> = const { Cell::new(1_000) };
}

/// The clock of the layer under test: one second later at each reading.
pub fn clock() -> Time {
    NOW.with(|now| {
        now.set(now.get() + 1);
        Time { sec: now.get(), nsec: 0 }
    })
}

/// Sets the clock of this thread.
pub fn set_clock(sec: i64) {
    NOW.with(|now| now.set(sec));
}

/// Random numbers from a seed (xorshift).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            rng.next();
        }
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % limit
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
