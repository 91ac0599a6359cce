use crate::host::WatchedLeader;
use crate::slot::Slot;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use core::time::Duration;
use cryptformat::Keys;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use vnode::{Errno, Result};

/// A session of a user: the unit that keys are given to (Wrapfs paper, section 4.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId {
    pub(crate) uid: u32,
    pub(crate) session: u32,
}

/// What a grant permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Everything.
    Open,
    /// Only the use of open files: the kernel still writes mapped pages back.
    Closing,
    /// Nothing.
    Ended,
}

/// The right to use a key: that of one session, or of everybody on the mount.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The session; `None` for the key of the whole mount.
    pub(crate) holder: Option<SessionId>,
    /// When the leader of the session started; `None` if it had exited already.
    pub(crate) leader: Option<u64>,
    /// The leader, if it was running when the key was given.
    pub(crate) watched: Option<Box<dyn WatchedLeader>>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) since: SystemTime,
    created: Instant,
    phase: AtomicU8,
    /// How long the key is kept without use, in milliseconds; 0 means no limit.
    idle: AtomicU64,
    /// Last use, in milliseconds after `created`.
    used: AtomicU64,
    /// The numbers of the files opened with this grant, and how often each is open.
    files: Mutex<HashMap<u64, usize>>,
}

/// An open file, and the grant that it was opened with.
#[derive(Debug)]
pub(crate) struct OpenedWith {
    grant: Arc<Grant>,
    file: u64,
}

impl Grant {
    /// Returns the grant of a whole mount.
    pub(crate) fn of_mount(slot: Arc<Slot>) -> Self {
        Self::new(None, None, None, slot)
    }

    /// Returns the grant of a session, whose leader started at that time.
    pub(crate) fn of_session(
        holder: SessionId,
        leader: Option<u64>,
        watched: Option<Box<dyn WatchedLeader>>,
        slot: Arc<Slot>,
    ) -> Self {
        Self::new(Some(holder), leader, watched, slot)
    }

    fn new(
        holder: Option<SessionId>,
        leader: Option<u64>,
        watched: Option<Box<dyn WatchedLeader>>,
        slot: Arc<Slot>,
    ) -> Self {
        Self {
            holder,
            leader,
            watched,
            slot,
            since: SystemTime::now(),
            created: Instant::now(),
            phase: AtomicU8::new(Phase::Open as u8),
            idle: AtomicU64::new(0),
            used: AtomicU64::new(0),
            files: Mutex::default(),
        }
    }

    /// Sets how long the key is kept without use; `None` means no limit.
    pub(crate) fn set_idle(&self, idle: Option<Duration>) {
        self.idle.store(idle.map_or(0, |idle| millis(idle).max(1)), Ordering::Relaxed);
    }

    /// Returns how long the key is kept without use.
    pub(crate) fn idle(&self) -> Option<Duration> {
        Some(self.idle.load(Ordering::Relaxed)).filter(|idle| *idle > 0).map(Duration::from_millis)
    }

    /// Returns how long the key has not been used.
    pub(crate) fn unused_for(&self) -> Duration {
        self.created.elapsed().saturating_sub(Duration::from_millis(self.used.load(Ordering::Relaxed)))
    }

    /// Whether the key has not been used for longer than it is kept.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle().is_some_and(|idle| self.unused_for() >= idle)
    }

    fn touch(&self) {
        // Without a limit, the time of use is of no interest.
        if self.idle.load(Ordering::Relaxed) > 0 {
            self.used.store(millis(self.created.elapsed()), Ordering::Relaxed);
        }
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    /// Uses the key for a name, an attribute or a new open file.
    ///
    /// # Errors
    /// `ENOKEY` once the grant is being withdrawn.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&Keys) -> Result<T>) -> Result<T> {
        if self.phase() != Phase::Open as u8 {
            return Err(Errno::NOKEY);
        }
        self.touch();
        self.slot.with(act)
    }

    /// Registers a file that is being opened.
    ///
    /// # Errors
    /// `ENOKEY` once the grant is being withdrawn.
    pub(crate) fn open(self: &Arc<Self>, file: u64) -> Result<OpenedWith> {
        if self.holder.is_none() {
            // Never withdrawn.
            return Ok(OpenedWith { grant: Arc::clone(self), file });
        }
        let mut files = self.files.lock();
        // Checked under the lock under which `close` changes the phase.
        if self.phase() != Phase::Open as u8 {
            return Err(Errno::NOKEY);
        }
        *files.entry(file).or_default() += 1;
        Ok(OpenedWith { grant: Arc::clone(self), file })
    }

    /// Refuses everything but the use of files that are open, and returns their numbers.
    pub(crate) fn close(&self) -> Vec<u64> {
        let files = self.files.lock();
        let _was =
            self.phase.compare_exchange(Phase::Open as u8, Phase::Closing as u8, Ordering::AcqRel, Ordering::Relaxed);
        files.keys().copied().collect()
    }

    /// Refuses everything from now on.
    pub(crate) fn end(&self) {
        self.phase.store(Phase::Ended as u8, Ordering::Release);
    }

    /// Whether the grant can be used.
    pub(crate) fn is_open(&self) -> bool {
        self.phase() == Phase::Open as u8
    }

    /// Whether this grant is for another key than that of `opened`, and has the same file open.
    pub(crate) fn conflicts(&self, opened: &OpenedWith) -> bool {
        self.slot.fingerprint != opened.grant.slot.fingerprint && self.files.lock().contains_key(&opened.file)
    }

    /// Returns the number of files that are open.
    pub(crate) fn open_count(&self) -> usize {
        self.files.lock().len()
    }
}

impl OpenedWith {
    /// Uses the key for a block of the open file.
    ///
    /// # Errors
    /// `ENOKEY` once the grant has been withdrawn.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&Keys) -> Result<T>) -> Result<T> {
        self.check()?;
        self.grant.slot.with(act)
    }

    /// Uses the open file.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.grant.phase() == Phase::Ended as u8 {
            return Err(Errno::NOKEY);
        }
        self.grant.touch();
        Ok(())
    }
}

impl Drop for OpenedWith {
    fn drop(&mut self) {
        if self.grant.holder.is_none() {
            return;
        }
        let mut files = self.grant.files.lock();
        if let Some(count) = files.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                files.remove(&self.file);
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
