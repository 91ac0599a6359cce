//! The one reader of the records of all branches: docs/design/unionfs.md, "Records".

use crate::branch::BranchState;
use crate::copied::{COPY, Copied};
use crate::log::{Record, Tagged};
use crate::logfile::{Loaded, load, open_log};
use crate::logs::LogFile;
use crate::ownfiles::Own;
use crate::ownnames::IndexName;
use crate::recorded::{Known, LinkCount, total};
use crate::tags::{TAGS, Tags, free_tag, tag_of_branch};
use crate::work::entries;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Layer, Result, Vnode};

/// A branch whose records are read.
pub(crate) struct Source {
    root: Arc<dyn Vnode>,
    path: PathBuf,
    fingerprint: Option<u64>,
    pub(crate) loaded: Loaded,
    /// The tags of its log, with those of the union.
    pub(crate) tags: Tags,
}

impl Source {
    /// Reads the log of a branch. One that the server may not read counts as missing, unless the
    /// branch is the first.
    pub(crate) fn read(cx: &Cx<'_>, layer: &Arc<dyn Layer>, path: &Path, is_first: bool) -> Result<Self> {
        let root = layer.root();
        let loaded = match load(cx, &root, path) {
            Err(errno @ (Errno::ACCESS | Errno::PERM)) if !is_first => {
                tracing::warn!(
                    branch = %path.display(), %errno,
                    "the branch's identity log .wh..wh.ident can't be read: some inode numbers and link counts change"
                );
                Loaded::default()
            }
            loaded => loaded?,
        };
        Ok(Self { root, path: path.to_owned(), fingerprint: layer.fingerprint(), loaded, tags: Tags::default() })
    }

    /// Opens the branch's log, to write it. That of a branch whose file system turns out to be
    /// read-only is opened when it is needed.
    /// `branches`: the union's branches by tag, of which the log may have former paths. `below`:
    /// the fingerprints of those to the right.
    pub(crate) fn open(
        &self,
        cx: &Cx<'_>,
        state: &BranchState,
        branches: &BTreeMap<u16, Tagged>,
        below: &[Option<u64>],
    ) -> Result<LogFile> {
        let known = &self.loaded.known.tags;
        let renewed = known.iter().filter_map(|(&tag, known)| {
            let branch = branches.get(&self.tags.union_tag(tag)?)?;
            (branch != known).then(|| Record::Tag { tag, branch: branch.clone() })
        });
        let renewed = renewed.chain(Copied::renewed(known, self.fingerprint, below, self.loaded.changed));
        let place = (self.root.clone(), self.path.clone());
        let file = LogFile::new(place, state.tag, state.tags.clone()).above(below).with_fresh(renewed.collect());
        match self.loaded.found.then(|| open_log(cx, (&self.root, &self.path), &self.loaded)) {
            None => Ok(file.without_log()),
            Some(Err(Errno::ROFS)) => Ok(file),
            Some(log) => Ok(file.with_log(log?)),
        }
    }

    /// Returns whether the branch is a copy of the directory that a union wrote. `below`: the
    /// fingerprints of the branches to its right.
    pub(crate) fn copied(&self, below: &[Option<u64>]) -> Option<Copied> {
        Copied::of(&self.loaded.known.tags, self.fingerprint, below)
    }

    /// Returns the tag that the log has for a branch: by path and fingerprint, or else by the
    /// fingerprint alone, if the branch was mounted elsewhere.
    pub(crate) fn knows(&self, path: &Path, fingerprint: Option<u64>) -> Option<u16> {
        let tags = &self.loaded.known.tags;
        let branch = Tagged { path: path.as_os_str().as_bytes().to_vec(), fingerprint };
        let is_moved = |known: &Tagged| fingerprint.is_some() && known.fingerprint == fingerprint;
        let moved = || tags.iter().find(|(_, known)| is_moved(known)).map(|(tag, _)| *tag);
        tag_of_branch(tags, &branch).or_else(moved).filter(|tag| *tag != COPY)
    }

