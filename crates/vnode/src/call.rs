use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Where facts about processes come from: the server's `/proc`, or a test.
///
/// Each answers `None` for a process that is gone or can't be seen.
pub trait Processes: Sync + fmt::Debug {
    /// Supplementary groups.
    fn groups(&self, pid: u32) -> Option<Vec<u32>>;

    /// The process's umask. (Requests that make something carry it; others don't.)
    fn umask(&self, pid: u32) -> Option<u32>;

    /// Session id, and start time in clock ticks since boot: the two tell a process from a later
    /// one with the same id (proc_pid_stat(5), fields 6 and 22).
    fn session(&self, pid: u32) -> Option<(u32, u64)>;

    /// Path of the executable, in the mount namespace of that process.
    fn executable(&self, pid: u32) -> Option<PathBuf>;

    /// Path of the control group in the unified hierarchy (cgroups(7)), beginning with a slash.
    fn cgroup(&self, pid: u32) -> Option<Vec<u8>>;
}

/// What is kept of one request while it is answered: what was found out about its caller, and how
/// long the answer may be remembered.
#[derive(Debug)]
pub struct Call {
    processes: &'static dyn Processes,
    facts: OnceLock<Arc<Facts>>,
    /// Nanoseconds; `u64::MAX`: no layer has said anything.
    names: AtomicU64,
    attributes: AtomicU64,
}

/// What was found out about the caller's process, each on the first question.
#[derive(Debug, Default)]
struct Facts {
    groups: OnceLock<Option<Vec<u32>>>,
    umask: OnceLock<Option<u32>>,
    session: OnceLock<Option<(u32, u64)>>,
    executable: OnceLock<Option<PathBuf>>,
    cgroup: OnceLock<Option<Vec<u8>>>,
}

impl Call {
    /// Of a caller whom `processes` knows.
    #[must_use]
    pub const fn new(processes: &'static dyn Processes) -> Self {
        Self {
            processes,
            facts: OnceLock::new(),
            names: AtomicU64::new(u64::MAX),
            attributes: AtomicU64::new(u64::MAX),
        }
    }

    /// The same caller's, for a thread that works on the request and may outlive it: it shares what
    /// is found out about the caller. Its lifetimes count once [`Self::absorb`] has taken them over.
    #[must_use]
    pub fn share(&self) -> Self {
        let facts = Arc::clone(self.facts.get_or_init(Arc::default));
        Self { facts: OnceLock::from(facts), ..Self::new(self.processes) }
    }

    /// Takes over the lifetimes that were narrowed through `other`.
    pub fn absorb(&self, other: &Self) {
        self.names.fetch_min(other.names.load(Ordering::Relaxed), Ordering::Relaxed);
        self.attributes.fetch_min(other.attributes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn facts(&self) -> &Facts {
        self.facts.get_or_init(Arc::default)
    }

    pub(crate) fn groups(&self, pid: u32) -> Option<&[u32]> {
        self.facts().groups.get_or_init(|| self.processes.groups(pid)).as_deref()
    }

    pub(crate) fn umask(&self, pid: u32) -> Option<u32> {
        *self.facts().umask.get_or_init(|| self.processes.umask(pid))
    }

    pub(crate) fn session(&self, pid: u32) -> Option<(u32, u64)> {
        *self.facts().session.get_or_init(|| self.processes.session(pid))
    }

    pub(crate) fn executable(&self, pid: u32) -> Option<&Path> {
        self.facts().executable.get_or_init(|| self.processes.executable(pid)).as_deref()
    }

    pub(crate) fn cgroup(&self, pid: u32) -> Option<&[u8]> {
        self.facts().cgroup.get_or_init(|| self.processes.cgroup(pid)).as_deref()
    }

    pub(crate) fn limit_names(&self, time: Duration) {
        self.names.fetch_min(nanoseconds(time), Ordering::Relaxed);
    }

    pub(crate) fn limit_attributes(&self, time: Duration) {
        self.attributes.fetch_min(nanoseconds(time), Ordering::Relaxed);
    }

    /// How long the answer about a name, found or missing, may be remembered, where that would be
    /// `usual` otherwise.
    #[must_use]
    pub fn names_lifetime(&self, usual: Duration) -> Duration {
        usual.min(Duration::from_nanos(self.names.load(Ordering::Relaxed)))
    }

    /// The same for the attributes in the answer.
    #[must_use]
    pub fn attributes_lifetime(&self, usual: Duration) -> Duration {
        usual.min(Duration::from_nanos(self.attributes.load(Ordering::Relaxed)))
    }

    /// No layer has said anything yet: for the next entry of a listing.
    pub fn reset_lifetimes(&self) {
        self.names.store(u64::MAX, Ordering::Relaxed);
        self.attributes.store(u64::MAX, Ordering::Relaxed);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cx;
    use core::sync::atomic::{AtomicBool, AtomicUsize};

    /// Counts how often it is asked.
    #[derive(Debug)]
    struct Asked;

    static ASKED: AtomicUsize = AtomicUsize::new(0);

    impl Processes for Asked {
        fn groups(&self, pid: u32) -> Option<Vec<u32>> {
            ASKED.fetch_add(1, Ordering::Relaxed);
            Some(vec![pid])
        }

        fn umask(&self, _pid: u32) -> Option<u32> {
            None
        }

        fn session(&self, _pid: u32) -> Option<(u32, u64)> {
            None
        }

        fn executable(&self, _pid: u32) -> Option<PathBuf> {
            None
        }

        fn cgroup(&self, _pid: u32) -> Option<Vec<u8>> {
            None
        }
    }

    #[test]
    fn a_shared_call_asks_once_and_keeps_its_own_lifetimes() {
        const LONG: Duration = Duration::from_secs(10);
        const SHORT: Duration = Duration::from_secs(2);
        let never = AtomicBool::new(false);
        let call = Call::new(&Asked);
        let shared = call.share();
        for call in [&shared, &call] {
            assert_eq!(Cx::new(0, 0, 7, 0, true, &never).of_call(call).groups(), Some(&[7][..]));
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        shared.limit_names(SHORT);
        assert_eq!((call.names_lifetime(LONG), shared.names_lifetime(LONG)), (LONG, SHORT));
        call.limit_attributes(SHORT);
        call.absorb(&shared);
        assert_eq!((call.names_lifetime(LONG), call.attributes_lifetime(LONG)), (SHORT, SHORT));
        assert_eq!(shared.attributes_lifetime(LONG), LONG);
    }
}
