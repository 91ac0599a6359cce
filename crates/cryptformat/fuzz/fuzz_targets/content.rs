//! Feeds arbitrary bytes as a header, a block, a link target and the value of an attribute, for
//! each cipher. None is authentic.

#![no_main]

use cryptformat::{ContentCipher, Flags, HEADER, Keys, MasterKey};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static KEYS: LazyLock<Vec<Keys>> = LazyLock::new(|| {
    let master = MasterKey::from_bytes(&[1; 32]);
    let ciphers = [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha];
    ciphers.map(|cipher| Keys::new(&Flags { cipher, ..Flags::default() }, &master).expect("keys")).into()
});

fuzz_target!(|bytes: &[u8]| {
    for keys in KEYS.iter() {
        let (header, block) = bytes.split_at(bytes.len().min(HEADER));
        let id = keys.check_header(header).unwrap_or([7; 16]);
        let mut plain = vec![1; block.len().saturating_sub(keys.layout().overhead())];
        assert!(keys.open_block(&id, 0, block, &mut plain).is_err());
        assert!(plain.iter().all(|&byte| byte == 0));
        assert!(keys.open_link(bytes).is_err());
        assert!(bytes.is_empty() || keys.open_xattr(bytes).is_err());
        let size = keys.layout().plain_size(bytes.len() as u64);
        assert!(size <= bytes.len() as u64);
    }
});
