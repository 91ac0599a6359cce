//! Compares the tables of options in the pages with `--help`: neither lacks an option of the other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Option names with the values that they take: `ino` and `64|32`.
type Options = BTreeMap<String, String>;

fn help(kind: &str) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_strata")).arg0(format!("mount.{kind}")).arg("--help").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the lines of a part of the help that begin an entry, without their indentation.
fn entries<'a>(help: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let (_, part) = help.split_once(heading).unwrap();
    let lines = part.lines().skip(1).take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '))
}

fn name_and_value(usage: &str) -> (String, String) {
    let (name, value) = usage.split_once('=').unwrap_or((usage, ""));
    (name.to_owned(), value.to_owned())
}

/// Returns the options of a file system, without the line about options of mount(8).
fn options(kind: &str) -> Options {
    let help = help(kind);
    let usages = entries(&help, "Options after -o:").filter(|line| !line.starts_with("general options"));
    usages.map(|line| name_and_value(line.split_whitespace().next().unwrap())).collect()
}

/// Returns the options of a file system that the null layer lacks.
fn own_options(kind: &str) -> Options {
    let general = options("wrapfs");
    options(kind).into_iter().filter(|(name, _)| !general.contains_key(name)).collect()
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)).unwrap()
}

/// Returns the rows of the page's table of options: the options of the first cell, and the second
/// cell.
fn rows(page: &str) -> Vec<(Options, String)> {
    let page = page.replace("\\|", "\u{1}");
    let lines = page.lines().skip_while(|line| !line.starts_with("| option |")).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let code = cells[1].split('`').skip(1).step_by(2).filter(|code| !code.starts_with('-'));
        let options = code.map(|code| name_and_value(&code.replace('\u{1}', "|"))).collect();
        (options, cells[2].to_owned())
    });
    rows.collect()
}

fn compare(page: &str, shown: &Options, declared: &Options) {
    let names = |options: &Options| options.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(shown), names(declared), "docs/{page} (left) and --help (right)");
    for (name, value) in shown.iter().filter(|(_, value)| value.contains('|')) {
        assert_eq!(*value, declared[name], "docs/{page} (left) and --help (right): {name}=");
    }
}

#[test]
fn mounting_md_has_every_option_of_all_types_of_unions_and_of_stacks() {
    let rows = rows(&page("mounting.md"));
    for (label, mut declared) in
        [("all", options("wrapfs")), ("unionfs", own_options("unionfs")), ("strata", own_options("strata"))]
    {
        if label == "all" {
            // The help mentions it under allow_other.
            declared.insert("noallow_other".to_owned(), String::new());
        }
        let shown = rows.iter().filter(|(_, kind)| kind == label).flat_map(|(options, _)| options.clone()).collect();
        compare("mounting.md", &shown, &declared);
    }
    assert!(rows.iter().all(|(_, kind)| ["all", "unionfs", "strata"].contains(&kind.as_str())), "{rows:?}");
}

#[test]
fn mounting_md_has_every_flag() {
    let (help, page) = (help("unionfs"), page("mounting.md"));
    for flag in entries(&help, "Flags:").flat_map(|line| line.split_whitespace().filter(|word| word.starts_with('-'))) {
        let flag = flag.trim_end_matches(',');
        assert!(page.contains(&format!("`{flag}")), "docs/mounting.md lacks {flag}");
    }
}

#[test]
fn the_page_of_a_layer_has_its_options() {
    let general = options("wrapfs");
    for kind in ["unionfs", "lbfs", "viewfs", "snoopfs", "usenetfs", "zstd"] {
        let name = if kind == "viewfs" { "views.md".to_owned() } else { format!("{kind}.md") };
        let shown = rows(&page(&name)).into_iter().flat_map(|(options, _)| options);
        // A page may describe how a general option behaves with the layer.
        let shown = shown.filter(|(name, _)| !general.contains_key(name)).collect();
        compare(&name, &shown, &own_options(kind));
    }
}

/// Returns the options of a subcommand of strata: those in its help, at the beginning of a line.
fn options_of_command(command: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_strata")).args([command, "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let words = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let names =
        words.flat_map(|line| line.split_whitespace().filter(|word| word.starts_with("--")).map(long_name).take(1));
    let mut names: Vec<_> = names.filter(|name| name != "--help" && name != "--version").collect();
    names.sort();
    names.dedup();
    names
}

/// Returns `--name` of `--name[=VALUE]`.
fn long_name(word: &str) -> String {
    word.split(['[', '=', ',', ' ']).next().unwrap().to_owned()
}

#[test]
fn sandbox_md_has_the_options_of_strata_run() {
    let page = page("sandbox.md").replace("\\|", "\u{1}");
    let lines = page.lines().skip_while(|line| !line.starts_with("| option |")).skip(2);
    let cells = lines.take_while(|line| line.starts_with('|')).map(|line| line.split('|').nth(1).unwrap().to_owned());
    let mut shown: Vec<_> = cells
        .flat_map(|cell| cell.split('`').filter(|code| code.starts_with("--")).map(long_name).collect::<Vec<_>>())
        .collect();
    shown.sort();
    assert_eq!(shown, options_of_command("run"));
}
