//! Splitting of large buckets in the hash scheme, and inheritance of the directory's group and
//! default ACL in buckets.

use crate::managed::{Location, Managed};
use crate::node::UsenetVnode;
use crate::scheme::{MAX_HASH_DIGITS, Scheme, hash_digits};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result, SetAttr, Vnode, XattrFlags};

/// The default ACL, which new entries inherit.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// The set-group-id bit, by which new entries inherit the group.
const SETGID: u32 = 0o2000;
/// Maximum size of a default ACL in bytes: that of an extended attribute.
const MAX_ACL_SIZE: usize = 65536;

impl UsenetVnode {
    /// Prepares a bucket for a new entry. `cx` is the server's.
    pub(crate) fn prepare(&self, cx: &Cx<'_>, managed: &mut Managed, name: &[u8]) -> Result<()> {
        let Some(bucket) = managed.buckets.get(name) else { return Ok(()) };
        let (inherits, entries) = (bucket.inherits, bucket.entries);
        if let Scheme::Hash { limit, .. } = managed.record.scheme {
            let entries = match entries {
                Some(entries) => entries,
                None => count(cx, &managed.bucket(cx, &self.lower, name)?)?,
            };
            if entries >= limit {
                cx.require_blocking()?;
            }
            if let Some(bucket) = managed.buckets.get_mut(name) {
                bucket.entries = Some(entries);
            }
        }
        if !inherits {
            self.copy_inheritance(cx, &managed.bucket(cx, &self.lower, name)?)?;
            if let Some(bucket) = managed.buckets.get_mut(name) {
                bucket.inherits = true;
            }
        }
        Ok(())
    }

    /// Copies the directory's inheritable group and default ACL to a bucket.
    fn copy_inheritance(&self, cx: &Cx<'_>, bucket: &Arc<dyn Vnode>) -> Result<()> {
        let (above, own) = (self.lower.getattr(cx)?, bucket.getattr(cx)?);
        let group = (above.mode & SETGID != 0 && above.gid != own.gid).then_some(above.gid);
        let mode = (own.perm() & !SETGID) | (above.mode & SETGID);
        if group.is_some() || mode != own.perm() {
            bucket.setattr(cx, &SetAttr { gid: group, mode: Some(mode), ..SetAttr::default() }, None)?;
        }
        let (above, own) = (default_acl(cx, &self.lower)?, default_acl(cx, bucket)?);
        match above {
            same if same == own => Ok(()),
            Some(acl) => bucket.setxattr(cx, DEFAULT_ACL, &acl, XattrFlags::default()),
            None => bucket.removexattr(cx, DEFAULT_ACL),
        }
    }

    /// Splits a bucket that is too large after an entry was added. On failure the bucket remains,
    /// and the next entry retries.
    pub(crate) fn split_if_large(&self, cx: &Cx<'_>, managed: &mut Managed, location: &Location) {
        let (Scheme::Hash { limit, .. }, Location::In(name)) = (managed.record.scheme, location) else { return };
        let is_large = managed.buckets.get(name).and_then(|bucket| bucket.entries).is_some_and(|n| n > limit);
        // An existing bucket above this one is left from a split that failed.
        let begun =
            (1..name.len()).filter_map(|len| name.get(..len)).find(|above| managed.buckets.contains_key(*above));
        let Some(name) = begun.or_else(|| is_large.then_some(&**name)).map(<[u8]>::to_vec) else { return };
        if !cx.may_block || name.len() >= MAX_HASH_DIGITS {
            return;
        }
        if let Err(errno) = managed.split(&self.core.server(cx), &self.lower, &name) {
            tracing::warn!(%errno, "directory {}: can't split bucket {}", self.lower.id(), name.escape_ascii());
        }
    }
}

impl Managed {
    /// Moves the entries of a bucket to buckets that are one digit deeper. At any time, each entry
    /// is in exactly one of them.
    pub(crate) fn split(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
        let Scheme::Hash { key, .. } = self.record.scheme else { return Ok(()) };
        let bucket = self.bucket(cx, dir, name)?;
        for (entry, _) in names_in(cx, &bucket, usize::MAX, |_| true)? {
            let digits = hash_digits(&key, &entry);
            let deeper = digits.get(..=name.len()).ok_or(Errno::IO)?.to_vec();
            let target = self.make_bucket(cx, dir, &deeper)?;
            move_entry(cx, &bucket, &target, Name::new(&entry)?)?;
            self.dirty.insert(deeper.clone());
            for (bucket, up) in [(name, false), (&*deeper, true)] {
                if let Some(count) = self.buckets.get_mut(bucket).and_then(|bucket| bucket.entries.as_mut()) {
                    *count = if up { count.saturating_add(1) } else { count.saturating_sub(1) };
                }
            }
        }
        self.drop_bucket(cx, dir, name)
    }

    /// Removes an empty bucket.
    pub(crate) fn drop_bucket(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
        let Some(base) = self.buckets.get(name).map(|bucket| bucket.base) else { return Ok(()) };
        match self.base(cx, dir, base)?.rmdir(cx, Name::new(name)?) {
            Err(Errno::NOENT) | Ok(()) => {}
            Err(errno) => return Err(errno),
        }
        self.buckets.remove(name);
        self.dirty.remove(name);
        Ok(())
    }
}

/// Moves an entry to another lower directory. Fails if the name exists there.
pub(crate) fn move_entry(cx: &Cx<'_>, from: &Arc<dyn Vnode>, to: &Arc<dyn Vnode>, name: Name<'_>) -> Result<()> {
    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
    match from.rename(cx, name, to, name, flags) {
        // The file system does not support the flag.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        done => return done,
    }
    if to.lookup(cx, name)?.is_some() {
        return Err(Errno::EXIST);
    }
    from.rename(cx, name, to, name, RenameFlags::default())
}

/// Returns up to `most` names in a lower directory for which `wanted` is true.
pub(crate) fn names_in(
    cx: &Cx<'_>,
    dir: &Arc<dyn Vnode>,
    most: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<Vec<(Vec<u8>, Kind)>> {
    let mut names = Vec::new();
    dir.readdir(cx, 0, &mut |entry| {
        if wanted(entry.name.as_bytes()) {
            if names.len() >= most {
                return false;
            }
            names.push((entry.name.as_bytes().to_vec(), entry.kind));
        }
        true
    })?;
    Ok(names)
}

fn count(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<u32> {
    let mut entries = 0;
    dir.readdir(cx, 0, &mut |_| {
        entries += 1;
        true
    })?;
    Ok(entries)
}

fn default_acl(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Option<Vec<u8>>> {
    let size = match dir.getxattr(cx, DEFAULT_ACL, &mut []) {
        Ok(size) => size.min(MAX_ACL_SIZE),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let mut acl = vec![0; size];
    let len = dir.getxattr(cx, DEFAULT_ACL, &mut acl)?;
    acl.truncate(len);
    Ok(Some(acl))
}
