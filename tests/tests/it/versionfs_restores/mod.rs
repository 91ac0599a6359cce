//! A seeded world of restores: random changes of a tree on a mount with versions, whose past and
//! restored states must equal what was recorded.
//!
//! `STRATA_SEED=N` runs that seed only, `STRATA_STEPS=N` with another number of steps. A failure
//! prints what was done to the object; `STRATA_KEEP=DIR` keeps the file system there.

#![forbid(unsafe_code)]

mod changes;
mod compare;
mod journal;
mod world;

use journal::{Pairs, table};
use world::World;

/// Seeds that failed once, and their steps.
const KNOWN: [(u64, u64); 1] = [(126, 40)];

/// The past of a mount, its copies and what is restored equal what was there.
#[test]
fn the_past_is_what_was_there() {
    let (steps, count) = (testkit::number("STRATA_STEPS"), if testkit::long() { 5 } else { 3 });
    let all = testkit::seeds(count).map(|seed| (seed, if testkit::long() { 400 } else { 60 }));
    let known = KNOWN.into_iter().filter(|_| testkit::number("STRATA_SEED").is_none());
    let mut pairs = Pairs::new();
    for (seed, default) in known.chain(all) {
        let mut world = World::new(seed);
        for _ in 0..steps.unwrap_or(default) {
            world.step();
        }
        world.finish();
        for (pair, count) in world.pairs() {
            *pairs.entry(*pair).or_default() += count;
        }
    }
    if testkit::long() {
        println!("{}", table(&pairs));
    }
}
