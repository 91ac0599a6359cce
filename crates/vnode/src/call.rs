use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Source of information about processes: the server's `/proc`, or a test.
///
/// Every method returns `None` if the process has exited or is not visible.
pub trait Processes: Sync + fmt::Debug {
    /// Returns the supplementary groups.
    fn groups(&self, pid: u32) -> Option<Vec<u32>>;

    /// Returns the umask. (Only requests that create objects carry it.)
    fn umask(&self, pid: u32) -> Option<u32>;

    /// Returns the session ID and the start time in clock ticks since boot. The two distinguish a
    /// process from a later process with the same PID (proc_pid_stat(5), fields 6 and 22).
    fn session(&self, pid: u32) -> Option<(u32, u64)>;

    /// Returns the session ID alone, which costs less.
    fn session_id(&self, pid: u32) -> Option<u32> {
        self.session(pid).map(|(id, _)| id)
    }

    /// Returns the path of the executable in the process's mount namespace.
    fn executable(&self, pid: u32) -> Option<PathBuf>;

    /// Returns the path of the cgroup in the unified hierarchy (cgroups(7)), with a leading slash.
    fn cgroup(&self, pid: u32) -> Option<Vec<u8>>;
}

/// State of one request: cached facts about its caller, and the cache lifetimes of its reply.
#[derive(Debug)]
pub struct Call {
    processes: &'static dyn Processes,
    facts: OnceLock<Arc<Facts>>,
    /// Nanoseconds; `u64::MAX` if no layer has set a limit.
    names: AtomicU64,
    attributes: AtomicU64,
}

/// Facts about the caller's process, each read on first use.
#[derive(Debug, Default)]
struct Facts {
    groups: OnceLock<Option<Vec<u32>>>,
    umask: OnceLock<Option<u32>>,
    session: OnceLock<Option<(u32, u64)>>,
    session_id: OnceLock<Option<u32>>,
    executable: OnceLock<Option<PathBuf>>,
    cgroup: OnceLock<Option<Vec<u8>>>,
}

impl Call {
    /// Creates the state of a request whose caller is looked up in `processes`.
    #[must_use]
    pub const fn new(processes: &'static dyn Processes) -> Self {
        Self {
            processes,
            facts: OnceLock::new(),
            names: AtomicU64::new(u64::MAX),
            attributes: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns state for a worker thread that may outlive the request. It shares the cached facts
    /// about the caller. Lifetime limits set through it take effect only after [`Self::absorb`].
    #[must_use]
    pub fn share(&self) -> Self {
        let facts = Arc::clone(self.facts.get_or_init(Arc::default));
        Self { facts: OnceLock::from(facts), ..Self::new(self.processes) }
    }

    /// Returns state for a question about another process, for which nothing is cached.
    #[must_use]
    pub const fn for_other_process(&self) -> Self {
        Self::new(self.processes)
    }

    /// Applies the lifetime limits that were set through `other`.
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

    pub(crate) fn session_id(&self, pid: u32) -> Option<u32> {
        *self.facts().session_id.get_or_init(|| self.processes.session_id(pid))
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

    /// Returns how long the kernel may cache the name in the reply, positive or negative: `usual`
    /// unless a layer set a lower limit.
    #[must_use]
    pub fn names_lifetime(&self, usual: Duration) -> Duration {
        usual.min(Duration::from_nanos(self.names.load(Ordering::Relaxed)))
    }

    /// Returns how long the kernel may cache the attributes in the reply.
    #[must_use]
    pub fn attributes_lifetime(&self, usual: Duration) -> Duration {
        usual.min(Duration::from_nanos(self.attributes.load(Ordering::Relaxed)))
    }

    /// Clears the lifetime limits, before the next entry of a directory listing.
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

    /// Counts calls of `groups`.
    #[derive(Debug)]
    struct CountingProcesses;

    static GROUPS_CALLS: AtomicUsize = AtomicUsize::new(0);

    impl Processes for CountingProcesses {
        fn groups(&self, pid: u32) -> Option<Vec<u32>> {
            GROUPS_CALLS.fetch_add(1, Ordering::Relaxed);
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
    fn shared_call_reads_facts_once_and_has_separate_lifetimes() {
        const LONG: Duration = Duration::from_secs(10);
        const SHORT: Duration = Duration::from_secs(2);
        let never = AtomicBool::new(false);
        let call = Call::new(&CountingProcesses);
        let shared = call.share();
        for call in [&shared, &call] {
            assert_eq!(Cx::new(0, 0, 7, 0, true, &never).with_call(call).groups(), Some(&[7][..]));
        }
        assert_eq!(GROUPS_CALLS.load(Ordering::Relaxed), 1);
        shared.limit_names(SHORT);
        assert_eq!((call.names_lifetime(LONG), shared.names_lifetime(LONG)), (LONG, SHORT));
        call.limit_attributes(SHORT);
        call.absorb(&shared);
        assert_eq!((call.names_lifetime(LONG), call.attributes_lifetime(LONG)), (SHORT, SHORT));
        assert_eq!(shared.attributes_lifetime(LONG), LONG);
    }
}
