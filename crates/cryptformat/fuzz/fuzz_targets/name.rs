//! Feeds arbitrary bytes as a name below, with and without padding. The first byte selects the
//! limit of long names.

#![no_main]

use cryptformat::{Flags, Keys, MasterKey, NameFlags, NameStore, Role, ZERO_IV};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((max, name)) = bytes.split_first() else { return };
    for raw64 in [false, true] {
        let flags = NameFlags { raw64, long_name_max: (*max).max(62), dir_iv: true };
        let flags = Flags { names: Some(flags), ..Flags::default() };
        let keys = Keys::new(&flags, &MasterKey::from_bytes(&[1; 32])).expect("keys");
        if let Ok(plain) = keys.decrypt_name(name, &ZERO_IV) {
            assert_eq!(keys.encrypt_name(&plain, &ZERO_IV).as_deref(), Ok(name));
        }
        if let Ok(plain) = keys.decrypt_xattr_name(name) {
            assert_eq!(keys.encrypt_xattr_name(&plain).as_deref(), Ok(name));
        }
        let store = NameStore::new(flags.names.expect("names"));
        match store.role(name) {
            Role::Long { side } => assert_eq!(store.role(&side), Role::Side { object: name.to_vec() }),
            Role::Side { object } => assert_eq!(store.role(&object), Role::Long { side: name.to_vec() }),
            Role::Name | Role::Leftover | Role::Own => {}
        }
        if let Some(long) = store.long_name(name) {
            assert_eq!(store.role(&long.object), Role::Long { side: long.side });
            if name.len() <= 342 {
                assert_eq!(store.encrypted_name(&long.object, name).as_deref(), Some(name));
            }
        }
    }
});
