use crate::{Requests, process, watchdog};
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How the server talks to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// FUSE over `io_uring`.
    Ring,
    /// Reading and writing `/dev/fuse`.
    Device,
}

impl Transport {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ring, Self::Device];

    /// What `transport=` calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Device => "device",
        }
    }
}

/// What removing does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delete {
    /// Hides with a whiteout.
    Whiteout,
    /// Removes on every branch where that is possible.
    All,
}

/// The mode of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read-write.
    Rw,
    /// Read-only.
    Ro,
}

/// A directory of a union and its mode.
pub type Branch = (PathBuf, Mode);

/// What to mount.
#[derive(Clone, Debug)]
pub enum Spec {
    /// A union of these branches, the leftmost first.
    Union {
        /// The branches.
        branches: Vec<Branch>,
        /// What removing does.
        delete: Delete,
        /// How the server talks to the kernel.
        transport: Transport,
    },
    /// The null layer over a directory.
    Wrap {
        /// That directory.
        lower: PathBuf,
        /// How the server talks to the kernel.
        transport: Transport,
    },
    /// A stack in one server.
    Stack {
        /// In words, top first.
        words: OsString,
        /// How the server talks to the kernel.
        transport: Transport,
    },
    /// overlayfs, as a stand-in for a union: the leftmost branch is the upper directory, the others are lower ones.
    Overlay(Vec<PathBuf>),
    /// A bind mount, as a stand-in for the null layer.
    Bind(PathBuf),
}

impl Spec {
    /// A union of a read-write branch over a read-only one.
    #[must_use]
    pub fn union(rw: &Path, ro: &Path, transport: Transport) -> Self {
        let branches = vec![(rw.to_owned(), Mode::Rw), (ro.to_owned(), Mode::Ro)];
        Self::Union { branches, delete: Delete::Whiteout, transport }
    }

    /// The null layer.
    #[must_use]
    pub fn wrap(lower: &Path, transport: Transport) -> Self {
        Self::Wrap { lower: lower.to_owned(), transport }
    }

    /// `above` (layers, top first, with ` / ` after each) over a directory, in one server.
    #[must_use]
    pub fn stack(above: &str, lower: &Path, transport: Transport) -> Self {
        let mut words = OsString::from(above);
        words.push(lower);
        Self::Stack { words, transport }
    }

    /// The same, in the other delete mode.
    #[must_use]
    pub fn delete(mut self, mode: Delete) -> Self {
        if let Self::Union { delete, .. } = &mut self {
            *delete = mode;
        }
        self
    }

    /// What the kernel's own file systems have to offer instead.
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

    /// The words of the command that mounts it at `dir`.
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

/// Something mounted; it is unmounted when this goes.
#[derive(Debug)]
pub struct Mounted {
    spec: Spec,
    extra: String,
    dir: PathBuf,
    /// The servers that mounting brought up (none for overlayfs).
    servers: Vec<u32>,
    /// The argument of the shell's `ulimit` before the program is called.
    limit: Option<&'static str>,
    up: bool,
}

impl Mounted {
    /// Mounts `spec` at `dir`, which is made if need be. Panics, with what the program said, if that fails.
    #[must_use]
    pub fn new(spec: Spec, dir: &Path) -> Self {
        Self::with_options(spec, dir, "")
    }

