//! The identity logs of a union's branches. Each record lies on the branch that it describes:
//! docs/design/unionfs.md, "Records".

use crate::copied::{COPY, Copied};
use crate::log::{Log, Record, Tagged};
use crate::logfile::{create_log, load, open_log};
use crate::tags::Tags;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use vnode::{Cx, Errno, Result, Vnode};

/// The log of a branch that is written.
#[derive(Debug)]
pub(crate) struct LogFile {
    root: Arc<dyn Vnode>,
    path: PathBuf,
    /// The union's tag of the branch.
    tag: u16,
    /// Also used for the names of the branch's index entries.
    tags: Arc<RwLock<Tags>>,
    /// `None` until the first record is written, if the branch has no log or it could not be
    /// opened.
    log: Option<Log>,
    /// The branch has no log.
    is_absent: bool,
    /// Tags that were assigned or renewed, but not written yet.
    fresh: Vec<Record>,
    /// The fingerprints of the branches to the right; `None`: not known.
    below: Vec<Option<u64>>,
}

impl LogFile {
    pub(crate) fn new((root, path): (Arc<dyn Vnode>, PathBuf), tag: u16, tags: Arc<RwLock<Tags>>) -> Self {
        Self { root, path, tag, tags, log: None, is_absent: false, fresh: Vec::new(), below: vec![None] }
    }

    /// Notes the fingerprints of the branches to the right.
    pub(crate) fn above(self, below: &[Option<u64>]) -> Self {
        Self { below: below.to_vec(), ..self }
    }

    /// Adds tags, as the log has them, that are written before the next record.
    pub(crate) fn with_fresh(self, fresh: Vec<Record>) -> Self {
        Self { fresh, ..self }
    }

    pub(crate) fn with_log(self, log: Log) -> Self {
        Self { log: Some(log), ..self }
    }

    pub(crate) fn without_log(self) -> Self {
        Self { is_absent: true, ..self }
    }

    /// Appends records with one write.
    pub(crate) fn append(&mut self, cx: &Cx<'_>, records: &[&Record], branches: &BTreeMap<u16, Tagged>) -> Result<()> {
        // A log that knows other branches, and not its own, is taken for that of a copy.
        let own = self.tag_in_log(self.tag, branches);
        let mut translated = Vec::new();
        for record in records {
            translated.extend(self.translate(record, branches));
        }
        self.open(cx, branches, true)?;
        let mut fresh = std::mem::take(&mut self.fresh);
        // If the log ends within them, it must not know a copy without saying that it is one.
        fresh.sort_by_key(|record| (!is_copy(record), !matches!(record, Record::Tag { tag, .. } if *tag == own)));
        let written = self.log.as_mut().ok_or(Errno::IO)?.append(cx, fresh.iter().chain(&translated));
        if written.is_err() {
            self.fresh = fresh;
        }
        written
    }

    fn write_tags(
        &mut self,
        cx: &Cx<'_>,
        (branches, tags): (&BTreeMap<u16, Tagged>, &[u16]),
        records: &[Record],
    ) -> Result<()> {
        for &tag in tags {
            self.tag_in_log(tag, branches);
        }
        if self.log.is_some() && self.fresh.is_empty() && records.is_empty() {
            return Ok(());
        }
        self.append(cx, &records.iter().collect::<Vec<_>>(), branches)
    }

    /// Writes the record that the branch is a copy, if that was recognised now.
    fn write_copy(&mut self, cx: &Cx<'_>, branches: &BTreeMap<u16, Tagged>) -> Result<()> {
        self.open(cx, branches, false)?;
        if self.fresh.iter().any(is_copy) { self.append(cx, &[], branches) } else { Ok(()) }
    }

