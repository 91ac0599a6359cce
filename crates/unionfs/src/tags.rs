//! The tags of a branch's log, which differ from the union's if the log was written by a union of
//! other branches: docs/design/unionfs.md, "Records".

use crate::inode_number::{LOWER_BITS, lower_of, tag_of};
use crate::log::Tagged;
use std::collections::BTreeMap;

/// The largest tag of a branch; the smallest is 1. Tags fill bits 62..48 of a number.
pub(crate) const TAGS: u16 = 0x7ffe;

/// Returns the smallest tag that is not used.
pub(crate) fn free_tag(is_used: impl Fn(u16) -> bool) -> u16 {
    (1..=TAGS).find(|&tag| !is_used(tag)).unwrap_or(TAGS)
}

/// Returns the tag of a branch that logs refer to: the one with the same path, and the same
/// fingerprint if both are known.
pub(crate) fn tag_of_branch(tags: &BTreeMap<u16, Tagged>, branch: &Tagged) -> Option<u16> {
    let found = tags.iter().find(|(_, known)| known.path == branch.path && may_be_same(known, branch));
    found.map(|(tag, _)| *tag)
}

/// Whether both can be the same branch.
fn may_be_same(a: &Tagged, b: &Tagged) -> bool {
    a.fingerprint.zip(b.fingerprint).is_none_or(|(a, b)| a == b)
}

/// The tags in a log, with the union's tags of the same branches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tags {
    to_union: BTreeMap<u16, u16>,
    to_log: BTreeMap<u16, u16>,
}

impl Tags {
    /// Notes that the log has the tag `log` for the branch with the tag `union`.
    pub(crate) fn set(&mut self, log: u16, union: u16) {
        self.to_union.insert(log, union);
        self.to_log.entry(union).or_insert(log);
    }

    /// Returns the union's tag.
    pub(crate) fn union_tag(&self, log: u16) -> Option<u16> {
        self.to_union.get(&log).copied()
    }

    /// Returns the log's tag.
    pub(crate) fn log_tag(&self, union: u16) -> Option<u16> {
        self.to_log.get(&union).copied()
    }

    /// Returns the log's tags, with the union's.
    pub(crate) fn all(&self) -> Vec<(u16, u16)> {
        self.to_union.iter().map(|(log, union)| (*log, *union)).collect()
    }

    /// Returns the log's tag of a branch, and whether the log has none so far: it is assigned then.
    pub(crate) fn assign(&mut self, union: u16) -> (u16, bool) {
        if let Some(tag) = self.log_tag(union) {
            return (tag, false);
        }
        let tag = match self.to_union.contains_key(&union) {
            false => union,
            true => free_tag(|tag| self.to_union.contains_key(&tag)),
        };
        self.set(tag, union);
        (tag, true)
    }

    /// Whether all tags are the union's.
    fn is_same(&self) -> bool {
        self.to_union.iter().all(|(log, union)| log == union)
    }

    /// Returns the union's number for a number in the log. `None` if it has none: numbers of the
    /// hashed range depend on the log's tags.
    pub(crate) fn union_number(&self, number: u64) -> Option<u64> {
        match tag_of(number) {
            Some(0) => Some(number),
            Some(tag) => match self.union_tag(tag) {
                Some(tag) => Some(u64::from(tag) << LOWER_BITS | lower_of(number)),
                None => self.is_same().then_some(number),
            },
            None => self.is_same().then_some(number),
        }
    }

    /// Returns the number that the log has for a number of the union.
    pub(crate) fn log_number(&self, number: u64) -> u64 {
        match tag_of(number).and_then(|tag| self.log_tag(tag)) {
            Some(tag) => u64::from(tag) << LOWER_BITS | lower_of(number),
            None => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode_number::{compose, next_free};

    #[test]
    fn numbers_are_translated_both_ways() {
        let mut tags = Tags::default();
        tags.set(1, 2);
        assert_eq!((tags.assign(2), tags.assign(1), tags.assign(3)), ((1, false), (2, true), (3, true)));
        for (log, union) in
            [(compose(1, 7), compose(2, 7)), (compose(2, 8), compose(1, 8)), (compose(3, 9), compose(3, 9))]
        {
            assert_eq!((tags.union_number(log), tags.log_number(union)), (Some(union), log));
        }
        assert_eq!(tags.union_number(1), Some(1));
        assert_eq!(tags.union_number(next_free(7)), None);
        assert_eq!(tags.union_number(compose(9, 1)), None);
    }

    #[test]
    fn the_same_tags_change_no_number() {
        let mut tags = Tags::default();
        tags.set(4, 4);
        for number in [1, compose(4, 7), compose(9, 1), next_free(7)] {
            assert_eq!((tags.union_number(number), tags.log_number(number)), (Some(number), number));
        }
    }
}
