//! A server that is killed ends, whatever its threads wait for at that moment: its file system
//! fails from then on, and can be unmounted.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::memory::Memory;
use crate::common::{ring_is_on, temporary_dir};
use fuse::{Filesystem, MountOptions, Session, Transport};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// In the environment of a server process: what it does, and where.
const SERVER: &str = "FUSE_TEST_KILLED_SERVER";
/// Longest time that a killed server may take to end. It takes milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the server hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hang {
    Init,
    Root,
    /// In a notification that waits for a hanging request.
    Notification,
    Nowhere,
}

const HANGS: [Hang; 4] = [Hang::Init, Hang::Root, Hang::Notification, Hang::Nowhere];
const TRANSPORTS: [Transport; 2] = [Transport::Ring, Transport::Device];

/// The server process. It is a test only because this is how to start the program's code.
#[test]
fn server() {
    let Ok(spec) = std::env::var(SERVER) else { return };
    let mut fields = spec.splitn(3, ' ');
    let mut number = || fields.next().unwrap().parse::<usize>().unwrap();
    let (hang, transport) = (HANGS[number()], TRANSPORTS[number()]);
    let point = PathBuf::from(fields.next().unwrap());
    let mut memory = Memory::new();
    memory.hang_in_init = hang == Hang::Init;
    memory.hang_in_root = hang == Hang::Root;
    memory.add_file(b"slow", b"text");
    let memory = Arc::new(memory);
    let (watched, watched_by_main) = (memory.clone(), memory.clone());
    std::thread::spawn(move || {
        testkit::until("a request hangs", || watched.hanging.load(Ordering::SeqCst) > 0);
        println!("hanging");
    });
    let options = MountOptions { transport, allow_other: true, ..MountOptions::new(point) };
    println!("mounting");
    let session = Session::mount(&options, memory as Arc<dyn Filesystem>).unwrap();
    println!("mounted");
    if hang == Hang::Notification {
        let (watched, notifier) = (watched_by_main, session.notifier());
        testkit::until("a request hangs", || watched.hanging.load(Ordering::SeqCst) > 0);
        println!("notifying");
        // Waits for the lock of the directory, which the kernel holds during the lookup.
        notifier.expire_entry(1, b"slow").unwrap();
    }
    session.wait();
}

/// A server process, and what to do if it doesn't end.
struct Server {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    point: PathBuf,
}

impl Server {
    fn start(hang: Hang, transport: Transport) -> Self {
        let point = temporary_dir();
        let at = HANGS.iter().position(|h| *h == hang).unwrap();
        let of = TRANSPORTS.iter().position(|t| *t == transport).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::server", "--nocapture"])
            .env(SERVER, format!("{at} {of} {}", point.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, point }
    }

    /// Waits until the server has printed `line`.
    fn await_line(&mut self, line: &str) {
        for found in &mut self.lines {
            if found.unwrap().ends_with(line) {
                return;
            }
        }
        panic!("the server ended before it printed {line:?}");
    }

    /// Kills the server and expects that it ends and its file system can be unmounted. Otherwise
    /// aborts the connection, since the machine could not sync its disks any more.
    fn kill(mut self, what: &str, once_dead: impl FnOnce()) {
        let connections = connections(self.child.id());
        self.child.kill().unwrap();
        if !testkit::holds_within(PATIENCE, || self.child.try_wait().unwrap().is_some()) {
            let waits = stacks(self.child.id());
            abort(&connections);
            let _ended_now = self.child.wait();
            let _unmounted = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
            panic!("{what}: the killed server does not end\n{waits}");
        }
        once_dead();
        match rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => panic!("{what}: unmounting failed: {error}"),
        }
        // A client may have created a file before the mount.
        fs::remove_dir_all(&self.point).unwrap();
    }
}

/// Returns what the threads of a process wait for.
fn stacks(pid: u32) -> String {
    let read = |path: &Path, file| fs::read_to_string(path.join(file)).unwrap_or_default();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.map(|task| read(&task.path(), "comm") + &read(&task.path(), "stack")).collect()
}

/// Returns the numbers of the FUSE connections whose devices the process has open.
fn connections(pid: u32) -> BTreeSet<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let number = |info: String| Some(info.lines().find_map(|l| l.strip_prefix("fuse_connection:"))?.trim().to_owned());
    files.filter_map(|file| number(fs::read_to_string(file.path()).ok()?)).collect()
}

/// Aborts FUSE connections.
fn abort(connections: &BTreeSet<String>) {
    let control = temporary_dir();
    rustix::mount::mount("none", &control, "fusectl", rustix::mount::MountFlags::empty(), None).unwrap();
    for number in connections {
        let _gone = fs::write(control.join(number).join("abort"), "1");
    }
    rustix::mount::unmount(&control, rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::remove_dir(&control).unwrap();
}

fn on_transports(test: impl Fn(Transport)) {
    testkit::own_mounts();
    for transport in TRANSPORTS {
        if transport == Transport::Ring && !ring_is_on() {
            continue;
        }
        test(transport);
    }
}

/// Kills servers at any moment of mounting and serving, with clients that keep them busy.
#[test]
fn at_any_moment() {
    on_transports(|transport| {
        for round in 0..20 {
            let mut server = Server::start(Hang::Nowhere, transport);
            server.await_line("mounting");
            let busy = Arc::new(AtomicBool::new(true));
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let (point, busy) = (server.point.clone(), busy.clone());
                    // Their requests fail once the server is dead.
                    std::thread::spawn(move || {
                        while busy.load(Ordering::Relaxed) {
                            let _file = fs::write(point.join(format!("new{client}")), b"data");
                            let _gone = fs::remove_file(point.join(format!("new{client}")));
                            let _slow = fs::metadata(point.join(format!("later{client}")));
                        }
                    })
                })
                .collect();
            // Mounting takes some milliseconds.
            std::thread::sleep(Duration::from_micros(1000 * round));
            server.kill(&format!("{transport:?}, round {round}"), || {
                busy.store(false, Ordering::Relaxed);
                clients.into_iter().for_each(|client| client.join().unwrap());
            });
        }
    });
}

#[test]
fn while_the_mounting_thread_waits_for_init() {
    on_transports(|transport| {
        let mut server = Server::start(Hang::Init, transport);
        server.await_line("hanging");
        server.kill(&format!("{transport:?}, INIT hangs"), || ());
    });
}

#[test]
fn while_a_thread_waits_for_the_attributes_of_the_root() {
    on_transports(|transport| {
        let mut server = Server::start(Hang::Root, transport);
        server.await_line("hanging");
        server.kill(&format!("{transport:?}, GETATTR of the root directory hangs"), || ());
    });
}

/// Over the device only: nothing ends a request of the ring before its connection ends.
#[test]
fn while_a_notification_waits() {
    testkit::own_mounts();
    let mut server = Server::start(Hang::Notification, Transport::Device);
    server.await_line("mounted");
    let path = server.point.join("slow");
    let client = std::thread::spawn(move || fs::metadata(path));
    server.await_line("notifying");
    // Without the pause, the test passes whether or not the notification waits.
    std::thread::sleep(Duration::from_millis(100));
    server.kill("a notification waits", || drop(client.join().unwrap()));
}