    /// Returns the tags of the branches that the log knows.
    pub(crate) fn branches(&self) -> impl Iterator<Item = u16> {
        self.loaded.known.tags.keys().copied().filter(|tag| *tag != COPY)
    }

    fn tagged(&self) -> Tagged {
        Tagged { path: self.path.as_os_str().as_bytes().to_vec(), fingerprint: self.fingerprint }
    }

    /// Returns the numbers in the names of the branch's index entries, as its log has them.
    fn indexed(&self, cx: &Cx<'_>) -> Result<Vec<u64>> {
        let index = self.root.lookup(cx, Own::Links.name()?)?;
        let Some(index) = index.filter(|index| index.vnode.kind() == Kind::Directory) else { return Ok(Vec::new()) };
        Ok(entries(cx, &index.vnode)?.iter().filter_map(|(name, _)| IndexName::parse(name)).collect())
    }
}

/// Reads the records of all branches of a union that is built, listed from left to right. Returns
/// what they say, and the branches' tags.
pub(crate) fn merge_all(cx: &Cx<'_>, sources: &mut [Source]) -> Result<(Known, Vec<u16>)> {
    let mut merger = Merger::default();
    sources.iter_mut().for_each(|source| merger.adopt_tags(source));
    let tags = merger.tags(sources);
    convert_old(cx, sources)?;
    let tagged = || sources.iter().zip(&tags);
    tagged().for_each(|(source, own)| merger.add_own(source, *own));
    tagged().for_each(|(source, own)| merger.add_others(source, *own));
    Ok((merger.known, tags))
}

/// Merges what the logs of several branches say.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    pub(crate) known: Known,
    /// The branches of the union, by tag.
    members: HashSet<u16>,
}

impl Merger {
    /// Returns a merger that adds to what is known. `members`: the tags of the union's branches.
    pub(crate) fn new(known: Known, members: HashSet<u16>) -> Self {
        Self { known, members }
    }

    /// Gives the union's tags to the branches that a log refers to.
    pub(crate) fn adopt_tags(&mut self, source: &mut Source) {
        for (&tag, branch) in source.loaded.known.tags.iter().filter(|(tag, _)| **tag != COPY) {
            let known = tag_of_branch(&self.known.tags, branch).or_else(|| {
                // The logs can know the branch by different paths.
                self.moved(branch.fingerprint).filter(|tag| source.tags.log_tag(*tag).is_none())
            });
            let of_union = match known {
                Some(known) => known,
                None if (1..=TAGS).contains(&tag) && !self.known.tags.contains_key(&tag) => tag,
                None => free_tag(|tag| self.known.tags.contains_key(&tag)),
            };
            let entry = self.known.tags.entry(of_union).or_insert_with(|| branch.clone());
            entry.fingerprint = entry.fingerprint.or(branch.fingerprint);
            source.tags.set(tag, of_union);
        }
    }

    /// Returns the only branch with this fingerprint.
    fn moved(&self, fingerprint: Option<u64>) -> Option<u16> {
        let mut same =
            self.known.tags.iter().filter(|(_, known)| fingerprint.is_some() && known.fingerprint == fingerprint);
        same.next().filter(|_| same.next().is_none()).map(|(tag, _)| *tag)
    }

    /// Returns the union's tags of branches: those that a log has for their paths, or else, as they
    /// can be mounted elsewhere, for their fingerprints. A copy of a branch, or another directory
    /// at its path, gets a new one.
    pub(crate) fn tags(&mut self, sources: &[Source]) -> Vec<u16> {
        let mut tags = vec![None; sources.len()];
        // By paths first: a clone of a file system has the same fingerprint.
        for by_path in [true, false] {
            for (source, tag) in sources.iter().zip(&mut tags).filter(|(_, tag)| tag.is_none()) {
                let own = source.tagged();
                let found = match by_path {
                    true => tag_of_branch(&self.known.tags, &own),
                    false => self.moved(own.fingerprint),
                };
                *tag = found.filter(|tag| (1..=TAGS).contains(tag) && !self.members.contains(tag));
                self.members.extend(*tag);
            }
        }
        sources.iter().zip(tags).map(|(source, tag)| self.take(source, tag)).collect()
    }

