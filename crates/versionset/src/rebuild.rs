//! Rebuilds an index from the names and headers of the version files.
//!
//! Used when an index is missing or ends too early, and by fsck. What only the index knows is lost
//! with it, unless the records before the damage contain it: notes, flags, births. When versions
//! and heads began and ended is inferred: see `traces`.

use crate::header::Header;
use crate::index::{Index, Record};
use crate::names::{Letter, StoreName, new_index_name, parse, version_name};
use crate::reconstruct::Stored;
use crate::store::StoreFiles;
use crate::traces::{Traces, Unrecorded, date, is_whole, lost_birth, note_other_head};
use crate::version::Version;
use std::collections::BTreeMap;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Name, Result, Vnode};

/// The files of one set, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetFiles {
    /// Whether there is an index.
    pub has_index: bool,
    /// Numbers and letters of the version files. A number occurs twice if a conversion was
    /// interrupted.
    pub versions: Vec<(u64, Letter)>,
    /// Names of files that were being built.
    pub unfinished: Vec<Vec<u8>>,
}

/// The sets of a store by their stems.
pub type Sets = BTreeMap<Vec<u8>, SetFiles>;

/// Lists a store: the files of each set by its stem, and the names that are no files of a set.
///
/// # Errors
/// Those of the layer below.
pub fn list(cx: &Cx<'_>, store: &dyn Vnode) -> Result<(Sets, Vec<Vec<u8>>)> {
    let mut sets = Sets::new();
    let mut others = Vec::new();
    let mut cookie = 0;
    loop {
        let before = cookie;
        store.readdir(cx, cookie, &mut |entry| {
            cookie = entry.cookie;
            add(&mut sets, &mut others, entry.name.as_bytes());
            true
        })?;
        if cookie == before {
            return Ok((sets, others));
        }
    }
}

fn add(sets: &mut Sets, others: &mut Vec<Vec<u8>>, name: &[u8]) {
    match parse(name) {
        StoreName::Index(stem) => sets.entry(stem.to_vec()).or_default().has_index = true,
        StoreName::Version { stem, letter, number } => {
            sets.entry(stem.to_vec()).or_default().versions.push((number, letter));
        }
        StoreName::Unfinished(stem) => sets.entry(stem.to_vec()).or_default().unfinished.push(name.to_vec()),
        StoreName::Other if name == b"." || name == b".." => {}
        StoreName::Other => others.push(name.to_vec()),
    }
}

/// What [`rebuild`] found.
#[derive(Debug, Default)]
pub struct Rebuilt {
    /// The index.
    pub index: Index,
    /// Names of files that were being built. Nobody needs them.
    pub unfinished: Vec<Vec<u8>>,
    /// Names of files whose version is also stored in another way, by an interrupted conversion.
    pub superseded: Vec<Vec<u8>>,
    /// Numbers of versions in the index that can't be reconstructed: their file is missing or
    /// damaged, or a newer version, or the head, that they depend on is missing.
    pub orphaned: Vec<u64>,
    /// Names of files that can't be read, with the reason. Their versions are in the index.
    pub unreadable: Vec<(Vec<u8>, Errno)>,
    /// Names of copies that may lack bytes, and the names that make reading them fail.
    pub doubtful: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Rebuilds the index of a set. `salvaged` is what the records of the old index amount to;
/// attributes of versions that it contains are taken from there. Content is not read: a version may
/// still turn out to be damaged.
///
/// # Errors
/// `EINTR`, `ENOMEM` and similar errors that say nothing about the files; `EIO` and others make a
/// file unreadable.
pub fn rebuild(
    cx: &Cx<'_>,
    files: &StoreFiles,
    set: &SetFiles,
    salvaged: &Index,
    traces: &Traces<'_>,
) -> Result<Rebuilt> {
    let mut rebuilt = Rebuilt { unfinished: set.unfinished.clone(), ..Rebuilt::default() };
    let mut candidates: BTreeMap<u64, Vec<Letter>> = BTreeMap::new();
    for (number, letter) in &set.versions {
        candidates.entry(*number).or_default().push(*letter);
    }
    let mut links = Vec::new();
    let mut versions: BTreeMap<u64, Version> = BTreeMap::new();
    let mut unreadable = BTreeMap::new();
    let mut unrecorded = BTreeMap::new();
    for (number, mut letters) in candidates {
        // A self-contained file depends on less.
        letters.sort_by_key(|letter| (letter.depends_on_newer(), *letter));
        for letter in letters {
            let name = version_name(&files.stem, letter, number);
            if versions.contains_key(&number) {
                rebuilt.superseded.push(name);
                continue;
            }
            let found = Found::look(cx, files, &name, (number, letter))?;
            let known = salvaged.versions.get(&number);
            let version = match known {
                Some(known) => Version { letter, ..known.clone() },
                None => {
                    let found = Unrecorded::new(cx, (number, letter), (found.entry()?, found.header()), traces)?;
                    let version = found.version.clone();
                    unrecorded.insert(number, found);
                    version
                }
            };
            match found.needs((number, letter), known, traces) {
                Ok(needs) => {
                    links.push((number, needs));
                    versions.insert(number, version);
                }
                Err(errno) => {
                    unreadable.insert(number, (letter, version));
                    rebuilt.unreadable.push((name, errno));
                }
            }
        }
    }
    let unreadable: BTreeMap<u64, Version> = unreadable
        .into_iter()
        .filter(|(number, _)| !versions.contains_key(number))
        .map(|(number, (letter, version))| {
            if version.letter != letter {
                let name = |letter| version_name(&files.stem, letter, number);
                rebuilt.doubtful.push((name(letter), name(version.letter)));
            }
            (number, version)
        })
        .collect();
    for (number, version) in lost(&versions, &unreadable, salvaged) {
        links.push((number, Needs::Lost));
        versions.insert(number, version);
    }
    links.sort_by_key(|(number, _)| *number);
    let mut index = salvaged.clone();
    if traces.head.is_some() {
        index.retract_after(versions.keys().next_back().copied().unwrap_or(0));
    }
    rebuilt.orphaned = orphaned(&links, &versions, files.head.is_some());
    // Numbers are not used again, not even those of files that can't be read.
    let last = set.versions.iter().map(|(number, _)| *number).max().unwrap_or(0);
    date(&mut index, versions, &unrecorded, traces);
    index.apply(Record::Next(last.saturating_add(1)));
    note_other_head(&mut index, traces);
    if let Some(birth) = lost_birth(&index, traces) {
        index.apply(Record::Born(birth));
    }
    index.rewritten();
    rebuilt.index = index;
    Ok(rebuilt)
}

/// What the content of a version depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Nothing.
    Nothing,
    /// The first version from this number on, or the head.
    From(u64),
    /// It has no content that another could depend on.
    NoContent,
    /// Its file is missing or damaged.
    Lost,
}

