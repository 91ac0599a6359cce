//! `strata run --sandbox`, as root and as a user without privileges: what is captured, what the
//! host keeps, and what leaves the sandbox.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::unmount_after_questions;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::mount_bind;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use strata_tests::Sandbox;
use testkit::{Outcome, outcome};

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");

/// The user who runs the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Root,
    User,
}

const USER: u32 = 4321;

/// A host with a home directory on an ext4 file system of its own.
struct Host {
    sandbox: Sandbox,
    who: Who,
    home: PathBuf,
}

impl Host {
    fn new(who: Who) -> Self {
        let sandbox = Sandbox::new();
        // Users may open the device on most distributions.
        let device = sandbox.path("fuse");
        let number = rustix::fs::makedev(10, 229);
        rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, Mode::from_raw_mode(0o666), number).unwrap();
        fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
        mount_bind(&device, "/dev/fuse").unwrap();
        // A user can't reach the build directory.
        let program = sandbox.path("strata");
        fs::write(&program, "").unwrap();
        mount_bind(PROGRAM, &program).unwrap();
        let home = sandbox.ext4("home", 64);
        fs::set_permissions(sandbox.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        let host = Self { sandbox, who, home };
        host.own(&host.home);
        host
    }

    fn own(&self, path: &Path) {
        if self.who == Who::User {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
    }

    /// Creates a file of the user.
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let mut above = &*path;
        while above != self.home {
            self.own(above);
            above = above.parent().unwrap();
        }
        path
    }

    fn strata(&self) -> Command {
        let mut command = Command::new(self.sandbox.path("strata"));
        command.arg("run").current_dir(&self.home).stdin(Stdio::null());
        command.env("PATH", "/usr/bin:/bin").env("HOME", &self.home).env_remove("XDG_STATE_HOME");
        let store = self.home.join(".store");
        command.arg("--dir").arg(store);
        if self.who == Who::User {
            command.uid(USER).gid(USER);
        }
        command
    }

    /// Runs `strata run` with these arguments.
    fn run(&self, args: &[&str]) -> Outcome {
        outcome(self.strata().args(args))
    }

    /// Runs a shell script in the sandbox `NAME`. In the script, `no COMMAND` ends it unless the
    /// command fails. (`! COMMAND` would not.)
    fn script(&self, name: &str, script: &str) -> Outcome {
        let script = format!("no() {{ if \"$@\"; then echo \"succeeds: $*\"; exit 99; fi; }}\n{script}");
        self.run(&[&format!("--sandbox={name}"), "--keep", "--", "sh", "-ec", &script])
    }

    /// Describes all files of the user, except for the sandboxes.
    fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut tree = BTreeMap::new();
        describe(&self.home, &self.home, &mut tree);
        tree
    }
}

fn describe(top: &Path, dir: &Path, tree: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path == top.join(".store") {
            continue;
        }
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_symlink() {
            fs::read_link(&path).unwrap().display().to_string()
        } else if meta.is_file() {
            let bytes = fs::read(&path).unwrap();
            format!(
                "{} {:x}",
                bytes.len(),
                bytes.iter().fold(0_u64, |sum, b| sum.wrapping_mul(31).wrapping_add((*b).into()))
            )
        } else {
            String::new()
        };
        tree.insert(
            path.strip_prefix(top).unwrap().to_owned(),
            format!("{:o} {}:{} {} {content}", meta.mode(), meta.uid(), meta.gid(), meta.nlink()),
        );
        if meta.is_dir() {
            describe(top, &path, tree);
        }
    }
}

const CHANGES: &str = "
    umask 022
    echo new > new; mkdir -p a/b/c; echo deep > a/b/c/deep
    echo more >> old; rm gone; mv from to; mv dir moved; echo x > moved/x
    chmod 640 mode; ln -s new link; ln new hard; rm -r tree; mkdir tree; echo y > tree/y
    head -c 3000000 /dev/zero | tr '\\0' 'z' > big
    printf 1234 | dd of=old conv=notrunc bs=1 seek=1 2>/dev/null
";

fn originals(host: &Host) {
    for name in ["old", "gone", "from", "dir/in", "mode", "tree/x/y", "tree/z", "untouched"] {
        host.file(name, name);
    }
}

fn is_captured_and_committed(who: Who) {
    let host = Host::new(who);
    originals(&host);
    let before = host.tree();
    host.script("s", &format!("{CHANGES} cat old > seen; ls > listed")).succeeds();
    assert_eq!(host.tree(), before, "the host is unchanged");
    let diff = host.run(&["--sandbox=s", "--diff"]).succeeds().out;
    for line in ["added       /mnt/home/new", "removed     /mnt/home/gone", "changed     /mnt/home/old"] {
        assert!(diff.contains(line), "{line}: {diff}");
    }
    assert!(!diff.contains("untouched"), "{diff}");
    let json = host.run(&["--sandbox=s", "--diff", "--json"]).succeeds().out;
    assert!(json.contains("\"/mnt/home/a/b/c/deep\""), "{json}");
    // A second run goes on where the first one ended.
    assert_eq!(host.script("s", "cat new; rm seen listed").succeeds().out, "new\n");
    host.run(&["--sandbox=s", "--commit"]).succeeds();
    let committed = host.tree();
    assert!(!host.home.join(".store/s").exists(), "a committed sandbox is removed");

    // The same commands without a sandbox.
    for name in fs::read_dir(&host.home).unwrap().flatten().map(|entry| entry.path()) {
        if name.ends_with(".store") {
            continue;
        }
        if name.is_dir() && !name.is_symlink() {
            fs::remove_dir_all(name).unwrap();
        } else {
            fs::remove_file(name).unwrap();
        }
    }
    originals(&host);
    let mut native = Command::new("sh");
    native.args(["-ec", CHANGES]).current_dir(&host.home);
    if who == Who::User {
        native.uid(USER).gid(USER);
    }
    outcome(&mut native).succeeds();
    assert_eq!(committed, host.tree());
}

