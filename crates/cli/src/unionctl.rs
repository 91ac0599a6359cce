//! `unionctl`, or `strata union`: lists, adds, removes and switches the branches of a union while
//! it is in use.

use crate::branches;
use crate::channel;
use crate::edits::{Edit, Position, Which};
use crate::exit::{Exit, Failure};
use crate::live::WantedInUse;
use crate::moves;
use crate::tool::{self, print};
use clap::{Args, CommandFactory as _, Parser};
use core::fmt::Write as _;
use fuse::control::Error;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Returns what each branch has at the place of an object.
const QUERY: &str = "unionfs.query";

/// The examples in the help.
pub const EXAMPLES: &str = "\
B is a path or an index, as --list shows them; the first branch is 0.

Examples:
  unionctl /srv/tree --list
  unionctl /srv/tree --add --mode ro /media/module    below the writable branches
  unionctl /srv/tree --add --before 0 --mode rw /new  changes go to /new from now on
  unionctl /srv/tree --mode 1 ro                      the second branch is never changed again
  unionctl /srv/tree --remove --copyup /media/module  copy the files that are in use, then remove
  unionctl /srv/tree --snapshot /srv/monday           later changes go to /srv/monday
  unionctl /srv/pool --drain /disk3                   empty a disk and remove it
  unionctl /srv/pool --rebalance                      even out the free space of the branches
  unionctl /srv/tree --query /srv/tree/etc/hosts      the branch that the file lives on

Exit status: 0 success, 1 wrong arguments or no permission, 2 system error, 32 the union refused:
the branches are unchanged; for --drain: files remain on the branch.";

/// List and change the branches of a union while it is in use.
#[derive(Debug, Parser)]
#[command(name = "unionctl", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    what: What,
}

/// The arguments of `unionctl`.
#[derive(Debug, Args)]
pub struct What {
    /// Any path in the mounted union, such as its mount point.
    union: PathBuf,
    /// With --add: the directory to add, or a stack in brackets, as in the option dirs=. With
    /// --remove: the branch, if it does not follow directly.
    dir: Option<OsString>,
    /// List the branches, highest precedence first (the default).
    #[arg(long, conflicts_with_all = ["add", "remove", "mode", "query"])]
    list: bool,
    /// Add DIR as a branch. Without --before or --after, a writable branch becomes the first, and a
    /// read-only one is placed below all writable branches.
    #[arg(long, conflicts_with_all = ["remove", "query"])]
    add: bool,
    /// Add it directly before B: with precedence over B.
    #[arg(long, value_name = "B", requires = "add", conflicts_with = "after")]
    before: Option<OsString>,
    /// Add it directly after B.
    #[arg(long, value_name = "B", requires = "add")]
    after: Option<OsString>,
    /// With --add MODE: the mode of the new branch, rw, ro (the default) or nfsro. Alone, B MODE:
    /// switch branch B to this mode.
    #[arg(long, value_names = ["B", "MODE"], num_args = 1..=2, conflicts_with_all = ["remove", "query"])]
    mode: Option<Vec<OsString>>,
    /// Remove branch B from the union; its files remain. Refused if files on it are open that would
    /// vanish, or be replaced by older versions.
    #[arg(long, value_name = "B", num_args = 0..=1, conflicts_with = "query")]
    remove: Option<Option<OsString>>,
    /// With --remove: first copy such files to a read-write branch before B.
    #[arg(long, requires = "remove", conflicts_with = "lazy")]
    copyup: bool,
    /// With --remove: such files remain usable until they are closed, like deleted files.
    #[arg(long, requires = "remove")]
    lazy: bool,
    /// Take a snapshot: add the empty directory DIR as the first branch, for all later changes, and
    /// make the other branches read-only. They never change again.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["add", "mode", "remove", "query", "list"])]
    snapshot: Option<OsString>,
    /// Move all files of branch B to the other rw branches while the union is in use, and remove B.
    /// If it is interrupted or can't move everything, run it again.
    #[arg(long, value_name = "B", conflicts_with_all = ["add", "remove", "mode", "query", "list"])]
    drain: Option<OsString>,
    /// Move files from the fullest rw branch to the emptiest, until all are nearly equally full.
    #[arg(long, conflicts_with_all = ["add", "remove", "mode", "query", "list", "drain"])]
    rebalance: bool,
    /// With --rebalance: how much the used share of two file systems may differ, in percentage
    /// points.
    #[arg(long, value_name = "POINTS", requires = "rebalance", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=50))]
    within: u8,
    /// Show the branch that FILE lives on, and what the other branches have in its place.
    #[arg(long, value_name = "FILE")]
    query: Option<PathBuf>,
    /// Print JSON. After a change: the new list.
    #[arg(long)]
    json: bool,
}

