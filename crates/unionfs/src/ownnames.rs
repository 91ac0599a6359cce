//! The names of the union's own files and directories.

use vnode::{Name, Result};

/// The name of the work directory in the root of a branch.
pub(crate) const WORK: &[u8] = b".wh..wh.work";
/// The name of the index in the root of a branch.
pub(crate) const LINKS: &[u8] = b".wh..wh.links";

/// The names in the root of a branch of what `strata commit` records there (`crates/changes`).
pub(crate) const COMMITS: [&[u8]; 2] = [b".wh..wh.commit", b".wh..wh.committed"];

/// The name in a work directory of what an interrupted snapshot leaves.
pub(crate) const SNAPSHOT: &[u8] = b"snapshot";

/// Whether an entry of the work directory has such a name.
pub(crate) fn is_work_name(name: &[u8]) -> bool {
    name == SNAPSHOT
        || name.strip_prefix(b"c").is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// The name of an index entry: 16 hexadecimal digits.
pub(crate) struct IndexName([u8; 16]);

impl IndexName {
    /// Returns the name of the index entry of this number.
    pub(crate) fn of(number: u64) -> Self {
        let mut hex = [0; 16];
        for (place, digit) in hex.iter_mut().enumerate() {
            let nibble = (number >> (60 - 4 * place)) & 15;
            *digit = b"0123456789abcdef".get(usize::try_from(nibble).unwrap_or(0)).copied().unwrap_or(b'0');
        }
        Self(hex)
    }

    /// Returns the number in the name of an index entry; `None` for other names.
    pub(crate) fn parse(name: &[u8]) -> Option<u64> {
        let text = std::str::from_utf8(name).ok().filter(|t| t.len() == 16 && !t.starts_with('+'))?;
        u64::from_str_radix(text, 16).ok()
    }

    pub(crate) fn name(&self) -> Result<Name<'_>> {
        Name::new(&self.0)
    }
}

/// Whether this is the name of an index entry.
pub(crate) fn is_index_name(name: &[u8]) -> bool {
    IndexName::parse(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_entry_names() {
        for number in [0, 1, 0x8000_0000_0000_0001, u64::MAX] {
            assert_eq!(IndexName::parse(IndexName::of(number).name().unwrap().as_bytes()), Some(number));
        }
        assert_eq!(IndexName::of(255).0, *b"00000000000000ff");
        assert_eq!(IndexName::parse(b"+00000000000000f"), None);
        assert_eq!(IndexName::parse(b"ff"), None);
    }
}
