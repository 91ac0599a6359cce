//! Attributes: the link count of managed directories, and the set-user-id bit.

use crate::managed::{Location, Managed};
use crate::node::{LockedDir, UsenetVnode};
use crate::record::Record;
use crate::split::names_in;
use crate::state::{FLAG, Layout};
use crate::sweep::sweep;
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Kind, Name, OpenFile, Result, SetAttr, Vnode};

impl UsenetVnode {
    /// Returns the attributes that users see: those of the lower object, with the link count of a
    /// flat directory.
    pub(crate) fn shown(&self, cx: &Cx<'_>, attr: Attr) -> Result<Attr> {
        // The link count is below 2 for removed directories, and on file systems that don't count
        // subdirectories.
        if attr.kind() != Kind::Directory || attr.mode & FLAG == 0 || attr.nlink < 2 {
            return Ok(attr);
        }
        let known = match &*self.read_layout(cx)? {
            Layout::Managed(managed) => managed.subdirs,
            Layout::Flat | Layout::Unknown => return Ok(attr),
        };
        let subdirs = match known {
            Some(subdirs) => subdirs,
            None => match self.lock_for_change(cx)? {
                LockedDir::Flat(_) => return Ok(attr),
                LockedDir::Managed(mut managed) => managed.count_subdirs(&self.core.server(cx), &self.lower)?,
            },
        };
        Ok(Attr { nlink: subdirs.saturating_add(2), ..attr })
    }

    /// Changes attributes. A change of a directory's set-user-id bit makes the directory managed or
    /// flat, if it is empty.
    pub(crate) fn change_attr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        if self.lower.kind() != Kind::Directory || (set.mode.is_none() && set.gid.is_none()) {
            return self.shown(cx, self.lower.setattr(cx, set, file)?);
        }
        let server = self.core.server(cx);
        let mut layout = self.state()?.write_layout(&server, &self.lower)?;
        let managed = set.mode.map(|mode| mode & FLAG != 0);
        let attr = match (&mut *layout, managed) {
            (Layout::Flat, Some(true)) => self.begin(cx, set, &mut layout)?,
            (Layout::Managed(managed), Some(false)) => {
                let swept = sweep(&server, &self.lower, Some(managed));
                *layout = Layout::Unknown;
                let swept = swept?;
                self.lower.setattr(cx, set, None).inspect_err(|_| swept.undo(&server, &self.lower))?
            }
            (Layout::Managed(managed), _) => {
                managed.reset_inheritance();
                self.lower.setattr(cx, set, None)?
            }
            (Layout::Flat | Layout::Unknown, _) => return self.lower.setattr(cx, set, None),
        };
        drop(layout);
        self.shown(cx, attr)
    }

    /// Creates a directory; one with the bit is managed from the start.
    pub(crate) fn make_dir(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>, mode: u32) -> Result<Entry> {
        let entry = dir.mkdir(cx, name, mode)?;
        if self.core.choice.hash && entry.attr.mode & FLAG != 0 {
            let record = Record { scheme: self.core.choice.scheme()?, ..Record::NONE };
            if let Err(errno) = record.write(&self.core.server(cx), &entry.vnode) {
                dir.rmdir(cx, name)?;
                return Err(errno);
            }
        }
        Ok(entry)
    }

    /// Makes an empty directory managed.
    fn begin(&self, cx: &Cx<'_>, set: &SetAttr, layout: &mut Layout) -> Result<Attr> {
        let server = self.core.server(cx);
        server.require_blocking()?;
        sweep(&server, &self.lower, None)?;
        let record = Record { scheme: self.core.choice.scheme()?, ..Record::NONE };
        // Write the record before the bit is set; without the bit it has no effect.
        if record != Record::NONE {
            record.write(&server, &self.lower)?;
        }
        match self.lower.setattr(cx, set, None) {
            Ok(attr) => {
                *layout = Layout::Managed(Box::new(Managed::new(record)));
                Ok(attr)
            }
            Err(errno) => {
                if let Err(errno) = crate::record::remove(&server, &self.lower, crate::record::RECORD) {
                    tracing::warn!(%errno, "directory {}: can't remove its hidden record", self.lower.id());
                }
                Err(errno)
            }
        }
    }
}

impl Managed {
    /// Marks all buckets for an update of their inherited group and ACL.
    pub(crate) fn reset_inheritance(&mut self) {
        for bucket in self.buckets.values_mut() {
            bucket.inherits = false;
        }
    }

    fn count_subdirs(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<u32> {
        cx.require_blocking()?;
        let subdirs_of = |place: &Arc<dyn Vnode>, location: &Location| -> Result<usize> {
            let names = names_in(cx, place, usize::MAX, |name| self.shows(location, name))?;
            Ok(names.iter().filter(|(_, kind)| *kind == Kind::Directory).count())
        };
        let mut subdirs = subdirs_of(dir, &Location::Flat)?;
        for name in self.buckets.keys() {
            let bucket = self.bucket(cx, dir, name)?;
            // A link count of 2 means no subdirectories; file systems that don't count return less.
            if bucket.getattr(cx)?.nlink != 2 {
                subdirs += subdirs_of(&bucket, &Location::In(name.clone()))?;
            }
        }
        let subdirs = u32::try_from(subdirs).unwrap_or(u32::MAX);
        self.subdirs = Some(subdirs);
        Ok(subdirs)
    }
}