/// A mount that hangs somewhere on the host is hidden, and named. Everything else works.
#[test]
fn mounts_that_hang_are_hidden() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let [lower, at] = ["lower", "at"].map(|name| host.sandbox.dir(name));
        let inner = lower.join("inner");
        fs::create_dir(&inner).unwrap();
        let mount = |lower: &Path| {
            let mut mount = Command::new(PROGRAM);
            mount.arg0("mount.wrapfs").args([lower, &at]);
            outcome(&mut mount).succeeds();
        };
        mount(&lower);
        let info = outcome(Command::new(PROGRAM).args(["info", "--json"]).arg(&at)).succeeds().out;
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        let pid = info["pid"].to_string();
        rustix::mount::mount("none", at.join("inner"), "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        outcome(Command::new("kill").args(["-STOP", &pid])).succeeds();
        let written = host.run(&["--sandbox=s", "--keep", "--", "sh", "-ec", "echo x >new; ls -A /mnt/at"]);
        let committed = host.run(&["--sandbox=s", "--commit"]);
        outcome(Command::new("kill").args(["-CONT", &pid])).succeeds();
        assert_eq!((written.code, written.out.as_str()), (0, ""), "{}", written.err);
        let hidden = "/mnt/at: the mount does not answer; hidden in the sandbox";
        assert!(written.err.contains(hidden), "{}", written.err);
        assert_eq!(committed.code, 0, "{}", committed.err);
        assert_eq!(fs::read_to_string(host.home.join("new")).unwrap(), "x\n");
        outcome(Command::new("umount").arg(at.join("inner"))).succeeds();
        unmount_after_questions(&at);
    }
}

/// Some of the changes are committed or discarded by their paths. The rest stays in the sandbox.
#[test]
fn paths_are_committed_and_discarded() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let [kept, dropped] = ["dir/kept", "dir/dropped"].map(|name| host.file(name, "old"));
        host.script(
            "s",
            "echo new >dir/kept; echo new >dir/dropped; mkdir lib; echo x >lib/x; echo y >lib/y; echo z >z",
        );
        let shown = host.run(&["--sandbox=s", "--diff", "lib"]).succeeds().out;
        assert!(shown.lines().count() == 3 && shown.contains("lib/x"), "{shown}");
        let committed = host.run(&["--sandbox=s", "--commit", "dir/kept", "lib/x"]).succeeds();
        assert!(committed.err.contains("3 changes kept in sandbox s"), "{}", committed.err);
        assert_eq!(fs::read_to_string(&kept).unwrap(), "new\n");
        assert_eq!(fs::read_to_string(host.home.join("lib/x")).unwrap(), "x\n");
        assert_eq!(fs::read_to_string(&dropped).unwrap(), "old");
        assert!(!host.home.join("lib/y").exists() && !host.home.join("z").exists());
        host.run(&["--sandbox=s", "--discard", dropped.to_str().unwrap()]).succeeds();
        // A command needs --, so that no path is taken for one.
        let refused = host.run(&["--sandbox=s", "--commit", "true"]);
        assert!(refused.code == 1 && refused.err.contains("a command needs -- before it"), "{}", refused.err);
        // The last changes end the sandbox.
        host.run(&["--sandbox=s", "--commit", "."]).succeeds();
        assert_eq!(fs::read_to_string(&dropped).unwrap(), "old");
        assert!(host.home.join("lib/y").exists() && host.home.join("z").exists());
        assert_eq!(host.run(&["--list"]).succeeds().out, "");
    }
}

#[test]
fn what_root_writes_is_captured_and_committed() {
    is_captured_and_committed(Who::Root);
}

#[test]
fn what_a_user_writes_is_captured_and_committed() {
    is_captured_and_committed(Who::User);
}