    /// Opens the log. `create`: if there is none, it is created.
    fn open(&mut self, cx: &Cx<'_>, branches: &BTreeMap<u16, Tagged>, create: bool) -> Result<()> {
        if self.log.is_some() {
            return Ok(());
        }
        if self.is_absent {
            if !create {
                return Ok(());
            }
            match create_log(cx, &self.root) {
                Err(Errno::EXIST) => {}
                created => {
                    self.log = Some(created?);
                    return Ok(());
                }
            }
        }
        let loaded = load(cx, &self.root, &self.path)?;
        // Only a mount, which reads the other branches' logs too, can convert it.
        if loaded.is_old {
            return Err(Errno::ROFS);
        }
        if !loaded.found && !create {
            self.is_absent = true;
            return Ok(());
        }
        self.log = Some(match loaded.found {
            false => create_log(cx, &self.root)?,
            true => open_log(cx, (&self.root, &self.path), &loaded)?,
        });
        // Tags can have been assigned while the branch was written before.
        let is_missing = |log: u16| !loaded.known.tags.contains_key(&log);
        let assigned = self.tags.read().all();
        let missing = assigned.into_iter().filter(|(log, _)| is_missing(*log));
        let missing = missing.filter_map(|(tag, of)| Some(Record::Tag { tag, branch: branches.get(&of)?.clone() }));
        let own = branches.get(&self.tag).and_then(|branch| branch.fingerprint);
        // The branch can have been recognised before, when its log could not be written.
        let copy = Copied::renewed(&loaded.known.tags, own, &self.below, loaded.changed)
            .map(|now| self.fresh.iter().find(|record| is_copy(record)).cloned().unwrap_or(now));
        self.fresh = missing.chain(copy).collect();
        Ok(())
    }

    /// Returns the record with the log's tags; `None` if it only says what the log says already.
    fn translate(&mut self, record: &Record, branches: &BTreeMap<u16, Tagged>) -> Option<Record> {
        Some(match record {
            Record::Tag { tag, .. } => {
                self.tag_in_log(*tag, branches);
                return None;
            }
            Record::Alias { tag, lower, alias } => {
                let mut alias = *alias;
                alias.number = self.number_in_log(alias.number, branches);
                Record::Alias { tag: self.tag_in_log(*tag, branches), lower: *lower, alias }
            }
            Record::Unalias { tag, lower } => Record::Unalias { tag: self.tag_in_log(*tag, branches), lower: *lower },
            &Record::Names { by, number, first, used } => {
                Record::Names { by, number: self.number_in_log(number, branches), first, used }
            }
            &Record::Using { by, tag, number, first, ref path } => Record::Using {
                by,
                tag: self.tag_in_log(tag, branches),
                number: self.number_in_log(number, branches),
                first,
                path: path.clone(),
            },
            &Record::Original { by, number, ref original } => {
                Record::Original { by, number: self.number_in_log(number, branches), original: original.clone() }
            }
        })
    }

    fn number_in_log(&mut self, number: u64, branches: &BTreeMap<u16, Tagged>) -> u64 {
        if let Some(tag) = crate::inode_number::tag_of(number).filter(|tag| branches.contains_key(tag)) {
            self.tag_in_log(tag, branches);
        }
        self.tags.read().log_number(number)
    }

    /// Returns the log's tag of a branch. If it has none so far, the record of it is written with
    /// the next one.
    fn tag_in_log(&mut self, tag: u16, branches: &BTreeMap<u16, Tagged>) -> u16 {
        let (assigned, is_new) = self.tags.write().assign(tag);
        if let Some(branch) = branches.get(&tag).filter(|_| is_new) {
            self.fresh.push(Record::Tag { tag: assigned, branch: branch.clone() });
        }
        assigned
    }
}

/// Whether a record says that the branch is a copy.
const fn is_copy(record: &Record) -> bool {
    matches!(record, Record::Tag { tag: COPY, .. })
}

/// The logs of the branches that are written, from left to right.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    files: Vec<LogFile>,
    /// The branches, by tag.
    branches: BTreeMap<u16, Tagged>,
}

