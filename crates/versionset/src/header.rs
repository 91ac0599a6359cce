//! The header that every version file has, except those that are an ordinary copy of the file: its
//! attributes, from which a lost index is rebuilt.

use crate::names::Letter;
use crate::version::Version;
use crate::wire::{Reader, Writer};

/// A version with its extended attributes, as stored in a version file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version.
    pub version: Version,
    /// Extended attributes, ACLs among them: name and value.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Longest encoded header in bytes: 64 KiB of attributes, as ext4 and btrfs permit, and the rest.
pub const MAX_HEADER: usize = 72 * 1024;

impl Header {
    /// Returns the header of the same version stored in another way.
    #[must_use]
    pub(crate) fn stored_as(&self, letter: Letter, size: u64) -> Self {
        Self { version: Version { letter, size, ..self.version.clone() }, xattrs: self.xattrs.clone() }
    }

    /// Returns the header as bytes, at most [`MAX_HEADER`]. `None` if the extended attributes are
    /// too large.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Writer::default();
        self.version.encode(&mut out);
        out.u32(u32::try_from(self.xattrs.len()).ok()?);
        for (name, value) in &self.xattrs {
            if name.len().max(value.len()) > usize::from(u16::MAX) {
                return None;
            }
            out.bytes(name);
            out.bytes(value);
        }
        (out.0.len() <= MAX_HEADER).then_some(out.0)
    }

    /// Parses the bytes. `None` if they are damaged.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let version = Version::decode(&mut from)?;
        let mut xattrs = Vec::new();
        for _ in 0..from.u32()? {
            xattrs.push((from.bytes()?.to_vec(), from.bytes()?.to_vec()));
        }
        from.0.is_empty().then_some(Self { version, xattrs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::tests::example;

    #[test]
    fn headers_are_decoded_as_they_were_encoded() {
        let xattrs = vec![(b"user.a".to_vec(), b"value".to_vec()), (b"user.b".to_vec(), Vec::new())];
        let header = Header { version: example(3), xattrs };
        let bytes = header.encode().unwrap();
        assert_eq!(Header::decode(&bytes).as_ref(), Some(&header));
        for len in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..len]), None);
        }
        assert_eq!(Header::decode(&[&bytes[..], b"x"].concat()), None);
    }

    #[test]
    fn too_large_attributes_are_refused() {
        let xattrs = vec![(b"user.a".to_vec(), vec![0; 65_535]), (b"user.b".to_vec(), vec![0; 10_000])];
        assert_eq!(Header { version: example(3), xattrs }.encode(), None);
    }
}
