//! Names, link targets and extended attributes.
#![allow(clippy::unwrap_used)]

use cryptformat::{
    BlockDamage, ContentCipher, Flags, Keys, MasterKey, NameDamage, NameFlags, NameStore, Role, XATTR_PREFIX, ZERO_IV,
    is_dir_iv, new_dir_iv, reserved_in_plain_root,
};
use proptest::prelude::*;

fn keys(names: Option<NameFlags>) -> Keys {
    Keys::new(&Flags { names, ..Flags::default() }, &MasterKey::from_bytes(&[9; 32])).unwrap()
}

fn encrypted() -> Keys {
    keys(Some(NameFlags::default()))
}

fn valid_name() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>().prop_filter("not in names", |byte| !matches!(byte, 0 | b'/')), 1..=255)
        .prop_filter("reserved", |name| !matches!(name.as_slice(), b"." | b".."))
}

proptest! {
    #[test]
    fn names_come_back(name in valid_name(), iv in any::<[u8; 16]>(), raw64 in any::<bool>(), max in 62..=255u8) {
        let flags = NameFlags { raw64, long_name_max: max, ..NameFlags::default() };
        let keys = keys(Some(flags));
        let stored = keys.encrypt_name(&name, &iv).unwrap();
        prop_assert_eq!(keys.decrypt_name(&stored, &iv), Ok(name));
        let store = NameStore::new(flags);
        prop_assert_eq!(store.role(&stored), Role::Name);
        let long = store.long_name(&stored);
        prop_assert_eq!(long.is_some(), stored.len() > usize::from(max));
        if let Some(long) = long {
            prop_assert!(long.side.len() <= 255);
            prop_assert_eq!(store.role(&long.object), Role::Long { side: long.side.clone() });
            prop_assert_eq!(store.role(&long.side), Role::Side { object: long.object.clone() });
            prop_assert_eq!(store.encrypted_name(&long.object, &long.content), Some(stored));
        }
    }

    /// Names are not authenticated: by chance, something else decrypts to a name. That name then
    /// encrypts to nothing but this.
    #[test]
    fn each_name_has_one_encryption(stored in "[A-Za-z0-9_=-]{21,64}", iv in any::<[u8; 16]>(), raw64 in any::<bool>()) {
        let keys = keys(Some(NameFlags { raw64, ..NameFlags::default() }));
        if let Ok(name) = keys.decrypt_name(stored.as_bytes(), &iv) {
            prop_assert_eq!(keys.encrypt_name(&name, &iv).unwrap(), stored.as_bytes());
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let keys = encrypted();
        let _ = (keys.decrypt_name(&bytes, &ZERO_IV), keys.open_link(&bytes), keys.decrypt_xattr_name(&bytes));
        prop_assert!(bytes.is_empty() || keys.open_xattr(&bytes).is_err());
        let store = NameStore::new(NameFlags::default());
        prop_assert_eq!(store.encrypted_name(b"gocryptfs.longname.x", &bytes), None);
        let _ = store.role(&[b"gocryptfs.longname.", &bytes[..]].concat());
    }

    #[test]
    fn links_and_values_come_back(plain in proptest::collection::vec(any::<u8>(), 1..3000), cipher in 0..3usize) {
        let cipher = [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha][cipher];
        let keys = Keys::new(&Flags { cipher, ..Flags::default() }, &MasterKey::from_bytes(&[9; 32])).unwrap();
        prop_assert_eq!(keys.open_link(&keys.seal_link(&plain).unwrap()), Ok(plain.clone()));
        prop_assert_eq!(keys.open_xattr(&keys.seal_xattr(&plain).unwrap()), Ok(plain));
    }
}

#[test]
fn invalid_names_are_refused_in_both_directions() {
    let keys = encrypted();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert_eq!(keys.encrypt_name(name, &ZERO_IV), Err(NameDamage::Invalid));
        // An attribute's name may be what a file's name can't be, so it serves to encrypt them.
        if !name.is_empty() && !name.contains(&0) {
            let stored = keys.encrypt_xattr_name(name).unwrap();
            let stored = stored.strip_prefix(XATTR_PREFIX).unwrap();
            assert_eq!(keys.decrypt_name(stored, b"xattr_name_iv_xx"), Err(NameDamage::Invalid));
        }
    }
    assert_eq!(keys.encrypt_name(&[b'x'; 256], &ZERO_IV), Err(NameDamage::TooLong));
    assert_eq!(keys.encrypt_name(&[b'x'; 255], &ZERO_IV).unwrap().len(), 342);
}

