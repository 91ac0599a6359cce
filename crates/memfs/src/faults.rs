use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;
/// The operations of the vnode interface.
pub use vnode::Operation as Op;
use vnode::{Errno, Result};

/// Which operations are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// All operations.
    All,
    /// Operations that can change something.
    Changes,
    /// Operations that can take space: creations, links and writes, but no removals, truncations or
    /// changes of attributes. A rename finds room for its entry.
    Allocations,
    /// Operations of one kind.
    Only(Op),
}

impl Count {
    fn includes(self, op: Op) -> bool {
        match self {
            Self::All => true,
            Self::Changes => op.changes(),
            Self::Allocations => {
                let takes_none = matches!(op, Op::Setattr | Op::Unlink | Op::Rmdir | Op::Rename | Op::Removexattr);
                op.changes() && !takes_none
            }
            Self::Only(one) => one == op,
        }
    }
}

/// What happens at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with this errno and changes nothing. Later operations work.
    Error(Errno),
    /// The operation and all later counted ones fail with this errno and change nothing.
    Errors(Errno),
    /// The operation and every later one on all file systems of the plan fail with `EIO` and change
    /// nothing.
    Crash,
    /// A write, if it is the chosen operation, writes its data up to the end of this many pages,
    /// and returns that number of bytes; the next write fails with this errno. Another operation
    /// fails with it. Later operations work.
    ShortWrite {
        /// Number of pages, of 4 KiB, that the write still writes to.
        pages: u64,
        /// Why the rest can't be written.
        errno: Errno,
    },
    /// As [`Self::Crash`], but a write, if it is the chosen operation, first writes its data up to
    /// the end of this many pages: as when the writing process is killed.
    CrashInWrite {
        /// Number of pages, of 4 KiB, that the write still writes to.
        pages: u64,
    },
}

/// A fault and when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which operations are counted.
    pub count: Count,
    /// The counted operation that fails, starting at 1.
    pub at: u64,
    /// The fault to inject.
    pub fault: Fault,
}

/// A fault plan and operation counters, shared by the file systems created with it.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>, Arc<Gate>);

/// Makes operations wait.
#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    delay: Mutex<Duration>,
}

/// A callback that runs before or after a chosen operation.
struct Hook {
    at: u64,
    after: bool,
    call: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook(at {})", self.at)
    }
}

#[derive(Debug, Default)]
struct State {
    plan: Option<Plan>,
    /// The plan that follows when the fault of the first has been injected.
    next_plan: Option<Plan>,
    hook: Option<Hook>,
    /// The hook that runs at the end of the operation under way on this thread.
    due: Option<(ThreadId, Hook)>,
    seen: u64,
    changes: u64,
    counted: u64,
    fired: bool,
    crashed: bool,
    /// How many pages the operation under way may still write to.
    last_pages: Option<u64>,
    /// The error of the next write.
    next_write: Option<Errno>,
    log: Option<Vec<Op>>,
}

impl Faults {
    /// Creates an empty plan.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts the counters with this plan. This also ends the plan's crash; see
    /// [`crate::MemFs::recover`].
    pub fn arm(&self, plan: Plan) {
        *self.state() = State { plan: Some(plan), ..State::default() };
    }

    /// As [`Self::arm`], with a second plan, which counts from the fault of the first on.
    pub fn arm_both(&self, first: Plan, second: Plan) {
        *self.state() = State { plan: Some(first), next_plan: Some(second), ..State::default() };
    }

    /// Restarts the counters without a fault plan and calls `call` before the `at`-th following
    /// operation, on the thread of that operation. It may use the file systems and arm a fault
    /// plan.
    pub fn call_at(&self, at: u64, call: impl FnOnce() + Send + 'static) {
        let hook = Hook { at, after: false, call: Box::new(call) };
        *self.state() = State { hook: Some(hook), ..State::default() };
    }

    /// As [`Faults::call_at`], but calls `call` after the operation has released its locks, before
    /// it returns.
    pub fn call_after(&self, at: u64, call: impl FnOnce() + Send + 'static) {
        let hook = Hook { at, after: true, call: Box::new(call) };
        *self.state() = State { hook: Some(hook), ..State::default() };
    }

