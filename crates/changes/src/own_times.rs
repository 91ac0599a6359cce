//! Change times that commits have moved themselves: a commit of some changes can move the change
//! time of files below that the remaining changes concern, for example by removing another name of
//! such a file. A later commit must not take this for a change by somebody else.
//!
//! The file in the root of the upper branch has the line `strata-committed 1`; then for each
//! remaining change the change time that the commit left below, in seconds and nanoseconds since
//! the epoch, and the path of the change, which a NUL terminates.

use crate::branches::{Branches, Views, cx};
use crate::change::Change;
use crate::conflict::Criteria;
use crate::error::{At, Failed};
use crate::ops::resolve;
use crate::temp::{read_file, remove_file, replace_file};
use crate::{Conflict, Error};
use std::collections::BTreeMap;
use vnode::{Attr, Kind, Time};

/// The file's name.
pub(crate) const NAME: &[u8] = b".wh..wh.committed";
const HEADER: &[u8] = b"strata-committed 1\n";

/// The change times that commits left below, by the path of the remaining change.
pub(crate) type OwnTimes = BTreeMap<Vec<u8>, Time>;

/// What a commit leaves as it is of a file of which it replaces or removes a name: modification
/// time, size, mode and owner.
type Untouched = (Time, u64, u32, u32, u32);

/// Files below by number.
pub(crate) type Touched = BTreeMap<u64, Untouched>;

fn facts(attr: &Attr) -> Untouched {
    (attr.mtime, attr.size, attr.mode, attr.uid, attr.gid)
}

impl Branches {
    /// Returns the change times that earlier commits have moved.
    pub(crate) fn own_times(&self) -> Result<OwnTimes, Failed> {
        let bytes = read_file(&cx(), &self.upper_root(), NAME).at("read the times of earlier commits", b"")?;
        Ok(bytes.map(|bytes| decode(&bytes)).unwrap_or_default())
    }

    /// Returns the files below with other names that these changes replace or remove.
    pub(crate) fn touched(&self, views: &Views, work: &[Change]) -> Result<Touched, Failed> {
        let mut touched = Touched::new();
        for path in work.iter().flat_map(|change| [Some(&change.path), change.from.as_ref()]).flatten() {
            if let Some(below) = resolve(&cx(), &views.below.root(), path).at("look up", path)? {
                let attr = below.getattr(&cx()).at("read the attributes", path)?;
                if attr.kind() != Kind::Directory && attr.nlink > 1 {
                    touched.insert(below.id(), facts(&attr));
                }
            }
        }
        Ok(touched)
    }

    /// Records the change times that this commit or an earlier one has moved. `before`: the
    /// conflicts when this commit began; `touched`: the files that it has replaced or removed. What
    /// others have changed meanwhile remains a conflict.
    pub(crate) fn record_own_times(
        &self,
        before: &[Conflict],
        touched: &Touched,
        criteria: &Criteria,
    ) -> Result<(), Error> {
        let (views, upper) = (self.views()?, self.upper_root());
        let left = self.find(&views)?.changes;
        let earlier = &criteria.own;
        let criteria = Criteria { began: None, own: OwnTimes::new(), ..criteria.clone() };
        let mut moved = self.conflicts_of(&views, &left, &criteria)?;
        moved.retain(|conflict| !before.iter().any(|known| known.path == conflict.path));
        let mut own = Vec::new();
        for conflict in &moved {
            let change = left.iter().find(|change| change.path == conflict.path);
            let path = change.and_then(|change| change.from.as_ref()).unwrap_or(&conflict.path);
            let Some(below) = resolve(&cx(), &views.below.root(), path).at("look up", path)? else { continue };
            let attr = below.getattr(&cx()).at("read the attributes", path)?;
            if touched.get(&below.id()) == Some(&facts(&attr)) {
                own.push(conflict.path.clone());
            }
        }
        moved.retain(|conflict| own.contains(&conflict.path) || earlier.get(&conflict.path) == Some(&conflict.changed));
        let times: OwnTimes = moved.into_iter().map(|conflict| (conflict.path, conflict.changed)).collect();
        let written = match times.is_empty() {
            true => remove_file(&cx(), &upper, NAME),
            false => replace_file(&cx(), &upper, NAME, &encode(&times)),
        };
        written.at("write the times of the commit", b"")?;
        Ok(())
    }
}

fn encode(times: &OwnTimes) -> Vec<u8> {
    let mut bytes = HEADER.to_vec();
    for (path, Time { sec, nsec }) in times {
        bytes.extend(format!("{sec} {nsec} ").as_bytes());
        bytes.extend(path);
        bytes.push(0);
    }
    bytes
}

/// Reads up to the first record that is damaged or cut off.
fn decode(bytes: &[u8]) -> OwnTimes {
    let records = bytes.strip_prefix(HEADER).unwrap_or_default().split_inclusive(|&b| b == 0);
    records.map_while(decode_record).collect()
}

fn decode_record(record: &[u8]) -> Option<(Vec<u8>, Time)> {
    let mut fields = record.strip_suffix(b"\0")?.splitn(3, |&b| b == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok();
    let time = Time { sec: number()?.parse().ok()?, nsec: number()?.parse().ok()? };
    Some((fields.next()?.to_vec(), time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_written() {
        let times: OwnTimes =
            [(b"a b/c".to_vec(), Time { sec: 17, nsec: 999_999_999 }), (b"\n".to_vec(), Time { sec: -1, nsec: 0 })]
                .into();
        let bytes = encode(&times);
        assert_eq!(decode(&bytes), times);
        let cut = bytes.get(..bytes.len() - 1).unwrap();
        assert_eq!(decode(cut).into_keys().collect::<Vec<_>>(), [b"\n".to_vec()]);
        for bad in [&b""[..], b"strata-committed 2\n1 2 a\0", b"strata-committed 1\nx 2 a\0"] {
            assert!(decode(bad).is_empty());
        }
    }
}
