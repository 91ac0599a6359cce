//! Discards a version in the middle: what older ones need of it is given to them first.
//!
//! An older version is encoded anew, aside, against the version after the discarded one. The new
//! file is valid whether the discarded version still exists or not, so a kill at any moment leaves
//! every version readable: the other formats name the version that they refer to, and a sparse
//! version gets every block in which it differs from either.

use crate::encode::{Newer, encode};
use crate::index::Index;
use crate::names::{Letter, new_version_name, version_name};
use crate::reconstruct::{Members, Source, Stored, open_version};
use crate::seal::Seal;
use crate::sparse::Sparse;
use crate::store::{StoreFiles, give, replace};
use core::cell::Cell;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, Result};

/// Makes the older versions independent of version `discarded`. Returns those that are now stored
/// in another way, with their new letters: the caller records that ([`crate::Record::Converted`])
/// and removes their old files. Then it records that the version is discarded and removes its file.
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
    for (number, letter, stored) in dependents(cx, files, index, discarded)? {
        if let Some(letter) = encode_anew(cx, files, index, (number, letter), &stored, discarded, level)? {
            converted.push((number, letter));
        }
    }
    Ok(converted)
}

/// Whether an older version takes bytes from this one: not only the next older one can, if earlier
/// discardings were interrupted.
///
/// # Errors
/// `EIO` if a version is damaged; those of the layer below.
pub fn is_needed(cx: &Cx<'_>, files: &StoreFiles, index: &Index, number: u64) -> Result<bool> {
    Ok(!dependents(cx, files, index, number)?.is_empty())
}

/// Returns the older versions that take bytes from one, the newest first.
fn dependents(cx: &Cx<'_>, files: &StoreFiles, index: &Index, needed: u64) -> Result<Vec<(u64, Letter, Stored)>> {
    let mut found = Vec::new();
    for (distance, (number, version)) in index.versions.range(..needed).rev().enumerate() {
        // A sparse version refers to the next one only.
        if !version.letter.depends_on_newer() || (version.letter == Letter::Sparse && distance > 0) {
            continue;
        }
        let stored = files.header(cx, version.letter, *number)?.ok_or(Errno::IO)?;
        let Some(base) = stored.base else { continue };
        if version.letter == Letter::Sparse && files.seal(cx, *number)? == Seal::Changed {
            // What it lacks is lost.
            continue;
        }
        // After interrupted discardings, versions may refer to one beyond the next. Of two such
        // versions, the older never refers to a newer one than the other does. So the search ends
        // at the first that refers to one before this one.
        match index.versions.range(base.max(number.saturating_add(1))..).next() {
            Some((next, _)) if *next < needed => break,
            Some((next, _)) if *next == needed => found.push((*number, version.letter, stored)),
            _ => {}
        }
    }
    Ok(found)
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
    // Nothing follows the last version of a name that is gone.
    let is_last = after.first().is_none() && files.head.is_none();
    let newer = if is_last { None } else { Some(open_version(cx, &source, after)?) };
    let owner = files.dir.lookup(cx, Name::new(&version_name(&files.stem, letter, number))?)?.ok_or(Errno::NOENT)?.attr;
    let write = |letter: Letter| -> Result<bool> {
        let done = Cell::new(false);
        let (temporary, name) =
            (new_version_name(&files.stem, letter, number), version_name(&files.stem, letter, number));
        let replaced = replace(cx, &files.dir, &temporary, &name, |entry, file| {
            give(cx, entry, owner.uid, owner.gid)?;
            done.set(match (letter, &newer) {
                (Letter::Sparse, Some(newer)) => {
                    Sparse::write(cx, file, &stored.header, &*old, &[&*middle, &**newer]).map(|_| true)?
                }
                (Letter::Sparse, None) => Sparse::write(cx, file, &stored.header, &*old, &[]).map(|_| true)?,
                (_, Some(newer)) => {
                    encode(cx, file, letter, &stored.header, &*old, Newer { content: &**newer, base }, level)?
                }
                (_, None) => encode(cx, file, letter, &stored.header, &*old, Newer { content: &*old, base }, level)?,
            });
            // A file that is of no use must not replace one.
            if done.get() { Ok(()) } else { Err(Errno::CANCELED) }
        });
        match replaced {
            Err(Errno::CANCELED) if !done.get() => Ok(false),
            replaced => replaced.map(|()| true),
        }
    };
    let same = Some(letter).filter(|_| !is_last);
    for letter in same.into_iter().chain([Letter::Compressed, Letter::Sparse]) {
        if write(letter)? {
            return Ok(Some(letter).filter(|new| *new != index.versions.get(&number).map_or(*new, |v| v.letter)));
        }
    }
    Err(Errno::IO)
}
