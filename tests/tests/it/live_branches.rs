//! Changes of the branches of a mounted union: `unionctl` and `mount -o remount`.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use strata_tests::process::{sh, try_run};
use strata_tests::tree::{self, Times};
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, long, on_both_transports};
use testkit::{seen, until};

/// A union of an empty branch, `rw`, over `base`, with two modules that are no branches yet.
struct LiveUnion {
    union: Mounted,
    rw: PathBuf,
    base: PathBuf,
    modules: [PathBuf; 2],
    sandbox: Sandbox,
}

impl LiveUnion {
    fn new(transport: Transport) -> Self {
        Self::with_options(transport, "")
    }

    fn with_options(transport: Transport, options: &str) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(300));
        let disk = sandbox.ext4("disk", 256);
        let dir = |name: &str| {
            let dir = disk.join(name);
            fs::create_dir(&dir).unwrap();
            dir
        };
        let (rw, base, modules) = (dir("rw"), dir("base"), [dir("module 1"), dir("module:2")]);
        for (branch, text) in [(&base, "base"), (&modules[0], "one"), (&modules[1], "two")] {
            fs::create_dir(branch.join("dir")).unwrap();
            fs::write(branch.join("dir/file"), text).unwrap();
            fs::write(branch.join(format!("dir/only-{text}")), text).unwrap();
            fs::create_dir(branch.join(format!("home-{text}"))).unwrap();
        }
        let union = Mounted::with_options(Spec::union(&rw, &base, transport), &sandbox.path("u"), options);
        Self { union, rw, base, modules, sandbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.union.path(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs `unionctl` and returns its exit status and output.
    fn try_ctl(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = try_run(program("unionctl").arg(self.union.dir()).args(words));
        (output.status.code(), output.text)
    }

    fn ctl(&self, words: &[&str]) -> String {
        let (status, text) = self.try_ctl(words);
        assert_eq!(status, Some(0), "{words:?}: {text}");
        text
    }

    fn add(&self, module: &Path, words: &[&str]) {
        self.ctl(&[&["--add"], words, &[module.to_str().unwrap()]].concat());
    }

    fn remove(&self, module: &Path) {
        self.ctl(&["--remove", module.to_str().unwrap()]);
    }

    fn try_remount(&self, options: &str) -> (Option<i32>, String) {
        let mut command = program("mount.unionfs");
        let output = try_run(command.arg("none").arg(self.union.dir()).args(["-o", &format!("remount,{options}")]));
        (output.status.code(), output.text)
    }

    fn remount(&self, options: &str) {
        let (status, text) = self.try_remount(options);
        assert_eq!(status, Some(0), "{options}: {text}");
    }

    /// Returns the branches as `MODE NAME`, without the path of the file system.
    fn list(&self) -> Vec<String> {
        let disk = self.rw.parent().unwrap().to_str().unwrap().to_owned() + "/";
        let lines = self.ctl(&["--list"]);
        let line = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            format!("{} {}", fields.next().unwrap(), fields.next().unwrap().replace(&disk, ""))
        };
        lines.lines().map(line).collect()
    }
}

fn program(name: &str) -> Command {
    let mut command = Command::new(Mounted::program().unwrap());
    command.arg0(name);
    command
}

/// In a PID namespace with the /proc of another one, where the number of the process that adds a
/// branch belongs to another process, in another mount namespace.
fn a_foreign_proc_does_not_mislead(transport: Transport) {
    let sandbox = Sandbox::new();
    let [_, _, added, decoy] = ["rw", "u", "added", "decoy"].map(|name| sandbox.dir(name));
    fs::write(added.join("file"), "right").unwrap();
    fs::write(decoy.join("file"), "wrong").unwrap();
    for name in ["mount.unionfs", "unionctl"] {
        std::os::unix::fs::symlink(Mounted::program().unwrap(), sandbox.path(name)).unwrap();
    }
    let inner = format!(
        "set -e; cd /mnt
        ./mount.unionfs none u -o dirs=/mnt/rw=rw,transport={}
        ./unionctl u --add /mnt/added
        cat u/file
        umount u",
        transport.name()
    );
    let outer = "
        for number in $(seq 60); do
            unshare --mount sh -c 'mount --bind /mnt/decoy /mnt/added; echo; exec sleep infinity' &
        done | head -n 60 >/dev/null
        unshare --pid --fork --kill-child sh -c \"$1\"";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", outer, "bash", &inner]);
    let text = strata_tests::process::run(&mut command);
    let warns = text.contains("/proc belongs to another PID namespace");
    assert!(warns && text.ends_with("\nright"), "{text}");
}

