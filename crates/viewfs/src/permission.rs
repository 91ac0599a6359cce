//! Permissions of a directory that differ between views.
//!
//! The kernel checks permissions by the attributes of its inode, which it fetches for each check.
//! The inode of a directory is common to all views. Between fetch and check, a process of another
//! view can fetch that view's attributes. So where the views have given the kernel different
//! attributes or ACLs, this layer checks again by those of the caller's view. It continues to do so
//! where they have become equal: the kernel may still have used the earlier ones.

use access::{READ, SEARCH, WRITE};
use classify::ViewId;
use parking_lot::Mutex;
use vnode::{Attr, Cx, Errno, Result, SetAttr, SetTime, Vnode};

/// What the kernel has been told about one view's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    /// Mode, owner and group.
    owner: Option<(u32, u32, u32)>,
    /// The access ACL; an empty one if the directory has none.
    acl: Option<Vec<u8>>,
}

impl Told {
    const fn is_empty(&self) -> bool {
        self.owner.is_none() && self.acl.is_none()
    }

    /// Whether the other one contradicts what is known here.
    fn differs(&self, other: &Self) -> bool {
        (self.owner.is_some() && self.owner != other.owner) || (self.acl.is_some() && self.acl != other.acl)
    }
}

/// What the kernel has been told about a directory.
#[derive(Debug)]
pub(crate) struct Permissions {
    history: Mutex<History>,
}

#[derive(Debug)]
struct History {
    /// What it was told last, by view.
    told: Vec<Told>,
    /// Whether it was told anything else before, about any view.
    changed: bool,
}

impl History {
    fn record(&mut self, view: ViewId, change: impl FnOnce(&mut Told)) {
        if let Some(told) = self.told.get_mut(view) {
            let before = told.clone();
            change(told);
            self.changed |= before.differs(told);
        }
    }
}

/// Set-group-ID, set-user-ID and the sticky bit count, too.
const MODE: u32 = 0o7777;
const STICKY: u32 = 0o1000;

impl Permissions {
    pub(crate) fn new(views: usize) -> Self {
        Self { history: Mutex::new(History { told: vec![Told::default(); views], changed: false }) }
    }

    /// Records attributes before the kernel receives them.
    pub(crate) fn seen(&self, view: ViewId, attr: &Attr) {
        self.history.lock().record(view, |told| told.owner = Some((attr.mode & MODE, attr.uid, attr.gid)));
    }

    /// Records the access ACL before the kernel receives it.
    pub(crate) fn seen_acl(&self, view: ViewId, acl: &[u8]) {
        self.history.lock().record(view, |told| told.acl = Some(acl.to_vec()));
    }

    /// Whether the kernel may have checked a caller of the view by another view's attributes, with
    /// a different result.
    pub(crate) fn differ(&self, view: ViewId) -> bool {
        let History { told, changed } = &*self.history.lock();
        let Some(own) = told.get(view) else { return false };
        let others = told.iter().enumerate().filter(|(other, told)| *other != view && !told.is_empty());
        others.map(|(_, other)| other).any(|other| *changed || other.differs(own))
    }

    /// Whether permissions have to be checked again. Fetches what is not known of the caller's
    /// view.
    fn matter(&self, cx: &Cx<'_>, view: ViewId, lower: &dyn Vnode) -> Result<bool> {
        if !self.differ(view) {
            return Ok(false);
        }
        self.seen(view, &lower.getattr(cx)?);
        let mut acl = vec![0; 4096];
        match lower.getxattr(cx, access::ACL_ACCESS, &mut acl) {
            Ok(len) => self.seen_acl(view, acl.get(..len).ok_or(Errno::IO)?),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => self.seen_acl(view, &[]),
            Err(errno) => return Err(errno),
        }
        Ok(self.differ(view))
    }

    /// Checks access to a directory.
    ///
    /// # Errors
    /// `EACCES` if the caller lacks any permission of `mask`.
    pub(crate) fn check(&self, cx: &Cx<'_>, view: ViewId, lower: &dyn Vnode, mask: u32) -> Result<()> {
        if self.matter(cx, view, lower)? && access::refused(cx, lower, mask)? != 0 {
            return Err(Errno::ACCESS);
        }
        Ok(())
    }

    /// Checks the right to search the directory.
    pub(crate) fn check_search(&self, cx: &Cx<'_>, view: ViewId, lower: &dyn Vnode) -> Result<()> {
        self.check(cx, view, lower, SEARCH)
    }

    /// Checks the right to list the directory.
    pub(crate) fn check_list(&self, cx: &Cx<'_>, view: ViewId, lower: &dyn Vnode) -> Result<()> {
        self.check(cx, view, lower, READ)
    }

    /// Checks the right to add and remove entries.
    pub(crate) fn check_change(&self, cx: &Cx<'_>, view: ViewId, lower: &dyn Vnode) -> Result<()> {
        self.check(cx, view, lower, WRITE | SEARCH)
    }

