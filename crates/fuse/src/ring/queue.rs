//! The queue of one CPU, and the thread that serves it.

use super::cpu_migration::CpuMigration;
use super::entry::Entry;
use super::sched_idle::SchedIdle;
use super::stall_recovery::StallRecovery;
use super::starvation::{Round, Starvation, Submitted};
use super::uring::Uring;
use super::{Plan, sqe};
use crate::core::Core;
use crate::workers::{Job, Workers};
use crate::{Errno, Session};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use io_uring::squeue::Entry128;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::Timespec;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of entries per queue. With slow requests in all of them the queue stalls.
const MAX_ENTRIES: usize = RING_SIZE as usize - 1;
/// Size of the submission queue: room for all entries and the eventfd.
const RING_SIZE: u32 = 512;
/// How long an idle queue keeps the memory of large transfers.
const IDLE_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Delay before a registration is retried that came too early.
const REGISTER_RETRY_DELAY: Duration = Duration::from_micros(50);
/// User data of the eventfd poll; other completions carry an entry's index.
const WAKEUP: u64 = u64::MAX;

/// Queue of one CPU, run by its own thread.
pub(super) struct Queue {
    cpu: u16,
    ring: Uring,
    /// By index. `None`: held by a worker, or lost.
    entries: Vec<Option<Box<Entry>>>,
    /// Number of entries owned by the kernel.
    submitted: usize,
    /// Number of entries held by workers.
    held: usize,
    starvation: Starvation,
    /// Number of the current loop iteration; entries record the one in which they were submitted.
    round: u64,
    /// Number of entries committed for the next round.
    committed: usize,
    /// Number of entries registered for the next round.
    registered: usize,
    /// The connection is closed.
    down: bool,
    /// Some entry holds more memory than an idle one should.
    large: bool,
    session: Arc<Session>,
    plan: Plan,
    workers: Arc<Workers<Offloaded>>,
    returns: Arc<Returns>,
    stall_recovery: StallRecovery,
    /// `None`: the scheduling class is left alone.
    sched_idle: Option<SchedIdle>,
    /// `None`: the thread keeps its CPU.
    cpu_migration: Option<CpuMigration>,
}

/// Where workers return finished entries.
struct Returns {
    #[expect(clippy::vec_box, reason = "entries are boxed so that their addresses never change")]
    returned: Mutex<Vec<Box<Entry>>>,
    /// The queue thread was woken and has not looked yet.
    woken: AtomicBool,
    eventfd: OwnedFd,
}

/// A request handed to a worker.
pub(super) struct Offloaded {
    entry: Box<Entry>,
    returns: Arc<Returns>,
    core: Arc<Core>,
}

impl Job for Offloaded {
    fn run(mut self) {
        self.entry.serve(&self.core, true);
        self.returns.returned.lock().unwrap_or_else(PoisonError::into_inner).push(self.entry);
        if !self.returns.woken.swap(true, Ordering::SeqCst) {
            // Fails only if the counter overflows; the queue thread is woken in that case too.
            let _full = rustix::io::write(&self.returns.eventfd, &1_u64.to_ne_bytes());
        }
    }
}

