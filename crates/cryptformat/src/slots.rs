//! Several passphrases for one master key: the extension `StrataKeySlots`.

use crate::config::{Config, Passphrase, new_salt};
use crate::config_json::{Document, ScryptObject, SlotObject, encrypted_key};
use crate::config_mac;
use crate::error::ConfigError;
use crate::kdf::{Kdf, Limits};
use crate::master::MasterKey;
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

fn check_label(label: &str) -> Result<(), ConfigError> {
    if label.is_empty() || label.len() > LABEL_MAX || label.chars().any(char::is_control) {
        let problem = "not 1 to 64 bytes without control characters".to_owned();
        return Err(ConfigError::Field { field: "Label", problem });
    }
    Ok(())
}

impl Config {
    /// Adds a passphrase to a volume with key slots.
    ///
    /// # Errors
    /// The volume has none, all are in use, the label is invalid or in use, or the key derivation
    /// failed. `self` is unchanged then.
    pub fn add_slot(&mut self, master: &MasterKey, new: &Passphrase<'_>, limits: Limits) -> Result<(), ConfigError> {
        self.must_have_slots()?;
        if self.slots.len() >= SLOTS_MAX {
            return Err(ConfigError::SlotsFull);
        }
        check_label(new.label)?;
        if self.slot_of(new.label).is_ok() {
            return Err(ConfigError::LabelInUse);
        }
        let mut slots = self.slots.clone();
        slots.push(KeySlot::create(self.wrap(), master, new, limits)?);
        self.replace_slots(master, slots)
    }

    /// Removes the passphrase of a slot. The master key stays the same: one who had read it with
    /// that passphrase can still use it, and an old copy of the file still opens with it.
    ///
    /// # Errors
    /// There is no such slot, or it is the last one. `self` is unchanged then.
    pub fn remove_slot(&mut self, master: &MasterKey, slot: usize) -> Result<(), ConfigError> {
        self.must_have_slots()?;
        if slot >= self.slots.len() {
            return Err(ConfigError::NoSlot);
        }
        if self.slots.len() == 1 {
            return Err(ConfigError::LastSlot);
        }
        let mut slots = self.slots.clone();
        slots.remove(slot);
        self.replace_slots(master, slots)
    }

    /// Replaces the passphrase and the key derivation of a slot. It keeps its label.
    ///
    /// # Errors
    /// There is no such slot, or the key derivation failed. `self` is unchanged then.
    pub fn change_slot(
        &mut self,
        master: &MasterKey,
        slot: usize,
        new: &Passphrase<'_>,
        limits: Limits,
    ) -> Result<(), ConfigError> {
        let Some(old) = self.slots.get(slot) else { return Err(ConfigError::NoSlot) };
        if !self.flags.key_slots {
            return self.set_only_slot(master, new, limits);
        }
        let new = Passphrase { label: &old.label, ..*new };
        let changed = KeySlot::create(self.wrap(), master, &new, limits)?;
        let mut slots = self.slots.clone();
        if let Some(slot) = slots.get_mut(slot) {
            *slot = changed;
        }
        self.replace_slots(master, slots)
    }

    /// Returns the index of the slot with a label.
    ///
    /// # Errors
    /// There is none.
    pub fn slot_of(&self, label: &str) -> Result<usize, ConfigError> {
        self.slots.iter().position(|slot| slot.label == label).ok_or(ConfigError::NoSlot)
    }

    fn must_have_slots(&self) -> Result<(), ConfigError> {
        if self.flags.key_slots { Ok(()) } else { Err(ConfigError::OnePassphrase) }
    }

    /// Replaces all slots, and the authentication code.
    fn replace_slots(&mut self, master: &MasterKey, slots: Vec<KeySlot>) -> Result<(), ConfigError> {
        // Never sign what someone else changed. A configuration that is being created has no code.
        if self.document.config_mac.is_some() {
            self.verify(master)?;
        }
        let mut document = self.document.clone();
        let object = |slot: &KeySlot| SlotObject::new(slot.label.clone(), slot.kdf, &slot.salt, &slot.wrapped);
        document.key_slots = Some(slots.iter().map(object).collect());
        config_mac::sign(&mut document, master)?;
        (self.document, self.slots) = (document, slots);
        Ok(())
    }
}
