//! viewfs, mounted: processes of two views at one mount point, including hostile ones.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::mount::UnmountFlags;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use strata_tests::handle::{Handle, drop_caches};
use strata_tests::mapping::Mapping;
use strata_tests::process::{await_end, sh, try_run};
use strata_tests::shell::Shell;
use strata_tests::{Mounted, Sandbox, Transport, on_both_transports, unmount_soon};
use testkit::{names, until};

/// Views `good` and `bad` of one base.
struct Views {
    sandbox: Sandbox,
    options: String,
    transport: Transport,
}

impl Views {
    /// Mounts the views. Each has a writable branch; the base is common.
    fn new(transport: Transport, options: &str) -> Self {
        let sandbox = Sandbox::new();
        for name in ["good", "bad", "base", "at"] {
            let _dir = sandbox.dir(name);
        }
        let script = "cd $1; echo base > f; mkdir -p dir/sub; echo x > dir/x; cp /bin/sleep program; ln -s f link";
        sh(script, &[sandbox.path("base")]);
        let views = Self { sandbox, options: options.to_owned(), transport };
        views.mount();
        views
    }

    fn mount(&self) {
        let union = |name: &str, below: &str| {
            format!("[unionfs,dirs={}=rw:{}=ro]", self.lower(name).display(), self.lower(below).display())
        };
        let stack =
            format!("viewfs,views=good:bad{},dirs={}:{}", self.options, union("good", "base"), union("bad", "base"));
        let transport = format!("transport={}", self.transport.name());
        let mut command = Command::new(Mounted::program().unwrap());
        command.args(["mount", "-o", &transport]).arg(stack).arg(self.dir());
        let output = try_run(&mut command);
        assert!(output.status.success(), "{}", output.text);
    }

    fn unmount(&self) {
        // A killed shell's program may still be ending.
        unmount_soon(&self.dir());
    }

