//! Discard: drops changes, so that the union shows what the branches below have.

use crate::branches::{Branches, Views, cx};
use crate::change::Change;
use crate::commit::{Outcome, Progress};
use crate::error::{At, Error, Failed, Step, StepFailed};
use crate::find::merges;
use crate::journal::Journal;
use crate::ops::{is_dir, join, list, lookup, remove_tree, resolve_dir, set_times, split};
use crate::select::Selection;
use crate::temp::Temp;
use std::sync::Arc;
use unionfs::offline::{LINK_INDEX, OPAQUE_MARK, Record, whiteout_name};
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Vnode};

/// A directory of the upper branch, the same one in the union, and the one below if there is one.
struct Place<'a> {
    path: &'a [u8],
    own: &'a Arc<dyn Vnode>,
    all: &'a Arc<dyn Vnode>,
    below: Option<&'a Arc<dyn Vnode>>,
}

struct Discarder<'a> {
    cx: Cx<'static>,
    views: &'a Views,
    selection: &'a Selection,
    /// Only check that the selection can be discarded.
    check: bool,
    step: &'a mut dyn FnMut(&[u8]),
}

impl Branches {
    /// Drops the selected changes from the upper branch. Each path changes in one step.
    ///
    /// A discard that was killed is completed by the next one.
    ///
    /// # Errors
    /// Reasons not to begin; a step that failed.
    pub fn discard(
        &self,
        selection: &Selection,
        dry_run: bool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Outcome, Error> {
        let (cx, upper) = (cx(), self.upper_root());
        let left = if dry_run { Vec::new() } else { self.recover()?.1 };
        let views = self.views()?;
        let found = self.find(&views)?;
        selection.check(&found.changes)?;
        let selection = selection.clone().close(&found.changes, &found.groups);
        let done: Vec<Change> = found.changes.iter().filter(|change| selection.includes(change)).cloned().collect();
        let (all, below) = (views.all.root(), views.below.root());
        let place = Place { path: b"", own: &upper, all: &all, below: Some(&below) };
        Discarder { cx, views: &views, selection: &selection, check: true, step: &mut |_| {} }.directory(&place)?;
        if dry_run {
            return Ok(Outcome { done, ..Outcome::default() });
        }
        let mut journal = Journal::new();
        journal.set_left(&left);
        journal.set_discarded(&selection);
        journal.write(&cx, &upper).at("write the journal", b"")?;
        let (total, mut at) = (done.len(), 0);
        self.drop_changes(&selection, &mut |path| {
            progress(Progress { done: at.min(total), total, path, bytes: 0 });
            at += 1;
        })?;
        self.end_run(journal)?;
        Ok(Outcome { done, failed: left, ..Outcome::default() })
    }

    /// Drops the changes of these paths, to which nothing has to be added. Can be run again after a
    /// kill.
    pub(crate) fn drop_changes(&self, selection: &Selection, step: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let (cx, upper) = (cx(), self.upper_root());
        let views = self.views()?;
        let found = self.find(&views)?;
        let (all, below) = (views.all.root(), views.below.root());
        let place = Place { path: b"", own: &upper, all: &all, below: Some(&below) };
        let index = self.selected_index(&views, selection)?;
        // The old path of a renamed directory appears before the new one disappears.
        let moved = found.changes.iter().filter(|change| change.moves_dir() && selection.includes(change));
        for from in moved.filter_map(|change| change.from.as_ref()) {
            self.uncover(&views, from)?;
        }
        Discarder { cx, views: &views, selection, check: false, step }.directory(&place)?;
        self.drop_index(&index)?;
        self.prune(selection, &[], false)?;
        self.separate_numbers()?;
        self.correct_link_counts()
    }

    /// Removes a whiteout of the upper branch.
    fn uncover(&self, views: &Views, path: &[u8]) -> Result<(), Failed> {
        let (cx, (parent, name)) = (cx(), split(path));
        let Some(dir) = resolve_dir(&cx, &views.all.root(), parent).at("look up", parent)? else { return Ok(()) };
        let Some(own) = crate::find::upper_part(views, &dir).at("look up", parent)? else { return Ok(()) };
        // Beside a new entry the whiteout belongs to that.
        if lookup(&cx, &own, name).at("look up", path)?.is_some() {
            return Ok(());
        }
        let before = own.getattr(&cx).at("read the attributes", parent)?;
        remove_tree(&cx, &own, &whiteout_name(name)).at("remove a whiteout", path)?;
        set_times(&cx, &own, &before).at("set the times", parent)
    }

    /// Returns the names of the entries of the index of hard links whose files are selected.
    fn selected_index(&self, views: &Views, selection: &Selection) -> Result<Vec<Vec<u8>>, Error> {
        let (cx, upper) = (cx(), self.upper_root());
        let index = lookup(&cx, &upper, LINK_INDEX).at("look up the index of hard links", b"")?;
        let Some(index) = index.filter(|entry| is_dir(&entry.vnode)) else { return Ok(Vec::new()) };
        let mut selected = Vec::new();
        for (name, _) in list(&cx, &index.vnode).at("list the index of hard links", b"")? {
            let Some(number) = views.all.indexed_number(&name) else { continue };
            let paths = crate::find::paths_of_number(&cx, views, number)?;
            if !paths.is_empty() && paths.iter().all(|path| selection.covers(path)) {
                selected.push(name);
            }
        }
        Ok(selected)
    }

    fn drop_index(&self, names: &[Vec<u8>]) -> Result<(), Failed> {
        let (cx, upper) = (cx(), self.upper_root());
        let Some(index) = lookup(&cx, &upper, LINK_INDEX).at("look up the index of hard links", b"")? else {
            return Ok(());
        };
        for name in names {
            remove_tree(&cx, &index.vnode, name).at("remove an entry of the index of hard links", b"")?;
        }
        Ok(())
    }
}

impl Discarder<'_> {
    fn directory(&mut self, place: &Place<'_>) -> Result<(), Error> {
        let Place { path, own, .. } = *place;
        let before = own.getattr(&self.cx).at("read the attributes", path)?;
        for (name, kind) in list(&self.cx, own).at("list", path)? {
            match Record::of(&name) {
                Record::Entry if kind == Kind::Directory => self.subdirectory(place, &name)?,
                Record::Entry => self.file(place, &name)?,
                Record::Whiteout(hidden) => self.record(place, &name, &join(path, hidden))?,
                Record::Metacopy(of) => self.record(place, &name, &join(path, of))?,
                Record::LongWhiteout => self.long_whiteout(place, &name)?,
                Record::Opaque | Record::Redirect | Record::Other => {}
            }
        }
        if !self.check {
            set_times(&self.cx, own, &before).at("set the times", path)?;
        }
        Ok(())
    }

