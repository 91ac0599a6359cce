//! `unionctl --snapshot` on mounted unions, while programs write.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{FlockOperation, flock};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use strata_tests::mapping::Mapping;
use strata_tests::process::try_run;
use strata_tests::{Delete, Mode, Mounted, Sandbox, Spec, Transport, long, on_both_transports};

/// Length of a record that a writer appends.
const RECORD: usize = 16;
/// The page size.
const PAGE: usize = 4096;
/// Pages of the file that is written through a mapping.
const PAGES: usize = 32;

/// A union of two read-write branches and a read-only one, all directories of `disk`.
struct Fixture {
    union: Mounted,
    /// The branches, the first one first.
    branches: Vec<PathBuf>,
    disk: PathBuf,
    transport: Transport,
    sandbox: Sandbox,
}

impl Fixture {
    fn new(transport: Transport, disk: impl FnOnce(&Sandbox) -> PathBuf, options: &str) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(300));
        let disk = disk(&sandbox);
        let branches: Vec<PathBuf> = ["first", "second", "base"].map(|name| disk.join(name)).into();
        for branch in &branches {
            fs::create_dir_all(branch.join("dir")).unwrap();
        }
        fs::write(branches[1].join("dir/second"), "").unwrap();
        fs::write(branches[2].join("dir/base"), "base").unwrap();
        let spec = spec(&branches, 2, transport);
        let union = Mounted::with_options(spec, &sandbox.path("u"), options);
        Self { union, branches, disk, transport, sandbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.union.path(name)
    }

    fn ctl(&self, words: &[&str]) -> (Option<i32>, String) {
        ctl(self.union.dir(), words)
    }

    /// Takes a snapshot. Returns the number of branches that must not change any more.
    fn snapshot(&mut self, name: &str) -> usize {
        let dir = self.disk.join(name);
        fs::create_dir(&dir).unwrap();
        let (status, text) = self.ctl(&["--snapshot", dir.to_str().unwrap()]);
        assert_eq!(status, Some(0), "{text}");
        self.branches.insert(0, dir);
        self.branches.len() - 1
    }
}

/// Returns a union of the branches, the first `rw` of which are read-write.
fn spec(branches: &[PathBuf], rw: usize, transport: Transport) -> Spec {
    let mode = |at| if at < rw { Mode::Rw } else { Mode::Ro };
    let branches = branches.iter().enumerate().map(|(at, branch)| (branch.clone(), mode(at))).collect();
    Spec::Union { branches, delete: Delete::Whiteout, transport }
}

fn ctl(union: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(Mounted::program().unwrap());
    let output = try_run(command.arg0("unionctl").arg(union).args(words));
    (output.status.code(), output.text)
}

/// Everything that a snapshot keeps of an object: mode, number, links, owner, group, size,
/// modification time, change time, names of extended attributes, data.
type Frozen = (u32, u64, u64, u32, u32, u64, i128, i128, u64, u64);

/// Returns the state of a branch, with the records of the union.
fn frozen(branch: &Path) -> BTreeMap<PathBuf, Frozen> {
    let mut found = BTreeMap::new();
    let mut todo = vec![branch.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let hash = |bytes: &[u8]| {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            hasher.finish()
        };
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let data = if meta.is_file() { hash(&fs::read(&path).unwrap()) } else { 0 };
        let mut names = vec![0; 1 << 16];
        let len = rustix::fs::llistxattr(&path, &mut names).unwrap();
        let time = |sec: i64, nsec: i64| i128::from(sec) * 1_000_000_000 + i128::from(nsec);
        let state = (
            meta.mode(),
            meta.ino(),
            meta.nlink(),
            meta.uid(),
            meta.gid(),
            meta.size(),
            time(meta.mtime(), meta.mtime_nsec()),
            time(meta.ctime(), meta.ctime_nsec()),
            hash(&names[..len]),
            data,
        );
        found.insert(path, state);
    }
    found
}

/// A thread that writes until it is dropped.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Writer {
    /// Calls the function that `begin` returns with 0, 1, 2, ...
    fn new<W: FnMut(u64)>(begin: impl FnOnce() -> W + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut write = begin();
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                write(count);
                count += 1;
                // Shares the CPU with the other writers.
                if count % 64 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            count
        });
        Self { stop, thread: Some(thread) }
    }

    /// Stops it and returns the number of writes.
    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn record(count: u64) -> Vec<u8> {
    format!("{count:015}\n").into_bytes()
}

fn appender(path: &Path) -> Writer {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    Writer::new(move || move |count| file.write_all(&record(count)).unwrap())
}