    /// Notes the tag of a branch, or assigns one.
    fn take(&mut self, source: &Source, found: Option<u16>) -> u16 {
        let own = source.tagged();
        let tag = found.unwrap_or_else(|| free_tag(|tag| self.known.tags.contains_key(&tag)));
        let entry = self.known.tags.entry(tag).or_insert_with(|| own.clone());
        *entry = Tagged { fingerprint: own.fingerprint.or(entry.fingerprint), path: own.path };
        self.members.insert(tag);
        tag
    }

    /// Adds what a branch's log says of that branch, which has the tag `own`.
    pub(crate) fn add_own(&mut self, source: &Source, own: u16) {
        let known = &source.loaded.known;
        for record in known.records().filter_map(|record| translate(record, &source.tags, own)) {
            match record {
                Record::Alias { tag, .. } if tag != own => {}
                Record::Tag { .. } | Record::Unalias { .. } => {}
                record => self.known.apply(record),
            }
        }
    }

    /// Adds what a branch's log says of objects of other branches. What is known already counts.
    pub(crate) fn add_others(&mut self, source: &Source, own: u16) {
        for record in source.loaded.known.records().filter_map(|record| translate(record, &source.tags, own)) {
            if let Record::Alias { tag, lower, .. } = record
                && tag != own
                && !self.known.aliases.has((tag, lower))
            {
                self.known.apply(record);
            }
        }
    }
}

/// Returns a record of a log with the union's tags. `None` if that has none for it.
fn translate(record: Record, tags: &Tags, own: u16) -> Option<Record> {
    Some(match record {
        Record::Alias { tag, lower, mut alias } => {
            alias.number = tags.union_number(alias.number)?;
            Record::Alias { tag: tags.union_tag(tag)?, lower, alias }
        }
        Record::Names { number, first, used, .. } => {
            Record::Names { by: own, number: tags.union_number(number)?, first, used }
        }
        Record::Using { tag, number, first, path, .. } => {
            Record::Using { by: own, tag: tags.union_tag(tag)?, number: tags.union_number(number)?, first, path }
        }
        Record::Original { number, original, .. } => {
            Record::Original { by: own, number: tags.union_number(number)?, original }
        }
        Record::Tag { .. } | Record::Unalias { .. } => return None,
    })
}

/// Turns the link counts in logs of version 1, which are those of the whole union, into those of
/// one branch. `sources`: all branches, from left to right.
pub(crate) fn convert_old(cx: &Cx<'_>, sources: &mut [Source]) -> Result<()> {
    if sources.iter().all(|source| !source.loaded.is_old || source.loaded.known.names.is_empty()) {
        return Ok(());
    }
    let mut indexed = HashSet::new();
    for source in &*sources {
        let numbers = source.indexed(cx)?;
        indexed.extend(numbers.into_iter().filter_map(|number| source.tags.union_number(number)));
    }
    let mut right: HashMap<u64, LinkCount> = HashMap::new();
    for source in sources.iter_mut().rev() {
        let old = std::mem::take(&mut source.loaded.known.names);
        for (number, counts) in old {
            let Some(of_union) = source.tags.union_number(number) else { continue };
            let mut count = total(&counts);
            let sum = right.entry(of_union).or_default();
            if source.loaded.is_old {
                count = count.minus(*sum);
                if !indexed.contains(&of_union) {
                    count.first = 0;
                }
            }
            *sum = sum.plus(count);
            if count != LinkCount::default() {
                source.loaded.known.names.insert(number, vec![(0, count)]);
            }
        }
    }
    Ok(())
}
