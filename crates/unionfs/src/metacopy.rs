//! Metacopies: a copy-up of a file's attributes without its data. A *metacopy* is an empty file
//! that holds the attributes; its name is derived from the file's. A *metacopied* file combines it
//! with the lower file that holds the data. This module implements the format, lookup and use;
//! `copymeta` creates metacopies. Design: docs/design/unionfs.md, "Copy-up of attributes".

use crate::branch::{BranchId, Lower};
use crate::inode_number::compose;
use crate::log::Alias;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::Found;
use crate::trust::is_servers;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use vnode::{
    Attr, Cx, Entry, Errno, Kind, NAME_MAX, Name, OpenFile, OpenFlags, Result, SetAttr, SetTime, Time, Vnode,
    XattrFlags, forward, read_value, refuse,
};

/// Name of a file in a branch's root. Its presence means that directories of the branch may contain
/// metacopies.
pub(crate) const METACOPIES: &[u8] = b".wh..wh.metacopies";
/// Prefix of the names of metacopies, before the file's own name.
pub(crate) const PREFIX: &[u8] = b".wh..wh.meta.";
/// The attribute of a metacopy that holds its origin. Only a process with `CAP_SYS_ADMIN` can set a
/// `trusted.*` attribute.
pub(crate) const ORIGIN: &[u8] = b"trusted.strata.origin";
/// Prefix of the attributes that users of the union can neither see nor set on a metacopied file.
const OWN_XATTRS: &[u8] = b"trusted.strata.";
/// Maximum length of the value of [`ORIGIN`], in bytes.
const ORIGIN_MAX: usize = 512;

/// Returns the name of the file that a metacopy with this name belongs to; `None` for other names.
pub(crate) fn metacopied(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(PREFIX)
}

/// Returns the name of the metacopy of a file named `name`; `None` if that is too long.
pub(crate) fn metacopy_name(name: Name<'_>) -> Option<Vec<u8>> {
    let full = [PREFIX, name.as_bytes()].concat();
    (full.len() <= NAME_MAX).then_some(full)
}

/// Returns the name of the file whose metacopy has the name `full`; `None` for other names.
pub(crate) fn metacopy_of(full: &[u8]) -> Option<&[u8]> {
    full.strip_prefix(PREFIX).filter(|name| !name.is_empty())
}

/// Identifies the lower file that a metacopy was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Tag of the file's branch.
    tag: u16,
    number: u64,
    generation: u32,
    /// Time of birth, if the file system reports one.
    born: Option<Time>,
    size: u64,
    mtime: Time,
    uid: u32,
    gid: u32,
    /// Permission bits.
    mode: u32,
    /// The file's number in the union, if that does not follow from tag and number: the file is a
    /// copy, and has the number of its original.
    file: Option<u64>,
    name: Box<[u8]>,
}