/// The root directory and /tmp belong to root.
#[test]
fn a_user_writes_where_the_host_permits_it() {
    let host = Host::new(Who::User);
    let shared = host.sandbox.dir("shared");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let kept = host.sandbox.dir("kept");
    fs::write(kept.join("secret"), "x").unwrap();
    fs::set_permissions(kept.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let script = "echo mine > /mnt/shared/mine; mkdir /mnt/shared/dir
        no touch /mnt/kept/x; no cat /mnt/kept/secret; no chmod 777 /mnt/kept; no mkdir /strata-test
        no touch -d 2001-01-01 /mnt/kept";
    host.script("s", script).succeeds();
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
    host.run(&["--sandbox=s", "--commit"]).succeeds();
    let mine = fs::metadata(shared.join("mine")).unwrap();
    assert_eq!((mine.uid(), mine.mode() & 0o777), (USER, 0o644));
    assert_eq!(fs::metadata(&shared).unwrap().uid(), 0, "the directory is still root's");
    assert_eq!(fs::metadata(&shared).unwrap().mode() & 0o7777, 0o1777);
}

fn ends_as_the_options_say(who: Who) {
    let host = Host::new(who);
    let store = host.home.join(".store");
    let sandboxes = || fs::read_dir(&store).map_or(0, Iterator::count);
    let touch = |option: &str| host.run(&["--sandbox", option, "--", "sh", "-c", "echo x > file"]);
    touch("--discard").succeeds();
    assert!(!host.home.join("file").exists() && sandboxes() == 0);
    let kept = touch("--keep").succeeds();
    assert!(kept.err.contains("1 change kept in sandbox sh-1; go on with strata run --dir"), "{}", kept.err);
    let list = host.run(&["--list"]).succeeds().out;
    assert_eq!(list, "sh-1  ended    sh -c echo x > file\n");
    host.run(&["--sandbox=sh-1", "--discard"]).succeeds();
    assert!(!host.home.join("file").exists() && sandboxes() == 0);
    touch("--commit").succeeds();
    assert!(host.home.join("file").exists() && sandboxes() == 0);
    // Nothing is committed after a failure.
    let failed = host.run(&["--sandbox=f", "--commit", "--", "sh", "-c", "rm file; exit 3"]);
    assert_eq!(failed.code, 3);
    assert!(failed.err.contains("nothing is committed") && host.home.join("file").exists(), "{}", failed.err);
    host.run(&["--sandbox=f", "--discard"]).succeeds();
    // A sandbox in which nothing was written is not kept.
    host.run(&["--sandbox", "--", "true"]).succeeds();
    assert_eq!(sandboxes(), 0);
}

#[test]
fn the_options_decide_about_changes_of_root() {
    ends_as_the_options_say(Who::Root);
}

#[test]
fn the_options_decide_about_changes_of_a_user() {
    ends_as_the_options_say(Who::User);
}

#[test]
fn exit_statuses_are_those_of_the_command() {
    let host = Host::new(Who::User);
    for (command, code, message) in [
        (&["sh", "-c", "exit 7"][..], 7, ""),
        (&["sh", "-c", "kill -9 $$"], 137, ""),
        (&["no-such-command"], 127, "no such command in PATH"),
        (&["/etc/passwd"], 126, "not an executable file"),
    ] {
        let outcome = host.run(&[&["--sandbox", "--"], command].concat());
        assert_eq!(outcome.code, code, "{command:?}: {}", outcome.err);
        assert!(outcome.err.contains(message), "{}", outcome.err);
    }
    let stdin = outcome(host.strata().args(["--sandbox", "--", "true"]).stdin(fs::File::open("/tmp").unwrap()));
    assert_eq!(stdin.code, 125, "{}", stdin.err);
    assert_eq!(host.run(&["--sandbox=a/b", "--", "true"]).code, 1);
    assert_eq!(host.run(&["--sandbox=none", "--diff"]).code, 1);
    assert_eq!(host.run(&["--sandbox"]).code, 1);
    assert_eq!(host.run(&["--", "true"]).code, 1);
    assert_eq!(host.run(&["--list"]).succeeds().out, "");
}

fn names_conflicts(who: Who) {
    let host = Host::new(who);
    host.file("both", "old");
    host.file("one", "old");
    host.script("s", "echo sandbox > both; echo sandbox > one; echo sandbox > created").succeeds();
    host.file("both", "host");
    host.file("created", "host");
    let refused = host.run(&["--sandbox=s", "--commit"]);
    assert_eq!(refused.code, 125);
    assert!(refused.err.contains("/mnt/home/both: has also changed on the host"), "{}", refused.err);
    assert!(refused.err.contains("/mnt/home/created: was also created on the host"), "{}", refused.err);
    assert_eq!(fs::read_to_string(host.home.join("one")).unwrap(), "old", "nothing is committed");
    host.run(&["--sandbox=s", "--commit", "--force"]).succeeds();
    for name in ["both", "one", "created"] {
        assert_eq!(fs::read_to_string(host.home.join(name)).unwrap(), "sandbox\n");
    }
}

#[test]
fn conflicts_of_root_are_named() {
    names_conflicts(Who::Root);
}

#[test]
fn conflicts_of_a_user_are_named() {
    names_conflicts(Who::User);
}

/// Attempts to change the host. Each line prints a word if it succeeds.
const HOSTILE: &str = r#"
try() { name=$1; shift; if "$@" 2>/dev/null; then echo "ESCAPED $name"; fi; }
try core_pattern sh -c 'echo core > /proc/sys/kernel/core_pattern'
try sysrq sh -c 'echo h > /proc/sysrq-trigger'
try sys sh -c 'for f in $(find /sys -maxdepth 4 -type f -perm -200 2>/dev/null | head -40); do echo 1 > $f && exit 0; done; exit 1'
try cgroup mkdir /sys/fs/cgroup/strata-escape
try mknod mknod /mnt/home/device b 7 0
try mount mount -t tmpfs none /mnt
try umount umount -l /mnt/home
try umount-proc umount -l /proc/sys
try kill kill -0 $HOST_PID
try proc test -e /proc/$HOST_PID
try shm test -e /dev/shm/strata-test-$HOST_PID
try nested unshare -Urm sh -c 'umount -l /mnt/home/.store; test -e /mnt/home/.store/*/sandbox.json'
try nested-proc unshare -Urmpf sh -c 'mount -t proc proc /proc && echo core > /proc/sys/kernel/core_pattern'
try chroot sh -c 'mkdir -p /mnt/home/cr; chroot /mnt/home/cr / true'
try descriptors sh -c 'ls /proc/self/fd | grep -vE "^[0-3]$" | grep -q .'
try init-fd sh -c 'ls -l /proc/1/fd | grep -q socket'
try init-root test -e /proc/1/root/mnt
try device-mode chmod "$(stat -c %a /dev/null)" /dev/null
try kcore-mode sh -c '[ "$(stat -c %t:%T /proc/kcore)" = 1:3 ] && chmod "$(stat -c %a /proc/kcore)" /proc/kcore'
try proc-write sh -c '[ "$(id -u)" = 0 ] && for f in $(find /proc -path "/proc/[0-9]*" -prune -o -type f -perm /222 -print); do [ -f "$f" ] && [ -w "$f" ] && exit 0; done; exit 1'
try su sh -c '[ "$(id -u)" != 0 ] && su -c true < /dev/null > /dev/null'
try hostname hostname strata-escape
perl -e '
    use Socket;
    sub try { my ($name, $done) = @_; print "ESCAPED $name\n" if $done; }
    sub to { socket(my $s, AF_UNIX, SOCK_STREAM, 0); connect($s, pack_sockaddr_un($_[0])) }
    try("socket", to("/mnt/home/socket"));
    try("abstract", to("\0strata-test-$ENV{HOST_PID}"));
    my ($sti, $linux, $letter) = (0x5412, 0x541c, "x");
    try("TIOCSTI", ioctl(STDIN, $sti, $letter));
    try("TIOCLINUX", ioctl(STDIN, $linux, $letter));
    exit if `uname -m` ne "x86_64\n";
    try("TIOCSTI with high bits", syscall(16, 0, 0x100005412, $letter) == 0);
    try("keyctl", syscall(250, 0, -3, 0) != -1);
    try("add_key", syscall(248, my $t = "user", my $d = "strata", my $v = "x", 1, -4) != -1);
    try("ptrace", syscall(101, 16, 1, 0, 0) == 0);
    try("shmget", syscall(29, $ENV{HOST_KEY}, 0, 0) != -1);
    try("x32", syscall(0x40000000 + 39) > 0);
    my $handle = pack("IiQQ", 16, 1, 2, 0);
    open(my $root, "<", "/");
    try("open_by_handle_at", syscall(304, fileno($root), $handle, 0) != -1);
'
echo done
"#;

fn hostile_scripts_stay_inside(who: Who) {
    let host = Host::new(who);
    host.file("file", "text");
    let _socket = UnixListener::bind(host.home.join("socket")).unwrap();
    fs::set_permissions(host.home.join("socket"), fs::Permissions::from_mode(0o777)).unwrap();
    use std::os::linux::net::SocketAddrExt as _;
    let pid = std::process::id();
    let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("strata-test-{pid}")).unwrap();
    let _abstract = UnixListener::bind_addr(&name).unwrap();
    let shm = PathBuf::from(format!("/dev/shm/strata-test-{pid}"));
    fs::write(&shm, "").unwrap();
    let key = 0x5354_0000 | (pid & 0xffff);
    let segment = outcome(Command::new("perl").args(["-e", &format!("print syscall(29, {key}, 4096, 01666)")]));
    let before = host.tree();
    let mut run = host.strata();
    run.args(["--sandbox", "--discard", "--", "sh", "-c", HOSTILE]);
    run.env("HOST_PID", pid.to_string()).env("HOST_KEY", key.to_string());
    let outcome = outcome(&mut run);
    fs::remove_file(&shm).unwrap();
    let _removed = Command::new("ipcrm").args(["-m", &segment.out]).status();
    assert_eq!((outcome.out.as_str(), outcome.code), ("done\n", 0), "{}", outcome.err);
    assert_eq!(host.tree(), before);
}

#[test]
fn hostile_scripts_of_root_stay_inside() {
    hostile_scripts_stay_inside(Who::Root);
}

