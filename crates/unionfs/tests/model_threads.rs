//! Several threads at once: each does random operations in a directory of its own, in step with its own model, and now and then in
//! directories that all share, where only the invariants can be known. Nothing may hang, and at the end the view is whole, the same after
//! a remount, and the threads' own directories are as their models say.
//!
//! `STRATA_SEED` and `STRATA_STEPS` as for the random programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::bed::{Bed, Start};
use common::config::{Config, threads_config, threads_config_with_gaps};
use common::op::Op;
use common::path::Path;
use common::random::Chooser;
use common::report::env;
use common::rng::Rng;
use common::session::Session;
use common::tree::{Tree, Who};
use common::view::{View, Walk, expected, view};
use memfs::MemOptions;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use unionfs::Delete;
use vnode::{Errno, Layer};

const THREADS: usize = 4;

/// How long all threads together may take: hundreds of times what they need, so that only a deadlock takes longer.
const PATIENCE: Duration = Duration::from_secs(240);

/// What an operation that races with others may answer: what it would answer if it came before or after them.
const RACING: [Errno; 11] = [
    Errno::NOENT,
    Errno::EXIST,
    Errno::NOTDIR,
    Errno::ISDIR,
    Errno::NOTEMPTY,
    Errno::INVAL,
    Errno::PERM,
    Errno::NODATA,
    Errno::LOOP,
    Errno::NXIO,
    // chmod(2) of what has become a symbolic link.
    Errno::OPNOTSUPP,
];

/// One thread's work; answers the model of all, of which only its own directory is right.
fn work(layer: Arc<dyn Layer>, mut model: Tree, own: &Path, seed: u64, steps: usize) -> Result<Tree, String> {
    let mut rng = Rng::new(seed);
    let mut session = Session::new(Arc::clone(&layer));
    let mut elsewhere = Session::new(layer);
    for at in 0..steps {
        if rng.one_in(3) {
            let op = shared_op(&mut rng, &model);
            match elsewhere.run(Who::ROOT, &op) {
                Err(e) if !RACING.contains(&e) && !matches!(op, Op::Open { .. }) => {
                    return Err(format!("step {at}, shared {op:?}: {e:?}"));
                }
                _ => {}
            }
            continue;
        }
        let op = Chooser { rng: &mut rng, beneath: own.clone(), keeps_open: true }.op(&model);
        if leaves(&op, own) {
            continue;
        }
        let got = session.run(Who::ROOT, &op);
        match (model.apply(Who::ROOT, &op), got) {
            (Ok(()), Ok(())) => {}
            (Err(permitted), Err(e)) if permitted.contains(&e) => {}
            (want, got) => return Err(format!("step {at}, {op:?}: answers {got:?}, not {want:?}")),
        }
    }
    model.close_all();
    Ok(model)
}

/// Would it remove or move the thread's own directory?
fn leaves(op: &Op, own: &Path) -> bool {
    match op {
        Op::Rename { from, to, .. } => from == own || to == own,
        Op::Rmdir { path } | Op::Unlink { path } => path == own,
        _ => false,
    }
}

/// An operation on what all share, chosen as if nothing had changed since the start.
fn shared_op(rng: &mut Rng, start: &Tree) -> Op {
    let shared = ["both", "a", "s"][rng.below(3)];
    let op = Chooser { rng, beneath: shared.into(), keeps_open: false }.op(start);
    // Data is not what this is about: short files are quick.
    match op {
        Op::CopyRange { from, .. } => Op::Unlink { path: from },
        op => op,
    }
}

fn beneath(view: &View, own: &Path) -> View {
    let inside = view.0.iter().filter(|(path, _)| own.contains(path));
    View(
        inside
            .map(|(path, object)| {
                let mut object = object.clone();
                // Numbers and clocks are for the tests with one thread.
                (object.ino, object.mtime) = (0, None);
                (path.clone(), object)
            })
            .collect(),
    )
}

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
