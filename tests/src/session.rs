//! A user's session in a shell, with unions and their tools.

use crate::process::sh;
use crate::{Mounted, Sandbox};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

/// Functions of the sessions: `mu BRANCHES` mounts the union at `u`, `um` unmounts it, `is TEXT
/// COMMAND...` checks what a command prints, in one line; `fails STATUS COMMAND...` checks its exit
/// status.
const PRELUDE: &str = r#"
    cd "$1"
    PATH="$2:$PATH"
    exec 2>&1
    mu() { mount.unionfs -o "dirs=$(echo "$1" | sed 's|\(^\|:\)|\1'"$PWD"'/|g')" none u; }
    um() { umount u; }
    is() {
        local want="$1" got; shift
        got="$("$@" | tr '\n' ' ')" || true
        test "$got" = "${want:+$want }" || { echo "$*: '$got', not '$want'"; ls -lai . *; exit 1; }
    }
    fails() {
        local want="$1" got=0; shift
        "$@" || got=$?
        test $got = $want || { echo "$*: status $got, not $want"; ls -lai . *; exit 1; }
    }
    fsck() { local status=0; fsck.unionfs "$@" || status=$?; test $status -le 1 || { echo "fsck.unionfs $*: $status"; exit 1; }; }
"#;

/// Runs a session in a directory on ext4.
///
/// # Panics
/// If a command fails.
pub fn run(script: &str) {
    let sandbox = Sandbox::with_time(Duration::from_secs(120));
    let disk = sandbox.ext4("disk", 64);
    let programs = sandbox.dir("bin");
    for name in ["mount.unionfs", "unionctl", "fsck.unionfs", "snapmerge", "strata"] {
        symlink(Mounted::program().unwrap(), programs.join(name)).unwrap();
    }
    let args: [&Path; 2] = [&disk, &programs];
    sh(&format!("{PRELUDE}{script}"), &args);
}
