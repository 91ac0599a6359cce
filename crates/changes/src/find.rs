//! Finds the changes: walks the directories of the upper branch, and compares the union of all
//! branches with that of the branches below.

use crate::branches::{Branches, Views, cx};
use crate::change::{Change, ChangeKind, Facts};
use crate::compare::{Difference, compare};
use crate::error::{At, Error, Failed, if_readable};
use crate::ops::{components, is_dir, is_within, join, list, lookup, resolve_dir};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use unionfs::offline::{LINK_INDEX, Record, View};
use vnode::{Cx, Entry, Errno, Kind, Name, Vnode};

/// Maximum depth of the parent chain of an object.
const DEEPEST: usize = 1 << 12;

/// The result of [`find`].
#[derive(Default)]
pub(crate) struct Found {
    /// Sorted by path.
    pub(crate) changes: Vec<Change>,
    /// The paths of each file with several names, changed or not.
    pub(crate) groups: Vec<Vec<Vec<u8>>>,
    /// Names that lead to a file of the upper branch by the index of hard links only.
    pub(crate) indexed: Vec<Vec<u8>>,
    /// Files that the upper branch has, and that are the same below.
    pub(crate) unchanged: Vec<Vec<u8>>,
    /// Directories that the upper branch has a part of, and shows with another modification time.
    pub(crate) times: Vec<Vec<u8>>,
    /// What this user may not read. Changes there are not known.
    pub(crate) unreadable: Vec<Failed>,
}

impl Branches {
    /// Returns the changes, sorted by path, as far as this user may read the branches.
    ///
    /// # Errors
    /// The branches can't be used or read.
    pub fn changes(&self) -> Result<Vec<Change>, Error> {
        Ok(self.find(&self.views()?)?.changes)
    }

    /// As [`Self::changes`], with what this user may not read.
    ///
    /// # Errors
    /// The branches can't be used or read.
    pub fn readable_changes(&self) -> Result<(Vec<Change>, Vec<Failed>), Error> {
        let found = self.find(&self.views()?)?;
        Ok((found.changes, found.unreadable))
    }

    pub(crate) fn find(&self, views: &Views) -> Result<Found, Error> {
        Ok(find(&cx(), views, &self.upper_root())?)
    }
}

/// Returns the changes of the upper branch, whose root is `upper`.
fn find(cx: &Cx<'_>, views: &Views, upper: &Arc<dyn Vnode>) -> Result<Found, Failed> {
    let mut finder = Finder::new(cx, views);
    let (all, below) = (views.all.root(), views.below.root());
    finder.directory(b"", &all, Some(&below))?;
    finder.indexed(upper)?;
    Ok(finder.finish())
}

/// Whether a directory of the view of all branches merges the same lower directories as one below,
/// apart from its part on the upper branch.
pub(crate) fn merges(views: &Views, dir: &Arc<dyn Vnode>, below: &Arc<dyn Vnode>) -> vnode::Result<bool> {
    let mut parts = views.all.parts(dir)?;
    parts.retain(|(at, _)| *at > 0);
    let lower = views.below.parts(below)?;
    let same = parts.iter().zip(&lower).all(|((a, one), (b, other))| *a == *b + 1 && one.id() == other.id());
    Ok(parts.len() == lower.len() && same)
}

/// Returns the part of a directory on the upper branch.
pub(crate) fn upper_part(views: &Views, dir: &Arc<dyn Vnode>) -> vnode::Result<Option<Arc<dyn Vnode>>> {
    Ok(views.all.parts(dir)?.into_iter().find(|(at, _)| *at == 0).map(|(_, part)| part))
}

/// Compares an object of the view of all branches with one below.
pub(crate) fn differ(cx: &Cx<'_>, views: &Views, one: &Entry, below: &Entry) -> vnode::Result<Difference> {
    let same_data = one.attr.kind() == Kind::Regular && below.attr.kind() == Kind::Regular && {
        let ((a, one), (b, other)) = (views.all.lower(&one.vnode)?, views.below.lower(&below.vnode)?);
        a == b + 1 && one.id() == other.id()
    };
    compare(cx, one, below, same_data)
}

