//! Calls that are made on one replica after the other until one answers.

use crate::blame::{Blame, blame};
use crate::health::{Set, only};
use crate::layer::Shared;
use crate::node::Node;
use crate::pool::NoAnswer;
use crate::replica::{Opened, Replica};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vnode::{Cx, Errno, Result, Vnode};

/// Why a replica gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The operation failed.
    Errno(Errno),
    /// There is no such object on this replica, or one of another kind.
    Missing,
}

/// What one replica answers.
pub(crate) type Outcome<T> = core::result::Result<T, Fault>;

/// An answer, and whose it is.
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    pub(crate) replica: usize,
    pub(crate) opened: Arc<Opened>,
}

/// A caller, as far as a thread that may outlive the request can know it.
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
    /// On whose account it is, and whether it is a layer's own work.
    account: u32,
    internal: bool,
    /// The facts about the caller, and lifetimes that are narrowed on that thread.
    call: Option<vnode::Call>,
}

/// What comes back from a thread that worked for a caller: an answer, and lifetimes that the layers
/// below narrowed.
pub(crate) struct Told<T> {
    pub(crate) value: T,
    call: Option<vnode::Call>,
}

impl<T> Told<T> {
    /// The answer. The caller's own answer is remembered for no longer than that of the replica.
    pub(crate) fn take(self, cx: &Cx<'_>) -> T {
        if let (Some(call), Some(narrowed)) = (cx.call(), &self.call) {
            call.absorb(narrowed);
        }
        self.value
    }
}

/// Nobody gives up a call on a thread of a replica but the deadline.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Caller {
    pub(crate) fn of(cx: &Cx<'_>) -> Self {
        let (account, internal) = (cx.caller(), cx.is_internal());
        Self { uid: cx.uid, gid: cx.gid, pid: cx.pid, account, internal, call: cx.call().map(vnode::Call::share) }
    }

    /// Does `op` on this thread, for the caller.
    pub(crate) fn run<T>(self, op: impl FnOnce(&Cx<'_>) -> T) -> Told<T> {
        let value = op(&self.cx());
        Told { value, call: self.call }
    }

    fn cx(&self) -> Cx<'_> {
        let cx = Cx::new(self.account, self.gid, self.pid, 0, true, &NEVER).as_server(self.uid, self.gid);
        let cx = if self.internal { cx } else { cx.held_for_caller() };
        self.call.as_ref().map_or(cx, |call| cx.of_call(call))
    }
}

/// Until when an operation is to be answered: one deadline for all of its steps. The clock starts with the first step that may wait.
#[derive(Debug)]
pub(crate) struct Deadline {
    timeout: Duration,
    at: Option<Instant>,
}

/// The part of the timeout that a replica always gets, however little is left: a shorter wait could not tell one that hangs
/// from one that has just come back, or that answers the last of several steps.
const LEAST_SHARE: u32 = 4;

impl Deadline {
    pub(crate) fn new(fs: &Shared) -> Self {
        Self { timeout: fs.options.timeout, at: None }
    }

    fn at(&mut self) -> Instant {
        *self.at.get_or_insert_with(|| Instant::now() + self.timeout)
    }

    /// How long one replica is waited for: half of the time left if another one can be asked after it, else all of it, but
    /// at least a quarter of the timeout. So only an operation that meets four replicas that hang, or a
    /// replica that comes back at the last moment, takes longer than the timeout.
    pub(crate) fn share(&mut self, is_last: bool) -> Duration {
        let left = self.at().saturating_duration_since(Instant::now());
        let share = if is_last { left } else { left / 2 };
        share.max(self.timeout / LEAST_SHARE)
    }
}

/// The way of one request from replica to replica.
pub(crate) struct Way<'a> {
    fs: &'a Shared,
    deadline: &'a mut Deadline,
    number: u64,
    prefer: Option<usize>,
    tried: Set,
    /// Tried already, but may be tried once more when no other is left.
    again: Option<usize>,
    /// What the last replica failed with.
    errno: Errno,
    begun: bool,
}