#[test]
fn hostile_scripts_of_a_user_stay_inside() {
    hostile_scripts_stay_inside(Who::User);
}

/// The command is in the process group of the program that runs it, such as a shell script:
/// `kill 0` must not reach that.
#[test]
fn signals_to_the_process_group_stay_inside() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let script = "trap 'echo host was hit' TERM USR1
            \"$@\"; echo \"status $?\"";
        let inner = "trap 'echo got $?' USR1; kill -USR1 0; kill -TERM 0; echo not reached";
        let mut run = Command::new("sh");
        run.args(["-c", script, "sh"]).arg(host.sandbox.path("strata")).arg("run");
        run.arg("--dir").arg(host.home.join(".store")).args(["--sandbox", "--discard", "--", "sh", "-c", inner]);
        run.current_dir(&host.home).stdin(Stdio::null()).process_group(0);
        run.env("PATH", "/usr/bin:/bin").env_remove("XDG_STATE_HOME");
        if who == Who::User {
            run.uid(USER).gid(USER);
        }
        let outcome = outcome(&mut run);
        assert_eq!(outcome.out, "got 0\nstatus 143\n", "{}", outcome.err);
    }
}

/// A read-only file system that has a writable one inside, and a device node.
#[test]
fn a_file_system_inside_a_read_only_one_is_captured() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let outer = host.sandbox.ext4("outer", 16);
        let inner = outer.join("inner");
        fs::create_dir(&inner).unwrap();
        let zero = rustix::fs::makedev(1, 5);
        rustix::fs::mknodat(CWD, outer.join("zero"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), zero)
            .unwrap();
        fs::set_permissions(outer.join("zero"), fs::Permissions::from_mode(0o666)).unwrap();
        rustix::mount::mount("tmpfs", &inner, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"mode=777")).unwrap();
        host.sandbox.read_only(&outer);
        let listener = UnixListener::bind(inner.join("socket")).unwrap();
        fs::set_permissions(inner.join("socket"), fs::Permissions::from_mode(0o777)).unwrap();
        let connect =
            "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); exit !connect(S, pack_sockaddr_un(\"socket\"))'";
        let script = format!("cd /mnt/outer/inner; echo x > new; no {connect}; no touch ../y; no head -c 1 ../zero");
        host.script("s", &script).succeeds();
        assert!(!inner.join("new").exists());
        let diff = host.run(&["--sandbox=s", "--diff"]).succeeds().out;
        assert_eq!(diff, "added       /mnt/outer/inner/new\n");
        drop(listener);
        // What belongs to a file system that is not mounted any more is not committed elsewhere.
        rustix::mount::unmount(&inner, rustix::mount::UnmountFlags::empty()).unwrap();
        let refused = host.run(&["--sandbox=s", "--commit"]);
        assert!(refused.code == 125 && refused.err.contains("no mount point any more"), "{}", refused.err);
        host.run(&["--sandbox=s", "--discard"]).succeeds();
    }
}

/// The remains of a creation or a removal that was interrupted.
#[test]
fn remains_of_a_sandbox_are_in_nobodys_way() {
    let host = Host::new(Who::User);
    let remains = host.home.join(".store/s");
    for with_contents in [false, true] {
        for args in [&["--sandbox=s", "--keep", "--", "true"][..], &["--sandbox=s", "--discard"]] {
            fs::create_dir_all(remains.join("branches")).unwrap();
            if with_contents {
                fs::create_dir_all(remains.join("branches/0/dir")).unwrap();
                fs::write(remains.join("removed.json"), "").unwrap();
            }
            outcome(Command::new("chown").args(["-R", &USER.to_string()]).arg(host.home.join(".store"))).succeeds();
            let outcome = host.run(args);
            assert_eq!(outcome.code == 0, args.contains(&"--keep"), "{args:?}: {}", outcome.err);
            if args.contains(&"--keep") {
                assert!(host.run(&["--list"]).succeeds().out.contains('s'));
                host.run(&["--sandbox=s", "--discard"]).succeeds();
            }
            assert!(!remains.exists());
        }
    }
    // What may be something else is not touched.
    for file in ["thesis", "branches/0/thesis", "log/thesis", "view/thesis"] {
        let file = remains.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        outcome(Command::new("chown").args(["-R", &USER.to_string()]).arg(&remains)).succeeds();
        assert_ne!(host.run(&["--sandbox=s", "--discard"]).code, 0);
        assert!(file.exists());
        fs::remove_dir_all(&remains).unwrap();
    }
}

/// As the module cache of Go has them: a user has to make them writable to change their entries.
#[test]
fn read_only_directories_are_committed() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        for name in ["cache/a/kept", "cache/a/gone", "cache/a/old", "cache/tree/deep/file", "cache/moved/file"] {
            host.file(name, name);
        }
        let set = |mode| {
            let script = format!("find {}/cache -type d -exec chmod {mode} {{}} +", host.home.display());
            outcome(Command::new("sh").args(["-c", &script])).succeeds();
        };
        set("555");
        let script = "
            mkdir -p new/module/inner; echo text >new/module/inner/file; echo top >new/module/top
            find new -type d -exec chmod 555 {} +
            chmod 755 cache cache/a
            rm cache/a/gone; mv cache/a/old cache/a/renamed; echo more >>cache/a/kept
            chmod -R u+w cache/tree cache/moved; rm -r cache/tree; mv cache/moved cache/elsewhere
            find cache -type d -exec chmod 555 {} +";
        host.script("s", script).succeeds();
        let wanted =
            host.script("s", "find new cache | LC_ALL=C sort | xargs stat -c '%n %A'; cat cache/a/*").succeeds();
        let diff = host.run(&["--sandbox=s", "--diff"]).succeeds().out;
        assert!(!diff.contains("mode 4"), "{diff}");
        let committed = host.run(&["--sandbox=s", "--commit"]).succeeds();
        assert_eq!(committed.err, "", "{diff}");
        let script = "find new cache | LC_ALL=C sort | xargs stat -c '%n %A'; cat cache/a/*";
        let found = outcome(Command::new("sh").args(["-c", script]).current_dir(&host.home)).succeeds();
        assert_eq!(found.out, wanted.out, "{diff}");
        assert_eq!(host.run(&["--list"]).succeeds().out.lines().count(), 0);
        let left = outcome(Command::new("find").arg(&host.home).args(["-name", ".wh.*"])).succeeds().out;
        assert_eq!(left, "");
        set("755");
    }
}