/// Whether `program` is `unionctl`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    tool::is_called(program, "unionctl")
}

/// Returns the command-line definition, for the manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `unionctl` and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    tool::run("unionctl", args, |cli: &Cli| execute(&cli.what))
}

/// Executes the command.
///
/// # Errors
/// Names the union or the branch, the reason and the remedy.
pub fn execute(what: &What) -> Result<(), Failure> {
    if let Some(file) = &what.query {
        return query(what, file);
    }
    if what.drain.is_some() || what.rebalance {
        return move_files(what);
    }
    let edit = edit_of(what)?;
    let list = match &edit {
        None => branches::list(&what.union)?,
        Some(edit) => {
            let in_use = match (what.copyup, what.lazy) {
                (true, _) => WantedInUse::CopyUp,
                (_, true) => WantedInUse::Keep,
                _ => WantedInUse::Refuse,
            };
            let changed = branches::apply(&what.union, core::slice::from_ref(edit), in_use)?;
            if let Some(hint) = branches::hint(&what.union, &changed) {
                let _ = writeln!(std::io::stderr(), "unionctl: {}: {hint}", what.union.display());
            }
            changed.list
        }
    };
    if what.json {
        let json = serde_json::to_string(&list).map_err(|error| Failure::system(error.to_string()))?;
        print(format!("{json}\n"))
    } else if edit.is_none() {
        print(branches::table(&list))
    } else {
        Ok(())
    }
}

/// Returns the change that the arguments describe; `None` to list the branches.
fn edit_of(what: &What) -> Result<Option<Edit>, Failure> {
    let which = |name: &OsString| Which(name.clone().into_vec());
    let extra = |dir: &OsStr| Err(Failure::usage(format!("{}: unexpected argument; see --help", dir.display())));
    let mode = what.mode.as_deref().unwrap_or_default();
    if what.add {
        // `--mode MODE DIR`: DIR was taken for a value of --mode.
        let (mode, dir) = match (mode, &what.dir) {
            ([mode, dir], None) => (Some(mode), Some(dir)),
            ([_, dir], Some(_)) => return extra(dir),
            (mode, dir) => (mode.first(), dir.as_ref()),
        };
        let dir = dir.ok_or_else(|| Failure::usage("--add: needs the directory to add"))?;
        let position = match (&what.before, &what.after) {
            (Some(before), _) => Position::Before(which(before)),
            (_, Some(after)) => Position::After(which(after)),
            _ => Position::Default,
        };
        let mode = mode.map(|mode| mode.to_string_lossy());
        let branch = branches::branch_of(Path::new(dir), mode.as_deref())?;
        return Ok(Some(Edit::Add { branch, position }));
    }
    if let (Some(dir), None) = (&what.snapshot, &what.dir) {
        return Ok(Some(Edit::Snapshot(branches::branch_of(Path::new(dir), None)?)));
    }
    // `--remove --copyup B`: B was taken for the directory to add.
    let removed = match (&what.remove, &what.dir) {
        (Some(None), Some(branch)) | (Some(Some(branch)), None) => Some(branch),
        (Some(None), None) => return Err(Failure::usage("--remove: needs the branch to remove")),
        (_, Some(dir)) => return extra(dir),
        (None, None) => None,
    };
    match (mode, removed) {
        (_, Some(branch)) => Ok(Some(Edit::Remove(which(branch)))),
        ([branch, mode], None) => Ok(Some(Edit::Mode(which(branch), mode.to_string_lossy().into_owned()))),
        ([_], None) => Err(Failure::usage("--mode: needs a branch and a mode, or --add")),
        _ => Ok(None),
    }
}

fn move_files(what: &What) -> Result<(), Failure> {
    let moved = match &what.drain {
        Some(branch) => moves::drain(&what.union, &Which(branch.clone().into_vec()))?,
        None => moves::rebalance(&what.union, f64::from(what.within))?,
    };
    match what.json {
        true => {
            let json = serde_json::to_string(&moved).map_err(|error| Failure::system(error.to_string()))?;
            print(format!("{json}\n"))
        }
        false => print(moves::describe(&moved)),
    }
}