fn overwriter(path: &Path) -> Writer {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    Writer::new(move || move |count| file.write_all_at(&record(count), count * RECORD as u64).unwrap())
}

fn splicer(path: &Path) -> Writer {
    let file = File::create(path).unwrap();
    let (from, to) = rustix::pipe::pipe().unwrap();
    Writer::new(move || {
        move |count| {
            rustix::io::write(&to, &record(count)).unwrap();
            let flags = rustix::pipe::SpliceFlags::empty();
            assert_eq!(rustix::pipe::splice(&from, None, &file, None, RECORD, flags), Ok(RECORD));
        }
    })
}

/// Writes the same byte to each page in turn through a shared mapping, then the next byte.
fn mapper(path: &Path) -> Writer {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len((PAGES * PAGE) as u64).unwrap();
    Writer::new(move || {
        let (prot, len) = (ProtFlags::READ | ProtFlags::WRITE, PAGES * PAGE);
        let mut mapping = Mapping::new(&file, len, prot, MapFlags::SHARED).unwrap();
        drop(file);
        move |count| (0..PAGES).for_each(|page| mapping.write(page * PAGE, &[count as u8]))
    })
}

/// Checks that a file holds complete records, from the first one. Returns their number.
fn records(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len() % RECORD, 0, "{}", path.display());
    for (count, found) in bytes.chunks(RECORD).enumerate() {
        assert_eq!(found, record(count as u64), "{}", path.display());
    }
    (bytes.len() / RECORD) as u64
}

/// Checks that a file holds a state that its mapping had at one instant.
fn check_mapped(path: &Path) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len(), PAGES * PAGE);
    let pages: Vec<u8> = bytes.iter().step_by(PAGE).copied().collect();
    let last = pages[PAGES - 1];
    let newer = pages.iter().take_while(|&&byte| byte == last.wrapping_add(1)).count();
    assert!(pages[newer..].iter().all(|&byte| byte == last), "{pages:?}");
}

fn carried_files(transport: Transport, disk: impl FnOnce(&Sandbox) -> PathBuf) {
    let mut fx = Fixture::new(transport, disk, "");
    // On the first branch, by passthrough; and on the second, through the server.
    let names = ["dir/append", "overwrite", "dir/splice", "dir/second"];
    let writers = [
        appender(&fx.path(names[0])),
        overwriter(&fx.path(names[1])),
        splicer(&fx.path(names[2])),
        appender(&fx.path(names[3])),
    ];
    let mapped = mapper(&fx.path("dir/mapped"));
    let numbers: Vec<u64> = names.iter().map(|name| fs::metadata(fx.path(name)).unwrap().ino()).collect();
    let rounds = if long() { 100 } else { 10 };
    let mut states: BTreeMap<PathBuf, BTreeMap<PathBuf, Frozen>> = BTreeMap::new();
    let mut counts: Vec<Vec<u64>> = Vec::new();
    for round in 0..rounds {
        // The writers write meanwhile.
        thread::sleep(Duration::from_millis(100));
        let old = fx.snapshot(&format!("snapshot {round}"));
        let now: BTreeMap<_, _> =
            fx.branches[fx.branches.len() - old..].iter().map(|branch| (branch.clone(), frozen(branch))).collect();
        for (branch, before) in &states {
            assert_eq!(&now[branch], before, "round {round}: {}", branch.display());
        }
        states = now;
        // Names that only one writer of this round has changed may not be on the newest branch.
        let newest = |name: &str| {
            let found = fx.branches[fx.branches.len() - old..].iter().map(|branch| branch.join(name));
            found.clone().find(|path| path.exists()).unwrap()
        };
        counts.push(names.iter().map(|name| records(&newest(name))).collect());
        check_mapped(&newest("dir/mapped"));
        for (name, number) in names.iter().zip(&numbers) {
            let meta = fs::metadata(fx.path(name)).unwrap();
            assert_eq!((meta.ino(), meta.nlink()), (*number, 1), "round {round}: {name}");
        }
    }
    let written = writers.map(Writer::stop);
    drop(mapped);
    for (branch, before) in &states {
        assert_eq!(&frozen(branch), before, "{}", branch.display());
    }
    for (at, name) in names.iter().enumerate() {
        assert_eq!(records(&fx.path(name)), written[at], "{name}");
        let grows = counts.windows(2).all(|pair| pair[0][at] <= pair[1][at]);
        assert!(grows && counts[rounds - 1][at] > counts[0][at], "{name}: {counts:?}");
    }
    // Each snapshot, from the first: a union of the older branches.
    fx.union.unmount();
    for (round, counts) in counts.iter().enumerate().step_by(4) {
        let branches = &fx.branches[rounds - round..];
        let old = Mounted::new(spec(branches, 0, transport), &fx.sandbox.path("old"));
        let found: Vec<u64> = names.iter().map(|name| records(&old.path(name))).collect();
        assert_eq!(&found, counts);
        check_mapped(&old.path("dir/mapped"));
    }
    for (branch, before) in &states {
        assert_eq!(&frozen(branch), before, "{}", branch.display());
    }
}

