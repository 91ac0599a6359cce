//! Evaluates mode bits and ACLs.

use crate::acl::{Acl, Subject};
use crate::caller::Caller;
use vnode::{Attr, Cx, Kind, Result, Vnode};

/// Permission to read a file or list a directory.
pub const READ: u32 = 4;
/// Permission to write a file or change the entries of a directory.
pub const WRITE: u32 = 2;
/// Permission to execute a file or search a directory.
pub const SEARCH: u32 = 1;

/// Returns the part of `mask` that the caller is not allowed: a set of [`READ`], [`WRITE`] and
/// [`SEARCH`].
///
/// # Errors
/// Errors of the object's layer, including [`vnode::MAY_BLOCK`].
pub fn refused(cx: &Cx<'_>, vnode: &dyn Vnode, mask: u32) -> Result<u32> {
    let attr = vnode.getattr(cx)?;
    // Everybody may read links, and an ACL can't restrict root.
    let acl = if cx.uid == 0 || attr.kind() == Kind::Symlink { None } else { Acl::of(cx, vnode)? };
    // Without an ACL, groups matter only where the group's bits differ from those of others.
    let same_for_all = acl.is_none() && ((attr.mode >> 3) ^ attr.mode) & mask == 0;
    let caller = if same_for_all { Caller { uid: cx.uid, gid: cx.gid, groups: vec![] } } else { Caller::of(cx) };
    Ok(Rules { attr: &attr, acl: acl.as_ref() }.refused(&caller, mask))
}

/// The attributes that determine access to an object.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Mode, owner and group.
    pub attr: &'a Attr,
    /// The access ACL, if the object has one.
    pub acl: Option<&'a Acl>,
}

impl Rules<'_> {
    /// Returns the part of `mask` that is not allowed. Permissions granted by two different groups
    /// can be used separately, but not together in one open(2). If that is the only obstacle,
    /// returns all of `mask`.
    #[must_use]
    pub fn refused(&self, caller: &Caller, mask: u32) -> u32 {
        let single = [READ, WRITE, SEARCH].into_iter().filter(|&one| mask & one != 0 && !self.allow(caller, one)).sum();
        if single == 0 && !self.allow(caller, mask) { mask } else { single }
    }

    /// Whether all of `mask` is allowed at once.
    #[must_use]
    pub fn allow(&self, caller: &Caller, mask: u32) -> bool {
        if self.attr.kind() == Kind::Symlink {
            return true;
        }
        if caller.uid == 0 && self.allow_root(mask) {
            return true;
        }
        let mode = self.attr.mode;
        if caller.uid == self.attr.uid {
            return (mode >> 6) & mask == mask;
        }
        // The group bits of the mode show the ACL's mask. If they are empty, the ACL grants nothing
        // except to owner and others, and Linux ignores it.
        if let Some(acl) = self.acl
            && mode & 0o070 != 0
        {
            return acl.allows(caller, self.attr, mask);
        }
        let class = if caller.is_in(self.attr.gid) { mode >> 3 } else { mode };
        class & mask == mask
    }

    /// Root may read and write everything, search all directories, and execute anything with an
    /// execute bit.
    fn allow_root(&self, mask: u32) -> bool {
        mask & SEARCH == 0 || self.attr.kind() == Kind::Directory || self.attr.mode & 0o111 != 0
    }
}

