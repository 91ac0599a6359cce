//! Rebuilding the index of one set from its version files.

use std::collections::BTreeMap;
use versionset::{Cause, Flags, Index, Letter, Record, StoreFiles, Version, Who, just_after, version_name};
use vnode::{Cx, Entry, Name, Result, Time};

/// Returns the index of a set in `files` whose version files are `found`. What the old index knows
/// of them is kept; the rest comes from their headers and attributes.
pub(crate) fn rebuilt(
    cx: &Cx<'_>,
    files: &StoreFiles,
    old: &Index,
    found: &[(u64, Letter)],
    has_head: bool,
) -> Result<Index> {
    let mut letters: BTreeMap<u64, Letter> = BTreeMap::new();
    for (number, letter) in found {
        // Two files of one version: a conversion was interrupted. The one that needs no other
        // version counts.
        let known = letters.entry(*number).or_insert(*letter);
        if known.depends_on_newer() && !letter.depends_on_newer() {
            *known = *letter;
        }
    }
    // Without its record, older versions would take the bytes of a lost version from a newer one. A
    // record that is newer than all files was written before a kill, and the file never made.
    let (oldest, newest) = (letters.keys().next().copied(), letters.keys().next_back().copied());
    let mut old = old.clone();
    if has_head {
        old.retract_after(newest.unwrap_or(0));
    }
    for (number, version) in &old.versions {
        if Some(*number) > oldest && Some(*number) < newest {
            letters.entry(*number).or_insert(version.letter);
        }
    }
    let mut index = Index::default();
    index.apply(Record::Next(old.next()));
    if let Some(name) = &old.name {
        index.apply(Record::Name(name.clone()));
    }
    let mut before = None;
    for (number, letter) in letters {
        let version = match old.versions.get(&number) {
            Some(version) => Version { letter, ..version.clone() },
            None => {
                let name = version_name(&files.stem, letter, number);
                let Some(entry) = files.dir.lookup(cx, Name::new(&name)?)? else { continue };
                let version = from_file(cx, files, &entry, number, letter);
                in_order(version, before)
            }
        };
        before = Some(version.died);
        index.apply(Record::Made(version));
    }
    for (number, note) in &old.notes {
        index.apply(Record::Note(*number, note.clone()));
    }
    index.earlier_births.clone_from(&old.earlier_births);
    index.birth.clone_from(&old.birth);
    index.links.clone_from(&old.links);
    index.last_end = index.last_end.max(old.last_end);
    Ok(index)
}

/// Makes the interval of a version begin after the version before.
fn in_order(version: Version, before: Option<Time>) -> Version {
    let born = before.map_or(version.born, |before| before.max(version.born));
    Version { born, died: version.died.max(just_after(born)), ..version }
}

/// Describes a version by its header, or by the attributes of its file.
fn from_file(cx: &Cx<'_>, files: &StoreFiles, entry: &Entry, number: u64, letter: Letter) -> Version {
    let has_header = !matches!(letter, Letter::Directory | Letter::Special | Letter::Renamed);
    if has_header && let Ok(Some(stored)) = files.header(cx, letter, number) {
        return Version { number, letter, ..stored.header.version };
    }
    let attr = &entry.attr;
    Version {
        number,
        letter,
        kind: attr.kind(),
        size: attr.size,
        mode: attr.perm(),
        uid: attr.uid,
        gid: attr.gid,
        mtime: attr.mtime,
        born: attr.mtime,
        // Moving a file to the store sets its change time.
        died: attr.ctime,
        cause: Cause::Manual,
        who: Who::default(),
        flags: Flags::default(),
    }
}