impl Queue {
    /// Returns a ring with its initial entries, not yet registered with the kernel.
    pub(super) fn new(
        cpu: u16,
        session: &Arc<Session>,
        plan: &Plan,
        workers: Arc<Workers<Offloaded>>,
        (sched_idle, cpu_migration): (Option<SchedIdle>, Option<CpuMigration>),
    ) -> io::Result<Self> {
        let ring = Uring::new(RING_SIZE, plan.device.as_fd())?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let returns = Arc::new(Returns { returned: Mutex::new(Vec::new()), woken: AtomicBool::new(false), eventfd });
        let mut queue = Self {
            cpu,
            ring,
            entries: Vec::new(),
            submitted: 0,
            held: 0,
            starvation: Starvation::default(),
            round: 0,
            committed: 0,
            registered: 0,
            down: false,
            large: false,
            session: session.clone(),
            plan: plan.clone(),
            workers,
            returns,
            stall_recovery: StallRecovery::new(session.clone(), cpu, plan.spawner.clone()),
            sched_idle,
            cpu_migration,
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

    /// Serves until the connection is closed.
    pub(super) fn run(mut self, core: &Arc<Core>) {
        self.submit(&sqe::poll_eventfd(self.returns.eventfd.as_raw_fd(), WAKEUP));
        for index in 0..self.entries.len() {
            self.register(index);
        }
        while self.submitted > 0 || (self.held > 0 && !self.down) {
            match self.wait() {
                // The timeout also ends a call that submitted something and then received nothing.
                Ok(()) if self.large && self.ring.is_empty() => self.shrink(),
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

    /// Submits all queued SQEs and waits for a completion: the one system call per round.
    fn wait(&self) -> Result<(), Errno> {
        self.ring.submit_and_wait(self.large.then_some(&IDLE_TIMEOUT))
    }

    fn complete_all(&mut self, core: &Arc<Core>) {
        self.round += 1;
        let (committed, registered) = (std::mem::take(&mut self.committed), std::mem::take(&mut self.registered));
        let mut round = Round::new(self.submitted, committed, registered);
        // Nothing completes during this loop: the kernel does its part only inside this thread's
        // system calls.
        while let Some(completion) = self.ring.next_completion() {
            if completion.user_data == WAKEUP {
                round.count(None);
                if !completion.has_more() && !self.down {
                    self.submit(&sqe::poll_eventfd(self.returns.eventfd.as_raw_fd(), WAKEUP));
                }
                self.commit_returned();
            } else {
                let index = usize::try_from(completion.user_data).unwrap_or(usize::MAX);
                round.count(self.submitted_as(index));
                self.complete(index, completion.result, core);
            }
        }
        self.place_thread();
        self.starvation.end_round(&round);
        if self.starvation.is_possible() && self.committed == 0 && self.submitted > 0 && !self.down {
            self.kick();
        }
    }

    fn submitted_as(&self, index: usize) -> Option<Submitted> {
        let entry = self.entries.get(index)?.as_ref()?;
        Some(match (entry.submitted_in == self.round, entry.registering) {
            (false, _) => Submitted::Before,
            (true, false) => Submitted::Committed,
            (true, true) => Submitted::Registered,
        })
    }

    /// Updates the thread's scheduling class and CPU.
    fn place_thread(&mut self) {
        let migrated = self.cpu_migration.as_ref().is_some_and(CpuMigration::is_migrated);
        if self.sched_idle.as_mut().is_some_and(|sched_idle| !sched_idle.update(migrated)) {
            self.sched_idle = None;
        }
        let idle = self.sched_idle.as_ref().is_some_and(SchedIdle::sees_idle_cpu);
        if self.cpu_migration.as_mut().is_some_and(|cpu_migration| !cpu_migration.apply(idle)) {
            self.cpu_migration = None;
        }
    }

    /// Makes the kernel send a request: see [`StallRecovery`].
    fn kick(&mut self) {
        // The request goes to the queue of the CPU on which it is sent.
        if self.cpu_migration.as_mut().is_some_and(|cpu_migration| !cpu_migration.return_home()) {
            self.cpu_migration = None;
        }
        // The new entries must be submitted first.
        if let Err(error) = self.ring.submit() {
            tracing::debug!(cpu = self.cpu, %error, "cannot submit before a kick");
        }
        self.stall_recovery.kick();
    }

    /// Handles a completion: the kernel returned an entry, with a request or an error.
    fn complete(&mut self, index: usize, result: i32, core: &Arc<Core>) {
        self.submitted -= 1;
        if result < 0 {
            return self.handle_error(index, Errno::from_raw_os_error(-result));
        }
        let Some(Some(entry)) = self.entries.get_mut(index) else { return };
        entry.registering = false;
        let opcode = entry.accept(&self.session.inflight);
        let is_own = self.stall_recovery.is_own_request(entry.request());
        // Kicks are no requests of programs.
        if !is_own
            && !entry.is_kick_reply()
            && let Some((counters, opcode)) = self.session.counters.ring.get(usize::from(self.cpu)).zip(opcode)
        {
            counters.count(opcode);
        }
        if let Some(opcode) = opcode {
            self.stall_recovery.record_request(opcode, entry.request().nodeid);
        }
        if is_own {
            entry.refuse();
            return self.commit(index);
        }
        let slow = self.session.options.may_hang || opcode.is_some_and(crate::Opcode::usually_blocks);
        let slow = slow && !entry.is_kick_reply();
        if !slow && entry.serve(core, false) {
            let len = entry.replied();
            if let Some(cpu_migration) = &mut self.cpu_migration {
                cpu_migration.record_reply(opcode == Some(crate::Opcode::Read), len);
            }
            self.commit(index);
        } else {
            self.offload(index, core);
        }
    }

    /// Handles an entry that completed with an error.
    fn handle_error(&mut self, index: usize, error: Errno) {
        let Some(Some(entry)) = self.entries.get_mut(index) else { return };
        match error {
            Errno::NOTCONN | Errno::CANCELED => self.down = true,
            // INIT is replied to, but the mounting thread has not processed the reply yet (with
            // synchronous INIT).
            Errno::AGAIN if entry.registering => {
                std::thread::sleep(REGISTER_RETRY_DELAY);
                return self.register(index);
            }
            _ if entry.registering => {
                tracing::warn!(cpu = self.cpu, %error, "the kernel refused a ring entry: requests use /dev/fuse");
                self.session.ring_failed();
            }
            // The kernel rejected the reply, or its request is gone. It has released the entry.
            _ => {
                tracing::debug!(cpu = self.cpu, %error, "a reply was refused");
                return self.register(index);
            }
        }
        self.drop_entry(index);
    }

    fn drop_entry(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index).and_then(Option::take) {
            self.session.inflight.remove_slot(entry.slot());
        }
    }

    /// Hands the entry to a worker, and adds a new entry if few are left.
    fn offload(&mut self, index: usize, core: &Arc<Core>) {
        let Some(entry) = self.entries.get_mut(index).and_then(Option::take) else { return };
        self.held += 1;
        self.session.counters.offloads.fetch_add(1, Ordering::Relaxed);
        self.workers.submit(Offloaded { entry, returns: self.returns.clone(), core: core.clone() });
        // Entries neither held by a worker nor lost.
        let free = self.entries.iter().flatten().count();
        if free < self.plan.depth && self.entries.len() < MAX_ENTRIES {
            match self.add_entry() {
                Ok(index) => self.register(index),
                Err(error) => tracing::warn!(cpu = self.cpu, %error, "cannot add a ring entry"),
            }
        }
    }

    /// Commits the entries that workers have finished.
    fn commit_returned(&mut self) {
        self.returns.woken.store(false, Ordering::SeqCst);
        let returned = std::mem::take(&mut *self.returns.returned.lock().unwrap_or_else(PoisonError::into_inner));
        for entry in returned {
            self.held -= 1;
            let index = entry.index;
            if let Some(place) = self.entries.get_mut(index) {
                *place = Some(entry);
                if self.down { self.drop_entry(index) } else { self.commit(index) }
            }
        }
    }

    fn register(&mut self, index: usize) {
        let Some(Some(entry)) = self.entries.get_mut(index) else { return };
        entry.registering = true;
        entry.submitted_in = self.round + 1;
        let sqe = sqe::register(self.cpu, entry.iovecs(), index as u64);
        if self.submit(&sqe) {
            self.submitted += 1;
            self.registered += 1;
        }
    }

    fn commit(&mut self, index: usize) {
        let Some(Some(entry)) = self.entries.get_mut(index) else { return };
        self.large |= entry.is_large();
        entry.submitted_in = self.round + 1;
        let sqe = sqe::commit(self.cpu, entry.commit_id(), index as u64);
        if self.submit(&sqe) {
            self.submitted += 1;
            self.committed += 1;
        }
    }

    /// Queues `sqe` for the next [`Queue::wait`]. The ring has room for all entries at once.
    fn submit(&mut self, sqe: &Entry128) -> bool {
        // SAFETY: everything that the SQE points to (an entry's iovecs, header and payload) lives
        // in a boxed entry owned by `self.entries`, and is not dropped before the entry's
        // completion was seen or the ring was closed.
        let pushed = unsafe { self.ring.push(sqe) };
        if !pushed {
            tracing::error!(cpu = self.cpu, "the submission queue is full");
        }
        pushed
    }

    /// Releases the memory of large transfers after an idle period.
    ///
    /// No buffer can hold a request now: the kernel fills buffers only inside this thread's own
    /// system calls, every filled buffer has a completion, and none is left.
    fn shrink(&mut self) {
        if self.ring.is_empty() {
            for entry in self.entries.iter_mut().flatten() {
                entry.shrink();
            }
            self.large = false;
        }
    }
}
