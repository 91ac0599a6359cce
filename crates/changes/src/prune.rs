//! Removes records of the upper branch that have no effect any more: those of paths at which the
//! branches below show the same as the union. The union does not change.

use crate::branches::{Branches, Floor, Views, cx};
use crate::error::{At, Error, Failed, if_readable};
use crate::find::{differ, merges, paths_of_number};
use crate::ops::{is_dir, join, list, lookup, remove_tree, resolve, set_times};
use crate::select::Selection;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use unionfs::offline::{LINK_INDEX, Record, whiteout_name};
use vnode::{Cx, Entry, Kind, Name, Vnode};

/// The identity log.
const LOG: &[u8] = b".wh..wh.ident";

/// Files in the root of a branch that a union needs only if the branch changes something. The index
/// of hard links does change something if it has entries.
pub const OWN_FILES: [&[u8]; 7] = [
    LOG,
    b".wh..wh.ident.new",
    b".wh..wh.moved",
    b".wh..wh.metacopies",
    b".wh..wh.work",
    LINK_INDEX,
    crate::own_times::NAME,
];

/// A directory of the upper branch, the same one in the union, and the one below.
struct Place<'a> {
    path: &'a [u8],
    own: &'a Arc<dyn Vnode>,
    all: &'a Arc<dyn Vnode>,
    below: &'a Arc<dyn Vnode>,
}

struct Pruner<'a> {
    cx: Cx<'static>,
    views: Views,
    selection: &'a Selection,
    /// Whether directories below get the times of those that are removed from the upper branch.
    moves_times: bool,
    /// Files that remain, because another name of the same file does.
    keep: HashSet<Vec<u8>>,
    /// Only collect the files that would be removed.
    check: Option<RefCell<HashSet<Vec<u8>>>>,
}

impl Branches {
    /// Removes the selected records that have no effect any more. `groups`: the names of each file
    /// with several names. `moves_times`: directories of the target get the times that users see.
    pub(crate) fn prune(&self, selection: &Selection, groups: &[Vec<Vec<u8>>], moves_times: bool) -> Result<(), Error> {
        self.prune_except(selection, groups, &[], moves_times)
    }

    /// As [`Self::prune`]. The files at the paths in `failed` remain, with all their names.
    pub(crate) fn prune_except(
        &self,
        selection: &Selection,
        groups: &[Vec<Vec<u8>>],
        failed: &[Failed],
        moves_times: bool,
    ) -> Result<(), Error> {
        let has_failed = |path: &[u8]| failed.iter().any(|failed| failed.path == path);
        let (keep, check) = (failed.iter().map(|failed| failed.path.clone()).collect(), None);
        let mut pruner = Pruner { cx: cx(), views: self.views()?, selection, moves_times, keep, check };
        let (own, all, below) = (self.upper_root(), pruner.views.all.root(), pruner.views.below.root());
        let place = Place { path: b"", own: &own, all: &all, below: &below };
        if !groups.is_empty() {
            // The names of a file must not be divided between the branches.
            pruner.check = Some(RefCell::default());
            pruner.directory(&place)?;
            let removable = pruner.check.take().map(RefCell::into_inner).unwrap_or_default();
            for group in groups {
                let kept = |path: &&Vec<u8>| -> Result<bool, Failed> {
                    let found = if_readable(resolve(&cx(), &own, path).at("look up", path))?;
                    Ok(!removable.contains(*path) && found.is_none_or(|found| found.is_some()))
                };
                let any_kept = group.iter().map(|path| kept(&path)).collect::<Result<Vec<_>, _>>()?.contains(&true);
                if any_kept || group.iter().any(|path| has_failed(path)) || !is_one_file(&pruner.views, group)? {
                    pruner.keep.extend(group.iter().cloned());
                }
            }
        }
        pruner.directory(&place)?;
        self.prune_index()?;
        own.fsync(&cx(), false).at("write the directory to the disk", b"")?;
        Ok(())
    }

    /// Removes entries of the index of hard links whose file has no other name any more.
    pub(crate) fn prune_index(&self) -> Result<(), Error> {
        let cx = cx();
        let upper = self.upper_root();
        let index = lookup(&cx, &upper, LINK_INDEX).at("look up the index of hard links", b"")?;
        let Some(index) = index.filter(|entry| is_dir(&entry.vnode)) else { return Ok(()) };
        let views = self.views()?;
        for (name, _) in list(&cx, &index.vnode).at("list the index of hard links", b"")? {
            let entry = lookup(&cx, &index.vnode, &name).at("look up", &name)?;
            let alone = entry.is_some_and(|entry| entry.attr.nlink < 2 && !is_dir(&entry.vnode));
            if alone
                && let Some(number) = views.all.indexed_number(&name)
                && is_index_without_effect(&cx, &views, number)?
            {
                remove_tree(&cx, &index.vnode, &name).at("remove an entry of the index of hard links", b"")?;
            }
        }
        Ok(())
    }

