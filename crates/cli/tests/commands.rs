//! Runs the command blocks of README.md and docs/ that are marked with `<!-- run -->`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use strata_tests::Sandbox;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const MARK: &str = "<!-- run -->";

/// Installs the commands, as `make install` does, but visible in this mount namespace only; and
/// gives the blocks an empty /tmp and /srv.
const SET_UP: &str = "
    mount -t overlay -o lowerdir=/mnt/sbin:/usr/sbin none /usr/sbin
    mount -t tmpfs none /tmp
    mount -t tmpfs none /srv
    cd /tmp
";

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the marked `sh` blocks of a page, one after the other.
fn marked_blocks(page: &str) -> String {
    let mut commands = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line == MARK {
            assert_eq!(lines.next(), Some("```sh"), "a mark belongs before a block of commands");
            for command in lines.by_ref().take_while(|line| *line != "```") {
                // The test installs the debug build itself.
                if !command.starts_with("make install") {
                    commands.push_str(command);
                    commands.push('\n');
                }
            }
        }
    }
    commands
}

#[test]
fn marked_command_blocks_succeed() {
    let mut pages = vec![top().join("README.md")];
    pages.extend(fs::read_dir(top().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    let mut count = 0;
    for page in pages {
        let commands = marked_blocks(&fs::read_to_string(&page).unwrap());
        if commands.is_empty() {
            continue;
        }
        count += 1;
        let sandbox = Sandbox::with_time(Duration::from_secs(120));
        let sbin = sandbox.dir("sbin");
        fs::copy(PROGRAM, sbin.join("strata")).unwrap();
        for name in ["strata", "unionfs", "wrapfs", "lbfs", "snoopfs", "usenetfs", "zstd"] {
            symlink("strata", sbin.join(format!("mount.{name}"))).unwrap();
        }
        symlink("strata", sbin.join("usenetctl")).unwrap();
        let script = format!("set -euo pipefail\n{SET_UP}\n{commands}");
        let output = Command::new("unshare").args(["-m", "bash", "-c", &script]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{}: {}\n{commands}\n{}{}",
            page.display(),
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
    }
    assert!(count > 0, "no page has a marked block");
}