impl Origin {
    /// Returns the origin for the lower file `data` with the attributes `attr` and this alias.
    pub(crate) fn of(op: &Op<'_>, data: &Lower, attr: &Attr, (alias, name): (Option<Alias>, Name<'_>)) -> Result<Self> {
        let tag = op.set.branch(data.branch)?.tag;
        let (number, generation) = (data.vnode.id(), data.vnode.generation());
        let Attr { btime: born, size, mtime, uid, gid, .. } = *attr;
        let (mode, name, file) = (attr.perm(), name.as_bytes().into(), alias.map(|alias| alias.number));
        Ok(Self { tag, number, generation, born, size, mtime, uid, gid, mode, file, name })
    }

    /// Returns the value of [`ORIGIN`]: docs/formats/union-branch.md.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { tag, number, generation, size, uid, gid, mode, name, .. } = self;
        let (Time { sec: born, nsec: born_nsec }, Time { sec, nsec }) = (self.born.unwrap_or_default(), self.mtime);
        let version = if self.file.is_some() { 2 } else { 1 };
        let identity = format!("{version} {tag} {number} {generation} {born} {born_nsec}");
        let file = self.file.map_or(String::new(), |file| format!("{file} "));
        let mut value = format!("{identity} {size} {sec} {nsec} {uid} {gid} {mode:o} {file}").into_bytes();
        value.extend_from_slice(name);
        value
    }

    /// Parses a value of [`ORIGIN`]. `None` if it is malformed.
    fn decode(value: &[u8]) -> Option<Self> {
        let has_file = match value.split_first_chunk()? {
            (b"1 ", _) => false,
            (b"2 ", _) => true,
            _ => return None,
        };
        let mut fields = value.splitn(if has_file { 14 } else { 13 }, |&b| b == b' ').skip(1);
        let mut field = || std::str::from_utf8(fields.next()?).ok();
        let (tag, number, generation) = (field()?.parse().ok()?, field()?.parse().ok()?, field()?.parse().ok()?);
        let born = Time { sec: field()?.parse().ok()?, nsec: field()?.parse().ok()? };
        let born = Some(born).filter(|&born| born != Time::default());
        let (size, sec, nsec) = (field()?.parse().ok()?, field()?.parse().ok()?, field()?.parse().ok()?);
        let (uid, gid) = (field()?.parse().ok()?, field()?.parse().ok()?);
        let mode = u32::from_str_radix(field()?, 8).ok()?;
        let file = if has_file { Some(field()?.parse().ok()?) } else { None };
        let (mtime, name) = (Time { sec, nsec }, fields.next()?.into());
        Some(Self { tag, number, generation, born, size, mtime, uid, gid, mode, file, name })
    }

    /// Whether the metacopy with this origin belongs to the lower file that its name leads to now.
    /// `found_now` is the origin that a metacopy of that file would have; `attr` are the file's
    /// attributes.
    ///
    /// The same object under the same name matches. The branch has another tag in another union or
    /// if it is mounted elsewhere. The time of birth then distinguishes the file from one with the
    /// same number on another file system.
    ///
    /// Files of a rebuilt lower image have other numbers. Therefore a file with the same size,
    /// modification time, owner and mode matches too, if only root and the user `server` can have
    /// created both. Any other user could create a file that resembles somebody else's, in order to
    /// apply that file's metacopy to it.
    fn is(&self, found_now: &Self, attr: &Attr, server: u32) -> bool {
        let resembles = || self.resembles(found_now) && is_servers(attr, server);
        self.name == found_now.name && (self.is_same_file(found_now) || resembles())
    }

    /// Whether both identify the same file: one object, or one file of the union before and after
    /// its content moved to another branch, which then knows it by the number that it had.
    fn is_same_file(&self, now: &Self) -> bool {
        let number = self.file.unwrap_or_else(|| compose(self.tag, self.number));
        self.is_same_object(now) || (now.file == Some(number) && self.resembles(now))
    }

    /// Whether both files have the same size, modification time, owner and mode.
    fn resembles(&self, other: &Self) -> bool {
        let content = |origin: &Self| (origin.size, origin.mtime, origin.uid, origin.gid, origin.mode);
        content(self) == content(other)
    }

    /// Whether both identify the same object of the same file system.
    fn is_same_object(&self, other: &Self) -> bool {
        let identity = |origin: &Self| (origin.number, origin.generation);
        let same_birth = self.born.zip(other.born).map(|(one, other)| one == other);
        // File systems without generations use a number again.
        let place = same_birth.unwrap_or(self.tag == other.tag);
        place && identity(self) == identity(other)
    }
}

/// A lower file whose attributes are those of a metacopy further left.
#[derive(Debug)]
pub(crate) struct MetaCopy {
    /// The lower file with the data, on the branch that [`Lower::branch`] names.
    data: Arc<dyn Vnode>,
    /// The metacopy: an empty file with the attributes.
    attributes: Arc<dyn Vnode>,
    /// The branch of the metacopy.
    pub(crate) home: BranchId,
    /// The mtime of the lower file for which the metacopy's mtime is valid: if the lower file's
    /// mtime differs, the data was changed out of band. Recorded when the metacopy was created or
    /// its mtime was last set.
    data_mtime: Mutex<Time>,
}

impl MetaCopy {
    pub(crate) fn new(data: Arc<dyn Vnode>, attributes: Arc<dyn Vnode>, home: BranchId, data_mtime: Time) -> Self {
        Self { data, attributes, home, data_mtime: Mutex::new(data_mtime) }
    }

    /// Returns the file with the data.
    pub(crate) fn data(&self) -> &Arc<dyn Vnode> {
        &self.data
    }

    /// Combines the attributes of the metacopy and of the data.
    fn merge(&self, attributes: &Attr, data: &Attr) -> Attr {
        let Attr { mode, uid, gid, .. } = *attributes;
        let atime = read_since(attributes, data).unwrap_or(attributes.atime);
        // After an out-of-band change of the data, the data's own mtime is the right one.
        let mtime = if data.mtime == *self.data_mtime.lock() { attributes.mtime } else { data.mtime };
        let ctime = attributes.ctime.max(data.ctime);
        Attr { atime, mtime, ctime, mode, uid, gid, ..*data }
    }

