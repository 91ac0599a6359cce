//! The options of a key derivation.

use clap::Args;
use cryptformat::{Argon2id, Kdf, Scrypt};

/// How a new passphrase is turned into a key.
#[derive(Clone, Copy, Debug, Args)]
pub struct KdfArgs {
    /// Derive the key with Argon2id instead of scrypt.
    #[arg(long, conflicts_with = "scrypt_n")]
    pub argon2id: bool,
    /// Binary logarithm of the cost of scrypt: 10 to 28. The default, 16, takes 64 MiB of memory;
    /// each further step doubles time and memory.
    #[arg(long, value_name = "LOG2", value_parser = clap::value_parser!(u8).range(10..=28))]
    pub scrypt_n: Option<u8>,
}

impl KdfArgs {
    /// Returns the key derivation, `otherwise` without an option.
    pub(super) fn choose(self, otherwise: Kdf) -> Kdf {
        match (self.argon2id, self.scrypt_n) {
            (true, _) => Kdf::Argon2id(Argon2id::default()),
            (false, Some(log_n)) => Kdf::Scrypt(Scrypt { log_n, ..Scrypt::default() }),
            (false, None) => otherwise,
        }
    }
}

/// Describes a key derivation.
pub(super) fn describe(kdf: Kdf) -> String {
    let memory = crate::progress::amount(kdf.memory());
    match kdf {
        Kdf::Scrypt(scrypt) => {
            format!("scrypt, N 2^{}, R {}, P {}: {memory} of memory", scrypt.log_n, scrypt.r, scrypt.p)
        }
        Kdf::Argon2id(argon2) => {
            format!("Argon2id, {} passes, {} lanes: {memory} of memory", argon2.passes, argon2.lanes)
        }
    }
}