impl<'a> Way<'a> {
    /// For the file of that number, which belongs to the replica `prefer`.
    pub(crate) fn new(fs: &'a Shared, deadline: &'a mut Deadline, number: u64, prefer: Option<usize>) -> Self {
        Self { fs, deadline, number, prefer, tried: 0, again: None, errno: Errno::IO, begun: false }
    }

    /// How long that replica is waited for.
    pub(crate) fn patience(&mut self, replica: usize) -> Duration {
        let up = self.fs.board.up();
        let there = if up == 0 { self.fs.board.suspects() } else { up };
        self.deadline.share(there & !self.tried & !only(replica) == 0)
    }

    /// To be asked before the first step.
    ///
    /// # Errors
    /// `ETIMEDOUT` if this is the rest of a system call that has waited until a deadline already.
    pub(crate) fn begin(&mut self, cx: &Cx<'_>) -> Result<()> {
        let again = !self.begun && self.fs.board.up() == 0 && self.fs.gave_up.has_just(cx.pid);
        self.begun = true;
        if again { Err(Errno::TIMEDOUT) } else { Ok(()) }
    }

    /// The next replica to ask.
    ///
    /// # Errors
    /// What the last one failed with, if there is none left. If none is up at all, that is waited for until the deadline.
    pub(crate) fn next(&mut self, cx: &Cx<'_>) -> Result<usize> {
        self.begin(cx)?;
        loop {
            if let Some(replica) = self.fs.pick(self.number, self.prefer, self.tried) {
                return Ok(replica);
            }
            let up = self.fs.board.up();
            if let Some(replica) = self.again.take()
                && up & only(replica) != 0
            {
                return Ok(replica);
            }
            if up != 0 {
                return Err(self.errno);
            }
            cx.require_blocking()?;
            if !self.fs.board.wait_for_any(self.deadline.at()) {
                self.fs.gave_up.note(cx.pid);
                return Err(self.errno);
            }
            self.tried = 0;
        }
    }

    /// That one failed.
    pub(crate) fn failed(&mut self, replica: usize, errno: Errno) {
        self.tried |= only(replica);
        self.errno = errno;
    }

    /// An open file failed on that one. To open it there anew may help, where no other is left: the server may have been restarted.
    pub(crate) fn file_failed(&mut self, replica: usize, errno: Errno) {
        if self.tried & only(replica) == 0 {
            self.again = Some(replica);
        }
        self.failed(replica, errno);
    }

    /// That one has not what is asked for.
    pub(crate) fn lacks(&mut self, replica: usize) {
        self.tried |= only(replica);
    }
}