    /// Stores the data's access time in the metacopy. Call it before each change of the attributes:
    /// the change sets the metacopy's ctime, so that [`read_since`] would no longer report the
    /// earlier read.
    fn keep_atime(&self, cx: &Cx<'_>, data: &Attr) -> Result<()> {
        if let Some(read) = read_since(&self.attributes.getattr(cx)?, data) {
            let set = SetAttr { atime: Some(SetTime::At(read)), ..SetAttr::default() };
            self.attributes.setattr(cx, &set, None)?;
        }
        Ok(())
    }

    /// Records the data's present mtime in the metacopy. Call it before an mtime is set. Otherwise,
    /// after an out-of-band change, [`Self::merge`] would continue to return the data's mtime
    /// instead of the new one. Users see no change.
    fn keep_mtime(&self, cx: &Cx<'_>, data: &Attr) -> Result<()> {
        if data.mtime == *self.data_mtime.lock() {
            return Ok(());
        }
        let set = SetAttr { mtime: Some(SetTime::At(data.mtime)), ..SetAttr::default() };
        self.attributes.setattr(cx, &set, None)?;
        let origin = origin(cx, &self.attributes)?.ok_or(Errno::STALE)?;
        let now = Origin { size: data.size, mtime: data.mtime, ..origin };
        self.attributes.setxattr(cx, ORIGIN, &now.encode(), XattrFlags::default())?;
        *self.data_mtime.lock() = data.mtime;
        Ok(())
    }
}

/// Returns the data's access time if it is later than the last change of the metacopy's attributes.
/// Reads update the access time of the lower file only.
fn read_since(attributes: &Attr, data: &Attr) -> Option<Time> {
    (data.atime > attributes.ctime).then_some(data.atime)
}

/// Downcasts the lower vnode to a metacopied file, if it is one.
pub(crate) fn as_metacopy(lower: &Arc<dyn Vnode>) -> Option<&MetaCopy> {
    lower.as_any().downcast_ref()
}

/// Returns the leftmost branch that has something of a lower file: its metacopy, or the file
/// itself. What replaces or hides the file must lie there or further left, or the metacopy would
/// apply to it.
pub(crate) fn leftmost_branch(lower: &Arc<dyn Vnode>, branch: BranchId) -> BranchId {
    as_metacopy(lower).map_or(branch, |meta| meta.home)
}

/// Whether two vnodes of one lower file have the same metacopy, or neither has one.
pub(crate) fn same_metacopy(one: &Arc<dyn Vnode>, other: &Arc<dyn Vnode>) -> bool {
    let attributes = |lower| as_metacopy(lower).map(|meta| (meta.home, meta.attributes.id()));
    attributes(one) == attributes(other)
}

/// Whether this is one of the union's own extended attributes, which a copy-up does not copy.
pub(crate) fn is_own(xattr: &[u8]) -> bool {
    xattr.starts_with(OWN_XATTRS)
}

impl Vnode for MetaCopy {
    forward!(data: id, generation, kind, names, listing_stamp, lists_exactly, refused, statfs, ioctl, control);
    forward!(attributes: fsync);
    refuse!(Errno::NOTDIR => lookup, readdir, create, tmpfile, mknod, mkdir, symlink, link, unlink, rmdir, rename);
    refuse!(Errno::INVAL => readlink);

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        Ok(self.merge(&self.attributes.getattr(cx)?, &self.data.getattr(cx)?))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, _file: Option<&dyn OpenFile>) -> Result<Attr> {
        if set.size.is_some() {
            return Err(Errno::ROFS);
        }
        // Ignore the open file: it is of the lower file, whose attributes must not change.
        let data = self.data.getattr(cx)?;
        self.keep_atime(cx, &data)?;
        if set.mtime.is_some() {
            self.keep_mtime(cx, &data)?;
        }
        Ok(self.merge(&self.attributes.setattr(cx, set, None)?, &data))
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        if flags.writes() || flags.truncates() { Err(Errno::ROFS) } else { self.data.open(cx, flags) }
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        if is_own(name) { Err(Errno::NODATA) } else { self.attributes.getxattr(cx, name, out) }
    }

    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        if is_own(name) {
            return Err(Errno::PERM);
        }
        self.keep_atime(cx, &self.data.getattr(cx)?)?;
        self.attributes.setxattr(cx, name, value, flags)
    }

    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        let all = read_value(|out| self.attributes.listxattr(cx, out))?;
        let shown = all.split_inclusive(|&b| b == 0).filter(|name| !is_own(name));
        vnode::copy_value(&shown.flatten().copied().collect::<Vec<u8>>(), out)
    }

    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        if is_own(name) {
            return Err(Errno::PERM);
        }
        self.keep_atime(cx, &self.data.getattr(cx)?)?;
        self.attributes.removexattr(cx, name)
    }
}

