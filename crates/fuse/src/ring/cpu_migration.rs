//! Moves a queue thread off its CPU while it serves a sequential reader.
//!
//! With readahead the kernel requests the next part of a file while the program still copies the
//! last one. On one CPU, queue thread and program would take turns. So for a stream of large reads
//! the thread moves to another CPU, if one is idle. It returns with the first request of another
//! kind: the caller waits for that one, and it is served fastest on the caller's CPU.
//!
//! Measured with one reader, 128 KiB per call, uncached files: a union's read-only branch 2.05 to
//! 2.45 GB/s, `xor` 1.6 to 2.05 GB/s.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Minimum size of a READ reply that counts as part of a stream, in bytes.
const MIN_STREAM_READ: usize = 64 << 10;
/// Number of such reads in a row that make a stream. A migration costs as much as two or three
/// reads.
const STREAM_READS: u32 = 16;

/// CPU placement of the calling thread.
pub(super) struct CpuMigration {
    own_cpu: CpuSet,
    other_cpus: CpuSet,
    stream: Stream,
}

impl CpuMigration {
    /// Returns the placement of the calling thread, which is pinned to `cpu` and may use `all`.
    /// `None` if there is no other CPU.
    pub(super) fn new(cpu: u16, all: &CpuSet) -> Option<Self> {
        let cpu = usize::from(cpu);
        if cpu >= CpuSet::MAX_CPU {
            return None;
        }
        let (mut own_cpu, mut other_cpus) = (CpuSet::new(), *all);
        own_cpu.set(cpu);
        other_cpus.unset(cpu);
        (other_cpus.count() > 0).then_some(Self { own_cpu, other_cpus, stream: Stream::default() })
    }

    /// Records a reply of `len` bytes; `read`: to a READ.
    pub(super) fn record_reply(&mut self, read: bool, len: usize) {
        self.stream.record_reply(read && len >= MIN_STREAM_READ);
    }

    /// Whether the thread runs on another CPU than the program that it serves.
    pub(super) const fn is_migrated(&self) -> bool {
        self.stream.migrated
    }

    /// Migrates the thread if needed, before it waits. `idle`: some CPU is idle. Returns false if
    /// the affinity cannot be set.
    pub(super) fn apply(&mut self, idle: bool) -> bool {
        self.stream.step(idle).is_none_or(|migrated| self.migrate(migrated))
    }

    /// Returns to the thread's own CPU at once. Returns false if the affinity cannot be set.
    pub(super) fn return_home(&mut self) -> bool {
        self.stream.record_reply(false);
        self.apply(false)
    }

    fn migrate(&self, migrated: bool) -> bool {
        let moved = sched_setaffinity(None, if migrated { &self.other_cpus } else { &self.own_cpu });
        if let Err(error) = &moved {
            tracing::debug!(migrated, %error, "a queue thread cannot change its CPU affinity");
        }
        moved.is_ok()
    }
}

/// Detects streams from the replies.
#[derive(Default)]
struct Stream {
    reads_in_a_row: u32,
    migrated: bool,
}

impl Stream {
    fn record_reply(&mut self, part: bool) {
        self.reads_in_a_row = if part { self.reads_in_a_row.saturating_add(1) } else { 0 };
    }

    /// Returns whether to migrate (true) or return (false), or `None` for no change.
    fn step(&mut self, idle: bool) -> Option<bool> {
        let migrated = idle && self.reads_in_a_row >= if self.migrated { 1 } else { STREAM_READS };
        (migrated != self.migrated).then(|| {
            self.migrated = migrated;
            migrated
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_served_from_another_cpu() {
        let mut stream = Stream::default();
        for n in 1..=3 * STREAM_READS {
            stream.record_reply(true);
            assert_eq!(stream.step(true), (n == STREAM_READS).then_some(true));
        }
        stream.record_reply(false);
        assert_eq!(stream.step(true), Some(false));
        for _ in 1..STREAM_READS {
            stream.record_reply(true);
            assert_eq!(stream.step(true), None);
        }
    }

    #[test]
    fn without_an_idle_cpu_there_is_no_migration() {
        let mut stream = Stream::default();
        for _ in 0..100 {
            stream.record_reply(true);
            assert_eq!(stream.step(false), None);
        }
        assert_eq!(stream.step(true), Some(true));
        assert_eq!(stream.step(true), None);
        assert_eq!(stream.step(false), Some(false));
    }

    #[test]
    fn the_thread_migrates_and_returns() {
        // In a separate thread, so the test process keeps its affinity.
        let moved = std::thread::spawn(|| {
            let all = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
            let Some(mut migrated) = CpuMigration::new(cpu as u16, &all) else { return all.count() == 1 };
            let here = || rustix::thread::sched_getaffinity(None).unwrap();
            (0..STREAM_READS).for_each(|_| migrated.record_reply(true, MIN_STREAM_READ));
            assert!(migrated.apply(true) && migrated.is_migrated() && !here().is_set(cpu));
            migrated.record_reply(true, MIN_STREAM_READ - 1);
            assert!(migrated.apply(true) && !migrated.is_migrated());
            here().is_set(cpu) && here().count() == 1
        });
        assert!(moved.join().unwrap());
    }
}
