//! `strata diff`: lists what the first branch of a union changes.

use crate::branches;
use crate::change_list::{json, json_path, line, shown};
use crate::exit::{Exit, Failure};
use crate::offline::{self, Access, Offline};
use crate::tool::print;
use changes::{Change, Floor, Selection, Text, Texts};
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The part of the help after the options.
pub const HELP: &str = "\
Without --branches, the first argument is a mounted union, and the other ones are paths in it. With --branches, all \
arguments are paths in the union, which need not be mounted. A path stands for everything beneath it.

Examples:
  strata diff /srv/tree                                   a mounted union
  strata diff /srv/tree /srv/tree/etc                     only what lies in /etc
  strata diff --branches /srv/changes:/srv/image -p etc   text differences, not mounted

Exit status: 0 no differences, 1 differences, 2 trouble.";

/// The arguments of `strata diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The mounted union (without --branches), then paths in it.
    #[arg(value_name = "UNION|PATH")]
    args: Vec<OsString>,
    /// The branches, from left to right, as in the option dirs=. The first one has the changes.
    #[arg(short, long, value_name = "LIST")]
    branches: Option<OsString>,
    /// Show the changed lines of text files.
    #[arg(short = 'p', long, visible_alias = "patch", conflicts_with_all = ["json", "stat", "name_only"])]
    text: bool,
    /// Count inserted and deleted lines for each file.
    #[arg(long, conflicts_with_all = ["json", "name_only"])]
    stat: bool,
    /// Print only the paths.
    #[arg(long, conflicts_with = "json")]
    name_only: bool,
    /// With --name-only: end each path with a NUL, and escape nothing.
    #[arg(short = '0', long, requires = "name_only")]
    null: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Lists the changes. Returns whether there are any.
///
/// # Errors
/// Names the branch or path and the reason.
pub fn run(args: &DiffArgs) -> Result<Exit, Failure> {
    let (offline, selection) = match &args.branches {
        Some(list) => {
            let offline = offline::open_list(list.as_bytes(), Access::Read, Floor::Ground)?;
            (offline, select(&args.args, None))
        }
        None => mounted(&args.args)?,
    };
    let branches = &offline.branches;
    let (changes, unreadable) = branches.readable_changes().map_err(trouble)?;
    let unreadable: Vec<_> = unreadable.into_iter().filter(|failed| selection.covers(&failed.path)).collect();
    for failed in &unreadable {
        let (path, why) = (shown(&failed.path), crate::host_dir::reason(failed.errno));
        let _ =
            writeln!(std::io::stderr(), "strata: {path}: can't {}: {why}; changes there are not listed", failed.step);
    }
    let changes: Vec<Change> = changes.into_iter().filter(|change| selection.includes(change)).collect();
    print(render(args, &offline, &changes)?)?;
    Ok(match (unreadable.is_empty(), changes.is_empty()) {
        (false, _) => Exit::System,
        (true, false) => Exit::DIFFERENT,
        (true, true) => Exit::Success,
    })
}

/// Opens the branches of a mounted union.
fn mounted(args: &[OsString]) -> Result<(Offline, Selection), Failure> {
    let Some((union, paths)) = args.split_first() else {
        return Err(Failure::usage("name a mounted union, or its branches with --branches; see --help"));
    };
    let union = Path::new(union);
    let list = branches::list(union)?;
    if list.layer != offline::LAYER {
        return Err(Failure::usage(format!("{}: not a union", union.display())));
    }
    let offline = offline::open_mounted(union, &list)?;
    let point = crate::users::mount_point(union);
    Ok((offline, select(paths, Some(&point))))
}

/// Returns the selected paths. Those beneath the mount point are taken relative to it.
pub(crate) fn select(paths: &[OsString], point: Option<&Path>) -> Selection {
    if paths.is_empty() {
        return Selection::all();
    }
    let inside = |path: &OsString| -> PathBuf {
        let path = Path::new(path);
        let Some(point) = point else { return path.to_owned() };
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        absolute.strip_prefix(point).map_or_else(|_| path.to_owned(), Path::to_owned)
    };
    Selection::of(paths.iter().map(|path| inside(path).as_os_str().as_bytes().to_vec()))
}

/// Returns the failure for an error of the comparison.
pub(crate) fn trouble(error: changes::Error) -> Failure {
    match error {
        changes::Error::Failed(failed) => {
            let (path, errno) = (shown(&failed.path), crate::host_dir::reason(failed.errno));
            Failure::system(format!("{path}: can't {}: {errno}", failed.step))
        }
        changes::Error::Branches(error) => Failure::system(error.to_string()),
        changes::Error::Whole { part, whole, reason } => {
            let (part, whole) = (shown(&part), shown(&whole));
            Failure::usage(format!("{part}: can't be selected alone, because {whole} {reason}; select {whole}"))
        }
        changes::Error::NeedsBelow { path, reason } => Failure::usage(format!(
            "{}: {reason}; name all branches of the union, with --branches or --below, or discard that path",
            shown(&path)
        )),
        changes::Error::Conflicts(conflicts) => {
            Failure { exit: Exit::Conflict, reason: format!("{} paths have changed below", conflicts.len()) }
        }
    }
}