/// Returns the paths of the object with this number in the view of all branches.
pub(crate) fn paths_of_number(cx: &Cx<'_>, views: &Views, number: u64) -> Result<Vec<Vec<u8>>, Failed> {
    const STEP: &str = "find the names of a file";
    // A directory that this user may not read shows them no names.
    let vnode = match views.all.by_number(cx, number) {
        Err(Errno::STALE | Errno::NOENT | Errno::ACCESS) => return Ok(Vec::new()),
        other => other.at(STEP, b"")?,
    };
    let mut names = Vec::new();
    let mut sink = |dir: &Arc<dyn Vnode>, name: Name<'_>| {
        names.push((Arc::clone(dir), name.as_bytes().to_vec()));
        true
    };
    match vnode.names(cx, &mut sink) {
        Err(Errno::STALE | Errno::NOENT | Errno::ACCESS) => {}
        other => other.at(STEP, b"")?,
    }
    let mut paths = Vec::new();
    for (dir, name) in names {
        match path_of(cx, views, dir) {
            Ok(dir) => paths.push(join(&dir, &name)),
            // The directory is visible nowhere.
            Err(Errno::STALE | Errno::NOENT) => {}
            Err(errno) => return Err(errno).at(STEP, &name),
        }
    }
    Ok(paths)
}

/// Whether no name leads to the object with this number in a view, also not one in a directory that
/// this user may not read.
pub(crate) fn has_no_name(cx: &Cx<'_>, view: &View, number: u64) -> Result<bool, Failed> {
    let mut is_named = false;
    let found = view.by_number(cx, number).and_then(|vnode| {
        vnode.names(cx, &mut |_, _| {
            is_named = true;
            false
        })
    });
    match found {
        Ok(()) => Ok(!is_named),
        Err(Errno::STALE | Errno::NOENT) => Ok(true),
        Err(Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno).at("find the names of a file", b""),
    }
}

/// Returns what this user may not read in a directory of the view of all branches, if there is
/// such a thing.
pub(crate) fn unreadable_within(cx: &Cx<'_>, path: &[u8], dir: &Arc<dyn Vnode>) -> Result<Option<Failed>, Failed> {
    let listed = list(cx, dir).at("list", path);
    let names = match listed {
        Err(failed) if failed.errno == Errno::ACCESS => return Ok(Some(failed)),
        listed => listed?,
    };
    for (name, kind) in names {
        let inner = join(path, &name);
        let found = match lookup(cx, dir, &name).at("look up", &inner) {
            Err(failed) if failed.errno == Errno::ACCESS => return Ok(Some(failed)),
            found => found?,
        };
        if let Some(found) = found.filter(|_| kind == Kind::Directory)
            && let Some(failed) = unreadable_within(cx, &inner, &found.vnode)?
        {
            return Ok(Some(failed));
        }
    }
    Ok(None)
}

/// Returns the path of a directory of the view of all branches.
fn path_of(cx: &Cx<'_>, views: &Views, mut dir: Arc<dyn Vnode>) -> vnode::Result<Vec<u8>> {
    let root = views.all.root();
    let mut path = Vec::new();
    for _ in 0..DEEPEST {
        if dir.id() == root.id() {
            return Ok(path);
        }
        let mut up = None;
        dir.names(cx, &mut |parent, name: Name<'_>| {
            up = Some((Arc::clone(parent), name.as_bytes().to_vec()));
            false
        })?;
        let (parent, name) = up.ok_or(Errno::STALE)?;
        path = if path.is_empty() { name } else { join(&name, &path) };
        dir = parent;
    }
    Err(Errno::LOOP)
}

/// A name of a file with several names.
struct Linked {
    path: Vec<u8>,
    now: Facts,
    /// The object below with this name: the position of its branch, its number, and the number of
    /// its names there.
    below: Option<(usize, u64, u32)>,
    before: Option<Facts>,
    changed: bool,
    /// The link count in the union.
    nlink: u32,
}

