use crate::acl::{Acl, Who};
use crate::caller::Caller;
use vnode::{Attr, Cx, Kind, Result, Vnode};

/// To read a file, to list a directory.
pub const READ: u32 = 4;
/// To write a file, to change the entries of a directory.
pub const WRITE: u32 = 2;
/// To execute a file, to search a directory.
pub const SEARCH: u32 = 1;

/// What of `mask` the caller may not do with an object: a set of [`READ`], [`WRITE`] and [`SEARCH`].
///
/// # Errors
/// Those of the layer that the object is of, [`vnode::MAY_BLOCK`] among them.
pub fn refused(cx: &Cx<'_>, vnode: &dyn Vnode, mask: u32) -> Result<u32> {
    let attr = vnode.getattr(cx)?;
    // Links are only read, by everybody; of root's rights no ACL takes anything away.
    let acl = if cx.uid == 0 || attr.kind() == Kind::Symlink { None } else { Acl::of(cx, vnode)? };
    // Without an ACL groups matter only where members may do other things than others.
    let same_for_all = acl.is_none() && ((attr.mode >> 3) ^ attr.mode) & mask == 0;
    let caller = if same_for_all { Caller { uid: cx.uid, gid: cx.gid, groups: vec![] } } else { Caller::of(cx) };
    Ok(Rules { attr: &attr, acl: acl.as_ref() }.refused(&caller, mask))
}

/// What an object's attributes say of who may use it.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Mode, owner and group.
    pub attr: &'a Attr,
    /// The access ACL, if it has one.
    pub acl: Option<&'a Acl>,
}

impl Rules<'_> {
    /// What of `mask` is not allowed. Two rights that only different groups give can be used one by one, but not both by one open(2): where that
    /// is all that is wrong, it is all of `mask`.
    #[must_use]
    pub fn refused(&self, caller: &Caller, mask: u32) -> u32 {
        let single = [READ, WRITE, SEARCH].into_iter().filter(|&one| mask & one != 0 && !self.allow(caller, one)).sum();
        if single == 0 && !self.allow(caller, mask) { mask } else { single }
    }

    /// Are all of `mask` allowed at once?
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
        // An ACL whose mask (which the mode shows as the group's bits) is empty gives nobody but owner and others anything: Linux does not
        // look at it.
        if let Some(acl) = self.acl
            && mode & 0o070 != 0
        {
            return acl.allows(caller, self.attr, mask);
        }
        let class = if caller.is_in(self.attr.gid) { mode >> 3 } else { mode };
        class & mask == mask
    }

    /// Root may read and write all, search all directories, and execute what somebody may execute.
    fn allow_root(&self, mask: u32) -> bool {
        mask & SEARCH == 0 || self.attr.kind() == Kind::Directory || self.attr.mode & 0o111 != 0
    }
}

impl Acl {
    /// The caller is not the owner. Its own entry decides; else any of its groups that allows all of it; else, if it is in none, the
    /// entry of all others.
    fn allows(&self, caller: &Caller, attr: &Attr, mask: u32) -> bool {
        let limit = self.0.iter().find_map(|&(who, perm)| (who == Who::Mask).then_some(perm)).unwrap_or(7);
        let gives = |perm: u32| perm & mask == mask;
        if let Some(&(_, perm)) = self.0.iter().find(|(who, _)| *who == Who::User(caller.uid)) {
            return gives(perm & limit);
        }
        let of_group = |who: Who| match who {
            Who::OwningGroup => caller.is_in(attr.gid),
            Who::Group(gid) => caller.is_in(gid),
            _ => false,
        };
        let mut groups = self.0.iter().filter(|(who, _)| of_group(*who)).peekable();
        if groups.peek().is_some() {
            return groups.any(|&(_, perm)| gives(perm & limit));
        }
        self.0.iter().any(|&(who, perm)| who == Who::Other && gives(perm))
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

    fn refused(mode: u32, acl: Option<Vec<(Who, u32)>>, who: &Caller) -> u32 {
        Rules { attr: &attr(mode), acl: acl.map(Acl).as_ref() }.refused(who, 7)
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let (owner, member, other) = (caller(OWNER, 1, &[]), caller(1, 1, &[GROUP]), caller(1, 1, &[2]));
        assert_eq!([&owner, &member, &other].map(|who| refused(0o100_421, None, who)), [3, 5, 6]);
        assert_eq!([&owner, &member, &other].map(|who| refused(0o100_077, None, who)), [7, 0, 0]);
        assert_eq!([&owner, &member, &other].map(|who| refused(0o100_707, None, who)), [0, 7, 0]);
        assert_eq!(refused(0o100_070, None, &caller(1, GROUP, &[])), 0);
    }

    #[test]
    fn root_executes_what_somebody_may_execute() {
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
    fn entries_of_users_come_before_groups_and_groups_before_others() {
        let acl = |mask| {
            Some(vec![
                (Who::Owner, 6),
                (Who::User(1), 1),
                (Who::OwningGroup, 4),
                (Who::Group(30), 2),
                (Who::Mask, mask),
                (Who::Other, 7),
            ])
        };
        let mode = |mask: u32| 0o100_607 | (mask << 3);
        let refused = |mask, who: &Caller| refused(mode(mask), acl(mask), who);
        assert_eq!(refused(7, &caller(OWNER, 1, &[])), 1);
        assert_eq!(refused(7, &caller(1, GROUP, &[30])), 6);
        assert_eq!(refused(7, &caller(2, GROUP, &[])), 3);
        assert_eq!(refused(7, &caller(2, 2, &[30])), 5);
        assert_eq!(refused(7, &caller(2, 2, &[])), 0);
        // The mask limits all but the owner and others.
        assert_eq!(refused(4, &caller(1, 1, &[])), 7);
        assert_eq!(refused(4, &caller(2, GROUP, &[])), 3);
        assert_eq!(refused(4, &caller(2, 2, &[])), 0);
    }

    #[test]
    fn rights_of_two_groups_are_not_added() {
        let acl = vec![(Who::OwningGroup, 4), (Who::Group(30), 2), (Who::Mask, 6), (Who::Other, 0)];
        let both = caller(2, GROUP, &[30]);
        let (attr, acl) = (attr(0o100_660), Acl(acl));
        let rules = Rules { attr: &attr, acl: Some(&acl) };
        assert!(rules.allow(&both, READ) && rules.allow(&both, WRITE) && !rules.allow(&both, READ | WRITE));
        assert_eq!(rules.refused(&both, READ | WRITE), READ | WRITE);
        assert_eq!(rules.refused(&both, READ), 0);
    }

    #[test]
    fn objects_of_a_layer_are_asked() {
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
