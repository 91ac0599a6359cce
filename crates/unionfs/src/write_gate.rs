//! Mutual exclusion of changes of an object and moves of the object to another branch. A rename can
//! move a file on a read-write branch other than the leftmost while it is open for writing. A
//! directory moves when it gets a part further left. Objects of the leftmost branch never move.
//! Writes to open files there are *direct*: they are counted in the open file alone.

use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vnode::{Cx, Errno, NumberMap, OpenFile, Result};

#[derive(Debug, Default)]
struct Traffic {
    writers: u32,
    moving: bool,
}

impl Traffic {
    fn is_idle(&self) -> bool {
        self.writers == 0 && !self.moving
    }
}

/// Changes and moves under way, by the number of the object.
#[derive(Debug, Default)]
pub(crate) struct WriteGate {
    traffic: Mutex<HashMap<u64, Traffic>>,
    changed: Condvar,
    /// Copies without a name, kept open while their vnode lives.
    orphans: Mutex<HashMap<u64, Arc<dyn OpenFile>>>,
    /// Number of open files, by file, whose host file was handed out for writing. Data that the
    /// kernel writes there would be lost if the file moved.
    held_host_files: Mutex<NumberMap<u32>>,
    /// No direct write may begin: the set of branches changes.
    no_direct: AtomicBool,
}

/// The direct writes to one open file that are under way.
#[derive(Debug, Default)]
pub(crate) struct DirectWrites(AtomicU32);

/// A direct write under way.
pub(crate) struct Direct<'a>(&'a DirectWrites);

/// While this exists, no direct write begins.
pub(crate) struct NoDirect<'a>(&'a WriteGate);

impl DirectWrites {
    /// Whether a direct write is under way.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// Begins a direct write. `None` if `permitted` returns false, or if the set of branches
    /// changes.
    pub(crate) fn begin(&self, gate: &WriteGate, permitted: impl Fn() -> bool) -> Option<Direct<'_>> {
        if !permitted() {
            return None;
        }
        // First count the write, then look whether it may begin; a change of the set does it the
        // other way round. So it waits for this write, or this write does not begin.
        self.0.fetch_add(1, Ordering::SeqCst);
        let direct = Direct(self);
        let begun = !gate.no_direct.load(Ordering::SeqCst) && permitted();
        begun.then_some(direct)
    }
}

/// A change under way: a write to a file, or one of attributes.
pub(crate) struct Writing<'a>(&'a WriteGate, u64);

/// A move under way, during which nothing is changed.
pub(crate) struct Moving<'a>(&'a WriteGate, u64);

impl WriteGate {
    /// Begins a change, after waiting for the end of a move.
    pub(crate) fn write(&self, cx: &Cx<'_>, id: u64) -> Result<Writing<'_>> {
        let mut traffic = self.traffic.lock();
        while traffic.get(&id).is_some_and(|t| t.moving) {
            cx.require_blocking()?;
            cx.check()?;
            self.changed.wait_for(&mut traffic, Duration::from_millis(20));
        }
        traffic.entry(id).or_default().writers += 1;
        Ok(Writing(self, id))
    }

    /// Begins a move: new changes wait, and this waits for those under way.
    pub(crate) fn start_move(&self, cx: &Cx<'_>, id: u64) -> Result<Moving<'_>> {
        self.start_move_until(cx, id, None)
    }

    /// As [`Self::start_move`]. Fails with `EBUSY` if changes are still under way at that time.
    pub(crate) fn start_move_until(&self, cx: &Cx<'_>, id: u64, until: Option<Instant>) -> Result<Moving<'_>> {
        let mut traffic = self.traffic.lock();
        let state = traffic.entry(id).or_default();
        if state.moving {
            return Err(Errno::BUSY);
        }
        state.moving = true;
        let moving = Moving(self, id);
        while traffic.get(&id).is_some_and(|t| t.writers > 0) {
            // Dropping `moving` takes the lock.
            let in_time = if until.is_some_and(|until| Instant::now() >= until) { Err(Errno::BUSY) } else { Ok(()) };
            if let Err(e) = in_time.and_then(|()| cx.require_blocking()).and_then(|()| cx.check()) {
                drop(traffic);
                drop(moving);
                return Err(e);
            }
            self.changed.wait_for(&mut traffic, Duration::from_millis(20));
        }
        Ok(moving)
    }

    fn end(&self, id: u64, change: impl FnOnce(&mut Traffic)) {
        let mut traffic = self.traffic.lock();
        if let Some(state) = traffic.get_mut(&id) {
            change(state);
            if state.is_idle() {
                traffic.remove(&id);
            }
        }
        drop(traffic);
        self.changed.notify_all();
    }

    /// Keeps a file without a name open while its vnode lives.
    pub(crate) fn keep_orphan(&self, id: u64, file: Arc<dyn OpenFile>) {
        let old = self.orphans.lock().insert(id, file);
        drop(old);
    }

    /// Counts a host file that may be handed out for writing.
    pub(crate) fn hold_host_file(&self, id: u64) {
        *self.held_host_files.lock().entry(id).or_default() += 1;
    }

    /// Ends [`Self::hold_host_file`] when the open file is closed.
    pub(crate) fn release_host_file(&self, id: u64) {
        let mut held_host_files = self.held_host_files.lock();
        if let Some(count) = held_host_files.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                held_host_files.remove(&id);
            }
        }
    }

    /// Whether the kernel may have a host file of this file for writing.
    pub(crate) fn is_host_file_held(&self, id: u64) -> bool {
        self.held_host_files.lock().contains_key(&id)
    }

    /// Closes the file without a name that was kept for this vnode.
    pub(crate) fn release_orphan(&self, id: u64) {
        let old = self.orphans.lock().remove(&id);
        drop(old);
    }
}

impl WriteGate {
    /// Lets no direct write begin until the result is dropped.
    pub(crate) fn forbid_direct(&self) -> NoDirect<'_> {
        self.no_direct.store(true, Ordering::SeqCst);
        NoDirect(self)
    }

    /// Whether direct writes are forbidden at present.
    pub(crate) fn is_direct_forbidden(&self) -> bool {
        self.no_direct.load(Ordering::Acquire)
    }
}

impl Drop for NoDirect<'_> {
    fn drop(&mut self) {
        self.0.no_direct.store(false, Ordering::SeqCst);
    }
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.end(self.1, |t| t.writers = t.writers.saturating_sub(1));
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.end(self.1, |t| t.moving = false);
    }
}
