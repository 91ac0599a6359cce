//! Checks of the documentation: links and file names exist, no line is duplicated, no table column
//! is empty, and every block of commands succeeds (see `docs/commands.rs`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

mod commands;

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

/// Iterates over the lines outside of code blocks and comments.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let (mut code, mut comment) = (false, false);
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        comment |= !code && line.starts_with("<!--");
        let prose = !code && !fence && !comment;
        comment &= !line.ends_with("-->");
        prose
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

/// mount(8) makes `/srv` of a source `srv` if it runs in `/`.
#[test]
fn names_in_fstab_are_no_directories() {
    const IN_ROOT: [&str; 20] = [
        "bin",
        "boot",
        "dev",
        "etc",
        "home",
        "lib",
        "lib64",
        "lost+found",
        "media",
        "mnt",
        "opt",
        "proc",
        "root",
        "run",
        "sbin",
        "srv",
        "sys",
        "tmp",
        "usr",
        "var",
    ];
    let mut found = 0;
    for (page, text) in pages() {
        for (_, step) in commands::steps(&page.display().to_string(), &text) {
            let commands::Step::Block(language, block) = step else { continue };
            for name in block.lines().filter_map(|line| line.split_whitespace().next()).filter(|_| language == "fstab")
            {
                assert!(!IN_ROOT.contains(&name), "{}: {name}", page.display());
                found += 1;
            }
        }
    }
    assert!(found > 3);
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

/// Defines a test for each page that has commands.
macro_rules! run_the_commands_of {
    ($($test:ident: $page:literal,)*) => {
        const RUN: &[&str] = &[$($page),*];

        $(#[test]
        fn $test() {
            commands::run(&top(), $page);
        })*
    };
}

run_the_commands_of! {
    commands_of_readme: "README.md",
    commands_of_changes: "docs/changes.md",
    commands_of_contributing: "CONTRIBUTING.md",
    commands_of_control: "docs/control.md",
    commands_of_cryptctl: "docs/cryptctl.md",
    commands_of_cryptfs: "docs/cryptfs.md",
    commands_of_examples: "docs/examples.md",
    commands_of_faq: "docs/faq.md",
    commands_of_fsck: "docs/fsck.md",
    commands_of_fsck_versionfs: "docs/fsck-versionfs.md",
    commands_of_index: "docs/index.md",
    commands_of_lbfs: "docs/lbfs.md",
    commands_of_many_branches: "docs/many-branches.md",
    commands_of_mounting: "docs/mounting.md",
    commands_of_oci: "docs/oci.md",
    commands_of_pools: "docs/pools.md",
    commands_of_sandbox: "docs/sandbox.md",
    commands_of_security: "docs/security.md",
    commands_of_snapshots: "docs/snapshots.md",
    commands_of_snoopfs: "docs/snoopfs.md",
    commands_of_stacks: "docs/stacks.md",
    commands_of_troubleshooting: "docs/troubleshooting.md",
    commands_of_tuning: "docs/tuning.md",
    commands_of_tutorial: "docs/tutorial.md",
    commands_of_uniondbg: "docs/uniondbg.md",
    commands_of_unionfs: "docs/unionfs.md",
    commands_of_usenetfs: "docs/usenetfs.md",
    commands_of_versionctl: "docs/versionctl.md",
    commands_of_versioning_policies: "docs/versioning-policies.md",
    commands_of_versionfs: "docs/versionfs.md",
    commands_of_views: "docs/views.md",
    commands_of_wrapfs: "docs/wrapfs.md",
    commands_of_zstd: "docs/zstd.md",
}

#[test]
fn every_page_with_commands_is_run() {
    for (page, text) in pages() {
        let name = page.strip_prefix(top()).unwrap().to_str().unwrap();
        let has_commands = commands::steps(name, &text).iter().any(|(_, step)| step.runs());
        assert_eq!(RUN.contains(&name), has_commands, "{name}: in the list of pages with commands; has commands");
    }
}

/// Configuration files in the pages have no mistake, and the built-in one is shown as it is.
#[test]
fn policies_are_valid() {
    let page = fs::read_to_string(top().join("docs/versioning-policies.md")).unwrap();
    let blocks: Vec<_> = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 2);
    for block in &blocks {
        let parsed = versionpolicy::AdminConfig::parse("page", block.as_bytes(), &NoAccounts);
        assert_eq!(parsed.problems, []);
    }
    assert_eq!(*blocks.last().unwrap(), versionpolicy::BUILTIN);
}

struct NoAccounts;

impl versionpolicy::Accounts for NoAccounts {
    fn user(&self, _: &str) -> Option<u32> {
        None
    }

    fn group(&self, _: &str) -> Option<u32> {
        None
    }
}

/// Code in Rust is compiled and run elsewhere: examples.md by rustdoc (crates/plugin/src/lib.rs),
/// tutorial.md by objects.rs.
#[test]
fn rust_is_in_compiled_pages_only() {
    for (page, text) in pages() {
        for language in text.lines().filter_map(|line| line.strip_prefix("```")) {
            let compiled = match language {
                "rust" | "rust,tests" => page.ends_with("docs/tutorial.md"),
                "rust,standalone_crate" => page.ends_with("docs/examples.md"),
                _ => !language.starts_with("rust") && language != "c",
            };
            assert!(compiled, "{}: {language}: no test compiles this block", page.display());
        }
    }
}