/// Whether unchanged names of a file have to be created again below, so that all names lead to one
/// file there.
fn needs_relinking(group: &[Linked]) -> bool {
    let kept: Vec<_> = group.iter().filter(|name| !name.changed).map(|name| name.below).collect();
    let Some(Some((at, number, names))) = kept.first().copied() else { return false };
    if group.len() == 1 {
        // It was linked to others, and no longer is.
        return names > 1 && group.iter().all(|name| name.nlink == 1);
    }
    let same = kept.iter().all(|below| below.is_some_and(|(a, n, _)| (a, n) == (at, number)));
    let alone = usize::try_from(names).is_ok_and(|names| names == kept.len());
    // Changed names can only be linked to a file of the target.
    !same || (kept.len() < group.len() && (at > 0 || !alone))
}

struct Finder<'a> {
    cx: &'a Cx<'a>,
    views: &'a Views,
    changes: Vec<Change>,
    /// Paths of files that were compared.
    seen: HashSet<Vec<u8>>,
    /// Files with several names, by number.
    groups: HashMap<u64, Vec<Linked>>,
    indexed: Vec<Vec<u8>>,
    unchanged: Vec<Vec<u8>>,
    times: Vec<Vec<u8>>,
    unreadable: Vec<Failed>,
    /// Lower objects of added files, by position and number, with the index of the change.
    added: HashMap<(usize, u64), Vec<usize>>,
    /// Lower objects of removed files.
    removed: HashMap<(usize, u64), Vec<usize>>,
}

impl<'a> Finder<'a> {
    fn new(cx: &'a Cx<'a>, views: &'a Views) -> Self {
        Self {
            cx,
            views,
            changes: Vec::new(),
            seen: HashSet::new(),
            groups: HashMap::new(),
            indexed: Vec::new(),
            unchanged: Vec::new(),
            times: Vec::new(),
            unreadable: Vec::new(),
            added: HashMap::new(),
            removed: HashMap::new(),
        }
    }

    /// Compares the entries of a directory with those of `below`.
    fn directory(&mut self, path: &[u8], dir: &Arc<dyn Vnode>, below: Option<&Arc<dyn Vnode>>) -> Result<(), Failed> {
        let merging = below.map(|below| merges(self.views, dir, below)).transpose().at("compare", path)?;
        let part = upper_part(self.views, dir).at("compare", path)?;
        let merging = merging == Some(true);
        if merging && part.is_none() {
            return Ok(());
        }
        let names = self.names(path, (dir, below), part.filter(|_| merging || below.is_none()).as_ref(), merging);
        let names = self.unless_unreadable(names)?.unwrap_or_default();
        let usable = self.is_usable(dir, &names).at("read what is in it", path);
        if self.unless_unreadable(usable)?.is_none() {
            return Ok(());
        }
        for name in names {
            let compared = self.entry(path, &name, dir, below);
            self.unless_unreadable(compared)?;
        }
        Ok(())
    }

