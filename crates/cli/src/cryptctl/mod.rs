//! `cryptctl`, or `strata crypt`: encrypted volumes. The crate `cryptformat` has the format.
//!
//! | concept | file |
//! |---|---|
//! | passphrases: from the terminal, a file, a program, a key file | `passphrase` |
//! | reading and writing a volume's configuration | `volume` |
//! | the options of a key derivation | `kdf` |
//! | a printed master key: is it the one, and of what | `recover`, `samples` |
//! | keys of sessions, over the control channel of a mount | `live` |
//! | subcommands on volumes | `init`, `passwd`, `slot`, `info`, `fsck`, `journal` |

mod fsck;
mod info;
mod init;
mod journal;
mod kdf;
mod live;
mod passphrase;
mod passwd;
mod recover;
mod samples;
mod slot;
mod volume;

pub use passphrase::PassphraseArgs;

use crate::exit::{Failure, FsckExit};
use crate::{lower, tool};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Manage encrypted volumes and the keys of sessions.
#[derive(Debug, Parser)]
#[command(name = "cryptctl", version, arg_required_else_help = true, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The end of the help.
pub const HELP: &str = "\
DIR is a volume: the directory below a mount, with a file gocryptfs.conf. gocryptfs opens the same volumes, except those with \
key slots. MOUNT is anything in a mount of cryptfs.

Examples:
  cryptctl init /srv/secret              make a volume of an empty directory
  cryptctl info /srv/secret              how it is encrypted, and with which passphrases
  cryptctl passwd /srv/secret            change the passphrase
  cryptctl fsck /srv/secret              check every name and block while it is not mounted
  mount -t cryptfs /srv/secret /mnt      mount a volume; nobody has a key yet
  cryptctl add /mnt                      give this session the key; asks for the passphrase
  cryptctl add --idle 900 /mnt           withdraw it after 15 minutes without use
  cryptctl list /mnt                     show the sessions of this user that hold a key
  cryptctl del /mnt                      withdraw the key of this session
  cryptctl reset /mnt                    withdraw the keys of all sessions of this user

Exit status: 0 success; 1 wrong arguments, or a wrong or too short passphrase; 2 a system error; 32 no volume, or a damaged \
one. cryptctl fsck: as fsck(8).";

const INIT_HELP: &str = "\
The master key is printed once. Keep it: it opens the volume if you forget the passphrase, or if gocryptfs.conf is lost. The \
features can't be changed later.

Examples:
  cryptctl init /srv/secret
  cryptctl init --passfile /root/secret.pass --quiet /srv/secret
  cryptctl init --xchacha /srv/secret       for a processor without AES instructions
  cryptctl init --argon2id /srv/secret      several passphrases; gocryptfs does not open it
  cryptctl init --key-file /media/usb/key /srv/secret

Exit status: 0 success; 1 wrong arguments, or a too short passphrase; 2 a system error; 32 the directory is not empty.";

const PASSWD_HELP: &str = "\
Files are not encrypted anew: whoever has an old gocryptfs.conf and the old passphrase can still read them. A mounted volume \
stays mounted.

Examples:
  cryptctl passwd /srv/secret
  cryptctl passwd --scrypt-n 18 /srv/secret         at four times the default cost
  cryptctl passwd --master-key /srv/secret          the passphrase, or gocryptfs.conf, is lost
  cryptctl passwd --passfile old --new-passfile new /srv/secret

Exit status: 0 success; 1 wrong arguments, or a wrong or too short passphrase; 2 a system error; 32 no volume, or a damaged one.";

const SLOT_HELP: &str = "\
A volume made with cryptctl init --argon2id or --key-slots has up to eight passphrases. Each has a label.

Examples:
  cryptctl slot list /srv/secret
  cryptctl slot add /srv/secret --label backup
  cryptctl slot remove /srv/secret backup

Exit status: 0 success; 1 wrong arguments, a wrong passphrase, or no such slot; 2 a system error; 32 no volume, or a damaged one.";

const INFO_HELP: &str = "\
Examples:
  cryptctl info /srv/secret
  cryptctl info --json /srv/secret

Exit status: 0 success; 2 a system error; 32 no volume, or a damaged one.";

const FSCK_HELP: &str = "\
The volume must not be mounted. Every name, initialization vector, header, block, link target and extended attribute is \
decrypted. Nothing is changed. Without the key, nothing can be checked.

Examples:
  cryptctl fsck /srv/secret
  cryptctl fsck --json --passfile /root/secret.pass /srv/secret >report.json

Exit status, the sum of: 0 no damage, 4 damage, 8 the check failed, some files could not be read, or the passphrase is wrong, \
16 wrong arguments.";

