//! The transport over io_uring: one queue per CPU that can exist, each with a thread pinned to that CPU and a ring of its
//! own.
//!
//! The kernel puts a request into the queue of the CPU that the caller runs on, and never into another. A queue has several
//! entries, each with a buffer; an entry is either with the kernel, or with us and holds a request. One system call hands
//! all finished entries back and waits for the next.
//!
//! The kernel copies requests in on behalf of the thread that submitted an entry last, so an entry is only ever submitted
//! by its queue's own thread, which lives as long as the mount. A request that may take long is carried to a worker together
//! with its entry, and comes back with the reply in it; the queue gets a new entry in its place where too few are left, so
//! that slow requests never keep the others waiting.

mod away;
mod entry;
pub(crate) mod giveway;
mod kick;
mod queue;
mod sqe;

use crate::core::Core;
use crate::workers::Workers;
use crate::{Errno, Session};
use away::Away;
use core::time::Duration;
use giveway::GiveWay;
use queue::{Offloaded, Queue};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Rings whose threads wait for the word to start.
pub(crate) struct Rings {
    queues: Vec<QueueThread>,
    workers: Arc<Workers<Offloaded>>,
}

struct QueueThread {
    start: SyncSender<Arc<Core>>,
    thread: JoinHandle<()>,
}

/// What the queues of a session have in common.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) device: Arc<OwnedFd>,
    /// Entries that a queue starts with.
    pub(crate) depth: usize,
    /// Bytes of each entry's buffer.
    pub(crate) payload: usize,
    /// How many workers there may be.
    pub(crate) workers: usize,
}

impl Rings {
    /// Makes everything that can fail: threads, rings, buffers.
    pub(crate) fn prepare(session: &Arc<Session>, plan: &Plan) -> io::Result<Self> {
        let cpus = rustix::thread::sched_getaffinity(None).ok();
        let workers = Workers::new(plan.workers, cpus);
        let mut queues = Vec::new();
        let mut reports = Vec::new();
        for cpu in 0..possible_cpus() {
            let (start, started) = sync_channel(1);
            let (report, reported) = sync_channel(1);
            let (session, plan, workers) = (session.clone(), plan.clone(), workers.clone());
            let thread = std::thread::Builder::new()
                .name(format!("fuse-ring-{cpu}"))
                .spawn(move || queue_thread(cpu, &session, &plan, workers, &report, &started))?;
            queues.push(QueueThread { start, thread });
            reports.push(reported);
        }
        for report in reports {
            report.recv().map_err(|_| Errno::IO)??;
        }
        Ok(Self { queues, workers })
    }

    /// INIT is answered: the queues begin to serve.
    pub(crate) fn start(&self, core: &Arc<Core>) {
        for queue in &self.queues {
            // A thread that is not there any more has reported why.
            let _gone = queue.start.send(core.clone());
        }
    }

    /// The connection is gone: waits for the threads to end. False: some handlers still run after `patience`.
    pub(crate) fn join(self, patience: Duration) -> bool {
        for queue in self.queues {
            drop(queue.start);
            let _panicked = queue.thread.join();
        }
        self.workers.close(patience)
    }
}

fn queue_thread(
    cpu: u16,
    session: &Arc<Session>,
    plan: &Plan,
    workers: Arc<Workers<Offloaded>>,
    report: &SyncSender<io::Result<()>>,
    started: &Receiver<Arc<Core>>,
) {
    crate::sys::block_signals();
    // Of all CPUs, not of the one that this thread keeps to.
    let give_way = GiveWay::new();
    let away = rustix::thread::sched_getaffinity(None).ok().and_then(|all| Away::new(cpu, &all));
    pin(cpu);
    let queue = Queue::new(cpu, session, plan, workers, (give_way, away));
    let (queue, result) = match queue {
        Ok(queue) => (Some(queue), Ok(())),
        Err(error) => (None, Err(error)),
    };
    if report.send(result).is_err() {
        return;
    }
    // No start means that the ring is not used after all.
    if let (Some(queue), Ok(core)) = (queue, started.recv()) {
        queue.run(&core);
    }
}

/// Keeps the calling thread on `cpu`. A CPU that exists but is offline can't be pinned to; its queue still needs a thread.
fn pin(cpu: u16) {
    if usize::from(cpu) < rustix::thread::CpuSet::MAX_CPU {
        let mut set = rustix::thread::CpuSet::new();
        set.set(usize::from(cpu));
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::debug!(cpu, %error, "a queue's thread is not pinned");
        }
    }
}

/// How many CPUs can ever exist in this system: the number of queues that the kernel expects.
pub(crate) fn possible_cpus() -> u16 {
    let list = fs::read("/sys/devices/system/cpu/possible").unwrap_or_default();
    let online = || std::thread::available_parallelism().map_or(1, usize::from);
    let count = parse_cpu_list(&list).unwrap_or_else(online);
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// The number of CPUs in a list like `0-3,8-11`.
fn parse_cpu_list(list: &[u8]) -> Option<usize> {
    let list = std::str::from_utf8(list).ok()?;
    let mut count = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpu_list(b"0\n"), Some(1));
        assert_eq!(parse_cpu_list(b"0-3\n"), Some(4));
        assert_eq!(parse_cpu_list(b"0-3,8,10-11\n"), Some(7));
        assert_eq!(parse_cpu_list(b""), None);
        assert_eq!(parse_cpu_list(b"3-1"), None);
        assert!(possible_cpus() >= 1);
    }
}
