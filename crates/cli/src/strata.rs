//! The `strata` command.

use crate::exit::{Exit, Failure};
use crate::man;
use crate::options::Type;
use crate::stats::{self, Question};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Stackable file systems: look at what is mounted.
#[derive(Debug, Parser)]
#[command(name = "strata", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  mount -t unionfs -o dirs=/changes=rw:/image=ro none /mnt
  strata stats /mnt                     which requests the kernel sent to its server
  strata info --json /mnt               which server it is, and what it holds
  findmnt -t fuse.unionfs,fuse.wrapfs   everything of Strata that is mounted
  umount /mnt

Exit status: 0 success, 1 wrong arguments, 2 a failing system, 32 not a mount of Strata.
See mount.unionfs(8) and mount.wrapfs(8) for the options of mounts.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show how many requests of each kind the kernel sent to a mount's server.
    Stats {
        /// Where it is mounted.
        mount: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a mount's server: its process, transport, open files and inodes.
    Info {
        /// Where it is mounted.
        mount: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write all manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// The directory.
        dir: PathBuf,
    },
}

/// Runs the command.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
                _ => Exit::Usage,
            };
        }
    };
    let done = match &cli.command {
        Command::Stats { mount, json } => answer(mount, Question::Requests, *json),
        Command::Info { mount, json } => answer(mount, Question::Info, *json),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "strata", &mut script);
            print(&script)
        }
        Command::Man { dir } => write_pages(dir),
    };
    match done {
        Ok(()) => Exit::Success,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "strata: {failure}");
            failure.exit
        }
    }
}

fn answer(mount: &Path, question: Question, json: bool) -> Result<(), Failure> {
    let text = stats::ask(mount, question)?;
    let text = if json { format!("{text}\n") } else { stats::table(&text)? };
    print(text.as_bytes())
}

fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::system(format!("can't write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn write_pages(dir: &Path) -> Result<(), Failure> {
    let refuse = |error| Failure::system(format!("{}: {error}", dir.display()));
    clap_mangen::generate_to(Cli::command(), dir).map_err(refuse)?;
    for kind in Type::ALL {
        std::fs::write(dir.join(format!("mount.{}.8", kind.name())), man::page(kind)).map_err(refuse)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }
}
