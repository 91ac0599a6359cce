//! Records that lead to branches that are not given. Their effect would be lost: a commit is
//! refused that would move or remove them.
//!
//! If the branches below the target are not known, all redirects and copies in the index of hard
//! links may lead there. If all branches are said to be given, one may have been forgotten, or
//! nothing may be mounted at its path. So the identity log is asked whether it knows another
//! branch, and a record that leads nowhere belongs to that one.

use crate::branches::{Branches, Floor, Views, cx};
use crate::error::{At, Error, Failed, if_readable};
use crate::find::has_no_name;
use crate::ops::{is_dir, join, list, lookup, resolve_dir};
use crate::select::Selection;
use std::sync::Arc;
use unionfs::offline::{LINK_INDEX, Record, View, lacks_branches};
use vnode::{Kind, Name, Vnode};

struct Checker<'a> {
    views: &'a Views,
    selection: &'a Selection,
    floor: Floor,
}

impl Branches {
    /// Refuses a commit that depends on branches that are not given.
    pub(crate) fn check_given(&self, views: &Views, selection: &Selection) -> Result<(), Error> {
        let lacks = |from: usize| -> Result<bool, Failed> {
            let branches = self.pairs().split_off(from);
            Ok(self.floor == Floor::Unknown || lacks_branches(&cx(), &branches).at("read the identity log", b"")?)
        };
        let checker = Checker { views, selection, floor: self.floor };
        if lacks(1)? {
            checker.index(&self.target_root()?, &views.below)?;
        }
        if lacks(0)? {
            checker.index(&self.upper_root(), &views.all)?;
            checker.directory(b"", &self.upper_root(), &views.all.root())?;
        }
        Ok(())
    }
}

impl Checker<'_> {
    /// Checks the index of hard links of the first branch of `view`.
    fn index(&self, root: &Arc<dyn Vnode>, view: &View) -> Result<(), Error> {
        const STEP: &str = "read the index of hard links";
        let index = lookup(&cx(), root, LINK_INDEX).at(STEP, b"")?;
        let Some(index) = index.filter(|entry| is_dir(&entry.vnode)) else { return Ok(()) };
        for (name, _) in list(&cx(), &index.vnode).at(STEP, b"")? {
            let is_lost = match self.floor {
                Floor::Unknown => true,
                Floor::Ground => {
                    let entry = lookup(&cx(), &index.vnode, &name).at(STEP, b"")?;
                    let alone = entry.is_some_and(|entry| entry.attr.nlink < 2 && !is_dir(&entry.vnode));
                    // One from a branch that is given: an interrupted run has left it.
                    let number = view.indexed_number(&name).filter(|number| alone && !view.is_from_here(*number));
                    number.map(|number| has_no_name(&cx(), view, number)).transpose()?.unwrap_or(false)
                }
            };
            if is_lost {
                let reason = "has copies of files with several names, which may have other names on the branches below";
                return Err(Error::NeedsBelow { path: Vec::new(), reason });
            }
        }
        Ok(())
    }

    /// Checks the records in a directory of the upper branch. `shown`: the same one in the union.
    fn directory(&self, path: &[u8], dir: &Arc<dyn Vnode>, shown: &Arc<dyn Vnode>) -> Result<(), Error> {
        for (name, kind) in if_readable(list(&cx(), dir).at("list", path))?.unwrap_or_default() {
            match Record::of(&name) {
                Record::Metacopy(of) => {
                    let inner = join(path, of);
                    if self.selection.covers(&inner) && lookup(&cx(), shown, of).at("look up", &inner)?.is_none() {
                        return Err(Error::NeedsBelow { path: inner, reason: "has its data on a branch below" });
                    }
                }
                Record::Redirect if self.floor == Floor::Unknown => {
                    return Err(Error::NeedsBelow { path: path.to_vec(), reason: RENAMED });
                }
                Record::Entry if kind == Kind::Directory && self.selection.reaches(&join(path, &name)) => {
                    self.subdirectory(path, &name, dir, shown)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn subdirectory(
        &self,
        path: &[u8],
        name: &[u8],
        dir: &Arc<dyn Vnode>,
        shown: &Arc<dyn Vnode>,
    ) -> Result<(), Error> {
        let inner = join(path, name);
        // What this user may not read is not committed.
        let find =
            |dir: &Arc<dyn Vnode>| if_readable(lookup(&cx(), dir, name).at("look up", &inner)).map(Option::flatten);
        let (Some(own), Some(now)) = (find(dir)?, find(shown)?) else { return Ok(()) };
        if !is_dir(&own.vnode) || !is_dir(&now.vnode) {
            return Ok(());
        }
        if self.floor == Floor::Ground && self.selection.covers(&inner) {
            let redirect = Name::new(name).and_then(|name| self.views.all.redirect(&cx(), shown, name));
            let from = redirect.at("read a redirect", &inner)?;
            let leads = |from: &Vec<u8>| resolve_dir(&cx(), &self.views.below.root(), from).at("look up", from);
            if from.as_ref().map(leads).transpose()?.is_some_and(|dir| dir.is_none()) {
                return Err(Error::NeedsBelow { path: inner, reason: RENAMED });
            }
        }
        self.directory(&inner, &own.vnode, &now.vnode)
    }
}

const RENAMED: &str = "was renamed, and may merge directories of the branches below";
