//! `usenetctl`, or `strata usenet`: converts directories to the usenetfs layout, and back to flat
//! directories.
//!
//! A conversion consists of short steps, which the mount's server performs. With `--offline`, the
//! layer in this process performs them. An interrupted conversion resumes when the command is run
//! again; meanwhile the directory is usable.

use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use crate::progress::Progress;
use crate::{channel, lower, tool};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use core::time::Duration;
use fuse::control::Error;
use hostfs::{HostFs, HostOptions};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use usenetfs::control::{CONVERT, Goal, STATE};
use usenetfs::{SchemeChoice, UsenetFs};
use vnode::{Cx, Layer as _, Vnode};

/// Maximum number of entries that one step moves. The number is halved after a step that took
/// longer than [`LONG`].
const STEP: usize = 1000;
const STEP_MIN: usize = 10;
const LONG: Duration = Duration::from_millis(300);
/// The scheme that moves only numeric names.
const DIGITS: &str = "digits";

/// Convert directories to usenetfs, or back to flat directories.
#[derive(Debug, Parser)]
#[command(name = "usenetctl", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The subcommands of `usenetctl`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Distribute a directory's entries over hidden subdirectories.
    Manage {
        /// The directory and the mode.
        #[command(flatten)]
        args: SharedArgs,
        /// The rule that assigns entries to subdirectories.
        #[arg(long, value_enum, default_value = "digits")]
        scheme: SchemeName,
        /// With --scheme hash: split subdirectories with more than N entries.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
        limit: Option<u32>,
    },
    /// Move all entries back into the directory itself.
    Unmanage {
        /// The directory and the mode.
        #[command(flatten)]
        args: SharedArgs,
    },
    /// Show a directory's layout and the progress of a conversion.
    Status {
        /// The directory and the mode.
        #[command(flatten)]
        args: SharedArgs,
    },
}

/// The arguments that all subcommands share.
#[derive(Debug, Args)]
pub struct SharedArgs {
    /// The directory, in a mount with a usenetfs layer.
    dir: PathBuf,
    /// DIR is a lower directory that is not mounted.
    #[arg(long)]
    offline: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Name of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemeName {
    /// Numeric names, by their second to fourth lowest digits.
    Digits,
    /// All names, by a keyed hash.
    Hash,
}

/// The process that performs the conversion.
enum Target {
    /// The server of the mount.
    Mounted(PathBuf),
    /// This process.
    Offline(Arc<dyn Vnode>),
}

/// Whether `program` is `usenetctl`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    tool::is_called(program, "usenetctl")
}

/// Returns the command-line definition, for the manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `usenetctl` and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    tool::run("usenetctl", args, |cli: &Cli| execute(&cli.command))
}

/// Executes a subcommand.
///
/// # Errors
/// Names the directory and the reason.
pub fn execute(command: &Command) -> Result<(), Failure> {
    let (args, goal) = match command {
        Command::Status { args } => (args, None),
        Command::Unmanage { args } => (args, Some(Goal::Unmanage)),
        Command::Manage { limit: Some(_), scheme: SchemeName::Digits, .. } => {
            return Err(Failure::usage("--limit: needs --scheme hash"));
        }
        Command::Manage { args, scheme, limit } => {
            (args, Some(Goal::Manage(SchemeChoice { hash: *scheme == SchemeName::Hash, limit: *limit })))
        }
    };
    let target = if args.offline { offline(&args.dir)? } else { Target::Mounted(args.dir.clone()) };
    if let Some(goal) = goal {
        convert(&target, &args.dir, goal)?;
    }
    show(args, &target)
}

/// Requests steps until the conversion is complete. Callers that use the directory wait for at most
/// one step, so steps are short.
fn convert(target: &Target, dir: &Path, goal: Goal) -> Result<(), Failure> {
    let only_numbers = match goal {
        Goal::Manage(wanted) => !wanted.hash,
        Goal::Unmanage => State::read(target, dir)?.scheme.as_deref() == Some(DIGITS),
    };
    let mut progress = Progress::on_terminal("entries moved", || target.entries(only_numbers).unwrap_or_default());
    let mut step = STEP;
    loop {
        let began = Instant::now();
        let state = State::of(&target.send(dir, CONVERT.name, goal.text(step).as_bytes())?, dir)?;
        step = if began.elapsed() > LONG { (step / 2).max(STEP_MIN) } else { (step * 2).min(STEP) };
        if state.is_done() {
            return Ok(());
        }
        if let Some(progress) = &mut progress {
            progress.show(state.moved);
        }
    }
}

/// State of a directory.
struct State {
    phase: String,
    scheme: Option<String>,
    moved: u64,
}

impl State {
    fn read(target: &Target, dir: &Path) -> Result<Self, Failure> {
        Self::of(&target.send(dir, STATE.name, b"")?, dir)
    }

    fn of(reply: &[u8], dir: &Path) -> Result<Self, Failure> {
        let state: Value = serde_json::from_slice(reply).unwrap_or_default();
        let text = |name: &str| state.get(name).and_then(Value::as_str).map(str::to_owned);
        let (phase, moved) = (text("phase"), state.get("moved").and_then(Value::as_u64));
        let wrong = || Failure::system(format!("{}: the server's reply can't be parsed", dir.display()));
        let (phase, moved) = phase.zip(moved).ok_or_else(wrong)?;
        Ok(Self { phase, scheme: text("scheme"), moved })
    }