    /// As [`Self::prune_index`], for the target: a committed file can have replaced all names of a
    /// file in its index. Does nothing if the branches below the target are not known.
    pub(crate) fn prune_index_of_target(&self) -> Result<(), Error> {
        match (self.below.split_first(), self.floor) {
            (Some((target, below)), Floor::Ground) if !below.is_empty() => {
                Self::new(target.clone(), below.to_vec(), self.floor).prune_index()
            }
            _ => Ok(()),
        }
    }

    /// Corrects the link counts of files of which names were removed from, or became visible on,
    /// the branches below. All branches are read if there are any.
    pub(crate) fn correct_link_counts(&self) -> Result<(), Error> {
        if !self.changes_something()? || !self.views()?.all.counts_links() {
            return Ok(());
        }
        self.writable()?.correct_link_counts(&cx()).at("correct link counts", b"")?;
        Ok(())
    }

    /// Gives files that were renamed numbers of their own if their originals are visible again.
    pub(crate) fn separate_numbers(&self) -> Result<(), Error> {
        if self.changes_something()? {
            self.writable()?.separate_numbers(&cx()).at("separate inode numbers", b"")?;
        }
        Ok(())
    }

    /// Whether the upper branch has more than the union's own files.
    fn changes_something(&self) -> Result<bool, Error> {
        let left = list(&cx(), &self.upper_root()).at("list", b"")?;
        Ok(left.iter().any(|(name, _)| !OWN_FILES.contains(&&**name) && name != crate::journal::NAME))
    }

    /// Removes the union's own files from the upper branch if it changes nothing any more.
    pub(crate) fn tidy(&self) -> Result<(), Error> {
        let (cx, upper) = (cx(), self.upper_root());
        let names = list(&cx, &upper).at("list", b"")?;
        if names.iter().any(|(name, _)| !OWN_FILES.contains(&&**name)) {
            return Ok(());
        }
        let index = lookup(&cx, &upper, LINK_INDEX).at("look up the index of hard links", b"")?;
        if let Some(index) = index.filter(|entry| is_dir(&entry.vnode))
            && !list(&cx, &index.vnode).at("list the index of hard links", b"")?.is_empty()
        {
            return Ok(());
        }
        let before = upper.getattr(&cx).at("read the attributes", b"")?;
        for (name, _) in names {
            remove_tree(&cx, &upper, &name).at("remove the union's records", b"")?;
        }
        let _kept = set_times(&cx, &upper, &before);
        upper.fsync(&cx, false).at("write the directory to the disk", b"")?;
        Ok(())
    }
}

/// Whether all these paths are names of one file on the branches below.
fn is_one_file(views: &Views, group: &[Vec<u8>]) -> Result<bool, Failed> {
    let mut files = BTreeSet::new();
    for path in group {
        let found = if_readable(resolve(&cx(), &views.below.root(), path).at("look up", path))?.flatten();
        let Some(below) = found.filter(|below| !is_dir(below)) else { return Ok(false) };
        let (at, lower) = views.below.lower(&below).at("look up", path)?;
        files.insert((at, lower.id()));
    }
    Ok(files.len() == 1)
}