impl Core {
    /// Returns `entry` as a metacopied file if one of the directories in `left` has a metacopy of
    /// it, else unchanged. `entry` was found at `name` on `branch`; `left` are the directory's
    /// parts left of `branch`.
    pub(crate) fn with_metacopy(
        &self,
        op: &Op<'_>,
        (left, name): Found<'_>,
        branch: BranchId,
        entry: Entry,
    ) -> Result<Entry> {
        if entry.vnode.kind() != Kind::Regular {
            return Ok(entry);
        }
        for dir in left.iter().filter(|dir| op.set.has_metacopies(dir.branch)) {
            let Some(full) = metacopy_name(name) else { break };
            if let Some(found) = dir.vnode.lookup(op, Name::new(&full)?)?
                && let Some(both) = self.apply_metacopy(op, (dir, name), &found, branch, &entry)?
            {
                return Ok(both);
            }
        }
        Ok(entry)
    }

    /// Combines the file `entry` on `branch` with `found`, if that is its metacopy. Otherwise logs
    /// a warning, once for each `found`, and returns `None`.
    fn apply_metacopy(
        &self,
        op: &Op<'_>,
        (dir, name): (&Lower, Name<'_>),
        found: &Entry,
        branch: BranchId,
        entry: &Entry,
    ) -> Result<Option<Entry>> {
        let data = Lower { vnode: entry.vnode.clone(), branch };
        let now = Origin::of(op, &data, &entry.attr, (self.alias_of(op, &data, &entry.attr)?, name))?;
        let why = match origin(op, &found.vnode)? {
            // If the file is not the same one but only resembles it, users who can write the
            // directory may have moved the metacopy here. So only root and the server's user may be
            // able to write it.
            Some(then)
                if then.is(&now, &entry.attr, self.server_cx().uid)
                    && (then.is_same_file(&now) || is_servers(&dir.vnode.getattr(op)?, self.server_cx().uid)) =>
            {
                let both = MetaCopy::new(data.vnode, found.vnode.clone(), dir.branch, then.mtime);
                let attr = both.merge(&found.attr, &entry.attr);
                return Ok(Some(Entry { vnode: Arc::new(both), attr }));
            }
            Some(_) => "it was made from another file than the one that has the name now",
            None => "it names no origin in an attribute that only root can have set",
        };
        if self.warned.is_new(&Lower { vnode: found.vnode.clone(), branch: dir.branch }) {
            let path = op.set.path_of(dir.branch);
            tracing::warn!(branch = %path, %name, "a metacopy is ignored, and with it attributes that were changed in the union: {why}");
        }
        Ok(None)
    }

    /// Removes the metacopy of `lower`, which `name` led to until now. If that fails, the metacopy
    /// has no effect, because the name leads to another object now.
    pub(crate) fn drop_metacopy(&self, op: &Op<'_>, dir: &UnionVnode, name: Name<'_>, lower: &Arc<dyn Vnode>) {
        let Some(meta) = as_metacopy(lower).filter(|meta| op.set.writable(meta.home)) else { return };
        let Ok(Some(part)) = dir.part(meta.home) else { return };
        let server = self.server(op);
        let Some(full) = metacopy_name(name) else { return };
        let removed =
            Name::new(&full).and_then(|full| self.preserving_times(op, &part, || part.vnode.unlink(&server, full)));
        if let Err(errno) = removed
            && errno != Errno::NOENT
        {
            tracing::warn!(%name, %errno, branch = %op.set.path_of(meta.home), "could not remove a metacopy that has no effect any more");
        }
    }
}

/// Whether a file has the attribute that makes it a metacopy, valid or not. Only a process with
/// `CAP_SYS_ADMIN` can have set it.
pub(crate) fn has_origin(cx: &Cx<'_>, found: &Arc<dyn Vnode>) -> Result<bool> {
    match found.getxattr(cx, ORIGIN, &mut [0; ORIGIN_MAX]) {
        Ok(_) | Err(Errno::RANGE) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the origin that a metacopy records. `None` if the file is not a metacopy.
pub(crate) fn origin(cx: &Cx<'_>, found: &Arc<dyn Vnode>) -> Result<Option<Origin>> {
    if found.kind() != Kind::Regular {
        return Ok(None);
    }
    let mut value = [0; ORIGIN_MAX];
    match found.getxattr(cx, ORIGIN, &mut value) {
        Ok(len) => Ok(value.get(..len).and_then(Origin::decode)),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::RANGE | Errno::PERM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Origin {
        let (mtime, born) = (Time { sec: -1, nsec: 999_999_999 }, Some(Time { sec: 5, nsec: 6 }));
        let (uid, gid, mode, name) = (0, 8, 0o644, b" a b".as_slice().into());
        let (size, file) = (1 << 40, None);
        Origin { tag: 3, number: u64::MAX, generation: 7, born, size, mtime, uid, gid, mode, file, name }
    }

    #[test]
    fn fixture_of_version_1() {
        let text = b"1 3 18446744073709551615 7 5 6 1099511627776 -1 999999999 0 8 644  a b";
        assert_eq!(example().encode(), text);
        assert_eq!(Origin::decode(text), Some(example()));
    }

    #[test]
    fn fixture_of_version_2() {
        let text = b"2 3 18446744073709551615 7 5 6 1099511627776 -1 999999999 0 8 644 281474976710667  a b";
        let origin = Origin { file: Some((1 << 48) + 11), ..example() };
        assert_eq!(origin.encode(), text);
        assert_eq!(Origin::decode(text), Some(origin));
    }

    #[test]
    fn malformed_origins_are_rejected() {
        for bad in [
            "",
            "1",
            "3 3 4 5 6 7 8 9 10 0 0 644 a",
            "2 3 4 5 6 7 8 9 10 0 0 644 a b",
            "2 3 4 5 6 7 8 9 10 0 0 644 7",
            "1 3 4 5 6 7 8 9 10 0 0 644",
            "1 65536 4 5 6 7 8 9 10 0 0 644 a",
            "1 -3 4 5 6 7 8 9 10 0 0 644 a",
            "1  4 5 6 7 8 9 10 0 0 644 a",
            "1 3 4 5 6 7 8 9 10 0 0 648 a",
        ] {
            assert_eq!(Origin::decode(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_metacopy_matches_only_its_file() {
        let attr = |uid, mode| Attr { uid, mode, ..memfs_attr() };
        let (root, user) = (attr(0, 0o100_644), attr(7, 0o100_644));
        let origin = example();
        // The image was rebuilt.
        let renumbered = Origin { number: 5, generation: 6, born: None, ..example() };
        assert!(origin.is(&renumbered, &root, 1000));
        assert!(!origin.is(&renumbered, &user, 1000));
        assert!(!origin.is(&renumbered, &attr(0, 0o100_666), 1000));
        // It was a user's file.
        assert!(!Origin { uid: 7, ..example() }.is(&renumbered, &root, 1000));
        // The image was mounted elsewhere.
        assert!(origin.is(&Origin { tag: 4, size: 1, ..example() }, &user, 1000));
        assert!(!origin.is(&Origin { tag: 4, size: 1, born: None, ..example() }, &user, 1000));
        let unborn = Origin { born: None, ..example() };
        assert!(!unborn.is(&Origin { tag: 4, size: 1, born: None, ..example() }, &user, 1000));
        assert!(unborn.is(&Origin { size: 1, ..example() }, &user, 1000));
        // Another file got the number.
        assert!(!origin.is(&Origin { born: Some(Time { sec: 6, nsec: 0 }), ..example() }, &user, 1000));
        // It was changed in place.
        assert!(origin.is(&Origin { size: 1, ..example() }, &user, 1000));
        assert!(!origin.is(&Origin { size: 1, ..renumbered }, &root, 1000));
        // A merge moved it: the other branch knows it by the number that it had.
        let number = compose(3, u64::MAX);
        let merged =
            Origin { tag: 5, number: 6, born: Some(Time { sec: 8, nsec: 0 }), file: Some(number), ..example() };
        let users = |origin: &Origin| Origin { uid: 7, ..origin.clone() };
        assert!(users(&origin).is(&users(&merged), &user, 1000));
        assert!(!users(&origin).is(&Origin { file: None, ..users(&merged) }, &user, 1000));
        assert!(!users(&origin).is(&Origin { size: 1, ..users(&merged) }, &user, 1000));
        let copied = Origin { file: Some(9), ..users(&origin) };
        assert!(copied.is(&Origin { file: Some(9), ..users(&merged) }, &user, 1000));
        assert!(!copied.is(&users(&merged), &user, 1000));
        // A user renamed the metacopy.
        assert!(!origin.is(&Origin { name: b"b".as_slice().into(), ..example() }, &root, 1000));
    }

    fn memfs_attr() -> Attr {
        vnode::Layer::root(&*memfs::MemFs::new()).getattr(&Cx::internal(0, 0)).unwrap()
    }

    proptest! {
        #[test]
        fn decode_accepts_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Origin::decode(&bytes);
            let _ = Origin::decode(&[b"1 2 3 4 5 6 7 8 9 10 11 ", &*bytes].concat());
        }
    }
}
