//! Shared fixtures of the mounted tests.

#![allow(dead_code, unreachable_pub)]

pub mod dummy;
pub mod memory;

use fuse::{Errno, Filesystem, MountOptions, Session, Transport};
use memory::Memory;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Simulated kernels: with ring, device only, and Linux 6.1 (protocol 7.38).
pub const KERNELS: [(Transport, u32); 3] = [(Transport::Ring, 45), (Transport::Device, 45), (Transport::Auto, 38)];

/// A mount in its own mount namespace.
pub struct Mounted {
    pub session: Arc<Session>,
    pub fs: Arc<Memory>,
    pub path: PathBuf,
}

/// Creates an empty directory.
pub fn temporary_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("fuse-test-{}-{number}", std::process::id()));
    std::fs::create_dir(&path).unwrap();
    path
}

impl Mounted {
    pub fn new(fs: Memory, adjust: impl FnOnce(&mut MountOptions)) -> Self {
        let path = temporary_dir();
        let mut options = MountOptions { allow_other: true, ..MountOptions::new(&path) };
        adjust(&mut options);
        let fs = Arc::new(fs);
        let session = Session::mount(&options, fs.clone() as Arc<dyn Filesystem>).unwrap_or_else(|e| panic!("{e}"));
        watch(Arc::downgrade(&session));
        Self { session, fs, path }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.fs.release();
        // Fails if the test has unmounted it already.
        let _gone = self.session.stop();
        self.session.wait();
        std::fs::remove_dir(&self.path).unwrap();
    }
}

/// Runs `test` on each of [`KERNELS`] that this system supports.
pub fn on_each(test: impl Fn(&dyn Fn(Memory) -> Mounted)) {
    testkit::own_mounts();
    for (transport, minor) in KERNELS {
        if transport == Transport::Ring && !ring_is_on() {
            continue;
        }
        test(&|fs| {
            Mounted::new(fs, |options| {
                options.transport = transport;
                options.max_minor = minor;
            })
        });
    }
}

/// Whether FUSE over io_uring is switched on. If not, the test is named as skipped.
pub fn ring_is_on() -> bool {
    let on = std::fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|v| v.starts_with(b"Y"));
    if !on {
        testkit::skip("on the ring: FUSE over io_uring is switched off, or this kernel has none");
    }
    on
}

/// Aborts the connection after a while: a test that hangs on its own mount could not be killed.
fn watch(session: Weak<Session>) {
    std::thread::spawn(move || {
        let ends = testkit::holds_within(Duration::from_secs(100), || session.strong_count() == 0);
        if !ends && let Some(session) = session.upgrade() {
            eprintln!("the test hangs; counters: {}", session.counters().to_json());
            let _gone = session.abort();
        }
    });
}

/// Pins the calling thread to one CPU.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

pub fn errno(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// Returns the names of this process's threads.
pub fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |path: &Path| std::fs::read_to_string(path.join("comm")).unwrap_or_default().trim().to_owned();
    tasks.flatten().map(|task| name(&task.path())).collect()
}
