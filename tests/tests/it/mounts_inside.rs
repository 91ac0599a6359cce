//! Mounts inside a mounted file system, running programs and working directories: whatever changes
//! below, they stay. The kernel detaches them from a name that it drops.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;
use strata_tests::process::{run, sh, try_run};
use strata_tests::shell::Shell;
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};
use testkit::{until, until_within};

/// Directories of the lower branch.
const DIRS: [&str; 11] =
    ["data", "usr/lib/deep", "usr/lib/work", "etc", "secret", "home/user", "bin", "srv", "a/b/c/d", "open", "other"];

/// A file system with everything that the kernel could detach from it.
struct Inside {
    /// The directory whose objects it shows, and the one where changes are stored.
    lower: PathBuf,
    upper: PathBuf,
    /// A process in a mount namespace of its own, with a mount that the server can't see.
    other: Shell,
    /// A process with a working directory there.
    inner: Shell,
    program: Child,
    mounts: Vec<String>,
    /// Dropped after the processes that use it.
    mounted: Mounted,
    sandbox: Sandbox,
}

impl Inside {
    fn new(mount: impl FnOnce(&Path, &Path) -> Spec, options: &str) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(300));
        let disk = sandbox.ext4("disk", 256);
        let (lower, upper) = (disk.join("lower"), disk.join("upper"));
        fs::create_dir(&upper).unwrap();
        for dir in DIRS {
            fs::create_dir_all(lower.join(dir)).unwrap();
        }
        for file in ["etc/resolv.conf", "secret/key", "srv/file"] {
            fs::write(lower.join(file), "lower").unwrap();
        }
        fs::copy("/bin/sleep", lower.join("bin/sleep")).unwrap();
        fs::write(disk.join("resolv.conf"), "bound").unwrap();
        let mounted = Mounted::with_options(mount(&upper, &lower), &sandbox.path("u"), options);
        let script = r#"set -e
            mount -t tmpfs t "$1/data"
            mkdir "$1/data/nested"
            mount -t tmpfs t "$1/data/nested"
            mount -t tmpfs t "$1/usr/lib/deep"
            mount -t tmpfs t "$1/a/b/c/d"
            mount -t tmpfs masks "$1/secret"
            mount --bind "$2/resolv.conf" "$1/etc/resolv.conf"
            mount --bind "$1/srv" "$1/srv"
            mount -o remount,bind,ro "$1/srv""#;
        sh(script, &[mounted.dir(), &disk]);
        let mut other = Shell::of(Command::new("unshare").args(["--mount", "bash"]));
        other.run(&format!("mount -t tmpfs t {0}/home/user && touch {0}/home/user/file", mounted.dir().display()));
        let inner = Shell::start(&mounted.path("usr/lib/work"), 0);
        let program = Command::new(mounted.path("bin/sleep")).arg("infinity").spawn().unwrap();
        let mut inside = Self { lower, upper, other, inner, program, mounts: Vec::new(), mounted, sandbox };
        inside.mounts = inside.state();
        assert_eq!(inside.mounts.iter().filter(|line| line.contains(" tmpfs ")).count(), 2 * 5 + 1);
        inside
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    /// Returns what is mounted in both namespaces, and what running programs are.
    fn state(&mut self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap() + &self.other.run("cat /proc/self/mounts");
        let mut lines: Vec<_> = mounts.lines().filter(|line| line.contains(" /mnt/u/")).map(str::to_owned).collect();
        let process =
            |pid: u32, what: &str| fs::read_link(format!("/proc/{pid}/{what}")).unwrap().display().to_string();
        lines.push(process(self.program.id(), "exe"));
        lines.push(process(self.inner.pid().parse().unwrap(), "cwd"));
        lines.push(self.inner.run("pwd -P; stat -c %F . ..; cat ../../../etc/resolv.conf"));
        // Without the addresses: the program is still being loaded at first.
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.program.id())).unwrap();
        let paths: BTreeSet<_> = maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| path).collect();
        lines.extend(paths.into_iter().filter(|path| path.contains("bin/sleep")).map(str::to_owned));
        lines
    }

    /// Uses every name, then compares the state with that of the start.
    fn check(&mut self, after: &str) {
        // A name is expired twice.
        for pause in [0, 400] {
            thread::sleep(Duration::from_millis(pause));
            // By path, before a listing gives the kernel all names again.
            let names = ["data/nested", "etc/resolv.conf", "srv/file", "bin/sleep"];
            names.iter().chain(&DIRS).for_each(|name| drop(fs::metadata(self.path(name))));
            self.other.run(&format!("stat {}/home/user", self.mounted.dir().display()));
            sh("find \"$1\" >/dev/null", &[self.mounted.dir()]);
            self.other.run(&format!("ls -lR {} >/dev/null", self.mounted.dir().display()));
            let state = self.state();
            assert_eq!(state, self.mounts, "after {after}");
        }
        assert_eq!(fs::read_to_string(self.path("etc/resolv.conf")).unwrap(), "bound", "after {after}");
        assert!(!self.path("secret/key").exists(), "after {after}");
        File::create(self.path("srv/file")).expect_err("a read-only bind mount");
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        for name in ["srv", "etc/resolv.conf", "secret", "a/b/c/d", "usr/lib/deep", "data"] {
            let _detached = try_run(Command::new("umount").arg("-R").arg(self.path(name)));
        }
    }
}

fn program(name: &str) -> Command {
    let mut command = Command::new(Mounted::program().unwrap());
    command.arg0(name);
    command
}

