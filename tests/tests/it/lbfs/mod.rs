//! The load-balancing layer over remote replicas whose servers stop, die and return while programs
//! read.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod remote;

use remote::Remote;
use rustix::fs::{OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use strata_tests::oracle::population::{build, population};
use strata_tests::tree::{self, Times};
use strata_tests::{Mounted, Rng, Sandbox, Transport, long, on_both_transports, process, unmount_soon};
use testkit::{seen, until_within};

/// A mount of lbfs.
struct LbfsMount {
    dir: PathBuf,
    log: PathBuf,
    up: bool,
}

impl LbfsMount {
    fn new(sandbox: &Sandbox, replicas: &[&Path], transport: Transport, options: &str) -> Self {
        Self::try_new(sandbox, replicas, transport, options).unwrap_or_else(|output| panic!("{output}"))
    }

    fn try_new(sandbox: &Sandbox, replicas: &[&Path], transport: Transport, options: &str) -> Result<Self, String> {
        let (dir, log) = (sandbox.dir("m"), sandbox.path("m.server.log"));
        let mut spec = OsString::new();
        for (i, replica) in replicas.iter().enumerate() {
            spec.push(if i == 0 { "" } else { ":" });
            spec.push(replica);
        }
        let options = format!("transport={},logfile={},{options}", transport.name(), log.display());
        let program = Mounted::program().expect("no program to test: run cargo build -p cli, or set STRATA_BIN");
        let mut command = Command::new(program);
        let output = process::try_run(command.arg0("/sbin/mount.lbfs").arg(spec).arg(&dir).arg("-o").arg(options));
        if output.status.success() { Ok(Self { dir, log, up: true }) } else { Err(output.text) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn statistics(&self) -> String {
        let root = fs::File::open(&self.dir).unwrap();
        String::from_utf8(fuse::control::call(&root, "lbfs.replicas", b"").unwrap()).unwrap()
    }

    /// Returns the state of each replica, as lbfs sees it.
    fn states(&self) -> Vec<String> {
        self.values("\"state\":\"", '"')
    }

    fn numbers(&self, key: &str) -> Vec<u64> {
        self.values(&format!("\"{key}\":"), ',').iter().map(|n| n.trim_end_matches('}').parse().unwrap()).collect()
    }

    fn values(&self, before: &str, end: char) -> Vec<String> {
        let text = self.statistics();
        text.split(before).skip(1).map(|rest| rest.split(end).next().unwrap().to_owned()).collect()
    }

    fn wait_for(&self, states: &[&str]) {
        until_within(Duration::from_secs(30), &format!("the states {states:?}"), || {
            if self.states() == states { Ok(()) } else { Err((self.statistics(), self.log_text())) }
        });
    }

    fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn unmount(&mut self) {
        self.up = false;
        unmount_soon(&self.dir);
    }
}

impl Drop for LbfsMount {
    fn drop(&mut self) {
        if self.up && !std::thread::panicking() {
            self.unmount();
        }
    }
}

const FILES: u64 = 40;
const LARGE: usize = 8 << 20;
const STEP: usize = 128 << 10;

fn content(file: u64) -> Vec<u8> {
    Rng::new(file).bytes(usize::try_from(1 + file * 517 % 20_000).unwrap())
}

/// Creates two copies of a tree, with rsync.
fn copies(sandbox: &Sandbox) -> [PathBuf; 2] {
    let first = sandbox.dir("tree1");
    fs::create_dir(first.join("d")).unwrap();
    for i in 0..FILES {
        fs::write(first.join(format!("d/f{i}")), content(i)).unwrap();
    }
    fs::write(first.join("large"), Rng::new(99).bytes(LARGE)).unwrap();
    let second = sandbox.path("tree2");
    process::sh("rsync -aH \"$1\"/ \"$2\"", &[&first, &second]);
    [first, second]
}

fn open(path: &Path) -> io::Result<File> {
    // O_DIRECT, so that every read reaches the server.
    File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path)
}

fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; STEP];
    loop {
        match file.read_at(&mut buffer, bytes.len() as u64)? {
            0 => return Ok(bytes),
            len => bytes.extend_from_slice(&buffer[..len]),
        }
    }
}

