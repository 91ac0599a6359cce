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
use vnode::{Attr, Cx, Kind, Result, SetAttr, SetTime, Time, Vnode, XattrFlags};

/// The extended attribute. No name of the mount shows it.
const CONTENT_TIME: &[u8] = b"trusted.versionfs.content-time";

/// Whether an extended attribute is the layer's own.
pub(crate) fn is_own(name: &[u8]) -> bool {
    name == CONTENT_TIME || name == crate::copy::ROOT
}

/// Returns when the content of a file with this modification time changed last, if that is
/// recorded among its extended attributes.
pub(crate) fn recorded<'a>(mtime: Time, xattrs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Option<Time> {
    let (_, value) = xattrs.into_iter().find(|(name, _)| *name == CONTENT_TIME)?;
    let (changed, set) = parse(value)?;
    (set == mtime).then_some(changed)
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
        .filter(|name| !is_own(name.strip_suffix(b"\0").unwrap_or(name)))
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
            let value = to_bytes(changed, mtime);
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

fn to_bytes(changed: Time, set: Time) -> Vec<u8> {
    [time_to_bytes(changed), time_to_bytes(set)].concat()
}

fn parse(value: &[u8]) -> Option<(Time, Time)> {
    let (changed, set) = value.split_first_chunk()?;
    Some((time_of(*changed), time_of(set.try_into().ok()?)))
}

/// Returns seconds and nanoseconds, little-endian.
pub(crate) fn time_to_bytes(time: Time) -> [u8; 12] {
    let (sec, nsec) = (time.sec.to_le_bytes(), time.nsec.to_le_bytes());
    core::array::from_fn(|at| sec.get(at).or_else(|| nsec.get(at - 8)).copied().unwrap_or_default())
}

/// Returns what [`time_to_bytes`] encoded.
pub(crate) fn time_of(bytes: [u8; 12]) -> Time {
    let (sec, nsec) = bytes.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |word, byte| (word << 8) | u64::from(*byte));
    Time { sec: word(sec).cast_signed(), nsec: u32::try_from(word(nsec)).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_valid_for_the_time_that_was_set() {
        let (changed, set) = (Time { sec: -7, nsec: 999_999_999 }, Time { sec: 1 << 40, nsec: 5 });
        let value = to_bytes(changed, set);
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