impl Acl {
    /// Evaluates the ACL for a caller who is not the owner. The first of these that exists decides:
    /// the caller's user entry, the entries of its groups (one of them must grant all of `mask`),
    /// the entry for others.
    fn allows(&self, caller: &Caller, attr: &Attr, mask: u32) -> bool {
        let limit = self.0.iter().find_map(|&(subject, perm)| (subject == Subject::Mask).then_some(perm)).unwrap_or(7);
        let grants = |perm: u32| perm & mask == mask;
        if let Some(&(_, perm)) = self.0.iter().find(|(subject, _)| *subject == Subject::User(caller.uid)) {
            return grants(perm & limit);
        }
        let in_group = |subject: Subject| match subject {
            Subject::OwningGroup => caller.is_in(attr.gid),
            Subject::Group(gid) => caller.is_in(gid),
            _ => false,
        };
        let mut groups = self.0.iter().filter(|(subject, _)| in_group(*subject)).peekable();
        if groups.peek().is_some() {
            return groups.any(|&(_, perm)| grants(perm & limit));
        }
        self.0.iter().any(|&(subject, perm)| subject == Subject::Other && grants(perm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::{Layer, Name};

    const OWNER: u32 = 10;
    const GROUP: u32 = 20;

    fn attr(mode: u32) -> Attr {
        let attr = MemFs::new().root().getattr(&Cx::internal(0, 0)).unwrap();
        Attr { mode, uid: OWNER, gid: GROUP, ..attr }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.to_vec() }
    }

    fn refused(mode: u32, acl: Option<Vec<(Subject, u32)>>, caller: &Caller) -> u32 {
        Rules { attr: &attr(mode), acl: acl.map(Acl).as_ref() }.refused(caller, 7)
    }

    #[test]
    fn the_first_matching_class_decides() {
        let (owner, member, other) = (caller(OWNER, 1, &[]), caller(1, 1, &[GROUP]), caller(1, 1, &[2]));
        assert_eq!([&owner, &member, &other].map(|caller| refused(0o100_421, None, caller)), [3, 5, 6]);
        assert_eq!([&owner, &member, &other].map(|caller| refused(0o100_077, None, caller)), [7, 0, 0]);
        assert_eq!([&owner, &member, &other].map(|caller| refused(0o100_707, None, caller)), [0, 7, 0]);
        assert_eq!(refused(0o100_070, None, &caller(1, GROUP, &[])), 0);
    }

    #[test]
    fn root_may_execute_if_any_execute_bit_is_set() {
        let root = caller(0, 0, &[]);
        assert_eq!(refused(0o100_600, None, &root), SEARCH);
        assert_eq!(refused(0o100_001, None, &root), 0);
        assert_eq!(refused(0o040_000, None, &root), 0);
        assert_eq!(refused(0o010_000, None, &root), SEARCH);
    }

    #[test]
    fn everybody_may_read_a_link() {
        assert_eq!(refused(0o120_000, None, &caller(1, 1, &[])), 0);
    }

    #[test]
    fn user_entries_precede_groups_and_groups_precede_others() {
        let acl = |mask| {
            Some(vec![
                (Subject::Owner, 6),
                (Subject::User(1), 1),
                (Subject::OwningGroup, 4),
                (Subject::Group(30), 2),
                (Subject::Mask, mask),
                (Subject::Other, 7),
            ])
        };
        let mode = |mask: u32| 0o100_607 | (mask << 3);
        let refused = |mask, caller: &Caller| refused(mode(mask), acl(mask), caller);
        assert_eq!(refused(7, &caller(OWNER, 1, &[])), 1);
        assert_eq!(refused(7, &caller(1, GROUP, &[30])), 6);
        assert_eq!(refused(7, &caller(2, GROUP, &[])), 3);
        assert_eq!(refused(7, &caller(2, 2, &[30])), 5);
        assert_eq!(refused(7, &caller(2, 2, &[])), 0);
        // The mask limits all entries except those of the owner and others.
        assert_eq!(refused(4, &caller(1, 1, &[])), 7);
        assert_eq!(refused(4, &caller(2, GROUP, &[])), 3);
        assert_eq!(refused(4, &caller(2, 2, &[])), 0);
    }

    #[test]
    fn permissions_of_two_groups_are_not_combined() {
        let acl = vec![(Subject::OwningGroup, 4), (Subject::Group(30), 2), (Subject::Mask, 6), (Subject::Other, 0)];
        let both = caller(2, GROUP, &[30]);
        let (attr, acl) = (attr(0o100_660), Acl(acl));
        let rules = Rules { attr: &attr, acl: Some(&acl) };
        assert!(rules.allow(&both, READ) && rules.allow(&both, WRITE) && !rules.allow(&both, READ | WRITE));
        assert_eq!(rules.refused(&both, READ | WRITE), READ | WRITE);
        assert_eq!(rules.refused(&both, READ), 0);
    }

    #[test]
    fn attributes_and_acl_of_a_vnode_are_used() {
        let fs = MemFs::new();
        let root = Cx::internal(0, 0);
        let file = fs.root().mknod(&root, Name::new(b"f").unwrap(), 0o100_640, 0).unwrap().vnode;
        let other = Cx::internal(5, 5);
        assert_eq!(super::refused(&other, &*file, 7), Ok(7));
        assert_eq!(super::refused(&root, &*file, 7), Ok(SEARCH));
        let acl = [
            &2u32.to_le_bytes()[..],
            &entry(1, 6, 0),
            &entry(2, 4, 5),
            &entry(4, 0, 0),
            &entry(16, 4, 0),
            &entry(32, 0, 0),
        ];
        file.setxattr(&root, crate::ACL_ACCESS, &acl.concat(), vnode::XattrFlags::default()).unwrap();
        assert_eq!(super::refused(&other, &*file, 7), Ok(WRITE | SEARCH));
    }

    fn entry(tag: u8, perm: u8, id: u8) -> [u8; 8] {
        [tag, 0, perm, 0, id, 0, 0, 0]
    }
}
