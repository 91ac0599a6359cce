//! What the tests of every crate need: how long to run, with which seeds, what to do if the machine
//! lacks something, and helpers: random numbers, waiting, temporary directories, programs.
//!
//! | variable | meaning |
//! |---|---|
//! | `STRATA_TEST_LONG=1` | many more seeds and rounds: `make test-long` |
//! | `STRATA_SEED=N` | only this seed |
//! | `STRATA_SEEDS=N` | this number of seeds |
//! | `STRATA_FIRST_SEED=N` | begin with this seed |
//! | `STRATA_SKIPPED` | a file, to which the names of skipped tests are appended |
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::expect_used, reason = "a test that can't run must fail")]

mod command;
mod files;
mod namespace;
mod rng;
mod wait;

pub use command::{Outcome, outcome, outcome_with_input};
pub use files::{TempDir, names};
pub use namespace::{own_mounts, runs_with_own_processes};
pub use rng::Rng;
pub use wait::{Look, PATIENCE, holds_within, seen, tick, until, until_within};

use rustix::fs::{FlockOperation, flock};
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;

/// How many more seeds `STRATA_TEST_LONG=1` means.
const LONG: u64 = 20;

/// Whether `STRATA_TEST_LONG=1` requests longer tests: more seeds and more rounds.
#[must_use]
pub fn long() -> bool {
    std::env::var_os("STRATA_TEST_LONG").is_some_and(|value| value == "1")
}

/// Returns a variable of the environment as a number, decimal or hexadecimal (`0x`).
///
/// # Panics
///
/// If it is set to something else, so that a mistyped seed does not run another one.
#[must_use]
pub fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let parsed = value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(parsed.unwrap_or_else(|_| panic!("{variable}={value}: expected a number")))
}

/// Returns the seeds of a random test: only `STRATA_SEED` if it is set; otherwise `STRATA_SEEDS` or
/// `count` seeds, 20 times `count` in a long test, beginning with `STRATA_FIRST_SEED` or 1.
#[must_use]
pub fn seeds(count: u64) -> RangeInclusive<u64> {
    if let Some(seed) = number("STRATA_SEED") {
        return seed..=seed;
    }
    let first = number("STRATA_FIRST_SEED").unwrap_or(1);
    let count = number("STRATA_SEEDS").unwrap_or(if long() { count * LONG } else { count });
    first..=first + count - 1
}

/// Fails the test unless it runs as root, which `why` needs.
///
/// # Panics
///
/// If the effective user is not root.
#[track_caller]
pub fn need_root(why: &str) {
    assert!(rustix::process::geteuid().is_root(), "this test needs root: {why}");
}

/// Waits until no other test has the lock of this file, which is created, and returns the lock:
/// tests run side by side in processes of their own. The lock ends with the returned file, also if
/// the test is killed.
///
/// # Panics
///
/// If the file can't be created.
#[must_use]
pub fn lock(path: &Path) -> File {
    let file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    while let Err(error) = flock(&file, FlockOperation::LockExclusive) {
        assert_eq!(error, rustix::io::Errno::INTR, "{}", path.display());
    }
    file
}

/// Notes that this test does not run on this machine, and why: a kernel or a file system without a
/// feature. The end of `make test` names it. The caller returns.
///
/// # Panics
///
/// If the list of skipped tests can't be written.
pub fn skip(reason: impl Display) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped: {line}");
    if let Some(list) = std::env::var_os("STRATA_SKIPPED") {
        let mut list = File::options().append(true).create(true).open(list).expect("STRATA_SKIPPED");
        list.write_all(line.as_bytes()).expect("STRATA_SKIPPED");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_excludes_others_until_it_is_dropped() {
        let path = std::env::temp_dir().join(format!("testkit-lock-{}", std::process::id()));
        let first = lock(&path);
        let other = File::open(&path).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(first);
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