/// Fails if the file is not in the union.
///
/// # Errors
/// Names the file and the reason.
pub(crate) fn check_within(union: &Path, file: &Path) -> Result<(), Failure> {
    let device = |path: &Path| {
        let metadata = path.metadata();
        metadata.map(|metadata| metadata.dev()).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    };
    if device(union)? == device(file)? {
        return Ok(());
    }
    Err(Failure::usage(format!("{}: not in the union {}", file.display(), union.display())))
}

fn query(what: &What, file: &Path) -> Result<(), Failure> {
    check_within(&what.union, file)?;
    let reply = channel::text(file, QUERY)?;
    if what.json {
        return print(format!("{reply}\n"));
    }
    let wrong = || channel::failure(file, QUERY, Error::Garbled);
    print(describe(file, &reply).ok_or_else(wrong)?)
}

/// Formats the reply to [`QUERY`].
fn describe(file: &Path, reply: &str) -> Option<String> {
    let reply: Value = serde_json::from_str(reply).ok()?;
    let mut out = format!("{}: {}\n", file.display(), reply.get("kind")?.as_str()?);
    let rows: Vec<&Value> = reply.get("branches")?.as_array()?.iter().collect();
    let field = |row: &Value, name: &str| row.get(name).map(text).unwrap_or_default();
    let width = |name| rows.iter().map(|row| field(row, name).len()).max().unwrap_or(0);
    let (modes, states) = (width("mode"), width("state"));
    for row in &rows {
        let index = row.get("index").and_then(Value::as_u64).unwrap_or_default();
        let [mode, state, branch, at] = ["mode", "state", "branch", "at"].map(|name| field(row, name));
        writeln!(out, "{index:>3}  {mode:modes$}  {state:states$}  {branch}{at}").ok()?;
    }
    // Names chosen by other users must not control the terminal.
    Some(out.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect())
}

/// Returns a path of the reply. One that is not UTF-8 is an array of bytes.
fn text(value: &Value) -> String {
    let byte = |byte: &Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
    match value {
        Value::String(text) => text.replace('\n', "?"),
        Value::Array(bytes) => String::from_utf8_lossy(&bytes.iter().filter_map(byte).collect::<Vec<_>>()).into_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(words: &[&str]) -> Result<Option<Edit>, Failure> {
        let words = ["unionctl", "/u"].iter().chain(words).map(OsString::from);
        edit_of(&Cli::try_parse_from(words).map_err(|error| Failure::usage(error.to_string()))?.what)
    }

    fn add(branch: &str, position: Position) -> Edit {
        Edit::Add { branch: stack::Text::read(branch.as_bytes()).unwrap(), position }
    }

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/usr/bin/unionctl") && is_called(b"unionctl") && !is_called(b"strata"));
    }

    #[test]
    fn arguments_become_changes() {
        let which = |name: &str| Which(name.as_bytes().to_vec());
        for (words, want) in [
            (&["--add", "/d"][..], add("/d", Position::Default)),
            (&["--add", "--mode", "rw", "/d"], add("/d=rw", Position::Default)),
            (&["--add", "--mode=ro", "--before", "0", "/d"], add("/d=ro", Position::Before(which("0")))),
            (&["--add", "/d", "--after", "/b", "--mode", "ro"], add("/d=ro", Position::After(which("/b")))),
            (&["--add", "/a:b=c"], add(r"/a\:b\=c", Position::Default)),
            (&["--add", "[zstd / /b]", "--mode", "rw"], add("[zstd / /b]=rw", Position::Default)),
            (&["--remove", "/d", "--copyup"], Edit::Remove(which("/d"))),
            (&["--remove", "--copyup", "/d"], Edit::Remove(which("/d"))),
            (&["--lazy", "--remove", "/d"], Edit::Remove(which("/d"))),
            (&["--mode", "1", "ro"], Edit::Mode(which("1"), "ro".to_owned())),
        ] {
            assert_eq!(edit(words), Ok(Some(want)), "{words:?}");
        }
        assert_eq!((edit(&[]), edit(&["--list"])), (Ok(None), Ok(None)));
    }

    #[test]
    fn contradictory_arguments_are_refused() {
        for words in [
            &["--add"][..],
            &["/d"],
            &["--mode", "ro"],
            &["--remove", "/d", "/e"],
            &["--remove", "--copyup"],
            &["--add", "/d", "--remove", "/e"],
            &["--before", "0", "/d"],
            &["--copyup"],
            &["--remove", "/d", "--copyup", "--lazy"],
            &["--add", "--mode", "rw", "/d", "/e"],
            &["--list", "--remove", "/d"],
        ] {
            let failure = edit(words).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{words:?}");
        }
    }
}
