//! Inode numbers and the records that keep them: docs/design/unionfs.md, "Inode numbers". Format of
//! the logs: docs/formats/union-branch.md.

use crate::inode_number::next_free;
use crate::log::{Alias, Original, Record, Tagged};
use crate::logs::Logs;
use crate::recorded::{Counts, Known, LinkCount, LowerKey, Using, total};
use crate::tags::{free_tag, tag_of_branch};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use vnode::{Cx, Time};

type Result<T, E = vnode::Errno> = std::result::Result<T, E>;

/// The identity logs of the branches and their content.
#[derive(Debug)]
pub(crate) struct Identity {
    known: RwLock<Known>,
    /// Number of aliases. A lookup in a union without aliases needs no lock.
    aliases: AtomicUsize,
    /// Number of files with link counts.
    names: AtomicUsize,
    /// The logs of the branches that are written; none in a read-only union. Locked while a branch
    /// is written, which may be frozen.
    logs: Mutex<Logs>,
    /// Records still to be written, the oldest first.
    deferred: Mutex<VecDeque<Record>>,
}

impl Identity {
    pub(crate) fn new(known: Known, logs: Logs) -> Self {
        Self {
            aliases: known.aliases.of.len().into(),
            names: known.names.len().into(),
            known: RwLock::new(known),
            logs: Mutex::new(logs),
            deferred: Mutex::default(),
        }
    }

    /// Returns the alias of a lower file, if it has one.
    pub(crate) fn alias(&self, tag: u16, lower: u64) -> Option<Alias> {
        if self.aliases.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.known.read().aliases.get((tag, lower))
    }

    /// Returns tag and lower number of the lower files that have the alias `number`.
    pub(crate) fn aliases_of(&self, number: u64) -> Vec<(u16, u64)> {
        if !self.has_aliases() {
            return Vec::new();
        }
        self.known.read().aliases.with_number(number).to_vec()
    }

    /// Returns the lower numbers of the objects on the branch with this tag that have an alias,
    /// with the alias.
    pub(crate) fn aliases_on(&self, tag: u16) -> Vec<(u64, Alias)> {
        let known = self.known.read();
        let on_branch = known.aliases.of.iter().filter(|((of, _), _)| *of == tag);
        on_branch.map(|(&(_, lower), &alias)| (lower, alias)).collect()
    }

    /// Whether any lower object has this number as its alias.
    pub(crate) fn is_alias(&self, number: u64) -> bool {
        self.has_aliases() && !self.known.read().aliases.with_number(number).is_empty()
    }

    /// Whether any file has an alias.
    pub(crate) fn has_aliases(&self) -> bool {
        self.aliases.load(Ordering::Acquire) != 0
    }

    /// Returns the sum of what the branches say of the names of a file; `None` if none says
    /// anything.
    pub(crate) fn names(&self, number: u64) -> Option<LinkCount> {
        if self.names.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.known.read().names.get(&number).map(total)
    }

    /// Returns what each branch says of the names of a file.
    pub(crate) fn counts(&self, number: u64) -> Counts {
        self.known.read().names.get(&number).cloned().unwrap_or_default()
    }

    /// Returns what a branch says of the names of a file.
    pub(crate) fn names_by(&self, number: u64, by: u16) -> LinkCount {
        self.known.read().names_by(number, by)
    }

    /// Returns a copy of the content.
    pub(crate) fn known(&self) -> Known {
        self.known.read().clone()
    }

    /// Returns the numbers of the files with link counts.
    pub(crate) fn counted(&self) -> Vec<u64> {
        self.known.read().names.keys().copied().collect()
    }

    /// Returns a copy of the tags alone.
    pub(crate) fn tags(&self) -> Known {
        Known { tags: self.known.read().tags.clone(), ..Known::default() }
    }

    /// Returns the tag of a branch, which gets one if it has none. It need not be the union's.
    pub(crate) fn tag_branch(&self, branch: &Tagged) -> u16 {
        let mut logs = self.logs.lock();
        let tags = &mut self.known.write().tags;
        let tag = tag_of_branch(tags, branch).unwrap_or_else(|| free_tag(|tag| tags.contains_key(&tag)));
        let branch = tags.entry(tag).or_insert_with(|| branch.clone());
        logs.add_branch(tag, branch.clone());
        tag
    }

    /// Returns the originals of the copies of a file, with the tags of the copies' branches.
    pub(crate) fn originals_of(&self, number: u64) -> Vec<(u16, Original)> {
        self.known.read().originals.get(&number).cloned().unwrap_or_default()
    }

    /// Replaces the content. Of the logs, those of the branches with these tags remain, in this
    /// order, with `opened`.
    pub(crate) fn replace(&self, known: Known, opened: Logs, written: &[u16]) {
        let old = {
            let mut logs = self.logs.lock();
            let deferred = self.deferred.lock();
            let mut all = self.known.write();
            *all = known;
            // Lookups assign aliases while branches are changed.
            let is_alias = |record: &&Record| matches!(record, Record::Alias { .. } | Record::Unalias { .. });
            deferred.iter().filter(is_alias).for_each(|record| all.apply(record.clone()));
            self.aliases.store(all.aliases.of.len(), Ordering::Release);
            self.names.store(all.names.len(), Ordering::Release);
            logs.replace(opened, written)
        };
        drop(old);
    }

    /// Returns the content, and takes the logs away.
    pub(crate) fn take(&self) -> (Known, Logs) {
        (self.known(), std::mem::take(&mut *self.logs.lock()))
    }

    /// Whether the branch with this tag has a log that is written.
    pub(crate) fn has_log(&self, tag: u16) -> bool {
        self.logs.lock().has(tag)
    }

