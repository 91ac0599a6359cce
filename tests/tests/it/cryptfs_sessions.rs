//! Keys of sessions: who can use a key, and what remains when it is withdrawn.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{OFlags, RawDir, readlinkat};
use rustix::io::Errno;
use std::fs::{self, File, Permissions};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use strata_tests::crypt::{PASSPHRASE, Volume, own_session};
use strata_tests::handle::{Handle, drop_caches};
use strata_tests::process::{Output, sh, try_run};
use strata_tests::shell::Shell;
use strata_tests::{Mounted, Sandbox, Transport, long, on_both_transports};

/// Passphrase of the second key.
const BOB: &str = "another passphrase";

/// A volume on ext4, mounted with a key per session.
struct Vault {
    mounted: Mounted,
    volume: Volume,
    sandbox: Sandbox,
}

impl Vault {
    fn new(transport: Transport) -> Self {
        Self::with(transport, &[], "", |_| {})
    }

    /// Mounts a volume with the given flags of gocryptfs and mount options, after `prepare`.
    fn with(transport: Transport, flags: &[&str], options: &str, prepare: impl FnOnce(&Volume)) -> Self {
        let sandbox = Sandbox::new();
        let volume = Volume::new(&sandbox.ext4("disk", 128).join("volume"), flags);
        fs::set_permissions(volume.dir(), Permissions::from_mode(0o777)).unwrap();
        prepare(&volume);
        // Users leave their results beside the mount.
        fs::set_permissions(sandbox.path(""), Permissions::from_mode(0o777)).unwrap();
        let mounted = Mounted::with_options(volume.with_sessions(transport), &sandbox.path("m"), options);
        Self { mounted, volume, sandbox }
    }

    /// Returns a shell of the user in a session of its own. It has functions for `cryptctl`, and is
    /// in the mount.
    fn shell(&self, uid: u32) -> Shell {
        self.shell_in(self.mounted.dir(), uid)
    }

    fn shell_in(&self, dir: &Path, uid: u32) -> Shell {
        let mut shell = Shell::in_own_session(dir, uid);
        shell.run(&self.functions());
        shell
    }

