//! gocryptfs.conf: how a volume is encrypted, and its encrypted master key.

use crate::config_json::{Document, ScryptObject, encrypted_key};
use crate::config_mac;
use crate::error::ConfigError;
use crate::flags::{Feature, Flags};
use crate::kdf::{Kdf, Limits};
use crate::master::MasterKey;
use crate::slots::{self, KeySlot, Passphrase};
use crate::wrap::Wrap;

/// Name of the file in the root of a volume.
pub const CONFIG_NAME: &str = "gocryptfs.conf";
/// The only version of the format.
const VERSION: u64 = 2;
/// Largest number of bytes of the creator's name.
const CREATOR_MAX: usize = 255;

/// The configuration of a volume. Its values are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub(crate) document: Document,
    pub(crate) flags: Flags,
    /// One in volumes that gocryptfs reads.
    pub(crate) slots: Vec<KeySlot>,
}

/// What a new volume is like.
#[derive(Clone, Copy, Debug)]
pub struct NewVolume<'a> {
    /// The program that creates it, with its version.
    pub creator: &'a str,
    /// Its features.
    pub flags: Flags,
    /// Its first passphrase.
    pub passphrase: Passphrase<'a>,
}

/// An opened configuration.
#[derive(Debug)]
pub struct Unlocked {
    /// The master key.
    pub master: MasterKey,
    /// The index in [`Config::slots`] of the passphrase that opened it.
    pub slot: usize,
}

impl Config {
    /// Parses the content of the file, which is untrusted.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let document = Document::parse(bytes)?;
        if document.version != VERSION {
            return Err(ConfigError::Version(document.version));
        }
        if document.creator.len() > CREATOR_MAX {
            return Err(ConfigError::Field { field: "Creator", problem: "longer than 255 bytes".to_owned() });
        }
        let features = Feature::parse(&document.feature_flags)?;
        let flags = Flags::of(&features, document.long_name_max)?;
        if document.fido2.is_some() {
            return Err(ConfigError::Conflict("a field FIDO2 without the flag"));
        }
        let slots = if flags.key_slots { slots::parse(&document)? } else { vec![only_slot(&document, flags.hkdf)?] };
        Ok(Self { document, flags, slots })
    }

    /// Creates a configuration with a new master key.
    ///
    /// # Errors
    /// An argument is invalid, or the key derivation failed.
    pub fn create(new: &NewVolume<'_>, limits: Limits) -> Result<(Self, MasterKey), ConfigError> {
        let master = MasterKey::random()?;
        Ok((Self::with_master(new, &master, limits)?, master))
    }

    /// Creates a configuration for an existing master key, to replace one that was lost. The flags
    /// must be those of the lost one.
    ///
    /// # Errors
    /// An argument is invalid, or the key derivation failed.
    pub fn with_master(new: &NewVolume<'_>, master: &MasterKey, limits: Limits) -> Result<Self, ConfigError> {
        let names = new.flags.features().into_iter().map(|feature| feature.name().to_owned()).collect();
        let document = Document {
            creator: new.creator.to_owned(),
            encrypted_key: None,
            scrypt_object: new.flags.key_slots.then(ScryptObject::placeholder),
            version: VERSION,
            feature_flags: names,
            fido2: None,
            long_name_max: new.flags.long_name_max(),
            key_slots: None,
            config_mac: None,
        };
        let mut config = Self { document, flags: new.flags, slots: Vec::new() };
        if new.flags.key_slots {
            config.add_slot(master, &new.passphrase, limits)?;
        } else {
            config.set_only_slot(master, &new.passphrase, limits)?;
        }
        // All that parsing refuses is refused here too.
        Self::parse(&config.to_json()?)
    }

    /// Returns the content of the file, with the layout that gocryptfs writes.
    ///
    /// # Errors
    /// The library that writes JSON failed.
    pub fn to_json(&self) -> Result<Vec<u8>, ConfigError> {
        self.document.to_json()
    }

    /// Returns the features of the volume.
    #[must_use]
    pub fn flags(&self) -> &Flags {
        &self.flags
    }

    /// Returns the names of the features, in the order of the file.
    #[must_use]
    pub fn feature_names(&self) -> &[String] {
        &self.document.feature_flags
    }

    /// Returns the program that created the volume.
    #[must_use]
    pub fn creator(&self) -> &str {
        &self.document.creator
    }

    /// Returns the slots of the passphrases. A volume that gocryptfs reads has one.
    #[must_use]
    pub fn slots(&self) -> &[KeySlot] {
        &self.slots
    }

    /// Decrypts the master key with a passphrase, which is tried on each slot. If the volume has
    /// key slots, checks that nobody without the key changed the configuration.
    ///
    /// # Errors
    /// [`ConfigError::Passphrase`] if it opens none, [`ConfigError::Tampered`] if the configuration
    /// was changed, [`ConfigError::Memory`] if the key derivation needs more than `limits` allows.
    pub fn unlock(&self, passphrase: &[u8], limits: Limits) -> Result<Unlocked, ConfigError> {
        let mut refused = ConfigError::Passphrase;
        for (slot, candidate) in self.slots.iter().enumerate() {
            match candidate.open(self.wrap(), passphrase, limits) {
                Ok(Some(master)) => {
                    self.verify(&master)?;
                    return Ok(Unlocked { master, slot });
                }
                Ok(None) => {}
                // Another slot may need less.
                Err(error @ ConfigError::Memory { .. }) => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Checks that the configuration was written with this master key. Without key slots, nothing
    /// can be checked.
    ///
    /// # Errors
    /// [`ConfigError::Tampered`].
    pub fn verify(&self, master: &MasterKey) -> Result<(), ConfigError> {
        if self.flags.key_slots { config_mac::verify(&self.document, master) } else { Ok(()) }
    }

    pub(crate) fn wrap(&self) -> Wrap {
        if self.flags.key_slots { Wrap::Slot } else { Wrap::Gocryptfs { hkdf: self.flags.hkdf } }
    }

    /// Replaces the passphrase of a volume without key slots.
    pub(crate) fn set_only_slot(
        &mut self,
        master: &MasterKey,
        passphrase: &Passphrase<'_>,
        limits: Limits,
    ) -> Result<(), ConfigError> {
        let Kdf::Scrypt(scrypt) = passphrase.kdf else {
            return Err(ConfigError::Argon2id);
        };
        let slot = KeySlot::create(self.wrap(), master, passphrase, limits)?;
        self.document.scrypt_object = Some(ScryptObject::new(scrypt, &slot.salt));
        self.document.encrypted_key = Some(crate::base64::encode_standard(&slot.wrapped));
        self.slots = vec![slot];
        Ok(())
    }
}

/// Returns the slot of a configuration without key slots.
fn only_slot(document: &Document, hkdf: bool) -> Result<KeySlot, ConfigError> {
    if document.key_slots.is_some() || document.config_mac.is_some() {
        return Err(ConfigError::Conflict("a field KeySlots or ConfigMac without StrataKeySlots"));
    }
    let missing = |field| ConfigError::Field { field, problem: "missing".to_owned() };
    let (scrypt, salt) = document.scrypt_object.as_ref().ok_or_else(|| missing("ScryptObject"))?.check()?;
    let wrapped = document.encrypted_key.as_ref().ok_or_else(|| missing("EncryptedKey"))?;
    let wrapped = encrypted_key(wrapped, Wrap::Gocryptfs { hkdf }.size())?;
    Ok(KeySlot { label: String::new(), kdf: Kdf::Scrypt(scrypt), salt, wrapped })
}
