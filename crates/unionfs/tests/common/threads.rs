//! What the threads of a test do: each random operations in a directory of its own, in step with its own model, and now and then in
//! directories that all share.

use super::op::Op;
use super::path::Path;
use super::random::Chooser;
use super::rng::Rng;
use super::session::Session;
use super::tree::{Tree, Who};
use super::view::View;
use std::sync::Arc;
use std::time::Duration;
use vnode::{Errno, Layer};

/// How many threads there are.
pub const THREADS: usize = 4;

/// How long all threads together may take: hundreds of times what they need, so that only a deadlock takes longer.
pub const PATIENCE: Duration = Duration::from_secs(240);

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
pub fn work(layer: Arc<dyn Layer>, mut model: Tree, own: &Path, seed: u64, steps: usize) -> Result<Tree, String> {
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

/// The part of a view that lies in a directory, without numbers and times.
pub fn beneath(view: &View, own: &Path) -> View {
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