    fn dir(&self) -> PathBuf {
        self.sandbox.path("at")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn lower(&self, name: &str) -> PathBuf {
        self.sandbox.path(name)
    }

    /// Runs `strata views` and returns what it prints. Panics if it fails.
    fn views(&self, words: &[&str]) -> String {
        let output = self.try_views(words);
        assert_eq!(output.0, Some(0), "{words:?}: {}", output.1);
        output.1
    }

    fn try_views(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = try_run(Command::new(Mounted::program().unwrap()).arg("views").arg(self.dir()).args(words));
        (output.status.code(), output.text)
    }

    /// Returns a shell in the mount that runs in the view `bad`.
    fn bad_shell(&self) -> Shell {
        let shell = Shell::start(&self.dir(), 0);
        self.views(&["--move", &shell.pid(), "bad"]);
        shell
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.unmount();
        }
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// Returns everything about a tree that a change of it would change.
fn unchanged(dir: &Path) -> String {
    sh("find $1 -printf '%p %T@ %C@ %s %m\\n' | sort; find $1 -type f | sort | xargs md5sum", &[dir])
}

/// Changes of each kind in one view are visible there, and nowhere else.
fn each_view_has_its_own_changes(transport: Transport) {
    let views = Views::new(transport, ",rules=uid=1000=bad");
    for name in ["good", "bad"] {
        fs::set_permissions(views.lower(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let base = unchanged(&views.lower("base"));
    let mut bad = Shell::start(&views.dir(), 1000);
    let mut good = Shell::start(&views.dir(), 0);
    assert_eq!((bad.run("cat f"), good.run("cat f")), ("base".to_owned(), "base".to_owned()));
    // Both views use the same names alternately.
    good.run("echo good > f; echo g > new; mkdir gd; ln f hard; rm dir/x; chmod 700 gd; setfattr -n user.a -v g new; mv link gl");
    bad.run(
        "rm -f f; echo bad > f; echo b > new; mkdir bd; ln f hard; ln -s new symbolic; setfattr -n user.a -v b new",
    );
    for _ in 0..3 {
        assert_eq!(
            good.run("cat f new hard; ls; ls dir; getfattr --only-values -n user.a new"),
            "good\ng\ngood\ndir\nf\ngd\ngl\nhard\nnew\nprogram\nsub\ng"
        );
        assert_eq!(
            bad.run("cat f new hard symbolic; ls; ls dir; getfattr --only-values -n user.a new"),
            "bad\nb\nbad\nb\nbd\ndir\nf\nhard\nlink\nnew\nprogram\nsymbolic\nsub\nx\nb"
        );
    }
    good.fails("cat bd");
    good.fails("stat symbolic");
    bad.fails("stat gd");
    assert_eq!(good.run("stat -c %h f"), "2");
    // Exchanges and renames over existing names.
    good.run("mv -f new f");
    bad.run("mv -T bd dir2; mkdir bd; mv -T bd dir2/bd; mv -f new dir2");
    assert_eq!((good.run("cat f"), bad.run("ls dir2; cat f")), ("g".to_owned(), "bd\nnew\nbad".to_owned()));
    assert_eq!(unchanged(&views.lower("base")), base);
    assert!(!views.lower("good").join("symbolic").exists() && !views.lower("bad").join("gd").exists());
}

/// A shell is moved to the other view and back, with its descendants, working directory and files.
fn a_running_shell_is_moved_and_returns(transport: Transport) {
    let views = Views::new(transport, "");
    fs::write(views.path("dir/good"), "good\n").unwrap();
    let mut shell = Shell::start(&views.path("dir"), 0);
    shell.run("sleep 1000 & child=$!");
    let child = shell.run("echo $child");
    shell.run("exec 3< x 4>> good 5< good");
    assert_eq!(views.views(&["--which", &shell.pid()]), "good\n");
    views.views(&["--move", &shell.pid(), "bad"]);
    assert_eq!(views.views(&["--which", &shell.pid()]), "bad\n");
    assert_eq!(views.views(&["--which", &child]), "bad\n");
    assert_eq!(shell.run("pwd -P"), views.path("dir").to_str().unwrap());
    assert_eq!(shell.run("ls; head -c 1 <&3"), "sub\nx\nx");
    assert_eq!(shell.run("stat -L -c %s /dev/fd/3"), "2", "the views have the same file");
    for refused in ["echo stolen >&4", "bash -c 'cat <&5'", "cat /dev/fd/5", "stat -L /dev/fd/5", "cat good"] {
        let text = shell.fails(refused);
        assert!(text.contains("Stale") || text.contains("No such file"), "{refused}: {text}");
    }
    shell.run("echo bad > new; echo bad > x; mkdir sub2; cd sub2; echo deep > y");
    assert_eq!(views.views(&["--list"]).lines().filter(|line| line.contains("bad  processes: 2")).count(), 1);
    assert_eq!(
        (names(&views.path("dir")), read(views.path("dir/x"))),
        (vec!["good".into(), "sub".into(), "x".into()], "x\n".into())
    );
    views.views(&["--move", &shell.pid(), "good"]);
    assert!(shell.fails("ls .").contains("Stale"), "the directory does not exist in this view");
    assert_eq!(
        shell.run("cd ../../dir 2>/dev/null || cd $OLDPWD; ls; cat x; bash -c 'cat <&5'; echo more >&4; cat good"),
        "good\nsub\nx\nx\ngood\ngood\nmore"
    );
    views.views(&["--release", &shell.pid()]);
    assert!(views.try_views(&["--release", &shell.pid()]).1.contains("not moved"));
    views.views(&["--move", &child, "bad"]);
    assert_eq!(
        (views.views(&["--which", &child]), views.views(&["--which", &shell.pid()])),
        ("bad\n".into(), "good\n".into())
    );
    shell.run("kill $child; wait $child || true");
}

/// A process uses the files that it opened before it was moved, as far as its new view has them.
fn open_files_continue_while_the_views_agree(transport: Transport) {
    let views = Views::new(transport, "");
    fs::write(views.lower("base").join("log"), "1\n").unwrap();
    let mut shell = Shell::start(&views.dir(), 0);
    shell.run("exec 3< log 4< dir/x 5<> f");
    views.views(&["--move", &shell.pid(), "bad"]);
    assert_eq!(shell.run("bash -c 'head -c 1 <&3; stat -L -c %s /dev/fd/3'"), "12");
    // Opened for writing, f was copied to the branch of the view good.
    assert!(shell.fails("bash -c 'cat <&5'").contains("Stale"));
    assert!(shell.fails("bash -c 'echo bad >&5'").contains("Stale"));
    // The view gets a copy of its own.
    shell.run("echo 2 >> log");
    assert!(shell.fails("bash -c 'cat <&3'").contains("Stale"));
    assert_eq!((shell.run("cat log"), read(views.path("log"))), ("1\n2".to_owned(), "1\n".to_owned()));
    // The other view changes a file.
    fs::write(views.path("dir/x"), "good\n").unwrap();
    assert!(shell.fails("bash -c 'cat <&4'").contains("Stale"));
    assert_eq!(shell.run("cat dir/x"), "x");
    views.views(&["--release", &shell.pid()]);
    assert_eq!(shell.run("bash -c 'cat <&4; echo new >&5'; cat f"), "good\nnew");
}

/// A working directory stays valid whatever the other view does with its name.
fn working_directories_survive_the_other_view(transport: Transport) {
    let views = Views::new(transport, "");
    let mut good = Shell::start(&views.path("dir/sub"), 0);
    let mut bad = views.bad_shell();
    let at = views.path("dir/sub").to_str().unwrap().to_owned();
    bad.run("ls -lR >/dev/null; cat dir/x; echo b > dir/sub/b; chmod 711 dir/sub; touch dir/sub");
    assert_eq!((good.run("pwd -P"), good.run("ls")), (at.clone(), String::new()));
    // The kernel would mark the common inode as dead.
    bad.run("rm -r dir/sub; mkdir dir/sub; rmdir dir/sub; echo file > dir/sub; cat dir/sub");
    assert_eq!(good.run("echo g > g; mkdir h; ls; cat g"), "g\nh\ng");
    assert_eq!(good.run(&format!("ls {at}; pwd -P")), format!("g\nh\n{at}"));
    bad.run("rm dir/sub; mv dir moved; ls moved; mkdir dir");
    assert_eq!(good.run(&format!("ls; ls {at}; pwd -P")), format!("g\nh\ng\nh\n{at}"));
    assert!(bad.run("ls; ls dir moved").contains("moved"));
    assert_eq!(names(&views.dir()), ["dir", "f", "link", "program"]);
    // The other way round: the mover keeps its working directory, too.
    bad.run("cd moved; mkdir inner; mv ../moved ../again; cd inner");
    assert_eq!(bad.run("pwd -P"), views.path("again/inner").to_str().unwrap());
    good.run("cd ..; mv sub sub2; mv sub2 sub; cd sub; rm g; rmdir h; cd ..; rmdir sub");
    assert_eq!(names(&views.path("dir")), ["x"]);
    assert_eq!(bad.run("cd ../..; ls again"), "inner\nx");
}

/// A process of the bad view, with all privileges, tries to reach a file of the good one.
fn a_hostile_process_does_not_reach_the_other_view(transport: Transport) {
    let views = Views::new(transport, "");
    fs::write(views.path("secret"), "secret\n").unwrap();
    fs::write(views.path("f"), "good\n").unwrap();
    let mut good = Shell::start(&views.dir(), 0);
    good.run("exec 3<> secret 4<> f 5< .");
    let mut bad = views.bad_shell();
    let (victim, at) = (good.pid(), views.dir().to_str().unwrap().to_owned());
    for attempt in [
        "cat secret".to_owned(),
        format!("cat /proc/{victim}/fd/3"),
        format!("cat /proc/{victim}/fd/5/secret"),
        format!("cat /proc/{victim}/cwd/secret"),
        format!("cat /proc/{victim}/root{at}/secret"),
        format!("echo stolen > /proc/{victim}/fd/3"),
        format!("ln -L /proc/{victim}/fd/3 mine"),
        format!("truncate -s 0 /proc/{victim}/fd/4"),
        format!("chmod 777 /proc/{victim}/fd/4"),
        format!("setfattr -n user.x -v x /proc/{victim}/fd/4"),
        format!("stat -L /proc/{victim}/fd/4"),
        format!("getfattr -n user.x /proc/{victim}/fd/4"),
        "mv secret mine".to_owned(),
        "rm secret".to_owned(),
    ] {
        bad.fails(&attempt);
    }
    let program = Mounted::program().unwrap();
    for command in [format!("--move {} good", bad.pid()), "--add uid=0 good".to_owned(), "--list".to_owned()] {
        assert!(bad.fails(&format!("{} views {at} {command}", program.display())).contains("not permitted"));
    }
    assert!(
        bad.fails(&format!("{} control {at} viewfs.move '{} good'", program.display(), bad.pid()))
            .contains("not permitted")
    );
    bad.run("echo bad > f; echo bad > secret");
    assert_eq!(good.run("cat f secret"), "good\nsecret");
    assert_eq!(fs::metadata(views.path("f")).unwrap().mode() & 0o777, 0o644);
    assert_eq!(
        (read(views.lower("good").join("f")), read(views.lower("bad").join("f"))),
        ("good\n".into(), "bad\n".into())
    );
}

/// Handles of one view are stale in the other.
fn handles_are_those_of_a_view(transport: Transport) {
    let views = Views::new(transport, ",rules=uid=0=bad");
    // This process is in the view bad.
    fs::write(views.path("mine"), "bad\n").unwrap();
    fs::create_dir_all(views.path("own/dir")).unwrap();
    let handles = ["mine", "f", "own/dir", "dir"].map(|name| Handle::of(&views.path(name)));
    let open = |handle: &Handle| handle.open(File::open(views.dir()).unwrap(), OFlags::RDONLY);
    for cold in [false, true] {
        if cold {
            drop_caches();
        }
        for handle in &handles {
            assert!(open(handle).is_ok(), "cold: {cold}");
        }
    }
    // Only the trusted view may change rules: the mount's options come first.
    let mut good = Shell::start(&views.dir(), 1000);
    good.run("cat f; ls dir");
    drop(good);
    let node = fs::metadata(views.path("mine")).unwrap().ino();
    for other in [node ^ (1 << 56), node ^ (2 << 56), u64::MAX, 0x3f << 56] {
        assert!(open(&handles[0].with_node(other)).is_err(), "{other:x}");
    }
}

/// Mapped pages and programs in use are those of the view in which they were mapped.
fn pages_do_not_cross_views(transport: Transport) {
    let views = Views::new(transport, "");
    let mut bad = views.bad_shell();
    fs::write(views.lower("base").join("big"), vec![b'o'; 1 << 20]).unwrap();
    let file = File::options().read(true).write(true).open(views.path("big")).unwrap();
    let reader = File::open(views.path("big")).unwrap();
    let private = Mapping::new(&reader, 1 << 20, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
    let mut shared = Mapping::new(&file, 1 << 20, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
    assert_eq!((private.get(0), shared.get(0)), (b'o', b'o'));
    bad.run("head -c 2000000 /dev/zero | tr '\\0' b > big; cat big > /dev/null");
    assert_eq!((private.get(1 << 19), shared.get((1 << 20) - 1)), (b'o', b'o'));
    shared.write(100, b"good");
    shared.sync().unwrap();
    assert_eq!(bad.run("head -c 104 big | tail -c 4; stat -c %s big"), "bbbb2000000");
    assert_eq!(&fs::read(views.path("big")).unwrap()[98..106], b"oogoodoo");
    bad.run("truncate -s 1 big");
    assert_eq!((shared.get((1 << 20) - 1), file.metadata().unwrap().len()), (b'o', 1 << 20));
    // A program that runs in one view is replaced and removed in the other.
    let mut program = Command::new(views.path("program")).arg("1000").spawn().unwrap();
    bad.run("cp /bin/true program2; mv -f program2 program; ./program");
    bad.run("rm program");
    assert!(program.try_wait().unwrap().is_none());
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(Command::new(views.path("program")).arg("0").status().unwrap().success());
}

/// A program whose file is on the mount continues when its process is moved and returns.
fn a_moved_process_keeps_its_program(transport: Transport) {
    let views = Views::new(transport, "");
    fs::copy("/bin/bash", views.lower("base").join("bash")).unwrap();
    let mut command = Command::new(views.path("bash"));
    let mut shell = Shell::of(command.current_dir(views.dir()));
    shell.run("true");
    for view in ["bad", "good", "bad"] {
        views.views(&["--move", &shell.pid(), view]);
        drop_caches();
        let sum = shell.run("declare -A a; for i in {1..200}; do a[$i]=$((i * i)); printf -v t %05d $i; done; echo ${a[200]} ${t//0/x} ${a[@]:0:1} $(ulimit -n >/dev/null; echo done)");
        assert!(sum.starts_with("40000 xx2xx"), "{sum}");
        assert!(shell.run("readlink /proc/self/cwd").ends_with("/at"));
    }
}

/// The kernel's check uses attributes that a process of the other view may have fetched.
fn permissions_are_those_of_the_callers_view(transport: Transport) {
    let views = Views::new(transport, "");
    fs::create_dir(views.path("closed")).unwrap();
    fs::write(views.path("closed/secret"), "secret").unwrap();
    fs::set_permissions(views.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut bad = views.bad_shell();
    bad.run("mkdir closed; chmod 777 closed; echo bait > closed/secret; chmod 777 closed/secret");
    bad.run("(while stat closed >/dev/null; do :; done) & (while stat closed/. > /dev/null; do :; done) & :");
    let (secret, dir) = (views.path("closed/secret"), views.path("closed"));
    let end = Instant::now() + Duration::from_secs(4);
    strata_tests::user::as_user(strata_tests::user::USER, || {
        let mut attempts = 0_u64;
        while Instant::now() < end || attempts <= 100 {
            assert!(fs::read(&secret).is_err(), "after {attempts} attempts");
            // Opening is checked by the kernel alone; nothing is listed.
            let listed = fs::read_dir(&dir).map_or(0, |entries| entries.filter(Result::is_ok).count());
            assert_eq!(listed, 0, "after {attempts} attempts");
            assert!(fs::write(dir.join("new"), "x").is_err(), "after {attempts} attempts");
            assert!(fs::remove_file(&secret).is_err(), "after {attempts} attempts");
            attempts += 1;
        }
    });
    bad.run("kill %1 %2; wait; true");
    assert_eq!(read(&secret), "secret");
}

/// The classifier replies, hangs, writes garbage, crashes and returns.
fn an_external_classifier_decides_or_callers_are_refused(transport: Transport) {
    let sandbox_socket = "/mnt/ids";
    let views = Views::new(transport, &format!(",rules=uid=0=good,classifier={sandbox_socket},timeout=0.2"));
    chown(views.lower("bad"), Some(1000), None).unwrap();
    let as_user = |command: &str| {
        let begin = Instant::now();
        let mut shell = Command::new("bash");
        let output = try_run(shell.args(["-c", command]).uid(1000).gid(1000).current_dir("/"));
        (output.status.success(), output.text, begin.elapsed())
    };
    let look = format!("cat {}/f", views.dir().display());
    // Nobody listens.
    let (success, text, time) = as_user(&look);
    assert!(!success && text.contains("Permission denied") && time < Duration::from_secs(5), "{text}");
    assert_eq!(read(views.path("f")), "base\n", "a rule precedes the classifier");
    let listener = UnixListener::bind(sandbox_socket).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let replies = std::sync::Arc::new(std::sync::Mutex::new("bad 60\n"));
    let shown = std::sync::Arc::clone(&replies);
    let program = std::thread::spawn(move || {
        let mut questions = Vec::new();
        let mut hanging = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if stopped.try_recv().is_ok() {
                return questions;
            }
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            questions.push(question);
            match *shown.lock().unwrap() {
                "hang" => hanging.push(stream),
                reply => {
                    let _ = stream.write_all(reply.as_bytes());
                }
            }
        }
        questions
    });
    let set = |reply: &'static str| {
        *replies.lock().unwrap() = reply;
        views.views(&["--forget"]);
    };
    set("bad 60\n");
    let (success, text, _) = as_user(&format!("{look} && echo bad > {0}/new && ls {0}", views.dir().display()));
    assert!(success, "{text}");
    assert!(views.lower("bad").join("new").exists() && !views.path("new").exists());
    set("good\n");
    assert!(!as_user(&format!("cat {}/new", views.dir().display())).0);
    for reply in ["hang", "", "worse\n", "\u{0}\n", "bad bad\n"] {
        set(reply);
        let (success, text, time) = as_user(&look);
        assert!(!success && time < Duration::from_secs(10), "{reply:?}: {time:?} {text}");
    }
    set("bad 60\n");
    assert!(as_user(&look).0, "the classifier works again");
    stop.send(()).unwrap();
    drop(std::os::unix::net::UnixStream::connect(sandbox_socket));
    let questions = program.join().unwrap();
    assert!(questions.iter().all(|question| question.contains("\"uid\":1000")), "{questions:?}");
    assert!(questions.iter().any(|question| question.contains("bin/bash")), "{questions:?}");
}

/// Rules by executable, cgroup-less groups and processes; changes at run time.
fn rules_change_at_run_time(transport: Transport) {
    let views = Views::new(transport, ",rules=gid=1000=bad");
    fs::set_permissions(views.lower("bad"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut user = Shell::start(&views.dir(), 1000);
    user.run("echo bad > new");
    assert_eq!(views.views(&["--list"]), "view  good  trusted\nview  bad\ngid=1000  bad\n");
    views.views(&["--add", "uid=1000", "good"]);
    user.fails("cat new");
    views.views(&["--remove", "uid=1000"]);
    assert_eq!(user.run("cat new"), "bad");
    fs::copy("/bin/cat", views.sandbox.path("cat2")).unwrap();
    views.views(&["--add", "exe=/mnt/cat2", "good"]);
    user.fails("/mnt/cat2 new");
    assert_eq!(user.run("cat new"), "bad");
    views.views(&["--add", &format!("pid={}", user.pid()), "good"]);
    user.fails("cat new");
    views.views(&["--remove", &format!("pid={}", user.pid())]);
    assert_eq!(user.run("cat new"), "bad");
    for (words, why) in [
        (&["--add", "uid=x", "bad"][..], "not a number"),
        (&["--add", "uid=1", "worse"], "no such view; use good, bad"),
        (&["--remove", "uid=77"], "no such rule"),
        (&["--move", "4194305", "bad"], "no such process"),
        (&["--move", "x", "bad"], "not a process ID"),
        (&["--release", "1"], "not moved"),
        (&["--which", "4194305"], "no such process"),
    ] {
        let (status, text) = views.try_views(words);
        assert!(status == Some(1) && text.contains(why), "{words:?}: {status:?} {text}");
    }
    assert!(views.views(&["--json"]).contains("\"condition\":\"exe=/mnt/cat2\""));
}

/// The kernel takes the mode of the root directory to be 0 until it has fetched the attributes, and
/// drops those under way when it is notified of a change.
fn the_first_users_of_a_mount_are_not_refused(transport: Transport) {
    let views = Views::new(transport, ",rules=uid=1000=bad");
    for round in 0..10 {
        let known = rustix::fs::statx(CWD, views.dir(), AtFlags::STATX_DONT_SYNC, StatxFlags::MODE).unwrap();
        assert_eq!(known.stx_mode & 0o777, 0o755, "round {round}");
        let (stop, bad) = (AtomicBool::new(false), views.lower("bad"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    fs::set_permissions(&bad, fs::Permissions::from_mode(0o755)).unwrap();
                    fs::write(bad.join("new"), "").unwrap();
                    fs::remove_file(bad.join("new")).unwrap();
                }
            });
            strata_tests::user::as_user(strata_tests::user::USER, || {
                for _ in 0..50 {
                    let read = fs::read(views.path("f"));
                    assert!(read.is_ok(), "round {round}: {read:?}");
                }
            });
            stop.store(true, Ordering::Relaxed);
        });
        views.unmount();
        views.mount();
    }
}

/// After the server was killed, both views have their data, and moved processes have none.
fn both_views_survive_a_kill(transport: Transport) {
    // The test's thread keeps the mount namespace. (The kernel can deadlock if a server with a ring
    // dies as the last process of its namespace.)
    let views = Views::new(transport, ",rules=uid=1000=bad");
    fs::set_permissions(views.lower("bad"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut user = Shell::start(Path::new("/"), 1000);
    let at = views.dir().to_str().unwrap().to_owned();
    user.run(&format!("cd {at}; echo bad > new; rm -f f; cd /"));
    fs::write(views.path("new"), "good\n").unwrap();
    let info = sh("$1 info --json $2", &[Mounted::program().unwrap(), views.dir()]);
    let pid = info.split("\"pid\":").nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap();
    sh("kill -9 $1", &[pid]);
    await_end(pid.parse().unwrap());
    // The kernel closes the device of a ring after the process has ended. Requests until then fail
    // with ECONNABORTED.
    until("the connection ends", || {
        let error = File::open(views.path("f")).unwrap_err();
        if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) { Ok(()) } else { Err(error) }
    });
    rustix::mount::unmount(views.dir(), UnmountFlags::DETACH).unwrap();
    views.mount();
    assert_eq!(read(views.path("new")), "good\n");
    assert_eq!(user.run(&format!("cat {at}/new; ls {at}")), "bad\ndir\nlink\nnew\nprogram");
}

/// Views can have a directory in common that one of them writes to; two writers are refused.
fn a_branch_of_one_view_can_be_below_the_other(transport: Transport) {
    let sandbox = Sandbox::new();
    let [good, bad, base, at] = ["good", "bad", "base", "at"].map(|name| sandbox.dir(name));
    fs::write(base.join("f"), "base\n").unwrap();
    let mount = |bad_dirs: &str| {
        let (good, base) = (good.display(), base.display());
        let stack = format!(
            "viewfs,views=good:bad,rules=uid=1000=bad,dirs=[unionfs,dirs={good}=rw:{base}=ro]:[unionfs,dirs={bad_dirs}:{base}=ro]"
        );
        let mut command = Command::new(Mounted::program().unwrap());
        try_run(command.args(["mount", "-o", &format!("transport={}", transport.name())]).arg(stack).arg(&at))
    };
    let refused = mount(&format!("{}=rw", good.display()));
    assert!(!refused.status.success() && refused.text.contains("is the same directory as"), "{}", refused.text);
    let done = mount(&format!("{}=rw:{}=ro", bad.display(), good.display()));
    assert!(done.status.success(), "{}", done.text);
    fs::set_permissions(&bad, fs::Permissions::from_mode(0o777)).unwrap();
    let mut user = Shell::start(&at, 1000);
    for i in 0..20 {
        // Negative lookups are not remembered beyond a change of the other view.
        let name = format!("n{i}");
        user.fails(&format!("cat {name}"));
        fs::write(at.join(&name), "good\n").unwrap();
        assert_eq!(user.run(&format!("cat {name}")), "good");
    }
    fs::write(at.join("f"), "good\n").unwrap();
    assert_eq!(user.run("cat f"), "good");
    user.run("rm -f f; echo bad > f; rm -f n1");
    assert_eq!(
        (read(at.join("f")), read(at.join("n1")), user.run("cat f")),
        ("good\n".into(), "good\n".into(), "bad".into())
    );
    // A process is moved with a file open for appending: it continues on a copy.
    let mut daemon = Shell::start(&at, 0);
    daemon.run("exec 3>> n2; echo one >&3");
    let program = Mounted::program().unwrap();
    sh("$1 views $2 --move $3 bad", &[program.as_os_str(), at.as_os_str(), daemon.pid().as_ref()]);
    daemon.run("echo two >&3; echo three >&3");
    assert_eq!(daemon.run("cat n2"), "good\none\ntwo\nthree");
    assert_eq!(read(at.join("n2")), "good\none\n");
    drop((user, daemon));
    rustix::mount::unmount(&at, UnmountFlags::NOFOLLOW).unwrap();
}

/// Opening files and directories through each path does not fail in between.
fn both_views_use_the_same_names_at_the_same_time(transport: Transport) {
    let views = Views::new(transport, "");
    let mut bad = views.bad_shell();
    fs::write(views.path("f"), "good\n").unwrap();
    bad.run("echo bad > f; mkdir -p dir/deep/er; echo b > dir/deep/er/f; mkdir own");
    fs::create_dir_all(views.path("dir/deep/er")).unwrap();
    fs::write(views.path("dir/deep/er/f"), "g\n").unwrap();
    bad.run("(while [ ! -e own/stop ]; do [ \"$(cat f dir/deep/er/f)\" = $'bad\\nb' ] || echo wrong >> own/wrong; mkdir dir/t; rmdir dir/t; done) & :");
    let end = Instant::now() + Duration::from_secs(3);
    let mut rounds = 0;
    while Instant::now() < end || rounds <= 50 {
        let mut text = String::new();
        File::open(views.path("f")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), read(views.path("dir/deep/er/f")).as_str()), ("good\n", "g\n"));
        let dir =
            rustix::fs::openat(CWD, views.path("dir"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(rustix::fs::statat(&dir, "deep", rustix::fs::AtFlags::empty()).is_ok());
        rounds += 1;
    }
    bad.run("touch own/stop; wait");
    let wrong = views.lower("bad").join("own/wrong");
    assert!(!wrong.exists(), "{}", read(&wrong));
}

on_both_transports!(
    each_view_has_its_own_changes,
    a_running_shell_is_moved_and_returns,
    open_files_continue_while_the_views_agree,
    working_directories_survive_the_other_view,
    a_hostile_process_does_not_reach_the_other_view,
    handles_are_those_of_a_view,
    pages_do_not_cross_views,
    a_moved_process_keeps_its_program,
    permissions_are_those_of_the_callers_view,
    an_external_classifier_decides_or_callers_are_refused,
    rules_change_at_run_time,
    the_first_users_of_a_mount_are_not_refused,
    both_views_survive_a_kill,
    a_branch_of_one_view_can_be_below_the_other,
    both_views_use_the_same_names_at_the_same_time,
);
