//! Clocks that jump forward and back, or stand still.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use crate::common::policies::{Host, control, cx, index, name};
use memfs::MemFs;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use testkit::Rng;
use versionfs::{Options, PolicySource, Storage, VersionFs};
use vnode::{Errno, Layer as _, OpenFlags, RenameFlags, SetAttr, Time};

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

/// A directory at a time to come shows what is there now; once the time has come, what was there
/// then, whatever a program still uses of what it showed before.
#[test]
fn a_time_to_come_is_shown_as_it_was_once_it_has_come() {
    static NOW: AtomicI64 = AtomicI64::new(1_700_000_000);
    let clock = || Time { sec: NOW.load(Ordering::Relaxed), nsec: 0 };
    let fs = VersionFs::new(MemFs::new(), Options { clock, ..Options::default() });
    write(&fs, b"f", b"one");
    let token = fs.root().control(&cx(), "versionfs.at", b"1700000010").unwrap();
    let past = fs.root().lookup(&cx(), name(token.trim_ascii_end())).unwrap().unwrap().vnode;
    let mut in_use = Vec::new();
    let mut shows = |now: i64, expected: &[u8]| {
        NOW.store(1_700_000_000 + now, Ordering::Relaxed);
        let entry = past.lookup(&cx(), name(b"f")).unwrap().unwrap();
        let mut listed = None;
        past.readdir(&cx(), 0, &mut |entry| {
            listed = Some(entry.ino);
            true
        })
        .unwrap();
        assert_eq!(listed, Some(entry.attr.ino));
        let mut data = [0; 10];
        let len = entry.vnode.open(&cx(), OpenFlags::RDONLY).unwrap().read(&cx(), &mut data, 0).unwrap();
        assert_eq!(&data[..len], expected, "{now} seconds later");
        in_use.push(entry.vnode);
    };
    shows(1, b"one");
    write(&fs, b"f", b"two");
    shows(2, b"two");
    NOW.fetch_add(3, Ordering::Relaxed);
    write(&fs, b"f", b"three");
    shows(6, b"three");
    NOW.fetch_add(10, Ordering::Relaxed);
    write(&fs, b"f", b"four");
    shows(20, b"three");
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

/// The names of a directory while files are written, renamed, linked and removed, with the content
/// that each version of each name must have.
struct Names {
    fs: Arc<VersionFs>,
    contents: BTreeMap<&'static str, Vec<u8>>,
    versions: BTreeMap<(&'static str, u64), Vec<u8>>,
    /// Whether versions are discarded. Then some that refer to another name lead nowhere.
    discards: bool,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl Names {
    fn numbers(&self, file: &str) -> Vec<u64> {
        let Ok(list) = self.fs.root().control(&cx(), "versionfs.list", file.as_bytes()) else { return Vec::new() };
        let list = String::from_utf8(list).unwrap();
        list.lines().skip(1).map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
    }

    fn read(&self, file: &str, number: u64) -> vnode::Result<Vec<u8>> {
        let token = self.fs.root().control(&cx(), "versionfs.open", format!("{file} {number}").as_bytes())?;
        let entry = self.fs.root().lookup(&cx(), name(token.trim_ascii_end()))?.unwrap();
        let mut data = vec![0; 20_000];
        let len = entry.vnode.open(&cx(), OpenFlags::RDONLY)?.read(&cx(), &mut data, 0)?;
        data.truncate(len);
        Ok(data)
    }

    /// Runs an operation, and returns what it was.
    fn step(&mut self, random: &mut Rng, step: usize) -> String {
        let root = self.fs.root();
        let (one, other) = (NAMES[random.below(4)], NAMES[random.below(4)]);
        let (at, to) = (name(one.as_bytes()), name(other.as_bytes()));
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        let numbers = self.numbers(one);
        if self.discards && !numbers.is_empty() && random.below(4) == 0 {
            let input = format!("{one} {}", numbers[random.below(numbers.len())]);
            let done = root.control(&cx(), "versionfs.discard", input.as_bytes());
            return format!("{step}: discard {input}: {done:?}");
        }
        let file = root.lookup(&cx(), at).unwrap().map(|entry| entry.vnode);
        let (what, done) = match (random.below(9), file) {
            (0 | 1, Some(file)) => {
                let file = file.open(&cx(), OpenFlags(OpenFlags::RDWR.0 | 0o2000)).unwrap();
                ("append", file.write(&cx(), format!("+{step}").as_bytes(), 0).map(|_| ()))
            }
            (2, Some(file)) => {
                let size = SetAttr { size: Some(random.below(6) as u64), ..SetAttr::default() };
                ("truncate", file.setattr(&cx(), &size, None).map(|_| ()))
            }
            (3, Some(file)) => ("link", root.link(&cx(), to, &file).map(|_| ())),
            (4, Some(_)) => ("unlink", root.unlink(&cx(), at)),
            (5, Some(_)) => ("exchange", root.rename(&cx(), at, &root, to, exchange)),
            (_, Some(_)) => ("rename", root.rename(&cx(), at, &root, to, RenameFlags::default())),
            (_, None) => {
                write(&self.fs, one.as_bytes(), format!("{step}").as_bytes());
                ("create", Ok(()))
            }
        };
        format!("{step}: {what} {one} {other}: {done:?}")
    }

    /// Notes what the versions must contain that the last operation made, and reads all of them.
    fn check(&mut self, log: &[String]) {
        for file in NAMES {
            let log = log.join("\n");
            let numbers = self.numbers(file);
            for number in &numbers {
                let known = self.versions.get(&(file, *number)).cloned();
                let expected = known.or_else(|| self.contents.get(file).cloned());
                let expected = expected.unwrap_or_else(|| panic!("{log}\n{file} {number}: there was no such file"));
                let found = self.read(file, *number);
                if self.discards && found == Err(Errno::STALE) {
                    continue;
                }
                let found = found.unwrap_or_else(|errno| panic!("{log}\n{file} {number}: {errno} {numbers:?}"));
                assert!(found == expected, "{log}\n{file} {number}: {found:?}, not {expected:?}");
                self.versions.insert((file, *number), expected);
            }
            let lost = self.versions.keys().find(|(name, number)| *name == file && !numbers.contains(number));
            assert!(lost.is_none() || self.discards, "{log}\n{numbers:?}: {lost:?}");
        }
        self.contents.clear();
        for file in NAMES {
            let Some(entry) = self.fs.root().lookup(&cx(), name(file.as_bytes())).unwrap() else { continue };
            self.contents.insert(file, crate::common::policies::read_all(&*entry.vnode));
        }
    }
}

/// The versions of a name have their order by their numbers: those of names that files left and
/// came back to, and of several names of one file, while the clock stands still or goes back.
#[test]
fn versions_of_renamed_and_linked_names_are_right_whatever_the_time_is() {
    static NOW: AtomicI64 = AtomicI64::new(0);
    static PACE: AtomicI64 = AtomicI64::new(0);
    let clock = || Time { sec: NOW.fetch_add(PACE.load(Ordering::Relaxed), Ordering::Relaxed), nsec: 0 };
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    let cases = |seed| [(seed, Storage::Full, false), (seed, Storage::Sparse, false), (seed, Storage::Sparse, true)];
    for (seed, storage, discards) in (0..seeds).flat_map(cases) {
        NOW.store(1_700_000_000, Ordering::Relaxed);
        // Where numbers are missing, only the times tell versions that were discarded from numbers
        // that were passed over.
        let pace = if discards { [0, 0, 1, 1, 100] } else { [0, 0, 1, -1, -100] };
        PACE.store(pace[seed % 5], Ordering::Relaxed);
        let mut random = Rng::new(seed as u64 + 1);
        let fs = VersionFs::new(MemFs::new(), Options { clock, storage, ..Options::default() });
        let mut names = Names { fs, contents: BTreeMap::new(), versions: BTreeMap::new(), discards };
        let mut log = vec![format!("seed {seed}, {storage:?}, {discards}")];
        for step in 0..50 {
            log.push(names.step(&mut random, step));
            names.check(&log);
        }
        assert!(names.versions.len() > 10, "{}", names.versions.len());
    }
}
