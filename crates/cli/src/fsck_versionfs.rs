//! `fsck.versionfs`: checks the versions in a directory that is not mounted, and repairs what can
//! be repaired. The library `versionfs::fsck` finds and repairs.

use crate::exit::{Failure, FsckExit};
use crate::host_dir::reason;
use crate::{lower, tool};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};
use hostfs::{HostFs, HostOptions};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use versionfs::fsck::{Finding, Inspector, check};
use vnode::{Cx, Layer, Result};

/// Time limit for a server that is going away to release the directory.
const WAIT: Duration = Duration::from_secs(5);

const HELP: &str = "\
DIR is the lower directory, which must not be mounted. Every index is rebuilt from the names and headers of the version \
files, and every version is read.

Without -n, -p or -y, the command asks before each repair if standard input is a terminal. No repair removes a version \
that can be read.

Exit status, the sum of: 0 no errors, 1 errors were corrected, 4 errors are left, 8 the check failed or the directory is in \
use, 16 wrong arguments.";

/// Check the versions in a directory, and repair them.
#[derive(Debug, Parser)]
#[command(
    name = "fsck.versionfs",
    version,
    disable_version_flag = true,
    arg_required_else_help = true,
    after_help = HELP
)]
struct Cli {
    /// The lower directory.
    dir: PathBuf,
    /// Change nothing; answer every question with no.
    #[arg(short = 'n', long, conflicts_with_all = ["yes", "preen"])]
    no: bool,
    /// Repair everything that can be repaired, without questions.
    #[arg(short = 'y', long, conflicts_with = "preen")]
    yes: bool,
    /// The same: no repair changes what users see.
    #[arg(short = 'p', long, visible_short_alias = 'a')]
    preen: bool,
    /// Accepted for fsck(8): the check is always complete.
    #[arg(short, long)]
    force: bool,
    /// Accepted for fsck(8): the command always asks.
    #[arg(short = 'r', hide = true)]
    ask: bool,
    /// Print the version.
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Whether `program` is `fsck.versionfs`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    ["fsck.versionfs", "fsck.fuse.versionfs"].iter().any(|name| tool::is_called(program, name))
}

/// Returns the command-line definition, for the manual page.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `fsck.versionfs` and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> FsckExit {
    match Cli::try_parse_from(args) {
        Ok(cli) => execute(&cli).unwrap_or_else(|failure| {
            let _ = writeln!(std::io::stderr(), "fsck.versionfs: {failure}");
            FsckExit::OPERATION
        }),
        Err(error) => {
            let _ = error.print();
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => FsckExit::CLEAN,
                _ => FsckExit::USAGE,
            }
        }
    }
}

/// How questions are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    No,
    Yes,
    Ask,
}

#[derive(Debug)]
struct Report {
    answers: Answers,
    json: bool,
    sets: u64,
    versions: u64,
    repaired: u64,
    left: u64,
    findings: Vec<Value>,
}

impl Inspector for Report {
    fn consents(&mut self, finding: &Finding) -> bool {
        match self.answers {
            Answers::No => false,
            Answers::Yes => true,
            Answers::Ask => {
                let _ = write!(std::io::stderr(), "{finding}. Repair? [y/N] ");
                let mut answer = String::new();
                let read = std::io::stdin().lock().read_line(&mut answer);
                read.is_ok() && answer.trim_start().starts_with(['y', 'Y'])
            }
        }
    }

    fn ended(&mut self, finding: &Finding, repaired: Option<Result<()>>) {
        let outcome = match repaired {
            Some(Ok(())) => "repaired".to_owned(),
            Some(Err(errno)) => format!("not repaired: {}", reason(errno)),
            None => "left".to_owned(),
        };
        let is_repaired = repaired == Some(Ok(()));
        self.repaired += u64::from(is_repaired);
        self.left += u64::from(!is_repaired);
        if self.json {
            self.findings.push(json!({
                "directory": String::from_utf8_lossy(&finding.dir),
                "file": String::from_utf8_lossy(&finding.name),
                "problem": finding.problem.word(),
                "text": finding.text,
                "outcome": outcome,
            }));
        } else {
            // The exit status reports the findings even if nobody reads them.
            let _ = writeln!(std::io::stdout(), "{finding}: {outcome}");
        }
    }