/// A file system that is gone, an encrypted one whose key the caller has not, one that has lost its
/// server, and one with records of a union.
#[test]
fn mounts_in_which_nothing_was_written_are_in_nobodys_way() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let [gone, records, ..] =
            ["gone", "records", "locked", "dead", "volume", "lower"].map(|name| host.sandbox.dir(name));
        let run = |name: &str, args: &[&str], input: &str| {
            let mut command = Command::new(host.sandbox.path("strata"));
            testkit::outcome_with_input(command.arg0(name).args(args), input.as_bytes()).succeeds()
        };
        let tmpfs = |dir: &Path| {
            rustix::mount::mount("tmpfs", dir, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"mode=755")).unwrap();
        };
        tmpfs(&gone);
        tmpfs(&records);
        fs::write(records.join(".wh..wh.ident"), "").unwrap();
        run("cryptctl", &["init", "/mnt/volume"], "five words that nobody guesses\n");
        run("mount.cryptfs", &["/mnt/volume", "/mnt/locked"], "");
        run("mount.wrapfs", &["/mnt/lower", "/mnt/dead"], "");
        let info: serde_json::Value =
            serde_json::from_str(&run("strata", &["info", "--json", "/mnt/dead"], "").out).unwrap();
        host.script("s", "echo x >new").succeeds();
        outcome(Command::new("kill").args(["-KILL", &info["pid"].to_string()])).succeeds();
        rustix::mount::unmount(&gone, rustix::mount::UnmountFlags::empty()).unwrap();
        let diff = host.run(&["--sandbox=s", "--diff"]).succeeds();
        assert_eq!(diff.out, "added       /mnt/home/new\n", "{}", diff.err);
        assert!(diff.err.contains("/mnt/gone: is no mount point any more; nothing was written there"), "{}", diff.err);
        host.run(&["--sandbox=s", "--commit"]).succeeds();
        assert_eq!(fs::read_to_string(host.home.join("new")).unwrap(), "x\n");
        host.run(&["--sandbox", "--commit", "--", "sh", "-c", "echo y >new"]).succeeds();
        assert_eq!(fs::read_to_string(host.home.join("new")).unwrap(), "y\n");
        for mount in ["/mnt/dead", "/mnt/locked"] {
            rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }
}

/// Also if the user allows the command to write a directory with all sandboxes in it.
#[test]
fn sandboxes_are_hidden_in_allowed_directories() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        host.script("other", "echo other > other").succeeds();
        let script = "ls -A .store; echo x > .store/new; echo x > file; rm .store/new";
        let args = ["--sandbox", "--discard", "--allow-write", ".", "--", "sh", "-ec", script];
        assert_eq!(host.run(&args).succeeds().out, "");
        assert!(host.home.join("file").exists() && host.home.join(".store/other").exists());
        host.run(&["--sandbox=other", "--discard"]).succeeds();
    }
}

/// A user may not do in a sandbox what it may not do on the host, and the commit would refuse.
#[test]
fn a_user_has_no_more_rights_than_on_the_host() {
    let host = Host::new(Who::User);
    let sticky = host.sandbox.dir("sticky");
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(sticky.join("theirs"), "x").unwrap();
    let staff = host.sandbox.dir("staff");
    chown(&staff, Some(0), Some(50)).unwrap();
    fs::set_permissions(&staff, fs::Permissions::from_mode(0o2775)).unwrap();
    fs::create_dir(staff.join("own")).unwrap();
    host.own(&staff.join("own"));
    let script = "no rm -f /mnt/sticky/theirs; no mv /mnt/sticky/theirs /mnt/sticky/x
        echo x > /mnt/sticky/mine; mv /mnt/sticky/mine /mnt/sticky/my; rm /mnt/sticky/my
        echo x > /mnt/staff/own/file; no touch /mnt/staff/file; no mkdir /mnt/staff/dir; no mv /mnt/staff/own /mnt/staff/x";
    host.script("s", script).succeeds();
    assert_eq!(host.run(&["--sandbox=s", "--diff"]).succeeds().out, "added       /mnt/staff/own/file\n");
    host.run(&["--sandbox=s", "--commit"]).succeeds();
    assert!(staff.join("own/file").exists());
    assert_eq!(fs::metadata(&staff).unwrap().mode() & 0o7777, 0o2775);
}

/// A terminal, on which an interactive shell runs.
struct Terminal {
    script: std::process::Child,
    keys: std::process::ChildStdin,
    output: std::sync::mpsc::Receiver<u8>,
    seen: String,
}

impl Terminal {
    fn new(host: &Host) -> Self {
        // A test run in the background of a shell ignores SIGINT, and so would all its programs.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,QUIT", "script", "-qc", "bash --norc --noprofile -i", "/dev/null"]);
        command.current_dir(&host.home);
        command.env("PATH", "/usr/bin:/bin").env("HOME", &host.home).env("PS1", "> ").env("TERM", "dumb");
        command.env_remove("XDG_STATE_HOME").env("SHELL", "/bin/sh");
        if host.who == Who::User {
            command.uid(USER).gid(USER);
        }
        let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, out) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        let (send, output) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            std::io::BufReader::new(out).bytes().map_while(Result::ok).try_for_each(|byte| send.send(byte))
        });
        let mut terminal = Self { script, keys, output, seen: String::new() };
        // The terminal shows typed text too. Quotes inside a marker are in that text only, so that
        // the marker itself is found in the command's output alone.
        terminal.type_("stty -echo rows 33 cols 77; PS1=; echo 'be''gun'\n");
        terminal.await_("begun");
        terminal
    }

    fn type_(&mut self, keys: &str) {
        use std::io::Write as _;
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a text in the output.
    #[track_caller]
    fn await_(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.seen.contains(text) {
            let left = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(byte) => self.seen.push(char::from(byte)),
                Err(error) => panic!("{text} is missing: {error}: {:?}", self.seen),
            }
        }
        let at = self.seen.find(text).unwrap() + text.len();
        self.seen.drain(..at);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        use std::io::Write as _;
        // A shell with stopped jobs refuses the first time.
        let _ = self.keys.write_all(b"\nexit\nexit\n");
        if !testkit::holds_within(Duration::from_secs(1), || !matches!(self.script.try_wait(), Ok(None))) {
            let _ = self.script.kill();
        }
        let _ = self.script.wait();
    }
}

