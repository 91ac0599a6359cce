//! Inode numbers and the records that keep them: docs/design/unionfs.md, "Inode numbers". Format of
//! the log: docs/formats/union-branch.md.

use crate::log::{Alias, Log, Record};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use vnode::{Cx, Time};

type Result<T, E = vnode::Errno> = std::result::Result<T, E>;

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

const LOWER_BITS: u32 = 48;
const HASHED: u64 = 1 << 63;

/// Returns the number of a lower object: tag and lower number, or a hash of both if the lower
/// number is too large.
pub(crate) fn compose(tag: u16, lower: u64) -> u64 {
    if lower >> LOWER_BITS == 0 {
        return u64::from(tag) << LOWER_BITS | lower;
    }
    HASHED | mix(lower ^ u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Returns the tag in a number; `None` for numbers of the hashed range.
pub(crate) fn tag_of(number: u64) -> Option<u16> {
    if number & HASHED != 0 { None } else { u16::try_from(number >> LOWER_BITS).ok() }
}

/// Returns the lower number in a number that is not of the hashed range.
pub(crate) fn lower_of(number: u64) -> u64 {
    number & ((1 << LOWER_BITS) - 1)
}

/// Returns the number that [`narrow`] turns into this one.
pub(crate) fn widen(shown: u64) -> u64 {
    let Ok(narrow) = u32::try_from(shown) else { return shown };
    match (narrow >> 30, narrow >> 26) {
        (tag @ 1..=3, _) => u64::from(tag) << LOWER_BITS | u64::from(narrow & ((1 << 30) - 1)),
        (_, tag @ 4..=15) => u64::from(tag) << LOWER_BITS | u64::from(narrow & ((1 << 26) - 1)),
        _ => shown,
    }
}

/// Returns the number to show with `ino=32`: tags 1 to 3 leave 30 bits to the lower number, tags 4
/// to 15 leave 26. Numbers that do not fit are unchanged. No two numbers are shown as one, and the
/// root keeps its number.
pub(crate) fn narrow(number: u64) -> u64 {
    let (tag, lower) = (number >> LOWER_BITS, number & ((1 << LOWER_BITS) - 1));
    match tag {
        1..=3 if lower >> 30 == 0 => tag << 30 | lower,
        4..=15 if lower >> 26 == 0 => tag << 26 | lower,
        _ => number,
    }
}

/// Returns another number, of the hashed range, to use if `id` is taken.
pub(crate) fn next_free(id: u64) -> u64 {
    HASHED | mix(id.wrapping_add(1))
}

/// Spreads every bit of the input over all bits (the finaliser of SplitMix64).
pub(crate) fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// The number of names that a lower file had, and how many of them are used up: they no longer lead
/// to it or its copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCount {
    pub(crate) first: u32,
    pub(crate) used: u32,
}

/// Tag of the branch and lower number of a lower object.
type LowerKey = (u16, u64);

/// The aliases, by lower object and by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aliases {
    of: HashMap<LowerKey, Alias>,
    /// The lower objects that have a number as their alias.
    with_number: HashMap<u64, Vec<LowerKey>>,
}

impl Aliases {
    fn get(&self, lower: LowerKey) -> Option<Alias> {
        self.of.get(&lower).copied()
    }

    fn insert(&mut self, lower: LowerKey, alias: Alias) {
        self.remove(lower);
        self.of.insert(lower, alias);
        self.with_number.entry(alias.number).or_default().push(lower);
    }

    fn remove(&mut self, lower: LowerKey) {
        let Some(old) = self.of.remove(&lower) else { return };
        if let Some(all) = self.with_number.get_mut(&old.number) {
            all.retain(|other| *other != lower);
            if all.is_empty() {
                self.with_number.remove(&old.number);
            }
        }
    }

    fn with_number(&self, number: u64) -> &[LowerKey] {
        self.with_number.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Whether a number belongs to an object other than the one with this generation.
    fn is_taken(&self, number: u64, generation: u32) -> bool {
        let holders = self.with_number(number).iter().filter_map(|lower| self.of.get(lower));
        let mut known = holders.map(|alias| alias.generation).filter(|of| *of != 0).peekable();
        known.peek().is_some() && known.all(|of| of != generation)
    }
}

/// The content of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) tags: HashMap<Vec<u8>, u16>,
    pub(crate) aliases: Aliases,
    pub(crate) names: HashMap<u64, LinkCount>,
    /// Names that were about to be used up when the log ended, by number.
    pub(crate) using: HashMap<u64, Vec<Using>>,
}