    fn checked(&mut self, versions: u64) -> bool {
        self.sets += 1;
        self.versions += versions;
        true
    }
}

fn execute(cli: &Cli) -> core::result::Result<FsckExit, Failure> {
    let answers = match (cli.no, cli.yes || cli.preen) {
        (true, _) => Answers::No,
        (_, true) => Answers::Yes,
        _ if std::io::stdin().is_terminal() && !cli.json => Answers::Ask,
        _ => Answers::No,
    };
    if answers == Answers::No && !cli.no {
        let _ = writeln!(
            std::io::stderr(),
            "fsck.versionfs: standard input is no terminal: nothing is changed, as with -n; use -p or -y to repair"
        );
    }
    let shown = cli.dir.display();
    let real = std::fs::canonicalize(&cli.dir).map_err(|error| Failure::system(format!("{shown}: {error}")))?;
    if let Some(point) = lower::mount_over(&real) {
        let point = point.display();
        return Err(Failure::system(format!("{shown}: in use by the mount at {point}; unmount it first")));
    }
    let options = HostOptions { read_only: answers == Answers::No, ..HostOptions::default() };
    let layer = HostFs::open(&real, options).map_err(|error| Failure::system(error.to_string()))?;
    if layer.claim(WAIT) == Ok(false) {
        let why = format!("{shown}: in use by a mount outside of this mount namespace; unmount it first");
        return Err(Failure::system(why));
    }
    let (json, begun) = (cli.json, Report::new(answers, cli.json));
    let mut report = begun;
    let layer: Arc<dyn Layer> = layer;
    let cx = Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    check(&cx, &layer, &mut report).map_err(|errno| Failure::system(format!("{shown}: {}", reason(errno))))?;
    let exit = report.exit();
    let text = if json { report.json(exit) } else { report.summary(&shown.to_string()) };
    tool::print(text)?;
    Ok(exit)
}

impl Report {
    fn new(answers: Answers, json: bool) -> Self {
        Self { answers, json, sets: 0, versions: 0, repaired: 0, left: 0, findings: Vec::new() }
    }

    fn exit(&self) -> FsckExit {
        let mut exit = FsckExit::CLEAN;
        if self.repaired > 0 {
            exit = exit.and(FsckExit::CORRECTED);
        }
        if self.left > 0 {
            exit = exit.and(FsckExit::UNCORRECTED);
        }
        exit
    }

    fn summary(&self, dir: &str) -> String {
        let Self { sets, versions, repaired, left, .. } = self;
        let what =
            if repaired + left == 0 { "clean".to_owned() } else { format!("{repaired} repaired, {left} errors left") };
        format!("{dir}: {sets} files with {versions} versions, {what}\n")
    }

    fn json(&self, exit: FsckExit) -> String {
        let report = json!({
            "sets": self.sets, "versions": self.versions, "repaired": self.repaired, "left": self.left,
            "findings": self.findings, "exit": exit.code(),
        });
        format!("{report}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/sbin/fsck.versionfs") && !is_called(b"fsck.unionfs"));
        let words: Vec<OsString> = ["fsck.versionfs", "-n", "-y", "/x"].iter().map(OsString::from).collect();
        assert_eq!(run(&words), FsckExit::USAGE);
    }

    #[test]
    fn a_directory_is_checked() {
        let dir = testkit::TempDir::new();
        std::fs::create_dir_all(dir.join(".;versions")).unwrap();
        std::fs::write(dir.join(".;versions/foo;f1"), b"old").unwrap();
        let run = |flag: &str| run(&["fsck.versionfs".into(), flag.into(), dir.as_os_str().to_owned()]);
        assert_eq!(run("-n"), FsckExit::UNCORRECTED);
        assert_eq!(run("-y"), FsckExit::CORRECTED);
        assert_eq!(run("-n"), FsckExit::CLEAN);
        assert!(dir.join(".;versions/foo;i").exists());
    }
}
