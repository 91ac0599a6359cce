//! `cryptctl`, or `strata crypt`: manages encrypted volumes and their keys.
//!
//! `live` gives keys to sessions, over the control channel of a mount.

mod live;

use crate::exit::{Exit, Failure};
use crate::tool;
use clap::{CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;

/// Manage encrypted volumes and the keys of sessions.
#[derive(Debug, Parser)]
#[command(name = "cryptctl", version, arg_required_else_help = true, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Appended to `--help`.
pub const HELP: &str = "\
Examples:
  mount -t cryptfs /srv/secret /mnt      mount a volume; nobody has a key yet
  cryptctl add /mnt                      give this session the key; asks for the passphrase
  cryptctl add --idle 900 /mnt           withdraw it after 15 minutes without use
  cryptctl list /mnt                     show the sessions of this user that hold a key
  cryptctl del /mnt                      withdraw the key of this session
  cryptctl reset /mnt                    withdraw the keys of all sessions of this user";

/// The subcommands of `cryptctl`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Give a key to this session: the processes of this terminal or login, run by this user.
    Add(live::Add),
    /// Withdraw the key of this session.
    Del(live::Del),
    /// Withdraw the keys of all sessions of this user.
    Reset(live::Reset),
    /// List the sessions of this user that hold a key; as root, those of all users.
    List(live::List),
}

/// Whether `program` is `cryptctl`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    tool::is_called(program, "cryptctl")
}

/// Returns the command-line definition, for the manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `cryptctl` and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    tool::run("cryptctl", args, |cli: &Cli| execute(&cli.command))
}

/// Executes a subcommand.
///
/// # Errors
/// Names the directory and the reason.
pub fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => args.run(),
        Command::Del(args) => args.run(),
        Command::Reset(args) => args.run(),
        Command::List(args) => args.run(),
    }
}
