//! Feeds arbitrary bytes as a name in a store: what is parsed from it makes the same name again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use versionset::{
    StoreName, index_name, is_hashed, new_index_name, new_version_name, number_of, parse, stem_of, version_name,
};

fuzz_target!(|name: &[u8]| {
    match parse(name) {
        StoreName::Index(stem) => assert_eq!(index_name(stem), name),
        StoreName::Version { stem, letter, number } => {
            assert_eq!(version_name(stem, letter, number), name);
            assert_eq!(parse(&new_version_name(stem, letter, number)), StoreName::Unfinished(stem));
        }
        StoreName::Unfinished(stem) => assert!(name.starts_with(stem) && name.ends_with(b"~")),
        StoreName::Other => {}
    }
    let _ = number_of(name);
    if name.len() <= vnode::NAME_MAX {
        let stem = stem_of(name);
        assert_eq!(stem == name, !is_hashed(name) && name.len() <= 232);
        assert!(stem == name || is_hashed(&stem));
        assert!(new_version_name(&stem, versionset::Letter::Full, u64::MAX).len() <= vnode::NAME_MAX);
        if !name.is_empty() {
            assert_eq!(parse(&new_index_name(&stem)), StoreName::Unfinished(&stem));
        }
    }
});
