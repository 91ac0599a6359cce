//! What a record says of an operation.

use super::made::MadeVersion;
use crate::core::Core;
use crate::node::VersionVnode;
use std::sync::Arc;
use versionset::{AuditPlace, AuditRecord, Audited, stem_of};
use vnode::{Attr, Cx, Name, Result, SetAttr, Vnode};

/// An operation that is about to run.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    operation: Audited,
    place: AuditPlace,
    new_place: Option<AuditPlace>,
    /// The number of the object.
    pub(crate) inode: u64,
    /// Offset and length, or other numbers.
    pub(crate) range: (u64, u64),
    pub(crate) text: Vec<u8>,
}

impl Event {
    fn new(operation: Audited, place: AuditPlace) -> Self {
        Self { operation, place, new_place: None, inode: 0, range: (0, 0), text: Vec::new() }
    }

    /// Returns the event of an operation on an entry that will be made in this directory.
    pub(crate) fn creation(dir: &VersionVnode, cx: &Cx<'_>, operation: Audited, name: Name<'_>) -> Self {
        Self::new(operation, place(&dir.core, cx, &dir.lower, name.as_bytes()))
    }

    /// Returns the event of an operation on an existing entry of this directory.
    pub(crate) fn entry(dir: &VersionVnode, cx: &Cx<'_>, operation: Audited, name: Name<'_>) -> Result<Self> {
        let found = dir.lower.lookup(&dir.core.server(cx), name)?;
        let inode = found.map_or(0, |entry| entry.vnode.id());
        Ok(Self { inode, ..Self::creation(dir, cx, operation, name) })
    }

    /// Returns the event of an operation on this object.
    pub(crate) fn object(vnode: &VersionVnode, cx: &Cx<'_>, operation: Audited) -> Result<Self> {
        Self::head(&vnode.head(), cx, operation)
    }

    /// Returns the event of an operation on the object of this head.
    pub(crate) fn head(head: &crate::head::Head<'_>, cx: &Cx<'_>, operation: Audited) -> Result<Self> {
        let server = head.core.server(cx);
        let place = if head.lower.kind() == vnode::Kind::Directory {
            place(head.core, cx, head.lower, b"")
        } else {
            match head.place(&server)? {
                Some(found) => place(head.core, cx, &found.dir, &found.name),
                None => AuditPlace::default(),
            }
        };
        Ok(Self { inode: head.inode.id, ..Self::new(operation, place) })
    }

    /// Returns the event of a change of attributes.
    pub(crate) fn attributes(vnode: &VersionVnode, cx: &Cx<'_>, set: &SetAttr) -> Result<Self> {
        let operation = match set {
            SetAttr { size: Some(_), .. } => Audited::Truncate,
            SetAttr { uid, gid, .. } if uid.is_some() || gid.is_some() => Audited::Chown,
            SetAttr { mode: Some(_), .. } => Audited::Chmod,
            SetAttr { atime: None, mtime: None, .. } => Audited::Chmod,
            _ => Audited::Times,
        };
        let before = vnode.lower.getattr(&vnode.core.server(cx))?;
        let text = attributes_text(set, &before);
        let range = (0, set.size.unwrap_or(0));
        Ok(Self { text, range, ..Self::object(vnode, cx, operation)? })
    }

    /// Adds the new name, of a rename or link.
    pub(crate) fn to(self, dir: &VersionVnode, cx: &Cx<'_>, name: Name<'_>) -> Self {
        Self { new_place: Some(place(&dir.core, cx, &dir.lower, name.as_bytes())), ..self }
    }

    /// Adds numbers.
    pub(crate) fn with_range(self, first: u64, second: u64) -> Self {
        Self { range: (first, second), ..self }
    }

    /// Adds a text.
    pub(crate) fn with_text(self, text: &[u8]) -> Self {
        Self { text: text.to_vec(), ..self }
    }

    /// Returns the record. The log gives it its number and time.
    pub(super) fn into_record(self, core: &Core, cx: &Cx<'_>, made: &[MadeVersion], errno: u32) -> AuditRecord {
        let is_new = |version: &MadeVersion| {
            let place = self.new_place.as_ref();
            place.is_some_and(|place| version.dir == place.dir && *version.stem == *stem_of(&place.name))
        };
        let versions = made.iter().map(|version| (version.number, is_new(version))).collect();
        AuditRecord {
            number: 0,
            time: core.now(),
            operation: self.operation,
            errno,
            inode: self.inode,
            place: self.place,
            new_place: self.new_place,
            range: self.range,
            text: self.text.into(),
            versions,
            who: core.callers.who(cx),
            gid: cx.gid,
        }
    }
}

/// Returns a name in a directory with its path in the mount.
fn place(core: &Core, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> AuditPlace {
    let server = core.server(cx);
    let (path, root) = (core.path_of(&server, dir), core.path_of(&server, &core.root()));
    let path = path.strip_prefix(&*root).unwrap_or_default();
    AuditPlace { dir: dir.id(), path: path.into(), name: name.into() }
}

/// Describes a change of attributes, with the values before and after it: `mode=644>600`.
fn attributes_text(set: &SetAttr, before: &Attr) -> Vec<u8> {
    let mut parts = Vec::new();
    if let Some(size) = set.size {
        parts.push(format!("size={}>{size}", before.size));
    }
    if let Some(uid) = set.uid {
        parts.push(format!("uid={}>{uid}", before.uid));
    }
    if let Some(gid) = set.gid {
        parts.push(format!("gid={}>{gid}", before.gid));
    }
    if let Some(mode) = set.mode {
        parts.push(format!("mode={:o}>{:o}", before.perm(), mode & 0o7777));
    }
    if set.atime.is_some() {
        parts.push("atime".to_owned());
    }
    if set.mtime.is_some() {
        parts.push("mtime".to_owned());
    }
    parts.join(",").into_bytes()
}