#[test]
fn the_terminal_controls_the_command() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let mut terminal = Terminal::new(&host);
        let run = "/mnt/strata run --dir .store --sandbox --discard";
        terminal.type_(&format!("{run} -- sh -c 'stty size; tty; test -t 0 && exit 7'; echo status $?\n"));
        terminal.await_("33 77");
        terminal.await_("status 7");
        // ^C reaches the command, and its status the shell.
        terminal.type_(&format!(
            "{run} -- sh -c 'trap \"echo interrupted; exit 9\" INT; echo ready; while :; do sleep 0.1; done'; echo status $?\n"
        ));
        terminal.await_("ready");
        terminal.type_("\x03");
        terminal.await_("interrupted");
        // ^Z stops all, and fg continues all.
        // The shell shows the command: marked as above.
        let busy = "echo ready; while [ ! -e stop ]; do sleep 0.1; done; echo end\"\"ed";
        terminal.type_(&format!("{run} -- sh -c '{busy}'; echo status $?\n"));
        terminal.await_("ready");
        terminal.type_("\x1a");
        terminal.await_("Stopped");
        terminal.type_("touch stop; fg; echo status $?\n");
        terminal.await_("ended");
        terminal.await_("status 0");
        // A program that handles ^Z itself, such as an editor, stops its process group.
        let stops = "$|=1; print \"up\\n\"; kill TSTP => 0; print \"resu\", \"med\\n\"";
        terminal.type_(&format!("{run} -- perl -e '{stops}'; echo status $?\n"));
        terminal.await_("up");
        terminal.await_("Stopped");
        terminal.type_("fg; echo status $?\n");
        terminal.await_("resumed");
        terminal.await_("status 0");
        // Job control in a shell in the sandbox; then the outer shell has the terminal again.
        terminal.type_(&format!("{run} -- bash --norc --noprofile -i\n"));
        terminal.type_("PS1=; echo 'in''side'; sleep 1000\n");
        terminal.await_("inside");
        // The shell starts the program.
        std::thread::sleep(Duration::from_millis(300));
        terminal.type_("\x1a");
        terminal.await_("Stopped");
        terminal.type_("kill %1; echo 'le''ft'; exit 5\n");
        terminal.await_("left");
        // The shell ends.
        std::thread::sleep(Duration::from_millis(300));
        terminal.type_("\necho status $?; echo 'out''side'\n");
        terminal.await_("outside");
    }
}

/// What was typed while the command ran does not answer the question at the end.
#[test]
fn typing_ahead_commits_nothing() {
    let host = Host::new(Who::User);
    let mut terminal = Terminal::new(&host);
    terminal
        .type_("/mnt/strata run --dir .store --sandbox -- sh -c 'echo x > typed; echo ready; sleep 1'; echo 'e''nd'\n");
    terminal.await_("ready");
    terminal.type_("c\n");
    terminal.await_("show all (s)? ");
    terminal.type_("d\n");
    terminal.await_("end");
    assert!(!host.home.join("typed").exists());
}

/// A descriptor of a host file that is open for reading could be opened again for writing.
#[test]
fn standard_input_is_no_way_out() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let path = host.file("input", "one\ntwo\nthree\n");
        let mut input = fs::File::open(&path).unwrap();
        let script = "read line; echo $line; chmod 600 /dev/stdin; echo bad > /proc/self/fd/0";
        let mut run = host.strata();
        run.args(["--sandbox", "--discard", "--", "sh", "-c", script]).stdin(input.try_clone().unwrap());
        let outcome = outcome(&mut run);
        assert_eq!(outcome.out, "one\n", "{}", outcome.err);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        // What the command has read is read.
        let mut rest = String::new();
        input.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "two\nthree\n");
    }
}

#[test]
fn allowed_paths_lead_to_the_host() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        host.file("project/file", "old");
        symlink("project", host.home.join("link")).unwrap();
        let _listener = UnixListener::bind(host.home.join("socket")).unwrap();
        fs::set_permissions(host.home.join("socket"), fs::Permissions::from_mode(0o777)).unwrap();
        let connect =
            "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); exit !connect(S, pack_sockaddr_un(\"socket\"))'";
        let script = format!("echo new > project/file; echo out > out; {connect}");
        let args =
            ["--sandbox", "--discard", "--allow-write", "link", "--allow-socket", "socket", "--", "sh", "-ec", &script];
        host.run(&args).succeeds();
        assert_eq!(fs::read_to_string(host.home.join("project/file")).unwrap(), "new\n");
        assert!(!host.home.join("out").exists());
        assert_eq!(host.run(&["--sandbox", "--allow-write", "/", "--", "true"]).code, 1);
        assert_eq!(host.run(&["--sandbox", "--allow-write", "missing", "--", "true"]).code, 1);
        assert_eq!(host.run(&["--sandbox", "--allow-socket", "project", "--", "true"]).code, 1);
    }
}

#[test]
fn without_network_there_is_only_a_loopback_interface() {
    let host = Host::new(Who::User);
    let script = "cut -d: -f1 -s /proc/net/dev | tr -d ' '; cat /proc/net/fib_trie | grep -c 127.0.0.1";
    let out = host.run(&["--sandbox", "--no-network", "--", "sh", "-c", script]).succeeds().out;
    assert!(out.starts_with("lo\n") && !out.ends_with("\n0\n"), "{out}");
}

#[test]
fn sandboxes_can_be_nested() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        host.file("file", "host");
        let script = "/mnt/strata run --sandbox=inner --keep -- sh -c 'echo inner > file; cat file'
            cat file; /mnt/strata run --sandbox=inner --diff; /mnt/strata run --sandbox=inner --commit; cat file";
        let outcome = host.run(&["--sandbox", "--discard", "--", "sh", "-ec", script]);
        let want = "inner\nhostchanged     /mnt/home/file  (4 -> 6 bytes)\ninner\n";
        assert_eq!(outcome.out, want, "{}", outcome.err);
        assert_eq!(fs::read_to_string(host.home.join("file")).unwrap(), "host");
    }
}

/// A script can name /proc/self/exe as its interpreter.
#[test]
fn the_executable_of_the_init_process_is_protected() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let mut run = host.strata();
        run.args(["--sandbox", "--discard", "--", "sh", "-c", ": strata-killed; echo ready; read end || :"]);
        let mut front = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        front.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let is_init = |path: &PathBuf| {
            let words = fs::read(path.join("cmdline")).unwrap_or_default();
            words.starts_with(b"strata-sandbox-init\0") && String::from_utf8_lossy(&words).contains("strata-killed")
        };
        let inits: Vec<_> = all.filter(is_init).collect();
        assert_eq!(inits.len(), 1, "{inits:?}");
        let executable = rustix::fs::open(inits[0].join("exe"), OFlags::PATH, Mode::empty()).unwrap();
        drop(front.stdin.take());
        assert!(front.wait().unwrap().success());
        // It can't be written: neither while it runs nor, on its read-only mount, afterwards.
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&executable));
        let opened = fs::File::options().append(true).open(again);
        let errno = opened.unwrap_err().raw_os_error();
        assert!([Errno::ROFS, Errno::TXTBSY].map(|errno| Some(errno.raw_os_error())).contains(&errno), "{errno:?}");
        await_end();
    }
}