/// Changes of branches and of the objects below, reported and not.
fn a_union_keeps_them(transport: Transport) {
    let mut inside = Inside::new(|upper, lower| Spec::union(upper, lower, transport), "cache=3600");
    let dir = |inside: &Inside, name: &str| inside.sandbox.dir(name);
    let ctl = |inside: &Inside, words: &[&str]| run(program("unionctl").arg(inside.mounted.dir()).args(words));
    let (empty, full, snapshot) = (dir(&inside, "empty"), dir(&inside, "full"), dir(&inside, "snapshot"));
    for name in DIRS {
        fs::create_dir_all(full.join(name)).unwrap();
    }
    for name in ["usr/lib/new", "new"] {
        fs::write(full.join(name), "new").unwrap();
        assert!(!inside.path(name).exists());
    }
    inside.check("nothing");

    let [empty, full, snapshot] = [&empty, &full, &snapshot].map(|path| path.to_str().unwrap());
    let upper = inside.upper.display().to_string();
    let changes: [&[&str]; 9] = [
        &["--add", empty],
        &["--add", "--after", &upper, "--mode", "ro", full],
        &["--mode", full, "rw"],
        &["--remove", empty],
        &["--remove", full],
        &["--add", "--before", &upper, "--mode", "rw", full],
        &["--remove", full],
        &["--snapshot", snapshot],
        &["--list"],
    ];
    // Whether `full` is a branch, after each change.
    let shown = [false, true, true, true, false, true, false, false, false];
    for (change, shown) in changes.into_iter().zip(shown) {
        ctl(&inside, change);
        let names = ["usr/lib/new", "data", "new"].map(|name| inside.path(name).exists());
        assert_eq!(names, [shown, true, shown], "{change:?}");
        inside.check(&change.join(" "));
    }
    let options = format!("remount,add={full}=rw");
    run(program("mount.unionfs").arg("none").arg(inside.mounted.dir()).args(["-o", &options]));
    inside.check("remount,add=");
    run(program("uniondbg").arg(inside.mounted.dir()).arg("--revalidate"));
    inside.check("--revalidate");

    // Directories that are in use merge others from now on, and lose them.
    for name in ["usr", "usr/lib", "a/b/c", "etc", "bin", "home"] {
        fs::create_dir_all(inside.upper.join(name)).unwrap();
        inside.check(name);
    }
    fs::write(inside.upper.join("usr/lib/reported"), "").unwrap();
    let shown = inside.path("usr/lib/reported");
    until("a reported name", || shown.exists());
    inside.check("a reported name");
    sh("rm -r \"$1\"/usr \"$1\"/a \"$1\"/etc", &[&inside.upper]);
    until("the name is gone", || !shown.exists());
    inside.check("removed directories");
    // Copy-up of the directories that lead to them, by changes in them.
    for name in ["usr/lib/copied", "a/b/c/copied", "etc/copied", "bin/copied", "home/copied", "copied"] {
        fs::write(inside.path(name), "").unwrap();
        inside.check(name);
    }
    fs::rename(inside.path("a/b"), inside.path("a/moved")).unwrap();
    fs::rename(inside.path("a/moved"), inside.path("a/b")).unwrap();
    inside.check("renames");
}

/// The kernel drops events if too many happen at once. Then the server expires all names.
fn lost_events_keep_them(mut inside: Inside) {
    fs::create_dir(inside.lower.join("many")).unwrap();
    let path = inside.path("new");
    assert!(!path.exists());
    let server = inside.mounted.server().to_string();
    run(Command::new("kill").args(["-STOP", &server]));
    for number in 0..20_000 {
        File::create(inside.lower.join(format!("many/{number}"))).unwrap();
    }
    fs::write(inside.lower.join("new"), "new").unwrap();
    run(Command::new("kill").args(["-CONT", &server]));
    until_within(Duration::from_secs(20), "a change after an overflow", || path.exists());
    inside.check("lost events");
}

/// Every lookup fails, because a branch has lost its server. What is mounted on a directory stays,
/// and can be used as far as the directories that lead to it can.
fn a_directory_that_fails_keeps_them(transport: Transport) {
    let sandbox = Sandbox::new();
    let (lower, upper) = (sandbox.dir("lower"), sandbox.dir("upper"));
    for dir in ["usr/lib", "home"] {
        fs::create_dir_all(lower.join(dir)).unwrap();
    }
    let mut below = Mounted::new(Spec::wrap(&lower, transport), &sandbox.path("below"));
    let union = Mounted::with_options(Spec::union(&upper, below.dir(), transport), &sandbox.path("u"), "cache=0");
    for name in ["usr/lib", "home"] {
        run(Command::new("mount").args(["-t", "tmpfs", "t"]).arg(union.path(name)));
    }
    fs::write(union.path("home/file"), "text").unwrap();
    let inside = || {
        let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        table.lines().filter(|line| line.contains(" tmpfs ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let mounts = inside();
    below.crash();
    std::mem::forget(below);
    fs::metadata(union.path("other")).expect_err("a lookup on the lost branch");
    let _error = fs::metadata(union.path("usr/lib"));
    assert_eq!(fs::read_to_string(union.path("home/file")).unwrap(), "text");
    assert_eq!(inside(), mounts);
    // Lazily: the mounts inside can't be reached, and go with it.
    run(Command::new("umount").arg("-l").arg(union.dir()));
    std::mem::forget(union);
}

fn lost_events_in_a_union(transport: Transport) {
    lost_events_keep_them(Inside::new(|upper, lower| Spec::union(upper, lower, transport), "cache=3600"));
}

fn lost_events_in_the_null_layer(transport: Transport) {
    lost_events_keep_them(Inside::new(|_, lower| Spec::wrap(lower, transport), "cache=3600"));
}

on_both_transports!(
    a_directory_that_fails_keeps_them,
    a_union_keeps_them,
    lost_events_in_a_union,
    lost_events_in_the_null_layer
);