/// A process with a file open, which is killed at the end.
struct Holder(Child);

impl Holder {
    fn new(path: &Path, mode: &str) -> Self {
        let script = format!("exec 5{mode}\"$1\"; touch \"$2\"; exec sleep 1000");
        let ready = std::env::temp_dir().join(format!("strata-live-{}", std::process::id()));
        let mut command = Command::new("bash");
        let child = command.args(["-c", &script, "bash"]).arg(path).arg(&ready).spawn().unwrap();
        until("the file is open", || ready.exists());
        fs::remove_file(&ready).unwrap();
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Branches appear and vanish at once, also for programs that have looked before: names, listings,
/// missing names and open directories.
fn a_branch_is_added_and_removed(transport: Transport) {
    let fx = LiveUnion::new(transport);
    let names = |dir: &str| testkit::names(&fx.path(dir));
    assert_eq!(fx.list(), ["rw rw", "ro base"]);
    for round in 0..3 {
        assert!(!fx.path("dir/only-one").exists() && !fx.path("home-one").exists(), "{round}");
        assert_eq!((fx.text("dir/file"), names("dir")), ("base".to_owned(), vec!["file".into(), "only-base".into()]));
        fx.add(&fx.modules[0], &[]);
        assert_eq!(fx.list(), ["rw rw", "ro module\\0401", "ro base"]);
        assert_eq!((fx.text("dir/file"), fx.text("dir/only-one")), ("one".to_owned(), "one".to_owned()));
        assert_eq!(names("dir"), ["file", "only-base", "only-one"]);
        assert_eq!(names(""), ["dir", "home-base", "home-one"]);
        fx.add(&fx.modules[1], &["--mode", "ro", "--after", fx.base.to_str().unwrap()]);
        assert_eq!(fx.list(), ["rw rw", "ro module\\0401", "ro base", "ro module\\:2"]);
        assert_eq!((fx.text("dir/file"), fx.text("dir/only-two")), ("one".to_owned(), "two".to_owned()));
        fx.ctl(&["--remove", "3"]);
        fx.remove(&fx.modules[0]);
        assert_eq!(fx.list(), ["rw rw", "ro base"]);
    }
    // The branches are unchanged.
    assert_eq!(fs::read_dir(&fx.modules[0]).unwrap().count(), 2);
}

/// A union without a writable branch refuses all changes: the command that makes it so says so.
fn the_last_writable_branch_is_not_removed_in_silence(transport: Transport) {
    let fx = LiveUnion::new(transport);
    let hint = "no branch is writable any more, so all changes are refused";
    assert!(fx.ctl(&["--remove", "0"]).contains(hint));
    assert_eq!(fx.ctl(&["--add", fx.modules[0].to_str().unwrap(), "--mode", "ro"]), "");
    let refused = fs::write(fx.path("new"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fx.ctl(&["--add", "--mode", "rw", fx.rw.to_str().unwrap()]), "");
    assert!(fx.ctl(&["--mode", "0", "ro"]).contains(hint));
}

/// A process whose working directory was only on the removed branch gets ESTALE. One in a merged
/// directory continues.
fn working_directories(transport: Transport) {
    let fx = LiveUnion::new(transport);
    fx.add(&fx.modules[0], &[]);
    let inside = |dir: &str| {
        let script = "cd \"$1\"; echo ready; read line; ls >/dev/null 2>&1 && echo listed || { ls 2>&1 || true; }";
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash"]).arg(fx.path(dir));
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut children = [inside("home-one"), inside("dir")];
    for child in &mut children {
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    }
    fx.remove(&fx.modules[0]);
    let answers = children.map(|mut child| {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    });
    assert!(answers[0].contains("Stale file handle"), "{}", answers[0]);
    assert_eq!(answers[1], "listed\n");
}

/// A branch with files in use is not removed. The message names the files and the processes.
fn a_branch_in_use_is_not_removed(transport: Transport) {
    let fx = LiveUnion::new(transport);
    fx.add(&fx.modules[0], &[]);
    let holder = Holder::new(&fx.path("dir/only-one"), "<");
    let (status, text) = fx.try_ctl(&["--remove", "1"]);
    let user = format!("dir/only-one: open by {} (sleep)", holder.0.id());
    assert!(status == Some(32) && text.contains(&user) && text.contains("--copyup"), "{text}");
    assert_eq!(fx.list(), ["rw rw", "ro module\\0401", "ro base"]);
    let (status, text) = fx.try_remount(&format!("del={}", fx.modules[0].display()));
    assert!(status == Some(32) && text.contains(&user), "{text}");
    drop(holder);
    until("the branch of the closed file is removed", || {
        seen(fx.try_ctl(&["--remove", "1"]), |(status, _)| *status == Some(0))
    });
    assert_eq!(fx.list(), ["rw rw", "ro base"]);
}

/// With --copyup, files in use are copied with their data, and open files follow them.
fn files_in_use_are_copied_up(transport: Transport) {
    let fx = LiveUnion::new(transport);
    let content = Rng::new(7).bytes(300_000);
    fs::write(fx.modules[0].join("large"), &content).unwrap();
    fx.add(&fx.modules[0], &[]);
    let reader = File::open(fx.path("large")).unwrap();
    // A change of attributes alone copies no data yet.
    fs::set_permissions(fx.path("large"), fs::Permissions::from_mode(0o640)).unwrap();
    let number = reader.metadata().unwrap().ino();
    fx.ctl(&["--remove", "1", "--copyup"]);
    assert_eq!(fx.list(), ["rw rw", "ro base"]);
    let mut read = vec![0; content.len()];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert!(read == content && fs::read(fx.path("large")).unwrap() == content);
    let now = fs::metadata(fx.path("large")).unwrap();
    assert_eq!((now.ino(), now.mode() & 0o7777), (number, 0o640));
    // The reader sees a change of the copy.
    OpenOptions::new().write(true).open(fx.path("large")).unwrap().write_all_at(b"changed", 100).unwrap();
    let mut changed = [0; 7];
    reader.read_exact_at(&mut changed, 100).unwrap();
    assert_eq!(&changed, b"changed");
    assert!(fs::read(fx.modules[0].join("large")).unwrap() == content);
    assert!(!fx.path("dir/only-one").exists());
}

/// With --lazy, files in use remain usable until they are closed, like deleted files.
fn files_in_use_remain_usable(transport: Transport) {
    let fx = LiveUnion::new(transport);
    fx.add(&fx.modules[0], &[]);
    let reader = File::open(fx.path("dir/only-one")).unwrap();
    fx.ctl(&["--remove", "1", "--lazy"]);
    let mut text = String::new();
    (&reader).read_to_string(&mut text).unwrap();
    assert_eq!(text, "one");
    assert!(!fx.path("dir/only-one").exists());
}

/// A branch that becomes read-only is not changed any more, also not through files that were open
/// for writing. It can become writable again.
fn modes_are_switched(transport: Transport) {
    let fx = LiveUnion::with_options(transport, "passthrough=off");
    fs::write(fx.path("dir/written"), "before").unwrap();
    let writer = OpenOptions::new().write(true).open(fx.path("dir/written")).unwrap();
    let new = fx.sandbox.dir("new");
    fx.add(&new, &["--mode", "rw"]);
    fx.ctl(&["--mode", "1", "ro"]);
    assert!(fx.list()[1..] == ["ro rw", "ro base"], "{:?}", fx.list());
    let old = tree::read(&fx.rw);
    writer.write_all_at(b"after!", 0).unwrap();
    fs::remove_file(fx.path("dir/only-base")).unwrap();
    fs::create_dir(fx.path("created")).unwrap();
    fs::set_permissions(fx.path("dir/file"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!((fx.text("dir/written"), fs::read_to_string(new.join("dir/written")).unwrap()), {
        let after = "after!".to_owned();
        (after.clone(), after)
    });
    let difference = tree::difference(&old, &tree::read(&fx.rw), Times::Exact);
    assert!(difference.is_empty(), "the branch was changed:\n{difference}");
    drop(writer);
    // From ro to rw: a directory that was opened as read-only.
    fx.ctl(&["--mode", fx.base.to_str().unwrap(), "rw"]);
    fx.ctl(&["--mode", "1", "rw"]);
    fx.ctl(&["--remove", "0"]);
    assert_eq!(fx.list(), ["rw rw", "rw base"]);
    assert_eq!(fx.text("dir/written"), "before");
    fs::write(fx.path("dir/file"), "in place").unwrap();
    assert_eq!(fs::read_to_string(fx.base.join("dir/file")).unwrap(), "in place");
    fx.ctl(&["--mode", "1", "ro"]);
    fs::write(fx.path("dir/file"), "copied up").unwrap();
    assert_eq!(fs::read_to_string(fx.base.join("dir/file")).unwrap(), "in place");
    assert_eq!(fs::read_to_string(fx.rw.join("dir/file")).unwrap(), "copied up");
}

/// The kernel may write to a file without the union: its branch stays writable until it is closed.
fn a_branch_written_by_the_kernel_stays_writable(transport: Transport) {
    let fx = LiveUnion::new(transport);
    fs::write(fx.path("written"), "before").unwrap();
    let holder = Holder::new(&fx.path("written"), ">>");
    let new = fx.sandbox.dir("new");
    fx.add(&new, &["--mode", "rw"]);
    let (status, text) = fx.try_ctl(&["--mode", "1", "ro"]);
    let user = format!("written: open for writing by {} (sleep)", holder.0.id());
    assert!(status == Some(32) && text.contains(&user) && text.contains("passthrough=off"), "{text}");
    assert!(fx.list()[1..] == ["rw rw", "ro base"], "{:?}", fx.list());
    drop(holder);
    until("the branch of the closed file is read-only", || {
        seen(fx.try_ctl(&["--mode", "1", "ro"]), |(status, _)| *status == Some(0))
    });
    fs::write(fx.path("written"), "after").unwrap();
    assert_eq!(fs::read_to_string(fx.rw.join("written")).unwrap(), "before");
}

/// Nothing keeps a removed branch in use: its file system can be unmounted, and its claim is free,
/// although the kernel remembers its files.
fn a_removed_branch_is_free(transport: Transport) {
    let fx = LiveUnion::new(transport);
    for mode in ["ro", "rw"] {
        let disk = fx.sandbox.ext4(mode, 64);
        fs::create_dir_all(disk.join("d/sub")).unwrap();
        fs::write(disk.join("d/sub/file"), mode).unwrap();
        fx.add(&disk, &["--mode", mode]);
        let names = fs::read_dir(fx.path("d")).unwrap().count();
        assert_eq!((fx.text("d/sub/file"), names), (mode.to_owned(), 1));
        let seen = [fx.path("d"), fx.path("d/sub"), fx.path("d/sub/file")].map(|path| fs::metadata(path).unwrap());
        assert!(seen[2].is_file());
        fx.ctl(&["--remove", disk.to_str().unwrap(), "--copyup"]);
        // While anything refers to it, the file system has an entry in sysfs.
        let device = sh("findmnt -no SOURCE \"$1\"", &[&disk]).trim().to_owned();
        let entry = Path::new("/sys/fs/ext4").join(device.trim_start_matches("/dev/"));
        sh("flock -n \"$1\" true; umount \"$1\"", &[&disk]);
        until(&format!("{mode}: the file system is out of use"), || !entry.exists());
    }
}

/// All forms of the options of a remount, and all or nothing.
fn remounts(transport: Transport) {
    let fx = LiveUnion::new(transport);
    let [one, two] = [0, 1].map(|i| fx.modules[i].to_str().unwrap().replace(':', "\\:").replace(' ', "\\040"));
    let (rw, base) = (fx.rw.display(), fx.base.display());
    fx.remount(&format!("add:1:{one}=rr+wh"));
    assert_eq!(fx.list(), ["rw rw", "ro module\\0401", "ro base"]);
    assert_eq!(fx.text("dir/file"), "one");
    fx.remount(&format!("del:{one},append:{two}=ro"));
    assert_eq!(fx.list(), ["rw rw", "ro base", "ro module\\:2"]);
    fx.remount(&format!("add={base}:{one}"));
    assert_eq!(fx.list(), ["rw rw", "ro module\\0401", "ro base", "ro module\\:2"]);
    // The second change is impossible: none is made.
    let (status, text) = fx.try_remount(&format!("del={one},del=/nowhere"));
    assert!(status == Some(1) && text.contains("/nowhere: not in the union"), "{text}");
    let (status, text) = fx.try_remount(&format!("del={two},mode={rw}=ro,mode={base}=rw"));
    assert!(status == Some(32), "{text}");
    assert_eq!(fx.list(), ["rw rw", "ro module\\0401", "ro base", "ro module\\:2"]);
    // A whole list: only the differences are applied, in one step.
    let reader = File::open(fx.path("dir/only-two")).unwrap();
    fx.remount(&format!("dirs={rw}=rw:{two}=ro:{base}=ro"));
    assert_eq!(fx.list(), ["rw rw", "ro module\\:2", "ro base"]);
    assert_eq!((fx.text("dir/file"), reader.metadata().unwrap().len()), ("two".to_owned(), 3));
    drop(reader);
    fx.remount(&format!("dirs={rw}:{base},noatime"));
    assert_eq!(fx.list(), ["rw rw", "ro base"]);
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(fx.union.dir().to_str().unwrap())).unwrap();
    assert!(line.contains("noatime"), "{line}");
    // Options that a remount can't change are still refused.
    let (status, text) = fx.try_remount("cache=7");
    assert!(status == Some(1) && text.contains("cache"), "{text}");
}

/// If the flags can't be changed, the branches stay; if the branches can't be changed, the flags
/// do.
fn a_failed_remount_changes_nothing(transport: Transport) {
    let fx = LiveUnion::new(transport);
    fx.add(&fx.modules[0], &[]);
    let before = fx.list();
    let flags = || {
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(fx.union.dir().to_str().unwrap())).unwrap();
        line.split_whitespace().nth(3).unwrap().to_owned()
    };
    let flags_before = flags();
    let writer = File::create(fx.path("writer")).unwrap();
    let (status, text) = fx.try_remount("ro,del=1");
    assert!(status == Some(32) && text.contains("open for writing"), "{text}");
    assert_eq!((fx.list().len(), flags()), (before.len(), flags_before.clone()));
    drop(writer);
    let (status, text) = fx.try_remount("noexec,del=/nowhere");
    assert!(status == Some(1) && text.contains("/nowhere"), "{text}");
    assert_eq!((fx.list(), flags()), (before.clone(), flags_before));
    let output = try_run(program("mount.unionfs").arg("none").arg(fx.path("dir")).args(["-o", "remount,del=1"]));
    assert!(output.status.code() == Some(32) && output.text.contains("not a mount point"), "{}", output.text);
    assert_eq!(fx.list(), before);
}

/// A branch that becomes the first brings its records of hard links, also into a union that was
/// built without it.
fn records_of_another_union_are_kept(transport: Transport) {
    let mut fx = LiveUnion::new(transport);
    fs::hard_link(fx.base.join("dir/file"), fx.base.join("dir/other")).unwrap();
    fs::write(fx.path("dir/file"), "changed").unwrap();
    assert_eq!(fx.text("dir/other"), "changed");
    fx.union.unmount();
    let spec = Spec::Union {
        branches: vec![(fx.base.clone(), strata_tests::Mode::Ro)],
        delete: strata_tests::Delete::Whiteout,
        transport,
    };
    let mut alone = Mounted::new(spec, fx.union.dir());
    assert_eq!(fx.text("dir/other"), "base");
    let (status, text) = fx.try_ctl(&["--add", "--mode", "rw", "--before", "0", fx.rw.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{text}");
    for name in ["dir/other", "dir/file"] {
        assert_eq!((fx.text(name), fs::metadata(fx.path(name)).unwrap().nlink()), ("changed".to_owned(), 2));
    }
    alone.unmount();
    fx.union.mount_again();
    assert_eq!((fx.text("dir/other"), fx.text("dir/file")), ("changed".to_owned(), "changed".to_owned()));
}

/// Branches that can't be branches are refused, and the union is unchanged.
fn impossible_branches_are_refused(transport: Transport) {
    let fx = LiveUnion::new(transport);
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    let link = path(fx.sandbox.path("link"));
    std::os::unix::fs::symlink(&fx.base, &link).unwrap();
    for (words, status, reason) in [
        (vec![path(fx.path("dir"))], 32, "is a directory of the union itself"),
        (vec![path(fx.base.clone())], 32, "is in the union already"),
        (vec![link], 32, "is in the union already"),
        (vec![path(fx.base.join("dir"))], 32, "is inside branch"),
        (vec![path(fx.base.parent().unwrap().to_owned())], 32, "is inside branch"),
        (vec!["/nowhere".to_owned()], 32, "no such file or directory"),
        (vec![path(fx.base.join("dir/file"))], 32, "not a directory"),
        (vec!["--mode".to_owned(), "rx".to_owned(), path(fx.modules[0].clone())], 1, "unknown mode"),
        (vec!["--before".to_owned(), "7".to_owned(), path(fx.modules[0].clone())], 1, "branch 7"),
        // The first branch must be rw if another one is.
        (vec!["--before".to_owned(), "0".to_owned(), path(fx.modules[0].clone())], 32, "rw"),
    ] {
        let words: Vec<&str> = ["--add"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let (code, text) = fx.try_ctl(&words);
        assert!(code == Some(status) && text.contains(reason), "{words:?}: {code:?} {text}");
        assert_eq!(fx.list(), ["rw rw", "ro base"]);
    }
    let (code, text) = fx.try_ctl(&["--remove", "0"]);
    // Nothing is in use, so the union becomes read-only.
    assert_eq!((code, fx.list()), (Some(0), vec!["ro base".to_owned()]), "{text}");
    assert_eq!(fs::write(fx.path("new"), "").unwrap_err().raw_os_error(), Some(30));
    let (code, text) = fx.try_ctl(&["--remove", "0"]);
    assert!(code == Some(32) && text.contains("branch"), "{text}");
    fx.add(&fx.rw, &["--mode", "rw"]);
    fs::write(fx.path("new"), "").unwrap();
    // Another directory is not a union.
    let output = try_run(program("unionctl").arg(&fx.base).arg("--list"));
    assert!(output.status.code() == Some(32) && output.text.contains("not on a Strata mount"), "{}", output.text);
}

/// A directory that only another mount namespace sees becomes a branch. Users without rights are
/// refused.
fn other_namespaces_and_users(transport: Transport) {
    let fx = LiveUnion::new(transport);
    let ctl = fx.sandbox.path("unionctl");
    fs::copy(Mounted::program().unwrap(), &ctl).unwrap();
    let point = fx.sandbox.dir("point");
    let script = "unshare -m bash -euc 'mount --bind \"$1\" \"$2\"; mount -t tmpfs none \"$3\"; echo t >\"$3/t\"
        \"$0\" \"$4\" --add \"$2\"; \"$0\" \"$4\" --add \"$3\"' \"$1\" \"$2\" \"$3\" \"$4\" \"$5\"";
    let tmpfs = fx.sandbox.dir("tmpfs");
    sh(script, &[&ctl, &fx.modules[0], &point, &tmpfs, &fx.union.dir().to_owned()]);
    assert_eq!((fx.text("dir/file"), fx.text("t")), ("one".to_owned(), "t\n".to_owned()));
    // In this namespace the path leads to another, empty directory.
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
    fx.remove(&point);
    assert_eq!(fx.text("dir/file"), "base");
    fx.remove(&tmpfs);
    let user = |words: &str| {
        let line = format!("{} {} {words}", ctl.display(), fx.union.dir().display());
        let output = try_run(Command::new("setpriv").args([
            "--reuid=1000",
            "--regid=1000",
            "--clear-groups",
            "bash",
            "-c",
            &line,
        ]));
        (output.status.code(), output.text)
    };
    let (code, text) = user(&format!("--add '{}'", fx.modules[0].display()));
    assert!(code == Some(1) && text.contains("only root and the mounting user"), "{text}");
    assert_eq!(user("--list").0, Some(0));
}

/// A stack in brackets becomes a branch, and lists as one.
fn a_stack_becomes_a_branch(transport: Transport) {
    let fx = LiveUnion::new(transport);
    let module = fx.sandbox.dir("rotated");
    fs::write(module.join("uryyb"), "text").unwrap();
    fx.ctl(&["--add", &format!("[rot13 / {}]", module.display())]);
    assert_eq!(fx.text("hello"), "text");
    let (code, text) = fx.try_ctl(&["--mode", "1", "rw"]);
    assert!(code == Some(32) && text.contains("add it with the mode rw"), "{text}");
    fx.ctl(&["--remove", "1"]);
    assert!(!fx.path("hello").exists());
}

/// `--query` shows what each branch has at the place of a file or directory.
fn a_query_shows_each_branch(transport: Transport) {
    let fx = LiveUnion::new(transport);
    fx.add(&fx.modules[0], &[]);
    let query = |name: &str| -> String { fx.ctl(&["--query", fx.path(name).to_str().unwrap()]) };
    let text = query("dir/file");
    let states: Vec<_> = text.lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(states, ["absent", "shown", "hidden"], "{text}");
    fs::write(fx.path("dir/file"), "copy").unwrap();
    let text = query("dir/file");
    assert!(text.lines().nth(1).unwrap().contains("shown"), "{text}");
    let states: Vec<_> =
        query("dir").lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect();
    assert_eq!(states, ["part", "part", "part"]);
    let (code, text) = fx.try_ctl(&["--query", fx.base.to_str().unwrap()]);
    assert!(code == Some(1) && text.contains("not in the union"), "{text}");
}

/// Sets a flag when dropped.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Modules come and go while programs read, write and list: every result is right.
fn under_load(transport: Transport) {
    let fx = LiveUnion::new(transport);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let rounds = if long() { 2000 } else { 60 };
    let running = || !stop.load(Ordering::Relaxed);
    thread::scope(|threads| {
        for worker in 0..3_u64 {
            let (fx, done) = (&fx, &done);
            threads.spawn(move || {
                let dir = fx.path(&format!("work-{worker}"));
                let mut round = 0;
                while running() {
                    fs::create_dir(&dir).unwrap();
                    let path = dir.join("data");
                    let bytes = Rng::new(worker * 1000 + round).bytes(30_000);
                    let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
                    file.write_all_at(&bytes, 0).unwrap();
                    assert!(fs::read(&path).unwrap() == bytes);
                    fs::rename(&path, dir.join("moved")).unwrap();
                    file.write_all_at(b"end", 30_000).unwrap();
                    assert_eq!(fs::metadata(dir.join("moved")).unwrap().len(), 30_003);
                    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
                    fs::remove_file(dir.join("moved")).unwrap();
                    fs::remove_dir(&dir).unwrap();
                    // This name is on every branch, so some branch always has it.
                    let text = fs::read_to_string(fx.path("dir/file")).unwrap();
                    assert!(["base", "one", "two"].contains(&text.as_str()), "{text:?}");
                    assert_eq!(fs::read_to_string(fx.path("dir/only-base")).unwrap(), "base");
                    let names: Vec<_> = fs::read_dir(fx.path("dir")).unwrap().map(|e| e.unwrap().file_name()).collect();
                    assert!(names.iter().filter(|name| *name == "only-base").count() == 1, "{names:?}");
                    round += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Ends the other threads also after a failed assertion.
        let _stopped = StopOnDrop(&stop);
        for round in 0..rounds {
            let module = &fx.modules[round % 2];
            let words: &[&str] = if round % 3 == 0 { &["--after", fx.base.to_str().unwrap()] } else { &[] };
            fx.add(module, words);
            let name = ["one", "two"][round % 2];
            assert!(fx.path(&format!("dir/only-{name}")).exists(), "{name}");
            let begin = Instant::now();
            // The workers open a file of the module again and again.
            while fx.try_ctl(&["--remove", module.to_str().unwrap(), "--copyup"]).0 != Some(0) {
                assert!(begin.elapsed() < Duration::from_secs(60), "{}", fx.ctl(&["--list"]));
            }
            assert!(!fx.path(&format!("dir/only-{name}")).exists(), "{name}");
        }
    });
    assert!(done.load(Ordering::Relaxed) > 10);
    let log = fx.union.log_text();
    assert!(!log.contains("panic") && !log.contains("ERROR"), "{log}");
}

/// The union that a killed server leaves can be mounted again, with any branches.
fn a_server_is_killed_during_changes(transport: Transport) {
    let mut fx = LiveUnion::new(transport);
    for round in 0..(if long() { 100 } else { 6 }) {
        fs::write(fx.path("kept"), format!("{round}")).unwrap();
        let number = fs::metadata(fx.path("dir")).unwrap().ino();
        let killed = fx.union.kill_after(Duration::from_millis(5 + 13 * round % 60));
        while !killed.load(Ordering::Relaxed) {
            let module = fx.modules[0].to_str().unwrap();
            let _ = fx.try_ctl(&["--add", module]);
            let _ = fx.try_ctl(&["--remove", module]);
        }
        fx.union.crash();
        fx.union.mount_again();
        assert_eq!(fx.list(), ["rw rw", "ro base"]);
        assert_eq!((fx.text("kept"), fs::metadata(fx.path("dir")).unwrap().ino()), (format!("{round}"), number));
        assert_eq!(fx.text("dir/file"), "base");
    }
}

on_both_transports!(
    a_foreign_proc_does_not_mislead,
    a_branch_is_added_and_removed,
    the_last_writable_branch_is_not_removed_in_silence,
    working_directories,
    a_branch_in_use_is_not_removed,
    files_in_use_are_copied_up,
    files_in_use_remain_usable,
    modes_are_switched,
    a_branch_written_by_the_kernel_stays_writable,
    a_removed_branch_is_free,
    remounts,
    a_failed_remount_changes_nothing,
    records_of_another_union_are_kept,
    impossible_branches_are_refused,
    other_namespaces_and_users,
    a_stack_becomes_a_branch,
    a_query_shows_each_branch,
    under_load,
    a_server_is_killed_during_changes,
);
