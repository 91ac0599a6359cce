//! FUSE over io_uring, the alternative to reading requests from /dev/fuse. There is one queue per
//! possible CPU, each with its own ring and a thread pinned to that CPU.
//!
//! The kernel puts a request into the queue of the caller's CPU, never into another. A queue has
//! several entries, each with a buffer. An entry belongs either to the kernel, which can put a
//! request into it, or to the server, which processes that request. One system call returns all
//! finished entries to the kernel and waits for the next request.
//!
//! The kernel copies a request into an entry's buffer in the context of the thread that last
//! submitted the entry. Therefore only the queue's thread, which lives as long as the mount,
//! submits entries. For a slow request, it passes the entry to a worker thread. The worker stores
//! the reply in the entry and passes it back. A queue that runs short of entries adds new ones, so
//! slow requests never block the others.

mod cpu_migration;
mod entry;
mod queue;
pub(crate) mod sched_idle;
mod sqe;
mod stall_recovery;
mod starvation;
mod uring;

use crate::core::Core;
use crate::mount_user::Spawner;
use crate::workers::Workers;
use crate::{Errno, Session};
use core::time::Duration;
use cpu_migration::CpuMigration;
use queue::{Offloaded, Queue};
use sched_idle::SchedIdle;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The queue threads of a session. They serve requests once [`Self::start`] is called.
pub(crate) struct Rings {
    queues: Vec<QueueThread>,
    workers: Arc<Workers<Offloaded>>,
}

struct QueueThread {
    start: SyncSender<Arc<Core>>,
    thread: JoinHandle<()>,
}

/// Parameters shared by all queues of a session.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) device: Arc<OwnedFd>,
    /// Initial number of entries of a queue.
    pub(crate) depth: usize,
    /// Size of each entry's buffer, in bytes.
    pub(crate) payload: usize,
    /// Maximum number of worker threads.
    pub(crate) workers: usize,
    /// Starts the threads that use the mount.
    pub(crate) spawner: Spawner,
}

impl Rings {
    /// Allocates threads, rings and buffers: everything that can fail. The caller can still use
    /// /dev/fuse instead.
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

    /// Starts serving, after the reply to INIT.
    pub(crate) fn start(&self, core: &Arc<Core>) {
        for queue in &self.queues {
            // A thread that has already ended has reported the reason.
            let _gone = queue.start.send(core.clone());
        }
    }

    /// Waits for the threads to end, after the connection was closed. Returns false if handlers
    /// still run after `timeout`.
    pub(crate) fn join(self, timeout: Duration) -> bool {
        for queue in self.queues {
            drop(queue.start);
            let _panicked = queue.thread.join();
        }
        self.workers.close(timeout)
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
    // Read the affinity before pinning: the thread still has that of the process.
    let sched_idle = SchedIdle::new();
    let cpu_migration = rustix::thread::sched_getaffinity(None).ok().and_then(|all| CpuMigration::new(cpu, &all));
    pin(cpu);
    let queue = Queue::new(cpu, session, plan, workers, (sched_idle, cpu_migration));
    let (queue, result) = match queue {
        Ok(queue) => (Some(queue), Ok(())),
        Err(error) => (None, Err(error)),
    };
    if report.send(result).is_err() {
        return;
    }
    // `recv` fails if the session falls back to /dev/fuse: it drops the sender.
    if let (Some(queue), Ok(core)) = (queue, started.recv()) {
        queue.run(&core);
    }
}

/// Pins the calling thread to `cpu`. A failure is only logged: pinning to an offline CPU fails, but
/// the kernel requires a queue for it.
fn pin(cpu: u16) {
    if usize::from(cpu) < rustix::thread::CpuSet::MAX_CPU {
        let mut set = rustix::thread::CpuSet::new();
        set.set(usize::from(cpu));
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::debug!(cpu, %error, "cannot pin a queue thread");
        }
    }
}

/// Returns the number of possible CPUs, which is the number of queues that the kernel expects.
pub(crate) fn possible_cpus() -> u16 {
    let list = fs::read("/sys/devices/system/cpu/possible").unwrap_or_default();
    let online = || std::thread::available_parallelism().map_or(1, usize::from);
    let count = parse_cpu_list(&list).unwrap_or_else(online);
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// Returns the number of CPUs in a list like `0-3,8-11`.
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
    fn cpu_lists_are_parsed() {
        assert_eq!(parse_cpu_list(b"0\n"), Some(1));
        assert_eq!(parse_cpu_list(b"0-3\n"), Some(4));
        assert_eq!(parse_cpu_list(b"0-3,8,10-11\n"), Some(7));
        assert_eq!(parse_cpu_list(b""), None);
        assert_eq!(parse_cpu_list(b"3-1"), None);
        assert!(possible_cpus() >= 1);
    }
}
