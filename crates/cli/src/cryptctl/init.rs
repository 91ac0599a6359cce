//! `cryptctl init`: makes a volume of an empty directory.

use super::kdf::KdfArgs;
use super::passphrase::{PassphraseArgs, read_new};
use super::volume::{DEFAULT_KEY, VolumeArgs, failure, key_name, write_config, write_new};
use crate::exit::Failure;
use crate::tool::print;
use clap::Args;
use cryptformat::{
    Config, ContentCipher, DIRIV_MODE, DIRIV_NAME, Flags, Kdf, MasterKey, NameFlags, NewVolume, Passphrase, Scrypt,
    new_dir_iv,
};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The program that is named in new configurations.
pub(super) const CREATOR: &str = concat!("strata ", env!("CARGO_PKG_VERSION"));
/// Label of the first passphrase of a volume with key slots, unless another one is chosen.
pub(super) const FIRST_LABEL: &str = "first";

/// The arguments of `cryptctl init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// An empty directory; with --key, a volume.
    pub dir: PathBuf,
    /// Add a key with this name to a volume. It has the features of the volume.
    #[arg(
        long,
        value_name = "NAME",
        value_parser = key_name,
        conflicts_with_all = [
            "plaintext_names", "deterministic_names", "long_name_max", "aes_siv", "xchacha", "bound",
        ]
    )]
    pub key: Option<String>,
    /// How the volume is encrypted.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// How the key is derived.
    #[command(flatten)]
    pub kdf: KdfArgs,
    /// Where the passphrase comes from.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Accept a passphrase of fewer than 16 characters.
    #[arg(long)]
    pub short_passphrase: bool,
    /// Do not print the master key.
    #[arg(long, short)]
    pub quiet: bool,
}

/// The features of a new volume.
#[derive(Clone, Debug, Args)]
pub struct FeatureArgs {
    /// Do not encrypt names and link targets.
    #[arg(long)]
    pub plaintext_names: bool,
    /// Encrypt the same name in the same way in every directory: tools that copy changed files find
    /// them again.
    #[arg(long, conflicts_with = "plaintext_names")]
    pub deterministic_names: bool,
    /// Store encrypted names by their hash if they have more bytes than this: 62 to 255.
    #[arg(long, value_name = "N", conflicts_with = "plaintext_names", value_parser = clap::value_parser!(u8).range(62..=255))]
    pub long_name_max: Option<u8>,
    /// Encrypt contents with AES-SIV: slower; two blocks with the same nonce reveal less.
    #[arg(long, conflicts_with = "xchacha")]
    pub aes_siv: bool,
    /// Encrypt contents with XChaCha20-Poly1305: for processors without AES.
    #[arg(long)]
    pub xchacha: bool,
    /// Permit several passphrases, and authenticate the configuration. gocryptfs does not open such
    /// a volume.
    #[arg(long)]
    pub key_slots: bool,
    /// Notice files that somebody changed without the key: blocks put back from an older copy,
    /// missing blocks, files cut or extended. Implies --key-slots.
    #[arg(long)]
    pub bound: bool,
    /// Label of the first passphrase of a volume with key slots.
    #[arg(long, value_name = "TEXT", default_value = FIRST_LABEL, hide_short_help = true)]
    pub label: String,
}

/// Creates the volume and prints its master key.
pub(super) fn run(args: &InitArgs) -> Result<(), Failure> {
    let path = VolumeArgs { dir: args.dir.clone(), key: args.key.clone(), config: None }.path();
    let flags = match &args.key {
        None => {
            must_be_empty(&args.dir)?;
            args.features.flags(args.kdf.argon2id)
        }
        Some(key) => features_of_volume(args, key, &path)?,
    };
    let passphrase = read_new(&args.passphrase.source(), args.short_passphrase)?;
    let kdf = args.kdf.choose(Kdf::Scrypt(Scrypt::default()));
    let new = NewVolume {
        creator: CREATOR,
        flags,
        passphrase: Passphrase { bytes: &passphrase, kdf, label: &args.features.label },
    };
    let created = Config::create(&new, args.passphrase.limits());
    let (config, master) = created.map_err(|error| failure(&args.dir, &error))?;
    // The configuration makes a volume of the directory, so it comes last.
    if args.key.is_none() && flags.names.is_some_and(|names| names.dir_iv) {
        let iv_path = args.dir.join(OsStr::from_bytes(DIRIV_NAME));
        let refuse = |error: &dyn core::fmt::Display| Failure::system(format!("{}: {error}", iv_path.display()));
        let iv = new_dir_iv().map_err(|error| refuse(&error))?;
        write_new(&iv_path, &iv, DIRIV_MODE).map_err(|error| refuse(&error))?;
        write_config(&path, &config).inspect_err(|_| {
            let _ = fs::remove_file(&iv_path);
        })?;
    } else {
        write_config(&path, &config)?;
    }
    if args.quiet { Ok(()) } else { print(announcement(&args.dir, &master)) }
}

/// Returns the features for a further key of a volume: files do not say which key encrypts them, so
/// all keys have the same ones.
fn features_of_volume(args: &InitArgs, key: &str, path: &Path) -> Result<Flags, Failure> {
    if key == DEFAULT_KEY || path.exists() {
        return Err(Failure::usage(format!("{}: exists already; choose another --key", path.display())));
    }
    let volume = VolumeArgs { dir: args.dir.clone(), key: None, config: None }.open()?;
    let flags = volume.config.flags();
    let key_slots = args.features.key_slots || args.kdf.argon2id || flags.bound;
    Ok(Flags { key_slots, ..*flags })
}

fn must_be_empty(dir: &Path) -> Result<(), Failure> {
    let shown = dir.display();
    let mut entries = fs::read_dir(dir).map_err(|error| Failure::system(format!("{shown}: {error}")))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Failure::mount(format!("{shown}: not empty; choose an empty directory"))),
    }
}

fn announcement(dir: &Path, master: &MasterKey) -> String {
    format!(
        "{}: created; mount it with mount -t cryptfs.\n\nThe master key is\n\n    {}\n\n\
         It opens the volume if the passphrase is forgotten or gocryptfs.conf is lost. Print it, keep it in\n\
         a safe place, and clear this screen. It is not shown again.\n",
        dir.display(),
        *master.to_paper()
    )
}

impl FeatureArgs {
    fn flags(&self, argon2id: bool) -> Flags {
        let cipher = match (self.aes_siv, self.xchacha) {
            (true, _) => ContentCipher::AesSiv,
            (_, true) => ContentCipher::XChaCha,
            _ => ContentCipher::AesGcm,
        };
        let names = NameFlags {
            dir_iv: !self.deterministic_names,
            long_name_max: self.long_name_max.unwrap_or(u8::MAX),
            ..NameFlags::default()
        };
        let names = (!self.plaintext_names).then_some(names);
        let key_slots = self.key_slots || self.bound || argon2id;
        Flags { cipher, names, key_slots, bound: self.bound, ..Flags::default() }
    }
}
