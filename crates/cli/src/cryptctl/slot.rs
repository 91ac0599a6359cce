//! `cryptctl slot`: the passphrases of a volume with key slots.

use super::kdf::{KdfArgs, describe};
use super::passphrase::PassphraseArgs;
use super::passwd::NewArgs;
use super::volume::VolumeArgs;
use crate::exit::Failure;
use crate::tool::print;
use clap::Subcommand;
use cryptformat::{Argon2id, Kdf, Passphrase};
use serde_json::{Value, json};

/// The subcommands of `cryptctl slot`.
#[derive(Debug, Subcommand)]
pub enum SlotCommand {
    /// List the labels and key derivations. Needs no passphrase.
    List {
        /// The volume.
        #[command(flatten)]
        volume: VolumeArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add a passphrase.
    Add {
        /// The volume.
        #[command(flatten)]
        volume: VolumeArgs,
        /// Label of the new passphrase.
        #[arg(long, value_name = "TEXT")]
        label: String,
        /// One of the present passphrases.
        #[command(flatten)]
        passphrase: PassphraseArgs,
        /// The new passphrase.
        #[command(flatten)]
        new: NewArgs,
        /// How the key is derived. Default: with Argon2id.
        #[command(flatten)]
        kdf: KdfArgs,
    },
    /// Remove a passphrase, but not the last one.
    Remove {
        /// The volume.
        #[command(flatten)]
        volume: VolumeArgs,
        /// Label of the passphrase to remove.
        label: String,
        /// One of the present passphrases; it may be the one to remove.
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
}

/// Executes a subcommand.
pub(super) fn run(command: &SlotCommand) -> Result<(), Failure> {
    match command {
        SlotCommand::List { volume, json } => list(volume, *json),
        SlotCommand::Add { volume, label, passphrase, new, kdf } => add(volume, label, passphrase, new, *kdf),
        SlotCommand::Remove { volume, label, passphrase } => remove(volume, label, passphrase),
    }
}

fn list(args: &VolumeArgs, json: bool) -> Result<(), Failure> {
    let volume = args.open()?;
    if json {
        return print(format!("{}\n", Value::Array(volume.config.slots().iter().map(as_json).collect())));
    }
    print(volume.config.slots().iter().map(|slot| format!("{}\n", as_text(slot))).collect::<String>())
}

/// Describes a slot in one line.
pub(super) fn as_text(slot: &cryptformat::KeySlot) -> String {
    let label = if slot.label().is_empty() { "the passphrase" } else { slot.label() };
    format!("{label}: {}", describe(slot.kdf()))
}

/// Describes a slot.
pub(super) fn as_json(slot: &cryptformat::KeySlot) -> Value {
    match slot.kdf() {
        Kdf::Scrypt(scrypt) => {
            json!({ "label": slot.label(), "kdf": "scrypt", "n": 1u64 << scrypt.log_n, "r": scrypt.r, "p": scrypt.p })
        }
        Kdf::Argon2id(argon2) => json!({
            "label": slot.label(), "kdf": "argon2id", "memory_kib": argon2.memory_kib, "passes": argon2.passes,
            "lanes": argon2.lanes,
        }),
    }
}

fn add(
    args: &VolumeArgs,
    label: &str,
    passphrase: &PassphraseArgs,
    new: &NewArgs,
    kdf: KdfArgs,
) -> Result<(), Failure> {
    let mut volume = args.open()?;
    if !volume.config.flags().key_slots {
        return Err(volume.failure(&cryptformat::ConfigError::OnePassphrase));
    }
    let unlocked = volume.config.unlock(&passphrase.read()?, passphrase.limits());
    let master = unlocked.map_err(|error| volume.failure(&error))?.master;
    let new = new.read()?;
    let new = Passphrase { bytes: &new, kdf: kdf.choose(Kdf::Argon2id(Argon2id::default())), label };
    volume.config.add_slot(&master, &new, passphrase.limits()).map_err(|error| volume.failure(&error))?;
    volume.save()?;
    print(format!("{}: passphrase {label} added\n", volume.dir.display()))
}

fn remove(args: &VolumeArgs, label: &str, passphrase: &PassphraseArgs) -> Result<(), Failure> {
    let mut volume = args.open()?;
    let slot = volume.config.slot_of(label).map_err(|error| volume.failure(&error))?;
    let unlocked = volume.config.unlock(&passphrase.read()?, passphrase.limits());
    let master = unlocked.map_err(|error| volume.failure(&error))?.master;
    volume.config.remove_slot(&master, slot).map_err(|error| volume.failure(&error))?;
    volume.save()?;
    print(format!("{}: passphrase {label} removed\n", volume.dir.display()))
}
