use crate::{Requests, process, watchdog};
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::until_within;

/// Transport between the kernel and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// FUSE over `io_uring`.
    Ring,
    /// `/dev/fuse`.
    Device,
}

impl Transport {
    /// Every transport.
    pub const ALL: [Self; 2] = [Self::Ring, Self::Device];

    /// Returns the value of the option `transport=`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Device => "device",
        }
    }
}

/// Delete mode of a union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delete {
    /// Creates a whiteout.
    Whiteout,
    /// Removes the object on every writable branch.
    All,
}

/// Mode of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read-write.
    Rw,
    /// Read-only.
    Ro,
}

/// Directory and mode of a branch.
pub type Branch = (PathBuf, Mode);

/// A file system to mount.
#[derive(Clone, Debug)]
pub enum Spec {
    /// A union.
    Union {
        /// The branches, leftmost first.
        branches: Vec<Branch>,
        /// Delete mode.
        delete: Delete,
        /// Transport.
        transport: Transport,
    },
    /// The null layer over a directory.
    Wrap {
        /// Lower directory.
        lower: PathBuf,
        /// Transport.
        transport: Transport,
    },
    /// versionfs over a directory.
    Versions {
        /// Lower directory.
        lower: PathBuf,
        /// Options of the layer, separated by commas; may be empty.
        options: String,
        /// Transport.
        transport: Transport,
    },
    /// A stack of layers in one server.
    Stack {
        /// Stack specification, top layer first.
        words: OsString,
        /// Transport.
        transport: Transport,
    },
    /// overlayfs, in place of a union: the leftmost branch is the upper directory, the others are
    /// lower directories.
    Overlay(Vec<PathBuf>),
    /// A bind mount, in place of the null layer.
    Bind(PathBuf),
}

impl Spec {
    /// Returns a union of a read-write branch over a read-only one.
    #[must_use]
    pub fn union(rw: &Path, ro: &Path, transport: Transport) -> Self {
        let branches = vec![(rw.to_owned(), Mode::Rw), (ro.to_owned(), Mode::Ro)];
        Self::Union { branches, delete: Delete::Whiteout, transport }
    }

    /// Returns the null layer over `lower`.
    #[must_use]
    pub fn wrap(lower: &Path, transport: Transport) -> Self {
        Self::Wrap { lower: lower.to_owned(), transport }
    }

    /// Returns versionfs over `lower`, with the given options of the layer.
    #[must_use]
    pub fn versions(lower: &Path, options: &str, transport: Transport) -> Self {
        Self::Versions { lower: lower.to_owned(), options: options.to_owned(), transport }
    }

    /// Returns a stack in one server: `above` (layers, top first, each followed by ` / `) over a
    /// directory.
    #[must_use]
    pub fn stack(above: &str, lower: &Path, transport: Transport) -> Self {
        let mut words = OsString::from(above);
        words.push(lower);
        Self::Stack { words, transport }
    }

    /// Returns the same union with the given delete mode.
    #[must_use]
    pub fn delete(mut self, mode: Delete) -> Self {
        if let Self::Union { delete, .. } = &mut self {
            *delete = mode;
        }
        self
    }

    /// Returns the native file system that replaces this one.
    fn stand_in(self, by: crate::StandIn) -> Self {
        match self {
            Self::Union { branches, .. } => {
                let branches: Vec<PathBuf> = branches.into_iter().map(|(dir, _)| dir).collect();
                let (left, right) = branches.split_first().expect("a branch");
                if by == crate::StandIn::Overlay {
                    return Self::Overlay(branches);
                }
                for branch in right {
                    process::sh("cp -an \"$1\"/. \"$2\"", &[branch, left]);
                }
                Self::Bind(left.clone())
            }
            Self::Wrap { lower, .. } => Self::Bind(lower),
            other => other,
        }
    }