/// A name that was about to be used up when the log ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Using {
    /// Tag of the branch with the lower file.
    pub(crate) tag: u16,
    /// Number of names of the lower file.
    pub(crate) first: u32,
    /// The name's path in the union.
    pub(crate) path: Vec<u8>,
}

impl Known {
    /// Applies a record.
    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Tag { tag, path } => {
                self.tags.insert(path, tag);
            }
            Record::Alias { tag, lower, alias } => {
                self.aliases.insert((tag, lower), alias);
            }
            Record::Unalias { tag, lower } => {
                self.aliases.remove((tag, lower));
            }
            Record::Using { tag, number, first, path } => {
                self.using.entry(number).or_default().push(Using { tag, first, path });
            }
            Record::Names { number, first: 0, .. } => {
                self.using.remove(&number);
                self.names.remove(&number);
            }
            Record::Names { number, first, used } => {
                self.using.remove(&number);
                self.names.insert(number, LinkCount { first, used });
            }
        }
    }

    /// Merges the log of the branch that becomes the leftmost one. Its link counts take precedence;
    /// they replace all others if those belong to a branch that is `removed`. Fails, and merges
    /// nothing, if its tags contradict the current ones.
    pub(crate) fn merge_log(&mut self, other: Self, removed: bool) -> Result<(), ()> {
        let own: HashMap<u16, &Vec<u8>> = self.tags.iter().map(|(path, &tag)| (tag, path)).collect();
        let agrees = |(path, tag): (&Vec<u8>, &u16)| match self.tags.get(path) {
            Some(own) => own == tag,
            None => !own.contains_key(tag),
        };
        let agree = other.tags.iter().all(agrees);
        if removed {
            self.names.clear();
            self.using.clear();
        }
        if !agree {
            return Err(());
        }
        self.tags.extend(other.tags);
        for (lower, alias) in other.aliases.of {
            if self.aliases.get(lower).is_none() {
                self.aliases.insert(lower, alias);
            }
        }
        self.names.extend(other.names);
        self.using.extend(other.using);
        Ok(())
    }

    /// Returns the shortest sequence of records with the same content.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let tags = self.tags.iter().map(|(path, &tag)| Record::Tag { tag, path: path.clone() });
        let aliases = self.aliases.of.iter().map(|(&(tag, lower), &alias)| Record::Alias { tag, lower, alias });
        let names = self.names.iter().map(|(&number, n)| Record::Names { number, first: n.first, used: n.used });
        let using = self.using.iter().flat_map(|(&number, list)| {
            list.iter().map(move |u| Record::Using { tag: u.tag, number, first: u.first, path: u.path.clone() })
        });
        tags.chain(aliases).chain(names).chain(using)
    }
}

/// The identity log and its content.
#[derive(Debug)]
pub(crate) struct Identity {
    known: RwLock<Known>,
    /// Number of aliases. A lookup in a union without aliases needs no lock.
    aliases: AtomicUsize,
    /// Number of link counts.
    names: AtomicUsize,
    /// The log; `None` in a read-only union. Locked while the branch is written, which may be
    /// frozen.
    log: Mutex<Option<Log>>,
    /// Records still to be written, the oldest first.
    deferred: Mutex<VecDeque<Record>>,
}