    /// Returns definitions for a shell: `crypt` calls cryptctl, `add` and `bob` add a key.
    fn functions(&self) -> String {
        let (program, at) = (Mounted::program().unwrap(), self.mounted.dir());
        format!(
            "export at={at} strata={program}; umask 0
             crypt() {{ command=$1; shift; $strata crypt $command $at \"$@\"; }}
             add() {{ printf '{PASSPHRASE}' | crypt add --passfile - \"$@\"; }}
             bob() {{ printf '{BOB}' | crypt add --passfile - \"$@\"; }}
             export -f crypt add bob",
            at = at.display(),
            program = program.display()
        )
    }

    /// Runs `strata crypt` in the session of this test.
    fn crypt(&self, words: &[&str]) -> Output {
        let mut command = Command::new(Mounted::program().unwrap());
        try_run(command.arg("crypt").args(words).arg(self.mounted.dir()))
    }

    /// Gives the key to the session of this test, as root.
    fn add(&self) {
        own_session();
        let passfile = self.volume.passfile().to_str().unwrap();
        let output = self.crypt(&["add", "--passfile", passfile]);
        assert!(output.status.success(), "{}", output.text);
    }

    /// Withdraws the key of the session of this test.
    fn del(&self) {
        let output = self.crypt(&["del"]);
        assert!(output.status.success(), "{}", output.text);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    /// Waits until no session has a key.
    fn wait_for_no_key(&self) {
        testkit::until_within(Duration::from_secs(20), "no session has a key", || {
            testkit::seen(self.crypt(&["list"]).text, |list| list.contains("no session has a key"))
        });
    }
}

/// Runs a command that must fail because the key is missing, and must show nothing.
fn refused(shell: &mut Shell, command: &str) {
    let text = shell.fails(command);
    assert!(text.contains("Required key not available"), "{command}: {text}");
    assert!(!text.contains("text of"), "{command}: {text}");
}

/// Everything that needs a key, in a mount with `secret`, `link`, `dir` and `dir/inner`.
const NEED_A_KEY: [&str; 24] = [
    "ls $at",
    "ls $at/dir",
    "cat $at/secret",
    "stat $at/secret",
    "stat $at/missing",
    "cat $at/dir/inner",
    "cd $at/dir",
    "readlink -v $at/link",
    "cat $at/link",
    "getfattr -n user.note $at/secret",
    "getfattr -d $at",
    "getfattr -n user.note $at",
    "setfattr -n user.note -v x $at",
    "setfattr -x user.note $at",
    "touch $at/new",
    "echo x >>$at/secret",
    "truncate -s 0 $at/secret",
    "mkdir $at/new",
    "ln -s target $at/new",
    "mkfifo $at/new",
    "rm $at/secret",
    "rmdir $at/dir",
    "mv $at/secret $at/new",
    "ln $at/secret $at/new",
];

/// Commands that create what [`NEED_A_KEY`] tries to reach.
const FILL: &str = "cd $at; echo 'text of secret' >secret; ln -s secret link; mkdir dir; echo 'text of inner' >dir/inner
    setfattr -n user.note -v 'text of note' secret; setfattr -n user.note -v 'text of note' .; chmod 777 dir; chmod 666 secret dir/inner";

/// A key belongs to one user in one session: not to another session of the user, nor to other
/// users, nor to root.
fn a_key_belongs_to_one_session_of_one_user(transport: Transport) {
    let vault = Vault::new(transport);
    let mut owner = vault.shell(1000);
    refused(&mut owner, "touch $at/new");
    owner.run("add");
    owner.run(FILL);
    for uid in [1000, 1001, 0] {
        let mut other = vault.shell(uid);
        for command in NEED_A_KEY {
            refused(&mut other, command);
        }
        // Nothing of these needs a key.
        other.run("cd $at; pwd; df $at; stat $at; getfacl $at; crypt list");
        assert!(other.fails("crypt del").contains("this session has no key"));
        let wrong = other.fails("printf wrong | crypt add --passfile -");
        assert!(wrong.contains("unlocks no key"), "{wrong}");
        refused(&mut other, "ls $at");
        // With a key of its own it sees the same files, if their modes allow it.
        other.run("add");
        assert_eq!(
            other.run("ls; cat secret dir/inner link; readlink link; getfattr --only-values -n user.note secret"),
            "dir\nlink\nsecret\ntext of secret\ntext of inner\ntext of secret\nsecret\ntext of note"
        );
        other.run("crypt del");
        refused(&mut other, "ls $at");
    }
    let text = "text of secret\ntext of inner";
    assert_eq!(owner.run("cat secret dir/inner"), text);
    // Adding the same key again changes nothing.
    owner.run("add; add");
    assert_eq!(owner.run("cat secret dir/inner; crypt list | wc -l"), format!("{text}\n2"));
    owner.run("crypt del");
    for command in NEED_A_KEY {
        refused(&mut owner, command);
    }
}

/// A process of the session that becomes another user has no key, whatever way it takes.
fn a_change_of_the_user_loses_the_key(transport: Transport) {
    let vault = Vault::new(transport);
    for (name, owner, mode) in [("as-root", 0, 0o4755), ("as-1001", 1001, 0o4755)] {
        let program = vault.sandbox.path(name);
        fs::copy("/bin/cat", &program).unwrap();
        std::os::unix::fs::chown(&program, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
    }
    let mut root = vault.shell(0);
    root.run("add");
    root.run(FILL);
    root.run("cd /");
    let become_user = "setpriv --reuid 1000 --regid 1000 --clear-groups bash -c";
    refused(&mut root, &format!("{become_user} 'cat $at/secret'"));
    refused(&mut root, "runuser -u daemon -- cat $at/secret");
    refused(&mut root, "su -s /bin/sh daemon -c 'cat $at/secret'");
    refused(&mut root, "/mnt/as-1001 $at/secret");
    // It can get one of its own in the same session, which is independent.
    assert_eq!(root.run(&format!("{become_user} 'add >/dev/null; cat $at/secret'")), "text of secret");
    assert_eq!(root.run("crypt list | wc -l"), "3");
    root.run("crypt del");
    refused(&mut root, "cat $at/secret");
    assert_eq!(root.run(&format!("{become_user} 'cat $at/secret'")), "text of secret");
    // A set-uid program of a user with a key acts as another user.
    let mut user = vault.shell(1000);
    user.run("add");
    assert_eq!(user.run("cat secret"), "text of secret");
    refused(&mut user, "/mnt/as-root $at/secret");
    refused(&mut user, "/mnt/as-1001 $at/secret");
}

/// A process that starts a session of its own keeps the files that it has open, and can open none.
fn daemons_keep_what_they_have_open(transport: Transport) {
    let vault = Vault::new(transport);
    let mut owner = vault.shell(1000);
    owner.run("add");
    owner.run(FILL);
    owner.run("exec 3<>secret 4>>log 5<. 6<secret");
    assert_eq!(owner.run("setsid -w bash -c 'head -n 1 <&3; echo appended >&4'; cat log"), "text of secret\nappended");
    refused(&mut owner, "setsid -w cat secret");
    refused(&mut owner, "setsid -w cat /dev/fd/3");
    refused(&mut owner, "setsid -w cat /dev/fd/5/secret");
    refused(&mut owner, "setsid -w ls /dev/fd/5/");
    // Its key is its own.
    assert_eq!(owner.run("setsid -w bash -c 'add >/dev/null; cat secret; crypt del'; cat secret").lines().count(), 3);
    // Withdrawn, the inherited files fail, too.
    owner.run("crypt del");
    refused(&mut owner, "setsid -w head -n 1 <&6");
    refused(&mut owner, "setsid -w bash -c 'echo again >&4'");
}

/// A working directory in the mount gives no key.
fn a_working_directory_gives_no_key(transport: Transport) {
    let vault = Vault::new(transport);
    let mut owner = vault.shell(1000);
    owner.run("add");
    owner.run(FILL);
    owner.run("cd dir");
    assert_eq!(owner.run("setsid -w pwd -P"), vault.path("dir").to_str().unwrap());
    for command in ["ls", "cat inner", "cat ../secret", "touch new", "stat inner", "rm inner", "mkdir d"] {
        refused(&mut owner, &format!("setsid -w {command}"));
    }
    // The refusals made the kernel forget the directory's name: getcwd(2) fails until the next
    // lookup. The directory is in use nevertheless.
    assert_eq!(owner.run("ls; cat inner; touch new; mkdir d; rm -r new d"), "inner\ntext of inner");
    assert_eq!(owner.run("stat $at/dir >/dev/null; /bin/pwd"), vault.path("dir").to_str().unwrap());
    // Shells ask for it when they start.
    let text = owner.run("setsid -w bash -c 'add >/dev/null; ls; cat inner'");
    assert!(text.ends_with("inner\ntext of inner"), "{text}");
}

/// `del` withdraws the key of a session, `reset` those of a user, and `reset --all` all; no user
/// those of another one.
fn keys_are_withdrawn_by_their_user(transport: Transport) {
    let vault = Vault::new(transport);
    let mut shells = [1000, 1000, 1000, 1001, 0].map(|uid| vault.shell(uid));
    for shell in &mut shells {
        shell.run("add");
    }
    shells[0].run(FILL);
    let check = |shells: &mut [Shell], with_key: &[usize]| {
        for (i, shell) in shells.iter_mut().enumerate() {
            if with_key.contains(&i) {
                assert_eq!(shell.run("cat $at/secret"), "text of secret", "{i}");
            } else {
                refused(shell, "cat $at/secret");
            }
        }
    };
    check(&mut shells, &[0, 1, 2, 3, 4]);
    // Each user sees its sessions, and root all.
    let rows: Vec<_> = shells.iter_mut().map(|shell| shell.run("crypt list | tail -n +2 | wc -l")).collect();
    assert_eq!(rows, ["3", "3", "3", "1", "5"]);
    shells[0].run("crypt del");
    check(&mut shells, &[1, 2, 3, 4]);
    shells[3].run("crypt reset");
    check(&mut shells, &[1, 2, 4]);
    let text = shells[3].fails("crypt reset --all");
    assert!(text.contains("only root"), "{text}");
    assert!(shells[1].fails("$strata control $at cryptfs.reset all").contains("not permitted"));
    check(&mut shells, &[1, 2, 4]);
    assert!(shells[2].run("crypt reset").contains("2 keys"));
    check(&mut shells, &[4]);
    shells[3].run("add");
    assert!(shells[4].run("crypt reset --all").contains("2 keys"));
    check(&mut shells, &[]);
    assert!(shells[4].run("crypt list").contains("no session has a key"));
}

/// The commands of the control channel, without cryptctl.
fn control_commands(transport: Transport) {
    let vault = Vault::new(transport);
    let mut owner = vault.shell(1000);
    owner.run("add");
    owner.run(FILL);
    let mut other = vault.shell(1001);
    assert_eq!(other.run("$strata control $at cryptfs.list"), "");
    assert_eq!(other.run("$strata control $at cryptfs.del"), "0");
    assert_eq!(other.run("$strata control $at cryptfs.reset"), "0");
    for input in ["", "passphrase", "key=default", "idle=0\n\nx", "other=1\n\nx"] {
        let text = other.fails(&format!("$strata control $at cryptfs.add '{input}'"));
        assert!(text.contains("invalid input"), "{input:?}: {text}");
    }
    other.fails("$strata control $at cryptfs.add $'key=other\\n\\nx'");
    other.fails("$strata control $at cryptfs.add $'\\nwrong'");
    other.fails("$strata control $at cryptfs.del x");
    refused(&mut other, "ls $at");
    let list = owner.run("$strata control $at cryptfs.list");
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [["uid", "1000"], ["own", "true"], ["key", "default"]] {
        assert!(rows.iter().any(|found| *found == row), "{row:?}: {list}");
    }
    assert!(!list.contains(PASSPHRASE), "{list}");
    let added = other.run(&format!("$strata control $at cryptfs.add $'idle=900\\n\\n{PASSPHRASE}'"));
    let words: Vec<_> = added.split_whitespace().collect();
    assert!(words.windows(2).any(|pair| pair == ["idle", "900"]), "{added}");
    assert_eq!(other.run("cat $at/secret"), "text of secret");
    // Other commands work without a key.
    let mut none = vault.shell(0);
    none.run("$strata control $at server.info; $strata control $at server.stats");
}

/// An unused key ends after its time, a used one does not, and the option of the mount is the
/// longest time.
fn unused_keys_end(transport: Transport) {
    let vault = Vault::with(transport, &[], "", |_| {});
    let mut shell = vault.shell(1000);
    shell.run("add --idle 2");
    shell.run(FILL);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        shell.run("cat $at/secret");
        std::thread::sleep(Duration::from_millis(200));
    }
    vault.wait_for_no_key();
    refused(&mut shell, "cat $at/secret");
    // Adding it again without a limit keeps it.
    shell.run("add --idle 1; add");
    // Longer than the limit that was given first.
    std::thread::sleep(Duration::from_secs(4));
    shell.run("cat $at/secret");
    drop(shell);
    drop(vault);
    let vault = Vault::with(transport, &[], "", |_| {});
    let Vault { mut mounted, volume, sandbox } = vault;
    mounted.unmount();
    let spec = strata_tests::Spec::stack("cryptfs,idle=1 / ", volume.dir(), transport);
    let mounted = Mounted::new(spec, &sandbox.path("m"));
    let vault = Vault { mounted, volume, sandbox };
    let mut shell = vault.shell(1000);
    assert!(shell.run("add --idle 900").contains("1 s"));
    vault.wait_for_no_key();
    refused(&mut shell, "touch $at/new");
}

/// A key ends when the last process of its session has ended, not when its leader has.
fn keys_end_with_their_session(transport: Transport) {
    let vault = Vault::new(transport);
    let result = vault.sandbox.path("result");
    let mut shell = vault.shell(0);
    shell.run("add");
    shell.run(FILL);
    shell.run("(sleep 4; cat $at/secret >/mnt/result; sleep 1) >/dev/null 2>&1 & true");
    let killed = shell.pid();
    drop(shell);
    assert!(!Path::new("/proc").join(&killed).exists());
    // The key outlives the leader.
    std::thread::sleep(Duration::from_secs(2));
    assert!(vault.crypt(&["list"]).text.contains(&killed), "{}", vault.crypt(&["list"]).text);
    vault.wait_for_no_key();
    assert_eq!(fs::read_to_string(result).unwrap(), "text of secret\n");
}

/// Open files of a withdrawn key fail, whatever they were opened for.
fn open_files_of_a_withdrawn_key_fail(transport: Transport) {
    let vault = Vault::new(transport);
    for way in ["crypt del", "crypt reset"] {
        let mut shell = vault.shell(1000);
        shell.run("add");
        shell.run(FILL);
        shell.run("head -c 300000 /dev/zero >big; exec 3<>secret 4>>log 5<big 6<dir; head -c 5 <&3; head -c 9000 <&5 >/dev/null");
        shell.run(way);
        for command in [
            "cat <&3",
            "echo x >&3",
            "echo x >&4",
            "cat <&5",
            "ls /dev/fd/6/",
            "stat /dev/fd/6/inner",
            "truncate -s 3 /dev/fd/3",
        ] {
            refused(&mut shell, command);
        }
        // The same session with a new key: files that were open before stay closed to it.
        shell.run("add");
        refused(&mut shell, "head -c 5 <&3");
        assert_eq!(shell.run("cat $at/secret; exec 3<&- 4<&- 5<&- 6<&-; rm -r $at/*"), "text of secret");
    }
}

/// A program that maps two files, changes one, has the key withdrawn and touches a mapping.
const MAPPER: &str = "import mmap, os, subprocess, sys
at, strata, touch = os.environ['at'], os.environ['strata'], sys.argv[1]
changed = open(at + '/changed', 'r+b')
read = open(at + '/read', 'rb')
shared = mmap.mmap(changed.fileno(), 8192)
private = mmap.mmap(read.fileno(), 8192, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
assert private[5000:5004] == b'read'
shared[5000:5005] = b'dirty'
subprocess.run([strata, 'crypt', 'del', at], check=True)
try:
    changed.seek(0)
    changed.read(1)
    sys.exit('an open file can still be read')
except OSError as error:
    assert error.errno == 126, error
print('touches', touch, flush=True)
print(shared[5000:5005] if touch == 'shared' else private[5000:5004])";

/// Changed pages of a mapping are written back before its key ends. Then it can't be used.
fn mappings_of_a_withdrawn_key_end(transport: Transport) {
    let vault = Vault::new(transport);
    fs::write(vault.sandbox.path("mapper.py"), MAPPER).unwrap();
    for touch in ["shared", "private"] {
        let mut shell = vault.shell(1000);
        shell.run("add");
        for name in ["changed", "read"] {
            let line =
                format!("head -c 5000 /dev/zero >{name}; echo -n {name} >>{name}; head -c 9000 /dev/zero >>{name}");
            shell.run(&line);
        }
        shell.run("sync -f .");
        let (text, status) = shell.try_run(&format!("python3 /mnt/mapper.py {touch}"));
        // 128 and SIGBUS.
        assert!(status == 135 && text.contains(&format!("touches {touch}")), "{status}: {text}");
        shell.run("add");
        assert_eq!(shell.run("tail -c +5001 $at/changed | head -c 5; rm $at/*"), "dirty");
    }
}

/// A program that changes a mapping without end does not delay the withdrawal of its key.
fn a_busy_mapping_does_not_keep_a_key(transport: Transport) {
    let vault = Vault::new(transport);
    let program = "import mmap, os
file = open(os.environ['at'] + '/busy', 'r+b')
pages = mmap.mmap(file.fileno(), 1 << 20)
open('/mnt/started', 'w')
while True:
    for at in range(0, 1 << 20, 4096):
        pages[at:at + 1] = b'x'";
    fs::write(vault.sandbox.path("busy.py"), program).unwrap();
    let mut shell = vault.shell(1000);
    shell.run("add; head -c 1048576 /dev/zero >busy; python3 /mnt/busy.py >/dev/null 2>&1 & busy=$!");
    shell.run("while ! test -e /mnt/started; do sleep 0.01; done; sleep 0.3");
    let start = Instant::now();
    shell.run("crypt del");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(shell.try_run("wait $busy").1, 135);
    let log = vault.mounted.log_text();
    assert!(!log.contains("has not dropped"), "{log}");
}

/// The kernel caches the data of a file while there is a key, and not beyond.
fn cached_pages_go_with_the_key(transport: Transport) {
    let vault = Vault::new(transport);
    vault.add();
    fs::write(vault.path("closed"), vec![b'x'; 1 << 20]).unwrap();
    let reads =
        || vault.mounted.during(|| assert!(fs::read(vault.path("closed")).unwrap() == vec![b'x'; 1 << 20])).get("READ");
    reads();
    assert_eq!(reads(), 0, "the data is not cached");
    vault.del();
    vault.add();
    assert_ne!(reads(), 0, "the data was kept when the key was withdrawn");
    assert_eq!(reads(), 0);
    // A key that another session withdraws affects this one's speed only.
    let mut other = vault.shell(0);
    other.run("add; cat closed >/dev/null; crypt del");
    reads();
    vault.del();
}

/// What the kernel knows of names, present or missing, never answers a session without a key, and
/// its refusals never answer one with a key.
fn names_answer_their_session_only(transport: Transport) {
    let vault = Vault::new(transport);
    let mut owner = vault.shell(1000);
    owner.run("add");
    owner.run(FILL);
    let rounds = if long() { 3000 } else { 150 };
    let mut other = vault.shell(1000);
    owner.run(&format!(
        "(for i in {{1..{rounds}}}; do
             test \"$(<secret)\" = 'text of secret' || echo secret; test ! -e missing || echo missing
             test \"$(stat -c %F link)\" = 'symbolic link' || echo link; test \"$(echo *)\" = 'dir link secret' || echo list
         done >/mnt/owner.txt 2>&1) & loop=$!"
    ));
    let text = other.run(&format!(
        "cd /; for i in {{1..{rounds}}}; do
             for name in secret missing link dir/inner; do
                 stat $at/$name 2>&1 | grep -q 'Required key' || echo $name
                 test ! -e $at/$name || echo exists $name
             done
         done"
    ));
    assert_eq!(text, "");
    owner.run("wait $loop");
    assert_eq!(fs::read_to_string("/mnt/owner.txt").unwrap(), "");
}

/// The files of a process with a key, reached through /proc by one of the same user without.
fn entries_in_proc_give_no_key(transport: Transport) {
    let vault = Vault::new(transport);
    let mut owner = vault.shell(1000);
    owner.run("add");
    owner.run(FILL);
    owner.run("exec 3<>secret 4<. 5<dir/inner; cd dir");
    for uid in [1000, 0] {
        let mut other = vault.shell(uid);
        other.run(&format!("p=/proc/{}", owner.pid()));
        for command in [
            "cat $p/fd/3",
            "cat $p/fd/5",
            "echo x >>$p/fd/3",
            "truncate -s 0 $p/fd/3",
            "cat $p/fd/4/secret",
            "ls $p/fd/4/",
            "ls $p/cwd/",
            "cat $p/cwd/inner",
            "stat $p/cwd/inner",
            "touch $p/cwd/new",
            "cat $p/root$at/secret",
            "ln -L $p/fd/3 $at/mine",
            "getfattr -n user.note $p/fd/3",
            "setfattr -n user.note -v x $p/fd/3",
            "cp $p/fd/3 /mnt/copy",
        ] {
            refused(&mut other, command);
        }
        // The mode of a file is not encrypted.
        other.run("stat -L $p/fd/3; chmod 660 $p/fd/3");
    }
    assert_eq!(
        owner.run("cat $at/secret inner; getfattr --only-values -n user.note ../secret"),
        "text of secret\ntext of inner\ntext of note"
    );
}

/// A bind mount of a directory needs the same key.
fn bind_mounts(transport: Transport) {
    let vault = Vault::new(transport);
    let mut root = vault.shell(0);
    root.run("add");
    root.run(FILL);
    root.run("mkdir /mnt/bound; mount --bind $at/dir /mnt/bound; ls /mnt/bound; cat /mnt/bound/inner");
    let mut other = vault.shell(0);
    for command in ["ls /mnt/bound", "cat /mnt/bound/inner", "touch /mnt/bound/new", "stat /mnt/bound/missing"] {
        refused(&mut other, command);
    }
    other.run("crypt list; printf '' | $strata control /mnt/bound cryptfs.list");
    other.run(&format!("printf '{PASSPHRASE}' | $strata crypt add /mnt/bound --passfile -"));
    assert_eq!(other.run("cat /mnt/bound/inner"), "text of inner");
    other.run("$strata crypt del /mnt/bound; umount /mnt/bound");
    assert_eq!(root.run("cat $at/dir/inner"), "text of inner");
}

/// File handles need a key as names do.
fn handles_need_a_key(transport: Transport) {
    let vault = Vault::new(transport);
    vault.add();
    let (secret, dir, link) = (vault.path("secret"), vault.path("dir"), vault.path("link"));
    fs::write(&secret, "text of secret").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("inner"), "").unwrap();
    std::os::unix::fs::symlink("text of link", &link).unwrap();
    let handles = [&secret, &dir, &link].map(|path| Handle::of(path));
    let mount = File::open(vault.mounted.dir()).unwrap();
    let reach = || -> [rustix::io::Result<()>; 3] {
        let dir = || {
            let dir = handles[1].open(&mount, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let mut buffer = [MaybeUninit::uninit(); 1024];
            let mut entries = RawDir::new(dir, &mut buffer);
            let mut count = 0;
            while let Some(entry) = entries.next() {
                entry?;
                count += 1;
            }
            assert_eq!(count, 3);
            Ok(())
        };
        [
            handles[0].open(&mount, OFlags::RDONLY).map(drop),
            dir(),
            handles[2]
                .open(&mount, OFlags::PATH | OFlags::NOFOLLOW)
                .and_then(|link| readlinkat(link, "", Vec::new()).map(drop)),
        ]
    };
    for cold in [false, true] {
        assert_eq!(reach(), [Ok(()); 3]);
        vault.del();
        if cold {
            drop_caches();
        }
        for reached in reach() {
            // The kernel looks for the names of directories that it does not know, and then says
            // that the handle is stale.
            let is_refused = reached == Err(Errno::NOKEY) || cold && reached == Err(Errno::STALE);
            assert!(is_refused, "cold: {cold}: {reached:?}");
        }
        vault.add();
        assert_eq!(reach(), [Ok(()); 3]);
    }
    vault.del();
}

/// Two keys on a volume: each session sees the files of its own.
fn each_key_has_its_files(transport: Transport) {
    for flags in [&[][..], &["-deterministic-names"], &["-xchacha"]] {
        let vault = Vault::with(transport, flags, "", |volume| volume.add_key("bob", flags, BOB));
        let (mut first, mut second) = (vault.shell(1000), vault.shell(1000));
        first.run("add");
        assert!(second.run("bob").contains("has the key bob"));
        first.run(
            "umask 0; echo 'of the first' >f; mkdir dir; ln -s 'to the first' link; setfattr -n user.a -v first .",
        );
        second.run("umask 0; echo 'of the second' >f; mkdir dir; touch second; ln -s 'to the second' link; setfattr -n user.a -v second .");
        let show = "ls; cat f; readlink link; getfattr --only-values -n user.a .; getfattr .";
        for _ in 0..3 {
            assert_eq!(first.run(show), "dir\nf\nlink\nof the first\nto the first\nfirst# file: .\nuser.a");
            assert_eq!(second.run(show), "dir\nf\nlink\nsecond\nof the second\nto the second\nsecond# file: .\nuser.a");
        }
        // A name that only the other key has is free.
        first.run("mv f second; cat second");
        assert_eq!(first.run("ls"), "dir\nlink\nsecond");
        assert_eq!(second.run("ls; cat f"), "dir\nf\nlink\nsecond\nof the second");
        // The same session changes its key.
        first.run("bob");
        assert_eq!(first.run("cat f"), "of the second");
        first.run("add --key default");
        assert_eq!(first.run("cat second"), "of the first");
        assert!(
            first.fails(&format!("printf '{BOB}' | crypt add --key default --passfile -")).contains("unlocks no key")
        );
        assert!(first.fails("add --key nobody").contains("no key of this name"));
        // Names that would not be told from those of another key.
        let text = first.fails("touch $'latin-1 \\xe4'");
        assert!(text.contains("nvalid or incomplete multibyte"), "{text}");
        // gocryptfs opens either, and sees the same. It takes about one of 256 names of the other
        // key for its own, and lists it with a random name.
        drop((first, second));
        let Vault { mut mounted, volume, sandbox } = vault;
        mounted.unmount();
        let script = "gocryptfs -nosyslog -q -config \"$1/gocryptfs.conf.bob\" -extpass \"echo $2\" \"$1\" \"$3\"; cd \"$3\"; ls -d dir f link second; cat f; cd /; umount \"$3\"";
        let text = sh(script, &[volume.dir(), Path::new(BOB), &sandbox.dir("g")]);
        assert!(text.ends_with("dir\nf\nlink\nsecond\nof the second\n"), "{text}");
    }
}

/// A directory in which another key has entries is not empty.
fn directories_with_entries_of_another_key_stay(transport: Transport) {
    let vault = Vault::with(transport, &[], "", |volume| volume.add_key("bob", &[], BOB));
    vault.add();
    fs::create_dir(vault.path("dir")).unwrap();
    fs::set_permissions(vault.path("dir"), Permissions::from_mode(0o777)).unwrap();
    // The second key can't find the directory; its user is there already.
    let mut second = vault.shell_in(&vault.path("dir"), 0);
    second.run("bob; echo 'of the second' >f; mkdir d; cat f");
    assert_eq!(fs::read_dir(vault.path("dir")).unwrap().count(), 0);
    let error = fs::remove_dir(vault.path("dir")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    fs::rename(vault.path("dir"), vault.path("moved")).unwrap();
    fs::create_dir(vault.path("empty")).unwrap();
    let error = fs::rename(vault.path("empty"), vault.path("moved")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    assert_eq!(second.run("ls; cat f"), "d\nf\nof the second");
    second.run("rm f; rmdir d");
    fs::remove_dir(vault.path("moved")).unwrap();
    vault.del();
}

/// Commands with which the second key tries to use a file of the first one.
const FOREIGN: [&str; 6] = [
    "cat $f",
    "echo x >>$f",
    "echo x >$f",
    "truncate -s 0 $f",
    "truncate -s 5000 $f",
    "dd if=/dev/zero of=$f bs=4096 count=1 conv=notrunc",
];

/// No file contains blocks of two keys, on a volume whose names are not encrypted, and through
/// /proc on others.
fn files_have_one_key(transport: Transport) {
    for flags in [&["-plaintextnames"][..], &["-plaintextnames", "-aessiv"], &[]] {
        let plain = !flags.is_empty();
        let vault = Vault::with(transport, flags, "", |volume| volume.add_key("bob", flags, BOB));
        let (mut first, mut second) = (vault.shell(1000), vault.shell(1000));
        first.run("add");
        second.run("bob");
        first.run("echo 'of the first' >f; truncate -s 100000 sparse; echo end >>sparse; touch empty; exec 3<f 4<sparse 5<empty");
        let files = if plain { ["f", "sparse"] } else { ["3", "4"] };
        let before = first.run("cksum f sparse");
        for file in files {
            let file = if plain { format!("$at/{file}") } else { format!("/proc/{}/fd/{file}", first.pid()) };
            for command in FOREIGN {
                refused(&mut second, &format!("f={file}; {command}"));
            }
            second.run(&format!("stat -L {file}"));
        }
        assert_eq!(first.run("cksum f sparse"), before);
        // An empty file has no key, unless a session has it open.
        let empty = if plain { "$at/empty".to_owned() } else { format!("/proc/{}/fd/5", first.pid()) };
        refused(&mut second, &format!("echo x >{empty}"));
        if plain {
            first.run("exec 5<&-");
            second.run("echo 'of the second' >empty; cat empty");
            refused(&mut first, "cat empty");
            refused(&mut first, "echo x >>empty");
            first.run("rm empty");
        }
        first.run("exec 3<&- 4<&- 5<&-");
    }
}

/// A volume gets its second key while it is mounted.
fn a_second_key_while_mounted(transport: Transport) {
    let flags = &["-plaintextnames"];
    let vault = Vault::with(transport, flags, "", |_| {});
    let (mut first, mut second) = (vault.shell(1000), vault.shell(1000));
    first.run("add; echo 'of the first' >f");
    assert!(second.fails("bob").contains("unlocks no key"));
    vault.volume.add_key("bob", flags, BOB);
    second.run("bob");
    for command in FOREIGN {
        refused(&mut second, &format!("f=$at/f; {command}"));
    }
    assert_eq!(second.run("echo 'of the second' >g; cat g; ls"), "of the second\nf\ng");
    refused(&mut first, "cat g");
    assert_eq!(first.run("cat f"), "of the first");
}

/// A mount with one key for all shows the files of that key only.
fn a_mount_with_one_of_several_keys(transport: Transport) {
    let sandbox = Sandbox::new();
    for flags in [&[][..], &["-plaintextnames"]] {
        let name = format!("volume{}", flags.len());
        let volume = Volume::new(&sandbox.path(&name), flags);
        volume.add_key("bob", flags, BOB);
        let bob = sandbox.path("bob");
        strata_tests::crypt::write_secret(&bob, BOB);
        let spec = |options: &str| {
            strata_tests::Spec::stack(&format!("cryptfs,key=mount,{options} / "), volume.dir(), transport)
        };
        {
            let mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
            fs::write(mounted.path("first"), "of the first").unwrap();
        }
        let mounted = Mounted::new(spec(&format!("passfile={}", bob.display())), &sandbox.path("m"));
        fs::write(mounted.path("second"), "of the second").unwrap();
        let error = fs::read(mounted.path("first")).unwrap_err().raw_os_error();
        let expected = if flags.is_empty() { Errno::NOENT } else { Errno::NOKEY };
        assert_eq!(error, Some(expected.raw_os_error()));
        drop(mounted);
        let wrong = spec(&format!("keyname=default,passfile={}", bob.display()));
        let output = Mounted::try_new(wrong, &sandbox.path("m"), "").unwrap_err();
        assert!(output.contains("key default") && output.contains("passphrase"), "{output}");
        let mounted = Mounted::new(volume.spec(transport), &sandbox.path("m"));
        assert_eq!(fs::read(mounted.path("first")).unwrap(), b"of the first");
    }
}

on_both_transports!(
    a_key_belongs_to_one_session_of_one_user,
    a_change_of_the_user_loses_the_key,
    daemons_keep_what_they_have_open,
    a_working_directory_gives_no_key,
    keys_are_withdrawn_by_their_user,
    control_commands,
    unused_keys_end,
    keys_end_with_their_session,
    open_files_of_a_withdrawn_key_fail,
    mappings_of_a_withdrawn_key_end,
    a_busy_mapping_does_not_keep_a_key,
    cached_pages_go_with_the_key,
    names_answer_their_session_only,
    entries_in_proc_give_no_key,
    bind_mounts,
    handles_need_a_key,
    each_key_has_its_files,
    directories_with_entries_of_another_key_stay,
    files_have_one_key,
    a_second_key_while_mounted,
    a_mount_with_one_of_several_keys,
);
