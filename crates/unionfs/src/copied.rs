//! Branches that are copies of the directory that a union wrote (`cp -a`, `rsync -a`), by their
//! identity logs: docs/formats/union-branch.md, "Identity log".

use crate::log::{Record, Tagged};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use vnode::Time;

/// The tag of no branch: a log with this one lies in a copy of the branch in which it began.
pub(crate) const COPY: u16 = 0;
/// Ends the record if the branches to the right were those of the original.
const OLD_BELOW: &[u8] = b" below";

/// A branch that is a copy of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// When it was recognised: all its later records have true times of birth. `None` if that is
    /// not recorded yet.
    pub at: Option<Time>,
    /// The branches to its right, at that time, were those of the original, not copies of them.
    pub old_below: bool,
}

impl Copied {
    /// Returns whether a branch is a copy, by the tags of its log: the log knows the fingerprint
    /// of another directory, but not this one's, or has a record that says so.
    ///
    /// `own`: its fingerprint; `below`: those of the branches to its right.
    pub(crate) fn of(tags: &BTreeMap<u16, Tagged>, own: Option<u64>, below: &[Option<u64>]) -> Option<Self> {
        let branches = || tags.iter().filter(|(tag, _)| **tag != COPY).filter_map(|(_, branch)| branch.fingerprint);
        let knows = |fingerprint: u64| branches().any(|known| known == fingerprint);
        let is_new = own.is_some_and(|own| branches().next().is_some() && !knows(own));
        let recorded = tags.get(&COPY);
        let is_old_below = || below.iter().all(|below| below.is_some_and(knows));
        // The record of a copy that was copied again is about the other one. Without a fingerprint,
        // this branch can be such a copy.
        match recorded.filter(|_| !is_new).map(|record| Self::decode(&record.path)) {
            Some(_) if own.is_none() => Some(Self { at: None, old_below: is_old_below() }),
            Some(Some(copied)) => Some(copied),
            Some(None) => Some(Self { at: None, old_below: false }),
            None if is_new => Some(Self { at: None, old_below: is_old_below() }),
            None => None,
        }
    }

    /// Returns the record that the branch was recognised now, if there is none.
    ///
    /// `changed`: a time after the copying, by the clock of the file system. It can be ahead of the
    /// system clock, and times of birth are compared with the record.
    pub(crate) fn renewed(
        tags: &BTreeMap<u16, Tagged>,
        own: Option<u64>,
        below: &[Option<u64>],
        changed: Time,
    ) -> Option<Record> {
        own?;
        let Self { old_below, .. } = Self::of(tags, own, below).filter(|copied| copied.at.is_none())?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sec = i64::try_from(since.as_secs()).unwrap_or_default();
        let now = Self { at: Some(Time { sec, nsec: since.subsec_nanos() }.max(changed)), old_below };
        Some(Record::Tag { tag: COPY, branch: Tagged { path: now.encode(), fingerprint: None } })
    }

    fn encode(self) -> Vec<u8> {
        let Time { sec, nsec } = self.at.unwrap_or_default();
        let end = if self.old_below { OLD_BELOW } else { b"" };
        [format!("{sec} {nsec}").as_bytes(), end].concat()
    }

    fn decode(path: &[u8]) -> Option<Self> {
        let (time, old_below) = match path.strip_suffix(OLD_BELOW) {
            Some(time) => (time, true),
            None => (path, false),
        };
        let (sec, nsec) = std::str::from_utf8(time).ok()?.split_once(' ')?;
        let nsec = nsec.parse().ok().filter(|nsec| *nsec < 1_000_000_000)?;
        Some(Self { at: Some(Time { sec: sec.parse().ok()?, nsec }), old_below })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(fingerprint: u64) -> Tagged {
        Tagged { path: b"/b".to_vec(), fingerprint: Some(fingerprint) }
    }

    #[test]
    fn the_record_is_read_as_written() {
        for at in [Time { sec: 17, nsec: 999_999_999 }, Time { sec: -1, nsec: 0 }] {
            for old_below in [false, true] {
                let copied = Copied { at: Some(at), old_below };
                assert_eq!(Copied::decode(&copied.encode()), Some(copied));
            }
        }
        for bad in [&b""[..], b"1", b"1 x", b"1 1000000000", b"1 2 3", b" below"] {
            assert_eq!(Copied::decode(bad), None);
        }
    }

    #[test]
    fn a_copy_is_recognised_once() {
        let mut tags: BTreeMap<u16, Tagged> = [(1, tagged(1)), (2, tagged(2))].into();
        assert_eq!(Copied::of(&tags, Some(1), &[Some(9)]), None);
        assert_eq!(Copied::of(&tags, None, &[]), None);
        assert_eq!(Copied::of(&BTreeMap::new(), Some(1), &[]), None);
        let copied = |old_below| Some(Copied { at: None, old_below });
        for (below, old_below) in [(&[Some(2)][..], true), (&[Some(2), Some(9)], false), (&[None], false)] {
            assert_eq!(Copied::of(&tags, Some(3), below), copied(old_below));
        }
        let changed = Time::default();
        let Some(Record::Tag { tag, branch }) = Copied::renewed(&tags, Some(3), &[Some(2)], changed) else { panic!() };
        tags.insert(tag, branch);
        tags.insert(3, tagged(3));
        let recognised = Copied::of(&tags, Some(3), &[Some(9)]).unwrap();
        assert!(recognised.at.is_some() && recognised.old_below);
        assert_eq!(Copied::renewed(&tags, Some(3), &[], changed), None);
        // A copy of the copy is another one.
        assert_eq!(Copied::of(&tags, Some(4), &[Some(2), Some(3)]), copied(true));
        assert!(Copied::renewed(&tags, Some(4), &[], changed).is_some());
        // Without a fingerprint, it can be any copy of the copy.
        for (below, old_below) in [(Some(2), true), (Some(9), false), (None, false)] {
            assert_eq!(Copied::of(&tags, None, &[below]), copied(old_below));
        }
        assert_eq!(Copied::renewed(&tags, None, &[], changed), None);
    }

    /// The clock of the file system is ahead, or was so when the copy was made.
    #[test]
    fn a_copy_is_recorded_after_it_was_made() {
        let tags: BTreeMap<u16, Tagged> = [(1, tagged(1))].into();
        let ahead = Time { sec: i64::MAX / 2, nsec: 7 };
        for (changed, is_ahead) in [(ahead, true), (Time::default(), false)] {
            let Some(Record::Tag { branch, .. }) = Copied::renewed(&tags, Some(2), &[], changed) else { panic!() };
            let at = Copied::decode(&branch.path).and_then(|copied| copied.at).unwrap();
            assert_eq!(at == ahead, is_ahead);
        }
    }

    /// Earlier versions recorded no time.
    #[test]
    fn a_record_without_a_time_is_completed() {
        let old = Tagged { path: Vec::new(), fingerprint: None };
        let tags: BTreeMap<u16, Tagged> = [(1, tagged(1)), (COPY, old)].into();
        assert_eq!(Copied::of(&tags, Some(1), &[Some(1)]), Some(Copied { at: None, old_below: false }));
        assert!(Copied::renewed(&tags, Some(1), &[], Time::default()).is_some());
    }
}
