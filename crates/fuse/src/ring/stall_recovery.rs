//! Recovers a queue whose pending requests the kernel does not deliver.
//!
//! Requests that arrive while workers hold all entries of a queue wait in the kernel until an entry
//! is *committed*. A newly registered entry does not fetch them, and new requests overtake them. A
//! queue that ran out of entries and has nothing to commit therefore makes the kernel send it a
//! request: committing the reply fetches the next pending one.

use crate::abi::InHeader;
use crate::mount_user::Spawner;
use crate::{Errno, Opcode, Session, sys};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Per-queue state for provoking requests.
pub(super) struct StallRecovery {
    session: Arc<Session>,
    cpu: u16,
    /// Node id of the regular file seen last, 0 if none.
    file: AtomicU64,
    /// Threads whose system call is in progress.
    callers: Arc<Mutex<Callers>>,
    /// Starts them: with the scheduling class of the process, not of the queue, and without files.
    spawner: Spawner,
}

/// Maximum number of such threads: a program's request can overtake each one, which then has to
/// wait with the others.
const MAX_CALLERS: usize = 128;

#[derive(Default)]
struct Callers {
    count: usize,
    ids: Vec<u32>,
}

impl StallRecovery {
    pub(super) fn new(session: Arc<Session>, cpu: u16, spawner: Spawner) -> Self {
        Self { session, cpu, file: AtomicU64::new(0), callers: Arc::default(), spawner }
    }

    /// Remembers the request's node if only regular files receive this opcode.
    pub(super) fn record_request(&self, opcode: Opcode, node: u64) {
        if matches!(opcode, Opcode::Read | Opcode::Write | Opcode::Fallocate | Opcode::CopyFileRange64 | Opcode::Lseek)
        {
            self.file.store(node, Ordering::Relaxed);
        }
    }

    /// Makes the kernel send a request to this queue, which has a free entry for it. Called by the
    /// queue's own thread.
    pub(super) fn kick(&self) {
        let file = self.file.load(Ordering::Relaxed);
        // An empty retrieve of a file's cached data is replied to on the queue of the calling CPU.
        // The kernel must know the file. If it does not, another thread on that CPU asks for the
        // state of the file system.
        let sent = if file == 0 { Err(Errno::NOENT) } else { self.session.notifier().kick(file) };
        if sent.is_err() {
            self.spawn_caller();
        }
    }

    fn spawn_caller(&self) {
        let mut callers = lock(&self.callers);
        if callers.count >= MAX_CALLERS {
            return;
        }
        callers.count += 1;
        drop(callers);
        let (cpu, callers) = (self.cpu, self.callers.clone());
        let (mountpoint, number) = (self.session.mountpoint().to_owned(), self.session.file_system_number());
        let call = move || {
            super::pin(cpu);
            let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            lock(&callers).ids.push(id);
            // By the number of the file system: while a call uses a path to the mount, unmounting
            // fails with EBUSY. The result does not matter: see `is_own_request`.
            let state = number.map_or(Err(Errno::NOSYS), sys::state_of);
            if matches!(state, Err(Errno::NOSYS | Errno::PERM)) {
                let _ignored = rustix::fs::statfs(&mountpoint);
            }
            let mut callers = lock(&callers);
            callers.ids.retain(|&other| other != id);
            callers.count -= 1;
        };
        // SAFETY: `call` has no descriptor.
        if let Err(error) = unsafe { self.spawner.spawn(format!("fuse-kick-{cpu}"), call) } {
            tracing::warn!(cpu, %error, "a queue stalls until a slow request ends: cannot start a thread");
            lock(&self.callers).count -= 1;
        }
    }

    /// Whether the request comes from one of these threads, which only serve to give the queue
    /// something to commit. It bypasses the handlers, which could be slow as well.
    pub(super) fn is_own_request(&self, request: &InHeader) -> bool {
        request.opcode == Opcode::Statfs as u32 && lock(&self.callers).ids.contains(&request.pid)
    }
}

fn lock(callers: &Mutex<Callers>) -> MutexGuard<'_, Callers> {
    callers.lock().unwrap_or_else(PoisonError::into_inner)
}
