//! POSIX ACLs, as far as creation and chmod need them, stored in the format of
//! `system.posix_acl_*`.

use crate::tree::Inode;

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const USER_OBJ: u16 = 1;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Header: version 2. It is followed by 8-byte entries: tag, permissions, ID, little-endian.
const HEADER: [u8; 4] = [2, 0, 0, 0];

/// Size of an entry in bytes.
const ENTRY: usize = 8;

/// Whether this is a well-formed ACL.
pub(crate) fn is_valid(acl: &[u8]) -> bool {
    acl.strip_prefix(&HEADER).is_some_and(|entries| entries.len() % ENTRY == 0)
}

fn entries(acl: &[u8]) -> impl Iterator<Item = (u16, u16)> {
    acl.get(HEADER.len()..)
        .unwrap_or(&[])
        .as_chunks::<ENTRY>()
        .0
        .iter()
        .map(|&[a, b, c, d, ..]| (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
}

/// Changes the permissions of the entries that correspond to the mode's classes.
fn map_classes(acl: &mut [u8], mut change: impl FnMut(u32, u16) -> u16) {
    let group_class = if entries(acl).any(|(tag, _)| tag == MASK) { MASK } else { GROUP_OBJ };
    for entry in acl.get_mut(HEADER.len()..).unwrap_or(&mut []).as_chunks_mut::<ENTRY>().0 {
        let [a, b, c, d, ..] = *entry;
        let tag = u16::from_le_bytes([a, b]);
        let shift = match tag {
            USER_OBJ => 6,
            OTHER => 0,
            tag if tag == group_class => 3,
            _ => continue,
        };
        let [low, high] = change(shift, u16::from_le_bytes([c, d])).to_le_bytes();
        (entry[2], entry[3]) = (low, high);
    }
}

/// Returns the permission bits that an access ACL corresponds to.
pub(crate) fn mode_of(acl: &[u8]) -> u32 {
    let mut mode = 0;
    map_classes(&mut acl.to_vec(), |shift, perm| {
        mode |= u32::from(perm & 7) << shift;
        perm
    });
    mode
}

/// Whether the ACL is equivalent to a mode.
pub(crate) fn is_minimal(acl: &[u8]) -> bool {
    entries(acl).all(|(tag, _)| matches!(tag, USER_OBJ | GROUP_OBJ | OTHER))
}

/// Updates the ACL after a change of the mode.
pub(crate) fn follow_mode(inode: &mut Inode) {
    let perm = inode.perm;
    if let Some(acl) = inode.xattrs.get_mut(ACCESS) {
        map_classes(acl, |shift, _| ((perm >> shift) & 7) as u16);
    }
}

/// Sets the permission bits and ACLs of a new object from the default ACL of its directory. Without
/// one, the umask applies.
pub(crate) fn inherit(default: Option<&[u8]>, inode: &mut Inode, umask: u32) {
    let Some(default) = default else {
        inode.perm &= !(umask & 0o777);
        return;
    };
    let mut access = default.to_vec();
    let mut mode = inode.perm & !0o777;
    let requested = inode.perm;
    map_classes(&mut access, |shift, perm| {
        let left = perm & ((requested >> shift) & 7) as u16;
        mode |= u32::from(left) << shift;
        left
    });
    inode.perm = mode;
    if !is_minimal(&access) {
        inode.xattrs.insert(ACCESS.to_vec(), access);
    }
    if inode.kind == vnode::Kind::Directory {
        inode.xattrs.insert(DEFAULT.to_vec(), default.to_vec());
    }
}
