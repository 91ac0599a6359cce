//! Waking a queue whose requests the kernel has forgotten about.
//!
//! Requests that come while all entries of a queue are held by workers wait in the kernel until an entry is *committed*. A
//! newly registered entry does not fetch them, and new requests overtake them. So a queue that was exhausted, and has
//! nothing to commit, makes the kernel send it something: the answer to that fetches the next of those that wait.

use crate::abi::InHeader;
use crate::sys::{self, Scheduling};
use crate::{Errno, Opcode, Session};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a queue needs for its kicks.
pub(super) struct Kicker {
    session: Arc<Session>,
    cpu: u16,
    /// A node that was a regular file when it was last seen; 0: none was.
    file: AtomicU64,
    /// Threads on their way.
    callers: Arc<Mutex<Callers>>,
    /// How threads of this program are scheduled, whatever the queue's thread may be doing when it makes one.
    scheduling: Scheduling,
}

/// How many threads may be on their way: each can be overtaken by a program's request and has to wait with the others.
const MAX_CALLERS: usize = 128;

#[derive(Default)]
struct Callers {
    count: usize,
    ids: Vec<u32>,
}

impl Kicker {
    pub(super) fn new(session: Arc<Session>, cpu: u16) -> Self {
        Self { session, cpu, file: AtomicU64::new(0), callers: Arc::default(), scheduling: sys::scheduling() }
    }

    /// Remembers the request's node if only regular files have such requests.
    pub(super) fn saw(&self, opcode: Opcode, node: u64) {
        if matches!(opcode, Opcode::Read | Opcode::Write | Opcode::Fallocate | Opcode::CopyFileRange64 | Opcode::Lseek)
        {
            self.file.store(node, Ordering::Relaxed);
        }
    }

    /// Has a request sent to this queue, which has a free entry for it. To be called by the queue's own thread.
    pub(super) fn kick(&self) {
        let file = self.file.load(Ordering::Relaxed);
        // An empty answer about a file's cached data goes to the queue of the CPU that asks for it. The kernel must know the
        // file; where it does not, any system call on the mount will do, made on that CPU by somebody else.
        let told = if file == 0 { Err(Errno::NOENT) } else { self.session.notifier().kick(file) };
        if told.is_err() {
            self.call();
        }
    }

    fn call(&self) {
        let mut callers = lock(&self.callers);
        if callers.count >= MAX_CALLERS {
            return;
        }
        callers.count += 1;
        drop(callers);
        let (session, cpu, callers) = (self.session.clone(), self.cpu, self.callers.clone());
        let scheduling = self.scheduling;
        let call = move || {
            sys::block_signals();
            sys::schedule_as(scheduling);
            super::pin(cpu);
            let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            lock(&callers).ids.push(id);
            // What it answers does not matter: see `is_ours`.
            let _answered = rustix::fs::statfs(session.mountpoint());
            let mut callers = lock(&callers);
            callers.ids.retain(|&other| other != id);
            callers.count -= 1;
        };
        if let Err(error) = std::thread::Builder::new().name(format!("fuse-kick-{cpu}")).spawn(call) {
            tracing::warn!(cpu, %error, "a queue stands still until a slow request ends");
            lock(&self.callers).count -= 1;
        }
    }

    /// Is this a request of a thread of ours, made only so that the queue has something to commit? No handler is to see it:
    /// it could be slow as well.
    pub(super) fn is_ours(&self, request: &InHeader) -> bool {
        request.opcode == Opcode::Statfs as u32 && lock(&self.callers).ids.contains(&request.pid)
    }
}

fn lock(callers: &Mutex<Callers>) -> MutexGuard<'_, Callers> {
    callers.lock().unwrap_or_else(PoisonError::into_inner)
}
