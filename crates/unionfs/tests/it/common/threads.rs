//! The work of a test thread: random operations in a private directory, checked against the
//! thread's own model, mixed with operations in directories that all threads share.

use super::op::Op;
use super::path::Path;
use super::random_ops::OpChooser;
use super::session::Session;
use super::tree::{Caller, Tree};
use super::view::View;
use std::sync::Arc;
use std::time::Duration;
use testkit::Rng;
use vnode::{Errno, Layer};

/// Number of threads.
pub const THREADS: usize = 4;

/// Time limit for all threads: hundreds of times the usual duration, so only a deadlock exceeds it.
pub const TIMEOUT: Duration = Duration::from_secs(240);

/// Errors that an operation may return when it races with other threads: those that it would return
/// before or after their operations.
const RACE_ERRORS: [Errno; 11] = [
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
    // chmod(2) of a file that another thread replaced with a symbolic link.
    Errno::OPNOTSUPP,
];

/// Runs one thread; returns its model, which is valid only for the thread's own directory.
pub fn run_thread(layer: Arc<dyn Layer>, mut model: Tree, own: &Path, seed: u64, steps: usize) -> Result<Tree, String> {
    let mut rng = Rng::new(seed);
    let mut session = Session::new(Arc::clone(&layer));
    let mut elsewhere = Session::new(layer);
    for at in 0..steps {
        if rng.one_in(3) {
            let op = shared_op(&mut rng, &model);
            match elsewhere.run(Caller::ROOT, &op) {
                Err(e) if !RACE_ERRORS.contains(&e) && !matches!(op, Op::Open { .. }) => {
                    return Err(format!("step {at}, shared {op:?}: {e:?}"));
                }
                _ => {}
            }
            continue;
        }
        let op = OpChooser { rng: &mut rng, beneath: own.clone(), keeps_open: true }.op(&model);
        if changes_own_directory(&op, own) {
            continue;
        }
        let got = session.run(Caller::ROOT, &op);
        match (model.apply(Caller::ROOT, &op), got) {
            (Ok(()), Ok(())) => {}
            (Err(permitted), Err(e)) if permitted.contains(&e) => {}
            (want, got) => return Err(format!("step {at}, {op:?}: returns {got:?}, expected {want:?}")),
        }
    }
    model.close_all();
    Ok(model)
}

/// Whether the operation would remove or rename the thread's own directory.
fn changes_own_directory(op: &Op, own: &Path) -> bool {
    match op {
        Op::Rename { from, to, .. } => from == own || to == own,
        Op::Rmdir { path } | Op::Unlink { path } => path == own,
        _ => false,
    }
}

/// Returns an operation on a shared directory, chosen from the tree at the start.
fn shared_op(rng: &mut Rng, start: &Tree) -> Op {
    let shared = ["both", "a", "s"][rng.below(3)];
    let op = OpChooser { rng, beneath: shared.into(), keeps_open: false }.op(start);
    // The threads test races, not data: copying files would only cost time.
    match op {
        Op::CopyRange { from, .. } => Op::Unlink { path: from },
        op => op,
    }
}

/// Returns the part of a view beneath a directory, without inode numbers and times.
pub fn beneath(view: &View, own: &Path) -> View {
    let inside = view.0.iter().filter(|(path, _)| own.contains(path));
    View(
        inside
            .map(|(path, object)| {
                let mut object = object.clone();
                // Inode numbers and times are checked by the single-threaded tests.
                (object.ino, object.mtime) = (0, None);
                (path.clone(), object)
            })
            .collect(),
    )
}
