//! snoopfs, mounted: it logs every refused call in the documented format and nothing else, and
//! permissions are those of the native file system.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Timestamps};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use server::Config;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use strata_tests::suite::{pjdfstest, regressions};
use strata_tests::user::{Credentials, OTHER, ROOT, USER as ALICE, as_user};
use strata_tests::{Rng, Sandbox, Transport, on_both_transports, process};
use wrapfs::Settings;

/// An ordinary user who shares no group with Alice.
const BOB: Credentials = Credentials { uid: 1002, gid: 1002, group: None };

/// The captured log. Tests run one at a time: each has a sandbox.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn log() -> MutexGuard<'static, Vec<u8>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Sink;

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        log().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// snoopfs over a directory, unmounted when dropped.
struct SnoopMount {
    mounted: server::Mounted,
    dir: PathBuf,
}

impl SnoopMount {
    fn new(lower: &Path, dir: PathBuf, transport: Transport, options: &[(&str, &str)]) -> Self {
        static START: Once = Once::new();
        START.call_once(|| {
            tracing_subscriber::fmt().with_writer(|| Sink).with_ansi(false).without_time().init();
        });
        fs::create_dir_all(&dir).unwrap();
        let mut settings = Settings::new();
        for (name, value) in options {
            assert!(settings.insert(name, value.as_bytes()));
        }
        let host = hostfs::HostFs::open(lower, hostfs::HostOptions::default()).unwrap();
        let layer = snoopfs::LAYER.over(host, &settings).unwrap();
        let mut config = Config::new(dir.clone(), "snoopfs", "snoopfs");
        config.mount.allow_other = true;
        config.mount.transport = match transport {
            Transport::Ring => fuse::Transport::Ring,
            Transport::Device => fuse::Transport::Device,
        };
        Self { mounted: server::mount(layer, &config).unwrap(), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for SnoopMount {
    fn drop(&mut self) {
        self.mounted.stop().unwrap();
        self.mounted.wait();
    }
}

/// Returns the warnings that `what`, run as `who`, causes, and its result.
fn warnings_of<T>(who: Credentials, what: impl FnOnce() -> T) -> (Vec<String>, T) {
    log().clear();
    let result = as_user(who, what);
    let text = String::from_utf8(log().clone()).unwrap();
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("WARN snoopfs: ")).map(str::to_owned);
    (lines.collect(), result)
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Creates Alice's home in a directory that every user may search: `private/file` (0700), `closed`
/// (0600), `open` (0644), `listed` (0711), `fifo` and `socket` (0600).
fn home(sandbox: &Sandbox) -> PathBuf {
    let lower = sandbox.ext4("disk", 64).join("lower");
    let alice = lower.join("alice");
    fs::create_dir_all(alice.join("private/sub")).unwrap();
    fs::create_dir(alice.join("listed")).unwrap();
    for file in ["private/file", "closed", "open", "listed/file"] {
        fs::write(alice.join(file), "text").unwrap();
    }
    rustix::fs::mknodat(CWD, alice.join("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    drop(UnixListener::bind(alice.join("socket")).unwrap());
    for (file, bits) in
        [("private", 0o700), ("listed", 0o711), ("closed", 0o600), ("open", 0o644), ("fifo", 0o600), ("socket", 0o600)]
    {
        mode(&alice.join(file), bits);
    }
    process::sh("chown -R 1000:1000 \"$1\"", &[&alice]);
    lower
}

fn open(path: &Path, flags: OFlags) -> Result<(), Errno> {
    rustix::fs::open(path, flags, Mode::RUSR).map(drop)
}

fn errno<T>(result: std::io::Result<T>) -> Result<(), Errno> {
    result.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap())
}

/// A system call on a path.
type Call = fn(&Path) -> Result<(), Errno>;
/// A call by Bob that is refused: the object that refuses it, the path, and the call.
type RefusedCall = (&'static str, &'static str, Call);

const REFUSED_CALLS: &[RefusedCall] = &[
    ("closed", "closed", |p| open(p, OFlags::RDONLY)),
    ("closed", "closed", |p| open(p, OFlags::WRONLY)),
    ("closed", "closed", |p| rustix::fs::accessat(CWD, p, Access::READ_OK, AtFlags::EACCESS)),
    ("closed", "closed", |p| errno(Command::new(p).status())),
    ("closed", "closed", |p| errno(fs::File::options().write(true).truncate(true).open(p))),
    ("open", "open", |p| open(p, OFlags::WRONLY)),
    ("open", "open", |p| open(p, OFlags::WRONLY | OFlags::APPEND)),
    ("open", "open", |p| {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        rustix::fs::utimensat(CWD, p, &Timestamps { last_access: now, last_modification: now }, AtFlags::empty())
    }),
    ("fifo", "fifo", |p| open(p, OFlags::RDONLY | OFlags::NONBLOCK)),
    ("socket", "socket", |p| errno(UnixStream::connect(p))),
    ("private", "private", |p| open(p, OFlags::RDONLY | OFlags::DIRECTORY)),
    ("private", "private", |p| rustix::process::chdir(p)),
    ("private", "private/file", |p| rustix::fs::stat(p).map(drop)),
    ("private", "private/file", |p| open(p, OFlags::RDONLY)),
    ("private", "private/sub/none", |p| open(p, OFlags::RDONLY)),
    ("private", "private/none", |p| open(p, OFlags::RDONLY)),
    ("listed", "listed", |p| open(p, OFlags::RDONLY | OFlags::DIRECTORY)),
    ("listed", "listed/file", |p| rustix::fs::unlink(p)),
    ("", "open", |p| rustix::fs::unlink(p)),
    ("", "open", |p| rustix::fs::rename(p, p.with_file_name("closed"))),
    ("", "private", |p| rustix::fs::rmdir(p)),
];

fn every_refusal_is_logged(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[("rate", "0")]);
    // From the second round on, the kernel answers from its caches where it may.
    for round in 0..3 {
        for (number, (object, name, call)) in REFUSED_CALLS.iter().enumerate() {
            let path = mount.path("alice").join(name);
            let native = as_user(BOB, || call(&lower.join("alice").join(name)));
            assert_eq!(native, Err(Errno::ACCESS), "{number} {name}");
            let (warnings, result) = warnings_of(BOB, || call(&path));
            assert_eq!(result, native, "{number} {name}");
            let denied: Vec<&String> = warnings.iter().filter(|line| line.starts_with("permission denied")).collect();
            let [line] = denied[..] else { panic!("round {round}, {number}, {name}: {warnings:?}") };
            let object = if object.is_empty() { "/alice".to_owned() } else { format!("/alice/{object}") };
            assert!(line.contains(&format!(": path=\"{object}\" uid=1002 pid=")), "{number} {name}: {line}");
        }
    }
}

fn allowed_calls_are_not_logged(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[("rate", "0")]);
    let alice = mount.path("alice");
    let (warnings, ()) = warnings_of(BOB, || {
        for _ in 0..3 {
            for name in ["private", "closed", "open", "listed", "fifo", "socket", "listed/file", "."] {
                rustix::fs::stat(alice.join(name)).unwrap();
                rustix::fs::lstat(alice.join(name)).unwrap();
            }
            assert_eq!(fs::read_dir(&alice).unwrap().count(), 6);
            assert_eq!(fs::read(alice.join("open")).unwrap(), b"text");
            rustix::fs::statfs(alice.join("closed")).unwrap();
            let handle = rustix::fs::open(alice.join("private"), OFlags::PATH, Mode::empty()).unwrap();
            rustix::fs::fstat(handle).unwrap();
        }
    });
    assert_eq!(warnings, [""; 0]);
    // Alice's own failures and root's accesses are not logged.
    mode(&lower.join("alice/listed"), 0o000);
    for who in [ALICE, ROOT] {
        let (warnings, ()) = warnings_of(who, || {
            let _ = open(&alice.join("listed"), OFlags::RDONLY);
            let _ = open(&alice.join("none"), OFlags::RDONLY);
            let _ = Command::new(alice.join("closed")).status();
            fs::write(alice.join("private/file"), "new").unwrap();
        });
        assert_eq!(warnings, [""; 0], "{who:?}");
    }
}

fn refusals_on_files_in_use_are_logged(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[("rate", "0")]);
    let path = mount.path("alice/closed");
    let mut file = as_user(ALICE, || fs::File::options().append(true).open(&path).unwrap());
    for _ in 0..5 {
        file.write_all(b"more").unwrap();
        assert_eq!(warnings_of(BOB, || rustix::fs::stat(&path).unwrap()).0, [""; 0]);
        file.write_all(b"more").unwrap();
        assert_eq!(warnings_of(BOB, || open(&path, OFlags::RDONLY)).0.len(), 1);
    }
    drop(file);
    // A directory that is being modified.
    let private = mount.path("alice/private");
    for round in 0..5 {
        as_user(ALICE, || fs::write(private.join(round.to_string()), "").unwrap());
        assert_eq!(warnings_of(BOB, || rustix::fs::stat(&private).unwrap()).0, [""; 0]);
        as_user(ALICE, || fs::remove_file(private.join(round.to_string())).unwrap());
        assert_eq!(warnings_of(BOB, || rustix::fs::stat(private.join("file"))).0.len(), 1);
    }
}

fn acls_and_groups_apply(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[("rate", "0")]);
    let path = mount.path("alice/closed");
    mode(&lower.join("alice/closed"), 0o640);
    chown(lower.join("alice/closed"), None, Some(2000)).unwrap();
    process::sh("setfacl -m u:1002:r \"$1\"", &[mount.path("alice/open")]);
    process::sh("setfacl -m u:1003:- \"$1\"", &[mount.path("alice/open")]);
    let carol = Credentials { uid: 1003, gid: 1003, group: None };
    assert_eq!(warnings_of(OTHER, || open(&path, OFlags::RDONLY)), (vec![], Ok(())));
    assert_eq!(warnings_of(OTHER, || open(&path, OFlags::WRONLY)).0.len(), 1);
    assert_eq!(warnings_of(BOB, || open(&path, OFlags::RDONLY)).0.len(), 1);
    let open_path = mount.path("alice/open");
    assert_eq!(warnings_of(BOB, || open(&open_path, OFlags::RDONLY)), (vec![], Ok(())));
    assert_eq!(warnings_of(BOB, || open(&open_path, OFlags::WRONLY)).0.len(), 1);
    let (lines, result) = warnings_of(carol, || open(&open_path, OFlags::RDONLY));
    assert_eq!((lines.len(), result), (1, Err(Errno::ACCESS)));
    assert!(lines[0].starts_with("permission denied (rwx): path=\"/alice/open\" uid=1003"), "{lines:?}");
}

