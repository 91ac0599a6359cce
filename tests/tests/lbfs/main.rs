//! The load-balancing layer on real remote replicas whose servers stop, die and come back while programs read.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod remote;

use remote::Remote;
use rustix::fs::{OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
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
use strata_tests::{Mounted, Rng, Sandbox, Transport, long, on_both_transports, process};

/// A mount of replicas.
struct Balanced {
    dir: PathBuf,
    log: PathBuf,
    up: bool,
}

impl Balanced {
    fn new(sandbox: &Sandbox, replicas: &[&Path], transport: Transport, options: &str) -> Self {
        Self::try_new(sandbox, replicas, transport, options).unwrap_or_else(|said| panic!("{said}"))
    }

    fn try_new(sandbox: &Sandbox, replicas: &[&Path], transport: Transport, options: &str) -> Result<Self, String> {
        let (dir, log) = (sandbox.dir("m"), sandbox.path("m.server.log"));
        let mut spec = OsString::new();
        for (i, replica) in replicas.iter().enumerate() {
            spec.push(if i == 0 { "" } else { ":" });
            spec.push(replica);
        }
        let options = format!("transport={},logfile={},{options}", transport.name(), log.display());
        let program = Mounted::program().expect("built: cargo build -p cli, or set STRATA_BIN");
        let mut command = Command::new(program);
        let said = process::try_run(command.arg0("/sbin/mount.lbfs").arg(spec).arg(&dir).arg("-o").arg(options));
        if said.status.success() { Ok(Self { dir, log, up: true }) } else { Err(said.text) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn statistics(&self) -> String {
        let root = fs::File::open(&self.dir).unwrap();
        String::from_utf8(fuse::control::call(&root, "lbfs.replicas", b"").unwrap()).unwrap()
    }

    /// What is believed of the replicas.
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
        let patience = Instant::now() + Duration::from_secs(30);
        while self.states() != states {
            assert!(Instant::now() < patience, "not {states:?}: {}\n{}", self.statistics(), self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn unmount(&mut self) {
        self.up = false;
        let patience = Instant::now() + Duration::from_secs(10);
        while let Err(errno) = unmount(&self.dir, UnmountFlags::NOFOLLOW) {
            assert!(errno == Errno::BUSY && Instant::now() < patience, "umount: {errno}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Balanced {
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

/// Two copies of a tree, as rsync makes them.
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
    // Every read is to reach the server, not the page cache.
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

/// Programs that read and check everything until they are told to stop.
#[derive(Default)]
struct Readers {
    stop: AtomicBool,
    done: AtomicU64,
    slowest: AtomicU64,
}

impl Readers {
    /// Notes how long the slowest call took.
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = call();
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap();
        self.slowest.fetch_max(micros, Ordering::Relaxed);
        done
    }

    /// One file, open all the time.
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

    /// Many files, looked up, examined, opened and listed anew each time.
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

    /// So many more reads were done.
    fn progress(&self, more: u64) {
        let (before, patience) = (self.done.load(Ordering::Relaxed), Instant::now() + Duration::from_secs(20));
        while self.done.load(Ordering::Relaxed) < before + more {
            assert!(Instant::now() < patience, "the readers are stuck");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Stops the readers however the test ends.
struct StopReaders<'a>(&'a Readers);

impl Drop for StopReaders<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// The deadline is for whole operations: one that hangs, an opening and a read elsewhere, on a busy machine.
const QUICK: &str = "timeout=2,ramp=0.5,probe=1,cache=0";
/// An operation ends with its deadline, and the machine is busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// Servers are stopped, killed and started again, one after the other; who reads sees nothing of it.
fn servers_stop_die_and_return(transport: Transport) {
    let sandbox = Sandbox::with_time(Duration::from_secs(200));
    let trees = copies(&sandbox);
    let remotes = [Remote::new(&sandbox, "r1", &trees[0]), Remote::new(&sandbox, "r2", &trees[1])];
    let dirs = [remotes[0].dir.as_path(), remotes[1].dir.as_path()];
    let balanced = Balanced::new(&sandbox, &dirs, transport, QUICK);
    balanced.wait_for(&["up", "up"]);
    let (readers, wanted) = (Readers::default(), Rng::new(99).bytes(LARGE));
    std::thread::scope(|scope| {
        let stop = StopReaders(&readers);
        for _ in 0..2 {
            scope.spawn(|| readers.large(&balanced.path("large"), &wanted));
        }
        scope.spawn(|| readers.small(&balanced.path("d")));
        readers.progress(50);
        for round in 0..if long() { 20 } else { 2 } {
            for (i, remote) in remotes.iter().enumerate() {
                let left = if i == 0 { ["down", "up"] } else { ["up", "down"] };
                remote.stop();
                balanced.wait_for(&left);
                readers.progress(50);
                remote.go_on();
                balanced.wait_for(&["up", "up"]);
                readers.progress(50);
                if round % 2 == 0 {
                    remote.kill();
                } else {
                    remote.kill_client();
                }
                readers.progress(50);
                balanced.wait_for(&left);
                remote.unmount();
                // What is there now is an empty directory of this machine: nobody must be given that.
                readers.progress(50);
                remote.mount();
                balanced.wait_for(&["up", "up"]);
            }
        }
        drop(stop);
    });
    let slowest = Duration::from_micros(readers.slowest.load(Ordering::Relaxed));
    assert!(slowest < PATIENCE, "{slowest:?}");
    assert!(balanced.numbers("requests").iter().all(|n| *n > 100), "{}", balanced.statistics());
    assert!(balanced.numbers("timeouts").iter().all(|n| *n > 0), "{}", balanced.statistics());
    assert_eq!(balanced.numbers("diverging"), [0]);
    drop(balanced);
    drop(remotes);
}

/// A mount can be left, and its server ends, while a replica hangs.
fn unmount_while_a_replica_hangs(transport: Transport) {
    let sandbox = Sandbox::new();
    let trees = copies(&sandbox);
    let remotes = [Remote::new(&sandbox, "r1", &trees[0]), Remote::new(&sandbox, "r2", &trees[1])];
    let mut balanced = Balanced::new(&sandbox, &[&remotes[0].dir, &remotes[1].dir], transport, QUICK);
    let held: Vec<File> = (0..FILES).map(|i| open(&balanced.path(&format!("d/f{i}"))).unwrap()).collect();
    remotes[0].stop();
    for (i, file) in held.iter().enumerate() {
        assert!(read_all(file).unwrap() == content(i as u64));
    }
    assert!(balanced.numbers("stuck_threads")[0] > 0, "{}", balanced.statistics());
    let began = Instant::now();
    drop(held);
    balanced.unmount();
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    let patience = Instant::now() + PATIENCE;
    while !balanced.said().contains("unmounted") {
        assert!(Instant::now() < patience, "the server goes on: {}", balanced.said());
        std::thread::sleep(Duration::from_millis(10));
    }
    remotes[0].go_on();
    drop(remotes);
}

/// With no server left there are errors, in time; with one back there are none.
fn all_servers_go_and_one_returns(transport: Transport) {
    let sandbox = Sandbox::new();
    let trees = copies(&sandbox);
    let remotes = [Remote::new(&sandbox, "r1", &trees[0]), Remote::new(&sandbox, "r2", &trees[1])];
    let balanced = Balanced::new(&sandbox, &[&remotes[0].dir, &remotes[1].dir], transport, QUICK);
    let held = open(&balanced.path("d/f7")).unwrap();
    remotes[0].stop();
    remotes[1].kill();
    let began = Instant::now();
    let error = loop {
        match read_all(&held) {
            Ok(_) => assert!(began.elapsed() < PATIENCE, "what was read came from nowhere"),
            Err(error) => break error,
        }
    };
    assert_ne!(error.kind(), io::ErrorKind::NotFound);
    assert!(fs::read_dir(balanced.path("d")).and_then(|mut d| d.next().transpose()).is_err());
    assert!(began.elapsed() < PATIENCE * 2, "{:?}", began.elapsed());
    // How they are can be asked, though there is none to ask for the root's attributes.
    balanced.wait_for(&["down", "down"]);
    remotes[1].unmount();
    remotes[1].mount();
    balanced.wait_for(&["down", "up"]);
    assert!(read_all(&held).unwrap() == content(7));
    assert!(read_all(&open(&balanced.path("d/f8")).unwrap()).unwrap() == content(8));
    remotes[0].go_on();
    balanced.wait_for(&["up", "up"]);
    drop(held);
    drop(balanced);
    drop(remotes);
}

/// On local replicas the tree is the replicas' tree, read-only, with numbers that last.
fn local_replicas_look_like_themselves(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 256);
    let dirs = [disk.join("one"), disk.join("two")];
    fs::create_dir(&dirs[0]).unwrap();
    build(&dirs[0], &population(31));
    process::sh("cp -a \"$1\" \"$2\"", &[&dirs[0], &dirs[1]]);
    let native = tree::read(&dirs[0]);
    let balanced = Balanced::new(&sandbox, &[&dirs[0], &dirs[1]], transport, "policy=roundrobin,compare=1");
    assert_eq!(tree::difference(&native, &tree::read(&balanced.dir), Times::Exact), "");
    let figures = rustix::fs::statvfs(&balanced.dir).unwrap();
    assert!(figures.f_flag.contains(StatVfsMountFlags::RDONLY));
    assert_eq!(fs::write(balanced.path("new"), "").unwrap_err().raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    assert!(balanced.numbers("requests").iter().all(|n| *n > 10), "{}", balanced.statistics());
    let numbers = |at: &Path| -> Vec<u64> { native.keys().map(|p| number(at, p)).collect() };
    let before = numbers(&balanced.dir);
    drop(balanced);
    // One of them alone gives the same numbers, passthrough or not.
    for (options, dirs) in [("passthrough=auto", [&dirs[0], &dirs[1]]), ("isolate=always", [&dirs[0], &dirs[1]])] {
        let balanced = Balanced::new(&sandbox, &[dirs[0], dirs[1]], transport, options);
        assert_eq!(numbers(&balanced.dir), before, "{options}");
        assert_eq!(tree::difference(&native, &tree::read(&balanced.dir), Times::Exact), "", "{options}");
    }
}

fn number(root: &Path, path: &[u8]) -> u64 {
    let path = root.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path));
    fs::symlink_metadata(path).unwrap().ino()
}

/// What is wrong is said at once; a server that is away at the time is waited for in the background.
fn mounting(transport: Transport) {
    let sandbox = Sandbox::new();
    let trees = copies(&sandbox);
    let missing = sandbox.path("missing");
    let said = Balanced::try_new(&sandbox, &[&trees[0], &missing], transport, QUICK).map(drop).unwrap_err();
    assert!(said.contains("replica /mnt/missing") && said.lines().count() == 1, "{said}");
    let said = Balanced::try_new(&sandbox, &[&trees[0]], transport, "policy=best").map(drop).unwrap_err();
    assert!(said.contains("policy"), "{said}");
    let remotes = [Remote::new(&sandbox, "r1", &trees[0]), Remote::new(&sandbox, "r2", &trees[1])];
    remotes[0].stop();
    let began = Instant::now();
    let balanced = Balanced::new(&sandbox, &[&remotes[0].dir, &remotes[1].dir], transport, QUICK);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(fs::read(balanced.path("d/f3")).unwrap() == content(3));
    remotes[0].go_on();
    balanced.wait_for(&["up", "up"]);
    drop(balanced);
    drop(remotes);
}

on_both_transports!(
    servers_stop_die_and_return,
    unmount_while_a_replica_hangs,
    all_servers_go_and_one_returns,
    local_replicas_look_like_themselves,
    mounting,
);
