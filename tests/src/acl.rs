//! POSIX ACLs in the format of their extended attributes.

/// Name of the extended attribute that holds the access ACL.
pub const ACCESS: &str = "system.posix_acl_access";
/// Name of the extended attribute that holds a directory's default ACL.
pub const DEFAULT: &str = "system.posix_acl_default";

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// Encodes an ACL with the three permissions of the mode, a named user, a named group and a mask.
///
/// Permissions are 0..=7; the named entries are `(id, permissions)`.
#[must_use]
pub fn encode(
    owner: u16,
    group: u16,
    other: u16,
    mask: u16,
    user_entry: (u32, u16),
    group_entry: (u32, u16),
) -> Vec<u8> {
    let entries = [
        (USER_OBJ, owner, NO_ID),
        (USER, user_entry.1, user_entry.0),
        (GROUP_OBJ, group, NO_ID),
        (GROUP, group_entry.1, group_entry.0),
        (MASK, mask, NO_ID),
        (OTHER, other, NO_ID),
    ];
    written(&entries)
}

/// Encodes an ACL that says no more than a mode.
#[must_use]
pub fn of_mode(owner: u16, group: u16, other: u16) -> Vec<u8> {
    written(&[(USER_OBJ, owner, NO_ID), (GROUP_OBJ, group, NO_ID), (OTHER, other, NO_ID)])
}

fn written(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}
