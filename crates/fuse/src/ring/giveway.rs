//! Whether a queue's thread gives way to the callers that it serves.
//!
//! A thread that hands a reply over is still running at that moment. To the scheduler its CPU is taken, so it wakes the caller, who went to
//! sleep on that very CPU, on an idle one; the caller's next request then goes to that CPU's queue, and so it moves to and fro with every
//! request. Each move costs as much as a request (with haltpoll in a virtual machine 18 us, measured with Postmark). A CPU that runs
//! `SCHED_IDLE` threads only counts as free (`sched_idle_cpu` in kernel/sched/fair.c), and the caller stays. So the thread is such a one while
//! some CPU is idle, which is when a caller can be moved. When all are taken nobody is moved, and a `SCHED_IDLE` thread would
//! get next to nothing: then it is an ordinary one.
//!
//! What is runnable is read from /proc/loadavg, once per millisecond of work. A thread that is kept waiting although it gives way learns so
//! when it runs next, some milliseconds later: that is the price of a wrong guess, and the waiting times between two guesses grow as they fail.

use crate::sys::{self, Scheduling};
use core::time::Duration;
use rustix::fs::{Mode, OFlags};
use rustix::io::pread;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// How often the machine is looked at.
const SAMPLE: Duration = Duration::from_millis(1);
/// So many more looks must speak for a change than against it: threads that run for a moment are everywhere.
const SURE: u32 = 8;
/// Two looks further apart than this: the thread may have been kept waiting, so the second counts for half of what makes sure.
const KEPT_WAITING: Duration = Duration::from_millis(3);
/// How long the thread stays ordinary after it had to take its right back: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// Giving way went well for so long: the next pause is a first one again.
const WENT_WELL: Duration = Duration::from_millis(500);

/// The calling thread's way of being scheduled.
pub(super) struct GiveWay {
    judge: Judge,
    start: Instant,
    loadavg: OwnedFd,
}

