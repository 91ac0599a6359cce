//! `cryptctl fsck`: decrypts everything in a volume, and reports what can't be. Nothing is changed.
//!
//! | concept | file |
//! |---|---|
//! | the tree: directories and their names | `walk` |
//! | the content of a file | `content` |
//! | the seal of a file on a bound volume | `seal` |
//! | extended attributes | `attributes` |
//! | what was found, as text and JSON | `report` |

mod attributes;
mod content;
mod report;
mod seal;
mod walk;

use super::passphrase::PassphraseArgs;
use super::volume::VolumeArgs;
use crate::exit::{Failure, FsckExit};
use crate::{sole_layer, tool};
use clap::Args;
use cryptformat::Keys;
use report::Report;
use walk::Walk;

/// The arguments of `cryptctl fsck`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// The volume.
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// Where the passphrase comes from.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Use the printed master key instead of the passphrase.
    #[arg(long, conflicts_with = "source")]
    pub master_key: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Checks a volume.
///
/// # Errors
/// The volume can't be opened: nothing was checked.
pub(super) fn run(args: &FsckArgs) -> Result<FsckExit, Failure> {
    let dir = &args.volume.dir;
    let shown = dir.display();
    let real = super::not_mounted(dir)?;
    // Also a server in another mount namespace.
    let _held = sole_layer::hold("cryptfs", &real)?;
    let volume = args.volume.open()?;
    let master = if args.master_key {
        let master = super::recover::ask_master_key(dir)?;
        super::recover::check(&volume, &master)?;
        master
    } else {
        let passphrase = args.passphrase.read()?;
        let unlocked = volume.config.unlock(&passphrase, args.passphrase.limits());
        let hint = |reason| format!("{reason}. Nothing was checked: without the key, nothing can be");
        unlocked.map_err(|error| volume.failure(&error).map(hint))?.master
    };
    let keys = Keys::new(volume.config.flags(), &master).map_err(|error| volume.failure(&error))?;
    drop(master);
    let several = super::volume::keys(dir)?.len() > 1;
    let mut walk = Walk::new(&keys, several, dir, Report::new(args.json));
    walk.run();
    let report = walk.into_report();
    tool::print(if args.json { report.json() } else { report.summary(&shown.to_string()) })?;
    Ok(report.exit())
}
