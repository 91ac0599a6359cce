//! `cryptctl info`: how a volume is encrypted.

use super::slot;
use super::volume::{DEFAULT_KEY, Volume, VolumeArgs, keys};
use crate::exit::Failure;
use crate::tool::print;
use cryptformat::{ContentCipher, Flags};
use serde_json::{Value, json};

/// Prints the features and passphrases of a volume.
pub(super) fn run(args: &VolumeArgs, json: bool) -> Result<(), Failure> {
    let volume = args.open()?;
    let keys = keys(&args.dir)?;
    print(if json { as_json(&volume, &keys) } else { as_text(&volume, &keys) })
}

fn cipher(cipher: ContentCipher) -> &'static str {
    match cipher {
        ContentCipher::AesGcm => "AES-256-GCM",
        ContentCipher::AesSiv => "AES-SIV",
        ContentCipher::XChaCha => "XChaCha20-Poly1305",
    }
}

fn names(flags: &Flags) -> String {
    let Some(names) = flags.names else { return "not encrypted".to_owned() };
    let kind = if names.dir_iv { "AES-EME" } else { "AES-EME, the same in every directory" };
    format!("{kind}; long if encrypted to more than {} bytes", names.long_name_max)
}

fn as_text(volume: &Volume, keys: &[String]) -> String {
    let (config, flags) = (&volume.config, volume.config.flags());
    let slots: String = config.slots().iter().map(|slot| format!("  {}\n", slot::as_text(slot))).collect();
    let opened_by = if flags.key_slots { "cryptfs only" } else { "cryptfs and gocryptfs" };
    let bound = if flags.bound { "; bound: changes without the key are noticed" } else { "" };
    // One key needs no name.
    let keys = if *keys == [DEFAULT_KEY] { String::new() } else { format!("keys: {}\n", keys.join(", ")) };
    format!(
        "{}: encrypted volume\ncontents: {}{bound}\nnames: {}\nfeatures: {}\ncreated by: {}\nopened by: {opened_by}\n{keys}passphrases:\n{slots}",
        volume.dir.display(),
        cipher(flags.cipher),
        names(flags),
        config.feature_names().join(", "),
        // Untrusted: it must not control the terminal.
        config.creator().escape_debug(),
    )
}

fn as_json(volume: &Volume, keys: &[String]) -> String {
    let (config, flags) = (&volume.config, volume.config.flags());
    let names = flags
        .names
        .map(|names| json!({ "dir_iv": names.dir_iv, "long_name_max": names.long_name_max, "raw64": names.raw64 }));
    let slots: Vec<Value> = config.slots().iter().map(slot::as_json).collect();
    let info = json!({
        "dir": volume.dir.to_string_lossy(), "creator": config.creator(), "contents": cipher(flags.cipher),
        "names": names, "hkdf": flags.hkdf, "key_slots": flags.key_slots, "bound": flags.bound,
        "features": config.feature_names(),
        "keys": keys, "passphrases": slots,
    });
    format!("{info}\n")
}
