//! Adding, changing and removing passphrases.

use crate::config::Config;
use crate::config_json::SlotObject;
use crate::config_mac;
use crate::error::ConfigError;
use crate::kdf::Limits;
use crate::master::MasterKey;
use crate::slots::{KeySlot, Passphrase, SLOTS_MAX, check_label};

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