impl Logs {
    pub(crate) fn new(files: Vec<LogFile>, branches: BTreeMap<u16, Tagged>) -> Self {
        Self { files, branches }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Adds a branch that records can refer to.
    pub(crate) fn add_branch(&mut self, tag: u16, branch: Tagged) {
        self.branches.insert(tag, branch);
    }

    /// Whether the branch with this tag has a log that is written.
    pub(crate) fn has(&self, tag: u16) -> bool {
        self.files.iter().any(|file| file.tag == tag)
    }

    /// Appends each record to the log where it belongs, all those of one log with one write. What a
    /// read-only branch would have to say is dropped.
    pub(crate) fn append(&mut self, cx: &Cx<'_>, records: &[Record]) -> Result<()> {
        let homes: Vec<Option<usize>> = records.iter().map(|record| self.home(record)).collect();
        for (at, file) in self.files.iter_mut().enumerate() {
            let own = records.iter().zip(&homes).filter(|(_, home)| **home == Some(at));
            let own: Vec<&Record> = own.map(|(record, _)| record).collect();
            if !own.is_empty() {
                file.append(cx, &own, &self.branches)?;
            }
        }
        Ok(())
    }

    /// Returns the position of the log where a record belongs. The leftmost branch's log also has
    /// what is to be known about objects of branches that are not written.
    pub(crate) fn home(&self, record: &Record) -> Option<usize> {
        let of = |tag: u16| self.files.iter().position(|file| file.tag == tag);
        let leftmost = (!self.files.is_empty()).then_some(0);
        match *record {
            Record::Tag { .. } => leftmost,
            Record::Alias { tag, .. } | Record::Unalias { tag, .. } => of(tag).or(leftmost),
            Record::Names { by, .. } | Record::Using { by, .. } | Record::Original { by, .. } => of(by),
        }
    }

    /// Writes these branches' tags to the log of the leftmost branch, which is created if there is
    /// none, and records about objects of branches that are not written.
    pub(crate) fn write_first(&mut self, cx: &Cx<'_>, tags: &[u16], records: &[Record]) -> Result<()> {
        let Some(file) = self.files.first_mut() else { return Ok(()) };
        file.write_tags(cx, (&self.branches, tags), records)
    }

    /// Records which branches turned out to be copies. A branch that can't be written now gets the
    /// record with its next one.
    pub(crate) fn write_copies(&mut self, cx: &Cx<'_>) {
        for file in &mut self.files {
            match file.write_copy(cx, &self.branches) {
                Ok(()) | Err(Errno::ROFS) => {}
                Err(errno) => tracing::warn!(
                    branch = %file.path.display(), %errno,
                    "could not record in .wh..wh.ident that the branch is a copy: a commit compares modification times"
                ),
            }
        }
    }

    /// As [`Self::write_first`], for the branch with the tag `first`, which is to be the leftmost.
    pub(crate) fn write_to(
        &mut self,
        cx: &Cx<'_>,
        first: u16,
        tags: (&BTreeMap<u16, Tagged>, &[u16]),
        records: &[Record],
    ) -> Result<()> {
        let Some(file) = self.files.iter_mut().find(|file| file.tag == first) else { return Ok(()) };
        file.write_tags(cx, tags, records)
    }

    /// Adds logs, and keeps those of the branches with these tags, in this order. Returns the
    /// others.
    pub(crate) fn replace(&mut self, opened: Self, written: &[u16]) -> Vec<LogFile> {
        let mut old = std::mem::take(&mut self.files);
        old.retain(|file| !opened.has(file.tag));
        let Self { files: mut all, branches } = opened;
        self.branches = branches;
        all.append(&mut old);
        for &tag in written {
            let at = all.iter().position(|file| file.tag == tag);
            self.files.extend(at.map(|at| all.swap_remove(at)));
        }
        all
    }
}
