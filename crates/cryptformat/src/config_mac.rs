//! Authentication of the configuration of volumes with key slots. Without it, one who can write the
//! file can take away a feature or change `LongNameMax`, and nobody notices.

use crate::base64;
use crate::config_json::Document;
use crate::error::ConfigError;
use crate::keys;
use crate::master::MasterKey;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Purpose of the key of the code.
const INFO: &[u8] = b"strata configuration authentication";

fn code(document: &Document, master: &MasterKey) -> Result<Hmac<Sha256>, ConfigError> {
    let key = keys::derive::<32>(master, INFO);
    let mut code = Hmac::<Sha256>::new_from_slice(&*key).map_err(|_| ConfigError::Tampered)?;
    code.update(&document.authenticated()?);
    Ok(code)
}

/// Writes the code into `document`.
pub(crate) fn sign(document: &mut Document, master: &MasterKey) -> Result<(), ConfigError> {
    let code = code(document, master)?.finalize().into_bytes();
    document.config_mac = Some(base64::encode_standard(&code));
    Ok(())
}

/// Checks the code, in a time that does not depend on where it differs.
pub(crate) fn verify(document: &Document, master: &MasterKey) -> Result<(), ConfigError> {
    let stored = document.config_mac.as_ref().and_then(|text| base64::decode_standard(text.as_bytes()));
    let stored = stored.ok_or(ConfigError::Tampered)?;
    code(document, master)?.verify_slice(&stored).map_err(|_| ConfigError::Tampered)
}