    /// Checks that a sticky directory permits to remove or rename an entry. `entry`: its
    /// permissions, if it is a directory.
    pub(crate) fn check_sticky(
        &self,
        cx: &Cx<'_>,
        view: ViewId,
        lower: &dyn Vnode,
        (entry, victim): (Option<&Self>, &dyn Vnode),
    ) -> Result<()> {
        let of_entry = entry.map_or(Ok(false), |entry| entry.matter(cx, view, victim))?;
        if cx.uid == 0 || !(of_entry || self.matter(cx, view, lower)?) {
            return Ok(());
        }
        let dir = lower.getattr(cx)?;
        if dir.mode & STICKY == 0 || dir.uid == cx.uid || victim.getattr(cx)?.uid == cx.uid {
            return Ok(());
        }
        Err(Errno::PERM)
    }

    /// Checks the right to change attributes.
    pub(crate) fn check_setattr(&self, cx: &Cx<'_>, view: ViewId, lower: &dyn Vnode, set: &SetAttr) -> Result<()> {
        if cx.uid == 0 || !self.matter(cx, view, lower)? {
            return Ok(());
        }
        let attr = lower.getattr(cx)?;
        let is_owner = attr.uid == cx.uid;
        let now = |time: Option<SetTime>| matches!(time, None | Some(SetTime::Now));
        let touches = (set.atime.is_some() || set.mtime.is_some()) && now(set.atime) && now(set.mtime);
        let only_touches = touches && set.mode.is_none() && set.uid.is_none() && set.gid.is_none();
        if only_touches && !is_owner {
            return if access::refused(cx, lower, WRITE)? == 0 { Ok(()) } else { Err(Errno::ACCESS) };
        }
        let gives_away = set.uid.is_some_and(|uid| uid != attr.uid);
        let foreign_group = set.gid.is_some_and(|gid| gid != attr.gid && !cx.is_in_group(gid));
        if is_owner && !gives_away && !foreign_group { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Checks the right to read or change (`write`) the flags of chattr(1).
    pub(crate) fn check_ioctl(&self, cx: &Cx<'_>, view: ViewId, lower: &dyn Vnode, write: bool) -> Result<()> {
        if !write {
            return self.check_list(cx, view, lower);
        }
        if cx.uid == 0 || !self.matter(cx, view, lower)? || lower.getattr(cx)?.uid == cx.uid {
            return Ok(());
        }
        Err(Errno::PERM)
    }

    /// Checks the right to read or change (`write`) an extended attribute.
    pub(crate) fn check_xattr(
        &self,
        cx: &Cx<'_>,
        view: ViewId,
        lower: &dyn Vnode,
        (name, write): (&[u8], bool),
    ) -> Result<()> {
        if name.starts_with(b"user.") {
            return self.check(cx, view, lower, if write { WRITE } else { READ });
        }
        if !write || cx.uid == 0 || !self.matter(cx, view, lower)? {
            return Ok(());
        }
        let of_owner = name.starts_with(b"system.") && lower.getattr(cx)?.uid == cx.uid;
        if of_owner { Ok(()) } else { Err(Errno::PERM) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::Layer as _;

    const ACL: &[u8] = b"an ACL";

    fn attr(mode: u32) -> Attr {
        let attr = MemFs::new().root().getattr(&Cx::internal(0, 0)).unwrap();
        Attr { mode: 0o40_000 | mode, ..attr }
    }

    /// A view that changes permissions back and forth must not hide that the kernel used its other
    /// ones.
    #[test]
    fn permissions_that_have_differed_are_checked_for_good() {
        let directory = Permissions::new(2);
        directory.seen(0, &attr(0o700));
        directory.seen(0, &attr(0o711));
        assert!(!directory.differ(0) && !Permissions::new(2).differ(1), "only one view uses it");
        let directory = Permissions::new(2);
        directory.seen(0, &attr(0o700));
        directory.seen(1, &attr(0o700));
        assert!(!directory.differ(0) && !directory.differ(1));
        directory.seen(1, &attr(0o777));
        assert!(directory.differ(0) && directory.differ(1));
        directory.seen(1, &attr(0o700));
        assert!(directory.differ(0) && directory.differ(1), "equal again");
        // The other view may use the directory for the first time after that.
        let directory = Permissions::new(2);
        directory.seen(1, &attr(0o777));
        directory.seen(1, &attr(0o700));
        directory.seen(0, &attr(0o700));
        assert!(directory.differ(0));
    }

    #[test]
    fn acls_that_have_differed_are_checked_for_good() {
        let directory = Permissions::new(2);
        directory.seen_acl(0, &[]);
        assert!(!directory.differ(0));
        directory.seen_acl(1, ACL);
        assert!(directory.differ(0));
        directory.seen_acl(1, &[]);
        assert!(directory.differ(0));
    }
}
