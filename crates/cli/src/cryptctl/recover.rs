//! Recovery with a printed master key: whether it is the one of a volume, and the features of a
//! volume whose configuration is lost.

use super::passphrase::ask;
use super::samples::Samples;
use super::volume::{Volume, failure};
use crate::exit::Failure;
use cryptformat::{ContentCipher, Flags, Keys, MasterKey, NameFlags};
use std::path::Path;

/// Reads a printed master key.
pub(super) fn ask_master_key(dir: &Path) -> Result<MasterKey, Failure> {
    let text = ask("Master key: ")?;
    MasterKey::from_paper(&String::from_utf8_lossy(&text)).map_err(|error| failure(dir, &error))
}

/// Fails if a master key is not the one of the volume. A configuration without key slots can't
/// tell, so the key is tried on files and names.
pub(super) fn check(volume: &Volume, master: &MasterKey) -> Result<(), Failure> {
    volume.config.verify(master).map_err(|error| volume.failure(&error))?;
    let keys = Keys::new(volume.config.flags(), master).map_err(|error| volume.failure(&error))?;
    let samples = samples(&volume.dir)?;
    if samples.is_empty() || samples.opens_block(&keys) || samples.decrypts_names(&keys) {
        return Ok(());
    }
    let shown = volume.dir.display();
    Err(Failure::usage(format!("{shown}: this is not its master key: it decrypts no file and no name")))
}

/// Finds out the features of a volume without a configuration: those with which the key decrypts
/// files and names.
pub(super) fn features(dir: &Path, master: &MasterKey) -> Result<Flags, Failure> {
    let samples = samples(dir)?;
    for flags in candidates(&samples) {
        let keys = Keys::new(&flags, master).map_err(|error| failure(dir, &error))?;
        // Without encryption of names, every name is a name.
        if samples.opens_block(&keys) && (flags.names.is_none() || samples.decrypts_names(&keys)) {
            return Ok(flags);
        }
    }
    let shown = dir.display();
    Err(Failure::usage(format!(
        "{shown}: this is not its master key, or there is no file with data from which to find out how it is encrypted"
    )))
}

fn samples(dir: &Path) -> Result<Samples, Failure> {
    Samples::collect(dir).map_err(|error| Failure::system(format!("{}: {error}", dir.display())))
}

/// Returns the combinations of features that a volume may have.
fn candidates(samples: &Samples) -> impl Iterator<Item = Flags> {
    let (dir_iv, bound) = (samples.has_dir_iv, samples.has_sealed_headers());
    let long_name_max = samples.long_name_max();
    let named = [true, false].map(|raw64| Some(NameFlags { dir_iv, long_name_max, raw64 }));
    let names = named.into_iter().chain((!dir_iv).then_some(None));
    names.flat_map(move |names| {
        [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha].into_iter().flat_map(move |cipher| {
            let old = !bound && cipher != ContentCipher::XChaCha;
            let hkdf = [true, false].into_iter().filter(move |&hkdf| hkdf || old);
            hkdf.map(move |hkdf| Flags { cipher, names, hkdf, key_slots: bound, bound })
        })
    })
}
