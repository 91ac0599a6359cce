//! Attributes: the link count of managed directories, and the set-user-id bit.

use crate::managed::{Managed, Spot};
use crate::node::{Held, UsenetVnode};
use crate::record::Record;
use crate::split::names_in;
use crate::state::{FLAG, Form};
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
        let known = match &*self.look(cx)? {
            Form::Managed(managed) => managed.subdirs,
            Form::Flat | Form::Unknown => return Ok(attr),
        };
        let subdirs = match known {
            Some(subdirs) => subdirs,
            None => match self.hold(cx)? {
                Held::Flat(_) => return Ok(attr),
                Held::Managed(mut managed) => managed.count_subdirs(&self.core.server(cx), &self.lower)?,
            },
        };
        Ok(Attr { nlink: subdirs.saturating_add(2), ..attr })
    }

    pub(crate) fn change_attr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        if self.lower.kind() != Kind::Directory || (set.mode.is_none() && set.gid.is_none()) {
            return self.shown(cx, self.lower.setattr(cx, set, file)?);
        }
        let server = self.core.server(cx);
        let mut form = self.state()?.change(&server, &self.lower)?;
        let managed = set.mode.map(|mode| mode & FLAG != 0);
        let attr = match (&mut *form, managed) {
            (Form::Flat, Some(true)) => self.begin(cx, set, &mut form)?,
            (Form::Managed(managed), Some(false)) => {
                let swept = sweep(&server, &self.lower, Some(managed));
                *form = Form::Unknown;
                let swept = swept?;
                self.lower.setattr(cx, set, None).inspect_err(|_| swept.undo(&server, &self.lower))?
            }
            (Form::Managed(managed), _) => {
                managed.unfit();
                self.lower.setattr(cx, set, None)?
            }
            (Form::Flat | Form::Unknown, _) => return self.lower.setattr(cx, set, None),
        };
        drop(form);
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
    fn begin(&self, cx: &Cx<'_>, set: &SetAttr, form: &mut Form) -> Result<Attr> {
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
                *form = Form::Managed(Box::new(Managed::new(record)));
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
    pub(crate) fn unfit(&mut self) {
        for bucket in self.buckets.values_mut() {
            bucket.fits = false;
        }
    }

    fn count_subdirs(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<u32> {
        cx.require_blocking()?;
        let subdirs_of = |place: &Arc<dyn Vnode>, spot: &Spot| -> Result<usize> {
            let names = names_in(cx, place, usize::MAX, |name| self.shows(spot, name))?;
            Ok(names.iter().filter(|(_, kind)| *kind == Kind::Directory).count())
        };
        let mut subdirs = subdirs_of(dir, &Spot::Flat)?;
        for name in self.buckets.keys() {
            let bucket = self.bucket(cx, dir, name)?;
            // A link count of 2 means no subdirectories; file systems that don't count return less.
            if bucket.getattr(cx)?.nlink != 2 {
                subdirs += subdirs_of(&bucket, &Spot::In(name.clone()))?;
            }
        }
        let subdirs = u32::try_from(subdirs).unwrap_or(u32::MAX);
        self.subdirs = Some(subdirs);
        Ok(subdirs)
    }
}
