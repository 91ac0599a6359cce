//! Commits above branches that are not known: whiteouts and opaque marks of the upper branch may
//! hide something there, so they move to the target.

use crate::branches::{Branches, Floor, Views, cx};
use crate::error::{At, Error, Failed};
use crate::ops::{is_dir, join, list, lookup, resolve};
use crate::select::Selection;
use crate::target::Target;
use std::sync::Arc;
use unionfs::offline::Record;
use vnode::{Cx, Kind, Vnode};

struct Marks<'a, 'b> {
    cx: Cx<'static>,
    views: &'a Views,
    target: &'a mut Target<'b>,
    selection: &'a Selection,
    excluded: &'a [Vec<u8>],
}

impl Branches {
    /// Creates the selected whiteouts and marks on the target, if branches below it are not known.
    pub(crate) fn push_marks(
        &self,
        views: &Views,
        target: &mut Target<'_>,
        selection: &Selection,
        excluded: &[Vec<u8>],
    ) -> Result<(), Error> {
        if self.floor == Floor::Ground {
            return Ok(());
        }
        let mut marks = Marks { cx: cx(), views, target, selection, excluded };
        marks.directory(b"", &self.upper_root())?;
        Ok(())
    }
}

impl Marks<'_, '_> {
    fn wants(&self, path: &[u8]) -> bool {
        self.selection.covers(path) && !self.excluded.iter().any(|excluded| excluded == path)
    }

    fn directory(&mut self, path: &[u8], dir: &Arc<dyn Vnode>) -> Result<(), Failed> {
        for (name, kind) in list(&self.cx, dir).at("list", path)? {
            match Record::of(&name) {
                Record::Whiteout(hidden) => {
                    let inner = join(path, hidden);
                    if self.wants(&inner) {
                        self.whiteout(&inner)?;
                    }
                }
                Record::Opaque if self.wants(path) => self.target.end(path)?,
                Record::LongWhiteout if self.wants(path) => self.target.hide_digest(path, &name)?,
                Record::Entry if kind == Kind::Directory => {
                    let inner = join(path, &name);
                    let entry = lookup(&self.cx, dir, &name).at("look up", &inner)?;
                    if let Some(entry) = entry.filter(|entry| is_dir(&entry.vnode) && self.selection.reaches(&inner)) {
                        self.directory(&inner, &entry.vnode)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Hides a path that the union does not show. Beside a directory, a whiteout ends the merging.
    fn whiteout(&mut self, path: &[u8]) -> Result<(), Failed> {
        match resolve(&self.cx, &self.views.all.root(), path).at("look up", path)? {
            None => self.target.cover(path),
            Some(shown) if is_dir(&shown) => self.target.end(path),
            Some(_) => Ok(()),
        }
    }
}
