//! Several threads at once. Each runs random operations in a private directory, checked against its
//! own model, and some in shared directories, where only the invariants are checked. No thread may
//! hang. At the end the view must be consistent and the same after a remount, and each private
//! directory must match its model.
//!
//! `STRATA_SEED` and `STRATA_STEPS` work as in `model_random.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::config::{Config, threads_config, threads_config_with_gaps};
use crate::common::path::Path;
use crate::common::test_union::Start;
use crate::common::threads::{THREADS, TIMEOUT, beneath, run_thread};
use crate::common::view::{Walk, expected, view};
use memfs::MemOptions;
use std::sync::{Arc, mpsc};
use unionfs::Delete;

fn run_threads(config: &Config, delete: Delete) {
    let start = Start::new(config, delete, MemOptions::default());
    let steps = testkit::number("STRATA_STEPS").unwrap_or(600) as usize;
    let seed = testkit::number("STRATA_SEED").unwrap_or(42);
    println!("STRATA_SEED={seed} STRATA_STEPS={steps}");
    let union = start.union.fork();
    let session = union.mount().unwrap();
    let (sender, receiver) = mpsc::channel();
    for thread in 0..THREADS {
        let (layer, model, sender) = (Arc::clone(&session.layer), start.tree.clone(), sender.clone());
        let own = Path::from(format!("t{thread}").as_str());
        std::thread::spawn(move || {
            let outcome = run_thread(layer, model, &own, seed * 100 + thread as u64, steps);
            // The receiver is gone if another thread has failed.
            let _ = sender.send((own, outcome));
        });
    }
    drop(sender);
    let mut models = Vec::new();
    for _ in 0..THREADS {
        match receiver.recv_timeout(TIMEOUT) {
            Ok((own, Ok(model))) => models.push((own, model)),
            Ok((own, Err(e))) => panic!("/{own:?}, seed {seed}: {e}"),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("seed {seed}: the threads hang"),
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("seed {seed}: a thread panicked"),
        }
    }
    let live = view(&*session.layer, Walk::User).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    for (own, model) in &models {
        let (got, mut want) = (beneath(&live, own), beneath(&expected(model), own));
        for object in want.0.values_mut() {
            object.mtime = None;
        }
        assert!(got == want, "seed {seed}, /{own:?} is\n{got:?}not\n{want:?}");
    }
    drop(session);
    let session = union.mount().unwrap();
    let again = view(&*session.layer, Walk::User).unwrap_or_else(|e| panic!("seed {seed}, after a remount: {e}"));
    assert!(live == again, "seed {seed}: before a remount\n{live:?}after\n{again:?}");
    union.check_read_only_branches().unwrap();
    union.check_leftovers(&again).unwrap();
}

#[test]
fn delete_whiteout() {
    run_threads(&threads_config(THREADS), Delete::Whiteout);
}

#[test]
fn delete_all() {
    run_threads(&threads_config(THREADS), Delete::All);
}

#[test]
fn delete_whiteout_with_gaps() {
    run_threads(&threads_config_with_gaps(THREADS), Delete::Whiteout);
}

#[test]
fn delete_all_with_gaps() {
    run_threads(&threads_config_with_gaps(THREADS), Delete::All);
}