/// System calls that change nothing.
const CALLS: &[Call] = &[
    |p| rustix::fs::stat(p).map(drop),
    |p| rustix::fs::lstat(p).map(drop),
    |p| open(p, OFlags::RDONLY | OFlags::NONBLOCK),
    |p| open(p, OFlags::WRONLY | OFlags::NONBLOCK),
    |p| open(p, OFlags::RDWR | OFlags::NONBLOCK),
    |p| open(p, OFlags::RDONLY | OFlags::DIRECTORY),
    |p| open(p, OFlags::PATH),
    |p| rustix::fs::accessat(CWD, p, Access::READ_OK, AtFlags::EACCESS),
    |p| rustix::fs::accessat(CWD, p, Access::EXEC_OK | Access::READ_OK, AtFlags::EACCESS),
    |p| errno(fs::read_dir(p)),
];

/// Creates a random tree of three levels, with files and directories of Alice, Bob and a third
/// user. Returns its paths.
fn random_tree(lower: &Path, rng: &mut Rng) -> Vec<String> {
    let mut paths = vec![];
    for d in 0..4 {
        paths.push(format!("d{d}"));
        for e in 0..3 {
            paths.extend([format!("d{d}/e{e}"), format!("d{d}/f{e}"), format!("d{d}/e{e}/f"), format!("d{d}/e{e}/g")]);
        }
    }
    for path in &paths {
        let at = lower.join(path);
        if path.rsplit('/').next().unwrap().starts_with(['d', 'e']) {
            fs::create_dir_all(&at).unwrap();
        } else {
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(&at, "text").unwrap();
        }
        chown(&at, Some(1000 + rng.below(3) as u32), Some([1000, 1001, 1002, 2000][rng.below(4)])).unwrap();
        mode(&at, random_mode(rng));
        if rng.below(4) == 0 {
            let user = 1000 + rng.below(3);
            process::sh(&format!("setfacl -m u:{user}:{} \"$1\"", ["-", "r", "rx", "rw"][rng.below(4)]), &[&at]);
        }
    }
    paths
}

