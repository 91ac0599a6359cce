//! Mount points of autofs, as of systemd's automount units: the automounter runs mount(8) when a
//! program uses the directory, and lets only its own process group through meanwhile.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::process::Command;
use strata_tests::process::run;
use strata_tests::{Mounted, Sandbox, Transport, on_both_transports};

/// An automounter: `automounter DIR COMMAND...` runs the command when another process uses DIR, and
/// ends.
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

on_both_transports!(a_program_that_uses_the_directory_gets_the_mount);
