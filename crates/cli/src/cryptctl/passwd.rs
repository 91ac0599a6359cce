//! `cryptctl passwd`: changes a passphrase.

use super::init::{CREATOR, FIRST_LABEL};
use super::kdf::KdfArgs;
use super::passphrase::{PassphraseArgs, read_new, source};
use super::recover::{self, ask_master_key};
use super::volume::{Volume, VolumeArgs, failure, write_config};
use crate::exit::Failure;
use crate::tool::print;
use clap::Args;
use cryptformat::{Config, ConfigError, Kdf, KeySlot, MasterKey, NewVolume, Passphrase, Scrypt};
use cryptfs::Secret;
use std::path::PathBuf;

/// The arguments of `cryptctl passwd`.
#[derive(Debug, Args)]
pub struct PasswdArgs {
    /// The volume.
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// The present passphrase.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Ask for the printed master key instead of the present passphrase. If gocryptfs.conf is lost,
    /// write a new one.
    #[arg(long, conflicts_with = "source")]
    pub master_key: bool,
    /// Change the passphrase with this label, on a volume with key slots. Default: the one that was
    /// given. In place of a lost gocryptfs.conf: the label of the new passphrase.
    #[arg(long, value_name = "LABEL")]
    pub label: Option<String>,
    /// The new passphrase.
    #[command(flatten)]
    pub new: NewArgs,
    /// How the key is derived. Default: as before.
    #[command(flatten)]
    pub kdf: KdfArgs,
}

/// Where a new passphrase comes from.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// Read the new passphrase from the first line of FILE.
    #[arg(long, value_name = "FILE", group = "new_source")]
    pub new_passfile: Option<PathBuf>,
    /// Read the new passphrase from the first line of the output of COMMAND.
    #[arg(long, value_name = "COMMAND", group = "new_source")]
    pub new_extpass: Option<String>,
    /// Use FILE as the new key file.
    #[arg(long, value_name = "FILE", group = "new_source")]
    pub new_key_file: Option<PathBuf>,
    /// Accept a new passphrase of fewer than 16 characters.
    #[arg(long)]
    pub short_passphrase: bool,
}

impl NewArgs {
    /// Reads the new passphrase.
    pub(super) fn read(&self) -> Result<Secret, Failure> {
        let file = self.new_passfile.as_deref();
        read_new(&source(file, self.new_extpass.as_deref(), self.new_key_file.as_deref()), self.short_passphrase)
    }
}

/// Changes the passphrase.
pub(super) fn run(args: &PasswdArgs) -> Result<(), Failure> {
    let volume = match args.volume.find()? {
        None if args.master_key => return replace_lost(args),
        None => args.volume.open()?,
        Some(volume) => volume,
    };
    change(args, volume)
}

fn change(args: &PasswdArgs, mut volume: Volume) -> Result<(), Failure> {
    let slot_of = |label: &str| volume.config.slot_of(label).map_err(|error| volume.failure(&error));
    let named = args.label.as_deref().map(slot_of).transpose()?;
    let (master, opened) = unlock(&volume, args)?;
    let Some(slot) = named.or(opened) else {
        return Err(Failure::usage("--master-key: choose the passphrase to change with --label"));
    };
    let Some(before) = volume.config.slots().get(slot).map(KeySlot::kdf) else {
        return Err(volume.failure(&ConfigError::NoSlot));
    };
    let new = args.new.read()?;
    let new = Passphrase { bytes: &new, kdf: args.kdf.choose(before), label: "" };
    let changed = volume.config.change_slot(&master, slot, &new, args.passphrase.limits());
    changed.map_err(|error| volume.failure(&error))?;
    let backup = args.master_key.then(|| volume.back_up()).transpose()?;
    volume.save()?;
    let backup = backup.map(|path| format!("; the old configuration is in {}", path.display())).unwrap_or_default();
    print(format!("{}: passphrase changed{backup}\n", volume.dir.display()))
}

/// Returns the master key, and the slot of the passphrase that was given.
fn unlock(volume: &Volume, args: &PasswdArgs) -> Result<(MasterKey, Option<usize>), Failure> {
    if args.master_key {
        let master = ask_master_key(&volume.dir)?;
        recover::check(volume, &master)?;
        return Ok((master, (volume.config.slots().len() == 1).then_some(0)));
    }
    let passphrase = args.passphrase.read()?;
    let unlocked = volume.config.unlock(&passphrase, args.passphrase.limits());
    let unlocked = unlocked.map_err(|error| volume.failure(&error))?;
    Ok((unlocked.master, Some(unlocked.slot)))
}

/// Writes a configuration in place of a lost one.
fn replace_lost(args: &PasswdArgs) -> Result<(), Failure> {
    let dir = &args.volume.dir;
    let master = ask_master_key(dir)?;
    let flags = recover::features(dir, &master)?;
    let passphrase = args.new.read()?;
    let kdf = args.kdf.choose(Kdf::Scrypt(Scrypt::default()));
    let label = if flags.key_slots { args.label.as_deref().unwrap_or(FIRST_LABEL) } else { "" };
    let passphrase = Passphrase { bytes: &passphrase, kdf, label };
    let new = NewVolume { creator: CREATOR, flags, passphrase };
    let config = Config::with_master(&new, &master, args.passphrase.limits()).map_err(|error| failure(dir, &error))?;
    let path = args.volume.path();
    write_config(&path, &config)?;
    print(format!("{}: written for the features {}\n", path.display(), config.feature_names().join(", ")))
}