/// Returns a random mode; most have the search permission, so that deeper objects can be reached.
fn random_mode(rng: &mut Rng) -> u32 {
    [0o755, 0o711, 0o700, 0o750, 0o777, 0o644, 0o600, 0o666, 0o640, rng.below(0o1000) as u32][rng.below(10)]
}

/// Returns the owner of the object that refuses a path to `who`, if one does: a directory on the
/// path or the object itself.
fn refusing_owner(lower: &Path, path: &str, who: Credentials) -> u32 {
    let searched =
        |at: &Path| as_user(who, || rustix::fs::accessat(CWD, at, Access::EXEC_OK, AtFlags::EACCESS)).is_ok();
    let places: Vec<PathBuf> = path.match_indices('/').map(|(end, _)| lower.join(&path[..end])).collect();
    let closed = places.iter().find(|at| !searched(at));
    fs::symlink_metadata(closed.unwrap_or(&lower.join(path))).unwrap().uid()
}

fn random_calls_are_logged_exactly_if_refused(transport: Transport) {
    let seed = testkit::number("STRATA_SEED").unwrap_or(0x5_0009);
    let mut rng = Rng::new(seed);
    let sandbox = Sandbox::new();
    let lower = sandbox.ext4("disk", 64).join("lower");
    fs::create_dir(&lower).unwrap();
    let paths = random_tree(&lower, &mut rng);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[("rate", "0")]);
    let users = [ALICE, OTHER, BOB];
    let mut held: Vec<fs::File> = vec![];
    let mut logged = 0;
    for step in 0..if strata_tests::long() { 20_000 } else { 2000 } {
        let path = &paths[rng.below(paths.len())];
        let at = mount.path(path);
        match rng.below(12) {
            0 => mode(&at, random_mode(&mut rng)),
            1 if at.is_file() => fs::write(&at, "other").unwrap(),
            2 if at.is_file() => held.push(fs::File::options().append(true).open(&at).unwrap()),
            3 => held.truncate(1),
            4 => held.iter_mut().for_each(|file| file.write_all(b"more").unwrap()),
            5 if at.is_dir() => {
                fs::write(at.join("new"), "").unwrap();
                fs::rename(at.join("new"), at.join("newer")).unwrap();
                fs::remove_file(at.join("newer")).unwrap();
            }
            6 if at.is_file() => drop(fs::read(&at).unwrap()),
            _ => {
                let who = users[rng.below(3)];
                let call = rng.below(CALLS.len());
                let native = as_user(who, || CALLS[call](&lower.join(path)));
                let (warnings, result) = warnings_of(who, || CALLS[call](&at));
                let expected = native == Err(Errno::ACCESS) && refusing_owner(&lower, path, who) != who.uid;
                logged += usize::from(expected);
                assert_eq!(result, native, "seed {seed}, step {step}: call {call} of {path} by {who:?}");
                let context = format!("seed {seed}, step {step}: call {call} of {path} by {who:?}: {warnings:?}");
                assert_eq!(warnings.len(), usize::from(expected), "{context}");
                assert!(warnings.iter().all(|line| line.starts_with("permission denied")), "{context}");
            }
        }
    }
    assert!(logged > 200, "only {logged} refusals");
}

