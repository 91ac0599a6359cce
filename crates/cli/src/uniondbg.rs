//! `uniondbg`, or `strata union-debug`: looks into the server of a union. Log levels, counters,
//! latency, what the branches have at a path, and revalidation.

use crate::channel::{self, DEBUG, STATS};
use crate::debug;
use crate::exit::Failure;
use crate::histogram::{self, Operation};
use crate::tool::{self, print};
use crate::{exit::Exit, stats};
use clap::{Args, CommandFactory as _, Parser};
use fuse::control::Error;
use rustix::io::Errno;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

const STATE: &str = "unionfs.state";
const REVALIDATE: &str = "unionfs.revalidate";
const LATENCY: &str = "server.latency";
const START: &str = "server.start-latency";
const STOP: &str = "server.stop-latency";
/// The shortest interval of `--watch`.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// The part of the help after the options.
pub const HELP: &str = "\
A COMPONENT is a crate of Strata (server, fuse, hostfs, unionfs and others) or a module of one (unionfs::copyup); a single \
word that is no crate is a module of unionfs. LEVEL is off, error, warn, info, debug or trace, or default: as all others.

Only root and the mounting user may change anything and see --state. It works in every mount namespace that contains the union.

Examples:
  uniondbg /srv/tree --log copyup=debug     log copy-ups in detail
  uniondbg /srv/tree --log copyup=default   end that
  uniondbg /srv/tree --start                measure how long each operation takes
  uniondbg /srv/tree --histograms           show the times that were measured so far
  uniondbg /srv/tree --state /srv/tree/etc  what each branch has there
  uniondbg /srv/tree --revalidate           drop what is cached, after a change of a branch

Exit status: 0 success, 1 wrong arguments or no permission, 2 system error, 32 not a union, or it refused.";

/// Look into the server of a union: log levels, counters, latency, branches.
#[derive(Debug, Parser)]
#[command(name = "uniondbg", version, arg_required_else_help = true, after_help = HELP)]
struct Cli {
    #[command(flatten)]
    what: What,
}

/// The arguments of `uniondbg`.
#[derive(Debug, Args)]
pub struct What {
    /// Any path in the mounted union, such as its mount point.
    union: PathBuf,
    /// Set a log level: of a component, or of all that have none of their own. Without any option,
    /// the levels are printed.
    #[arg(long, value_name = "[COMPONENT=]LEVEL")]
    log: Vec<String>,
    /// Look up again whatever is in use, and make the kernel drop what it has cached.
    #[arg(long)]
    revalidate: bool,
    /// Print the number of requests of each kind since mounting.
    #[arg(long, conflicts_with_all = ["histograms", "state"])]
    counters: bool,
    /// Start measuring how long each operation takes, from zero. This costs up to 250 ns per
    /// operation.
    #[arg(long, conflicts_with = "stop")]
    start: bool,
    /// Stop measuring. The results remain.
    #[arg(long)]
    stop: bool,
    /// Print count, mean, percentiles and a histogram of the times of each operation.
    #[arg(long, conflicts_with = "state")]
    histograms: bool,
    /// With --counters or --histograms: print again every SECONDS (default 1).
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    watch: Option<f64>,
    /// Print what each branch has at the place of FILE: the object with its numbers, marks and
    /// redirects.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Whether `program` is `uniondbg`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    tool::is_called(program, "uniondbg")
}

/// Returns the command-line definition, for the manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `uniondbg` and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    tool::run("uniondbg", args, |cli: &Cli| execute(&cli.what))
}

/// Executes the command.
///
/// # Errors
/// Names the union, the reason and the remedy.
pub fn execute(what: &What) -> Result<(), Failure> {
    let changes = !what.log.is_empty() || what.revalidate || what.start || what.stop;
    what.log.iter().try_for_each(|wanted| set_level(&what.union, wanted))?;
    for (wanted, command) in [(what.revalidate, REVALIDATE), (what.start, START), (what.stop, STOP)] {
        if wanted {
            send(&what.union, command, b"")?;
        }
    }
    if let Some(file) = &what.state {
        crate::unionctl::check_within(&what.union, file)?;
        let reply = text_of(file, STATE)?;
        return print(if what.json { format!("{reply}\n") } else { printable(&stats::table(&reply)?) });
    }
    if what.counters || what.histograms {
        return show(what);
    }
    if changes { Ok(()) } else { print(levels(what)?) }
}

