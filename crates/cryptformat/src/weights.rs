//! The weights of blocks in the sums of a seal.

use crate::flags::NONCE_MAX;
use aes::Aes256;
use cmac::{Cmac, KeyInit, Mac};
use core::fmt;
use cryptsys::TAG;

/// The key of weights.
pub(crate) struct Weights(Cmac<Aes256>);

impl Weights {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Cmac::new(key.into()))
    }

    /// Returns the weight of a block. A nonce has at most 24 bytes.
    pub(crate) fn of(&self, id: &[u8; 16], number: u64, nonce: &[u8], tag: &[u8; TAG]) -> u128 {
        let mut code = self.0.clone();
        code.update(id);
        code.update(&number.to_be_bytes());
        let mut padded = [0; NONCE_MAX];
        padded.iter_mut().zip(nonce).for_each(|(to, from)| *to = *from);
        code.update(&padded);
        code.update(tag);
        u128::from_le_bytes(code.finalize().into_bytes().into())
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;

    /// NIST SP 800-38B, example of AES-256 with 40 bytes: a test of the library.
    #[test]
    fn known_answer_of_cmac() {
        let key = HEXLOWER.decode(b"603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4").unwrap();
        let text = HEXLOWER
            .decode(b"6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411")
            .unwrap();
        let mut code = Cmac::<Aes256>::new_from_slice(&key).unwrap();
        code.update(&text);
        assert_eq!(HEXLOWER.encode(&code.finalize().into_bytes()), "aaf3d8f1de5640c232f5b169b9c911e6");
    }
}