/// A program that searches the parent directories for a repository does not guess names.
fn git_searching_for_a_repository_is_not_logged(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    let bob = lower.join("bob");
    fs::create_dir_all(bob.join("work")).unwrap();
    for dir in [bob.clone(), bob.join("work")] {
        chown(&dir, Some(1002), Some(1002)).unwrap();
    }
    mode(&lower, 0o755);
    mode(&lower.join("alice"), 0o755);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[("rate", "0")]);
    // In a separate process: git checks the user it runs as.
    let git = |mount: &SnoopMount, script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1002", "--regid", "1002", "--clear-groups", "bash", "-euc"]);
        command.arg(format!("export HOME=/nonexistent; {script}")).arg("bash").arg(&mount.dir);
        warnings_of(ROOT, || process::run(&mut command)).0
    };
    // Bob's own directory, one of Alice's, and a repository of Bob's.
    for script in [
        "git -C \"$1\"/bob/work status || :",
        "git -C \"$1\"/alice status || :",
        "cd \"$1\"/bob/work && git init -q . && echo x >f && git add f && git status",
    ] {
        assert_eq!(git(&mount, script), [""; 0], "{script}");
    }
    drop(mount);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[("rate", "0"), ("missing", "all")]);
    let logged = git(&mount, "git -C \"$1\"/alice status || :");
    assert!(logged.iter().any(|line| line.starts_with("no such file: path=\"/.git\"")), "{logged:?}");
}

fn each_lookup_of_a_missing_name_is_logged(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[("rate", "0"), ("missing", "all")]);
    let path = mount.path("alice/guess");
    for who in [ROOT, ALICE, BOB, OTHER, ROOT, BOB, BOB] {
        let (warnings, found) = warnings_of(who, || path.try_exists().unwrap());
        assert!(!found);
        let expected = usize::from(![ROOT, ALICE].contains(&who));
        assert_eq!(warnings.len(), expected, "{who:?}: {warnings:?}");
        let words = format!("no such file: path=\"/alice/guess\" uid={} pid={} ", who.uid, std::process::id());
        assert!(warnings.iter().all(|line| line.starts_with(&words)), "{warnings:?}");
    }
}

