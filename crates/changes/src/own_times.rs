//! Change times that commits have moved themselves: a commit of some changes can move the change
//! time of files below that the remaining changes concern, for example by removing another name of
//! such a file. A later commit must not take this for a change by somebody else.
//!
//! The file in the root of the upper branch has the line `strata-committed 1`; then for each
//! remaining change the change time that the commit left below, in seconds and nanoseconds since
//! the epoch, and the path of the change, which a NUL terminates.

use crate::branches::{Branches, cx};
use crate::error::{At, Failed};
use crate::temp::{read_file, remove_file, replace_file};
use std::collections::BTreeMap;
use vnode::Time;

/// The file's name.
pub(crate) const NAME: &[u8] = b".wh..wh.committed";
const HEADER: &[u8] = b"strata-committed 1\n";

/// The change times that commits left below, by the path of the remaining change.
pub(crate) type OwnTimes = BTreeMap<Vec<u8>, Time>;

impl Branches {
    /// Returns the change times that earlier commits have moved.
    pub(crate) fn own_times(&self) -> Result<OwnTimes, Failed> {
        let bytes = read_file(&cx(), &self.upper_root(), NAME).at("read the times of earlier commits", b"")?;
        Ok(bytes.map(|bytes| decode(&bytes)).unwrap_or_default())
    }

    /// Writes the change times that commits have moved, or removes the file if there are none.
    pub(crate) fn write_own_times(&self, times: &OwnTimes) -> Result<(), Failed> {
        let (cx, upper) = (cx(), self.upper_root());
        let written = match times.is_empty() {
            true => remove_file(&cx, &upper, NAME),
            false => replace_file(&cx, &upper, NAME, &encode(times)),
        };
        written.at("write the times of the commit", b"")
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