fn render(args: &DiffArgs, offline: &Offline, changes: &[Change]) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    if args.json {
        let names: Vec<_> = offline.names.iter().map(|name| name.to_string_lossy()).collect();
        let changes: Vec<_> = changes.iter().map(json).collect();
        out.extend(format!("{}\n", json!({ "branches": names, "changes": changes })).into_bytes());
    } else if args.name_only {
        for change in changes {
            match args.null {
                true => out.extend([b"/", &*change.path, b"\0"].concat()),
                false => out.extend(format!("{}\n", shown(&change.path)).into_bytes()),
            }
        }
    } else if args.text {
        let texts = offline.branches.texts().map_err(trouble)?;
        for change in changes {
            out.extend(patch(&texts, change)?);
        }
    } else if args.stat {
        out.extend(stat(offline, changes)?.into_bytes());
    } else {
        for change in changes {
            out.extend(format!("{}\n", line(change)).into_bytes());
        }
    }
    Ok(out)
}

/// Returns a change with the lines that differ.
fn patch(texts: &Texts, change: &Change) -> Result<Vec<u8>, Failure> {
    let mut out = format!("{}\n", line(change)).into_bytes();
    out.extend(hunks(texts, change, &shown)?);
    Ok(out)
}

/// Returns the lines of a file that differ, as diff(1) does; nothing for other changes. `name`
/// shows a path.
pub(crate) fn hunks(texts: &Texts, change: &Change, name: &dyn Fn(&[u8]) -> String) -> Result<Vec<u8>, Failure> {
    if change.is_dir() || !change.content {
        return Ok(Vec::new());
    }
    let old = name(change.from.as_ref().unwrap_or(&change.path));
    let (old, new) = (
        change.before.map_or_else(|| "/dev/null".to_owned(), |_| format!("a{old}")),
        change.after.map_or_else(|| "/dev/null".to_owned(), |_| format!("b{}", name(&change.path))),
    );
    let mut out = Vec::new();
    match texts.of(change).map_err(trouble)? {
        Text::Binary => out.extend(format!("Binary files {old} and {new} differ\n").into_bytes()),
        Text::Lines { hunks, .. } if hunks.is_empty() => {}
        Text::Lines { hunks, .. } => {
            out.extend(format!("--- {old}\n+++ {new}\n").into_bytes());
            out.extend(hunks);
        }
    }
    Ok(out)
}

fn stat(offline: &Offline, changes: &[Change]) -> Result<String, Failure> {
    let texts = offline.branches.texts().map_err(trouble)?;
    let mut rows = Vec::new();
    let (mut inserted, mut deleted) = (0, 0);
    for change in changes {
        let count = if change.is_dir() || !change.content {
            String::new()
        } else {
            match texts.of(change).map_err(trouble)? {
                Text::Lines { inserted: more, deleted: less, .. } => {
                    inserted += more;
                    deleted += less;
                    format!("+{more} -{less}")
                }
                Text::Binary => {
                    let size = |facts: Option<changes::Facts>| facts.map_or(0, |facts| facts.size);
                    format!("binary, {} -> {} bytes", size(change.before), size(change.after))
                }
            }
        };
        rows.push((line_without_notes(change), count));
    }
    let width = rows.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0).min(80);
    let mut out: String =
        rows.iter().map(|(line, count)| format!("{line:<width$}  {count}").trim_end().to_owned() + "\n").collect();
    let files = if changes.len() == 1 { "change" } else { "changes" };
    out += &format!("{} {files}, {inserted} lines inserted, {deleted} deleted\n", changes.len());
    Ok(out)
}

fn line_without_notes(change: &Change) -> String {
    line(&Change { before: None, ..change.clone() })
}

/// Returns the conflicts as JSON.
pub(crate) fn json_conflict(conflict: &changes::Conflict) -> serde_json::Value {
    let kind = match conflict.kind {
        changes::ConflictKind::Changed => "changed",
        changes::ConflictKind::Created => "created",
    };
    let time = |time: vnode::Time| json!({ "sec": time.sec, "nsec": time.nsec });
    json!({ "path": json_path(&conflict.path), "below": kind, "changed": time(conflict.changed), "since": time(conflict.since) })
}
