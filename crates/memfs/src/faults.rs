use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
/// The operations of the vnode interface.
pub use vnode::Operation as Op;
use vnode::{Errno, Result};

/// Which operations are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// All.
    All,
    /// Those that can change something.
    Changes,
    /// Those of one kind.
    Only(Op),
}

impl Count {
    fn takes(self, op: Op) -> bool {
        match self {
            Self::All => true,
            Self::Changes => op.changes(),
            Self::Only(one) => one == op,
        }
    }
}

/// What happens at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this, and changes nothing. Later ones work.
    Error(Errno),
    /// It and all later counted ones fail with this, and change nothing.
    Errors(Errno),
    /// It and every later operation on every file system of the plan fails with `EIO` and changes nothing.
    Crash,
}

/// When what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which operations are counted.
    pub count: Count,
    /// At which of them: 1 is the first.
    pub at: u64,
    /// What happens then.
    pub fault: Fault,
}

/// A plan of faults and a counter of operations, shared by the file systems that were made with it.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

/// Something to be called at a chosen operation, before it.
struct Hook {
    at: u64,
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
    hook: Option<Hook>,
    seen: u64,
    changes: u64,
    counted: u64,
    fired: bool,
    crashed: bool,
    log: Option<Vec<Op>>,
}

impl Faults {
    /// No faults yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts counting anew, for this plan. Ends a crash too, as far as the plan is concerned: see [`crate::MemFs::recover`].
    pub fn arm(&self, plan: Plan) {
        *self.state() = State { plan: Some(plan), ..State::default() };
    }

    /// Starts counting anew, without a plan: `call` is called before the operation `at` of those that follow, on its thread. It may
    /// use the file systems of the plan, and arm a plan of faults.
    pub fn call_at(&self, at: u64, call: impl FnOnce() + Send + 'static) {
        *self.state() = State { hook: Some(Hook { at, call: Box::new(call) }), ..State::default() };
    }

    /// Has what [`Faults::call_at`] was given not been called yet? It no longer will be.
    #[must_use]
    pub fn forget_call(&self) -> bool {
        self.state().hook.take().is_some()
    }

    /// No faults from here on. The counters stay; a crash stays.
    pub fn disarm(&self) {
        self.state().plan = None;
    }

    /// Starts counting anew, without a plan.
    pub fn reset(&self) {
        *self.state() = State::default();
    }

    /// Starts counting anew, without a plan, and notes the kind of each operation for [`Faults::log`].
    pub fn record(&self) {
        *self.state() = State { log: Some(Vec::new()), ..State::default() };
    }

    /// What was done since [`Faults::record`].
    #[must_use]
    pub fn log(&self) -> Vec<Op> {
        self.state().log.clone().unwrap_or_default()
    }

    /// Operations since the counting began.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().seen
    }

    /// Those of them that could change something.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Has the plan's moment come?
    #[must_use]
    pub fn fired(&self) -> bool {
        self.state().fired
    }

    /// Has the plan's crash happened?
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// Asked at the beginning of each operation.
    pub(crate) fn meet(&self, op: Op) -> Result<()> {
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
        let due = state.hook.take_if(|hook| hook.at == seen);
        if let Some(hook) = due {
            drop(state);
            (hook.call)();
            state = self.state();
        }
        let Some(plan) = state.plan.filter(|plan| plan.count.takes(op)) else { return Ok(()) };
        state.counted += 1;
        if state.counted < plan.at {
            return Ok(());
        }
        match plan.fault {
            Fault::Error(errno) if state.counted == plan.at => {
                state.fired = true;
                Err(errno)
            }
            Fault::Error(_) => Ok(()),
            Fault::Errors(errno) => {
                state.fired = true;
                Err(errno)
            }
            Fault::Crash => {
                state.fired = true;
                state.crashed = true;
                Err(Errno::IO)
            }
        }
    }
}
