//! Files and names of a volume on which a key can be tried.

use super::volume::{open_regular, small_file};
use cryptformat::{
    DIRIV_NAME, Keys, NameFlags, NameStore, Role, SEALED_HEADER, ZERO_IV, check_sealed_header, is_dir_iv, is_hole,
};
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

/// Entries that are looked at.
const ENTRIES_MAX: usize = 10_000;
/// Files and names that are collected.
const SAMPLES_MAX: usize = 200;
/// Largest whole block that is stored.
const BLOCK_MAX: usize = 4136;

/// Some files and names of a volume.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// The first bytes of files: the header and the first block, which may be followed by a part of
    /// the second one.
    files: Vec<Vec<u8>>,
    /// Encrypted names, with the initialization vectors of their directories.
    names: Vec<([u8; 16], Vec<u8>)>,
    /// Whether the root has an initialization vector.
    pub(super) has_dir_iv: bool,
    /// Length of the shortest name that is stored by its hash.
    shortest_long: Option<usize>,
}

impl Samples {
    /// Collects samples, from the root of the volume downwards.
    pub(super) fn collect(root: &Path) -> std::io::Result<Self> {
        let mut samples = Self { has_dir_iv: dir_iv(root).is_some(), ..Self::default() };
        let mut directories = vec![root.to_owned()];
        let mut seen = 0;
        // A breadth-first search: directories are appended while they are read.
        let mut next = 0;
        while let Some(dir) = directories.get(next).cloned() {
            next += 1;
            for entry in fs::read_dir(&dir)? {
                let entry = entry?;
                seen += 1;
                if seen > ENTRIES_MAX || samples.files.len() >= SAMPLES_MAX {
                    return Ok(samples);
                }
                if samples.add(&dir, &entry)? {
                    directories.push(entry.path());
                }
            }
        }
        Ok(samples)
    }

    /// Adds an entry. Returns whether it is a directory.
    fn add(&mut self, dir: &Path, entry: &fs::DirEntry) -> std::io::Result<bool> {
        let (name, kind) = (entry.file_name().into_vec(), entry.file_type()?);
        let role = [true, false].map(|raw64| NameStore::new(NameFlags { raw64, ..NameFlags::default() }).role(&name));
        let side = role.iter().find_map(|role| if let Role::Long { side } = role { Some(side.clone()) } else { None });
        let encrypted = match side {
            Some(side) => {
                let content = small_file(&dir.join(OsStr::from_bytes(&side))).unwrap_or_default();
                let shortest = self.shortest_long.unwrap_or(content.len()).min(content.len());
                self.shortest_long = Some(shortest);
                content
            }
            None if role.contains(&Role::Name) => name,
            None => return Ok(false),
        };
        if self.names.len() < SAMPLES_MAX {
            self.names.push((dir_iv(dir).unwrap_or(ZERO_IV), encrypted));
        }
        if kind.is_file() {
            self.files.extend(start_of(&entry.path()));
        }
        Ok(kind.is_dir())
    }

    /// Whether there is nothing that a key could decrypt.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.names.is_empty()
    }

    /// Whether the key decrypts a block or a seal. Both are authenticated, so one is proof.
    pub(super) fn opens_block(&self, keys: &Keys) -> bool {
        self.files.iter().any(|file| opens(keys, file))
    }

    /// Whether files have sealed headers, as on a bound volume.
    pub(super) fn has_sealed_headers(&self) -> bool {
        self.files.iter().any(|file| check_sealed_header(file).is_ok())
    }

    /// Whether the key decrypts names. One in 256 names decrypts by chance.
    pub(super) fn decrypts_names(&self, keys: &Keys) -> bool {
        let Some(names) = keys.names() else { return false };
        let decrypts = |(iv, name): &&([u8; 16], Vec<u8>)| {
            let iv = if names.dir_iv { iv } else { &ZERO_IV };
            keys.decrypt_name(name, iv).is_ok_and(|name| core::str::from_utf8(&name).is_ok())
        };
        let decrypted = self.names.iter().filter(decrypts).count();
        decrypted > 0 && decrypted * 16 >= self.names.len()
    }

    /// Returns the limit of encrypted names that explains which are stored by their hash.
    pub(super) fn long_name_max(&self) -> u8 {
        let shortest = self.shortest_long.map(|length| length.saturating_sub(1).max(62));
        shortest.and_then(|length| u8::try_from(length).ok()).unwrap_or(u8::MAX)
    }
}

/// Whether a key decrypts the seal or the first block.
fn opens(keys: &Keys, file: &[u8]) -> bool {
    let layout = keys.layout();
    let Some((header, stored)) = file.split_at_checked(layout.header) else { return false };
    let Ok(id) = keys.check_header(header) else { return false };
    // The first block may be a hole; a seal is authenticated as well.
    if keys.is_bound() && keys.open_header(&id, header).is_ok() {
        return true;
    }
    let block = stored.get(..layout.stored).unwrap_or(stored);
    let mut plain = vec![0; block.len().saturating_sub(layout.overhead())];
    !is_hole(&layout, block) && keys.open_block(&id, 0, block, &mut plain).is_ok()
}

fn dir_iv(dir: &Path) -> Option<[u8; 16]> {
    let iv = small_file(&dir.join(OsStr::from_bytes(DIRIV_NAME))).ok()?;
    is_dir_iv(&iv).then(|| iv.try_into().ok()).flatten()
}

/// Returns the first bytes of a file; `None` if it is empty.
fn start_of(path: &Path) -> Option<Vec<u8>> {
    let file = open_regular(path, false).ok()?;
    let mut start = Vec::new();
    file.take((SEALED_HEADER + BLOCK_MAX) as u64).read_to_end(&mut start).ok()?;
    (!start.is_empty()).then_some(start)
}
