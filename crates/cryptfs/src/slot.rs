use crate::locked::LockedKeys;
use cryptformat::Keys;
use parking_lot::RwLock;
use vnode::{Errno, Result};

/// A key in memory. Several sessions can hold the same one.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Name of its configuration file, shortened: `default`, or the `NAME` of
    /// `gocryptfs.conf.NAME`.
    pub(crate) name: String,
    /// Identifies the key, and reveals nothing about it.
    pub(crate) fingerprint: [u8; 8],
    /// Held shared while the key is in use.
    keys: RwLock<Option<LockedKeys>>,
}

impl Slot {
    pub(crate) fn new(name: String, keys: Keys) -> Self {
        Self { name, fingerprint: keys.fingerprint(), keys: RwLock::new(Some(LockedKeys::new(keys))) }
    }

    /// Uses the key. `ENOKEY` if it has been wiped.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&Keys) -> Result<T>) -> Result<T> {
        match self.keys.read().as_ref().and_then(LockedKeys::get) {
            Some(keys) => act(keys),
            None => Err(Errno::NOKEY),
        }
    }

    /// Overwrites the key, once nothing uses it any more.
    pub(crate) fn wipe(&self) {
        *self.keys.write() = None;
    }
}
