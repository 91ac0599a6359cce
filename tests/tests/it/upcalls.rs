//! Notifications from a layer to the server, and cache lifetimes in the kernel.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fuse::Opcode;
use hostfs::{HostFs, HostOptions};
use rustix::mm::{MapFlags, ProtFlags};
use server::Config;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use strata_tests::mapping::Mapping;
use strata_tests::{Sandbox, Transport, long, on_both_transports};
use testkit::names;
use vnode::{Cx, Layer, Name, Properties, Result, Upcalls, Vnode, forward};
use wrapfs::Template;
use wrapfs::hooks::{Op, OpKind, OpSet, Operations, Verdict};

/// Cache lifetime in the kernel: longer than the test.
const CACHE: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of the host as a layer that gives the test its `Upcalls`.
#[derive(Debug)]
struct NotifyingLayer {
    lower: Arc<dyn Layer>,
    upcalls: OnceLock<Arc<dyn Upcalls>>,
    varies: bool,
}

impl Layer for NotifyingLayer {
    fn properties(&self) -> Properties {
        Properties {
            varies_by_caller: self.varies,
            attributes_vary_by_caller: self.varies,
            data_varies_by_caller: self.varies,
            ..self.lower.properties()
        }
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        assert!(self.upcalls.set(upcalls).is_ok(), "attached once");
    }

    fn reports(&self) -> Option<Arc<dyn vnode::Reports>> {
        None
    }

    fn root(&self) -> Arc<dyn Vnode> {
        self.lower.root()
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        self.lower.vnode(cx, number)
    }

    forward!(lower: commands, sync, unmounted);
}

struct Fixture {
    mounted: server::Mounted,
    layer: Arc<NotifyingLayer>,
    below: PathBuf,
    dir: PathBuf,
    _sandbox: Sandbox,
}

