//! Changes of lower directories that must not be visible in the directories' times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vnode::{Attr, Cx, Result, SetAttr, SetTime, Vnode};

/// Number of changes of directories whose times are restored afterwards.
struct Changes {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The changes of all directories, shared by those with the same remainder of their numbers.
static CHANGES: [Changes; 64] = [const { Changes { begun: AtomicU64::new(0), ended: AtomicU64::new(0) } }; 64];

/// How long to wait for changes: a branch can be frozen or hang.
const PATIENCE: Duration = Duration::from_millis(10);

const PAUSE: Duration = Duration::from_micros(50);

impl Changes {
    fn of(dir: &Arc<dyn Vnode>) -> &'static Self {
        let [first, ..] = &CHANGES;
        CHANGES.get((dir.id() % CHANGES.len() as u64) as usize).unwrap_or(first)
    }

    fn begin(&self) -> Changing<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Changing(self)
    }
}

struct Changing<'a>(&'a Changes);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the attributes of a lower directory, as a rule without the times of a change that
/// [`preserving_times`] is about to restore: the kernel would cache them.
pub(crate) fn settled_attr(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Attr> {
    let (changes, since) = (Changes::of(dir), Instant::now());
    loop {
        let (ended, begun) = (changes.ended.load(Ordering::SeqCst), changes.begun.load(Ordering::SeqCst));
        let attr = dir.getattr(cx)?;
        let is_settled = ended == begun && begun == changes.begun.load(Ordering::SeqCst);
        if is_settled || since.elapsed() >= PATIENCE {
            return Ok(attr);
        }
        cx.require_blocking()?;
        std::thread::sleep(PAUSE);
    }
}

/// Runs `change` on a lower directory, then restores the directory's times.
pub(crate) fn preserving_times<T>(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, change: impl FnOnce() -> Result<T>) -> Result<T> {
    let _changing = Changes::of(dir).begin();
    let before = dir.getattr(cx)?;
    let answer = change()?;
    restore_times(cx, dir, &before);
    Ok(answer)
}

/// Restores the times of a lower directory.
pub(crate) fn restore_times(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, before: &Attr) {
    let set = SetAttr {
        atime: Some(SetTime::At(before.atime)),
        mtime: Some(SetTime::At(before.mtime)),
        ..SetAttr::default()
    };
    if let Err(errno) = dir.setattr(cx, &set, None) {
        tracing::warn!(%errno, "could not restore the times of a directory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vnode::{Layer as _, Name};

    #[test]
    fn times_that_are_restored_are_never_seen() {
        let fs = memfs::MemFs::new();
        let (cx, root) = (Cx::internal(0, 0), fs.root());
        let before = root.getattr(&cx).unwrap().mtime;
        let name = Name::new(b"own").unwrap();
        std::thread::scope(|scope| {
            let changer = scope.spawn(|| {
                for _ in 0..2000 {
                    preserving_times(&cx, &root, || root.mkdir(&cx, name, 0o700)).unwrap();
                    preserving_times(&cx, &root, || root.rmdir(&cx, name)).unwrap();
                }
            });
            while !changer.is_finished() {
                let begun = Instant::now();
                let seen = settled_attr(&cx, &root).unwrap().mtime;
                assert!(seen == before || begun.elapsed() >= PATIENCE);
            }
        });
    }

    #[test]
    fn a_change_that_takes_long_does_not_hold_up_others() {
        let fs = memfs::MemFs::new();
        let (cx, root) = (Cx::internal(0, 0), fs.root());
        preserving_times(&cx, &root, || settled_attr(&cx, &root)).unwrap();
    }
}