    /// Returns the command that mounts it at `dir`: program and arguments.
    fn command(&self, dir: &Path, extra: &str) -> (&'static str, Vec<OsString>) {
        let word = |text: &str| OsString::from(text);
        let mut options = OsString::new();
        let (name, source) = match self {
            Self::Union { branches, delete, transport } => {
                options.push("dirs=");
                for (i, (branch, mode)) in branches.iter().enumerate() {
                    options.push(if i == 0 { "" } else { ":" });
                    options.push(branch);
                    options.push(if *mode == Mode::Rw { "=rw" } else { "=ro" });
                }
                options.push(if *delete == Delete::All { ",delete=all" } else { "" });
                options.push(format!(",transport={}", transport.name()));
                ("mount.unionfs", word("none"))
            }
            Self::Wrap { lower, transport } => {
                options.push(format!("transport={}", transport.name()));
                ("mount.wrapfs", lower.clone().into_os_string())
            }
            Self::Versions { lower, options: layer, transport } => {
                options.push(format!("transport={}", transport.name()));
                options.push(if layer.is_empty() { "" } else { "," });
                options.push(layer);
                ("mount.versionfs", lower.clone().into_os_string())
            }
            Self::Stack { words, transport } => {
                options.push(format!("transport={}", transport.name()));
                ("mount.strata", words.clone())
            }
            Self::Overlay(branches) => {
                let (upper, lowers) = branches.split_first().expect("a branch");
                let lowers: Vec<&str> = lowers.iter().map(|l| l.to_str().expect("a plain path")).collect();
                let upper = upper.to_str().expect("a plain path");
                fs::create_dir_all(format!("{upper}.work")).expect("overlay's work directory");
                let text = format!("lowerdir={},upperdir={upper},workdir={upper}.work", lowers.join(":"));
                options.push(format!("{text},index=on,redirect_dir=on,metacopy=off"));
                return ("mount", [word("-toverlay"), word("-o"), options, word("none"), dir.into()].into());
            }
            Self::Bind(lower) => return ("mount", vec![word("--bind"), lower.into(), dir.into()]),
        };
        options.push(",logfile=");
        options.push(log(dir, "server.log"));
        if !extra.is_empty() {
            options.push(",");
            options.push(extra);
        }
        (name, vec![source, dir.into(), word("-o"), options])
    }
}

/// A mounted file system, unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    spec: Spec,
    extra: String,
    dir: PathBuf,
    /// The servers that mounting started (none for overlayfs).
    servers: Vec<u32>,
    /// Arguments of the shell's `ulimit`, called before the program.
    limit: Option<&'static str>,
    up: bool,
}

impl Mounted {
    /// Mounts `spec` at `dir`, which is created if missing. Panics with the program's output on
    /// failure.
    #[must_use]
    pub fn new(spec: Spec, dir: &Path) -> Self {
        Self::with_options(spec, dir, "")
    }

    /// Like [`Self::new`], with additional mount options.
    #[must_use]
    pub fn with_options(spec: Spec, dir: &Path, extra: &str) -> Self {
        Self::try_new(spec, dir, extra).unwrap_or_else(|output| panic!("{output}"))
    }

    /// Like [`Self::new`], started by a shell that first calls `ulimit` with `limit`.
    #[must_use]
    pub fn with_limit(spec: Spec, dir: &Path, limit: &'static str) -> Self {
        Self::try_limited(spec, dir, "", Some(limit)).unwrap_or_else(|output| panic!("{output}"))
    }

    /// Like [`Self::with_options`], but returns the failure.
    ///
    /// # Errors
    /// The command, its exit code and its output.
    pub fn try_new(spec: Spec, dir: &Path, extra: &str) -> Result<Self, String> {
        Self::try_limited(spec, dir, extra, None)
    }

    fn try_limited(spec: Spec, dir: &Path, extra: &str, limit: Option<&'static str>) -> Result<Self, String> {
        let spec = if let Some(by) = crate::stand_in() { spec.stand_in(by) } else { spec };
        fs::create_dir_all(dir).expect("the mount point");
        let (extra, dir) = (extra.to_owned(), dir.to_owned());
        let mut mounted = Self { spec, extra, dir, servers: Vec::new(), limit, up: false };
        mounted.mount().map(|()| mounted)
    }

    fn mount(&mut self) -> Result<(), String> {
        let (name, words) = self.spec.command(&self.dir, &self.extra);
        let mut command = if name == "mount" {
            Command::new("mount")
        } else {
            let program = Self::program().expect("no program to test: run cargo build -p cli, or set STRATA_BIN");
            let called = format!("/sbin/{name}");
            if let Some(limit) = self.limit {
                let mut shell = Command::new("bash");
                shell.arg("-c").arg(format!("ulimit {limit} && exec -a \"$0\" \"$@\"")).arg(called).arg(program);
                shell
            } else {
                let mut command = Command::new(program);
                command.arg0(called);
                command
            }
        };
        let before = watchdog::servers();
        let log = log(&self.dir, "log");
        let open = || File::options().create(true).append(true).open(&log).expect("a log");
        let length = log.metadata().map_or(0, |m| m.len());
        command.args(&words).stdin(Stdio::null()).stdout(open()).stderr(open());
        let status = command.status().expect("the mount helper can't be started");
        if !status.success() {
            let text = fs::read(&log).unwrap_or_default();
            let output =
                String::from_utf8_lossy(&text[usize::try_from(length).unwrap().min(text.len())..]).into_owned();
            return Err(format!("{name} {words:?}: {status}\n{output}"));
        }
        self.up = true;
        self.servers = watchdog::servers().into_iter().filter(|pid| !before.contains(pid)).collect();
        if let Spec::Union { transport, .. }
        | Spec::Wrap { transport, .. }
        | Spec::Versions { transport, .. }
        | Spec::Stack { transport, .. } = &self.spec
        {
            let info = crate::counters::text(&self.dir, "server.info");
            assert!(
                info.contains(&format!("\"transport\":\"{}\"", transport.name())),
                "not mounted with {transport:?}: {info}"
            );
        }
        Ok(())
    }

