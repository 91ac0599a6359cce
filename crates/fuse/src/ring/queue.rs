use super::away::Away;
use super::entry::Entry;
use super::giveway::GiveWay;
use super::kick::Kicker;
use super::{Plan, sqe};
use crate::core::Core;
use crate::workers::{Job, Workers};
use crate::{Errno, Session};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use io_uring::squeue::Entry128;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// How many entries a queue may have: with all of them held by slow requests it stands still.
const MAX_ENTRIES: usize = 511;
/// How long a queue keeps the memory of large transfers after its last request.
const KEEP_MEMORY: Timespec = Timespec::new().sec(1);
/// When to try again what came too early.
const REGISTER_AGAIN: Duration = Duration::from_micros(50);
/// The completion of the eventfd's watch, as opposed to entries by their index.
const WATCH: u64 = u64::MAX;

/// One CPU's queue, on its own thread.
pub(super) struct Queue {
    cpu: u16,
    ring: IoUring<Entry128, cqueue::Entry>,
    /// By index; `None`: held by a worker, or lost.
    entries: Vec<Option<Box<Entry>>>,
    /// Entries that the kernel has.
    submitted: usize,
    /// Entries that workers have.
    held: usize,
    /// Requests may be waiting in the kernel for an entry, because at some moment all were held.
    starved: bool,
    /// Counts the turns of the loop: entries remember in which they were committed.
    round: u64,
    /// Entries committed in this round.
    committed: usize,
    /// The connection is gone.
    down: bool,
    /// Some entry holds more memory than an idle one should.
    large: bool,
    session: Arc<Session>,
    plan: Plan,
    workers: Arc<Workers<Offloaded>>,
    home: Arc<Home>,
    kicker: Kicker,
    /// `None`: the thread is scheduled as it was.
    give_way: Option<GiveWay>,
    /// `None`: the thread stays where it is.
    away: Option<Away>,
}

/// Where workers bring entries back to.
struct Home {
    #[expect(clippy::vec_box, reason = "entries stay where they are while they change hands")]
    returned: Mutex<Vec<Box<Entry>>>,
    /// The queue's thread was woken and has not looked yet.
    woken: AtomicBool,
    bell: OwnedFd,
}

/// A request on its way to a worker.
pub(super) struct Offloaded {
    entry: Box<Entry>,
    home: Arc<Home>,
    core: Arc<Core>,
}

