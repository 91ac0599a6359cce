//! Mounted unions of many branches, and of branches that hang or are lost.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use strata_tests::process::try_run;
use strata_tests::{Mounted, Sandbox, Spec, Transport, on_both_transports};
use testkit::until;

fn union(dirs: &str, dir: &Path, transport: Transport) -> Mounted {
    Mounted::new(Spec::Stack { words: format!("unionfs,dirs={dirs}").into(), transport }, dir)
}

fn names(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn list(union: &Mounted) -> String {
    let output = try_run(Command::new(Mounted::program().unwrap()).arg0("unionctl").arg(union.dir()).arg("--list"));
    assert_eq!(output.status.code(), Some(0), "{}", output.text);
    output.text
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

fn two_thousand_branches(transport: Transport) {
    const COUNT: usize = 2000;
    let sandbox = Sandbox::with_time(Duration::from_secs(200));
    let disk = sandbox.ext4("disk", 256);
    let mut lines = String::from("# the branches\n");
    for n in 0..COUNT {
        let branch = disk.join(format!("b{n}"));
        fs::create_dir_all(branch.join("dir")).unwrap();
        fs::write(branch.join(format!("f{n}")), n.to_string()).unwrap();
        fs::write(branch.join("same"), n.to_string()).unwrap();
        fs::write(branch.join(format!("dir/g{n}")), "").unwrap();
        lines += &format!("{}{}\n", branch.display(), if n == 0 { "=rw" } else { "" });
    }
    let file = sandbox.path("list");
    fs::write(&file, lines).unwrap();
    let mut union = union(&format!("@{}", file.display()), &sandbox.path("u"), transport);
    assert_eq!(names(union.dir()), COUNT + 2);
    for n in [0, 1, COUNT / 2, COUNT - 1] {
        assert_eq!(fs::read_to_string(union.path(format!("f{n}"))).unwrap(), n.to_string());
    }
    assert_eq!(fs::read_to_string(union.path("same")).unwrap(), "0");
    assert_eq!(names(&union.path("dir")), COUNT);
    for n in 0..50 {
        assert_eq!(fs::metadata(union.path(format!("none{n}"))).unwrap_err().kind(), ErrorKind::NotFound);
    }
    fs::write(union.path("new"), "new").unwrap();
    fs::write(union.path(format!("f{}", COUNT - 1)), "copied up").unwrap();
    fs::remove_file(union.path("same")).unwrap();
    fs::remove_file(union.path("f5")).unwrap();
    fs::rename(union.path("f6"), union.path("dir/f6")).unwrap();
    assert_eq!((names(union.dir()), names(&union.path("dir"))), (COUNT, COUNT + 1));
    assert!(disk.join("b1999/f1999").exists() && disk.join("b0/.wh.same").exists());
    let branches = list(&union);
    assert_eq!(branches.lines().count(), COUNT);
    assert!(branches.contains("1999  ro  "), "{branches}");
    let added = disk.join("added");
    fs::create_dir(&added).unwrap();
    fs::write(added.join("from added"), "").unwrap();
    let program = Mounted::program().unwrap();
    let ctl = |words: &[&str]| {
        let output = try_run(Command::new(&program).arg0("unionctl").arg(union.dir()).args(words));
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", output.text);
    };
    ctl(&["--add", added.to_str().unwrap()]);
    assert!(union.path("from added").exists());
    ctl(&["--remove", "1000"]);
    assert!(union.path("f1000").exists() && !union.path("f999").exists());
    union.unmount();
}

/// Branches whose changes are reported are not searched again once what is known of a directory has
/// expired. A change that was made before an operation is seen by it all the same, even if the
/// server has not read the report yet.
fn reported_changes_are_visible_at_once(transport: Transport) {
    const COUNT: usize = 40;
    const ROUNDS: usize = 30;
    let sandbox = Sandbox::with_time(Duration::from_secs(200));
    let disk = sandbox.ext4("disk", 64);
    let part = |n: usize| disk.join(format!("b{n}/d"));
    let mut lines = String::new();
    for n in 0..COUNT {
        fs::create_dir_all(part(n)).unwrap();
        fs::write(part(n).join(format!("f{n}")), "").unwrap();
        lines += &format!("{}{}\n", disk.join(format!("b{n}")).display(), if n == 0 { "=rw" } else { "=ro" });
    }
    let file = sandbox.path("list");
    fs::write(&file, lines).unwrap();
    let cache = Duration::from_millis(50);
    let words = format!("unionfs,dirs=@{}", file.display()).into();
    let options = format!("cache={}", cache.as_secs_f64());
    let union = Mounted::with_options(Spec::Stack { words, transport }, &sandbox.path("u"), &options);
    let dir = union.path("d");
    assert_eq!(names(&dir), COUNT);
    for round in 0..ROUNDS {
        // What is cached expires.
        thread::sleep(cache + cache / 2);
        fs::write(part(7 * round % COUNT).join(format!("new{round}")), "").unwrap();
        assert!(dir.join(format!("new{round}")).exists(), "round {round}");
        assert!(!dir.join(format!("none{round}")).exists());
        thread::sleep(cache + cache / 2);
        let gone = (7 * round + 3) % COUNT;
        fs::remove_file(part(gone).join(format!("f{gone}"))).unwrap();
        assert_eq!(names(&dir), COUNT, "round {round}");
        assert!(!dir.join(format!("f{gone}")).exists(), "round {round}");
    }
}

/// A union of two directories and of a mount of another server, which can be stopped or killed.
struct Chained {
    union: Mounted,
    inner: Mounted,
    _sandbox: Sandbox,
}

impl Chained {
    fn new(mode: &str, transport: Transport) -> Self {
        let sandbox = Sandbox::with_time(Duration::from_secs(120));
        let dirs: Vec<PathBuf> = ["rw", "ro", "below"].map(|name| sandbox.dir(name)).into();
        for dir in &dirs {
            let name = dir.file_name().unwrap().to_str().unwrap();
            fs::create_dir(dir.join("dir")).unwrap();
            fs::write(dir.join(format!("file-{name}")), name).unwrap();
            fs::write(dir.join(format!("dir/file-{name}")), name).unwrap();
        }
        fs::create_dir(dirs[0].join("own")).unwrap();
        // Over the device: a server on the ring that is killed can't be removed.
        let inner = Mounted::new(Spec::wrap(&dirs[2], Transport::Device), &sandbox.path("inner"));
        let list = format!("{}=rw:{}=ro:{}={mode}", dirs[0].display(), dirs[1].display(), inner.dir().display());
        let union = union(&list, &sandbox.path("u"), transport);
        let this = Self { union, inner, _sandbox: sandbox };
        assert_eq!((names(this.union.dir()), names(&this.union.path("dir"))), (5, 3));
        this
    }

    fn cat(&self, name: &str) -> Child {
        // A shell's background jobs ignore SIGINT, and so would this test's programs.
        let mut cat = Command::new("env");
        cat.args(["--default-signal=INT", "cat"]).arg(self.union.path(name));
        cat.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn text(&self, name: &str) -> std::io::Result<String> {
        fs::read_to_string(self.union.path(name))
    }

    /// Number of lines of the union's log that contain `text`.
    fn logged(&self, text: &str) -> usize {
        self.union.log_text().lines().filter(|line| line.contains(text)).count()
    }
}

fn a_hung_branch_delays_only_what_needs_it_and_can_be_interrupted(transport: Transport) {
    let test = Chained::new("ro", transport);
    // The kernel may forget a directory that nothing uses, for want of memory. The union would have
    // to look it up again, which needs the branch.
    let _held = fs::File::open(test.union.path("dir")).unwrap();
    signal(test.inner.server(), Signal::STOP);
    // The first requests may take a few seconds until the branch counts as stuck, later ones
    // don't.
    let stats = || {
        fs::metadata(test.union.dir()).unwrap();
        fs::metadata(test.union.path("dir")).unwrap();
    };
    thread::sleep(Duration::from_millis(1200));
    stats();
    let begun = Instant::now();
    for n in 0..4 {
        thread::sleep(Duration::from_millis(600));
        stats();
        assert_eq!(test.text("file-ro").unwrap(), "ro");
        assert_eq!(test.text("dir/file-ro").unwrap(), "ro");
        fs::write(test.union.path("file-rw"), n.to_string()).unwrap();
        assert_eq!(test.text("dir/file-rw").unwrap(), "rw");
        // A directory without a part on the branch.
        fs::write(test.union.path(format!("own/new{n}")), "new").unwrap();
        assert!(!test.union.path(format!("own/none{n}")).exists());
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(list(&test.union).contains("(hung)"), "{}", list(&test.union));
    for how in [Signal::KILL, Signal::INT] {
        let mut cat = test.cat("file-below");
        // It goes on waiting.
        thread::sleep(Duration::from_millis(500));
        assert!(cat.try_wait().unwrap().is_none());
        signal(cat.id(), how);
        let begun = Instant::now();
        let status = cat.wait().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3));
        assert_eq!(status.signal(), Some(how.as_raw()));
    }
    let mut waiting = test.cat("file-below");
    thread::sleep(Duration::from_millis(300));
    assert!(waiting.try_wait().unwrap().is_none());
    signal(test.inner.server(), Signal::CONT);
    assert!(waiting.wait().unwrap().success());
    assert_eq!(test.text("dir/file-below").unwrap(), "below");
    until("the branch is used again", || !list(&test.union).contains("(hung)"));
    assert_eq!((test.logged("has not answered"), test.logged("answers again")), (1, 1));
    assert_eq!((names(test.union.dir()), names(&test.union.path("dir"))), (5, 3));
}

fn a_lost_branch_fails_or_is_skipped(transport: Transport) {
    for mode in ["ro", "ro+skip"] {
        let mut test = Chained::new(mode, transport);
        test.inner.crash();
        // What is cached of the branch expires.
        thread::sleep(Duration::from_millis(2200));
        match mode {
            "ro" => {
                let error = test.text("file-below").unwrap_err();
                assert_eq!(error.raw_os_error(), Some(5), "{error}");
            }
            _ => {
                assert_eq!(test.text("file-below").unwrap_err().kind(), ErrorKind::NotFound);
                until("the listing", || names(test.union.dir()) == 4 && names(&test.union.path("dir")) == 2);
            }
        }
        for _ in 0..3 {
            assert_eq!(test.text("file-ro").unwrap(), "ro");
            assert_eq!(test.text("dir/file-ro").unwrap(), "ro");
            fs::metadata(test.union.dir()).unwrap();
            thread::sleep(Duration::from_millis(400));
        }
        assert!(list(&test.union).contains("(lost)"), "{}", list(&test.union));
        assert_eq!(test.logged("is lost"), 1, "{}", test.union.log_text());
    }
}

on_both_transports!(
    two_thousand_branches,
    reported_changes_are_visible_at_once,
    a_hung_branch_delays_only_what_needs_it_and_can_be_interrupted,
    a_lost_branch_fails_or_is_skipped,
);