/// Programs that read and check all data until they are stopped.
#[derive(Default)]
struct Readers {
    stop: AtomicBool,
    done: AtomicU64,
    slowest: AtomicU64,
}

impl Readers {
    /// Runs `call` and records the duration of the slowest call.
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = call();
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap();
        self.slowest.fetch_max(micros, Ordering::Relaxed);
        done
    }

    /// Reads one file that stays open.
    fn large(&self, path: &Path, wanted: &[u8]) {
        let file = open(path).unwrap();
        let mut buffer = vec![0; STEP];
        while !self.stop.load(Ordering::Relaxed) {
            for offset in (0..LARGE).step_by(STEP) {
                let len = self.timed(|| file.read_at(&mut buffer, offset as u64)).unwrap();
                assert!(buffer[..len] == wanted[offset..offset + len] && len == STEP, "at {offset}");
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reads many files, with lookup, stat, open and listing for each pass.
    fn small(&self, dir: &Path) {
        let numbers: Vec<u64> = (0..FILES).map(|i| fs::metadata(dir.join(format!("f{i}"))).unwrap().ino()).collect();
        while !self.stop.load(Ordering::Relaxed) {
            for i in 0..FILES {
                let path = dir.join(format!("f{i}"));
                let stat = self.timed(|| fs::metadata(&path)).unwrap();
                assert_eq!((stat.ino(), stat.len()), (numbers[i as usize], content(i).len() as u64));
                let file = self.timed(|| open(&path)).unwrap();
                assert!(self.timed(|| read_all(&file)).unwrap() == content(i), "f{i}");
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            assert_eq!(self.timed(|| fs::read_dir(dir).map(Iterator::count)).unwrap() as u64, FILES);
            assert_eq!(fs::metadata(dir.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    /// Waits until `more` reads have completed.
    fn progress(&self, more: u64) {
        let before = self.done.load(Ordering::Relaxed);
        until_within(Duration::from_secs(20), "the readers go on", || {
            seen(self.done.load(Ordering::Relaxed), |done| *done >= before + more)
        });
    }
}

/// Stops the readers when dropped, also after a panic.
struct StopReaders<'a>(&'a Readers);

impl Drop for StopReaders<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Mount options with short times: an operation, with its retries on other replicas, ends within
/// 2 s, and a replica that is down is probed at least every second.
const QUICK: &str = "timeout=2,ramp=0.5,probe=1,cache=0";
/// Maximum duration of a call: the time limit of an operation, and a margin for a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Servers are stopped, killed and started again, one after the other, without an error for
/// readers.
fn readers_survive_stopped_and_killed_servers(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(200));
    let trees = copies(&sandbox);
    let remotes = [Remote::new(&sandbox, "r1", &trees[0]), Remote::new(&sandbox, "r2", &trees[1])];
    let dirs = [remotes[0].dir.as_path(), remotes[1].dir.as_path()];
    let mount = LbfsMount::new(&sandbox, &dirs, transport, QUICK);
    mount.wait_for(&["up", "up"]);
    let (readers, wanted) = (Readers::default(), Rng::new(99).bytes(LARGE));
    std::thread::scope(|scope| {
        let stop = StopReaders(&readers);
        for _ in 0..2 {
            scope.spawn(|| readers.large(&mount.path("large"), &wanted));
        }
        scope.spawn(|| readers.small(&mount.path("d")));
        readers.progress(50);
        for round in 0..if long() { 20 } else { 2 } {
            for (i, remote) in remotes.iter().enumerate() {
                let left = if i == 0 { ["down", "up"] } else { ["up", "down"] };
                remote.stop();
                mount.wait_for(&left);
                readers.progress(50);
                remote.resume();
                mount.wait_for(&["up", "up"]);
                readers.progress(50);
                // All files that the kernel knows may be assigned to the other replica since the
                // stop. Those that it forgets are assigned anew.
                strata_tests::handle::drop_caches();
                if round % 2 == 0 {
                    remote.kill();
                } else {
                    remote.kill_client();
                }
                readers.progress(50);
                mount.wait_for(&left);
                remote.unmount();
                // The replica's mount point is now an empty local directory, which must not be
                // used.
                readers.progress(50);
                remote.mount();
                mount.wait_for(&["up", "up"]);
            }
        }
        drop(stop);
    });
    let slowest = Duration::from_micros(readers.slowest.load(Ordering::Relaxed));
    assert!(slowest < PATIENCE, "{slowest:?}");
    assert!(mount.numbers("requests").iter().all(|n| *n > 100), "{}", mount.statistics());
    assert!(mount.numbers("timeouts").iter().all(|n| *n > 0), "{}", mount.statistics());
    assert_eq!(mount.numbers("diverging"), [0]);
    drop(mount);
    drop(remotes);
}

/// While a replica hangs, the mount can be unmounted and its server ends.
fn unmount_while_a_replica_hangs(transport: Transport) {
    let sandbox = Sandbox::new();
    let trees = copies(&sandbox);
    let remotes = [Remote::new(&sandbox, "r1", &trees[0]), Remote::new(&sandbox, "r2", &trees[1])];
    let mut mount = LbfsMount::new(&sandbox, &[&remotes[0].dir, &remotes[1].dir], transport, QUICK);
    let held: Vec<File> = (0..FILES).map(|i| open(&mount.path(&format!("d/f{i}"))).unwrap()).collect();
    remotes[0].stop();
    for (i, file) in held.iter().enumerate() {
        assert!(read_all(file).unwrap() == content(i as u64));
    }
    assert!(mount.numbers("stuck_threads")[0] > 0, "{}", mount.statistics());
    let began = Instant::now();
    drop(held);
    mount.unmount();
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    until_within(PATIENCE, "the server ends", || seen(mount.log_text(), |text| text.contains("unmounted")));
    remotes[0].resume();
    drop(remotes);
}

/// Without a server, operations fail in bounded time; with one, they succeed.
fn all_servers_fail_and_one_returns(transport: Transport) {
    let sandbox = Sandbox::new();
    let trees = copies(&sandbox);
    let remotes = [Remote::new(&sandbox, "r1", &trees[0]), Remote::new(&sandbox, "r2", &trees[1])];
    let mount = LbfsMount::new(&sandbox, &[&remotes[0].dir, &remotes[1].dir], transport, QUICK);
    let held = open(&mount.path("d/f7")).unwrap();
    remotes[0].stop();
    remotes[1].kill();
    let began = Instant::now();
    let error = loop {
        match read_all(&held) {
            Ok(_) => assert!(began.elapsed() < PATIENCE, "reads succeed without a server"),
            Err(error) => break error,
        }
    };
    assert_ne!(error.kind(), io::ErrorKind::NotFound);
    assert!(fs::read_dir(mount.path("d")).and_then(|mut d| d.next().transpose()).is_err());
    assert!(began.elapsed() < PATIENCE * 2, "{:?}", began.elapsed());
    // The states can be queried although no replica can return the root's attributes.
    mount.wait_for(&["down", "down"]);
    remotes[1].unmount();
    remotes[1].mount();
    mount.wait_for(&["down", "up"]);
    assert!(read_all(&held).unwrap() == content(7));
    assert!(read_all(&open(&mount.path("d/f8")).unwrap()).unwrap() == content(8));
    remotes[0].resume();
    mount.wait_for(&["up", "up"]);
    drop(held);
    drop(mount);
    drop(remotes);
}

/// On local replicas the tree is that of the replicas, read-only, with stable inode numbers.
fn local_replicas_have_the_replicas_tree(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 256);
    let dirs = [disk.join("one"), disk.join("two")];
    fs::create_dir(&dirs[0]).unwrap();
    build(&dirs[0], &population(31));
    process::sh("cp -a \"$1\" \"$2\"", &[&dirs[0], &dirs[1]]);
    let native = tree::read(&dirs[0]);
    let mount = LbfsMount::new(&sandbox, &[&dirs[0], &dirs[1]], transport, "policy=roundrobin,compare=1");
    assert_eq!(tree::difference(&native, &tree::read(&mount.dir), Times::Exact), "");
    let figures = rustix::fs::statvfs(&mount.dir).unwrap();
    assert!(figures.f_flag.contains(StatVfsMountFlags::RDONLY));
    assert_eq!(fs::write(mount.path("new"), "").unwrap_err().raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    assert!(mount.numbers("requests").iter().all(|n| *n > 10), "{}", mount.statistics());
    let numbers = |at: &Path| -> Vec<u64> { native.keys().map(|p| number(at, p)).collect() };
    let before = numbers(&mount.dir);
    drop(mount);
    // One replica alone has the same inode numbers, with and without passthrough.
    for (options, dirs) in [("passthrough=auto", [&dirs[0], &dirs[1]]), ("isolate=always", [&dirs[0], &dirs[1]])] {
        let mount = LbfsMount::new(&sandbox, &[dirs[0], dirs[1]], transport, options);
        assert_eq!(numbers(&mount.dir), before, "{options}");
        assert_eq!(tree::difference(&native, &tree::read(&mount.dir), Times::Exact), "", "{options}");
    }
}

fn number(root: &Path, path: &[u8]) -> u64 {
    let path = root.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path));
    fs::symlink_metadata(path).unwrap().ino()
}

/// Errors in the options are reported at once; a server that is unreachable at mount time is probed
/// in the background.
fn mount_errors_and_unreachable_servers(transport: Transport) {
    let sandbox = Sandbox::new();
    let trees = copies(&sandbox);
    let missing = sandbox.path("missing");
    let output = LbfsMount::try_new(&sandbox, &[&trees[0], &missing], transport, QUICK).map(drop).unwrap_err();
    assert!(output.contains("replica /mnt/missing") && output.lines().count() == 1, "{output}");
    let output = LbfsMount::try_new(&sandbox, &[&trees[0]], transport, "policy=best").map(drop).unwrap_err();
    assert!(output.contains("policy"), "{output}");
    let remotes = [Remote::new(&sandbox, "r1", &trees[0]), Remote::new(&sandbox, "r2", &trees[1])];
    remotes[0].stop();
    let began = Instant::now();
    let mount = LbfsMount::new(&sandbox, &[&remotes[0].dir, &remotes[1].dir], transport, QUICK);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(fs::read(mount.path("d/f3")).unwrap() == content(3));
    remotes[0].resume();
    mount.wait_for(&["up", "up"]);
    drop(mount);
    drop(remotes);
}

/// Changes of replicas are not reported, so attributes are cached for half a second.
fn changed_replicas_show_within_a_second(transport: Transport) {
    let sandbox = Sandbox::new();
    let dirs = ["one", "two"].map(|name| sandbox.dir(name));
    let write = |text: &str| dirs.iter().for_each(|dir| fs::write(dir.join("file"), text).unwrap());
    write("text");
    let mount = LbfsMount::new(&sandbox, &[&dirs[0], &dirs[1]], transport, "passthrough=off");
    let path = mount.path("file");
    assert_eq!(fs::metadata(&path).unwrap().len(), 4);
    write("longer text");
    assert_eq!(fs::read_to_string(&path).unwrap(), "longer text", "by a new open");
    write("still longer text");
    until_within(Duration::from_secs(3), "the new size", || fs::metadata(&path).unwrap().len() == 17);
}

on_both_transports!(
    changed_replicas_show_within_a_second,
    readers_survive_stopped_and_killed_servers,
    unmount_while_a_replica_hangs,
    all_servers_fail_and_one_returns,
    local_replicas_have_the_replicas_tree,
    mount_errors_and_unreachable_servers,
);
