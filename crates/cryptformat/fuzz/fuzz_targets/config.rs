//! Feeds arbitrary bytes as a configuration. One that is accepted is written and read again without
//! a change, and a key derivation never needs more memory than allowed.

#![no_main]

use cryptformat::{Config, ConfigError, Keys, Limits, MasterKey};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = Config::parse(bytes) else { return };
    let written = config.to_json().expect("written");
    assert_eq!(Config::parse(&written).as_ref(), Ok(&config));
    // Enough for the cheapest parameters only, so that it stays fast.
    let opened = config.unlock(b"passphrase", Limits { memory: 2 << 20 });
    assert!(matches!(opened, Err(ConfigError::Passphrase | ConfigError::Memory { .. })));
    Keys::new(config.flags(), &MasterKey::from_bytes(&[1; 32])).expect("checked flags");
});
