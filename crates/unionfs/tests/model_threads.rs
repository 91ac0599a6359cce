//! Several threads at once: each does random operations in a directory of its own, in step with its own model, and now and then in
//! directories that all share, where only the invariants can be known. Nothing may hang, and at the end the view is whole, the same after
//! a remount, and the threads' own directories are as their models say.
//!
//! `STRATA_SEED` and `STRATA_STEPS` as for the random programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bed::{Bed, Start};
use common::config::{Config, threads_config, threads_config_with_gaps};
use common::path::Path;
use common::report::env;
use common::threads::{PATIENCE, THREADS, beneath, work};
use common::view::{Walk, expected, view};
use memfs::MemOptions;
use std::sync::{Arc, mpsc};
use unionfs::Delete;

fn threads(config: &Config, delete: Delete) {
    let start = Start::new(config, delete, MemOptions::default());
    let steps = env("STRATA_STEPS").unwrap_or(600) as usize;
    let seed = env("STRATA_SEED").unwrap_or(42);
    println!("STRATA_SEED={seed} STRATA_STEPS={steps}");
    let bed: Bed = start.bed.fork();
    let session = bed.mount().unwrap();
    let (sender, receiver) = mpsc::channel();
    for thread in 0..THREADS {
        let (layer, model, sender) = (Arc::clone(&session.layer), start.tree.clone(), sender.clone());
        let own = Path::from(format!("t{thread}").as_str());
        std::thread::spawn(move || {
            let outcome = work(layer, model, &own, seed * 100 + thread as u64, steps);
            // Nobody listens once another thread has failed.
            let _ = sender.send((own, outcome));
        });
    }
    drop(sender);
    let mut models = Vec::new();
    for _ in 0..THREADS {
        match receiver.recv_timeout(PATIENCE) {
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
    let session = bed.mount().unwrap();
    let again = view(&*session.layer, Walk::User).unwrap_or_else(|e| panic!("seed {seed}, after a remount: {e}"));
    assert!(live == again, "seed {seed}: before a remount\n{live:?}after\n{again:?}");
    bed.check_branches().unwrap();
    bed.check_litter(&again).unwrap();
}

#[test]
fn whiteout_mode() {
    threads(&threads_config(THREADS), Delete::Whiteout);
}

#[test]
fn all_mode() {
    threads(&threads_config(THREADS), Delete::All);
}

#[test]
fn whiteout_mode_with_gaps() {
    threads(&threads_config_with_gaps(THREADS), Delete::Whiteout);
}

#[test]
fn all_mode_with_gaps() {
    threads(&threads_config_with_gaps(THREADS), Delete::All);
}
