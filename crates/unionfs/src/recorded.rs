//! What identity logs say, in memory: docs/design/unionfs.md, "Records".

use crate::log::{Alias, Original, Record, Tagged};
use std::collections::{BTreeMap, HashMap};

/// What a branch says of the names of a file. Also the sum of what several branches say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCount {
    /// The number of names that the file had on the branches to the right when it was copied to
    /// this one; 0 if it was not.
    pub(crate) first: u32,
    /// The number of names on the branches to the right, or on this one, that the branch hides or
    /// replaces: they no longer lead to the file or its copy.
    pub(crate) used: u32,
}

impl LinkCount {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { first: self.first.saturating_add(other.first), used: self.used.saturating_add(other.used) }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self { first: self.first.saturating_sub(other.first), used: self.used.saturating_sub(other.used) }
    }
}

/// The link counts of one file, by the tag of the branch that has them.
pub(crate) type Counts = Vec<(u16, LinkCount)>;

/// Returns the sum of all branches' counts.
pub(crate) fn total(counts: &Counts) -> LinkCount {
    counts.iter().fold(LinkCount::default(), |sum, (_, count)| sum.plus(*count))
}

/// Tag of the branch and lower number of a lower object.
pub(crate) type LowerKey = (u16, u64);

/// The aliases, by lower object and by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aliases {
    pub(crate) of: HashMap<LowerKey, Alias>,
    /// The lower objects that have a number as their alias.
    with_number: HashMap<u64, Vec<LowerKey>>,
}

impl Aliases {
    pub(crate) fn has(&self, lower: LowerKey) -> bool {
        self.of.contains_key(&lower)
    }

    pub(crate) fn get(&self, lower: LowerKey) -> Option<Alias> {
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

    pub(crate) fn with_number(&self, number: u64) -> &[LowerKey] {
        self.with_number.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Whether a number belongs to an object other than the one with this generation.
    pub(crate) fn is_taken(&self, number: u64, generation: u32) -> bool {
        let holders = self.with_number(number).iter().filter_map(|lower| self.of.get(lower));
        let mut known = holders.map(|alias| alias.generation).filter(|of| *of != 0).peekable();
        known.peek().is_some() && known.all(|of| of != generation)
    }
}

/// What the logs of all branches say, or one of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The branches, by tag.
    pub(crate) tags: BTreeMap<u16, Tagged>,
    pub(crate) aliases: Aliases,
    pub(crate) names: HashMap<u64, Counts>,
    /// Names that were about to be used up when the log ended, by number.
    pub(crate) using: HashMap<u64, Vec<Using>>,
    /// The originals of the copies that the indexes have, by number, with the tag of the copy's
    /// branch.
    pub(crate) originals: HashMap<u64, Vec<(u16, Original)>>,
}

/// A name that was about to be used up when the log ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Using {
    /// Tag of the branch that was about to hide it, or from which it was about to be removed.
    pub(crate) by: u16,
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
            Record::Tag { tag, branch } => {
                self.tags.insert(tag, branch);
            }
            Record::Alias { tag, lower, alias } => self.aliases.insert((tag, lower), alias),
            Record::Unalias { tag, lower } => self.aliases.remove((tag, lower)),
            Record::Using { by, tag, number, first, path } => {
                self.using.entry(number).or_default().push(Using { by, tag, first, path });
            }
            Record::Names { by, number, first, used } => self.set_names(by, number, LinkCount { first, used }),
            Record::Original { by, number, original } => {
                let all = self.originals.entry(number).or_default();
                all.retain(|(of, _)| *of != by);
                all.push((by, original));
            }
        }
    }

    fn set_names(&mut self, by: u16, number: u64, count: LinkCount) {
        if let Some(list) = self.using.get_mut(&number) {
            list.retain(|using| using.by != by);
            if list.is_empty() {
                self.using.remove(&number);
            }
        }
        let counts = self.names.entry(number).or_default();
        counts.retain(|(of, _)| *of != by);
        if count != LinkCount::default() {
            counts.push((by, count));
        } else if let Some(all) = self.originals.get_mut(&number) {
            all.retain(|(of, _)| *of != by);
        }
        if counts.is_empty() {
            self.names.remove(&number);
        }
    }

    /// Returns what a branch says of a file's names.
    pub(crate) fn names_by(&self, number: u64, by: u16) -> LinkCount {
        let counts = self.names.get(&number).map_or(&[][..], Vec::as_slice);
        counts.iter().find(|(of, _)| *of == by).map(|(_, count)| *count).unwrap_or_default()
    }

    /// Forgets the records that lie on a branch which was removed. Those about its objects remain:
    /// it may be added again.
    pub(crate) fn forget_branch(&mut self, by: u16) {
        self.names.retain(|_, counts| {
            counts.retain(|(of, _)| *of != by);
            !counts.is_empty()
        });
        self.using.retain(|_, list| {
            list.retain(|using| using.by != by);
            !list.is_empty()
        });
        self.originals.values_mut().for_each(|all| all.retain(|(of, _)| *of != by));
    }

    /// Returns the shortest sequence of records with the same content.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let tags = self.tags.iter().map(|(&tag, branch)| Record::Tag { tag, branch: branch.clone() });
        let aliases = self.aliases.of.iter().map(|(&(tag, lower), &alias)| Record::Alias { tag, lower, alias });
        let names = self.names.iter().flat_map(|(&number, counts)| {
            counts.iter().map(move |&(by, LinkCount { first, used })| Record::Names { by, number, first, used })
        });
        let originals = self.originals.iter().flat_map(|(&number, all)| {
            all.iter().map(move |(by, original)| Record::Original { by: *by, number, original: original.clone() })
        });
        let using = self.using.iter().flat_map(|(&number, list)| {
            list.iter().map(move |u| Record::Using {
                by: u.by,
                tag: u.tag,
                number,
                first: u.first,
                path: u.path.clone(),
            })
        });
        tags.chain(aliases).chain(names).chain(originals).chain(using)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use vnode::Time;

    #[test]
    fn records_restore_the_content() {
        let mut known = Known::default();
        known.apply(Record::Tag { tag: 1, branch: Tagged { path: b"/a".to_vec(), fingerprint: None } });
        let born = Time { sec: -1, nsec: 5 };
        known.apply(Record::Alias { tag: 1, lower: 9, alias: Alias { born, number: 77, generation: 5 } });
        known.apply(Record::Alias { tag: 1, lower: 10, alias: Alias { born, number: 78, generation: 0 } });
        known.apply(Record::Unalias { tag: 1, lower: 10 });
        known.apply(Record::Names { by: 1, number: 77, first: 3, used: 1 });
        known.apply(Record::Names { by: 1, number: 78, first: 3, used: 1 });
        known.apply(Record::Names { by: 1, number: 78, first: 0, used: 0 });
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
