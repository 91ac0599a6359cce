//! Attributes: a change of owner, mode or extended attributes makes a version without data.

use crate::core::blocking;
use crate::file::below;
use crate::node::VersionVnode;
use crate::session::Session;
use crate::set::Made;
use crate::space::of_data;
use access::{ACL_ACCESS, Acl};
use versionset::{BLOCK, Cause};
use vnode::{Attr, Cx, Errno, Kind, OpenFile, OpenFlags, Result, SetAttr, SetTime};

/// Name of the extended attribute with a file's capabilities.
const CAPABILITY: &[u8] = b"security.capability";

impl VersionVnode {
    /// Changes attributes, after making a version if that is a change.
    pub(crate) fn change_attr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        let lower_file = file.map(below);
        if self.lower.kind() == Kind::Directory || set.is_empty() {
            let attr = self.lower.setattr(cx, set, lower_file)?;
            return self.shown(&blocking(cx), attr);
        }
        let mut session = self.inode.session(cx)?;
        self.look_for_creators(&mut session);
        self.head().leave_version(cx)?;
        if (set.mtime.is_some() || set.atime.is_some()) && self.inode.delayed().is_some() {
            // The end of the delay sets the modification time.
            cx.require_blocking()?;
            self.end_delay(cx, &mut session)?;
        }
        let before = self.lower.getattr(cx)?;
        let Some(cause) = self.cause_of(set, &before) else {
            // While a truncation is delayed, the lower file is longer than users see.
            let size = set.size.filter(|_| self.inode.delayed().is_none());
            let mtime = set.mtime.or_else(|| set.size.map(|_| SetTime::Now));
            if mtime.is_some() {
                self.head().before_touch(cx, &mut session, before.nlink)?;
            }
            let content = self.content_time(cx, &session, set, &before)?;
            let set = SetAttr { size, mtime, ..*set };
            let changed = self.keeping_content_time(cx, content, &set, || self.lower.setattr(cx, &set, lower_file));
            self.head().after_change(cx, &mut session);
            return self.shown(&blocking(cx), changed?);
        };
        cx.require_blocking()?;
        self.end_delay(cx, &mut session)?;
        let before = self.lower.getattr(cx)?;
        let size = set.size.filter(|size| *size != before.size);
        let changes = size.map(|size| size.min(before.size) / BLOCK * BLOCK..before.size);
        let made = self.version_or_preserve(cx, &mut session, &before, cause, changes, file)?;
        let changed = self.lower.setattr(cx, set, lower_file).inspect_err(|errno| {
            self.head().take_back(cx, Some(&mut session), made.clone(), *errno);
        });
        self.head().after_change(cx, &mut session);
        let attr = changed?;
        if let (Some(file), true, true) = (file, cause == Cause::Truncate, made.is_some()) {
            crate::file::set_made(file, session.renames);
        }
        self.shown(cx, attr)
    }

    /// Finds out whether programs have closed the open file that created this one.
    pub(crate) fn look_for_creators(&self, session: &mut Session) {
        if session.is_direct()
            && let Some(upcalls) = self.core.upcalls.get()
        {
            session.drop_closed_creators(&**upcalls);
        }
    }

    /// Returns what a change does that makes a version; `None` if it changes none of these.
    fn cause_of(&self, set: &SetAttr, before: &Attr) -> Option<Cause> {
        let size = self.inode.delayed().unwrap_or(before.size);
        if set.size.is_some_and(|new| new != size) {
            return Some(Cause::Truncate);
        }
        if set.uid.is_some_and(|uid| uid != before.uid) || set.gid.is_some_and(|gid| gid != before.gid) {
            return Some(Cause::Chown);
        }
        if set.mode.is_some_and(|mode| mode & 0o7777 != before.perm()) {
            return Some(Cause::Chmod);
        }
        let sets_times = set.mtime.is_some() || set.atime.is_some();
        (self.core.options.comprehensive && sets_times).then_some(Cause::Times)
    }

    /// Makes a version before a change. If the change is part of a session that has made its
    /// version, only saves the bytes.
    fn version_or_preserve(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        before: &Attr,
        cause: Cause,
        changes: Option<core::ops::Range<u64>>,
        file: Option<&dyn OpenFile>,
    ) -> Result<Option<Made>> {
        if self.lower.kind() != Kind::Regular {
            return Ok(None);
        }
        // A file that is being created has no past.
        let is_new = session.is_direct() && session.writers == 0;
        let is_session = changes.is_some() && file.is_some_and(|file| crate::file::has_made(file, session.renames));
        let head = self.lower.open(&self.core.server(cx), OpenFlags::RDONLY)?;
        let makes = !(is_new || is_session) || self.core.options.comprehensive;
        if makes && !self.head().is_excluded(cx, before)? {
            return self.head().version_before(cx, session, &*head, (before, cause), changes);
        }
        let range = changes.unwrap_or(0..0);
        self.head().preserve(cx, session, &*head, (before, cause), range)
    }

    /// Runs a change of an extended attribute, after making a version.
    pub(crate) fn change_xattr(
        &self,
        cx: &Cx<'_>,
        name: &[u8],
        new: Option<&[u8]>,
        change: impl FnOnce(&Cx<'_>) -> Result<()>,
    ) -> Result<()> {
        let change = |cx: &Cx<'_>| of_data(change(cx));
        if self.lower.kind() != Kind::Regular || self.is_same_xattr(cx, name, new)? {
            return change(cx);
        }
        let mut session = self.inode.session(cx)?;
        cx.require_blocking()?;
        self.look_for_creators(&mut session);
        self.head().leave_version(cx)?;
        let is_truncated = self.inode.delayed().is_some();
        self.end_delay(cx, &mut session)?;
        let before = self.lower.getattr(cx)?;
        let made = self.version_or_preserve(cx, &mut session, &before, Cause::Xattr, None, None)?;
        let changed = match change(cx) {
            // The kernel removes the capability of a file that it truncates, which the layer below
            // has done by now.
            Err(Errno::NODATA) if is_truncated && new.is_none() && name == CAPABILITY => Ok(()),
            changed => changed,
        };
        if let Err(errno) = changed {
            self.head().take_back(cx, Some(&mut session), made, errno);
        }
        self.head().after_change(cx, &mut session);
        changed
    }

    fn is_same_xattr(&self, cx: &Cx<'_>, name: &[u8], new: Option<&[u8]>) -> Result<bool> {
        match vnode::read_value(|out| self.lower.getxattr(cx, name, out)) {
            Ok(old) => Ok(new == Some(&*old)),
            Err(Errno::NODATA) => match new.filter(|_| name == ACL_ACCESS).map(Acl::parse) {
                // An ACL that says what the mode says is none: programs that copy a file set it.
                Some(Ok(acl)) => Ok(acl.mode() == Some(self.lower.getattr(cx)?.perm() & 0o777)),
                _ => Ok(new.is_none()),
            },
            Err(Errno::OPNOTSUPP) => Ok(true),
            Err(errno) => Err(errno),
        }
    }
}