/// Returns the processes of sandboxes.
fn processes() -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let names = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let own = "/mnt/home/.store\0";
    let names = names.map(|name| String::from_utf8_lossy(&name).into_owned());
    names.filter(|name| name.contains("strata-killed") || name.contains(own)).collect()
}

/// Waits until no process of a sandbox is left.
fn await_end() {
    testkit::until_within(Duration::from_secs(10), "the sandboxes end", || testkit::seen(processes(), Vec::is_empty));
}

#[test]
fn a_killed_front_leaves_nothing_but_the_changes() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        host.file("file", "old");
        let script = ": strata-killed; for n in $(seq 1 5000); do echo $n > n.$n; echo $n > file; done";
        for round in 0..8_u64 {
            let name = format!("--sandbox=k{round}");
            let mut front = host.strata().args([&name, "--keep", "--", "sh", "-c", script]).spawn().unwrap();
            // The kill comes at different steps.
            std::thread::sleep(Duration::from_millis(40 + round * 70));
            front.kill().unwrap();
            front.wait().unwrap();
        }
        await_end();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("/.store/"), "{mounts}");
        assert_eq!(fs::read_to_string(host.home.join("file")).unwrap(), "old");
        // The last one had the time to write.
        host.run(&["--sandbox=k7", "--commit"]).succeeds();
        assert!(host.home.join("n.1").exists());
        assert_ne!(fs::read_to_string(host.home.join("file")).unwrap(), "old");
    }
}

#[test]
fn signals_reach_the_command() {
    let host = Host::new(Who::User);
    let script = "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done";
    let mut run = host.strata();
    run.args(["--sandbox", "--", "sh", "-c", script]).stdout(Stdio::piped());
    let mut front = run.spawn().unwrap();
    let mut out = front.stdout.take().unwrap();
    let mut ready = [0; 6];
    out.read_exact(&mut ready).unwrap();
    let pid = rustix::process::Pid::from_child(&front);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), front.wait().unwrap().code()), ("got\n", Some(9)));
}

#[test]
fn two_commands_can_not_share_a_sandbox() {
    let host = Host::new(Who::User);
    let mut run = host.strata();
    run.args(["--sandbox=s", "--", "sh", "-c", ": strata-killed; echo ready; sleep 30"]).stdout(Stdio::piped());
    let mut front = run.spawn().unwrap();
    front.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
    for args in [&["--sandbox=s", "--", "true"][..], &["--sandbox=s", "--commit"], &["--sandbox=s", "--discard"]] {
        let refused = host.run(args);
        assert!(refused.code == 1 && refused.err.contains("in use"), "{args:?}: {} {}", refused.code, refused.err);
    }
    assert!(host.run(&["--list"]).out.contains("running"));
    front.kill().unwrap();
    front.wait().unwrap();
    await_end();
}

/// The command inherits the caller's settings, not those of the server in the same process.
#[test]
fn the_command_inherits_the_callers_settings() {
    let host = Host::new(Who::Root);
    let script = "umask; ulimit -n; cat /proc/self/oom_score_adj; pwd; nice";
    let natively = outcome(Command::new("sh").args(["-c", script]).current_dir(&host.home)).succeeds().out;
    assert_eq!(host.run(&["--sandbox", "--", "sh", "-c", script]).succeeds().out, natively);
    // A shell changes these itself.
    let signals = ["grep", "SigBlk", "/proc/self/status"];
    let natively = outcome(Command::new(signals[0]).args(&signals[1..])).succeeds().out;
    assert_eq!(host.run(&[&["--sandbox", "--"][..], &signals].concat()).succeeds().out, natively);
}

#[test]
fn git_and_make_work_in_a_sandbox() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        let script = "git init -q src; cd src; git config user.email a@b; git config user.name n
            printf 'all: out\\nout: in\\n\\tcp in out\\n' > Makefile; echo text > in
            git add .; git commit -qm first; cd ..; git clone -q src copy; make -s -C copy; cat copy/out; git -C copy status -s";
        assert_eq!(host.script("s", script).succeeds().out, "text\n?? out\n");
        host.run(&["--sandbox=s", "--commit"]).succeeds();
        let mut check = Command::new("git");
        check.args(["-C", "copy", "fsck", "--strict"]).current_dir(&host.home).env("HOME", &host.home);
        if who == Who::User {
            check.uid(USER).gid(USER);
        }
        outcome(&mut check).succeeds();
    }
}

/// A directory of the host that a command removes or renames while a file system is mounted in it:
/// below the mount point the host can't remove it.
#[test]
fn directories_with_mounts_inside_are_not_removed() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        for name in ["h/f/a", "h/f/b/hidden", "h/f/z", "h/keep", "old"] {
            host.file(name, name);
        }
        let point = host.home.join("h/f/b");
        rustix::mount::mount("tmpfs", &point, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"mode=777")).unwrap();
        fs::write(point.join("inside"), "inside").unwrap();
        host.own(&point.join("inside"));
        let before = host.tree();
        host.script("s", "mv h/f h/g; echo x >h/g/x; echo more >>old; rm h/keep").succeeds();
        let refused = host.run(&["--sandbox=s", "--commit"]);
        assert_eq!(refused.code, 125, "{}", refused.err);
        assert!(refused.err.contains("/mnt/home/h/g") && refused.err.contains("mounted"), "{}", refused.err);
        let mut wanted = before;
        wanted.remove(Path::new("h/keep"));
        let names = |tree: BTreeMap<PathBuf, String>| tree.into_keys().collect::<Vec<_>>();
        assert_eq!(names(host.tree()), names(wanted));
        assert_eq!(fs::read_to_string(host.home.join("old")).unwrap(), "oldmore\n");
        let seen = host.script("s", "cat h/g/x h/g/b/inside h/g/a; no cat h/keep").succeeds().out;
        assert_eq!(seen, "x\ninsideh/f/a");
        rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).unwrap();
        host.run(&["--sandbox=s", "--commit"]).succeeds();
        let found = names(host.tree()).into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(found.join(" "), "h h/g h/g/a h/g/b h/g/b/hidden h/g/x h/g/z old");
    }
}