impl Node {
    /// Does `op` on the replica that the object belongs to; if that fails because of the replica, on others.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        op: impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        let prefer = self.choice();
        let answer = self.ask_for(cx, &mut Deadline::new(&self.fs), self.path().number(), prefer, op)?;
        if prefer != Some(answer.replica) {
            self.choose(answer.replica);
        }
        Ok(answer.value)
    }

    /// Does `op` for the file of that number, on the replica `prefer` if that is up.
    pub(crate) fn ask_for<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        deadline: &mut Deadline,
        number: u64,
        prefer: Option<usize>,
        op: impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T> + Clone + Send + 'static,
    ) -> Result<Answer<T>> {
        let mut way = Way::new(&self.fs, deadline, number, prefer);
        loop {
            let replica = way.next(cx)?;
            match self.attempt(cx, replica, || way.patience(replica), &op) {
                Ok((value, opened)) => return Ok(Answer { value, replica, opened }),
                // Another replica may have it, but this one is right until it fails. The kernel walks the path again.
                Err(Fault::Missing) => return Err(Errno::STALE),
                Err(Fault::Errno(errno)) if blame(errno) == Blame::Nobody => return Err(errno),
                Err(Fault::Errno(errno)) => way.failed(replica, errno),
            }
        }
    }

    /// Does `op` on one replica, and waits for it as long as `patience` says, if it may hang.
    pub(crate) fn attempt<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        replica: usize,
        patience: impl FnOnce() -> Duration,
        op: &(impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T> + Clone + Send + 'static),
    ) -> Outcome<(T, Arc<Opened>)> {
        let Some(opened) = self.fs.replicas.get(replica).and_then(Replica::opened) else {
            return Err(Fault::Errno(Errno::NOTCONN));
        };
        if opened.pool.is_some() {
            cx.require_blocking().map_err(Fault::Errno)?;
        }
        let call = self.fs.begin(replica, opened.pool.is_some());
        let done = match &opened.pool {
            None => self.perform(replica, &opened, cx, op),
            Some(pool) => {
                let node = self.me().map_err(Fault::Errno)?;
                let (caller, opened, op) = (Caller::of(cx), Arc::clone(&opened), op.clone());
                let work = move || caller.run(|cx| node.perform(replica, &opened, cx, &op));
                let told = pool.call(patience(), work).map_err(|none| Fault::Errno(errno_of(none)));
                told.and_then(|told| told.take(cx))
            }
        };
        self.fs.end(call, &opened, done.as_ref().err().copied());
        done.map(|value| (value, opened))
    }
}

/// Callers whose last operation ended with the deadline, while no replica was up.
///
/// If a LOOKUP of a name that it knows fails, the kernel sends another one in the same system call, and so it does with a READ ahead. These
/// must not wait for a deadline of their own.
#[derive(Debug, Default)]
pub(crate) struct GaveUp(Mutex<HashMap<u32, Instant>>);

/// The kernel asks again at once.
const AT_ONCE: Duration = Duration::from_millis(100);
/// More callers are not remembered.
const MOST_CALLERS: usize = 1024;

impl GaveUp {
    fn note(&self, caller: u32) {
        let mut all = self.0.lock();
        if all.len() >= MOST_CALLERS {
            all.retain(|_, at| at.elapsed() < AT_ONCE);
        }
        if caller != 0 && all.len() < MOST_CALLERS {
            all.insert(caller, Instant::now());
        }
    }

    /// Answered once: a program that tries again after that waits again.
    fn has_just(&self, caller: u32) -> bool {
        self.0.lock().remove(&caller).is_some_and(|at| at.elapsed() < AT_ONCE)
    }
}

/// What a call failed with that was not answered.
pub(crate) const fn errno_of(none: NoAnswer) -> Errno {
    match none {
        NoAnswer::Late | NoAnswer::Full => Errno::TIMEDOUT,
        NoAnswer::Panicked => Errno::IO,
    }
}

/// A call that is under way.
pub(crate) struct Call {
    replica: usize,
    began: Option<Instant>,
}

/// One of so many calls that take a microsecond or two is timed.
const TIMED: u64 = 8;

impl Shared {
    /// A replica to ask for the file of that number, not one of `tried`; `None`: none is left.
    pub(crate) fn pick(&self, number: u64, prefer: Option<usize>, tried: Set) -> Option<usize> {
        let up = self.board.up() & !tried;
        if let Some(prefer) = prefer.filter(|prefer| up & only(*prefer) != 0) {
            return Some(prefer);
        }
        if up == 0 {
            return self.chooser.choose(self.board.suspects() & !tried, number, &self.replicas);
        }
        let key = self.chooser.goes_by_number().then_some(number);
        let admitted = self.board.admitted(up, key, Instant::now);
        self.chooser.choose(if admitted == 0 { up } else { admitted }, number, &self.replicas)
    }