fn send(path: &Path, command: &str, input: &[u8]) -> Result<Vec<u8>, Failure> {
    match channel::call(path, command, input) {
        Err(Error::Refused(Errno::PERM)) => {
            Err(Failure::usage(format!("{}: only root and the mounting user may do this", path.display())))
        }
        Err(Error::Refused(Errno::NOTTY)) => {
            Err(Failure::mount(format!("{}: not a union, or an earlier version of the server", path.display())))
        }
        reply => reply.map_err(|error| channel::failure(path, command, error)),
    }
}

fn text_of(path: &Path, command: &str) -> Result<String, Failure> {
    String::from_utf8(send(path, command, b"")?).map_err(|_| channel::failure(path, command, Error::Garbled))
}

/// Names chosen by other users must not control the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

fn set_level(union: &Path, wanted: &str) -> Result<(), Failure> {
    let wrong = |why: &str| Failure::usage(format!("--log {wanted}: {why}"));
    let (component, level) = match wanted.split_once('=') {
        Some((component, level)) => (Some(component), level),
        None => (None, wanted),
    };
    if debug::level_number(level).is_none() && !(component.is_some() && level == "default") {
        return Err(wrong("no such level; use off, error, warn, info, debug or trace, or default for a component"));
    }
    let input = match component {
        None => level.to_owned(),
        Some(component) => {
            let full = debug::component(component).ok_or_else(|| {
                wrong(&format!(
                    "no such component; use one of {}, or a module such as unionfs::copyup",
                    debug::COMPONENTS.join(", ")
                ))
            })?;
            format!("{full}={level}")
        }
    };
    send(union, DEBUG, input.as_bytes()).map(drop)
}

fn levels(what: &What) -> Result<String, Failure> {
    let reply = text_of(&what.union, DEBUG)?;
    if what.json {
        return Ok(format!("{reply}\n"));
    }
    let reply: Value =
        serde_json::from_str(&reply).map_err(|_| channel::failure(&what.union, DEBUG, Error::Garbled))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut out = format!("log level: {}\n", reply.get("level").map(text).unwrap_or_default());
    for (component, level) in reply.get("components").and_then(Value::as_object).into_iter().flatten() {
        out.push_str(&format!("  {component}: {}\n", text(level)));
    }
    Ok(out)
}

/// Prints counters or histograms, once or repeatedly.
fn show(what: &What) -> Result<(), Failure> {
    let pause = what.watch.map(|seconds| {
        let pause = Duration::try_from_secs_f64(seconds).ok().filter(|pause| *pause >= MIN_PAUSE);
        pause.ok_or_else(|| Failure::usage(format!("--watch={seconds}: must be at least 0.1 seconds")))
    });
    let pause = pause.transpose()?;
    loop {
        let drawn = if what.counters { counters(what)? } else { histograms(what)? };
        let Some(pause) = pause else { return print(drawn) };
        if !tool::show_again(&drawn, what.json)? {
            return Ok(());
        }
        std::thread::sleep(pause);
    }
}

fn counters(what: &What) -> Result<String, Failure> {
    let reply = text_of(&what.union, STATS)?;
    if what.json { Ok(format!("{reply}\n")) } else { stats::table(&reply) }
}

fn histograms(what: &What) -> Result<String, Failure> {
    let reply = text_of(&what.union, LATENCY)?;
    if what.json {
        return Ok(format!("{reply}\n"));
    }
    let wrong = || channel::failure(&what.union, LATENCY, Error::Garbled);
    let (measuring, operations) = Operation::read(&reply).ok_or_else(wrong)?;
    if operations.is_empty() && !measuring {
        return Err(Failure::usage(format!(
            "{}: nothing was measured: start with uniondbg {0} --start",
            what.union.display()
        )));
    }
    Ok(histogram::draw(measuring, &operations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/usr/bin/uniondbg") && !is_called(b"unionctl"));
        for wrong in [&["--start", "--stop"][..], &["--counters", "--histograms"], &["--state", "/x", "--counters"]] {
            assert!(Cli::try_parse_from(["uniondbg", "/u"].iter().chain(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn wrong_levels_are_refused_before_they_are_sent() {
        for wrong in ["copyup=loud", "default", "a::b=debug", "=debug", "copyup=", "loud"] {
            let failure = set_level(Path::new("/no/such/union"), wrong).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.reason.starts_with("--log "), "{failure}");
        }
    }
}
