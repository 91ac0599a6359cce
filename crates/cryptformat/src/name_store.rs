//! Names in a directory below: which are encrypted names, which belong to long names, which are
//! reserved.

use crate::base64;
use crate::content::is_zero;
use crate::error::RandomError;
use crate::flags::NameFlags;
use crate::names::NAME_MAX;
use crate::random;
use sha2::{Digest as _, Sha256};

/// Name of the file with a directory's initialization vector.
pub const DIRIV_NAME: &[u8] = b"gocryptfs.diriv";
/// Permissions of that file.
pub const DIRIV_MODE: u32 = 0o444;

/// All reserved names begin with this, and no encrypted name does: it has a dot.
const RESERVED: &[u8] = b"gocryptfs.";
/// While gocryptfs removes a directory, the initialization vector is in the directory's parent,
/// under this name with a number.
const REMOVED: &[u8] = b"gocryptfs.diriv.rmdir.";
const LONG: &[u8] = b"gocryptfs.longname.";
const SIDE: &[u8] = b".name";

/// Whether a name below can be an encrypted one: base64url of whole blocks.
#[must_use]
pub fn can_be_encrypted(raw64: bool, name: &[u8]) -> bool {
    base64::decode_name(raw64, name).is_some_and(|bytes| !bytes.is_empty() && bytes.len().is_multiple_of(16))
}

/// The role of a name in a directory below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// An encrypted name, or one that can't be decrypted.
    Name,
    /// An object whose encrypted name is too long.
    Long {
        /// The side file, which holds the encrypted name.
        side: Vec<u8>,
    },
    /// A side file.
    Side {
        /// The object that it belongs to. After a crash, it may be missing.
        object: Vec<u8>,
    },
    /// What remains if gocryptfs is killed while it removes a directory.
    Leftover,
    /// A reserved name.
    Own,
}

/// How an encrypted name is stored that is too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongName {
    /// The name of the object.
    pub object: Vec<u8>,
    /// The name of the side file.
    pub side: Vec<u8>,
    /// The content of the side file: the encrypted name.
    pub content: Vec<u8>,
}

/// How a volume stores its encrypted names. Only volumes that encrypt names have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameStore {
    flags: NameFlags,
}

impl NameStore {
    /// Creates the store of a volume with these flags.
    #[must_use]
    pub fn new(flags: NameFlags) -> Self {
        Self { flags }
    }

    /// Returns the role of a name below, which is untrusted.
    #[must_use]
    pub fn role(&self, name: &[u8]) -> Role {
        if !name.starts_with(RESERVED) {
            return Role::Name;
        }
        if let Some(rest) = name.strip_prefix(LONG) {
            return self.long_role(name, rest);
        }
        let removed = name.strip_prefix(REMOVED);
        if removed.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit)) {
            return Role::Leftover;
        }
        Role::Own
    }

    /// Returns the role of a name with the prefix of long names.
    fn long_role(&self, name: &[u8], rest: &[u8]) -> Role {
        let (hash, is_side) = rest.strip_suffix(SIDE).map_or((rest, false), |hash| (hash, true));
        if base64::decode_name(self.flags.raw64, hash).is_none_or(|hash| hash.len() != 32) {
            return Role::Own;
        }
        if is_side { Role::Side { object: [LONG, hash].concat() } } else { Role::Long { side: [name, SIDE].concat() } }
    }

    /// Returns how an encrypted name is stored, or `None` if it is stored as is.
    #[must_use]
    pub fn long_name(&self, encrypted: &[u8]) -> Option<LongName> {
        if encrypted.len() <= usize::from(self.flags.long_name_max) {
            return None;
        }
        let hash = base64::encode_name(self.flags.raw64, &Sha256::digest(encrypted));
        let object = [LONG, &hash].concat();
        let side = [&object, SIDE].concat();
        Some(LongName { object, side, content: encrypted.to_vec() })
    }

    /// Returns the encrypted name from the side file of `object`, or `None` if it is damaged.
    /// `content` is untrusted.
    #[must_use]
    pub fn encrypted_name(&self, object: &[u8], content: &[u8]) -> Option<Vec<u8>> {
        if content.len() > base64::encoded_len(self.flags.raw64, NAME_MAX + 1) {
            return None;
        }
        self.long_name(content).filter(|long| long.object == object).map(|long| long.content)
    }
}

/// Whether `bytes` is a directory's initialization vector.
#[must_use]
pub fn is_dir_iv(bytes: &[u8]) -> bool {
    bytes.len() == 16 && !is_zero(bytes)
}

/// Returns a new initialization vector for a directory.
///
/// # Errors
/// The kernel has no random numbers.
pub fn new_dir_iv() -> Result<[u8; 16], RandomError> {
    let mut iv = [0; 16];
    while is_zero(&iv) {
        random::fill(&mut iv)?;
    }
    Ok(iv)
}

/// Whether a name in the root of a volume without encryption of names is reserved.
#[must_use]
pub fn reserved_in_plain_root(name: &[u8]) -> bool {
    matches!(name, b"gocryptfs.conf" | b"gocryptfs.conf.tmp")
}