    /// Fails with `EACCES` if this user may not search the directory: its entries can be listed and
    /// looked up, perhaps, but not used.
    fn is_usable(&self, dir: &Arc<dyn Vnode>, names: &BTreeSet<Vec<u8>>) -> vnode::Result<()> {
        for name in names {
            match lookup(self.cx, dir, name) {
                Ok(Some(entry)) => return entry.vnode.getattr(self.cx).map(drop),
                // This may be about the entry.
                Ok(None) | Err(Errno::ACCESS) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Notes what this user may not read.
    fn unless_unreadable<T>(&mut self, result: Result<T, Failed>) -> Result<Option<T>, Failed> {
        if let Err(failed) = &result
            && failed.errno == Errno::ACCESS
        {
            self.unreadable.push(failed.clone());
        }
        if_readable(result)
    }

    /// Returns the names in a directory that are to be compared. `part`: its part on the upper
    /// branch, if that has records.
    fn names(
        &self,
        path: &[u8],
        (dir, below): (&Arc<dyn Vnode>, Option<&Arc<dyn Vnode>>),
        part: Option<&Arc<dyn Vnode>>,
        merging: bool,
    ) -> Result<BTreeSet<Vec<u8>>, Failed> {
        let mut names = BTreeSet::new();
        if let Some(part) = part {
            self.recorded(path, part, below, &mut names)?;
        }
        if !merging {
            for dir in [Some(dir), below].into_iter().flatten() {
                names.extend(list(self.cx, dir).at("list", path)?.into_iter().map(|(name, _)| name));
            }
        }
        Ok(names)
    }

    /// Collects the names for which the upper branch has a record.
    fn recorded(
        &self,
        path: &[u8],
        part: &Arc<dyn Vnode>,
        below: Option<&Arc<dyn Vnode>>,
        names: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), Failed> {
        let mut long = false;
        for (name, _) in list(self.cx, part).at("list", path)? {
            match Record::of(&name) {
                Record::Entry => drop(names.insert(name)),
                Record::Whiteout(hidden) | Record::Metacopy(hidden) => drop(names.insert(hidden.to_vec())),
                Record::LongWhiteout => long = true,
                Record::Opaque | Record::Redirect | Record::Other => {}
            }
        }
        // The whiteout does not contain the name.
        if let Some(below) = below.filter(|_| long) {
            names.extend(list(self.cx, below).at("list", path)?.into_iter().map(|(name, _)| name));
        }
        Ok(())
    }

    fn entry(
        &mut self,
        dir_path: &[u8],
        name: &[u8],
        dir: &Arc<dyn Vnode>,
        below: Option<&Arc<dyn Vnode>>,
    ) -> Result<(), Failed> {
        let path = join(dir_path, name);
        let now = lookup(self.cx, dir, name).at("look up", &path)?;
        let before = match below {
            Some(below) => lookup(self.cx, below, name).at("look up", &path)?,
            None => None,
        };
        match (now, before) {
            (None, None) => Ok(()),
            (None, Some(before)) => self.removed(path, &before),
            (Some(now), before) if is_dir(&now.vnode) => self.present_dir(&path, dir, &now, before),
            (Some(now), before) => self.present_file(path, &now, before.as_ref()),
        }
    }

    fn push(&mut self, path: Vec<u8>, kind: ChangeKind, before: Option<&Entry>, now: Option<&Entry>, content: bool) {
        let facts = |entry: &Entry| Facts::of(&entry.attr);
        let (before, after) = (before.map(facts), now.map(facts));
        self.changes.push(Change { path, kind, from: None, before, after, content });
    }

    fn removed(&mut self, path: Vec<u8>, before: &Entry) -> Result<(), Failed> {
        if !is_dir(&before.vnode) {
            let (at, lower) = self.views.below.lower(&before.vnode).at("compare", &path)?;
            self.removed.entry((at + 1, lower.id())).or_default().push(self.changes.len());
        }
        self.push(path, ChangeKind::Removed, Some(before), None, true);
        Ok(())
    }

    fn present_dir(
        &mut self,
        path: &[u8],
        parent: &Arc<dyn Vnode>,
        now: &Entry,
        before: Option<Entry>,
    ) -> Result<(), Failed> {
        if let Some((from, origin)) = self.moved_from(path, parent, now)? {
            if before.is_some() {
                self.push(path.to_vec(), ChangeKind::Removed, before.as_ref(), None, true);
            }
            let difference = differ(self.cx, self.views, now, &origin).at("compare", path)?;
            self.push(path.to_vec(), ChangeKind::Renamed, Some(&origin), Some(now), difference.attributes);
            if let Some(change) = self.changes.last_mut() {
                change.from = Some(from);
            }
            return self.directory(path, &now.vnode, Some(&origin.vnode));
        }
        let Some(before) = before else {
            self.push(path.to_vec(), ChangeKind::Added, None, Some(now), true);
            return self.directory(path, &now.vnode, None);
        };
        if !is_dir(&before.vnode) {
            self.push(path.to_vec(), ChangeKind::Changed, Some(&before), Some(now), true);
            return self.directory(path, &now.vnode, None);
        }
        if differ(self.cx, self.views, now, &before).at("compare", path)?.attributes {
            self.push(path.to_vec(), ChangeKind::Attributes, Some(&before), Some(now), false);
        }
        if now.attr.mtime != before.attr.mtime && upper_part(self.views, &now.vnode).at("compare", path)?.is_some() {
            self.times.push(path.to_vec());
        }
        self.directory(path, &now.vnode, Some(&before.vnode))
    }

    /// Returns the path below of a renamed directory, and the directory there.
    fn moved_from(
        &self,
        path: &[u8],
        parent: &Arc<dyn Vnode>,
        now: &Entry,
    ) -> Result<Option<(Vec<u8>, Entry)>, Failed> {
        let Some(name) = components(path).last() else { return Ok(None) };
        let redirect = name.and_then(|name| self.views.all.redirect(self.cx, parent, name)).at("compare", path)?;
        let Some(from) = redirect.map(|from| from.strip_prefix(b"/").unwrap_or(&from).to_vec()) else {
            return Ok(None);
        };
        if from == path {
            return Ok(None);
        }
        let origin = resolve_dir(self.cx, &self.views.below.root(), &from).at("look up", &from)?;
        let Some(origin) = origin else { return Ok(None) };
        if !merges(self.views, &now.vnode, &origin).at("compare", path)? {
            return Ok(None);
        }
        let attr = origin.getattr(self.cx).at("read the attributes", &from)?;
        Ok(Some((from, Entry { vnode: origin, attr })))
    }

    fn present_file(&mut self, path: Vec<u8>, now: &Entry, before: Option<&Entry>) -> Result<(), Failed> {
        self.seen.insert(path.clone());
        let Some(before) = before else {
            if let Some(origin) = self.views.all.origin(&now.vnode).at("compare", &path)?
                && origin.0 > 0
            {
                self.added.entry(origin).or_default().push(self.changes.len());
            }
            self.group(&path, now, None, true)?;
            self.push(path, ChangeKind::Added, None, Some(now), true);
            return Ok(());
        };
        let Difference { content, attributes } = differ(self.cx, self.views, now, before).at("compare", &path)?;
        self.group(&path, now, Some(before), content || attributes)?;
        if content {
            self.push(path, ChangeKind::Changed, Some(before), Some(now), true);
        } else if attributes {
            self.push(path, ChangeKind::Attributes, Some(before), Some(now), false);
        } else {
            self.unchanged.push(path);
        }
        Ok(())
    }

    /// Notes a name of a file with several names.
    fn group(&mut self, path: &[u8], now: &Entry, before: Option<&Entry>, changed: bool) -> Result<(), Failed> {
        // Link counts may be wrong after a crash, so they don't matter here.
        let before = before.filter(|before| !is_dir(&before.vnode));
        let below = before
            .map(|before| -> vnode::Result<_> {
                let (at, lower) = self.views.below.lower(&before.vnode)?;
                Ok((at, lower.id(), lower.getattr(self.cx)?.nlink))
            })
            .transpose()
            .at("compare", path)?;
        let (number, nlink) = (now.attr.ino, now.attr.nlink);
        let (path, now, before) = (path.to_vec(), Facts::of(&now.attr), before.map(|before| Facts::of(&before.attr)));
        self.groups.entry(number).or_default().push(Linked { path, now, below, before, changed, nlink });
        Ok(())
    }

    /// Compares the names of files that lead to a copy in the index of hard links: the upper branch
    /// has no record of these names.
    fn indexed(&mut self, upper: &Arc<dyn Vnode>) -> Result<(), Failed> {
        let index = lookup(self.cx, upper, LINK_INDEX).at("look up the index of hard links", b"")?;
        let Some(index) = index.filter(|entry| is_dir(&entry.vnode)) else { return Ok(()) };
        for (name, _) in list(self.cx, &index.vnode).at("list the index of hard links", b"")? {
            let Some(number) = self.views.all.indexed_number(&name) else { continue };
            for path in paths_of_number(self.cx, self.views, number)? {
                if !self.seen.contains(&path) {
                    self.unrecorded(&path)?;
                }
            }
        }
        Ok(())
    }

    fn unrecorded(&mut self, path: &[u8]) -> Result<(), Failed> {
        let find = |root: &Arc<dyn Vnode>, path: &[u8]| -> vnode::Result<Option<Entry>> {
            let Some(vnode) = crate::ops::resolve(self.cx, root, path)? else { return Ok(None) };
            let attr = vnode.getattr(self.cx)?;
            Ok(Some(Entry { vnode, attr }))
        };
        let now = find(&self.views.all.root(), path).at("look up", path)?;
        let before = find(&self.views.below.root(), &self.path_below(path)).at("look up", path)?;
        match now {
            Some(now) if !is_dir(&now.vnode) => {
                self.indexed.push(path.to_vec());
                self.present_file(path.to_vec(), &now, before.as_ref())
            }
            _ => Ok(()),
        }
    }

    /// Returns the path below of a path in the union: another one in a renamed directory.
    fn path_below(&self, path: &[u8]) -> Vec<u8> {
        let renamed = self.changes.iter().filter(|change| change.moves_dir() && is_within(path, &change.path));
        let nearest = renamed.max_by_key(|change| change.path.len());
        match nearest.and_then(|change| Some((change.from.as_ref()?, path.get(change.path.len()..)?))) {
            Some((from, rest)) => [from, rest].concat(),
            None => path.to_vec(),
        }
    }

    fn finish(mut self) -> Found {
        let mut gone = HashSet::new();
        // A file that was copied up and renamed has the number of the original.
        for (origin, added) in &self.added {
            let ([added], Some([removed])) = (&**added, self.removed.get(origin).map(Vec::as_slice)) else { continue };
            let Some(before) = self.changes.get(*removed).cloned() else { continue };
            if let Some(change) = self.changes.get_mut(*added) {
                change.kind = ChangeKind::Renamed;
                change.from = Some(before.path);
                change.content = change.after.map(|facts| facts.size) != before.before.map(|facts| facts.size)
                    || change.after.map(|facts| facts.mtime) != before.before.map(|facts| facts.mtime);
                change.before = before.before;
                gone.insert(*removed);
            }
        }
        let moved: Vec<Vec<u8>> =
            self.changes.iter().filter(|c| c.moves_dir()).filter_map(|c| c.from.clone()).collect();
        let is_moved = |change: &Change| {
            change.kind == ChangeKind::Removed && moved.iter().any(|from| is_within(&change.path, from))
        };
        let changes = self.changes.into_iter().enumerate().filter(|(at, _)| !gone.contains(at));
        let mut changes: Vec<_> = changes.map(|(_, change)| change).filter(|change| !is_moved(change)).collect();
        for group in self.groups.values().filter(|group| needs_relinking(group)) {
            changes.extend(group.iter().filter(|name| !name.changed).map(|name| Change {
                path: name.path.clone(),
                kind: ChangeKind::Attributes,
                from: None,
                before: name.before,
                after: Some(name.now),
                content: false,
            }));
        }
        let paths = |group: Vec<Linked>| group.into_iter().map(|name| name.path).collect();
        changes.sort_by(|one, other| one.path.cmp(&other.path).then(order(one.kind).cmp(&order(other.kind))));
        Found {
            times: self.times,
            unreadable: self.unreadable,
            indexed: self.indexed,
            unchanged: self.unchanged,
            changes,
            groups: self.groups.into_values().filter(|group| group.len() > 1).map(paths).collect(),
        }
    }
}

/// A path that was removed and used again is listed as removed first.
fn order(kind: ChangeKind) -> u8 {
    u8::from(kind != ChangeKind::Removed)
}
