//! Prints a gocryptfs.conf for features that `gocryptfs -init` can't select any more, to make the
//! fixtures of old volumes with: `cargo run -p cryptformat --example fixture_config -- siv
//! no-hkdf`.

use cryptformat::{Config, ContentCipher, Flags, Kdf, Limits, NewVolume, Passphrase, Scrypt};
use std::error::Error;
use std::io::Write;

fn main() -> Result<(), Box<dyn Error>> {
    let mut flags = Flags::default();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "siv" => flags.cipher = ContentCipher::AesSiv,
            "no-hkdf" => flags.hkdf = false,
            _ => return Err(format!("{argument}: expected siv or no-hkdf").into()),
        }
    }
    let kdf = Kdf::Scrypt(Scrypt { log_n: 10, r: 8, p: 1 });
    let passphrase = Passphrase { bytes: b"fixture password", kdf, label: "" };
    let new = NewVolume { creator: "fixture_config", flags, passphrase };
    let (config, _) = Config::create(&new, Limits::default())?;
    std::io::stdout().write_all(&config.to_json()?)?;
    Ok(())
}