    /// Returns the program under test: `STRATA_BIN`, or the one in the target directory of this
    /// test, or the one in the workspace's target directory.
    #[must_use]
    pub fn program() -> Option<PathBuf> {
        if let Some(path) = std::env::var_os("STRATA_BIN") {
            return PathBuf::from(path).canonicalize().ok();
        }
        let exe = std::env::current_exe().ok()?;
        let beside = exe.parent()?.parent()?;
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        [
            beside.to_owned(),
            beside.with_file_name("release"),
            beside.with_file_name("debug"),
            target.join("release"),
            target.join("debug"),
        ]
        .iter()
        .find_map(|dir| dir.join("strata").canonicalize().ok())
    }

    /// Returns the mount point.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of `name` in the mount.
    #[must_use]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the process id of the server.
    #[must_use]
    pub fn server(&self) -> u32 {
        match self.servers[..] {
            [pid] => pid,
            ref other => panic!("expected one server, found {other:?}"),
        }
    }

    /// Returns all output of the mount program and the server.
    #[must_use]
    pub fn log_text(&self) -> String {
        let all = ["log", "server.log"].map(|which| fs::read(log(&self.dir, which)).unwrap_or_default()).concat();
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Returns the server's request counters.
    #[must_use]
    pub fn requests(&self) -> Requests {
        Requests::of(&self.dir)
    }

    /// Returns the requests that `what` causes.
    pub fn during(&self, what: impl FnOnce()) -> Requests {
        Requests::during(&self.dir, what)
    }

    /// Unmounts it, panics on failure, and waits for the servers to end.
    pub fn unmount(&mut self) {
        if !self.up {
            return;
        }
        unmount_soon(&self.dir);
        self.up = false;
        self.wait_for_servers();
    }

    fn wait_for_servers(&mut self) {
        until_within(Duration::from_secs(20), "the servers end after umount", || {
            let runs = watchdog::servers().iter().any(|pid| self.servers.contains(pid));
            if runs { Err((&self.servers, self.log_text())) } else { Ok(()) }
        });
        self.servers.clear();
    }

    /// Unmounts it and mounts it again.
    pub fn remount(&mut self) {
        self.unmount();
        self.mount().unwrap_or_else(|output| panic!("{output}"));
    }

    /// Kills the server after `time`, as a crash would. The caller must call [`Self::crash`] next.
    /// Returns a flag that is set just before the kill.
    pub fn kill_after(&self, time: Duration) -> Arc<AtomicBool> {
        let pid = self.server();
        let killed = Arc::new(AtomicBool::new(false));
        let ours = Arc::clone(&killed);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            killed.store(true, Ordering::SeqCst);
            watchdog::kill(pid);
        });
        ours
    }

    /// Kills the server, as a crash would, removes the dead mount and waits for both.
    pub fn crash(&mut self) {
        for pid in &self.servers {
            watchdog::kill(*pid);
        }
        self.wait_for_servers();
        unmount(&self.dir, UnmountFlags::DETACH).expect("umount -l of a dead mount");
        self.up = false;
    }

    /// Mounts it again after [`Self::crash`] or [`Self::unmount`].
    pub fn mount_again(&mut self) {
        assert!(!self.up);
        self.mount().unwrap_or_else(|output| panic!("{output}"));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The sandbox removes it, whatever its state.
            return;
        }
        self.unmount();
    }
}

/// Returns the path of the log of the mount program (`log`) or of the server (`server.log`).
fn log(dir: &Path, which: &str) -> PathBuf {
    let name = dir.strip_prefix("/mnt").unwrap_or(dir).display().to_string().replace('/', "_");
    Path::new("/mnt").join(format!("{name}.{which}"))
}

/// Unmounts `dir`. The kernel may still hold it briefly on behalf of a process that has just ended.
///
/// # Panics
///
/// If it can't be unmounted within ten seconds.
pub fn unmount_soon(dir: &Path) {
    until_within(Duration::from_secs(10), &format!("umount {}", dir.display()), || {
        unmount(dir, UnmountFlags::NOFOLLOW).map_err(|error| (error, users(dir)))
    });
}

/// Returns the processes that use the mount, for an error message.
fn users(dir: &Path) -> String {
    process::try_run(Command::new("fuser").args(["-vm"]).arg(dir)).text
}
