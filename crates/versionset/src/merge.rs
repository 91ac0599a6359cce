//! Discards a version in the middle: what older ones need of it is given to them first.
//!
//! An older version is encoded anew, aside, against the version after the discarded one. The new
//! file is valid whether the discarded version still exists or not, so a kill at any moment leaves
//! every version readable: the other formats name the version that they refer to, and a sparse
//! version gets every block in which it differs from either.

use crate::encode::{Newer, encode};
use crate::index::Index;
use crate::names::{Letter, new_version_name, version_name};
use crate::reconstruct::{Members, Source, Stored, open_version, read_header};
use crate::sparse::Sparse;
use crate::store::{StoreFiles, replace};
use core::cell::Cell;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Makes the older versions independent of version `discarded`. Returns those that are now stored in
/// another way, with their new letters: the caller records that ([`crate::Record::Converted`]) and
/// removes their old files. Then it records that the version is discarded and removes its file.
///
/// # Errors
/// `ENOENT` if there is no such version; `EIO` if a version is damaged; those of the layer below.
/// Every version is unchanged or encoded anew then.
pub fn absorb(
    cx: &Cx<'_>,
    files: &StoreFiles,
    index: &Index,
    discarded: u64,
    level: i32,
) -> Result<Vec<(u64, Letter)>> {
    if !index.versions.contains_key(&discarded) {
        return Err(Errno::NOENT);
    }
    let mut converted = Vec::new();
    for (number, version) in index.versions.range(..discarded).rev() {
        if !version.letter.depends_on_newer() {
            // After an interrupted discarding, a version may refer to one beyond this one.
            continue;
        }
        let (file, len) = files.open(cx, version.letter, *number)?;
        let stored = read_header(cx, version.letter, &*file, len)?.ok_or(Errno::IO)?;
        let next = stored.base.and_then(|base| {
            let base = base.max(number.saturating_add(1));
            index.versions.range(base..).next().map(|(next, _)| *next)
        });
        if stored.base.is_none() {
            continue;
        }
        if next != Some(discarded) {
            return Ok(converted);
        }
        if let Some(letter) = encode_anew(cx, files, index, (*number, version.letter), &stored, discarded, level)? {
            converted.push((*number, letter));
        }
    }
    Ok(converted)
}

/// Encodes a version against the one after the discarded one. Returns its letter if it is another.
fn encode_anew(
    cx: &Cx<'_>,
    files: &StoreFiles,
    index: &Index,
    (number, letter): (u64, Letter),
    stored: &Stored,
    discarded: u64,
    level: i32,
) -> Result<Option<Letter>> {
    let source: Arc<dyn Source> = Arc::new(files.clone());
    let old = open_version(cx, &source, Members::of(index, number).ok_or(Errno::NOENT)?)?;
    let middle = open_version(cx, &source, Members::of(index, discarded).ok_or(Errno::NOENT)?)?;
    let after = Members::from(index, discarded.saturating_add(1));
    let base = after.first().unwrap_or(index.next());
    let newer = open_version(cx, &source, after)?;
    let write = |letter: Letter| -> Result<bool> {
        let done = Cell::new(false);
        let (temporary, name) =
            (new_version_name(&files.stem, letter, number), version_name(&files.stem, letter, number));
        let replaced = replace(cx, &files.dir, &temporary, &name, |file| {
            done.set(match letter {
                Letter::Sparse => Sparse::write(cx, file, &stored.header, &*old, &[&*middle, &*newer]).map(|_| true)?,
                _ => encode(cx, file, letter, &stored.header, &*old, Newer { content: &*newer, base }, level)?,
            });
            // A file that is of no use must not replace one.
            if done.get() { Ok(()) } else { Err(Errno::CANCELED) }
        });
        match replaced {
            Err(Errno::CANCELED) if !done.get() => Ok(false),
            replaced => replaced.map(|()| true),
        }
    };
    for letter in [letter, Letter::Compressed, Letter::Sparse] {
        if write(letter)? {
            return Ok(Some(letter).filter(|new| *new != index.versions.get(&number).map_or(*new, |v| v.letter)));
        }
    }
    Err(Errno::IO)
}