fn warnings_name_the_process(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[]);
    let path = mount.path("alice/private/file");
    let mut cat = Command::new("setpriv");
    cat.args(["--reuid", "1002", "--regid", "1002", "--clear-groups", "cat"]).arg(&path);
    let mut pid = 0;
    let (warnings, ()) = warnings_of(ROOT, || {
        let mut child = cat.stderr(std::process::Stdio::null()).spawn().unwrap();
        pid = child.id();
        assert!(!child.wait().unwrap().success());
    });
    let expected = format!(
        "permission denied (rwx): path=\"/alice/private\" uid=1002 pid={pid} command=\"cat\" asked=\"{}\"",
        path.display()
    );
    assert_eq!(warnings, [expected]);
}

/// A mount below a directory remains mounted after a user's path walk through it was refused.
fn a_refused_path_walk_keeps_mounts_below(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[]);
    let inner = mount.path("alice/private/sub");
    rustix::mount::mount("tmpfs", &inner, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(inner.join("inside"), "").unwrap();
    assert_eq!(as_user(BOB, || open(&inner.join("inside"), OFlags::RDONLY)), Err(Errno::ACCESS));
    assert!(inner.join("inside").exists(), "the file system mounted in a closed directory was unmounted");
    rustix::mount::unmount(&inner, UnmountFlags::empty()).unwrap();
}

fn protected_programs_can_not_be_changed(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = home(&sandbox);
    fs::create_dir(lower.join("bin")).unwrap();
    fs::copy("/bin/true", lower.join("bin/login")).unwrap();
    let options = [("protect", "/bin/login"), ("nosetid", "")];
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &options);
    let login = mount.path("bin/login");
    let before = fs::read(&login).unwrap();
    for script in [
        "echo trojan > \"$1\"",
        "echo trojan >> \"$1\"",
        "truncate -s 0 \"$1\"",
        "rm -f \"$1\"",
        "mv -f \"$1\" \"$1.old\"",
        "cp /bin/false \"$1.new\" && mv -f \"$1.new\" \"$1\"",
        "cp /bin/false \"$1.new\" && ln -sf login.new \"$1\"",
        "ln \"$1\" \"$1.alias\" && echo trojan > \"$1.alias\"",
        "mv \"${1%/login}\" \"${1%/login}.old\"",
        "chmod u+s \"$1\"",
        "setcap cap_setuid+ep \"$1\"",
        "install -m 4755 /bin/false \"$1.suid\" && test -u \"$1.suid\"",
    ] {
        let (warnings, result) = warnings_of(ROOT, || {
            let mut shell = Command::new("bash");
            process::try_run(shell.args(["-c", script, "bash"]).arg(&login))
        });
        assert!(!result.status.success(), "{script}: {}", result.text);
        assert!(
            warnings.iter().any(|line| line.starts_with("refused by the rules")),
            "{script}: {warnings:?} {}",
            result.text
        );
        assert_eq!(fs::read(&login).unwrap(), before, "{script}");
    }
    process::run(&mut Command::new(&login));
    // The rules affect no other operation.
    symlink("login", mount.path("bin/sh")).unwrap();
    fs::copy("/bin/false", mount.path("bin/other")).unwrap();
    fs::rename(mount.path("bin/other"), mount.path("bin/another")).unwrap();
}

fn pjdfstest_passes(transport: Transport) {
    let sandbox = Sandbox::with_time(std::time::Duration::from_secs(300));
    let disk = sandbox.ext4("disk", 512);
    let (native, second) = (disk.join("native"), sandbox.dir("second"));
    fs::create_dir(&native).unwrap();
    let native = pjdfstest(&native, &second);
    assert!(native.len() > 300, "pjdfstest has only {} cases", native.len());
    let lower = disk.join("lower");
    fs::create_dir(&lower).unwrap();
    let mount = SnoopMount::new(&lower, sandbox.path("m"), transport, &[]);
    let regressions = regressions(&native, &pjdfstest(&mount.dir, &second));
    assert!(regressions.is_empty(), "{} cases fail but pass natively:\n{}", regressions.len(), regressions.join("\n"));
}

on_both_transports!(
    every_refusal_is_logged,
    allowed_calls_are_not_logged,
    refusals_on_files_in_use_are_logged,
    acls_and_groups_apply,
    random_calls_are_logged_exactly_if_refused,
    each_lookup_of_a_missing_name_is_logged,
    git_searching_for_a_repository_is_not_logged,
    warnings_name_the_process,
    a_refused_path_walk_keeps_mounts_below,
    protected_programs_can_not_be_changed,
    pjdfstest_passes,
);