impl Fixture {
    fn new(
        transport: Transport,
        passthrough: bool,
        varies: bool,
        over: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>,
    ) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(240));
        let (below, dir) = (sandbox.ext4("below", 64), sandbox.dir("mount"));
        let options = HostOptions { name_cache_ttl: Duration::ZERO, ..HostOptions::default() };
        let lower: Arc<dyn Layer> = HostFs::open(&below, options).unwrap();
        let layer = Arc::new(NotifyingLayer { lower: over(lower), upcalls: OnceLock::new(), varies });
        let mut config = Config::new(dir.clone(), "upcalls", "test");
        config.mount.allow_other = true;
        config.passthrough = passthrough;
        config.cache = CACHE;
        config.commands = vec![make_and_report(&layer, &below)];
        config.mount.transport = match transport {
            Transport::Ring => fuse::Transport::Ring,
            Transport::Device => fuse::Transport::Device,
        };
        let mounted = server::mount(Arc::clone(&layer) as Arc<dyn Layer>, &config).unwrap();
        Self { mounted, layer, below, dir, _sandbox: sandbox }
    }

    fn plain(transport: Transport, passthrough: bool) -> Self {
        Self::new(transport, passthrough, false, |lower| lower)
    }

    fn upcalls(&self) -> &Arc<dyn Upcalls> {
        self.layer.upcalls.get().unwrap()
    }

    fn settle(&self) {
        assert!(self.upcalls().settle(PATIENCE), "the kernel was not notified in {PATIENCE:?}");
    }

    fn below(&self, name: &str) -> PathBuf {
        self.below.join(name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn number(&self, name: &str) -> u64 {
        fs::symlink_metadata(self.path(name)).unwrap().ino()
    }

    /// Returns the number of requests with that opcode that `what` causes.
    fn requests(&self, opcode: Opcode, what: impl FnOnce()) -> u64 {
        let count = || self.mounted.session().counters().total(opcode);
        let before = count();
        what();
        count() - before
    }
}

/// Returns a command that makes a file below the mount, and reports it after many others.
fn make_and_report(layer: &Arc<NotifyingLayer>, below: &Path) -> server::Command {
    let (layer, below) = (Arc::clone(layer), below.to_owned());
    let declared = vnode::Command { name: "server.make", help: "", access: vnode::CommandAccess::Anyone };
    let run = move |_: &server::Invocation<'_>| {
        fs::write(below.join("made"), "").unwrap();
        let report = |text: &str| layer.upcalls.get().unwrap().entry_changed(layer.root().id(), name(text));
        (0..10_000).for_each(|other| report(&format!("other{other}")));
        report("made");
        Ok(Vec::new())
    };
    server::Command { declared, run: Arc::new(run) }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.mounted.stop().unwrap();
        self.mounted.wait();
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Overwrites a file without a change of size or modification time.
fn overwrite_unnoticed(path: &Path, data: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(data, 0).unwrap();
    file.set_modified(modified).unwrap();
}

fn notified_changes_are_visible_at_once(transport: Transport) {
    let fixture = Fixture::plain(transport, false);
    fs::write(fixture.below("f"), b"old").unwrap();
    fs::create_dir(fixture.below("d")).unwrap();
    let root = fs::metadata(&fixture.dir).unwrap().ino();
    assert_eq!(fs::read(fixture.path("f")).unwrap(), b"old");
    let mode = || fs::metadata(fixture.path("f")).unwrap().permissions().mode() & 0o777;
    let before = mode();

    fs::set_permissions(fixture.below("f"), fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(mode(), before, "cached");
    fixture.upcalls().attributes_changed(fixture.number("f"));
    fixture.settle();
    assert_eq!(mode(), 0o751);

    // Data of an open file.
    let open = File::open(fixture.path("f")).unwrap();
    let read = || {
        let mut bytes = [0; 3];
        open.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert_eq!(&read(), b"old");
    overwrite_unnoticed(&fixture.below("f"), b"new");
    assert_eq!(&read(), b"old", "cached");
    fixture.upcalls().data_changed(fixture.number("f"), 0..u64::MAX);
    fixture.settle();
    assert_eq!(&read(), b"new");

    // A negative entry, an entry that refers to another object, and the listings with them.
    assert_eq!(fs::metadata(fixture.path("d/later")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(&fixture.path("d")), [""; 0]);
    fs::write(fixture.below("d/later"), b"1").unwrap();
    assert_eq!(fs::metadata(fixture.path("d/later")).unwrap_err().kind(), ErrorKind::NotFound, "cached");
    fixture.upcalls().entry_changed(fixture.number("d"), name("later"));
    fixture.settle();
    assert_eq!(fs::read(fixture.path("d/later")).unwrap(), b"1");
    assert_eq!(names(&fixture.path("d")), ["later"]);
    fs::rename(fixture.below("f"), fixture.below("d/later")).unwrap();
    fixture.upcalls().entry_changed(fixture.number("d"), name("later"));
    fixture.upcalls().entry_changed(root, name("f"));
    fixture.settle();
    assert_eq!(fs::read(fixture.path("d/later")).unwrap(), b"new");
    assert_eq!(fs::metadata(fixture.path("f")).unwrap_err().kind(), ErrorKind::NotFound);

    // Everything at once.
    fs::write(fixture.below("g"), b"g").unwrap();
    fs::set_permissions(fixture.below("d"), fs::Permissions::from_mode(0o700)).unwrap();
    overwrite_unnoticed(&fixture.below("d/later"), b"end");
    fixture.upcalls().everything_changed();
    fixture.settle();
    assert_eq!(fs::read(fixture.path("d/later")).unwrap(), b"end");
    assert_eq!(fs::metadata(fixture.path("d")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(names(&fixture.dir), ["d", "g"]);
}

/// The caller of a command sees all that it changed.
fn commands_reply_after_their_notifications(transport: Transport) {
    let fixture = Fixture::plain(transport, false);
    let dir = File::open(&fixture.dir).unwrap();
    for _ in 0..5 {
        assert!(!fixture.path("made").exists());
        fuse::control::call(&dir, "server.make", b"").unwrap();
        assert!(fixture.path("made").exists());
        fs::remove_file(fixture.path("made")).unwrap();
    }
}

/// A command that changes something while another program waits in the same directory for a lookup.
fn commands_and_lookups_do_not_deadlock(transport: Transport) {
    let fixture = Fixture::plain(transport, false);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let lookups = scope.spawn(|| {
            for round in 0_u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                drop(fs::write(fixture.path(&format!("own{}", round % 10)), ""));
                assert!(!fixture.path(&format!("never{round}")).exists());
            }
        });
        let dir = File::open(&fixture.dir).unwrap();
        for _ in 0..10 {
            let begun = Instant::now();
            fuse::control::call(&dir, "server.make", b"").unwrap();
            assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        }
        done.store(true, Ordering::Relaxed);
        lookups.join().unwrap();
    });
}

/// Pages of a mapping reach the layers, also after an unmount that left the file open.
fn dirty_pages_are_written_back(transport: Transport) {
    let fixture = Fixture::plain(transport, false);
    fs::write(fixture.path("f"), vec![b'.'; 20_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(fixture.path("f")).unwrap();
    let mut mapping = Mapping::new(&file, 20_000, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
    drop(file);
    let text = |from: usize, len: usize| fs::read(fixture.below("f")).unwrap()[from..from + len].to_vec();
    for (at, bytes) in [(0, b"first"), (10_000, b"later")] {
        mapping.write(at, bytes);
        fixture.mounted.write_back().unwrap();
        assert_eq!(text(at, 5), bytes);
    }
    assert_eq!(mapping.read(0, 5), b"first");
}

fn passthrough_stops_and_drains(transport: Transport) {
    let fixture = Fixture::plain(transport, true);
    fs::write(fixture.path("f"), b"0123456789").unwrap();
    let number = fixture.number("f");
    let both = || OpenOptions::new().read(true).write(true).open(fixture.path("f")).unwrap();
    let read = |file: &File| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let reads = |file: &File| fixture.requests(Opcode::Read, || assert_eq!(read(file).len(), 4));

    let first = both();
    assert_eq!(fixture.upcalls().passthrough(), [number]);
    assert_eq!(reads(&first), 0);
    let (drain, drained) = channel();
    let (again, once_more) = (drain.clone(), drain.clone());
    fixture.upcalls().stop_passthrough(number, Box::new(move || drain.send(()).unwrap()));
    fixture.upcalls().stop_passthrough(number, Box::new(move || again.send(()).unwrap()));
    let second = both();
    assert_eq!(reads(&second), 1, "the read is no request");
    first.write_all_at(b"abcd", 0).unwrap();
    assert_eq!((&read(&second), &read(&first)), (b"abcd", b"abcd"));
    second.write_all_at(b"ABCD", 0).unwrap();
    assert_eq!((&read(&second), &read(&first)), (b"ABCD", b"ABCD"));
    assert!(drained.try_recv().is_err(), "drained although one file is open");
    drop((first, second));
    drained.recv_timeout(PATIENCE).unwrap();
    drained.recv_timeout(PATIENCE).unwrap();
    assert_eq!(fixture.upcalls().passthrough(), [0_u64; 0]);

    let third = both();
    assert_eq!((&read(&third), reads(&third)), (b"ABCD", 0), "through the page cache");
    assert_eq!(fixture.upcalls().passthrough(), [0_u64; 0]);
    fixture.upcalls().stop_passthrough(number, Box::new(move || once_more.send(()).unwrap()));
    drained.recv_timeout(PATIENCE).unwrap();
    drop(third);
    fixture.upcalls().allow_passthrough(number);
    // RELEASE arrives after close(2) has returned.
    let last = testkit::until("passthrough resumes", || {
        let last = both();
        let numbers = fixture.upcalls().passthrough();
        if numbers == [number] { Ok(last) } else { Err(numbers) }
    });
    assert_eq!((&read(&last), reads(&last)), (b"ABCD", 0));
}

/// Notifications wait for locks that the kernel holds during requests: here for the same names and
/// files, as fast as both sides can.
fn notifications_and_requests_do_not_deadlock(transport: Transport) {
    let fixture = Fixture::plain(transport, false);
    let names: Vec<String> = (0..16).map(|i| format!("f{i}")).collect();
    for name in &names {
        fs::write(fixture.path(name), vec![b'x'; 8192]).unwrap();
    }
    let numbers: Vec<u64> = names.iter().map(|name| fixture.number(name)).collect();
    let root = fs::metadata(&fixture.dir).unwrap().ino();
    // Pending notifications for the same object are merged, so more are requested than sent.
    let wanted: u64 = if long() { 1_000_000 } else { 30_000 };
    let sent = || fixture.mounted.session().counters().notifications;
    let (stop, done, notified) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (dir, upcalls) = (&fixture.dir, fixture.upcalls());
    let at = |i: usize| dir.join(&names[i % names.len()]);
    std::thread::scope(|scope| {
        let busy = |work: &(dyn Fn(usize) + Sync)| {
            (0..usize::MAX).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|i| {
                work(i);
                done.fetch_add(1, Ordering::Relaxed);
            });
        };
        scope.spawn(move || busy(&|i| drop(fs::metadata(at(i)))));
        scope.spawn(move || busy(&|i| drop(fs::rename(at(i), at(i * 7 + 1)))));
        scope.spawn(move || busy(&|i| drop(File::open(at(i)).and_then(|mut f| f.read(&mut [0; 8192])))));
        scope.spawn(move || {
            busy(&|i| {
                // Never removes a name.
                let file = OpenOptions::new().create(true).truncate(false).write(true).open(at(i));
                drop(file.and_then(|f| f.write_all_at(&[b'y'; 4096], 4096)));
            });
        });
        scope.spawn(move || busy(&|_| drop(fs::read_dir(dir).map(Iterator::count))));
        let (names, numbers, notified, sent) = (&names, &numbers, &notified, &sent);
        let tellers: Vec<_> = (0..2_usize)
            .map(|thread| {
                scope.spawn(move || {
                    let mut i = thread;
                    while sent() < wanted {
                        notified.fetch_add(3, Ordering::Relaxed);
                        let (name_of, number) = (&names[i % names.len()], numbers[i % numbers.len()]);
                        upcalls.entry_changed(root, name(name_of));
                        upcalls.attributes_changed(number);
                        upcalls.data_changed(number, 0..4096 * (i as u64 % 3 + 1));
                        if i.is_multiple_of(10_000) {
                            upcalls.everything_changed();
                        }
                        i += 2;
                    }
                })
            })
            .collect();
        tellers.into_iter().for_each(|teller| teller.join().unwrap());
        fixture.settle();
        stop.store(true, Ordering::Relaxed);
    });
    let (notified, done) = (notified.into_inner(), done.into_inner());
    println!("{notified} notifications requested, {} sent, {done} operations meanwhile", sent());
    assert!(notified >= wanted && done > 1000);
    assert!(names.iter().filter(|name| fixture.path(name).exists()).count() > 0);
}

/// A layer that sets cache lifetimes by name.
#[derive(Debug)]
struct Limits {
    /// Number of the object whose attributes the kernel must not cache.
    uncached: Arc<AtomicU64>,
}

impl Operations for Limits {
    fn interest(&self) -> OpSet {
        OpSet::of(&[OpKind::Lookup, OpKind::Getattr])
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        match op {
            Op::Lookup { name, .. } if name.as_bytes().starts_with(b"never") => cx.limit_name_lifetime(Duration::ZERO),
            Op::Lookup { name, .. } if name.as_bytes().starts_with(b"attr") => {
                cx.limit_attr_lifetime(Duration::ZERO);
            }
            Op::Getattr { file } if file.id() == self.uncached.load(Ordering::Relaxed) => {
                cx.limit_attr_lifetime(Duration::ZERO);
            }
            _ => {}
        }
        Ok(Verdict::Proceed)
    }
}

fn each_reply_has_its_own_lifetime(transport: Transport) {
    let uncached = Arc::new(AtomicU64::new(0));
    let limits = Limits { uncached: Arc::clone(&uncached) };
    let over = |lower| -> Arc<dyn Layer> { Template::over(lower).operations(limits).build().unwrap() };
    let fixture = Fixture::new(transport, false, false, over);
    for file in ["usual", "never", "attr"] {
        fs::write(fixture.below(file), b"").unwrap();
    }
    let stat = |name: &str| drop(fs::metadata(fixture.path(name)));
    for name in ["usual", "never", "attr", "usual-missing", "never-missing"] {
        stat(name);
    }
    for (name, lookups) in [("usual", 0), ("never", 3), ("attr", 0), ("usual-missing", 0), ("never-missing", 3)] {
        assert_eq!(fixture.requests(Opcode::Lookup, || (0..3).for_each(|_| stat(name))), lookups, "{name}");
    }
    // The time of birth is requested as well, by STATX.
    let requests_for = |name: &str| fixture.requests(Opcode::Statx, || (0..3).for_each(|_| stat(name)));
    uncached.store(fixture.number("attr"), Ordering::Relaxed);
    fixture.upcalls().attributes_changed(fixture.number("attr"));
    fixture.settle();
    assert_eq!((requests_for("attr"), requests_for("usual")), (3, 0));
    // Entries of a listing have individual lifetimes, independent of their neighbours.
    fs::create_dir(fixture.below("d")).unwrap();
    for file in ["d/a", "d/never", "d/z"] {
        fs::write(fixture.below(file), b"").unwrap();
    }
    assert_eq!(names(&fixture.path("d")).len(), 3);
    for (name, lookups) in [("d/a", 0), ("d/never", 3), ("d/z", 0)] {
        stat(name);
        assert_eq!(fixture.requests(Opcode::Lookup, || (0..3).for_each(|_| stat(name))), lookups, "{name}");
    }
}

fn nothing_is_cached_where_callers_differ(transport: Transport) {
    let fixture = Fixture::new(transport, false, true, |lower| lower);
    fs::write(fixture.below("f"), b"data").unwrap();
    fs::create_dir(fixture.below("d")).unwrap();
    fs::write(fixture.below("d/e"), b"").unwrap();
    std::os::unix::fs::symlink("f", fixture.below("l")).unwrap();
    let twice = |opcode, what: &dyn Fn()| {
        what();
        fixture.requests(opcode, what)
    };
    assert!(twice(Opcode::Lookup, &|| drop(fs::metadata(fixture.path("f")))) > 0, "names");
    assert!(twice(Opcode::Lookup, &|| drop(fs::metadata(fixture.path("none")))) > 0, "missing names");
    let open = File::open(fixture.path("f")).unwrap();
    assert!(twice(Opcode::Statx, &|| drop(open.metadata())) > 0, "attributes");
    assert!(twice(Opcode::Readlink, &|| drop(fs::read_link(fixture.path("l")))) > 0, "links");
    assert!(twice(Opcode::Read, &|| drop(open.read_at(&mut [0; 4], 0))) > 0, "data");
    let listed = fixture.requests(Opcode::Readdirplus, || drop(names(&fixture.path("d"))))
        + fixture.requests(Opcode::Readdir, || drop(names(&fixture.path("d"))));
    assert!(listed > 1, "listings");
}

/// The caller's attributes as a layer sees them.
type Facts = (u32, Vec<u32>, Option<(u32, u64)>, Option<PathBuf>, Option<Vec<u8>>);

#[derive(Debug)]
struct Witness(Arc<Mutex<Vec<Facts>>>);

impl Operations for Witness {
    fn interest(&self) -> OpSet {
        OpSet::of(&[OpKind::Mkdir])
    }

    fn before(&self, cx: &Cx<'_>, _op: &Op<'_>) -> Result<Verdict> {
        let groups = cx.groups().map(<[u32]>::to_vec).unwrap_or_default();
        let facts =
            (cx.pid, groups, cx.session(), cx.executable().map(Path::to_owned), cx.cgroup().map(<[u8]>::to_vec));
        self.0.lock().unwrap().push(facts);
        Ok(Verdict::Proceed)
    }
}

fn layers_see_their_callers(transport: Transport) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let witness = Witness(Arc::clone(&seen));
    let fixture =
        Fixture::new(transport, false, false, |lower| Template::over(lower).operations(witness).build().unwrap());
    fs::set_permissions(fixture.below(""), fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "exec setsid setpriv --reuid 1000 --regid 1000 --groups 7,1000,1001 /bin/sh -c 'echo $$; cat /proc/$$/cgroup; exec mkdir {}/made'",
        fixture.dir.display()
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    let pid: u32 = output.lines().next().unwrap().parse().unwrap();
    let cgroup = output.lines().find_map(|line| line.strip_prefix("0::")).map(|path| path.as_bytes().to_vec());
    let facts = seen.lock().unwrap().pop().unwrap();
    assert_eq!((facts.0, &*facts.1), (pid, &[7, 1000, 1001][..]));
    let (session, start) = facts.2.unwrap();
    assert!(session == pid && start > 0, "{session} is the session of {pid}, which started at {start}");
    assert_eq!(facts.3.unwrap().file_name().unwrap(), "mkdir");
    assert_eq!(facts.4, cgroup);
}

on_both_transports!(
    notified_changes_are_visible_at_once,
    commands_reply_after_their_notifications,
    commands_and_lookups_do_not_deadlock,
    dirty_pages_are_written_back,
    passthrough_stops_and_drains,
    notifications_and_requests_do_not_deadlock,
    each_reply_has_its_own_lifetime,
    nothing_is_cached_where_callers_differ,
    layers_see_their_callers,
);