impl Identity {
    pub(crate) fn new(known: Known, log: Option<Log>) -> Self {
        Self {
            aliases: known.aliases.of.len().into(),
            names: known.names.len().into(),
            known: RwLock::new(known),
            log: Mutex::new(log),
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

    /// Returns the link count record of a file.
    pub(crate) fn names(&self, number: u64) -> Option<LinkCount> {
        if self.names.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.known.read().names.get(&number).copied()
    }

    /// Returns a copy of the content.
    pub(crate) fn known(&self) -> Known {
        self.known.read().clone()
    }

    /// Returns a copy of the tags alone.
    pub(crate) fn tags(&self) -> Known {
        Known { tags: self.known.read().tags.clone(), ..Known::default() }
    }

    /// Replaces the log. The new one holds all of `known`.
    pub(crate) fn replace(&self, known: Known, log: Option<Log>) {
        let old = {
            let mut present = self.log.lock();
            self.deferred.lock().clear();
            let mut all = self.known.write();
            self.aliases.store(known.aliases.of.len(), Ordering::Release);
            self.names.store(known.names.len(), Ordering::Release);
            *all = known;
            std::mem::replace(&mut *present, log)
        };
        drop(old);
    }

    /// Returns the content, and takes the log away.
    pub(crate) fn take(&self) -> (Known, Option<Log>) {
        (self.known(), self.log.lock().take())
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
        let mut log = self.log.lock();
        let Some(log) = log.as_mut() else {
            self.deferred.lock().clear();
            return Ok(());
        };
        loop {
            let Some(deferred) = self.deferred.lock().front().cloned() else { break };
            log.append(cx, [&deferred])?;
            self.deferred.lock().pop_front();
        }
        if records.is_empty() { Ok(()) } else { log.append(cx, records) }
    }

    fn apply(&self, record: Record) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique() {
        assert_eq!(compose(3, 5), 3 << 48 | 5);
        assert_ne!(compose(3, 1 << 50), compose(4, 1 << 50));
        assert!(compose(3, 1 << 50) >> 63 == 1);
        assert!(compose(32766, (1 << 48) - 1) >> 63 == 0);
        assert_ne!(next_free(7), next_free(next_free(7)));
    }

    #[test]
    fn narrow_numbers_are_unique() {
        assert_eq!(narrow(ROOT), ROOT);
        let fits = |number: u64| narrow(number) <= u64::from(u32::MAX);
        let lowest: Vec<u64> = (1..=15).map(|tag| narrow(compose(tag, 0))).collect();
        let highest = |tag: u16| narrow(compose(tag, (1 << if tag < 4 { 30 } else { 26 }) - 1));
        for tag in 1..=15 {
            assert!(fits(compose(tag, 7)));
            for number in [compose(tag, 0), compose(tag, 7), compose(tag, (1 << 26) - 1), compose(tag, 1 << 26)] {
                assert_eq!(widen(narrow(number)), number);
            }
            assert!(highest(tag) <= u64::from(u32::MAX) && narrow(compose(tag, 0)) > ROOT);
            // The ranges of two tags do not overlap.
            let inside = |n: &&u64| (narrow(compose(tag, 0))..=highest(tag)).contains(*n);
            assert_eq!(lowest.iter().filter(inside).count(), 1, "tag {tag}");
        }
        for large in [compose(1, 1 << 30), compose(4, 1 << 26), compose(16, 1), compose(1, 1 << 50), next_free(7)] {
            assert_eq!(narrow(large), large);
            assert_eq!(widen(large), large);
            assert!(!fits(large));
        }
    }

    #[test]
    fn records_restore_the_content() {
        let mut known = Known::default();
        known.apply(Record::Tag { tag: 1, path: b"/a".to_vec() });
        let born = Time { sec: -1, nsec: 5 };
        known.apply(Record::Alias { tag: 1, lower: 9, alias: Alias { born, number: 77, generation: 5 } });
        known.apply(Record::Alias { tag: 1, lower: 10, alias: Alias { born, number: 78, generation: 0 } });
        known.apply(Record::Unalias { tag: 1, lower: 10 });
        known.apply(Record::Names { number: 77, first: 3, used: 1 });
        known.apply(Record::Names { number: 78, first: 3, used: 1 });
        known.apply(Record::Names { number: 78, first: 0, used: 0 });
        let mut again = Known::default();
        for record in known.records() {
            again.apply(record);
        }
        assert_eq!(known.records().count(), 3);
        assert_eq!(again.aliases.of, known.aliases.of);
        assert_eq!(again.aliases.with_number(77), [(1, 9)]);
        assert!(again.aliases.with_number(78).is_empty());
        assert_eq!(again.names, known.names);
        assert_eq!(again.tags, known.tags);
    }
}