/// Returns the versions without a readable file that stay in the index: without them, older ones
/// that depend on them would take their bytes from a version that is too new, and the name would
/// seem to have had nothing. A record without a file that is newer than all files was written
/// before a kill, and the file never made.
fn lost(
    found: &BTreeMap<u64, Version>,
    unreadable: &BTreeMap<u64, Version>,
    salvaged: &Index,
) -> BTreeMap<u64, Version> {
    let newest = found.keys().chain(unreadable.keys()).max().copied().unwrap_or(0);
    let missing = salvaged.versions.range(..newest).map(|(number, version)| (*number, version.clone()));
    let all: BTreeMap<u64, Version> = missing.chain(unreadable.clone()).collect();
    let has_older = |number: u64| found.range(..number).any(|(_, older)| older.letter.depends_on_newer());
    let is_wanted = |number: u64| has_older(number) || unreadable.contains_key(&number);
    all.into_iter().filter(|(number, _)| !found.contains_key(number) && is_wanted(*number)).collect()
}

/// A version file.
struct Found {
    entry: Result<Entry>,
    /// What it says of itself; `None` in a format without a header.
    stored: Result<Option<Stored>>,
}

impl Found {
    /// Looks at a file of a set.
    ///
    /// # Errors
    /// Those that say nothing about the file.
    fn look(cx: &Cx<'_>, files: &StoreFiles, name: &[u8], (number, letter): (u64, Letter)) -> Result<Self> {
        let name = Name::new(name)?;
        let entry = files.dir.lookup(cx, name).and_then(|entry| entry.ok_or(Errno::NOENT));
        let stored = match letter {
            Letter::Full | Letter::Directory | Letter::Special | Letter::Renamed => Ok(None),
            _ => files.header(cx, letter, number),
        };
        match entry.as_ref().err().or(stored.as_ref().err()) {
            Some(errno @ (&Errno::INTR | &Errno::NOMEM | &Errno::AGAIN | &Errno::MFILE | &Errno::NFILE)) => Err(*errno),
            _ => Ok(Self { entry, stored }),
        }
    }

    fn entry(&self) -> Result<&Entry> {
        self.entry.as_ref().map_err(|errno| *errno)
    }

    fn header(&self) -> Option<&Header> {
        self.stored.as_ref().ok()?.as_ref().map(|stored| &stored.header)
    }

    /// Returns what the content depends on.
    ///
    /// # Errors
    /// `EIO` and others if it can't be read.
    fn needs(&self, (number, letter): (u64, Letter), known: Option<&Version>, traces: &Traces<'_>) -> Result<Needs> {
        let entry = self.entry()?;
        let stored = match letter {
            Letter::Directory | Letter::Special | Letter::Renamed => return Ok(Needs::NoContent),
            Letter::Full if !is_whole(&entry.attr, known, traces) => return Err(Errno::IO),
            _ => self.stored.clone()?,
        };
        let Some(base) = stored.as_ref().and_then(|stored| stored.base) else { return Ok(Needs::Nothing) };
        let is_own = stored.is_some_and(|stored| stored.header.version.number == number);
        if !is_own && known.is_none() {
            return Err(Errno::IO);
        }
        Ok(Needs::From(if base == 0 { number.saturating_add(1) } else { base }))
    }
}

/// Returns the versions whose content depends on one that is missing.
fn orphaned(links: &[(u64, Needs)], versions: &BTreeMap<u64, Version>, has_head: bool) -> Vec<u64> {
    let mut complete: BTreeMap<u64, bool> = BTreeMap::new();
    let mut orphaned = Vec::new();
    for (number, needs) in links.iter().rev().filter(|(number, _)| versions.contains_key(number)) {
        let is_complete = match needs {
            Needs::Nothing => true,
            Needs::NoContent | Needs::Lost => false,
            Needs::From(base) => {
                let newer = complete.range((*base).max(number.saturating_add(1))..).next();
                newer.map_or(has_head, |(_, is_complete)| *is_complete)
            }
        };
        if !is_complete && *needs != Needs::NoContent {
            orphaned.push(*number);
        }
        complete.insert(*number, is_complete);
    }
    orphaned.reverse();
    orphaned
}

/// Writes the index of a set anew, aside, and renames it.
///
/// # Errors
/// Those of the layer below. The old index is unchanged then.
pub fn write_index(cx: &Cx<'_>, store: &Arc<dyn Vnode>, stem: &[u8], index: &Index) -> Result<()> {
    let name = crate::names::index_name(stem);
    crate::store::replace(cx, store, &new_index_name(stem), &name, |_, file| {
        crate::content::write_full(cx, &*file, &index.to_bytes(), 0)
    })
}