    /// Cancels the callback of [`Faults::call_at`] or [`Faults::call_after`]. Returns whether it
    /// had not been called yet.
    #[must_use]
    pub fn forget_call(&self) -> bool {
        self.state().hook.take().is_some()
    }

    /// Disables faults. Counters are kept, and so is a crash.
    pub fn disarm(&self) {
        self.state().plan = None;
    }

    /// Restarts the counters without a plan.
    pub fn reset(&self) {
        *self.state() = State::default();
    }

    /// Restarts the counters without a plan, and records the kind of each operation for
    /// [`Faults::log`].
    pub fn record(&self) {
        *self.state() = State { log: Some(Vec::new()), ..State::default() };
    }

    /// Returns the operations since [`Faults::record`].
    #[must_use]
    pub fn log(&self) -> Vec<Op> {
        self.state().log.clone().unwrap_or_default()
    }

    /// Makes all operations wait until [`Self::resume`], also those that have begun to wait.
    pub fn hang(&self) {
        *self.1.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Lets the operations proceed that [`Self::hang`] made wait.
    pub fn resume(&self) {
        *self.1.closed.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.1.opened.notify_all();
    }

    /// Makes each operation take this much longer.
    pub fn delay(&self, time: Duration) {
        *self.1.delay.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }

    fn wait(&self) {
        let delay = *self.1.delay.lock().unwrap_or_else(PoisonError::into_inner);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut closed = self.1.closed.lock().unwrap_or_else(PoisonError::into_inner);
        while *closed {
            closed = self.1.opened.wait(closed).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the number of operations since the counters were restarted.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().seen
    }

    /// Returns the number of operations that could change something.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Whether the fault has been injected.
    #[must_use]
    pub fn fired(&self) -> bool {
        self.state().fired
    }

    /// Whether the plan's crash has happened.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// Returns how many pages a write may still write to, if the file system crashes in it.
    pub(crate) fn last_pages(&self) -> Option<u64> {
        self.state().last_pages.take()
    }

    /// Counts an operation and injects the fault. Called at the start of each operation.
    pub(crate) fn inject(&self, op: Op) -> Result<()> {
        self.wait();
        let mut state = self.state();
        if state.crashed {
            return Err(Errno::IO);
        }
        state.seen += 1;
        state.changes += u64::from(op.changes());
        if let Some(log) = &mut state.log {
            log.push(op);
        }
        let seen = state.seen;
        let mut due = state.hook.take_if(|hook| hook.at == seen);
        if let Some(hook) = due.take_if(|hook| hook.after) {
            state.due = Some((std::thread::current().id(), hook));
        }
        if let Some(hook) = due {
            drop(state);
            (hook.call)();
            state = self.state();
        }
        if op == Op::Write
            && let Some(errno) = state.next_write.take()
        {
            return Err(errno);
        }
        let Some(plan) = state.plan.filter(|plan| plan.count.includes(op)) else { return Ok(()) };
        state.counted += 1;
        if state.counted < plan.at {
            return Ok(());
        }
        let is_at = state.counted == plan.at;
        if let Some(next) = state.next_plan.take() {
            (state.plan, state.counted) = (Some(next), 0);
        }
        match plan.fault {
            Fault::Error(errno) if is_at => {
                state.fired = true;
                Err(errno)
            }
            Fault::ShortWrite { pages, errno } if is_at => {
                state.fired = true;
                if op != Op::Write {
                    return Err(errno);
                }
                (state.last_pages, state.next_write) = (Some(pages), Some(errno));
                Ok(())
            }
            Fault::Error(_) | Fault::ShortWrite { .. } => Ok(()),
            Fault::Errors(errno) => {
                state.fired = true;
                Err(errno)
            }
            Fault::CrashInWrite { pages } if op == Op::Write => {
                state.fired = true;
                state.crashed = true;
                state.last_pages = Some(pages);
                Ok(())
            }
            Fault::Crash | Fault::CrashInWrite { .. } => {
                state.fired = true;
                state.crashed = true;
                Err(Errno::IO)
            }
        }
    }
}

/// The end of an operation: runs the callback that is due then.
#[derive(Debug)]
pub(crate) struct End<'a>(pub(crate) &'a Faults);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let this = std::thread::current().id();
        let due = self.0.state().due.take_if(|(thread, _)| *thread == this);
        if let Some((_, hook)) = due {
            (hook.call)();
        }
    }
}
