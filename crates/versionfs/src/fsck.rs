//! Checks the version sets of a tree that is not mounted (Versionfs paper, section 3.6): rebuilds
//! every index from the names and headers of the version files, reads every version, and finds what
//! interrupted operations left.

use crate::blocks::VolumeBlocks;
use crate::by_number::is_shown;
use crate::convert::is_content;
use crate::lost_records::with_traces;
use crate::past::head_of;
use crate::retain::remove_tree;
use crate::set::{link_stem, read_index};
use crate::walk::{self, Found};
use core::fmt;
use std::sync::Arc;
use versionset::{
    Blocks, Condition, Index, Letter, Members, Record, SetFiles, Source, StoreFiles, index_name, is_hashed,
    open_version, version_name, write_index,
};
use vnode::{Cx, Errno, Kind, Layer, Name, RenameFlags, Result, Vnode};

/// Bytes of a version that are read at once.
const CHUNK: usize = 256 * 1024;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Problem {
    /// The index is missing, damaged, or does not list the versions that exist.
    Index,
    /// A file that was being made when the program was killed.
    Unfinished,
    /// A file of a version that is also stored in another way, or was discarded.
    Leftover,
    /// The file of a version is the head itself: a replacement was interrupted.
    Interrupted,
    /// A version can't be reconstructed: a newer one that it depends on is missing.
    Orphan,
    /// A version can't be read because the file was changed below the mount.
    Changed,
    /// A version, or its file, can't be read.
    Damaged,
    /// A file in a store that is none of the layer's.
    Foreign,
}

impl Problem {
    /// Returns the word for the problem in reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Unfinished => "unfinished",
            Self::Leftover => "leftover",
            Self::Interrupted => "interrupted",
            Self::Orphan => "orphan",
            Self::Changed => "changed",
            Self::Damaged => "damaged",
            Self::Foreign => "foreign",
        }
    }

    /// Whether it can be repaired. No repair changes what users see of readable versions.
    #[must_use]
    pub const fn is_repairable(self) -> bool {
        matches!(self, Self::Index | Self::Unfinished | Self::Leftover | Self::Interrupted)
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub problem: Problem,
    /// The directory, from the root, without a slash at its begin and end.
    pub dir: Vec<u8>,
    /// The file in the directory's store.
    pub name: Vec<u8>,
    /// What is wrong, as a sentence without a full stop.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}: {}: {}", self.dir.escape_ascii(), self.name.escape_ascii(), self.text)
    }
}

/// Is told what the check finds.
pub trait Inspector {
    /// Returns whether to repair this. Not called for what can't be repaired.
    fn consents(&mut self, finding: &Finding) -> bool;

    /// Is told what became of a finding: `None` if nothing was done.
    fn ended(&mut self, finding: &Finding, repaired: Option<Result<()>>);

    /// Is told of each set that was checked, and the number of its versions. Returns false to end
    /// the check.
    fn checked(&mut self, versions: u64) -> bool;
}

struct Check<'a, 'c> {
    cx: &'a Cx<'c>,
    layer: &'a Arc<dyn Layer>,
    blocks: Arc<dyn Blocks>,
    inspector: &'a mut dyn Inspector,
}

/// A set that is checked.
struct Checked<'a> {
    dir: &'a [u8],
    found: &'a Found,
    stem: &'a [u8],
}

/// Checks all version sets of `layer`, which nobody uses. Returns false if the inspector ended it.
///
/// # Errors
/// Those of directories; what concerns one set is reported.
pub fn check(cx: &Cx<'_>, layer: &Arc<dyn Layer>, inspector: &mut dyn Inspector) -> Result<bool> {
    let blocks = Arc::new(VolumeBlocks::new(Arc::clone(layer), true));
    let mut check = Check { cx, layer, blocks, inspector };
    let visit: walk::Visit<'_> = &mut |position, found| check.store(&position.join(&b'/'), found);
    walk::stores(cx, &layer.root(), &[], (visit, &mut |_, errno| Err(errno)))
}