#[test]
fn altered_names_are_refused_or_another_name() {
    let keys = encrypted();
    let stored = keys.encrypt_name(b"a name", &[1; 16]).unwrap();
    assert_eq!(stored.len(), 22);
    let mut accepted = 0;
    for at in 0..stored.len() {
        for byte in (0..=255).filter(|&byte| byte != stored[at]) {
            let mut altered = stored.clone();
            altered[at] = byte;
            match keys.decrypt_name(&altered, &[1; 16]) {
                Ok(name) => {
                    assert_ne!(name, b"a name");
                    accepted += 1;
                }
                Err(NameDamage::Encoding | NameDamage::Forged | NameDamage::Invalid) => {}
                Err(other) => unreachable!("{other}"),
            }
        }
    }
    // Padding is valid by chance once in 255.
    assert!(accepted < 30, "{accepted}");
    assert!(keys.decrypt_name(&stored, &[2; 16]).is_err(), "the name of another directory");
    assert_eq!(keys.decrypt_name(&stored[..21], &[1; 16]), Err(NameDamage::Encoding));
    assert_eq!(keys.decrypt_name(b"", &[1; 16]), Err(NameDamage::Length));
    assert_eq!(keys.decrypt_name(b"AAAA", &[1; 16]), Err(NameDamage::Length));
    assert_eq!(keys.decrypt_name(&[b'A'; 345], &[1; 16]), Err(NameDamage::Length));
    for suffix in ["\n", "\r", "=", "==", " "] {
        let altered = [&stored, suffix.as_bytes()].concat();
        assert_eq!(keys.decrypt_name(&altered, &[1; 16]), Err(NameDamage::Encoding), "{suffix:?}");
    }
}

#[test]
fn plain_names_stay_as_they_are() {
    let keys = keys(None);
    assert_eq!(keys.encrypt_name(b"a name", &ZERO_IV).unwrap(), b"a name");
    assert_eq!(keys.decrypt_name(b"a name", &ZERO_IV).unwrap(), b"a name");
    assert_eq!(keys.decrypt_name(b"..", &ZERO_IV), Err(NameDamage::Invalid));
    assert_eq!(keys.seal_link(b"/etc").unwrap(), b"/etc");
    assert_eq!(keys.open_link(b"/etc").unwrap(), b"/etc");
    assert_eq!(keys.link_max(), 4095);
    // The names of attributes are encrypted all the same, with padding.
    assert!(keys.encrypt_xattr_name(b"user.x").unwrap().ends_with(b"=="));
    assert!(reserved_in_plain_root(b"gocryptfs.conf") && !reserved_in_plain_root(b"gocryptfs.diriv"));
}

#[test]
fn roles() {
    let hash = "A".repeat(43);
    let padded = NameStore::new(NameFlags { raw64: false, ..NameFlags::default() });
    let store = NameStore::new(NameFlags::default());
    let long = format!("gocryptfs.longname.{hash}");
    let side = format!("{long}.name");
    assert_eq!(store.role(long.as_bytes()), Role::Long { side: side.clone().into_bytes() });
    assert_eq!(store.role(side.as_bytes()), Role::Side { object: long.clone().into_bytes() });
    assert_eq!(padded.role(format!("{long}=").as_bytes()), Role::Long { side: format!("{long}=.name").into_bytes() });
    for (name, role) in [
        ("gocryptfs.diriv.rmdir.0", Role::Leftover),
        ("gocryptfs.diriv.rmdir.18446744073709551615", Role::Leftover),
        ("gocryptfs.diriv.rmdir.", Role::Own),
        ("gocryptfs.diriv.rmdir.x1", Role::Own),
        ("gocryptfs.diriv", Role::Own),
        ("gocryptfs.conf", Role::Own),
        ("gocryptfs.conf.tmp", Role::Own),
        ("gocryptfs.longname.", Role::Own),
        ("gocryptfs.longname.AAAA", Role::Own),
        (format!("{long}=").as_str(), Role::Own),
        (format!("{long}A").as_str(), Role::Own),
        (format!("{side}.name").as_str(), Role::Own),
        ("gocryptfs", Role::Name),
        ("anything else", Role::Name),
    ] {
        assert_eq!(store.role(name.as_bytes()), role, "{name}");
    }
}