    /// The same, with more mount options.
    #[must_use]
    pub fn with_options(spec: Spec, dir: &Path, extra: &str) -> Self {
        Self::try_new(spec, dir, extra).unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same, by a shell that has called `ulimit` with `limit` before.
    #[must_use]
    pub fn with_limit(spec: Spec, dir: &Path, limit: &'static str) -> Self {
        Self::try_limited(spec, dir, "", Some(limit)).unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same; answers what was said if the mounting failed.
    ///
    /// # Errors
    /// The command, its exit code and its output.
    pub fn try_new(spec: Spec, dir: &Path, extra: &str) -> Result<Self, String> {
        Self::try_limited(spec, dir, extra, None)
    }

    fn try_limited(spec: Spec, dir: &Path, extra: &str, limit: Option<&'static str>) -> Result<Self, String> {
        let spec = if let Some(by) = crate::stand_in() { spec.stand_in(by) } else { spec };
        fs::create_dir_all(dir).expect("a directory to mount on");
        let (extra, dir) = (extra.to_owned(), dir.to_owned());
        let mut mounted = Self { spec, extra, dir, servers: Vec::new(), limit, up: false };
        mounted.mount().map(|()| mounted)
    }

    fn mount(&mut self) -> Result<(), String> {
        let (name, words) = self.spec.command(&self.dir, &self.extra);
        let mut command = if name == "mount" {
            Command::new("mount")
        } else {
            let program = Self::program().expect("built: cargo build -p cli, or set STRATA_BIN");
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
            let said = String::from_utf8_lossy(&text[usize::try_from(length).unwrap().min(text.len())..]).into_owned();
            return Err(format!("{name} {words:?}: {status}\n{said}"));
        }
        self.up = true;
        self.servers = watchdog::servers().into_iter().filter(|pid| !before.contains(pid)).collect();
        if let Spec::Union { transport, .. } | Spec::Wrap { transport, .. } | Spec::Stack { transport, .. } = &self.spec
        {
            let info = crate::counters::text(&self.dir, "server.info");
            assert!(
                info.contains(&format!("\"transport\":\"{}\"", transport.name())),
                "asked for {transport:?}: {info}"
            );
        }
        Ok(())
    }

    /// The program under test: `STRATA_BIN`, or the one built into the same target directory as this test, or the workspace's.
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

    /// Where it is mounted.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Its server's process.
    #[must_use]
    pub fn server(&self) -> u32 {
        match self.servers[..] {
            [pid] => pid,
            ref other => panic!("one server expected, there are {other:?}"),
        }
    }

    /// Everything that was said so far.
    #[must_use]
    pub fn said(&self) -> String {
        let all = ["log", "server.log"].map(|which| fs::read(log(&self.dir, which)).unwrap_or_default()).concat();
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Counts of the requests that were sent to the server.
    #[must_use]
    pub fn requests(&self) -> Requests {
        Requests::of(&self.dir)
    }

    /// The requests that `what` causes.
    pub fn during(&self, what: impl FnOnce()) -> Requests {
        Requests::during(&self.dir, what)
    }

    /// Unmounts it, which must work, and waits until its server is gone.
    pub fn unmount(&mut self) {
        if !self.up {
            return;
        }
        // Something the kernel does on behalf of a process that has just ended may still hold the mount for a moment.
        let patience = Instant::now() + Duration::from_secs(10);
        while let Err(e) = unmount(&self.dir, UnmountFlags::NOFOLLOW) {
            assert!(Instant::now() < patience, "umount {}: {e}\n{}", self.dir.display(), users(&self.dir));
            std::thread::sleep(Duration::from_millis(10));
        }
        self.up = false;
        self.wait_for_servers();
    }

    fn wait_for_servers(&mut self) {
        let patience = Instant::now() + Duration::from_secs(20);
        while watchdog::servers().iter().any(|pid| self.servers.contains(pid)) {
            assert!(Instant::now() < patience, "servers {:?} go on after umount\n{}", self.servers, self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
        self.servers.clear();
    }

    /// Unmounts it and mounts it again.
    pub fn remount(&mut self) {
        self.unmount();
        self.mount().unwrap_or_else(|said| panic!("{said}"));
    }

    /// Kills the server, as a crash would, after `time`, whatever it is doing then; [`Self::crash`] has to follow. Answers what becomes
    /// true just before.
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

    /// Kills the server, as a crash would, takes the dead mount away, and answers when both are gone.
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
        self.mount().unwrap_or_else(|said| panic!("{said}"));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The sandbox takes it away, whatever its state.
            return;
        }
        self.unmount();
    }
}

/// Where the mount program (`log`) and its server (`server.log`) write what they have to say.
fn log(dir: &Path, which: &str) -> PathBuf {
    let name = dir.strip_prefix("/mnt").unwrap_or(dir).display().to_string().replace('/', "_");
    Path::new("/mnt").join(format!("{name}.{which}"))
}

/// Which processes of this machine use the mount, for a message.
fn users(dir: &Path) -> String {
    process::try_run(Command::new("fuser").args(["-vm"]).arg(dir)).text
}