impl Check<'_, '_> {
    /// Reports a finding, and repairs it by `repair` if that is wanted.
    fn report(
        &mut self,
        of: &Checked<'_>,
        problem: Problem,
        (name, text): (&[u8], String),
        repair: impl FnOnce(&Cx<'_>) -> Result<()>,
    ) {
        let finding = Finding { problem, dir: of.dir.to_vec(), name: name.to_vec(), text };
        let wanted = problem.is_repairable() && self.inspector.consents(&finding);
        let repaired = wanted.then(|| repair(self.cx));
        self.inspector.ended(&finding, repaired);
    }

    fn store(&mut self, dir: &[u8], found: &Found) -> Result<bool> {
        let (sets, others) = versionset::list(self.cx, &*found.store)?;
        for name in others.iter().filter(|name| !name.starts_with(b";")) {
            let of = Checked { dir, found, stem: name };
            self.report(&of, Problem::Foreign, (name, "is no version file".to_owned()), |_| Ok(()));
        }
        for (stem, files) in sets {
            let of = Checked { dir, found, stem: &stem };
            let versions = match self.set(&of, files) {
                Ok(versions) => versions,
                Err(errno) => {
                    let text = format!("can't be checked: {errno}");
                    self.report(&of, Problem::Damaged, (&index_name(&stem), text), |_| Ok(()));
                    0
                }
            };
            if !self.inspector.checked(versions) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the head of a set.
    fn head(&self, of: &Checked<'_>, index: &Index, files: &SetFiles) -> Result<Option<Arc<dyn Vnode>>> {
        let head = if of.found.is_links {
            let number = core::str::from_utf8(of.stem).ok().and_then(|stem| stem.split('.').next());
            let Some(number) = number.and_then(|number| u64::from_str_radix(number, 16).ok()) else { return Ok(None) };
            match self.layer.vnode(self.cx, number) {
                Ok(head) if *link_stem(&*head) == *of.stem && self.is_named(of, files, &head)? => Some(head),
                Ok(_) => None,
                Err(Errno::STALE | Errno::NOENT) => None,
                Err(errno) => return Err(errno),
            }
        } else {
            let name = index.name.as_deref().or_else(|| (!is_hashed(of.stem)).then_some(of.stem));
            let Some(name) = name else { return Ok(None) };
            of.found.dir.lookup(self.cx, Name::new(name)?)?.map(|entry| entry.vnode)
        };
        Ok(head)
    }

    /// Whether users see a name of the file with the number of a set. After the removal of its last
    /// name, the number finds the newest version.
    fn is_named(&self, of: &Checked<'_>, files: &SetFiles, file: &Arc<dyn Vnode>) -> Result<bool> {
        let versions = self.versions_that_are(of, files, file)?.len();
        if versions == 0 {
            return Ok(true);
        }
        // Counting spares a search for the names in the whole tree.
        if u64::from(file.getattr(self.cx)?.nlink) <= versions as u64 {
            return Ok(false);
        }
        is_shown(self.cx, file)
    }

    /// Returns the numbers and names of versions that are second names of a file.
    fn versions_that_are(
        &self,
        of: &Checked<'_>,
        files: &SetFiles,
        file: &Arc<dyn Vnode>,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut same = Vec::new();
        for (number, letter) in files.versions.iter().filter(|(_, letter)| *letter == Letter::Full) {
            let name = version_name(of.stem, *letter, *number);
            let entry = of.found.store.lookup(self.cx, Name::new(&name)?)?;
            if entry.is_some_and(|entry| entry.vnode.id() == file.id()) {
                same.push((*number, name));
            }
        }
        Ok(same)
    }

    fn set(&mut self, of: &Checked<'_>, mut files: SetFiles) -> Result<u64> {
        let store = &of.found.store;
        let found = store.lookup(self.cx, Name::new(&index_name(of.stem))?)?;
        let made = found.as_ref().map(|entry| entry.attr);
        let (mut index, condition) = match found {
            Some(entry) => match read_index(self.cx, &entry) {
                Ok(bytes) => Index::parse(&bytes),
                Err(_) => (Index::default(), Condition::NotAnIndex),
            },
            None => (Index::default(), Condition::NotAnIndex),
        };
        let is_complete = condition == Condition::Complete;
        let recorded = index.clone();
        let present = self.head(of, &index, &files)?;
        let head = present.clone().filter(|head| head.kind() == Kind::Regular);
        for name in &files.unfinished {
            let text = "was being made when the program was killed".to_owned();
            self.report(of, Problem::Unfinished, (name, text), |cx| remove_tree(cx, None, store, name));
        }
        self.interrupted(of, &mut files, &mut index, head.as_ref())?;
        self.discarded(of, &mut files, &index, is_complete);
        let content = head.as_ref().map(|head| head_of(self.cx, head)).transpose()?;
        let opened = StoreFiles {
            dir: Arc::clone(store),
            stem: of.stem.to_vec(),
            head: content,
            blocks: Some(Arc::clone(&self.blocks)),
        };
        let find = |number| self.layer.vnode(self.cx, number);
        let rebuilt = with_traces(
            self.cx,
            (made, of.found.is_links, present.as_ref()),
            |attr| attr.btime,
            find,
            |traces| versionset::rebuild(self.cx, &opened, &files, &index, traces),
        )?;
        if !is_complete || rebuilt.index.versions != recorded.versions {
            let text = index_text(condition, &recorded, &rebuilt.index);
            let new = &rebuilt.index;
            self.report(of, Problem::Index, (&index_name(of.stem), text), |cx| write_index(cx, store, of.stem, new));
        }
        for name in &rebuilt.superseded {
            let text = "is a version that is also stored in another way".to_owned();
            self.report(of, Problem::Leftover, (name, text), |cx| unlink(cx, store, name));
        }
        for (name, unreadable) in &rebuilt.doubtful {
            let text = "is a copy that may lack bytes: a power failure took its record".to_owned();
            self.report(of, Problem::Index, (name, text), |cx| {
                store.rename(cx, Name::new(name)?, store, Name::new(unreadable)?, RenameFlags::default())
            });
        }
        for (name, errno) in &rebuilt.unreadable {
            self.report(of, Problem::Damaged, (name, format!("can't be read: {errno}")), |_| Ok(()));
        }
        for number in &rebuilt.orphaned {
            let letter = rebuilt.index.versions.get(number).map_or(Letter::Sparse, |version| version.letter);
            let text = "can't be reconstructed: a newer version that it needs is missing".to_owned();
            self.report(of, Problem::Orphan, (&version_name(of.stem, letter, *number), text), |_| Ok(()));
        }
        self.read_all(of, opened, &rebuilt.index, &rebuilt.orphaned);
        Ok(rebuilt.index.versions.len() as u64)
    }

    /// Finds the version that an interrupted replacement left: a second name of the head.
    fn interrupted(
        &mut self,
        of: &Checked<'_>,
        files: &mut SetFiles,
        index: &mut Index,
        head: Option<&Arc<dyn Vnode>>,
    ) -> Result<()> {
        let Some(head) = head else { return Ok(()) };
        let store = &of.found.store;
        for (number, name) in self.versions_that_are(of, files, head)? {
            files.versions.retain(|(other, letter)| *other != number || *letter != Letter::Full);
            index.apply(Record::Retracted(number));
            let text = "is the file itself: its replacement was interrupted".to_owned();
            self.report(of, Problem::Interrupted, (&name, text), |cx| unlink(cx, store, &name));
        }
        Ok(())
    }

    /// Finds files of versions that were discarded.
    fn discarded(&mut self, of: &Checked<'_>, files: &mut SetFiles, index: &Index, is_complete: bool) {
        let is_gone = |number: u64| is_complete && number < index.next() && !index.versions.contains_key(&number);
        let store = &of.found.store;
        for (number, letter) in files.versions.iter().filter(|(number, _)| is_gone(*number)) {
            let name = version_name(of.stem, *letter, *number);
            let text = "is a version that was discarded".to_owned();
            self.report(of, Problem::Leftover, (&name, text), |cx| remove_tree(cx, None, store, &name));
        }
        files.versions.retain(|(number, _)| !is_gone(*number));
    }

    /// Reads every version.
    fn read_all(&mut self, of: &Checked<'_>, files: StoreFiles, index: &Index, orphaned: &[u64]) {
        let is_changed = has_other_head(self.cx, &files, index);
        let source: Arc<dyn Source> = Arc::new(files);
        for (number, version) in &index.versions {
            if !is_content(version.letter) || orphaned.contains(number) {
                continue;
            }
            if let Err(errno) = read_version(self.cx, &source, index, *number) {
                let name = version_name(of.stem, version.letter, *number);
                let (problem, text) = if is_changed && errno == Errno::IO {
                    (Problem::Changed, "can't be read: the file was changed below the mount".to_owned())
                } else {
                    (Problem::Damaged, format!("can't be read: {errno}"))
                };
                self.report(of, problem, (&name, text), |_| Ok(()));
            }
        }
    }
}

/// Whether the file is not what the newest version takes bytes from.
fn has_other_head(cx: &Cx<'_>, files: &StoreFiles, index: &Index) -> bool {
    let newest = index.newest().filter(|newest| newest.letter == Letter::Sparse);
    let seal = newest.and_then(|newest| files.seal(cx, newest.number).ok());
    let stamp = files.head.as_ref().and_then(|head| head.stamp);
    seal.zip(stamp).is_some_and(|(seal, stamp)| !seal.admits(&stamp))
}

fn read_version(cx: &Cx<'_>, source: &Arc<dyn Source>, index: &Index, number: u64) -> Result<()> {
    let content = open_version(cx, source, Members::of(index, number).ok_or(Errno::NOENT)?)?;
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < content.size() {
        let part = versionset::clamp(&mut buffer, at, content.size());
        if content.read_at(cx, part, at)? < part.len() {
            return Err(Errno::IO);
        }
        at += part.len() as u64;
    }
    Ok(())
}

fn unlink(cx: &Cx<'_>, store: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
    store.unlink(cx, Name::new(name)?)
}

/// Says what is wrong with an index.
fn index_text(condition: Condition, recorded: &Index, rebuilt: &Index) -> String {
    let without_file = recorded.versions.keys().filter(|number| !rebuilt.versions.contains_key(number)).count();
    let without_record = rebuilt.versions.keys().filter(|number| !recorded.versions.contains_key(number)).count();
    match condition {
        Condition::NotAnIndex => format!("is missing or no index; {} versions exist", rebuilt.versions.len()),
        Condition::EndsAt(at) => format!("is damaged at byte {at}; {} versions exist", rebuilt.versions.len()),
        Condition::Complete if without_file + without_record == 0 => {
            "says of a version that it is stored in another way than it is".to_owned()
        }
        Condition::Complete => {
            format!("lists {without_file} versions that don't exist, and not {without_record} that do")
        }
    }
}