    /// A call is made.
    pub(crate) fn begin(&self, replica: usize, always_timed: bool) -> Call {
        let mut began = None;
        if let Some(replica) = self.replicas.get(replica) {
            let nth = replica.stats.requests.fetch_add(1, Ordering::Relaxed);
            self.chooser.used(replica);
            if always_timed || nth.is_multiple_of(TIMED) {
                began = Some(Instant::now());
            }
        }
        Call { replica, began }
    }

    /// It came to an end, with that fault if any.
    #[expect(clippy::needless_pass_by_value, reason = "a call ends once")]
    pub(crate) fn end(&self, call: Call, opened: &Opened, fault: Option<Fault>) {
        let Some(replica) = self.replicas.get(call.replica) else { return };
        let blamed = match fault {
            Some(Fault::Errno(errno)) => blame(errno),
            Some(Fault::Missing) | None => Blame::Nobody,
        };
        if blamed == Blame::Nobody {
            replica.trust();
            if let Some(began) = call.began {
                replica.stats.took(began.elapsed());
            }
            return;
        }
        replica.stats.failures.fetch_add(1, Ordering::Relaxed);
        let Some(Fault::Errno(errno)) = fault else { return };
        if errno == Errno::TIMEDOUT {
            replica.stats.timeouts.fetch_add(1, Ordering::Relaxed);
        }
        let at_fault = blamed == Blame::Replica || replica.doubt();
        if at_fault && replica.is_current(opened.number) && self.board.failed(call.replica, Instant::now()) {
            tracing::warn!("replica {} is left alone: {errno}", replica.name);
        }
    }

    /// A read is not timed: it takes as long as it is large.
    pub(crate) fn begin_read(&self, replica: usize) -> Call {
        Call { began: None, ..self.begin(replica, false) }
    }

    /// Is nothing to be expected of that replica, so that it is not even asked?
    pub(crate) fn is_hopeless(&self, replica: usize) -> bool {
        let up = self.board.up();
        up & only(replica) == 0 && (up != 0 || self.board.suspects() & only(replica) == 0)
    }

    /// Any of a set.
    pub(crate) fn any_of(&self, set: Set) -> Option<usize> {
        self.any.choose(set, 0, &self.replicas)
    }

    /// Is there a replica that may hang, so that open files will have to move sooner or later?
    pub(crate) fn may_move(&self) -> bool {
        self.replicas.iter().any(|replica| replica.opened().is_none_or(|opened| opened.pool.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(100);

    fn ending_in(left: Duration) -> Deadline {
        Deadline { timeout: TIMEOUT, at: Some(Instant::now() + left) }
    }

    fn near(share: Duration, seconds: u64) -> bool {
        share <= Duration::from_secs(seconds) && share + Duration::from_secs(5) > Duration::from_secs(seconds)
    }

    #[test]
    fn a_replica_gets_half_of_the_time_left_and_the_last_one_all_of_it() {
        assert!(near(ending_in(TIMEOUT).share(false), 50));
        assert!(near(ending_in(TIMEOUT).share(true), 100));
        assert!(near(ending_in(TIMEOUT / 2).share(true), 50));
    }

    #[test]
    fn a_replica_that_comes_back_just_before_the_deadline_has_time_to_answer() {
        for left in [Duration::ZERO, TIMEOUT / 100, TIMEOUT / 5] {
            assert_eq!(ending_in(left).share(true), TIMEOUT / 4);
            assert_eq!(ending_in(left).share(false), TIMEOUT / 4);
        }
    }

    #[test]
    fn a_replicas_thread_knows_on_whose_account_it_works() {
        let user = Cx::new(7, 8, 9, 0o22, true, &NEVER);
        for cx in [user, user.as_server(0, 0), user.as_server(0, 0).held_for_caller(), Cx::internal(1, 1)] {
            let said = |cx: &Cx<'_>| (cx.uid, cx.gid, cx.pid, cx.caller(), cx.is_internal());
            assert_eq!(Caller::of(&cx).run(said).take(&cx), said(&cx));
        }
    }
}
