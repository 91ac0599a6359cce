use crate::keyring::Keyring;
use cryptformat::{BlockDamage, Flags, NameDamage, ZERO_IV};
use std::sync::Arc;
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::{Names, Object};

/// Encrypts names and the targets of symbolic links.
#[derive(Debug)]
pub(crate) struct EncryptedNames {
    pub(crate) keyring: Arc<Keyring>,
    /// Whether each directory has its own initialization vector.
    pub(crate) dir_iv: bool,
    pub(crate) flags: Flags,
}

impl EncryptedNames {
    pub(crate) fn new(keyring: Arc<Keyring>, flags: &Flags) -> Self {
        Self { keyring, dir_iv: flags.names.is_some_and(|names| names.dir_iv), flags: *flags }
    }

    fn iv<'a>(&self, dir: &Object<'a>) -> Result<&'a [u8; 16]> {
        if !self.dir_iv {
            return Ok(&ZERO_IV);
        }
        // The template has checked it.
        dir.directory_state().try_into().map_err(|_| Errno::IO)
    }

    /// Whether a name can exist on this volume.
    ///
    /// The format does not authenticate names: one of 256 names of another key decrypts to random
    /// bytes. Those are not UTF-8, except for about one of 10,000. So on a volume with several keys
    /// all names must be.
    fn is_permitted(&self, name: &[u8]) -> bool {
        !self.keyring.has_several_keys()
            || core::str::from_utf8(name).is_ok_and(|name| !name.chars().any(char::is_control))
    }
}

impl Names for EncryptedNames {
    fn encode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let iv = self.iv(dir)?;
        if !self.is_permitted(name) {
            return Err(Errno::ILSEQ);
        }
        self.keyring.with(cx, |keys| keys.encrypt_name(name, iv).map_err(name_errno))
    }

    fn decode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let iv = self.iv(dir)?;
        let decrypted = self.keyring.with(cx, |keys| Ok(keys.decrypt_name(name, iv)))?;
        decrypted.ok().filter(|name| self.is_permitted(name)).ok_or(Errno::INVAL)
    }

    fn is_bijection(&self) -> bool {
        true
    }

    fn target_size(&self, stored: u64) -> Option<u64> {
        self.flags.link_size(stored)
    }

    fn encode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        self.keyring.with(cx, |keys| {
            keys.seal_link(target).map_err(|damage| match damage {
                BlockDamage::TooLong => Errno::NAMETOOLONG,
                _ => Errno::IO,
            })
        })
    }

    fn decode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        self.keyring.with(cx, |keys| {
            keys.open_link(target).map_err(|damage| {
                tracing::warn!("target of a symbolic link: {damage}");
                Errno::IO
            })
        })
    }
}

fn name_errno(damage: NameDamage) -> Errno {
    match damage {
        NameDamage::TooLong => Errno::NAMETOOLONG,
        _ => Errno::INVAL,
    }
}

/// Hides the volume's own files in a volume whose names are not encrypted. Targets of symbolic
/// links are not encrypted either.
#[derive(Debug)]
pub(crate) struct PlainNames {
    /// Number of the root directory, in which the files are.
    pub(crate) root: u64,
}

impl Names for PlainNames {
    fn target_size(&self, stored: u64) -> Option<u64> {
        Some(stored)
    }

    fn encode_filename(&self, _cx: &Cx<'_>, _dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Ok(name.to_vec())
    }

    fn decode_filename(&self, _cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let is_own = cryptformat::reserved_in_plain_root(name) || crate::volume::is_config(name);
        if dir.id() == self.root && is_own { Err(Errno::INVAL) } else { Ok(name.to_vec()) }
    }
}
