//! Prints the speed of one thread for blocks of 4 KiB: this crate's ciphers, and those of
//! RustCrypto that it does not use because they are slower.
//!
//! `cargo run --release -p cryptformat --example cipher_speed`

use aes_gcm::AesGcm;
use aes_gcm::aead::consts::U16;
use aes_gcm::aead::{AeadInOut, KeyInit};
use chacha20poly1305::XChaCha20Poly1305;
use cryptformat::{BLOCK_PLAIN, BlockDamage, ContentCipher, Flags, Keys, MasterKey, ZERO_IV};
use std::error::Error;
use std::time::{Duration, Instant};

/// Returns the shortest time of many short measurements, so that other programs disturb little.
fn fastest(mut work: impl FnMut() -> Result<(), BlockDamage>) -> Result<Duration, BlockDamage> {
    const REPEATS: u32 = 50;
    let mut best = Duration::MAX;
    for _ in 0..2000 {
        let start = Instant::now();
        for _ in 0..REPEATS {
            work()?;
        }
        best = best.min(start.elapsed());
    }
    Ok(best / REPEATS)
}

fn report(what: &str, time: Duration) {
    let rate = BLOCK_PLAIN as f64 / time.as_secs_f64() / 1e9;
    println!("{what:44} {:6} ns  {rate:5.2} GB/s", time.as_nanos());
}

fn main() -> Result<(), Box<dyn Error>> {
    let master = MasterKey::random()?;
    let plain = vec![1; BLOCK_PLAIN];
    for cipher in [ContentCipher::AesGcm, ContentCipher::XChaCha, ContentCipher::AesSiv] {
        let keys = Keys::new(&Flags { cipher, ..Flags::default() }, &master)?;
        let mut stored = vec![0; keys.layout().stored];
        let mut back = vec![0; BLOCK_PLAIN];
        report(&format!("{cipher:?}: seal"), fastest(|| keys.seal_block(&[1; 16], 0, &plain, &mut stored))?);
        report(&format!("{cipher:?}: open"), fastest(|| keys.open_block(&[1; 16], 0, &stored, &mut back))?);
    }

    let mut data = plain.clone();
    let gcm = AesGcm::<aes::Aes256, U16>::new(&[1; 32].into());
    let mut seal = || gcm.encrypt_inout_detached(&[1; 16].into(), &[1; 24], data.as_mut_slice().into());
    report("RustCrypto AES-GCM: seal", fastest(|| seal().map(|_| ()).map_err(|_| BlockDamage::Library))?);
    let mut data = plain.clone();
    let chacha = XChaCha20Poly1305::new(&[1; 32].into());
    let mut seal = || chacha.encrypt_inout_detached(&[1; 24].into(), &[1; 24], data.as_mut_slice().into());
    report("RustCrypto XChaCha20-Poly1305: seal", fastest(|| seal().map(|_| ()).map_err(|_| BlockDamage::Library))?);

    let keys = Keys::new(&Flags::default(), &master)?;
    let name =
        |name: &[u8]| fastest(|| keys.encrypt_name(name, &ZERO_IV).map(|_| ()).map_err(|_| BlockDamage::Library));
    println!("{:44} {:6} ns", "a name of 12 bytes", name(b"a short name")?.as_nanos());
    println!("{:44} {:6} ns", "a name of 255 bytes", name(&[b'x'; 255])?.as_nanos());
    Ok(())
}
