//! What a layer tells the server, and how long the kernel then keeps what it knows.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fuse::Opcode;
use hostfs::{HostFs, HostOptions};
use server::Config;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use strata_tests::{Sandbox, Transport, long, on_both_transports};
use vnode::{Cx, Layer, Name, Properties, Result, Upcalls, Vnode, forward};
use wrapfs::Template;
use wrapfs::hooks::{Op, OpKind, OpSet, Operations, Verdict};

/// So long the kernel believes what it was told: for the whole test.
const CACHE: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of the host that says what it is told to say.
#[derive(Debug)]
struct Loud {
    lower: Arc<dyn Layer>,
    upcalls: OnceLock<Arc<dyn Upcalls>>,
    varies: bool,
}

impl Layer for Loud {
    fn properties(&self) -> Properties {
        Properties { varies_by_caller: self.varies, ..self.lower.properties() }
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        assert!(self.upcalls.set(upcalls).is_ok(), "attached once");
    }

    fn root(&self) -> Arc<dyn Vnode> {
        self.lower.root()
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        self.lower.vnode(cx, number)
    }

    forward!(lower: commands, sync);
}

struct Bed {
    mounted: server::Mounted,
    layer: Arc<Loud>,
    below: PathBuf,
    dir: PathBuf,
    _sandbox: Sandbox,
}