impl GiveWay {
    /// For the calling thread. `None` where it could not become an ordinary thread again, or is none now.
    pub(super) fn new() -> Option<Self> {
        if sys::scheduling() != Scheduling::Ordinary || !may_come_back() {
            return None;
        }
        let cpus = std::thread::available_parallelism().ok()?;
        let cpus = u32::try_from(cpus.get()).ok()?.min(u32::from(super::possible_cpus()));
        let loadavg = rustix::fs::open("/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(Self { judge: Judge::new(cpus), start: Instant::now(), loadavg })
    }

    /// Was some CPU idle lately, but for those that serve and are served here?
    pub(super) const fn sees_an_idle_cpu(&self) -> bool {
        self.judge.yields
    }

    /// To be called for each request, before its reply is handed over. Answers false if it is not to be called any more: somebody
    /// else has decided how the thread is scheduled. `beside`: the thread runs beside the program that it serves, on another CPU.
    pub(super) fn consider(&mut self, beside: bool) -> bool {
        let loadavg = &self.loadavg;
        let others = || Some(runnable(loadavg)?.saturating_sub(u32::from(beside)));
        let Some(yields) = self.judge.step(self.start.elapsed(), others) else { return true };
        let before = if yields { Scheduling::Ordinary } else { Scheduling::GivesWay };
        if sys::scheduling() != before {
            return false;
        }
        let changed = sys::give_way(yields);
        if let Err(error) = &changed {
            tracing::debug!(yields, %error, "a queue's thread can't change how it is scheduled");
        }
        changed.is_ok()
    }
}

/// May a thread like this one leave `SCHED_IDLE` again (sched(7))? One that is there for nothing else finds it out: it depends on
/// `RLIMIT_NICE`, on the nice value, and on `CAP_SYS_NICE`, which is of no use in a user namespace although it shows there.
pub(crate) fn may_come_back() -> bool {
    let try_it = || sys::give_way(true).and_then(|()| sys::give_way(false)).is_ok();
    let thread = std::thread::Builder::new().name("fuse-try".to_owned()).spawn(try_it);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// How many threads run or want to run, on all CPUs: the caller is one of them.
fn runnable(loadavg: &OwnedFd) -> Option<u32> {
    let mut text = [0; 128];
    let len = pread(loadavg, &mut text, 0).ok()?;
    parse(text.get(..len)?)
}

/// The runnable threads of `0.20 0.18 0.12 1/80 11206`.
fn parse(loadavg: &[u8]) -> Option<u32> {
    let counts = loadavg.split(|&b| b == b' ').nth(3)?;
    let runnable = counts.split(|&b| b == b'/').next()?;
    std::str::from_utf8(runnable).ok()?.parse().ok()
}

/// Decides by what it is told.
struct Judge {
    cpus: u32,
    yields: bool,
    /// When the thread began to give way, or took its right back.
    since: Duration,
    last: Duration,
    pause: Duration,
    /// So many more looks spoke for a change than against it.
    against: u32,
}

impl Judge {
    fn new(cpus: u32) -> Self {
        Self { cpus, yields: false, since: Duration::ZERO, last: Duration::ZERO, pause: Duration::ZERO, against: 0 }
    }

    /// The time is `now`: gives way from now on (true), or no more (false), or as before.
    fn step(&mut self, now: Duration, runnable: impl FnOnce() -> Option<u32>) -> Option<bool> {
        let gap = now.saturating_sub(self.last);
        if gap < SAMPLE {
            return None;
        }
        self.last = now;
        // Who can't tell takes no risk.
        let crowded = runnable().is_none_or(|runnable| runnable >= self.cpus);
        let long = now.saturating_sub(self.since);
        if self.yields != crowded {
            self.against = self.against.saturating_sub(1);
            if self.yields && long >= WENT_WELL {
                self.pause = Duration::ZERO;
            }
            return None;
        }
        self.against += if self.yields && gap >= KEPT_WAITING { SURE / 2 } else { 1 };
        if self.against < SURE || (!self.yields && long < self.pause) {
            return None;
        }
        if self.yields {
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LAST_PAUSE);
        }
        (self.yields, self.since, self.against) = (!self.yields, now, 0);
        Some(self.yields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a millisecond with these numbers of runnable threads, until the answer changes; how many it took.
    fn until_changed(judge: &mut Judge, now: &mut Duration, runnable: u32) -> Option<(u32, bool)> {
        (1..=10_000).find_map(|n| {
            *now += SAMPLE;
            judge.step(*now, || Some(runnable)).map(|yields| (n, yields))
        })
    }

    #[test]
    fn the_runnable_are_read() {
        assert_eq!(parse(b"0.20 0.18 0.12 1/80 11206\n"), Some(1));
        assert_eq!(parse(b"0.20 0.18 0.12 317/1280 11206\n"), Some(317));
        for bad in [&b""[..], b"0.20", b"a b c d", b"1 2 3 /4", b"\xff \xff \xff \xff/"] {
            assert_eq!(parse(bad), None);
        }
        let file = rustix::fs::open("/proc/loadavg", OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(runnable(&file).is_some_and(|n| n >= 1));
    }

    #[test]
    fn it_gives_way_while_a_cpu_is_idle() {
        let (mut judge, mut now) = (Judge::new(2), Duration::ZERO);
        assert_eq!(until_changed(&mut judge, &mut now, 1), Some((SURE, true)));
        assert_eq!(until_changed(&mut judge, &mut now, 2), Some((SURE, false)));
        assert_eq!(until_changed(&mut judge, &mut now, 2), None);
    }

    #[test]
    fn who_is_kept_waiting_twice_takes_its_right_back() {
        let (mut judge, mut now) = (Judge::new(2), Duration::ZERO);
        until_changed(&mut judge, &mut now, 1);
        assert_eq!(judge.step(now + KEPT_WAITING, || Some(3)), None);
        assert_eq!(judge.step(now + KEPT_WAITING * 2, || Some(3)), Some(false));
    }

    #[test]
    fn pauses_grow_until_it_went_well() {
        let (mut judge, mut now) = (Judge::new(2), Duration::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let before = now;
            assert_eq!(until_changed(&mut judge, &mut now, 1).map(|(_, yields)| yields), Some(true));
            pauses.push(now - before);
            assert_eq!(until_changed(&mut judge, &mut now, 2), Some((SURE, false)));
        }
        assert_eq!(pauses[1], FIRST_PAUSE);
        assert!(pauses[1..].windows(2).all(|pair| pair[1] > pair[0] || pair[1] >= LAST_PAUSE), "{pauses:?}");
        assert!(pauses.iter().all(|&pause| pause <= LAST_PAUSE));
        until_changed(&mut judge, &mut now, 1);
        for _ in 0..=WENT_WELL.as_millis() {
            now += SAMPLE;
            assert_eq!(judge.step(now, || Some(1)), None);
        }
        until_changed(&mut judge, &mut now, 2);
        let before = now;
        until_changed(&mut judge, &mut now, 1);
        assert_eq!(now - before, FIRST_PAUSE);
    }

    #[test]
    fn on_one_cpu_or_where_nothing_is_known_it_is_ordinary() {
        let (mut judge, mut now) = (Judge::new(1), Duration::ZERO);
        assert_eq!(until_changed(&mut judge, &mut now, 1), None);
        let mut judge = Judge::new(8);
        assert!((0..100).all(|n| judge.step(SAMPLE * n, || None).is_none()));
    }
}
