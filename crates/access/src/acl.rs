use vnode::{Cx, Errno, Result, Vnode};

/// The extended attribute that holds the ACL of an object.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// More entries than any file system of Linux stores.
const MAX_BYTES: usize = 65536;
/// The bytes of the header, and of an entry.
const HEADER: [u8; 4] = 2u32.to_le_bytes();
const ENTRY: usize = 8;

/// Whom an entry of an ACL is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Other,
}

/// An access ACL: who, and permission bits (`07`), in the order of the attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(pub(crate) Vec<(Who, u32)>);

impl Acl {
    /// The ACL of an object, if it has one.
    ///
    /// # Errors
    /// `EIO` for one that can't be understood, and those of the layer.
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

    /// The ACL of an attribute's bytes: a header, version 2, then tag, permissions and id of each entry, little-endian.
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

fn entry(&[tag, tag_high, perm, perm_high, a, b, c, d]: &[u8; ENTRY]) -> Option<(Who, u32)> {
    let id = u32::from_le_bytes([a, b, c, d]);
    let who = match u16::from_le_bytes([tag, tag_high]) {
        0x01 => Who::Owner,
        0x02 => Who::User(id),
        0x04 => Who::OwningGroup,
        0x08 => Who::Group(id),
        0x10 => Who::Mask,
        0x20 => Who::Other,
        _ => return None,
    };
    let perm = u16::from_le_bytes([perm, perm_high]);
    (perm <= 7).then_some((who, u32::from(perm)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_acl_is_refused() {
        let good = [&HEADER[..], &[1, 0, 6, 0, 255, 255, 255, 255], &[2, 0, 4, 0, 7, 0, 0, 0]].concat();
        assert_eq!(Acl::parse(&good), Ok(Acl(vec![(Who::Owner, 6), (Who::User(7), 4)])));
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