    /// Writes the tags of all branches to the log of the branch with the tag `first`, which is to
    /// be the leftmost, and records about objects of branches that are not written.
    pub(crate) fn write_first(
        &self,
        cx: &Cx<'_>,
        first: u16,
        tags: (&BTreeMap<u16, Tagged>, &[u16]),
        records: &[Record],
    ) -> Result<()> {
        self.logs.lock().write_to(cx, first, tags, records)
    }

    /// Writes a record, then applies it.
    pub(crate) fn append(&self, cx: &Cx<'_>, record: Record) -> Result<()> {
        self.write(cx, std::slice::from_ref(&record))?;
        self.apply(record);
        Ok(())
    }

    /// Writes records as one, then applies them.
    pub(crate) fn append_all(&self, cx: &Cx<'_>, records: Vec<Record>) -> Result<()> {
        self.write(cx, &records)?;
        records.into_iter().for_each(|record| self.apply(record));
        Ok(())
    }

    /// Writes a record after an operation took effect and can't fail any more. If writing fails,
    /// the record is written with a later one, or when the union is unmounted.
    pub(crate) fn append_or_defer(&self, cx: &Cx<'_>, record: Record) {
        self.append_all_or_defer(cx, vec![record]);
    }

    /// As [`Self::append_or_defer`], for records that are written as one.
    pub(crate) fn append_all_or_defer(&self, cx: &Cx<'_>, records: Vec<Record>) {
        if let Err(errno) = self.write(cx, &records) {
            tracing::warn!(%errno, "could not write the identity log; the records are written later");
            self.deferred.lock().extend(records.iter().cloned());
        }
        records.into_iter().for_each(|record| self.apply(record));
    }

    /// Writes the records that could not be written before.
    pub(crate) fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.write(cx, &[])
    }

    fn write(&self, cx: &Cx<'_>, records: &[Record]) -> Result<()> {
        let mut logs = self.logs.lock();
        if logs.is_empty() {
            self.deferred.lock().clear();
            return Ok(());
        }
        let deferred = std::mem::take(&mut *self.deferred.lock());
        let (mut left, mut failed) = (VecDeque::new(), HashMap::new());
        for record in deferred {
            // In one log, no record overtakes another.
            let home = logs.home(&record);
            if !failed.contains_key(&home) {
                let written = logs.append(cx, std::slice::from_ref(&record));
                failed.extend(written.err().map(|errno| (home, errno)));
            }
            if failed.contains_key(&home) {
                left.push_back(record);
            }
        }
        let mut queue = self.deferred.lock();
        left.append(&mut queue);
        *queue = left;
        drop(queue);
        let mut blocking = records.iter().filter_map(|record| failed.get(&logs.home(record)));
        match blocking.next().or_else(|| failed.values().next().filter(|_| records.is_empty())) {
            Some(errno) => Err(*errno),
            None => logs.append(cx, records),
        }
    }

    /// Applies a record that was written.
    pub(crate) fn apply(&self, record: Record) {
        let mut known = self.known.write();
        known.apply(record);
        self.aliases.store(known.aliases.of.len(), Ordering::Release);
        self.names.store(known.names.len(), Ordering::Release);
    }

    /// Returns the names that were about to be used up.
    pub(crate) fn unfinished_uses(&self) -> Vec<(u64, Using)> {
        let known = self.known.read();
        known.using.iter().flat_map(|(&number, list)| list.iter().map(move |u| (number, u.clone()))).collect()
    }

    /// Removes the alias of a lower file, if it has one.
    pub(crate) fn unalias(&self, cx: &Cx<'_>, tag: u16, lower: u64) {
        if self.has_aliases() && self.known.read().aliases.get((tag, lower)).is_some() {
            self.append_or_defer(cx, Record::Unalias { tag, lower });
        }
    }

    /// Assigns an alias to a lower directory, without writing: the record is written with the next
    /// one.
    pub(crate) fn alias_deferred(&self, tag: u16, lower: u64, alias: Alias) {
        let record = Record::Alias { tag, lower, alias };
        self.deferred.lock().push_back(record.clone());
        self.apply(record);
    }

    /// Whether `number`, which follows from a lower number, belongs to another object than the
    /// lower one with this generation.
    pub(crate) fn is_taken(&self, number: u64, generation: u32) -> bool {
        self.has_aliases() && generation != 0 && self.known.read().aliases.is_taken(number, generation)
    }

    /// Returns the number of a lower object whose own `number` is taken: its alias, which is
    /// assigned now, without writing, unless it has one by now.
    pub(crate) fn number_beside(&self, (tag, lower): LowerKey, number: u64, born: Time, generation: u32) -> u64 {
        let mut deferred = self.deferred.lock();
        let mut known = self.known.write();
        if let Some(alias) = known.aliases.get((tag, lower)).filter(|alias| alias.born == born) {
            return alias.number;
        }
        let mut free = next_free(number);
        while !known.aliases.with_number(free).is_empty() {
            free = next_free(free);
        }
        let record = Record::Alias { tag, lower, alias: Alias { born, number: free, generation } };
        deferred.push_back(record.clone());
        known.apply(record);
        self.aliases.store(known.aliases.of.len(), Ordering::Release);
        free
    }

    /// Removes an alias, without writing: the record is written with the next one. If that is lost,
    /// the time of birth in the alias still shows that it belongs to another file.
    pub(crate) fn unalias_deferred(&self, tag: u16, lower: u64) {
        if self.known.read().aliases.get((tag, lower)).is_some() {
            self.deferred.lock().push_back(Record::Unalias { tag, lower });
            self.apply(Record::Unalias { tag, lower });
        }
    }
}
