//! Clocks that jump forward and back, or stand still.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use crate::common::policies::{Host, control, cx, index, name};
use memfs::MemFs;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use testkit::Rng;
use versionfs::{Options, PolicySource, VersionFs};
use vnode::{Layer as _, OpenFlags, Time};

const DAY: i64 = 86_400;

fn write(fs: &VersionFs, file: &[u8], data: &[u8]) {
    let opened = match fs.root().lookup(&cx(), name(file)).unwrap() {
        Some(entry) => entry.vnode.open(&cx(), OpenFlags::RDWR.with_trunc()).unwrap(),
        None => fs.root().create(&cx(), name(file), 0o644, OpenFlags::RDWR).unwrap().1,
    };
    opened.write(&cx(), data, 0).unwrap();
}

/// Returns what the file contained at a time.
fn at(fs: &VersionFs, time: Time, file: &[u8]) -> Option<Vec<u8>> {
    let input = format!("{}.{:09}", time.sec, time.nsec);
    let token = fs.root().control(&cx(), "versionfs.at", input.as_bytes()).unwrap();
    let past = fs.root().lookup(&cx(), name(token.trim_ascii_end())).unwrap().unwrap().vnode;
    let entry = past.lookup(&cx(), name(file)).unwrap()?;
    let mut data = vec![0; 100];
    let len = entry.vnode.open(&cx(), OpenFlags::RDONLY).unwrap().read(&cx(), &mut data, 0).unwrap();
    data.truncate(len);
    Some(data)
}

/// However the clock jumps, the past shows the contents of each file in the order in which they
/// were written, each of them at some time, and the file at every time after the first.
#[test]
fn the_past_is_in_order_however_the_clock_jumps() {
    static NOW: AtomicI64 = AtomicI64::new(0);
    let clock = || Time { sec: NOW.load(Ordering::Relaxed), nsec: 0 };
    for seed in 0..20 {
        let mut random = Rng::new(seed + 1);
        let start = 1_700_000_000;
        NOW.store(start, Ordering::Relaxed);
        let lower = MemFs::new();
        let fs = VersionFs::new(lower.clone(), Options { clock, ..Options::default() });
        let files = [&b"a"[..], b"b", b"c"];
        for step in 0..40 {
            let now = match random.below(6) {
                0 => start + random.below(100) * DAY,
                1 => start - random.below(20_000) * DAY,
                2 | 3 => NOW.load(Ordering::Relaxed),
                _ => NOW.load(Ordering::Relaxed) + 1,
            };
            NOW.store(now, Ordering::Relaxed);
            write(&fs, files[random.below(3)], format!("{step:03}").as_bytes());
        }
        for file in files {
            let index = index(&lower, file);
            let times: Vec<Time> = index.versions.values().map(|version| version.born).collect();
            let mut seen: Vec<Vec<u8>> = Vec::new();
            let ends = index.versions.values().map(|version| version.died);
            for time in times.into_iter().chain(ends.max()) {
                seen.push(at(&fs, time, file).expect("it existed then"));
            }
            assert!(seen.is_sorted(), "{seen:?}");
            seen.dedup();
            assert_eq!(seen.len(), index.versions.len() + 1, "{file:?}");
        }
    }
}

/// What a minimum age protects stays while the clock is ahead for a moment.
#[test]
fn a_clock_that_is_ahead_for_a_moment_discards_nothing() {
    static NOW: AtomicI64 = AtomicI64::new(1_700_000_000);
    static UPTIME: AtomicI64 = AtomicI64::new(0);
    let clock = || Time { sec: NOW.load(Ordering::Relaxed), nsec: 0 };
    let uptime = || Duration::from_secs(UPTIME.load(Ordering::Relaxed).unsigned_abs());
    let later = |seconds| {
        NOW.fetch_add(seconds, Ordering::Relaxed);
        UPTIME.fetch_add(seconds, Ordering::Relaxed);
    };
    let lower = MemFs::new();
    let config = "builtin = false\nage = \"7d..30d\"".to_owned();
    let source =
        PolicySource { host: Some(Arc::new(Host(config, None))), uptime: Some(uptime), ..PolicySource::default() };
    let fs = VersionFs::with_policies(lower.clone(), Options { clock, ..Options::default() }, source).unwrap();
    for step in 0..6 {
        write(&fs, b"a", format!("content {step}").as_bytes());
        later(DAY);
    }
    control(&fs, "versionfs.clean").unwrap();
    assert_eq!(index(&lower, b"a").versions.len(), 5);
    // Ahead by a year, for an hour.
    NOW.fetch_add(365 * DAY, Ordering::Relaxed);
    control(&fs, "versionfs.clean").unwrap();
    write(&fs, b"a", b"in the future");
    later(3600);
    control(&fs, "versionfs.clean").unwrap();
    assert_eq!(index(&lower, b"a").versions.len(), 6);
    NOW.fetch_sub(365 * DAY, Ordering::Relaxed);
    control(&fs, "versionfs.clean").unwrap();
    write(&fs, b"a", b"in the present");
    assert_eq!(index(&lower, b"a").versions.len(), 7);
    // A year passes.
    later(365 * DAY);
    control(&fs, "versionfs.clean").unwrap();
    assert_eq!(index(&lower, b"a").versions.keys().copied().collect::<Vec<_>>(), [6, 7]);
}
