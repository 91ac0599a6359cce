//! A model of version history: random operations of several users on several files and directories,
//! with errors and crashes at every step. After each step every version on disk is read and
//! compared with what users had.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::store::After;
use common::world::World;
use versionfs::{CopyOn, Options, Storage};

fn configurations() -> Vec<Options> {
    let mut all = Vec::new();
    for storage in [Storage::Full, Storage::Compress] {
        for copy_on in [CopyOn::Change, CopyOn::Write] {
            for comprehensive in [false, true] {
                all.push(Options { storage, copy_on, comprehensive, ..Options::default() });
            }
        }
    }
    all
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("MODEL_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..60,
    }
}

#[test]
fn each_name_has_the_versions_that_users_had() {
    let mut failures = Vec::new();
    for options in configurations() {
        for seed in seeds() {
            let mut world = World::new(seed, options);
            for step in 0..80 {
                let op = world.next();
                let _ = world.run(&op);
                if let Err(error) = world.check(After::Success) {
                    failures.push((step, format!("seed {seed}, {options:?}\n{}\n{error}", world.log.join("\n"))));
                    break;
                }
            }
        }
    }
    failures.sort();
    // The shortest one is the easiest to understand.
    assert!(failures.is_empty(), "{} sequences fail\n{}", failures.len(), failures[0].1);
}
