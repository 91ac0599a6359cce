use crate::watchdog::{self, Watchdog};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Mount point of the sandbox. Only the test's threads and their child processes see it.
pub(crate) const ROOT: &str = "/mnt";

/// Allows one sandbox at a time per process: some tests count requests, and the machine may be
/// small.
static SERIAL: Mutex<()> = Mutex::new(());

/// A private mount namespace with a tmpfs at `/mnt`. Everything that a test creates there
/// disappears with it.
///
/// The namespace belongs to the calling thread and to all threads and processes that it starts
/// afterwards, so that tests of one process don't see each other's mounts.
#[derive(Debug)]
pub struct Sandbox {
    watchdog: Watchdog,
    _serial: MutexGuard<'static, ()>,
}

impl Sandbox {
    /// Creates a sandbox with a time limit of two minutes.
    #[must_use]
    pub fn new() -> Self {
        Self::with_time(Duration::from_secs(120))
    }

    /// Creates a sandbox with a time limit. When it expires, the watchdog aborts the mounts and the
    /// test fails.
    #[must_use]
    pub fn with_time(time: Duration) -> Self {
        let serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
        testkit::own_mounts();
        mount("tmpfs", ROOT, "tmpfs", MountFlags::empty(), Some(c"mode=755")).expect("tmpfs on /mnt");
        let control = Path::new("/sys/fs/fuse/connections");
        if control.exists() && fs::read_dir(control).is_ok_and(|mut d| d.next().is_none()) {
            // Without fusectl the watchdog can't abort a hung connection; nothing else depends on
            // it.
            let _ = mount("fusectl", control, "fusectl", MountFlags::empty(), None);
        }
        Self { watchdog: Watchdog::start(if crate::long() { time * 10 } else { time }), _serial: serial }
    }

    /// Returns the path of `name` in the sandbox.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(ROOT).join(name)
    }

    /// Creates a directory in the sandbox.
    #[must_use]
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir_all(&dir).expect("a directory in the sandbox");
        dir
    }

    /// Creates an ext4 file system of `mib` MiB and mounts it at `/mnt/NAME`, with `noatime`, so
    /// that reading changes nothing.
    #[must_use]
    pub fn ext4(&self, name: &str, mib: u64) -> PathBuf {
        let options = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=1"];
        let dir = self.file_system("ext4", &options, name, mib);
        fs::remove_dir(dir.join("lost+found")).expect("an empty lost+found");
        dir
    }

    /// As [`Self::ext4`], with XFS, which supports reflinks. It has at least 300 MiB.
    #[must_use]
    pub fn xfs(&self, name: &str) -> PathBuf {
        self.file_system("xfs", &["-q", "-f", "-m", "reflink=1"], name, 300)
    }

    /// As [`Self::ext4`], with btrfs.
    #[must_use]
    pub fn btrfs(&self, name: &str) -> PathBuf {
        self.file_system("btrfs", &["-q", "-f"], name, 300)
    }

    /// Creates and mounts a Btrfs file system, and returns a subvolume of it with a quota of `mib`
    /// MiB.
    ///
    /// # Panics
    /// If it can't be created or mounted.
    pub fn btrfs_with_quota(&self, name: &str, mib: u64) -> PathBuf {
        let (dir, limit) = (self.btrfs(name), format!("{mib}M"));
        let subvolume = dir.join("subvolume");
        let run = |arguments: &[&str], path: &Path| {
            crate::process::run(Command::new("btrfs").args(arguments).arg(path));
        };
        run(&["quota", "enable"], &dir);
        run(&["subvolume", "create"], &subvolume);
        run(&["qgroup", "limit", &limit], &subvolume);
        subvolume
    }

    fn file_system(&self, kind: &str, options: &[&str], name: &str, mib: u64) -> PathBuf {
        let dir = self.dir(name);
        let image = self.path(&format!("{name}.img"));
        let file = fs::File::create(&image).expect("an image");
        file.set_len(mib << 20).expect("the size of the image");
        crate::process::run(Command::new(format!("mkfs.{kind}")).args(options).arg(&image));
        let mut mount = Command::new("mount");
        crate::process::run(mount.args(["-t", kind, "-o", "loop,noatime"]).arg(&image).arg(&dir));
        dir
    }

    /// Remounts the file system at `dir` read-only.
    pub fn read_only(&self, dir: &Path) {
        crate::process::run(Command::new("mount").args(["-o", "remount,ro"]).arg(dir));
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if std::thread::panicking() {
            watchdog::print_logs(Path::new(ROOT));
        }
        let left = clear();
        self.watchdog.stop();
        assert!(std::thread::panicking() || left.is_empty(), "left in the sandbox: {left:?}");
    }
}

/// Unmounts what is mounted there. Waits for processes that are ending: their program may lie
/// there. Returns whether it is unmounted.
fn unmount_within(dir: &Path, patience: Duration) -> bool {
    let mut outcome = Ok(());
    let ends = testkit::holds_within(patience, || {
        outcome = unmount(dir, UnmountFlags::NOFOLLOW);
        outcome != Err(rustix::io::Errno::BUSY)
    });
    ends && outcome.is_ok()
}

/// Unmounts everything in the sandbox in reverse order, then kills remaining servers. Returns the
/// mounts that were busy and the servers that were killed.
fn clear() -> Vec<String> {
    let mut left = Vec::new();
    let mut rounds = 0;
    while let Some(at) = watchdog::mounts_below(Path::new(ROOT)).pop() {
        rounds += 1;
        let patience = if at.dir == Path::new(ROOT) { Duration::ZERO } else { Duration::from_secs(1) };
        if unmount_within(&at.dir, patience) {
            continue;
        }
        if at.dir != Path::new(ROOT) {
            left.push(at.dir.display().to_string());
        }
        if unmount(&at.dir, UnmountFlags::DETACH).is_err() || rounds > 1000 {
            break;
        }
    }
    if !testkit::holds_within(Duration::from_secs(20), || watchdog::servers().is_empty()) {
        for pid in watchdog::servers() {
            left.push(format!("server {pid}"));
            watchdog::kill(pid);
        }
    }
    left
}
