//! Mounts that others make and end: an automounter, a container.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;
use strata_tests::process::{run, try_run};
use strata_tests::{Mounted, Sandbox, Transport, on_both_transports};
use testkit::until_within;

/// An automounter, as that of systemd: `automounter DIR COMMAND...` runs the command when another
/// process uses DIR, and ends. Meanwhile it lets only its own process group through.
const AUTOMOUNTER: &str = r#"
import fcntl, os, struct, subprocess, sys
dir, command = sys.argv[1], sys.argv[2:]
READY, FAIL = 0x9360, 0x9361
os.setpgid(0, 0)
requests, kernel = os.pipe()
options = f"fd={kernel},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
subprocess.run(["mount", "-t", "autofs", "-o", options, "none", dir], pass_fds=[kernel], check=True)
os.close(kernel)
control = os.open(dir, os.O_RDONLY)
program = subprocess.Popen(["cat", dir + "/file"], stdout=subprocess.PIPE, start_new_session=True)
packet = os.read(requests, 304)
version, kind, token = struct.unpack_from("iiI", packet)
assert (version, kind) == (5, 5), (version, kind)
done = subprocess.run(command, timeout=20).returncode
fcntl.ioctl(control, FAIL if done else READY, token)
os.close(control)
print(program.communicate(timeout=20)[0].decode(), end="")
"#;

fn a_program_that_uses_the_directory_gets_the_mount(transport: Transport) {
    let sandbox = Sandbox::new();
    let (lower, upper, dir) = (sandbox.dir("lower"), sandbox.dir("upper"), sandbox.dir("u"));
    fs::write(lower.join("file"), "text").unwrap();
    let options = format!("dirs={}=rw:{}=ro,transport={}", upper.display(), lower.display(), transport.name());
    let mut automounter = Command::new("python3");
    automounter.args(["-c", AUTOMOUNTER]).arg(&dir);
    let helper = sandbox.path("mount.unionfs");
    std::os::unix::fs::symlink(Mounted::program().unwrap(), &helper).unwrap();
    let text = run(automounter.arg(&helper).arg("none").arg(&dir).args(["-o", &options]));
    assert_eq!(text, "text");
    // The union, and autofs below it.
    for _ in 0..2 {
        strata_tests::unmount_soon(&dir);
    }
}

/// A mount namespace in which no process is left but servers, as after a container. What holds it:
/// a descriptor.
fn servers_end_with_their_mount_namespace(transport: Transport) {
    let sandbox = Sandbox::new();
    let (lower, upper) = (sandbox.dir("lower"), sandbox.dir("upper"));
    let [union, wrapped] = ["u", "w"].map(|name| sandbox.dir(name));
    for name in ["mount.unionfs", "mount.wrapfs"] {
        std::os::unix::fs::symlink(Mounted::program().unwrap(), sandbox.path(name)).unwrap();
    }
    let script = format!(
        "set -e; cd /mnt
        ./mount.unionfs none u -o dirs=/mnt/upper=rw:/mnt/lower=ro,transport={0}
        ./mount.wrapfs /mnt/lower w -o transport={0}
        echo text >u/file; echo ready; read line || exit 0",
        transport.name()
    );
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let held = fs::File::open(format!("/proc/{}/ns/mnt", shell.id())).unwrap();
    let pattern = format!("^[.]/mount[.](unionfs|wrapfs) .*transport={}", transport.name());
    let servers = || try_run(Command::new("pgrep").arg("-f").arg(&pattern)).text.lines().count();
    assert_eq!(servers(), 2);
    drop(shell.stdin.take());
    assert!(shell.wait().unwrap().success());
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(servers(), 2, "the namespace is held");
    drop(held);
    until_within(Duration::from_secs(30), "the end of the servers", || servers() == 0);
    assert_eq!(fs::read_to_string(upper.join("file")).unwrap(), "text\n");
    assert!(!upper.join(".wh..wh.work").exists(), "it was unmounted");
    drop((lower, union, wrapped));
}

on_both_transports!(a_program_that_uses_the_directory_gets_the_mount, servers_end_with_their_mount_namespace);