/// The old branches never change, and contain each file in a state of one instant, while programs
/// write to it in all ways.
fn files_are_carried_on_xfs(transport: Transport) {
    carried_files(transport, |sandbox| sandbox.xfs("disk"));
}

fn files_are_carried_on_btrfs(transport: Transport) {
    carried_files(transport, |sandbox| sandbox.btrfs("disk"));
}

/// A reader and a locked file, files without a name, and files opened after the snapshot.
fn programs_do_not_notice(transport: Transport) {
    let mut fx = Fixture::new(transport, |sandbox| sandbox.xfs("disk"), "");
    fs::write(fx.path("dir/log"), "one ").unwrap();
    fs::set_permissions(fx.path("dir/log"), fs::Permissions::from_mode(0o640)).unwrap();
    let reader = File::open(fx.path("dir/log")).unwrap();
    let gone = OpenOptions::new().read(true).write(true).create_new(true).open(fx.path("gone")).unwrap();
    fs::remove_file(fx.path("gone")).unwrap();
    let locked = OpenOptions::new().write(true).open(fx.path("dir/log")).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();
    let before = locked.metadata().unwrap();
    let old = fx.snapshot("new");
    let states: Vec<_> = fx.branches[1..=old].iter().map(|branch| frozen(branch)).collect();
    let other = File::open(fx.path("dir/log")).unwrap();
    assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err(), "the lock is lost");
    let mut second = OpenOptions::new().append(true).open(fx.path("dir/log")).unwrap();
    second.write_all(b"two").unwrap();
    let mut text = [0; 7];
    reader.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"one two");
    locked.set_len(3).unwrap();
    locked.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    let after = fs::metadata(fx.path("dir/log")).unwrap();
    assert_eq!((after.ino(), after.size(), after.mode() & 0o777), (before.ino(), 3, 0o600));
    gone.write_all_at(b"still there", 0).unwrap();
    gone.set_len(5).unwrap();
    gone.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(gone.metadata().unwrap().size(), 5);
    fs::rename(fx.path("dir"), fx.path("moved")).unwrap();
    fs::remove_file(fx.path("moved/log")).unwrap();
    drop((reader, gone, locked, second, other));
    for (branch, before) in fx.branches[1..=old].iter().zip(&states) {
        assert_eq!(&frozen(branch), before, "{}", branch.display());
    }
    fx.union.unmount();
    let old = Mounted::new(spec(&fx.branches[1..], 0, transport), &fx.sandbox.path("old"));
    assert_eq!(fs::read_to_string(old.path("dir/log")).unwrap(), "one ");
    let meta = fs::metadata(old.path("dir/log")).unwrap();
    assert_eq!((meta.ino(), meta.mode() & 0o777, meta.mtime_nsec()), (before.ino(), 0o640, before.mtime_nsec()));
}