    fn file(&mut self, place: &Place<'_>, name: &[u8]) -> Result<(), Error> {
        let path = join(place.path, name);
        if !self.selection.covers(&path) || self.check {
            return Ok(());
        }
        (self.step)(&path);
        // Beside the file it has no effect; without the file it would hide the one below.
        remove_tree(&self.cx, place.own, &whiteout_name(name)).at("remove a whiteout", &path)?;
        remove_tree(&self.cx, place.own, name).at("remove", &path)?;
        Ok(())
    }

    /// Removes a whiteout or metacopy of the object at `path`.
    fn record(&mut self, place: &Place<'_>, name: &[u8], path: &[u8]) -> Result<(), Error> {
        // Beside an entry, the entry comes first.
        let beside = matches!(Record::of(name), Record::Whiteout(hidden)
            if lookup(&self.cx, place.own, hidden).at("look up", path)?.is_some());
        if self.selection.covers(path) && !self.check && !beside {
            (self.step)(path);
            remove_tree(&self.cx, place.own, name).at("remove a record of the upper branch", path)?;
        }
        Ok(())
    }

    fn long_whiteout(&mut self, place: &Place<'_>, name: &[u8]) -> Result<(), Error> {
        let path = place.path;
        let Some(below) = place.below else { return Ok(()) };
        for (hidden, _) in list(&self.cx, below).at("list", path)? {
            if whiteout_name(&hidden) == name {
                let beside = lookup(&self.cx, place.own, &hidden).at("look up", path)?.is_some();
                let path = join(path, &hidden);
                if self.selection.covers(&path) && !self.check && !beside {
                    (self.step)(&path);
                    remove_tree(&self.cx, place.own, name).at("remove a whiteout", &path)?;
                }
            }
        }
        Ok(())
    }

    fn subdirectory(&mut self, place: &Place<'_>, name: &[u8]) -> Result<(), Error> {
        let path = join(place.path, name);
        if !self.selection.reaches(&path) {
            return Ok(());
        }
        if self.selection.covers(&path) {
            if !self.check {
                (self.step)(&path);
                self.whole(place.own, name).map_err(|failed| failed.at(&path))?;
            }
            return Ok(());
        }
        let find = |dir: &Arc<dyn Vnode>| lookup(&self.cx, dir, name).at("look up", &path);
        let below = place.below.map(find).transpose()?.flatten().filter(|below| is_dir(&below.vnode));
        let (Some(own), Some(all)) = (find(place.own)?, find(place.all)?) else { return Ok(()) };
        if let Some(below) = &below
            && !merges(self.views, &all.vnode, &below.vnode).at("compare", &path)?
        {
            let part = self.selection.first_within(&path);
            return Err(Error::Whole { part, whole: path, reason: "was removed and created again" });
        }
        let below = below.as_ref().map(|below| &below.vnode);
        self.directory(&Place { path: &path, own: &own.vnode, all: &all.vnode, below })
    }

    /// Removes a directory of the upper branch with everything in it. It disappears in one step.
    fn whole(&self, own: &Arc<dyn Vnode>, name: &[u8]) -> Result<(), StepFailed> {
        let whiteout = whiteout_name(name);
        if lookup(&self.cx, own, &whiteout).step("look up a whiteout")?.is_some() {
            // The whiteout would hide the directory below. The mark has the same effect until the
            // directory is removed.
            let dir = lookup(&self.cx, own, name).step("look up")?;
            if let Some(dir) = dir {
                let mark = Name::new(OPAQUE_MARK).step("create an opaque mark")?;
                match dir.vnode.mknod(&self.cx, mark, Kind::Regular.mode_bits() | 0o444, 0) {
                    Ok(_) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(StepFailed("create an opaque mark", errno)),
                }
            }
            remove_tree(&self.cx, own, &whiteout).step("remove a whiteout")?;
        }
        let temp = Temp::new(&self.cx, own).step("choose a temporary name")?;
        let (from, to) = (Name::new(name).step("remove")?, temp.name().step("remove")?);
        own.rename(&self.cx, from, own, to, RenameFlags::default()).step("remove the directory")?;
        remove_tree(&self.cx, own, temp.bytes()).step("remove the entries of the directory")
    }
}
