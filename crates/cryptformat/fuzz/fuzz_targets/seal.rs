//! Feeds arbitrary bytes as the decrypted body of a sealed header, for each cipher. One that is
//! accepted is sealed and opened again without a change. The same bytes as a header are refused.

#![no_main]

use cryptformat::{ContentCipher, Flags, Keys, MasterKey, SEALED_HEADER};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

const ID: &[u8; 16] = b"the id of a file";
/// Where the encryption of the body begins.
const BODY: usize = 18;

static KEYS: LazyLock<Vec<Keys>> = LazyLock::new(|| {
    let master = MasterKey::from_bytes(&[1; 32]);
    let ciphers = [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha];
    let flags = |cipher| Flags { cipher, key_slots: true, bound: true, ..Flags::default() };
    ciphers.map(|cipher| Keys::new(&flags(cipher), &master).expect("keys")).into()
});

fuzz_target!(|bytes: &[u8]| {
    for keys in KEYS.iter() {
        let mut plain = bytes.to_vec();
        plain.resize(SEALED_HEADER - BODY - keys.layout().overhead(), 0);
        let mut header = [&[0, 3][..], ID, &[0; SEALED_HEADER - BODY]].concat();
        // A body is encrypted as a block of this number.
        keys.seal_block(ID, u64::MAX, &plain, &mut header[BODY..]).expect("sealed");
        if let Ok(seal) = keys.open_header(ID, &header) {
            keys.seal_header(ID, &seal, &mut header).expect("sealed");
            assert_eq!(keys.open_header(ID, &header), Ok(seal));
        }
        header.fill(0);
        header.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        assert!(keys.open_header(ID, &header).is_err());
    }
});