/// Without reflinks, and on another file system, the command names files and processes, and nothing
/// changes. Once they are closed, the snapshot is taken.
fn open_files_prevent_a_snapshot_elsewhere(transport: Transport) {
    let mut fx = Fixture::new(transport, |sandbox| sandbox.ext4("disk", 64), "");
    let other = fx.sandbox.xfs("other");
    let log = fx.path("dir/log");
    let mut holder = Command::new("bash");
    let script = "exec 5>>\"$1\"; echo x >&5; touch \"$1.ready\"; exec sleep 1000";
    let mut holder = holder.args(["-c", script, "bash"]).arg(&log).spawn().unwrap();
    testkit::until("the file is open", || fx.path("dir/log.ready").exists());
    for dir in [fx.disk.join("new"), other.join("new")] {
        fs::create_dir(&dir).unwrap();
        let (status, text) = fx.ctl(&["--snapshot", dir.to_str().unwrap()]);
        let names = text.contains("dir/log: open for writing by") && text.contains(&format!("{} (", holder.id()));
        assert!(status == Some(32) && names && text.contains("reflinks"), "{text}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert_eq!(fx.ctl(&["--list"]).1.lines().count(), 3);
        fs::remove_dir(dir).unwrap();
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
    fs::write(fx.path("dir/more"), "").unwrap();
    let old = fx.snapshot("new");
    let before = frozen(&fx.branches[old - 2]);
    fs::write(&log, "changed").unwrap();
    assert_eq!(frozen(&fx.branches[old - 2]), before);
    assert_eq!(fs::read_to_string(fx.branches[1].join("dir/log")).unwrap(), "x\n");
}

/// With `passthrough=off`, files are copied at the next write, on any file system.
fn without_passthrough_all_files_can_be_written(transport: Transport) {
    let mut fx = Fixture::new(transport, |sandbox| sandbox.ext4("disk", 128), "passthrough=off");
    let names = ["append", "dir/splice", "dir/second"];
    let writers = [appender(&fx.path(names[0])), splicer(&fx.path(names[1])), appender(&fx.path(names[2]))];
    let mut states: BTreeMap<PathBuf, BTreeMap<PathBuf, Frozen>> = BTreeMap::new();
    for round in 0..6 {
        // The writers write meanwhile.
        thread::sleep(Duration::from_millis(100));
        let old = fx.snapshot(&format!("s{round}"));
        let now: BTreeMap<_, _> =
            fx.branches[fx.branches.len() - old..].iter().map(|branch| (branch.clone(), frozen(branch))).collect();
        for (branch, before) in &states {
            assert_eq!(&now[branch], before, "round {round}: {}", branch.display());
        }
        for name in names {
            let found = fx.branches[1..].iter().map(|branch| branch.join(name)).find(|path| path.exists());
            assert!(records(&found.unwrap()) > 0);
        }
        states = now;
    }
    let written = writers.map(Writer::stop);
    for (name, written) in names.iter().zip(written) {
        assert_eq!(records(&fx.path(name)), written, "{name}");
    }
    for (branch, before) in &states {
        assert_eq!(&frozen(branch), before, "{}", branch.display());
    }
}

/// Completes or reverts an interrupted snapshot without a mount, in the old branches.
fn fsck_completes(branches: &[PathBuf], round: u64) {
    let modes = branches.iter().enumerate().map(|(at, branch)| (branch.display(), if at == 0 { "rw" } else { "ro" }));
    let list: Vec<String> = modes.map(|(branch, mode)| format!("{branch}={mode}")).collect();
    let fsck = |how: &str| {
        let mut command = Command::new(Mounted::program().unwrap());
        let output = try_run(command.arg0("fsck.unionfs").args([how, &list.join(":")]));
        (output.status.code(), output.text)
    };
    let (status, text) = fsck("-p");
    assert!(matches!(status, Some(0 | 1)), "round {round}: {status:?} {text}");
    let (status, again) = fsck("-n");
    assert_eq!(status, Some(0), "round {round}: {text}, then {again}");
}

/// A server that is killed while it takes snapshots leaves all that was written, with the old
/// branches and with the new one. Programs write by passthrough even after the kill.
fn a_server_is_killed_during_snapshots(transport: Transport) {
    for (round, xfs) in (0..(if long() { 40 } else { 4 })).zip([true, false].into_iter().cycle()) {
        let mut fx = Fixture::new(transport, |s| if xfs { s.xfs("disk") } else { s.btrfs("disk") }, "");
        let names: Vec<String> = (0..8).map(|at| format!("dir/log{at}")).collect();
        let writers: Vec<Writer> = names.iter().map(|name| appender(&fx.path(name))).collect();
        // The writers write before the snapshots, and after the kill.
        thread::sleep(Duration::from_millis(20));
        let killed = fx.union.kill_after(Duration::from_millis(40 + 37 * round % 150));
        let mut count = 0;
        while !killed.load(Ordering::Relaxed) {
            let dir = fx.disk.join(format!("s{count}"));
            fs::create_dir(&dir).unwrap();
            fx.branches.insert(0, dir.clone());
            let (status, text) = fx.ctl(&["--snapshot", dir.to_str().unwrap()]);
            assert!(status == Some(0) || killed.load(Ordering::Relaxed), "{text}");
            count += 1;
        }
        thread::sleep(Duration::from_millis(20));
        let written: Vec<u64> = writers.into_iter().map(Writer::stop).collect();
        fx.union.crash();
        if round % 4 >= 2 {
            fsck_completes(&fx.branches[1..], round);
        }
        // The last snapshot may have been taken or not.
        let last = &fx.branches[..2];
        let old = Mounted::try_new(spec(&fx.branches[1..], 1, fx.transport), &fx.sandbox.path("old"), "").unwrap();
        let old_counts: Vec<u64> = names.iter().map(|name| records(&old.path(name))).collect();
        drop(old);
        let states: Vec<_> = fx.branches[2..].iter().map(|branch| frozen(branch)).collect();
        let new = Mounted::try_new(spec(&fx.branches, 1, fx.transport), &fx.sandbox.path("new"), "").unwrap();
        let counts: Vec<u64> = names.iter().map(|name| records(&new.path(name))).collect();
        assert_eq!(counts, written, "round {round}");
        let taken = names.iter().filter(|name| last[0].join(name).exists()).count();
        assert!(taken == 0 || taken == names.len(), "round {round}: {taken}");
        if taken == 0 {
            assert_eq!(old_counts, written, "round {round}");
        }
        drop(new);
        for (branch, before) in fx.branches[2..].iter().zip(&states) {
            assert_eq!(&frozen(branch), before, "round {round}: {}", branch.display());
        }
    }
}

/// Other users and unsuitable directories are refused.
fn refusals(transport: Transport) {
    let fx = Fixture::new(transport, |sandbox| sandbox.ext4("disk", 64), "");
    let dir = |name: &str| {
        let dir = fx.disk.join(name);
        fs::create_dir(&dir).unwrap();
        dir.to_str().unwrap().to_owned()
    };
    let (empty, full) = (dir("empty"), dir("full"));
    fs::write(fx.disk.join("full/file"), "").unwrap();
    let base = fx.branches[2].to_str().unwrap().to_owned();
    let inside = fx.path("dir").to_str().unwrap().to_owned();
    for (words, status, reason) in [
        (vec!["--snapshot", full.as_str()], 32, "not empty"),
        (vec!["--snapshot", base.as_str()], 32, "is in the union already"),
        (vec!["--snapshot", inside.as_str()], 32, "is a directory of the union itself"),
        (vec!["--snapshot", "/nowhere"], 32, "no such file or directory"),
        (vec!["--snapshot"], 1, "--snapshot"),
        (vec!["--snapshot", empty.as_str(), "--add", base.as_str()], 1, "--add"),
        (vec!["--snapshot", empty.as_str(), base.as_str()], 1, "unexpected argument"),
    ] {
        let (code, text) = fx.ctl(&words);
        assert!(code == Some(status) && text.contains(reason), "{words:?}: {code:?} {text}");
        assert_eq!(fx.ctl(&["--list"]).1.lines().count(), 3);
    }
    let program = fx.sandbox.path("unionctl");
    fs::copy(Mounted::program().unwrap(), &program).unwrap();
    let mut user = Command::new("setpriv");
    user.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(&program).arg(fx.union.dir());
    let output = try_run(user.args(["--snapshot", empty.as_str()]));
    assert!(output.status.code() == Some(1) && output.text.contains("only root"), "{}", output.text);
    let (status, json) = fx.ctl(&["--snapshot", empty.as_str(), "--json"]);
    assert!(status == Some(0) && json.contains("\"mode\":\"ro\""), "{json}");
}

/// Programs that are listing a directory, or removing one, get each name once. Only the first
/// branch has the directory, so its positions were those of that branch.
fn listings_continue(transport: Transport) {
    let mut fixture = Fixture::new(transport, |sandbox| sandbox.ext4("disk", 64), "");
    let names: Vec<String> = (0..3001).map(|n| format!("file{n}")).collect();
    let large = fixture.path("large");
    fs::create_dir(&large).unwrap();
    names.iter().for_each(|name| fs::write(large.join(name), "").unwrap());
    let mut readers: Vec<_> = [1, 700, 1600, 2999]
        .map(|taken| {
            let mut entries = fs::read_dir(&large).unwrap().map(|entry| entry.unwrap().file_name());
            let got: Vec<_> = entries.by_ref().take(taken).collect();
            (entries, got)
        })
        .into();
    fixture.snapshot("later");
    fs::write(large.join("new"), "").unwrap();
    for (rest, got) in &mut readers {
        got.extend(rest.filter(|name| name != "new"));
        got.sort();
        let mut expected: Vec<OsString> = names.iter().map(OsString::from).collect();
        expected.sort();
        assert!(*got == expected, "{} names", got.len());
    }
    let removed = thread::spawn(move || fs::remove_dir_all(large));
    for later in ["later2", "later3", "later4"] {
        fixture.snapshot(later);
    }
    removed.join().unwrap().unwrap();
}

on_both_transports!(
    files_are_carried_on_xfs,
    files_are_carried_on_btrfs,
    programs_do_not_notice,
    open_files_prevent_a_snapshot_elsewhere,
    without_passthrough_all_files_can_be_written,
    a_server_is_killed_during_snapshots,
    refusals,
    listings_continue,
);