/// A directory under a temporary name, in which a file system is mounted: an interrupted commit has
/// left it.
#[test]
fn what_a_commit_has_left_is_removed_once_it_can_be() {
    for who in [Who::Root, Who::User] {
        let host = Host::new(who);
        host.file("h/.wh..wh.tmp.4/b/hidden", "");
        host.file("h/.wh..wh.tmp.4/z", "");
        let left = host.home.join("h/.wh..wh.tmp.4");
        let point = left.join("b");
        let mount = |point: &Path| {
            rustix::mount::mount("tmpfs", point, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"mode=777"))
                .unwrap();
        };
        let interrupt = |name: &str| {
            host.script(name, "echo new >new").succeeds();
            let branches = fs::read_dir(host.home.join(".store").join(name).join("branches")).unwrap();
            let branch = branches.flatten().map(|entry| entry.path()).find(|path| path.join("new").exists());
            let journal = branch.unwrap().join(".wh..wh.commit");
            fs::write(&journal, "strata-commit 1\n1 0 0\n\0h\0").unwrap();
            host.own(&journal);
        };
        mount(&point);
        interrupt("s");
        let refused = host.run(&["--sandbox=s", "--commit"]);
        assert!(refused.code == 125 && refused.err.contains("/mnt/home/h/.wh..wh.tmp.4"), "{}", refused.err);
        assert_eq!(fs::read_to_string(host.home.join("new")).unwrap(), "new\n");
        // Once more: it is not forgotten.
        let refused = host.run(&["--sandbox=s", "--commit"]);
        assert!(refused.code == 125 && refused.err.contains("/mnt/home/h/.wh..wh.tmp.4"), "{}", refused.err);
        rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).unwrap();
        host.run(&["--sandbox=s", "--commit"]).succeeds();
        assert!(!left.exists() && !host.home.join(".store/s").exists());
        // A sandbox can be discarded in any case.
        host.file("h/.wh..wh.tmp.4/b/hidden", "");
        mount(&point);
        interrupt("t");
        let discarded = host.run(&["--sandbox=t", "--discard"]).succeeds();
        assert!(discarded.err.contains("/mnt/home/h/.wh..wh.tmp.4"), "{}", discarded.err);
        rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).unwrap();
        fs::remove_dir_all(&left).unwrap();
        host.file("h/.wh..wh.tmp.4/b/hidden", "");
        interrupt("u");
        assert_eq!(host.run(&["--sandbox=u", "--discard"]).succeeds().err, "");
        assert!(!left.exists());
    }
}

/// Something in it that the host refuses to remove: the directory keeps its name.
#[test]
fn a_directory_that_can_not_be_removed_keeps_its_name() {
    let host = Host::new(Who::Root);
    for name in ["h/f/a", "h/f/m/fixed", "h/f/z"] {
        host.file(name, name);
    }
    let fixed = host.home.join("h/f/m/fixed");
    let attribute = |change| outcome(Command::new("chattr").arg(change).arg(&fixed)).succeeds();
    attribute("+i");
    host.script("s", "mv h/f h/g").succeeds();
    let refused = host.run(&["--sandbox=s", "--commit"]);
    assert!(refused.code == 125 && refused.err.contains("/mnt/home/h/f: can't remove"), "{}", refused.err);
    let names = || host.tree().into_keys().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ");
    assert!(!names().contains(".wh.") && fixed.exists(), "{}", names());
    assert_eq!(fs::read_to_string(host.home.join("h/g/m/fixed")).unwrap(), "h/f/m/fixed");
    attribute("-i");
    host.run(&["--sandbox=s", "--commit"]).succeeds();
    assert_eq!(names(), "h h/g h/g/a h/g/m h/g/m/fixed h/g/z");
}

/// A user's own directory without permissions: unreadable in the sandbox as on the host, and in
/// nobody's way.
#[test]
fn unreadable_directories_are_in_nobodys_way() {
    let host = Host::new(Who::User);
    for name in ["closed/in", "shut/deep/in", "list/in", "old", "home/sub/in", "ren/closed/in", "ren/x"] {
        host.file(name, name);
    }
    let set = |name: &str, mode| {
        fs::set_permissions(host.home.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, mode) in [("closed", 0), ("shut/deep", 0), ("list", 0o444), ("ren/closed", 0)] {
        set(name, mode);
    }
    let script = "no ls closed; no cat closed/in; no touch closed/x; echo new >new; echo x >shut/x; mv ren moved";
    host.script("s", script).succeeds();
    let diff = host.run(&["--sandbox=s", "--diff"]).succeeds();
    let lines = ["/mnt/home/ren/ -> /mnt/home/moved/", "added       /mnt/home/new", "added       /mnt/home/shut/x"];
    assert!(lines.iter().all(|line| diff.out.contains(line)), "{}{}", diff.out, diff.err);
    let refused = host.run(&["--sandbox=s", "--commit"]);
    assert!(refused.code == 125 && refused.err.contains("/mnt/home/moved: can't read all"), "{}", refused.err);
    assert_eq!(fs::read_to_string(host.home.join("new")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(host.home.join("ren/closed/in")).unwrap(), "ren/closed/in");
    // Made unreadable in the sandbox: by all, which is recorded, and by the owner alone.
    let script = "mkdir mine; echo x >mine/x; chmod 070 mine; echo y >home/sub/y; chmod 0 home/sub; echo newer >new
        mkdir -p a/b; chmod 111 a/b; chmod 400 a; mkdir gone all; echo >gone/x; chmod 007 gone; echo z >all/z; chmod 0 all";
    host.script("s", script).succeeds();
    host.script("s", "no ls mine; no ls all; no cat home/sub/in; stat all home/sub >/dev/null; cat new; ls >/dev/null")
        .succeeds();
    let diff = host.run(&["--sandbox=s", "--diff"]).succeeds();
    for line in [
        "added       /mnt/home/mine/\n",
        "added       /mnt/home/all/z\n",
        "attributes  /mnt/home/home/sub/",
        "changed     /mnt/home/new",
    ] {
        assert!(diff.out.contains(line), "{}{}", diff.out, diff.err);
    }
    assert!(diff.err.contains("/mnt/home/mine: can't read what is in it"), "{}", diff.err);
    for _ in 0..2 {
        let refused = host.run(&["--sandbox=s", "--commit"]);
        assert!(refused.code == 125 && refused.err.contains("/mnt/home/mine: can't read"), "{}", refused.err);
        assert_eq!(fs::read_to_string(host.home.join("new")).unwrap(), "newer\n");
        assert_eq!(fs::metadata(host.home.join("home/sub")).unwrap().mode() & 0o7777, 0);
        let (all, sub) = (host.home.join("all"), host.home.join("home/sub/y"));
        assert_eq!(fs::metadata(&all).unwrap().mode() & 0o7777, 0);
        assert_eq!(fs::read_to_string(all.join("z")).unwrap() + &fs::read_to_string(sub).unwrap(), "z\ny\n");
        assert!(!host.home.join("mine").exists() && !host.home.join("gone").exists());
    }
    host.run(&["--sandbox=s", "--discard"]).succeeds();
    assert_eq!(fs::metadata(host.home.join("closed")).unwrap().mode() & 0o7777, 0);
}
