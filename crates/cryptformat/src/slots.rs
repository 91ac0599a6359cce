//! Several passphrases for one master key: the extension `StrataKeySlots`.

use crate::config_json::{Document, ScryptObject, encrypted_key};
use crate::error::ConfigError;
use crate::kdf::{Kdf, Limits};
use crate::master::MasterKey;
use crate::random;
use crate::wrap::Wrap;

/// Largest number of slots. A wrong passphrase is tried on each, about a second for each.
pub const SLOTS_MAX: usize = 8;
/// Largest number of bytes of a label.
pub const LABEL_MAX: usize = 64;

/// A master key encrypted with a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySlot {
    pub(crate) label: String,
    pub(crate) kdf: Kdf,
    pub(crate) salt: Vec<u8>,
    pub(crate) wrapped: Vec<u8>,
}

impl KeySlot {
    /// Returns its name; empty in a volume without key slots.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns its key derivation.
    #[must_use]
    pub fn kdf(&self) -> Kdf {
        self.kdf
    }

    pub(crate) fn create(
        wrap: Wrap,
        master: &MasterKey,
        passphrase: &Passphrase<'_>,
        limits: Limits,
    ) -> Result<Self, ConfigError> {
        if passphrase.bytes.is_empty() {
            return Err(ConfigError::EmptyPassphrase);
        }
        let salt = new_salt()?;
        let key = passphrase.kdf.derive(passphrase.bytes, &salt, limits)?;
        let wrapped = wrap.seal(&key, master)?;
        Ok(Self { label: passphrase.label.to_owned(), kdf: passphrase.kdf, salt, wrapped })
    }

    /// Returns the master key, or `None` if the passphrase is not the one of this slot.
    pub(crate) fn open(&self, wrap: Wrap, passphrase: &[u8], limits: Limits) -> Result<Option<MasterKey>, ConfigError> {
        let key = self.kdf.derive(passphrase, &self.salt, limits)?;
        wrap.open(&key, &self.wrapped)
    }
}

/// Returns the slots in a file, checked.
pub(crate) fn parse(document: &Document) -> Result<Vec<KeySlot>, ConfigError> {
    if document.encrypted_key.is_some() || document.scrypt_object != Some(ScryptObject::placeholder()) {
        return Err(ConfigError::Conflict("EncryptedKey or ScryptObject beside StrataKeySlots"));
    }
    let wrong = |field, problem: &str| Err(ConfigError::Field { field, problem: problem.to_owned() });
    if document.config_mac.is_none() {
        return wrong("ConfigMac", "missing");
    }
    let objects = document.key_slots.as_deref().unwrap_or_default();
    if objects.is_empty() || objects.len() > SLOTS_MAX {
        return wrong("KeySlots", "not 1 to 8 slots");
    }
    let mut slots: Vec<KeySlot> = Vec::new();
    for object in objects {
        let label = object.label.clone();
        check_label(&label)?;
        if slots.iter().any(|slot| slot.label == label) {
            return wrong("Label", "in two slots");
        }
        let (kdf, salt) = object.check()?;
        let wrapped = encrypted_key(&object.encrypted_key, Wrap::Slot.size())?;
        slots.push(KeySlot { label, kdf, salt, wrapped });
    }
    Ok(slots)
}

pub(crate) fn check_label(label: &str) -> Result<(), ConfigError> {
    if label.is_empty() || label.len() > LABEL_MAX || label.chars().any(char::is_control) {
        let problem = "not 1 to 64 bytes without control characters".to_owned();
        return Err(ConfigError::Field { field: "Label", problem });
    }
    Ok(())
}

/// A passphrase, and how keys are derived from it.
#[derive(Clone, Copy, Debug)]
pub struct Passphrase<'a> {
    /// Its bytes, of any encoding.
    pub bytes: &'a [u8],
    /// The key derivation. Volumes without key slots take scrypt only.
    pub kdf: Kdf,
    /// The name of its slot. Not stored in volumes without key slots.
    pub label: &'a str,
}

/// Returns a new salt.
fn new_salt() -> Result<Vec<u8>, ConfigError> {
    let mut salt = vec![0; 32];
    random::fill(&mut salt)?;
    Ok(salt)
}