#[test]
fn side_files_are_bound_to_their_object() {
    let store = NameStore::new(NameFlags::default());
    let keys = encrypted();
    let long = store.long_name(&keys.encrypt_name(&[b'x'; 200], &ZERO_IV).unwrap()).unwrap();
    for at in 0..long.content.len() {
        let mut altered = long.content.clone();
        altered[at] ^= 1;
        assert_eq!(store.encrypted_name(&long.object, &altered), None);
    }
    assert_eq!(store.encrypted_name(&long.object, &[]), None);
    assert_eq!(store.encrypted_name(&long.object, &vec![b'A'; 100_000]), None);
    assert_eq!(store.encrypted_name(&long.object, &long.content[1..]), None);
}

#[test]
fn initialization_vectors() {
    assert!(is_dir_iv(&new_dir_iv().unwrap()));
    assert_ne!(new_dir_iv(), new_dir_iv());
    for wrong in [&[][..], &[0; 16], &[1; 15], &[1; 17]] {
        assert!(!is_dir_iv(wrong));
    }
    let keys = encrypted();
    assert_ne!(keys.encrypt_name(b"x", &[1; 16]), keys.encrypt_name(b"x", &[2; 16]));
}

#[test]
fn altered_links_are_refused() {
    for names in [NameFlags::default(), NameFlags { raw64: false, ..NameFlags::default() }] {
        let keys = keys(Some(names));
        let stored = keys.seal_link(b"some/target").unwrap();
        for at in 0..stored.len() {
            for bit in 0..8 {
                let mut altered = stored.clone();
                altered[at] ^= 1 << bit;
                assert!(keys.open_link(&altered).is_err());
            }
        }
        let longest = vec![b'x'; keys.link_max()];
        assert!(keys.seal_link(&longest).unwrap().len() <= 4095);
        assert_eq!(keys.seal_link(&vec![b'x'; keys.link_max() + 1]), Err(BlockDamage::TooLong));
        assert_eq!(keys.open_link(&vec![b'A'; 4096]), Err(BlockDamage::TooLong));
        assert!(keys.seal_link(b"").is_err());
    }
}

#[test]
fn the_stored_length_of_a_link_tells_its_length() {
    for cipher in [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha] {
        let flags = Flags { cipher, ..Flags::default() };
        let keys = Keys::new(&flags, &MasterKey::from_bytes(&[7; 32])).unwrap();
        for len in (1..100).chain([keys.link_max()]) {
            let stored = keys.seal_link(&vec![b'x'; len]).unwrap().len() as u64;
            assert_eq!(flags.link_size(stored), Some(len as u64));
        }
        for wrong in [0, 1, 5, 40, 4096, u64::MAX] {
            assert_eq!(flags.link_size(wrong), None, "{wrong}");
        }
    }
    let padded = Flags { names: Some(NameFlags { raw64: false, ..NameFlags::default() }), ..Flags::default() };
    assert_eq!(padded.link_size(100), None);
    assert_eq!(Flags { names: None, ..Flags::default() }.link_size(100), Some(100));
}

#[test]
fn altered_attributes_are_refused() {
    let keys = encrypted();
    let value = keys.seal_xattr(b"value").unwrap();
    for bit in 0..value.len() * 8 {
        let mut altered = value.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(keys.open_xattr(&altered), Err(BlockDamage::Forged));
    }
    assert_eq!(keys.seal_xattr(b"").unwrap(), b"");
    assert_eq!(keys.open_xattr(b"").unwrap(), b"");
    assert_eq!(keys.seal_xattr(&vec![0; 65_537]), Err(BlockDamage::TooLong));
    let text = data_encoding::BASE64URL_NOPAD.encode(&value);
    assert_eq!(keys.open_xattr(text.as_bytes()).unwrap(), b"value", "as old versions stored it");
    assert_eq!(keys.decrypt_xattr_name(b"user.comment"), Err(NameDamage::Prefix));
    assert_eq!(keys.encrypt_xattr_name(b""), Err(NameDamage::Invalid));
    assert_eq!(keys.encrypt_xattr_name(b"a\0b"), Err(NameDamage::Invalid));
    let name = keys.encrypt_xattr_name(b"user.comment").unwrap();
    assert_eq!(keys.decrypt_xattr_name(&name).unwrap(), b"user.comment");
    assert_eq!(name, keys.encrypt_xattr_name(b"user.comment").unwrap());
}
