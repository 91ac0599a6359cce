//! The gocryptfs v2 on-disk format, as pure functions: nothing here reads or writes a file.
//!
//! A *volume* is a directory tree whose files, names, link targets and extended attributes are
//! encrypted one by one. Its root has the file `gocryptfs.conf`, which says how, and holds the
//! *master key*, encrypted with a passphrase. docs/formats/cryptfs.md describes the format.
//!
//! From a configuration to a block:
//!
//! 1. [`Config::parse`] reads the configuration and checks every value.
//! 2. [`Config::unlock`] derives a key from the passphrase and decrypts the [`MasterKey`].
//! 3. [`Keys::new`] derives the keys in use for [`Flags`].
//! 4. The methods of [`Keys`] encrypt and decrypt headers, blocks, names, links and attributes.
//!
//! Everything that is parsed is hostile input: it is bounded before memory is allocated, and every
//! error says what is wrong. Nothing panics.
//!
//! | module | contents |
//! |---|---|
//! | `config` | gocryptfs.conf: creating and opening it |
//! | `config_json` | its fields and their bounds |
//! | `flags` | the features of a volume |
//! | `kdf` | scrypt and Argon2id, with bounds |
//! | `wrap` | the master key encrypted by a passphrase |
//! | `change_slots` | adding, changing and removing passphrases |
//! | `slots` | several passphrases for a master key: an extension of this project |
//! | `config_mac` | authentication of the configuration: part of the same extension |
//! | `key_file` | key files |
//! | `master` | the master key, and its form on paper |
//! | `keys` | the keys derived from it |
//! | `content` | headers and blocks of files |
//! | `seal`, `weights` | headers that bind the blocks of a file to each other: another extension |
//! | `siv` | AES-SIV, a cipher of blocks; the others are in the crate `cryptsys` |
//! | `random` | random nonces |
//! | `eme` | AES-EME, the cipher of names |
//! | `names` | the encryption of names |
//! | `name_store` | names in a directory below: long names and reserved names |
//! | `link`, `xattr` | targets of symbolic links; extended attributes |
//! | `base64` | strict decoding |
#![forbid(unsafe_code)]

mod base64;
mod change_slots;
mod config;
mod config_json;
mod config_mac;
mod content;
mod eme;
mod error;
mod flags;
mod kdf;
mod key_file;
mod keys;
mod link;
mod master;
mod name_store;
mod names;
mod random;
mod seal;
mod siv;
mod slots;
mod weights;
mod wrap;
mod xattr;

pub use config::{CONFIG_NAME, Config, NewVolume, Unlocked};
pub use config_json::CONFIG_MAX;
pub use content::{
    BLOCK_PLAIN, HEADER, Layout, SEALED_HEADER, check_header, check_sealed_header, is_hole, new_header, new_sealed_id,
};
pub use eme::Eme;
pub use error::{BlockDamage, ConfigError, HeaderDamage, NameDamage, RandomError};
pub use flags::{ContentCipher, Feature, Flags, NameFlags};
pub use kdf::{Argon2id, Kdf, Limits, Scrypt};
pub use key_file::{KEY_FILE_MAX, key_file_passphrase};
pub use keys::Keys;
pub use master::MasterKey;
pub use name_store::{
    DIRIV_MODE, DIRIV_NAME, LongName, NameStore, Role, can_be_encrypted, is_dir_iv, new_dir_iv, reserved_in_plain_root,
};
pub use names::{NAME_MAX, ZERO_IV};
pub use seal::{SEGMENT_SHIFT, SEGMENTS, Seal};
pub use slots::{KeySlot, LABEL_MAX, Passphrase, SLOTS_MAX};
pub use xattr::{XATTR_PREFIX, is_namespaced};