    fn is_done(&self) -> bool {
        matches!(self.phase.as_str(), "flat" | "stable")
    }
}

fn show(args: &SharedArgs, target: &Target) -> Result<(), Failure> {
    let state = State::read(target, &args.dir)?;
    let entries = target.entries(false).map_err(|errno| refusal(&args.dir, STATE.name, Error::Refused(errno)))?;
    // The count matters only while a conversion is in progress.
    let moved = if state.is_done() { 0 } else { state.moved };
    let line = if args.json {
        let (dir, scheme) = (args.dir.to_string_lossy(), &state.scheme);
        json!({ "dir": dir, "state": state.phase, "scheme": scheme, "entries": entries, "moved": moved }).to_string()
    } else {
        let scheme = state.scheme.as_deref().unwrap_or_default();
        let kind = match state.phase.as_str() {
            "flat" => format!("flat, {entries} entries"),
            "stable" => format!("managed by {scheme}, {entries} entries"),
            phase => format!("{phase}, by {scheme}: partly converted, {moved} of {entries} entries moved"),
        };
        format!("{}: {kind}", args.dir.display())
    };
    writeln!(std::io::stdout(), "{line}")
        .map_err(|error| Failure::system(format!("can't write to standard output: {error}")))
}

impl Target {
    /// Sends one of the layer's commands.
    fn send(&self, dir: &Path, command: &str, input: &[u8]) -> Result<Vec<u8>, Failure> {
        let reply = match self {
            Self::Mounted(path) => channel::call(path, command, input),
            Self::Offline(root) => root.control(&own(), command, input).map_err(Error::Refused),
        };
        reply.map_err(|error| refusal(dir, command, error))
    }

    /// Returns the number of visible entries; with `only_numbers`, of those with numeric names.
    fn entries(&self, only_numbers: bool) -> Result<u64, Errno> {
        let counts = |name: &[u8]| !only_numbers || name.iter().all(u8::is_ascii_digit);
        let mut count = 0;
        match self {
            Self::Mounted(path) => {
                for entry in std::fs::read_dir(path).map_err(|error| errno_of(&error))? {
                    let name = entry.map_err(|error| errno_of(&error))?.file_name();
                    count += u64::from(counts(name.as_encoded_bytes()));
                }
            }
            Self::Offline(root) => root.readdir(&own(), 0, &mut |entry| {
                count += u64::from(counts(entry.name.as_bytes()));
                true
            })?,
        }
        Ok(count)
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn own() -> Cx<'static> {
    Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Opens the layer over the directory in this process. Fails if a mount in this namespace uses the
/// directory.
fn offline(dir: &Path) -> Result<Target, Failure> {
    let real = dir.canonicalize().map_err(|error| Failure::mount(format!("{}: {error}", dir.display())))?;
    if let Some(point) = lower::mount_over(&real) {
        let (dir, point) = (dir.display(), point.display());
        return Err(Failure::usage(format!(
            "{dir}: in use by the mount at {point}; convert it there, or unmount it first"
        )));
    }
    let host = HostFs::open(&real, HostOptions::default()).map_err(|error| Failure::mount(error.to_string()))?;
    Ok(Target::Offline(UsenetFs::new(host, SchemeChoice::default()).root()))
}

fn refusal(dir: &Path, command: &str, error: Error) -> Failure {
    let shown = dir.display();
    match error {
        Error::Foreign | Error::Refused(Errno::NOTTY | Errno::OPNOTSUPP) => Failure::mount(format!(
            "{shown}: not a directory in a mount with usenetfs; use --offline for a lower directory that is not mounted"
        )),
        Error::Refused(Errno::PERM | Errno::ACCESS) => {
            Failure::usage(format!("{shown}: only root and the directory's owner may convert it"))
        }
        Error::Refused(Errno::EXIST) => Failure::mount(format!(
            "{shown}: managed by the other scheme, or two entries have the same name; see usenetctl status and the server's log"
        )),
        Error::Refused(errno) => Failure::mount(format!("{shown}: {}", reason(errno))),
        error => channel::failure(dir, command, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/usr/bin/usenetctl") && is_called(b"usenetctl") && !is_called(b"strata"));
        assert!(Cli::try_parse_from(["usenetctl", "manage", "--scheme", "hash", "--limit", "1", "/d"]).is_err());
    }

    #[test]
    fn an_offline_directory_is_converted_and_back() {
        let dir = testkit::TempDir::new();
        for n in 0..3000 {
            std::fs::write(dir.join(n.to_string()), n.to_string()).unwrap();
        }
        let execute = |words: &[&str]| {
            let words = ["usenetctl"].iter().chain(words).map(OsString::from).chain([dir.as_os_str().to_owned()]);
            execute(&Cli::try_parse_from(words).unwrap().command)
        };
        assert_eq!(execute(&["manage"]).unwrap_err().exit, Exit::Mount);
        execute(&["manage", "--offline"]).unwrap();
        assert_eq!(std::fs::read(dir.join("234/2345")).unwrap(), b"2345");
        execute(&["status", "--offline", "--json"]).unwrap();
        assert!(execute(&["manage", "--offline", "--scheme", "hash"]).is_err());
        execute(&["unmanage", "--offline"]).unwrap();
        assert!((0..3000).all(|n| std::fs::read_to_string(dir.join(n.to_string())).unwrap() == n.to_string()));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 3000);
    }
}
