//! The fields of gocryptfs.conf.

use crate::base64;
use crate::error::ConfigError;
use crate::kdf::{Argon2id, Kdf, SALT, Scrypt};
use serde::{Deserialize, Serialize};
use serde_json::ser::{PrettyFormatter, Serializer};

/// Maximum size of the file in bytes.
pub const CONFIG_MAX: usize = 64 << 10;

/// The file, with the names and the order of its fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub(crate) struct Document {
    pub(crate) creator: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) encrypted_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scrypt_object: Option<ScryptObject>,
    pub(crate) version: u64,
    pub(crate) feature_flags: Vec<String>,
    #[serde(default, rename = "FIDO2", skip_serializing_if = "Option::is_none")]
    pub(crate) fido2: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) long_name_max: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_slots: Option<Vec<SlotObject>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config_mac: Option<String>,
}

/// Parameters of scrypt, as gocryptfs writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub(crate) struct ScryptObject {
    pub(crate) salt: String,
    n: u64,
    r: u32,
    p: u32,
    key_len: u64,
}

/// A slot of the extension `StrataKeySlots`. Which parameters it has depends on `Kdf`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub(crate) struct SlotObject {
    pub(crate) label: String,
    kdf: KdfName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    r: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    p: Option<u32>,
    #[serde(default, rename = "MemoryKiB", skip_serializing_if = "Option::is_none")]
    memory_kib: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lanes: Option<u32>,
    pub(crate) salt: String,
    pub(crate) encrypted_key: String,
}

/// Key derivation functions of slots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KdfName {
    Scrypt,
    Argon2id,
}

impl Document {
    /// Parses a file.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        if bytes.len() > CONFIG_MAX {
            return Err(ConfigError::TooLarge);
        }
        serde_json::from_slice(bytes).map_err(|error| ConfigError::Syntax(error.to_string()))
    }

    /// Returns the file, with the layout that gocryptfs writes.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, ConfigError> {
        let mut out = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b"\t"));
        self.serialize(&mut serializer).map_err(|error| ConfigError::Syntax(error.to_string()))?;
        out.push(b'\n');
        Ok(out)
    }

    /// Returns the bytes that the authentication code covers: the file without that code and
    /// without white space.
    pub(crate) fn authenticated(&self) -> Result<Vec<u8>, ConfigError> {
        let without = Self { config_mac: None, ..self.clone() };
        serde_json::to_vec(&without).map_err(|error| ConfigError::Syntax(error.to_string()))
    }
}

impl ScryptObject {
    pub(crate) fn new(scrypt: Scrypt, salt: &[u8]) -> Self {
        let Scrypt { log_n, r, p } = scrypt;
        Self { salt: base64::encode_standard(salt), n: 1 << log_n, r, p, key_len: 32 }
    }

    /// Returns the one of volumes with key slots, which has no meaning. Without it, gocryptfs
    /// complains about a missing field instead of the feature that it does not know.
    pub(crate) fn placeholder() -> Self {
        Self::new(Scrypt::default(), &[0; 32])
    }

    /// Returns the parameters and the salt, checked.
    pub(crate) fn check(&self) -> Result<(Scrypt, Vec<u8>), ConfigError> {
        if self.key_len != 32 {
            return Err(ConfigError::Field { field: "KeyLen", problem: format!("{} is not 32", self.key_len) });
        }
        let scrypt = scrypt_of(self.n, self.r, self.p)?;
        Kdf::Scrypt(scrypt).check()?;
        Ok((scrypt, salt_of(&self.salt)?))
    }
}

impl SlotObject {
    pub(crate) fn new(label: String, kdf: Kdf, salt: &[u8], encrypted_key: &[u8]) -> Self {
        let mut slot = Self {
            label,
            kdf: KdfName::Scrypt,
            n: None,
            r: None,
            p: None,
            memory_kib: None,
            passes: None,
            lanes: None,
            salt: base64::encode_standard(salt),
            encrypted_key: base64::encode_standard(encrypted_key),
        };
        match kdf {
            Kdf::Scrypt(Scrypt { log_n, r, p }) => {
                (slot.n, slot.r, slot.p) = (Some(1 << log_n), Some(r), Some(p));
            }
            Kdf::Argon2id(Argon2id { memory_kib, passes, lanes }) => {
                slot.kdf = KdfName::Argon2id;
                (slot.memory_kib, slot.passes, slot.lanes) = (Some(memory_kib), Some(passes), Some(lanes));
            }
        }
        slot
    }

    /// Returns the key derivation and its salt, checked.
    pub(crate) fn check(&self) -> Result<(Kdf, Vec<u8>), ConfigError> {
        let scrypt = (self.n, self.r, self.p);
        let argon2 = (self.memory_kib, self.passes, self.lanes);
        let kdf = match (self.kdf, scrypt, argon2) {
            (KdfName::Scrypt, (Some(n), Some(r), Some(p)), (None, None, None)) => Kdf::Scrypt(scrypt_of(n, r, p)?),
            (KdfName::Argon2id, (None, None, None), (Some(memory_kib), Some(passes), Some(lanes))) => {
                Kdf::Argon2id(Argon2id { memory_kib, passes, lanes })
            }
            _ => {
                let problem = "not with N, R, P for scrypt, or MemoryKiB, Passes, Lanes for argon2id".to_owned();
                return Err(ConfigError::Field { field: "KeySlots", problem });
            }
        };
        kdf.check()?;
        Ok((kdf, salt_of(&self.salt)?))
    }
}

fn scrypt_of(n: u64, r: u32, p: u32) -> Result<Scrypt, ConfigError> {
    let log_n = n.is_power_of_two().then(|| n.trailing_zeros()).and_then(|log_n| u8::try_from(log_n).ok());
    let problem = || format!("{n} is not a power of two");
    let log_n = log_n.ok_or_else(|| ConfigError::Field { field: "N of scrypt", problem: problem() })?;
    Ok(Scrypt { log_n, r, p })
}

fn salt_of(text: &str) -> Result<Vec<u8>, ConfigError> {
    let problem = format!("not base64 of {} to {} bytes", SALT.start(), SALT.end());
    let salt = base64::decode_standard(text.as_bytes()).filter(|salt| SALT.contains(&salt.len()));
    salt.ok_or(ConfigError::Field { field: "Salt", problem })
}

/// Decodes an encrypted master key of `size` bytes.
pub(crate) fn encrypted_key(text: &str, size: usize) -> Result<Vec<u8>, ConfigError> {
    let key = base64::decode_standard(text.as_bytes()).filter(|key| key.len() == size);
    key.ok_or_else(|| ConfigError::Field { field: "EncryptedKey", problem: format!("not base64 of {size} bytes") })
}