const JOURNAL_HELP: &str = "\
A mount completes or undoes writes that were interrupted when its server was killed. Where a file has neither the bytes from \
before nor those from after the write, the bytes in the volume stay, and a kept journal has the others: \
gocryptfs.strata-journal.N. The volume must not be mounted. To drop a kept journal, remove that file.

Examples:
  cryptctl journal list /srv/secret
  cryptctl journal apply /srv/secret 1      first copy the files that it lists, if you are not sure

Exit status: 0 success; 1 wrong arguments; 2 a system error, or not all was restored; 32 no volume, or a damaged one.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a volume of an empty directory.
    #[command(after_help = INIT_HELP)]
    Init {
        /// The directory, and how to encrypt.
        #[command(flatten)]
        args: init::InitArgs,
    },
    /// Change a passphrase.
    #[command(after_help = PASSWD_HELP)]
    Passwd {
        /// The volume and the passphrases.
        #[command(flatten)]
        args: passwd::PasswdArgs,
    },
    /// List, add and remove the passphrases of a volume with key slots.
    #[command(after_help = SLOT_HELP)]
    Slot {
        /// What to do.
        #[command(subcommand)]
        command: slot::SlotCommand,
    },
    /// Print how a volume is encrypted. Needs no passphrase.
    #[command(after_help = INFO_HELP)]
    Info {
        /// The volume.
        #[command(flatten)]
        volume: volume::VolumeArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check a volume that is not mounted.
    #[command(after_help = FSCK_HELP)]
    Fsck {
        /// The volume and the passphrase.
        #[command(flatten)]
        args: fsck::FsckArgs,
    },
    /// List and restore interrupted writes that a mount kept.
    #[command(after_help = JOURNAL_HELP)]
    Journal {
        /// What to do.
        #[command(subcommand)]
        command: journal::JournalCommand,
    },
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
pub fn run(args: &[OsString]) -> ExitCode {
    match Cli::try_parse_from(args) {
        Ok(cli) => execute(&cli.command, "cryptctl"),
        Err(error) => {
            let _ = error.print();
            let checks = args.get(1).is_some_and(|word| word == "fsck");
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ if checks => FsckExit::USAGE.into(),
                _ => crate::exit::Exit::Usage.into(),
            }
        }
    }
}

/// Executes a subcommand of the program with this name and returns its exit status.
#[must_use]
pub fn execute(command: &Command, program: &str) -> ExitCode {
    let done = match command {
        Command::Init { args } => init::run(args),
        Command::Passwd { args } => passwd::run(args),
        Command::Slot { command } => slot::run(command),
        Command::Info { volume, json } => info::run(volume, *json),
        Command::Journal { command } => journal::run(command),
        Command::Add(args) => args.run(),
        Command::Del(args) => args.run(),
        Command::Reset(args) => args.run(),
        Command::List(args) => args.run(),
        Command::Fsck { args } => match fsck::run(args) {
            Ok(exit) => return exit.into(),
            Err(failure) => {
                complain(program, &failure);
                return FsckExit::OPERATION.into();
            }
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(program, &failure);
            failure.exit.into()
        }
    }
}

/// Returns the absolute path of a volume that is not mounted in this mount namespace.
fn not_mounted(dir: &Path) -> Result<PathBuf, Failure> {
    let shown = dir.display();
    let real = std::fs::canonicalize(dir).map_err(|error| Failure::system(format!("{shown}: {error}")))?;
    match lower::mount_over(&real) {
        None => Ok(real),
        Some(point) => {
            let point = point.display();
            Err(Failure::system(format!("{shown}: in use by the mount at {point}; unmount it first")))
        }
    }
}

fn complain(program: &str, failure: &Failure) {
    let _ = writeln!(std::io::stderr(), "{program}: {failure}");
}

/// Prints a warning.
fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "cryptctl: warning: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/usr/bin/cryptctl") && !is_called(b"strata"));
        for wrong in [
            &["init", "--plaintext-names", "--deterministic-names", "/d"][..],
            &["init", "--aes-siv", "--xchacha", "/d"],
            &["init", "--long-name-max", "61", "/d"],
            &["init", "--passfile", "a", "--extpass", "b", "/d"],
            &["init", "--argon2id", "--scrypt-n", "16", "/d"],
            &["passwd", "--master-key", "--passfile", "a", "/d"],
            &["slot", "add", "/d"],
        ] {
            assert!(Cli::try_parse_from(["cryptctl"].iter().chain(wrong)).is_err(), "{wrong:?}");
        }
    }
}