impl Bed {
    fn new(
        transport: Transport,
        passthrough: bool,
        varies: bool,
        over: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>,
    ) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(240));
        let (below, dir) = (sandbox.ext4("below", 64), sandbox.dir("mount"));
        let options = HostOptions { believed: Duration::ZERO, ..HostOptions::default() };
        let lower: Arc<dyn Layer> = HostFs::open(&below, options).unwrap();
        let layer = Arc::new(Loud { lower: over(lower), upcalls: OnceLock::new(), varies });
        let mut config = Config::new(dir.clone(), "upcalls", "test");
        config.mount.allow_other = true;
        config.passthrough = passthrough;
        config.cache = CACHE;
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
        assert!(self.upcalls().settle(PATIENCE), "the kernel was not told in {PATIENCE:?}");
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

    /// How many requests of that kind `what` leads to.
    fn requests(&self, opcode: Opcode, what: impl FnOnce()) -> u64 {
        let count = || self.mounted.session().counters().total(opcode);
        let before = count();
        what();
        count() - before
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.mounted.stop().unwrap();
        self.mounted.wait();
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn list(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Writes without leaving a trace in size or time of modification.
fn overwrite_in_secret(path: &Path, data: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(data, 0).unwrap();
    file.set_modified(modified).unwrap();
}

fn changes_show_once_they_are_told(transport: Transport) {
    let bed = Bed::plain(transport, false);
    fs::write(bed.below("f"), b"old").unwrap();
    fs::create_dir(bed.below("d")).unwrap();
    let root = fs::metadata(&bed.dir).unwrap().ino();
    assert_eq!(fs::read(bed.path("f")).unwrap(), b"old");
    let mode = || fs::metadata(bed.path("f")).unwrap().permissions().mode() & 0o777;
    let before = mode();

    // Attributes.
    fs::set_permissions(bed.below("f"), fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(mode(), before, "cached");
    bed.upcalls().attributes_changed(bed.number("f"));
    bed.settle();
    assert_eq!(mode(), 0o751);

    // Data, while the file is open.
    let open = File::open(bed.path("f")).unwrap();
    let read = || {
        let mut bytes = [0; 3];
        open.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert_eq!(&read(), b"old");
    overwrite_in_secret(&bed.below("f"), b"new");
    assert_eq!(&read(), b"old", "cached");
    bed.upcalls().data_changed(bed.number("f"), 0..u64::MAX);
    bed.settle();
    assert_eq!(&read(), b"new");

    // A missing name, one that leads to something else, and the listing with them.
    assert_eq!(fs::metadata(bed.path("d/later")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(list(&bed.path("d")), [""; 0]);
    fs::write(bed.below("d/later"), b"1").unwrap();
    assert_eq!(fs::metadata(bed.path("d/later")).unwrap_err().kind(), ErrorKind::NotFound, "cached");
    bed.upcalls().entry_changed(bed.number("d"), name("later"));
    bed.settle();
    assert_eq!(fs::read(bed.path("d/later")).unwrap(), b"1");
    assert_eq!(list(&bed.path("d")), ["later"]);
    fs::rename(bed.below("f"), bed.below("d/later")).unwrap();
    bed.upcalls().entry_changed(bed.number("d"), name("later"));
    bed.upcalls().entry_changed(root, name("f"));
    bed.settle();
    assert_eq!(fs::read(bed.path("d/later")).unwrap(), b"new");
    assert_eq!(fs::metadata(bed.path("f")).unwrap_err().kind(), ErrorKind::NotFound);

    // All at once.
    fs::write(bed.below("g"), b"g").unwrap();
    fs::set_permissions(bed.below("d"), fs::Permissions::from_mode(0o700)).unwrap();
    overwrite_in_secret(&bed.below("d/later"), b"end");
    bed.upcalls().everything_changed();
    bed.settle();
    assert_eq!(fs::read(bed.path("d/later")).unwrap(), b"end");
    assert_eq!(fs::metadata(bed.path("d")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(list(&bed.dir), ["d", "g"]);
}

fn passthrough_stops_and_drains(transport: Transport) {
    let bed = Bed::plain(transport, true);
    fs::write(bed.path("f"), b"0123456789").unwrap();
    let number = bed.number("f");
    let both = || OpenOptions::new().read(true).write(true).open(bed.path("f")).unwrap();
    let read = |file: &File| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let reads = |file: &File| bed.requests(Opcode::Read, || assert_eq!(read(file).len(), 4));

    let first = both();
    assert_eq!(bed.upcalls().passthrough(), [number]);
    assert_eq!(reads(&first), 0);
    let (tell, told) = channel();
    let (again, once_more) = (tell.clone(), tell.clone());
    bed.upcalls().stop_passthrough(number, Box::new(move || tell.send(()).unwrap()));
    bed.upcalls().stop_passthrough(number, Box::new(move || again.send(()).unwrap()));
    let second = both();
    assert_eq!(reads(&second), 1, "it comes to the server");
    first.write_all_at(b"abcd", 0).unwrap();
    assert_eq!((&read(&second), &read(&first)), (b"abcd", b"abcd"));
    second.write_all_at(b"ABCD", 0).unwrap();
    assert_eq!((&read(&second), &read(&first)), (b"ABCD", b"ABCD"));
    assert!(told.try_recv().is_err(), "one still has it");
    drop((first, second));
    told.recv_timeout(PATIENCE).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(bed.upcalls().passthrough(), []);

    let third = both();
    assert_eq!((&read(&third), reads(&third)), (b"ABCD", 0), "through the page cache");
    assert_eq!(bed.upcalls().passthrough(), []);
    bed.upcalls().stop_passthrough(number, Box::new(move || once_more.send(()).unwrap()));
    told.recv_timeout(PATIENCE).unwrap();
    drop(third);
    bed.upcalls().allow_passthrough(number);
    // RELEASE comes after close(2) has returned.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let last = both();
        if bed.upcalls().passthrough() == [number] {
            assert_eq!((&read(&last), reads(&last)), (b"ABCD", 0));
            break;
        }
        assert!(Instant::now() < deadline, "passthrough does not come back");
        drop(last);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Notifications wait for locks that the kernel holds during requests: here for the same names and
/// files, as fast as both go.
fn invalidations_under_load(transport: Transport) {
    let bed = Bed::plain(transport, false);
    let names: Vec<String> = (0..16).map(|i| format!("f{i}")).collect();
    for name in &names {
        fs::write(bed.path(name), vec![b'x'; 8192]).unwrap();
    }
    let numbers: Vec<u64> = names.iter().map(|name| bed.number(name)).collect();
    let root = fs::metadata(&bed.dir).unwrap().ino();
    // Orders that still wait are not taken twice, so more are told than are sent.
    let wanted: u64 = if long() { 1_000_000 } else { 30_000 };
    let sent = || bed.mounted.session().counters().notifications;
    let (stop, done, told) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (dir, upcalls) = (&bed.dir, bed.upcalls());
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
                // Never fewer names than there were.
                let file = OpenOptions::new().create(true).truncate(false).write(true).open(at(i));
                drop(file.and_then(|f| f.write_all_at(&[b'y'; 4096], 4096)));
            });
        });
        scope.spawn(move || busy(&|_| drop(fs::read_dir(dir).map(Iterator::count))));
        let (names, numbers, told, sent) = (&names, &numbers, &told, &sent);
        let tellers: Vec<_> = (0..2_usize)
            .map(|thread| {
                scope.spawn(move || {
                    let mut i = thread;
                    while sent() < wanted {
                        told.fetch_add(3, Ordering::Relaxed);
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
        bed.settle();
        stop.store(true, Ordering::Relaxed);
    });
    let (told, done) = (told.into_inner(), done.into_inner());
    println!("{told} told, {} sent, {done} operations beside them", sent());
    assert!(told >= wanted && done > 1000);
    assert!(names.iter().filter(|name| bed.path(name).exists()).count() > 0);
}

/// Limits how long answers are believed, by name.
#[derive(Debug)]
struct Limits {
    /// The number of the object whose attributes are never believed.
    restless: Arc<AtomicU64>,
}

impl Operations for Limits {
    fn interest(&self) -> OpSet {
        OpSet::of(&[OpKind::Lookup, OpKind::Getattr])
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        match op {
            Op::Lookup { name, .. } if name.as_bytes().starts_with(b"never") => cx.names_for_at_most(Duration::ZERO),
            Op::Lookup { name, .. } if name.as_bytes().starts_with(b"attr") => {
                cx.attributes_for_at_most(Duration::ZERO);
            }
            Op::Getattr { file } if file.id() == self.restless.load(Ordering::Relaxed) => {
                cx.attributes_for_at_most(Duration::ZERO);
            }
            _ => {}
        }
        Ok(Verdict::Proceed)
    }
}

fn answers_have_their_own_lifetimes(transport: Transport) {
    let restless = Arc::new(AtomicU64::new(0));
    let limits = Limits { restless: Arc::clone(&restless) };
    let over = |lower| -> Arc<dyn Layer> { Template::over(lower).operations(limits).build() };
    let bed = Bed::new(transport, false, false, over);
    for file in ["usual", "never", "attr"] {
        fs::write(bed.below(file), b"").unwrap();
    }
    let stat = |name: &str| drop(fs::metadata(bed.path(name)));
    for name in ["usual", "never", "attr", "usual-missing", "never-missing"] {
        stat(name);
    }
    for (name, lookups) in [("usual", 0), ("never", 3), ("attr", 0), ("usual-missing", 0), ("never-missing", 3)] {
        assert_eq!(bed.requests(Opcode::Lookup, || (0..3).for_each(|_| stat(name))), lookups, "{name}");
    }
    // It asks for the time of birth as well.
    let asked = |name: &str| bed.requests(Opcode::Statx, || (0..3).for_each(|_| stat(name)));
    restless.store(bed.number("attr"), Ordering::Relaxed);
    bed.upcalls().attributes_changed(bed.number("attr"));
    bed.settle();
    assert_eq!((asked("attr"), asked("usual")), (3, 0));
    // Entries of a listing have theirs, too, and do not take over those of their neighbours.
    fs::create_dir(bed.below("d")).unwrap();
    for file in ["d/a", "d/never", "d/z"] {
        fs::write(bed.below(file), b"").unwrap();
    }
    assert_eq!(list(&bed.path("d")).len(), 3);
    for (name, lookups) in [("d/a", 0), ("d/never", 3), ("d/z", 0)] {
        stat(name);
        assert_eq!(bed.requests(Opcode::Lookup, || (0..3).for_each(|_| stat(name))), lookups, "{name}");
    }
}

fn nothing_is_cached_where_callers_differ(transport: Transport) {
    let bed = Bed::new(transport, false, true, |lower| lower);
    fs::write(bed.below("f"), b"data").unwrap();
    fs::create_dir(bed.below("d")).unwrap();
    fs::write(bed.below("d/e"), b"").unwrap();
    std::os::unix::fs::symlink("f", bed.below("l")).unwrap();
    let twice = |opcode, what: &dyn Fn()| {
        what();
        bed.requests(opcode, what)
    };
    assert!(twice(Opcode::Lookup, &|| drop(fs::metadata(bed.path("f")))) > 0, "names");
    assert!(twice(Opcode::Lookup, &|| drop(fs::metadata(bed.path("none")))) > 0, "missing names");
    let open = File::open(bed.path("f")).unwrap();
    assert!(twice(Opcode::Statx, &|| drop(open.metadata())) > 0, "attributes");
    assert!(twice(Opcode::Readlink, &|| drop(fs::read_link(bed.path("l")))) > 0, "links");
    assert!(twice(Opcode::Read, &|| drop(open.read_at(&mut [0; 4], 0))) > 0, "data");
    let listed = bed.requests(Opcode::Readdirplus, || drop(list(&bed.path("d"))))
        + bed.requests(Opcode::Readdir, || drop(list(&bed.path("d"))));
    assert!(listed > 1, "listings");
}

/// What a layer was told of its callers.
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

fn layers_know_their_callers(transport: Transport) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let witness = Witness(Arc::clone(&seen));
    let bed = Bed::new(transport, false, false, |lower| Template::over(lower).operations(witness).build());
    fs::set_permissions(bed.below(""), fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "exec setsid setpriv --reuid 1000 --regid 1000 --groups 7,1000,1001 /bin/sh -c 'echo $$; cat /proc/$$/cgroup; exec mkdir {}/made'",
        bed.dir.display()
    );
    let said = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8(said.stdout).unwrap();
    let pid: u32 = said.lines().next().unwrap().parse().unwrap();
    let cgroup = said.lines().find_map(|line| line.strip_prefix("0::")).map(|path| path.as_bytes().to_vec());
    let facts = seen.lock().unwrap().pop().unwrap();
    assert_eq!((facts.0, &*facts.1), (pid, &[7, 1000, 1001][..]));
    let (session, start) = facts.2.unwrap();
    assert!(session == pid && start > 0, "{session} is the session of {pid}, which started at {start}");
    assert_eq!(facts.3.unwrap().file_name().unwrap(), "mkdir");
    assert_eq!(facts.4, cgroup);
}

on_both_transports!(
    changes_show_once_they_are_told,
    passthrough_stops_and_drains,
    invalidations_under_load,
    answers_have_their_own_lifetimes,
    nothing_is_cached_where_callers_differ,
    layers_know_their_callers,
);