impl Job for Offloaded {
    fn run(mut self) {
        self.entry.serve(&self.core, true);
        self.home.returned.lock().unwrap_or_else(PoisonError::into_inner).push(self.entry);
        if !self.home.woken.swap(true, Ordering::SeqCst) {
            // Can only fail if the count overflows, and then the queue is woken anyway.
            let _full = rustix::io::write(&self.home.bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Queue {
    /// A ring with its first entries, not yet known to the kernel's FUSE.
    pub(super) fn new(
        cpu: u16,
        session: &Arc<Session>,
        plan: &Plan,
        workers: Arc<Workers<Offloaded>>,
        (give_way, away): (Option<GiveWay>, Option<Away>),
    ) -> io::Result<Self> {
        // One thread submits, and the kernel's part of the work is done when that thread asks for it and at no other time:
        // `shrink` relies on this.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(u32::try_from(MAX_ENTRIES + 1).unwrap_or(512))?;
        ring.submitter().register_files(&[plan.device.as_raw_fd()])?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let home = Arc::new(Home { returned: Mutex::new(Vec::new()), woken: AtomicBool::new(false), bell });
        let mut queue = Self {
            cpu,
            ring,
            entries: Vec::new(),
            submitted: 0,
            held: 0,
            starved: false,
            round: 1,
            committed: 0,
            down: false,
            large: false,
            session: session.clone(),
            plan: plan.clone(),
            workers,
            home,
            kicker: Kicker::new(session.clone(), cpu),
            give_way,
            away,
        };
        for _ in 0..plan.depth.clamp(1, MAX_ENTRIES) {
            queue.add_entry()?;
        }
        Ok(queue)
    }

    fn add_entry(&mut self) -> Result<usize, Errno> {
        let index = self.entries.len();
        let entry = Entry::new(index, self.plan.payload, self.session.inflight.add_slot())?;
        self.entries.push(Some(entry));
        Ok(index)
    }

    /// Serves until the connection is gone.
    pub(super) fn run(mut self, core: &Arc<Core>) {
        self.submit(&sqe::watch(self.home.bell.as_raw_fd(), WATCH));
        for index in 0..self.entries.len() {
            self.register(index);
        }
        while self.submitted > 0 || (self.held > 0 && !self.down) {
            match self.wait() {
                // The time is also up where something was submitted and then nothing came.
                Ok(()) if self.large && self.ring.completion().is_empty() => self.shrink(),
                Ok(()) => self.complete_all(core),
                Err(Errno::TIME) => self.shrink(),
                Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                Err(error) => {
                    tracing::error!(cpu = self.cpu, %error, "io_uring_enter failed; the queue stops");
                    break;
                }
            }
        }
        for entry in self.entries.iter().flatten() {
            self.session.inflight.remove_slot(entry.slot());
        }
    }

    /// Submits what is to be submitted and waits for a completion: the one system call per round.
    fn wait(&self) -> Result<(), Errno> {
        let submitter = self.ring.submitter();
        let result = if self.large {
            submitter.submit_with_args(1, &SubmitArgs::new().timespec(&KEEP_MEMORY))
        } else {
            submitter.submit_and_wait(1)
        };
        result.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn complete_all(&mut self, core: &Arc<Core>) {
        let committed = std::mem::take(&mut self.committed);
        let mut served = 0;
        let mut idle = self.submitted;
        // Nothing completes while we are here: the kernel does its part within our own call to it.
        while let Some(completion) = self.next_completion() {
            if completion.user_data() == WATCH {
                if !cqueue::more(completion.flags()) && !self.down {
                    self.submit(&sqe::watch(self.home.bell.as_raw_fd(), WATCH));
                }
                self.take_back();
            } else {
                let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
                let entry = self.entries.get(index).and_then(Option::as_ref);
                served += usize::from(entry.is_some_and(|entry| entry.committed_in == self.round));
                idle = idle.saturating_sub(1);
                self.complete(index, completion.result(), core);
            }
        }
        self.place();
        // An entry that was committed and got nothing is proof that nothing waits.
        self.starved = idle == 0 || (self.starved && served == committed);
        self.round += 1;
        if self.starved && self.committed == 0 && self.submitted > 0 && !self.down {
            self.kick();
        }
    }

    /// Sees to how and where the thread runs from here on.
    fn place(&mut self) {
        let beside = self.away.as_ref().is_some_and(Away::is_away);
        if self.give_way.as_mut().is_some_and(|give_way| !give_way.consider(beside)) {
            self.give_way = None;
        }
        let idle = self.give_way.as_ref().is_some_and(GiveWay::sees_an_idle_cpu);
        if self.away.as_mut().is_some_and(|away| !away.settle(idle)) {
            self.away = None;
        }
    }

    /// Makes the kernel send something: see [`Kicker`].
    fn kick(&self) {
        // The new entries must be with the kernel by then.
        if let Err(error) = self.ring.submit() {
            tracing::debug!(cpu = self.cpu, %error, "could not submit before a kick");
        }
        self.kicker.kick();
    }

    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// An entry is ours again: with a request, or because something went wrong.
    fn complete(&mut self, index: usize, result: i32, core: &Arc<Core>) {
        self.submitted -= 1;
        if result < 0 {
            return self.failed(index, Errno::from_raw_os_error(-result));
        }
        let Some(Some(entry)) = self.entries.get_mut(index) else { return };
        entry.registering = false;
        let opcode = entry.accept(&self.session.inflight);
        if let Some((counters, opcode)) = self.session.counters.ring.get(usize::from(self.cpu)).zip(opcode) {
            counters.count(opcode);
        }
        if let Some(opcode) = opcode {
            self.kicker.saw(opcode, entry.request().nodeid);
        }
        if self.kicker.is_ours(entry.request()) {
            entry.refuse();
            return self.commit(index);
        }
        let slow = self.session.options.may_hang || opcode.is_some_and(crate::Opcode::usually_blocks);
        let slow = slow && !entry.is_kick();
        if !slow && entry.serve(core, false) {
            let len = entry.replied();
            if let Some(away) = &mut self.away {
                away.answered(opcode == Some(crate::Opcode::Read), len);
            }
            self.commit(index);
        } else {
            self.offload(index, core);
        }
    }

    /// The kernel did not take the entry.
    fn failed(&mut self, index: usize, error: Errno) {
        let Some(Some(entry)) = self.entries.get_mut(index) else { return };
        match error {
            Errno::NOTCONN | Errno::CANCELED => self.down = true,
            // INIT is answered, but the thread that mounts has not read the answer yet (where mounting waits for INIT).
            Errno::AGAIN if entry.registering => {
                std::thread::sleep(REGISTER_AGAIN);
                return self.register(index);
            }
            _ if entry.registering => {
                tracing::warn!(cpu = self.cpu, %error, "the kernel does not take a ring entry; the device serves");
                self.session.ring_failed();
            }
            // The reply was not wanted any more, or not as it was. The kernel has let go of the entry.
            _ => {
                tracing::debug!(cpu = self.cpu, %error, "a reply was refused");
                return self.register(index);
            }
        }
        self.lose(index);
    }

    fn lose(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index).and_then(Option::take) {
            self.session.inflight.remove_slot(entry.slot());
        }
    }

    /// Gives the entry to a worker, and the queue a new one if few are left.
    fn offload(&mut self, index: usize, core: &Arc<Core>) {
        let Some(entry) = self.entries.get_mut(index).and_then(Option::take) else { return };
        self.held += 1;
        self.session.counters.offloads.fetch_add(1, Ordering::Relaxed);
        self.workers.submit(Offloaded { entry, home: self.home.clone(), core: core.clone() });
        // Neither with a worker nor lost.
        let free = self.entries.iter().flatten().count();
        if free < self.plan.depth && self.entries.len() < MAX_ENTRIES {
            match self.add_entry() {
                Ok(index) => self.register(index),
                Err(error) => tracing::warn!(cpu = self.cpu, %error, "no memory for another ring entry"),
            }
        }
    }

    /// Commits what workers have finished.
    fn take_back(&mut self) {
        self.home.woken.store(false, Ordering::SeqCst);
        let returned = std::mem::take(&mut *self.home.returned.lock().unwrap_or_else(PoisonError::into_inner));
        for entry in returned {
            self.held -= 1;
            let index = entry.index;
            if let Some(place) = self.entries.get_mut(index) {
                *place = Some(entry);
                if self.down { self.lose(index) } else { self.commit(index) }
            }
        }
    }

    fn register(&mut self, index: usize) {
        let Some(Some(entry)) = self.entries.get_mut(index) else { return };
        entry.registering = true;
        let sqe = sqe::register(self.cpu, entry.iovecs(), index as u64);
        if self.submit(&sqe) {
            self.submitted += 1;
        }
    }

    fn commit(&mut self, index: usize) {
        let Some(Some(entry)) = self.entries.get_mut(index) else { return };
        self.large |= entry.is_large();
        entry.committed_in = self.round + 1;
        let sqe = sqe::commit(self.cpu, entry.commit_id(), index as u64);
        if self.submit(&sqe) {
            self.submitted += 1;
            self.committed += 1;
        }
    }

    /// Puts `sqe` where the next [`Queue::wait`] finds it. There is room for all entries at once.
    fn submit(&mut self, sqe: &Entry128) -> bool {
        // SAFETY: what the SQE points to (an entry's iovecs, header and payload) is owned by `self.entries` in a box, and is
        // not dropped before the entry's completion was seen or the ring was closed.
        let pushed = unsafe { self.ring.submission().push(sqe) };
        if pushed.is_err() {
            tracing::error!(cpu = self.cpu, "the submission queue is full");
        }
        pushed.is_ok()
    }

    /// Nothing happened for a while: gives the memory of large transfers back.
    ///
    /// No request can be in the buffers now: the kernel fills them only within our own call to it, and what it filled then
    /// has completed, of which there is none left.
    fn shrink(&mut self) {
        if self.ring.completion().is_empty() {
            for entry in self.entries.iter_mut().flatten() {
                entry.shrink();
            }
            self.large = false;
        }
    }
}
