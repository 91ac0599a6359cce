//! Reads and parses POSIX access ACLs.

use vnode::{Cx, Errno, Result, Vnode};

/// Name of the extended attribute with an object's access ACL.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// Maximum size of an ACL in bytes: more than any Linux file system stores.
const MAX_BYTES: usize = 65536;
/// The header, and the size of an entry in bytes.
const HEADER: [u8; 4] = 2u32.to_le_bytes();
const ENTRY: usize = 8;

/// The subject of an ACL entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Other,
}

/// An access ACL: subjects and permission bits (`07`), in the order of the attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(pub(crate) Vec<(Subject, u32)>);

impl Acl {
    /// Returns the ACL of an object, if it has one.
    ///
    /// # Errors
    /// `EIO` for an invalid ACL, and errors of the layer.
    pub fn of(cx: &Cx<'_>, vnode: &dyn Vnode) -> Result<Option<Self>> {
        let mut bytes = vec![0; 256];
        loop {
            match vnode.getxattr(cx, ACL_ACCESS, &mut bytes) {
                Ok(len) => return Self::parse(bytes.get(..len).ok_or(Errno::IO)?).map(Some),
                Err(Errno::RANGE) if bytes.len() < MAX_BYTES => bytes.resize(bytes.len() * 16, 0),
                Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Returns the permission bits (`0777`) that say the same; `None` if no mode does.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        match *self.0 {
            [(Subject::Owner, owner), (Subject::OwningGroup, group), (Subject::Other, other)] => {
                Some(owner << 6 | group << 3 | other)
            }
            _ => None,
        }
    }

    /// Parses the attribute's value: a header with version 2, then tag, permissions and id of each
    /// entry, little-endian.
    ///
    /// # Errors
    /// `EIO` for anything else.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (entries, []) = bytes.strip_prefix(&HEADER).ok_or(Errno::IO)?.as_chunks::<ENTRY>() else {
            return Err(Errno::IO);
        };
        entries.iter().map(entry).collect::<Option<_>>().map(Self).ok_or(Errno::IO)
    }
}

fn entry(&[tag, tag_high, perm, perm_high, a, b, c, d]: &[u8; ENTRY]) -> Option<(Subject, u32)> {
    let id = u32::from_le_bytes([a, b, c, d]);
    let subject = match u16::from_le_bytes([tag, tag_high]) {
        0x01 => Subject::Owner,
        0x02 => Subject::User(id),
        0x04 => Subject::OwningGroup,
        0x08 => Subject::Group(id),
        0x10 => Subject::Mask,
        0x20 => Subject::Other,
        _ => return None,
    };
    let perm = u16::from_le_bytes([perm, perm_high]);
    (perm <= 7).then_some((subject, u32::from(perm)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_acls_are_refused() {
        let good = [&HEADER[..], &[1, 0, 6, 0, 255, 255, 255, 255], &[2, 0, 4, 0, 7, 0, 0, 0]].concat();
        assert_eq!(Acl::parse(&good), Ok(Acl(vec![(Subject::Owner, 6), (Subject::User(7), 4)])));
        for len in (0..good.len()).filter(|len| ![4, 12].contains(len)) {
            assert_eq!(Acl::parse(&good[..len]), Err(Errno::IO), "{len}");
        }
        for (at, byte) in [(0, 1), (4, 3), (5, 1), (6, 8), (7, 1)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(Acl::parse(&bad), Err(Errno::IO), "{at}");
        }
    }
}
