//! Checks of the documentation: links and file names exist, no line is duplicated, no table column
//! is empty, and the command blocks that are marked with `<!-- run -->` succeed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
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

/// Returns the path and the text of every page.
fn pages() -> Vec<(PathBuf, String)> {
    let at_the_root = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    let mut pages: Vec<_> = at_the_root.iter().map(|page| top().join(page)).collect();
    for dir in ["docs", "docs/design", "docs/formats"] {
        pages.extend(fs::read_dir(top().join(dir)).unwrap().map(|entry| entry.unwrap().path()));
    }
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(pages.len() > 10);
    pages.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Iterates over the lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    kept.chars().filter(|&c| c.is_alphanumeric() || "-_ ".contains(c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn link_targets_exist() {
    for (page, text) in pages() {
        for link in prose(&text).flat_map(|line| line.split("](").skip(1)) {
            let link = link.split([')', ' ']).next().unwrap();
            if link.contains("://") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            assert!(file.exists(), "{}: {link}", page.display());
            if !heading.is_empty() {
                let target = fs::read_to_string(file).unwrap();
                let mut headings = prose(&target).filter(|line| line.starts_with('#'));
                assert!(headings.any(|line| anchor(line) == heading), "{}: {link}", page.display());
            }
        }
    }
}

#[test]
fn files_that_are_named_exist() {
    for (page, text) in pages() {
        for name in prose(&text).flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let parts = ["crates/", "docs/", "scripts/", "tests/", "examples/", "include/", "bench/"];
            // Skip patterns, and files that the reader of the tutorial creates.
            if !parts.iter().any(|part| name.starts_with(part))
                || name.contains(['*', ' ', '{'])
                || name.contains("veil")
            {
                continue;
            }
            // In the tutorial, this is a file of the new layer.
            let own = page.ends_with("tutorial.md") && name == "tests/layer.rs";
            assert!(own || top().join(name).exists(), "{}: {name}", page.display());
        }
    }
}

#[test]
fn no_line_is_duplicated() {
    for (page, text) in pages() {
        let mut seen = HashMap::new();
        for line in prose(&text).filter(|line| line.len() > 60 && !line.starts_with('|')) {
            assert_eq!(seen.insert(line, ()), None, "{}: {line}", page.display());
        }
    }
}

#[test]
fn no_column_is_empty() {
    for (page, text) in pages() {
        let lines: Vec<_> = prose(&text).collect();
        for table in lines.split(|line| !line.starts_with('|')).filter(|table| table.len() > 2) {
            let rows = table.iter().map(|line| line.replace("\\|", ""));
            let rows: Vec<Vec<_>> =
                rows.map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect()).collect();
            let columns = rows[0].len();
            for row in &rows {
                assert_eq!(row.len(), columns, "{}: {row:?}", page.display());
            }
            for column in 1..columns - 1 {
                let body = &rows[2..];
                let empty = body.iter().filter(|row| row[column].is_empty()).count();
                assert!(empty * 2 <= body.len(), "{}: column {:?}", page.display(), rows[0][column]);
            }
        }
    }
}

#[test]
fn every_page_is_in_the_book() {
    let docs = top().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    for (page, _) in pages() {
        if let Ok(name) = page.strip_prefix(&docs)
            && name != Path::new("SUMMARY.md")
        {
            assert!(summary.contains(&format!("]({})", name.display())), "docs/SUMMARY.md lacks {}", name.display());
        }
    }
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
    let mut count = 0;
    for (page, text) in pages() {
        let commands = marked_blocks(&text);
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
        let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{}: {}\n{commands}\n{}{}",
            page.display(),
            output.status,
            printed(&output.stdout),
            printed(&output.stderr)
        );
    }
    assert!(count > 0, "no page has a marked block");
}
