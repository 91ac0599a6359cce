//! When the content of a file changed last, although a program has set its modification time since.
//!
//! A restore to a moment takes the head for the state of that moment if it has not changed since.
//! Of files whose changes make no versions, only the modification time tells, which programs set:
//! `touch` and git give unchanged files a new one, `cp -p` and `rsync -t` give changed files an old
//! one. So the time of the last change is kept in an extended attribute of such a file, together
//! with the time that was set. A later write gives the file another modification time, by which
//! this record is recognised as out of date.

use crate::node::VersionVnode;
use crate::session::Session;
use versionset::{CONTENT_TIME, ContentTime, is_own_attribute};
use vnode::{Attr, Cx, Kind, Result, SetAttr, SetTime, Time, Vnode, XattrFlags};

/// Returns when the content of a file with this modification time changed last, if that is
/// recorded among its extended attributes.
pub(crate) fn recorded<'a>(mtime: Time, xattrs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Option<Time> {
    let (_, value) = xattrs.into_iter().find(|(name, _)| *name == CONTENT_TIME)?;
    ContentTime::parse(value).filter(|time| time.set == mtime).map(|time| time.changed)
}

/// Returns when the content of `vnode` changed last, if that is recorded.
pub(crate) fn recorded_at(cx: &Cx<'_>, vnode: &dyn Vnode, mtime: Time) -> Option<Time> {
    let value = vnode::read_value(|out| vnode.getxattr(cx, CONTENT_TIME, out)).ok()?;
    recorded(mtime, [(CONTENT_TIME, &*value)])
}

/// Removes the layer's own names from a list of extended attributes as of listxattr(2).
pub(crate) fn without_own(names: &[u8]) -> Vec<u8> {
    names
        .split_inclusive(|byte| *byte == 0)
        .filter(|name| !is_own_attribute(name.strip_suffix(b"\0").unwrap_or(name)))
        .flatten()
        .copied()
        .collect()
}

impl VersionVnode {
    /// Returns when the content changed last, if a change of the times by `set` makes that unknown.
    /// `before`: the attributes. Programs that create a file set its times before they close it:
    /// that needs no record.
    pub(crate) fn content_time(
        &self,
        cx: &Cx<'_>,
        session: &Session,
        set: &SetAttr,
        before: &Attr,
    ) -> Result<Option<Time>> {
        let concerns = set.mtime.is_some() && set.size.is_none() && before.kind() == Kind::Regular;
        if !concerns || session.is_direct() {
            return Ok(None);
        }
        cx.require_blocking()?;
        if !self.head().is_excluded(cx, before)? {
            return Ok(None);
        }
        let known = recorded_at(&self.core.server(cx), &*self.lower, before.mtime);
        Ok(Some(known.unwrap_or(before.mtime)))
    }

    /// Runs a change of the times, and records when the content had changed last. Without
    /// permission or room for the record, restores go by the modification time.
    pub(crate) fn keeping_content_time(
        &self,
        cx: &Cx<'_>,
        changed: Option<Time>,
        set: &SetAttr,
        change: impl FnOnce() -> Result<Attr>,
    ) -> Result<Attr> {
        let Some(changed) = changed else { return change() };
        let server = self.core.server(cx);
        let record = |mtime| {
            let value = ContentTime { changed, set: mtime }.to_bytes();
            let _best_effort = self.lower.setxattr(&server, CONTENT_TIME, &value, XattrFlags::default());
            mtime
        };
        // Before the change, in case of a kill between the two.
        let wanted = match set.mtime {
            Some(SetTime::At(time)) => Some(record(time)),
            _ => None,
        };
        let attr = change()?;
        if wanted == Some(attr.mtime) {
            return Ok(attr);
        }
        // The time of now, or one that the file system below has rounded.
        record(attr.mtime);
        self.lower.getattr(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_valid_for_the_time_that_was_set() {
        let (changed, set) = (Time { sec: -7, nsec: 999_999_999 }, Time { sec: 1 << 40, nsec: 5 });
        let value = ContentTime { changed, set }.to_bytes();
        assert_eq!(recorded(set, [(CONTENT_TIME, &*value)]), Some(changed));
        assert_eq!(recorded(changed, [(CONTENT_TIME, &*value)]), None);
        assert_eq!(recorded(set, [(CONTENT_TIME, &value[1..]), (b"user.a", b"")]), None);
        assert_eq!(recorded(set, [(&b"user.a"[..], &*value)]), None);
    }

    #[test]
    fn own_names_are_left_out() {
        let own = [CONTENT_TIME, b"\0"].concat();
        assert_eq!(without_own(&[b"user.a\0", &*own, b"user.b\0"].concat()), b"user.a\0user.b\0");
        assert_eq!(without_own(&own), b"");
    }
}
