//! Extended attributes of the lower directory's objects that are the layer's own
//! (docs/formats/version-set.md).

use crate::wire::{Reader, Writer};
use vnode::Time;

/// The attribute of a file with its [`ContentTime`].
pub const CONTENT_TIME: &[u8] = b"trusted.versionfs.content-time";
/// The attribute of the lower root with its [`RootIdentity`].
pub const ROOT_IDENTITY: &[u8] = b"trusted.versionfs.root";

/// Whether an extended attribute is one of these.
#[must_use]
pub fn is_own_attribute(name: &[u8]) -> bool {
    name == CONTENT_TIME || name == ROOT_IDENTITY
}

/// When the content of a file changed last, although a program has set its modification time
/// since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentTime {
    /// When it changed.
    pub changed: Time,
    /// The modification time that was set. Another one is that of a later change.
    pub set: Time,
}

impl ContentTime {
    /// Returns the value of the attribute.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = Writer::default();
        out.time(self.changed);
        out.time(self.set);
        out.0
    }

    /// Parses the value of the attribute.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let parsed = Self { changed: from.time()?, set: from.time()? };
        from.0.is_empty().then_some(parsed)
    }
}

/// Which directory the lower root is: in a copy it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootIdentity {
    /// Its inode number.
    pub inode: u64,
    /// Its generation.
    pub generation: u32,
    /// Its time of birth.
    pub born: Time,
    /// The first mount after the last copy; the epoch if it is no copy.
    pub copied: Time,
}

impl RootIdentity {
    /// Returns the value of the attribute.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.inode);
        out.u32(self.generation);
        out.time(self.born);
        out.time(self.copied);
        out.0
    }

    /// Parses the value of the attribute.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let parsed = Self { inode: from.u64()?, generation: from.u32()?, born: from.time()?, copied: from.time()? };
        from.0.is_empty().then_some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: Time = Time { sec: -7, nsec: 999_999_999 };
    const LATE: Time = Time { sec: 1 << 40, nsec: 5 };

    #[test]
    fn values_are_parsed_as_they_were_written() {
        let time = ContentTime { changed: EARLY, set: LATE };
        assert_eq!(ContentTime::parse(&time.to_bytes()), Some(time));
        let root = RootIdentity { inode: u64::MAX - 1, generation: 7, born: EARLY, copied: LATE };
        assert_eq!(RootIdentity::parse(&root.to_bytes()), Some(root));
        assert_eq!((time.to_bytes().len(), root.to_bytes().len()), (24, 36));
    }

    #[test]
    fn values_of_another_length_are_none() {
        let bytes = ContentTime { changed: EARLY, set: LATE }.to_bytes();
        assert_eq!((ContentTime::parse(&bytes[1..]), ContentTime::parse(&[&*bytes, b"x"].concat())), (None, None));
        assert_eq!((RootIdentity::parse(&bytes), RootIdentity::parse(b"")), (None, None));
    }
}