/// Whether the names below that lead to a copy in the index show the same without it.
fn is_index_without_effect(cx: &Cx<'_>, views: &Views, number: u64) -> Result<bool, Failed> {
    for path in paths_of_number(cx, views, number)? {
        let find = |root: &Arc<dyn Vnode>| -> vnode::Result<Option<Entry>> {
            let Some(vnode) = resolve(cx, root, &path)? else { return Ok(None) };
            let attr = vnode.getattr(cx)?;
            Ok(Some(Entry { vnode, attr }))
        };
        let (now, below) =
            (find(&views.all.root()).at("look up", &path)?, find(&views.below.root()).at("look up", &path)?);
        match (now, below) {
            (Some(now), Some(below)) if differ(cx, views, &now, &below).at("compare", &path)?.none() => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

impl Pruner<'_> {
    /// Prunes the records of a directory that merges the one below.
    fn directory(&self, place: &Place<'_>) -> Result<(), Failed> {
        let Place { path, own, .. } = *place;
        let before = own.getattr(&self.cx).at("read the attributes", path)?;
        let mut changed = false;
        for (name, kind) in if_readable(list(&self.cx, own).at("list", path))?.unwrap_or_default() {
            let shown = match Record::of(&name) {
                Record::Entry => &name,
                Record::Whiteout(hidden) | Record::Metacopy(hidden) => hidden,
                Record::LongWhiteout => &[],
                Record::Opaque | Record::Redirect | Record::Other => continue,
            };
            let inner = join(path, shown);
            if !self.selection.reaches(&inner) {
                continue;
            }
            // What this user may not compare remains.
            changed |= if_readable(self.record(place, &inner, (&name, kind)))?.unwrap_or(false);
        }
        if changed {
            set_times(&self.cx, own, &before).at("set the times", path)?;
        }
        Ok(())
    }

    /// Prunes one entry of a directory. Returns whether the directory has changed.
    fn record(&self, place: &Place<'_>, inner: &[u8], (name, kind): (&[u8], Kind)) -> Result<bool, Failed> {
        match Record::of(name) {
            Record::Entry if kind == Kind::Directory => self.subdirectory(place, inner, name),
            _ if !self.selection.covers(inner) => Ok(false),
            Record::Entry => self.file(place, inner, name),
            Record::Metacopy(of) => self.metacopy(place, inner, (name, of)),
            Record::Whiteout(hidden) => self.whiteout(place, inner, (name, Some(hidden))),
            Record::LongWhiteout => self.whiteout(place, place.path, (name, None)),
            Record::Opaque | Record::Redirect | Record::Other => Ok(false),
        }
    }

    fn pair(&self, place: &Place<'_>, name: &[u8], path: &[u8]) -> Result<(Option<Entry>, Option<Entry>), Failed> {
        let now = lookup(&self.cx, place.all, name).at("look up", path)?;
        Ok((now, lookup(&self.cx, place.below, name).at("look up", path)?))
    }

    fn remove(&self, dir: &Arc<dyn Vnode>, name: &[u8], path: &[u8]) -> Result<bool, Failed> {
        Name::new(name).and_then(|name| dir.unlink(&self.cx, name)).at("remove from the upper branch", path)?;
        Ok(true)
    }

    fn file(&self, place: &Place<'_>, path: &[u8], name: &[u8]) -> Result<bool, Failed> {
        let (Some(now), Some(below)) = self.pair(place, name, path)? else { return Ok(false) };
        if is_dir(&below.vnode) || !differ(&self.cx, &self.views, &now, &below).at("compare", path)?.none() {
            return Ok(false);
        }
        if let Some(removable) = &self.check {
            removable.borrow_mut().insert(path.to_vec());
            return Ok(false);
        }
        if self.keep.contains(path) {
            return Ok(false);
        }
        // Beside the file it has no effect; without the file it would hide the one below.
        let whiteout = whiteout_name(name);
        if lookup(&self.cx, place.own, &whiteout).at("look up a whiteout", path)?.is_some() {
            remove_tree(&self.cx, place.own, &whiteout).at("remove a whiteout", path)?;
        }
        self.remove(place.own, name, path)
    }

    fn metacopy(&self, place: &Place<'_>, path: &[u8], (name, of): (&[u8], &[u8])) -> Result<bool, Failed> {
        let same = match self.pair(place, of, path)? {
            (Some(now), Some(below)) if !is_dir(&below.vnode) => {
                differ(&self.cx, &self.views, &now, &below).at("compare", path)?.none()
            }
            (None, None) => true,
            _ => false,
        };
        if same && self.check.is_none() { self.remove(place.own, name, path) } else { Ok(false) }
    }

    /// Removes a whiteout that hides nothing. `hidden`: the name, unless it is a long one.
    fn whiteout(&self, place: &Place<'_>, path: &[u8], (name, hidden): (&[u8], Option<&[u8]>)) -> Result<bool, Failed> {
        let hides = match hidden {
            Some(hidden) => lookup(&self.cx, place.below, hidden).at("look up", path)?.is_some(),
            None => {
                let names = list(&self.cx, place.below).at("list", path)?;
                names.iter().any(|(below, _)| whiteout_name(below) == name)
            }
        };
        // It may also have been removed with its file.
        if hides || self.check.is_some() || lookup(&self.cx, place.own, name).at("look up a whiteout", path)?.is_none()
        {
            return Ok(false);
        }
        remove_tree(&self.cx, place.own, name).at("remove a whiteout", path)?;
        Ok(true)
    }

    /// Prunes a directory, and removes it if nothing remains. Returns whether the directory that
    /// contains it has changed.
    fn subdirectory(&self, place: &Place<'_>, path: &[u8], name: &[u8]) -> Result<bool, Failed> {
        let (Some(now), Some(below)) = self.pair(place, name, path)? else { return Ok(false) };
        let own = lookup(&self.cx, place.own, name).at("look up", path)?;
        let Some(own) = own.filter(|own| is_dir(&own.vnode)) else { return Ok(false) };
        if !is_dir(&now.vnode) || !is_dir(&below.vnode) {
            return Ok(false);
        }
        let mut changed = false;
        let mut all = now.vnode;
        if !merges(&self.views, &all, &below.vnode).at("compare", path)? {
            let alone = self.views.all.parts(&all).at("look up", path)?.len() == 1;
            if !alone || !self.selection.covers(path) || !self.may_merge(path, &own.vnode, &all, &below.vnode)? {
                return Ok(false);
            }
            if self.check.is_some() {
                self.directory(&Place { path, own: &own.vnode, all: &all, below: &below.vnode })?;
                return Ok(false);
            }
            changed = self.start_merging(place, path, name, &own.vnode)?;
            let again = lookup(&self.cx, place.all, name).at("look up", path)?;
            let Some(again) = again.filter(|again| is_dir(&again.vnode)) else { return Ok(changed) };
            all = again.vnode;
        }
        let inner = Place { path, own: &own.vnode, all: &all, below: &below.vnode };
        self.directory(&inner)?;
        if self.check.is_some() {
            return Ok(false);
        }
        let Some(left) = if_readable(list(&self.cx, &own.vnode).at("list", path))? else { return Ok(changed) };
        if left.iter().any(|(name, _)| Record::of(name) != Record::Redirect) {
            return Ok(changed);
        }
        let (Some(now), Some(below)) = self.pair(place, name, path)? else { return Ok(changed) };
        if !differ(&self.cx, &self.views, &now, &below).at("compare", path)?.none() {
            return Ok(changed);
        }
        for (redirect, _) in left {
            // It leads to the directory of the same path.
            remove_tree(&self.cx, &own.vnode, &redirect).at("remove a redirect", path)?;
        }
        self.move_times(path, &now, &below)?;
        Name::new(name).and_then(|name| place.own.rmdir(&self.cx, name)).at("remove from the upper branch", path)?;
        Ok(true)
    }

    /// Gives the target's part of a directory the times that users see.
    fn move_times(&self, path: &[u8], now: &Entry, below: &Entry) -> Result<(), Failed> {
        if !self.moves_times || now.attr.mtime == below.attr.mtime {
            return Ok(());
        }
        let part = self.views.below.parts(&below.vnode).at("look up", path)?.into_iter().find(|(at, _)| *at == 0);
        if let Some((_, part)) = part
            && let Err(errno) = set_times(&self.cx, &part, &now.attr)
        {
            // Only the owner of a directory may set its times.
            tracing::debug!(path = %path.escape_ascii(), %errno, "could not set the times of a directory");
        }
        Ok(())
    }

    /// Whether a directory that merges nothing shows the same if it merges the one below: it has
    /// all names that exist there.
    fn may_merge(
        &self,
        path: &[u8],
        own: &Arc<dyn Vnode>,
        all: &Arc<dyn Vnode>,
        below: &Arc<dyn Vnode>,
    ) -> Result<bool, Failed> {
        let names = |dir: &Arc<dyn Vnode>| -> Result<BTreeSet<Vec<u8>>, Failed> {
            Ok(list(&self.cx, dir).at("list", path)?.into_iter().map(|(name, _)| name).collect())
        };
        let (shown, lower) = (names(all)?, names(below)?);
        if !lower.is_subset(&shown) {
            return Ok(false);
        }
        for name in &lower {
            let inner = join(path, name);
            let find = |dir: &Arc<dyn Vnode>| lookup(&self.cx, dir, name).at("look up", &inner);
            let (Some(own), Some(all), Some(below)) = (find(own)?, find(all)?, find(below)?) else { return Ok(false) };
            let dirs = [&own, &all, &below].map(|entry| is_dir(&entry.vnode));
            match dirs {
                [true, true, true] if !self.may_merge(&inner, &own.vnode, &all.vnode, &below.vnode)? => {
                    return Ok(false);
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// Removes what keeps a directory from merging the one below: a whiteout beside it, a
    /// redirect, and opaque marks. Returns whether the directory that contains it has changed.
    fn start_merging(&self, place: &Place<'_>, path: &[u8], name: &[u8], own: &Arc<dyn Vnode>) -> Result<bool, Failed> {
        let whiteout = whiteout_name(name);
        let beside = lookup(&self.cx, place.own, &whiteout).at("look up a whiteout", path)?.is_some();
        if beside {
            remove_tree(&self.cx, place.own, &whiteout).at("remove a whiteout", path)?;
        }
        let before = own.getattr(&self.cx).at("read the attributes", path)?;
        // An opaque mark beats a redirect, so the redirect goes first.
        for kind in [Record::Redirect, Record::Opaque] {
            for (mark, _) in list(&self.cx, own).at("list", path)? {
                if Record::of(&mark) == kind {
                    remove_tree(&self.cx, own, &mark).at("remove a mark", path)?;
                }
            }
        }
        set_times(&self.cx, own, &before).at("set the times", path)?;
        Ok(beside)
    }
}
