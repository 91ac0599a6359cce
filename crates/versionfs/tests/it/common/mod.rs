//! A model of version history, the layer under test, and a reader of what is in the stores.

// Each test program uses only some of this.
#![allow(dead_code, unreachable_pub)]

pub mod clerk;
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
