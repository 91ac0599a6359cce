//! What a directory lost: names without an index that had something which is not in the history
//! (docs/formats/version-set.md). A restore of the directory names what is missing.

use crate::index::Gap;
use crate::version::Who;
use crate::wire::{Reader, Writer};

/// The name of the file in a store.
pub const LOST: &[u8] = b";lost";

/// The first bytes of the file.
const MAGIC: &[u8; 8] = b"VERSLOS1";

/// Largest such file in bytes: more than a person reads.
pub const MAX_LOST: u64 = 16 << 10;

/// Why a state is not in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// There was no room for a version when the name went.
    NoRoom = 1,
    /// Its version was discarded.
    Discarded = 2,
}

/// A name with something that is not in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The name. Empty: those of older records, which the file has no room for.
    pub name: Box<[u8]>,
    /// Why.
    pub why: Why,
    /// When the name had it; of several names, from the first to the last.
    pub gap: Gap,
}

impl Lost {
    fn encode(&self, out: &mut Writer) {
        let mut payload = Writer::default();
        payload.u8(self.why as u8);
        payload.bytes(&self.name);
        self.gap.encode(&mut payload);
        out.framed(&payload.0);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let why = match from.u8()? {
            1 => Why::NoRoom,
            2 => Why::Discarded,
            _ => return None,
        };
        let lost = Self { why, name: from.bytes()?.into(), gap: Gap::decode(&mut from)? };
        from.0.is_empty().then_some(lost)
    }
}

/// Parses the file. The records before any damage count.
#[must_use]
pub fn parse_lost(bytes: &[u8]) -> Vec<Lost> {
    let mut found = Vec::new();
    let Some(rest) = bytes.strip_prefix(MAGIC) else { return found };
    let mut from = Reader(rest);
    while let Some(lost) = from.framed().and_then(Lost::decode) {
        found.push(lost);
    }
    found
}

/// Returns the bytes of the file. If they would exceed [`MAX_LOST`], one record stands for the
/// older half.
#[must_use]
pub fn lost_to_bytes(records: &[Lost]) -> Vec<u8> {
    let mut out = Writer(MAGIC.to_vec());
    records.iter().for_each(|lost| lost.encode(&mut out));
    if out.0.len() as u64 <= MAX_LOST {
        return out.0;
    }
    let (older, newer) = records.split_at(records.len() / 2);
    let Some(latest) = older.iter().max_by_key(|lost| lost.gap.died) else { return out.0 };
    let born = older.iter().map(|lost| lost.gap.born).min().unwrap_or(latest.gap.born);
    let gap = Gap { born, who: Who::default(), ..latest.gap.clone() };
    let others = Lost { name: Box::default(), why: latest.why, gap };
    let shorter: Vec<_> = core::iter::once(others).chain(newer.iter().cloned()).collect();
    lost_to_bytes(&shorter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Cause;
    use vnode::Time;

    fn lost(n: i64) -> Lost {
        let who = Who { uid: 1, pid: 2, sid: 3, comm: b"rm"[..].into() };
        Lost {
            name: format!("name {n}").into_bytes().into(),
            why: if n % 2 == 0 { Why::NoRoom } else { Why::Discarded },
            gap: Gap { born: Time { sec: n, nsec: 5 }, died: Time { sec: n + 7, nsec: 0 }, cause: Cause::Unlink, who },
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let records: Vec<_> = (0..20).map(lost).collect();
        let bytes = lost_to_bytes(&records);
        assert_eq!(parse_lost(&bytes), records);
        assert_eq!(parse_lost(b""), []);
        for len in 0..bytes.len() {
            let part = parse_lost(&bytes[..len]);
            assert!(part.len() < 20 && records.starts_with(&part));
            let mut damaged = bytes.clone();
            damaged[len] ^= 1;
            assert!(records.starts_with(&parse_lost(&damaged)) && parse_lost(&damaged).len() < 20);
        }
    }

    #[test]
    fn a_record_stands_for_those_that_have_no_room() {
        let records: Vec<_> = (0..2000).map(lost).collect();
        let bytes = lost_to_bytes(&records);
        assert!(bytes.len() as u64 <= MAX_LOST && bytes.len() as u64 > MAX_LOST / 3, "{}", bytes.len());
        let kept = parse_lost(&bytes);
        let (others, names) = kept.split_first().unwrap();
        assert!(records.ends_with(names), "the newest stay");
        assert!(others.name.is_empty());
        assert_eq!(others.gap.died, records[2000 - names.len() - 1].gap.died);
        assert_eq!(others.gap.born, records[0].gap.born);
    }
}
