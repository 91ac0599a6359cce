//! Applies changes to the target branch. The upper branch hides every path that changes here.

use crate::branches::{Branches, Floor, Views, cx};
use crate::change::{Change, ChangeKind};
use crate::copy::{build, copy_attributes};
use crate::error::{At, Error, Failed, Step, StepFailed, if_readable};
use crate::find::upper_part;
use crate::ops::{is_dir, lookup, remove_tree, resolve, resolve_dir, set_times, split};
use crate::temp::Temp;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use unionfs::offline::{KnownAs, OPAQUE_MARK, Record, whiteout_name};
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, RenameFlags, SetAttr, Vnode};

/// The rights of the owner to use a directory.
const USABLE: u32 = 0o700;

/// The target of a commit.
pub(crate) struct Target<'a> {
    branches: &'a Branches,
    views: &'a Views,
    root: Arc<dyn Vnode>,
    cx: Cx<'static>,
    /// Files that were copied, by their number in the union.
    copied: HashMap<u64, Arc<dyn Vnode>>,
    /// What other branches know these files by.
    known: BTreeMap<u64, KnownAs>,
    /// The paths of the files with several names.
    groups: &'a [Vec<Vec<u8>>],
    /// New directories that are not for this user to use, with their modes: until the end, it can
    /// create entries in them.
    opened: BTreeMap<Vec<u8>, (Arc<dyn Vnode>, u32)>,
    /// The directories in which entries changed, with their attributes before.
    touched: BTreeMap<Vec<u8>, (Arc<dyn Vnode>, Attr)>,
}

impl<'a> Target<'a> {
    pub(crate) fn new(branches: &'a Branches, views: &'a Views, groups: &'a [Vec<Vec<u8>>]) -> Result<Self, Error> {
        let root = branches.target_root()?;
        Ok(Self {
            branches,
            views,
            root,
            cx: cx(),
            copied: HashMap::new(),
            known: BTreeMap::new(),
            groups,
            opened: BTreeMap::new(),
            touched: BTreeMap::new(),
        })
    }

    /// Applies a change.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), Failed> {
        let path = &change.path;
        if change.kind == ChangeKind::Removed {
            return self.remove(path);
        }
        let now = self.object(path)?;
        match change.kind {
            ChangeKind::Attributes => self.attributes(path, &now)?,
            _ if is_dir(&now.vnode) => drop(self.directory(path)?),
            _ => self.file(path, &now)?,
        }
        match &change.from {
            Some(from) if change.kind == ChangeKind::Renamed => self.remove(from),
            _ => Ok(()),
        }
    }

    /// Returns the object at a path of the union.
    fn object(&self, path: &[u8]) -> Result<Entry, Failed> {
        let vnode = resolve(&self.cx, &self.views.all.root(), path).at("look up", path)?;
        let vnode = vnode.ok_or(Errno::NOENT).at("look up", path)?;
        let attr = vnode.getattr(&self.cx).at("read the attributes", path)?;
        Ok(Entry { vnode, attr })
    }

    /// Notes that entries of a directory of the target change.
    fn touch(&mut self, path: &[u8], dir: &Arc<dyn Vnode>) -> Result<(), Failed> {
        if !self.touched.contains_key(path) {
            let attr = dir.getattr(&self.cx).at("read the attributes", path)?;
            self.touched.insert(path.to_vec(), (Arc::clone(dir), attr));
        }
        Ok(())
    }

    /// Returns the target's part of a directory of the union. Creates it if it is missing, with the
    /// attributes that the branches below the upper one show, or else those of the union.
    pub(crate) fn directory(&mut self, path: &[u8]) -> Result<Arc<dyn Vnode>, Failed> {
        if path.is_empty() {
            return Ok(Arc::clone(&self.root));
        }
        let (parent_path, name) = split(path);
        let parent = self.directory(parent_path)?;
        let present = lookup(&self.cx, &parent, name).at("look up", path)?;
        if let Some(present) = present.as_ref().filter(|present| is_dir(&present.vnode)) {
            return Ok(Arc::clone(&present.vnode));
        }
        let below = resolve_dir(&self.cx, &self.views.below.root(), path).at("look up", path)?;
        let (from, known) = match below {
            Some(vnode) => {
                let attr = vnode.getattr(&self.cx).at("read the attributes", path)?;
                (Entry { vnode, attr }, true)
            }
            None => (self.object(path)?, false),
        };
        self.touch(parent_path, &parent)?;
        let whiteout = self.has_whiteout(&parent, name).at("look up a whiteout", path)?;
        let ends = !known && (whiteout || self.shows_through(path)? || self.is_new_above_unknown(path)?);
        // Between the removal of the file and the rename of the directory, the upper branch's
        // directory would merge what the file has hidden.
        let covers = present.is_some() && ends;
        if covers {
            self.mark(&parent, &whiteout_name(name)).at("create a whiteout", path)?;
        }
        let mode = from.attr.perm();
        let from = Entry { attr: Attr { mode: from.attr.mode | USABLE, ..from.attr }, ..from };
        let made = self.make_directory(&parent, name, &from, present.is_some(), ends).map_err(|e| e.at(path))?;
        if mode & USABLE != USABLE {
            self.opened.insert(path.to_vec(), (Arc::clone(&made), mode));
        }
        if whiteout || covers {
            self.drop_whiteout(&parent, name).at("remove a whiteout", path)?;
        }
        Ok(made)
    }

    /// Whether the branches right of the target would show something at a path without the target's
    /// entry.
    fn shows_through(&self, path: &[u8]) -> Result<bool, Failed> {
        let (parent, name) = split(path);
        let below = resolve_dir(&self.cx, &self.views.below.root(), parent).at("look up", parent)?;
        match (below, Name::new(name)) {
            (Some(dir), Ok(name)) => self.views.below.shows_through(&self.cx, &dir, name).at("look up", path),
            _ => Ok(false),
        }
    }

    /// Creates the target's part of a directory whose time changed.
    pub(crate) fn take_times(&mut self, path: &[u8]) -> Result<(), Failed> {
        let dir = self.directory(path)?;
        self.touch(path, &dir)
    }

    fn make_directory(
        &self,
        parent: &Arc<dyn Vnode>,
        name: &[u8],
        from: &Entry,
        replaces: bool,
        opaque: bool,
    ) -> Result<Arc<dyn Vnode>, StepFailed> {
        let (temp, made) = build(&self.cx, parent, from)?;
        let publish = || -> Result<(), StepFailed> {
            if opaque {
                self.mark(&made.vnode, OPAQUE_MARK).step("create an opaque mark")?;
                set_times(&self.cx, &made.vnode, &from.attr).step("set the times")?;
            }
            let name = Name::new(name).step("create the directory")?;
            if replaces {
                parent.unlink(&self.cx, name).step("remove the file")?;
            }
            let flags = RenameFlags::default();
            parent.rename(&self.cx, temp.name().step("rename")?, parent, name, flags).step("rename the new directory")
        };
        if let Err(failed) = publish() {
            let _removed = remove_tree(&self.cx, parent, temp.bytes());
            return Err(failed);
        }
        Ok(made.vnode)
    }

    /// Whether a directory, which does not exist below, may hide one of the branches that are not
    /// known.
    fn is_new_above_unknown(&self, path: &[u8]) -> Result<bool, Failed> {
        if self.branches.floor == Floor::Ground {
            return Ok(false);
        }
        self.hides_in_upper(path)
    }

    /// Whether the upper branch's directory ends the merging: by a mark, or a whiteout beside it.
    fn hides_in_upper(&self, path: &[u8]) -> Result<bool, Failed> {
        let (parent, name) = split(path);
        let Some(dir) = resolve_dir(&self.cx, &self.views.all.root(), parent).at("look up", parent)? else {
            return Ok(false);
        };
        let Some(part) = upper_part(self.views, &dir).at("look up", parent)? else { return Ok(false) };
        if self.has_whiteout(&part, name).at("look up a whiteout", path)? {
            return Ok(true);
        }
        let Some(own) = lookup(&self.cx, &part, name).at("look up", path)?.filter(|own| is_dir(&own.vnode)) else {
            return Ok(false);
        };
        let names = crate::ops::list(&self.cx, &own.vnode).at("list", path)?;
        Ok(names.iter().any(|(name, _)| Record::of(name) == Record::Opaque))
    }

    /// Creates or replaces a file.
    fn file(&mut self, path: &[u8], now: &Entry) -> Result<(), Failed> {
        let (parent_path, name) = split(path);
        let parent = self.directory(parent_path)?;
        self.touch(parent_path, &parent)?;
        let published = match self.other_name(path, now)? {
            Some(copy) => self.link(&parent, name, &copy),
            None => self.place_copy(&parent, name, now),
        };
        let vnode = published.map_err(|failed| failed.at(path))?;
        self.note(path, now, vnode)?;
        self.drop_whiteout(&parent, name).at("remove a whiteout", path)
    }

    /// Notes what other branches know a file of the target by.
    fn note(&mut self, path: &[u8], now: &Entry, file: Arc<dyn Vnode>) -> Result<(), Failed> {
        self.copied.insert(now.attr.ino, file);
        if let Some(known) = self.views.all.known_as(&now.vnode).at("look up the inode number", path)? {
            self.known.insert(now.attr.ino, known);
        }
        Ok(())
    }

    /// Takes a file of the target for the one of the union that has the same content: a killed
    /// commit may have copied it.
    pub(crate) fn take_unchanged(&mut self, path: &[u8]) -> Result<(), Failed> {
        let now = self.object(path)?;
        let below = resolve(&self.cx, &self.views.below.root(), path).at("look up", path)?;
        let Some(below) = below.filter(|_| !self.copied.contains_key(&now.attr.ino)) else { return Ok(()) };
        let (at, file) = self.views.below.lower(&below).at("look up", path)?;
        if at == 0 && self.views.all.lower(&now.vnode).at("look up", path)?.0 == 0 {
            self.note(path, &now, file)?;
        }
        Ok(())
    }

    fn place_copy(&self, parent: &Arc<dyn Vnode>, name: &[u8], now: &Entry) -> Result<Arc<dyn Vnode>, StepFailed> {
        let (temp, copy) = build(&self.cx, parent, now)?;
        self.publish(parent, &temp, name)?;
        Ok(copy.vnode)
    }

    /// Renames a temporary file to its name, in place of what has it.
    fn publish(&self, parent: &Arc<dyn Vnode>, temp: &Temp, name: &[u8]) -> Result<(), StepFailed> {
        let place = || -> Result<(), StepFailed> {
            let present = lookup(&self.cx, parent, name).step("look up")?;
            if present.is_some_and(|present| is_dir(&present.vnode)) {
                self.remove_aside(parent, name)?;
            }
            let (from, to) = (temp.name().step("rename")?, Name::new(name).step("rename")?);
            parent.rename(&self.cx, from, parent, to, RenameFlags::default()).step("rename the new file")
        };
        let placed = place();
        if placed.is_err() {
            let _removed = remove_tree(&self.cx, parent, temp.bytes());
        }
        placed
    }

    /// Adds a name to a file of the target.
    fn link(&self, parent: &Arc<dyn Vnode>, name: &[u8], file: &Arc<dyn Vnode>) -> Result<Arc<dyn Vnode>, StepFailed> {
        let present = lookup(&self.cx, parent, name).step("look up")?;
        // Renaming one name of a file to another one has no effect.
        if present.is_none_or(|present| present.vnode.id() != file.id()) {
            let temp = Temp::new(&self.cx, parent).step("choose a temporary name")?;
            parent.link(&self.cx, temp.name().step("link")?, file).step("link the file to another name")?;
            self.publish(parent, &temp, name)?;
        }
        Ok(Arc::clone(file))
    }

    /// Returns the files that were copied, with what other branches know them by.
    pub(crate) fn known(&mut self) -> Vec<(Arc<dyn Vnode>, KnownAs)> {
        let copy = |(number, known)| Some((Arc::clone(self.copied.get(&number)?), known));
        std::mem::take(&mut self.known).into_iter().filter_map(copy).collect()
    }

    /// Returns the target's file if another name of the same file exists there with the same
    /// content.
    fn other_name(&self, path: &[u8], now: &Entry) -> Result<Option<Arc<dyn Vnode>>, Failed> {
        if let Some(copy) = self.copied.get(&now.attr.ino) {
            return Ok(Some(Arc::clone(copy)));
        }
        let Some(group) = self.groups.iter().find(|group| group.iter().any(|name| name == path)) else {
            return Ok(None);
        };
        let mut candidates: Vec<(Arc<dyn Vnode>, u32, u32)> = Vec::new();
        for other in group.iter().filter(|other| *other != path) {
            let Some(below) = resolve(&self.cx, &self.views.below.root(), other).at("look up", other)? else {
                continue;
            };
            let (at, lower) = match is_dir(&below) {
                true => continue,
                false => self.views.below.lower(&below).at("look up", other)?,
            };
            let attr = below.getattr(&self.cx).at("read the attributes", other)?;
            let below = Entry { vnode: below, attr };
            if at == 0 && crate::find::differ(&self.cx, self.views, now, &below).at("compare", other)?.none() {
                match candidates.iter_mut().find(|(known, ..)| known.id() == lower.id()) {
                    Some((_, count, _)) => *count += 1,
                    None => {
                        let names = lower.getattr(&self.cx).at("read the attributes", other)?.nlink;
                        candidates.push((lower, 1, names));
                    }
                }
            }
        }
        // A file that has yet other names below is another file there.
        Ok(candidates.into_iter().find(|(_, count, names)| count == names).map(|(lower, ..)| lower))
    }

    /// Changes the attributes only, where the target has the object with these data.
    fn attributes(&mut self, path: &[u8], now: &Entry) -> Result<(), Failed> {
        if is_dir(&now.vnode) {
            let dir = self.directory(path)?;
            return copy_attributes(&self.cx, now, &dir).map_err(|failed| failed.at(path));
        }
        let below = resolve(&self.cx, &self.views.below.root(), path).at("look up", path)?;
        if let Some(below) = below.filter(|below| !is_dir(below)) {
            let (at, lower) = self.views.below.lower(&below).at("look up", path)?;
            let attr = lower.getattr(&self.cx).at("read the attributes", path)?;
            let alone = attr.nlink == 1 && !self.groups.iter().any(|group| group.iter().any(|name| name == path));
            let in_place = at == 0 && alone && lower.kind() == now.attr.kind();
            if in_place && below.getattr(&self.cx).at("read the attributes", path)?.size == now.attr.size {
                copy_attributes(&self.cx, now, &lower).map_err(|failed| failed.at(path))?;
                if lower.kind() == Kind::Regular {
                    let file = lower.open(&self.cx, vnode::OpenFlags::RDONLY).at("open", path)?;
                    file.fsync(&self.cx, false).at("write the file to the disk", path)?;
                }
                return self.note(path, now, lower);
            }
        }
        self.file(path, now)
    }

    /// Removes what the branches below the upper one show at a path.
    fn remove(&mut self, path: &[u8]) -> Result<(), Failed> {
        let (parent_path, name) = split(path);
        let shows = self.branches.floor == Floor::Unknown || self.shows_through(path)?;
        let parent = match shows {
            true => Some(self.directory(parent_path)?),
            false => resolve_dir(&self.cx, &self.root, parent_path).at("look up", parent_path)?,
        };
        let Some(parent) = parent else { return Ok(()) };
        self.touch(parent_path, &parent)?;
        if shows {
            self.mark(&parent, &whiteout_name(name)).at("create a whiteout", path)?;
        }
        match lookup(&self.cx, &parent, name).at("look up", path)? {
            Some(entry) if is_dir(&entry.vnode) => self.remove_aside(&parent, name).map_err(|failed| failed.at(path)),
            Some(_) => Name::new(name).and_then(|name| parent.unlink(&self.cx, name)).at("remove", path),
            None => Ok(()),
        }
    }

    /// Removes a directory and everything in it. It disappears in one step.
    fn remove_aside(&self, parent: &Arc<dyn Vnode>, name: &[u8]) -> Result<(), StepFailed> {
        let temp = Temp::new(&self.cx, parent).step("choose a temporary name")?;
        let (from, to) = (Name::new(name).step("remove")?, temp.name().step("remove")?);
        parent.rename(&self.cx, from, parent, to, RenameFlags::default()).step("remove the directory")?;
        let removed = remove_tree(&self.cx, parent, temp.bytes());
        if removed.is_err() {
            // A directory that can't be removed keeps its name. If renaming it back fails, too, the
            // next run reports the temporary name.
            let _kept = parent.rename(&self.cx, to, parent, from, RenameFlags::default());
        }
        removed.step("remove the entries of the directory")
    }

    /// Creates a whiteout or mark.
    fn mark(&self, dir: &Arc<dyn Vnode>, name: &[u8]) -> vnode::Result<()> {
        match dir.mknod(&self.cx, Name::new(name)?, Kind::Regular.mode_bits() | 0o444, 0) {
            Ok(_) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Creates a whiteout of the entry at this path, where the target shows nothing.
    pub(crate) fn cover(&mut self, path: &[u8]) -> Result<(), Failed> {
        self.remove(path)
    }

    /// Makes the target's part of a directory merge nothing below it.
    pub(crate) fn end(&mut self, path: &[u8]) -> Result<(), Failed> {
        let dir = self.directory(path)?;
        self.touch(path, &dir)?;
        self.mark(&dir, OPAQUE_MARK).at("create an opaque mark", path)
    }

    /// Creates a whiteout whose name does not contain the hidden one.
    pub(crate) fn hide_digest(&mut self, path: &[u8], whiteout: &[u8]) -> Result<(), Failed> {
        let dir = self.directory(path)?;
        self.touch(path, &dir)?;
        self.mark(&dir, whiteout).at("create a whiteout", path)
    }

    fn has_whiteout(&self, dir: &Arc<dyn Vnode>, name: &[u8]) -> vnode::Result<bool> {
        if !self.branches.has_more_below() {
            return Ok(false);
        }
        Ok(lookup(&self.cx, dir, &whiteout_name(name))?.is_some())
    }

    /// Removes a whiteout beside an entry that hides the same.
    fn drop_whiteout(&self, dir: &Arc<dyn Vnode>, name: &[u8]) -> vnode::Result<()> {
        if self.has_whiteout(dir, name)? { remove_tree(&self.cx, dir, &whiteout_name(name)) } else { Ok(()) }
    }

    /// Gives the changed directories the times that users see, and makes their entries durable.
    pub(crate) fn finish(self) -> Result<(), Failed> {
        for (path, (dir, mode)) in self.opened.iter().rev() {
            // A later change may have set it.
            if dir.getattr(&self.cx).at("read the attributes", path)?.perm() == mode | USABLE {
                let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                dir.setattr(&self.cx, &set, None).at("set the mode", path)?;
            }
        }
        // Deepest first: nothing changes in a directory after its times were set.
        for (path, (dir, before)) in self.touched.iter().rev() {
            let shown = resolve_dir(&self.cx, &self.views.all.root(), path).at("look up", path);
            let shown = if_readable(shown)?.flatten();
            let upper = shown.as_ref().map(|shown| upper_part(self.views, shown)).transpose().at("look up", path)?;
            let attr = match (shown, upper.flatten()) {
                (Some(shown), Some(_)) => shown.getattr(&self.cx).at("read the attributes", path)?,
                _ => *before,
            };
            // Only the owner of a directory may set its times.
            if let Err(errno) = set_times(&self.cx, dir, &attr) {
                tracing::debug!(path = %path.escape_ascii(), %errno, "could not set the times of a directory");
            }
        }
        for (path, (dir, _)) in &self.touched {
            match dir.fsync(&self.cx, false) {
                // It was removed since, or this user has made it unreadable.
                Err(Errno::STALE | Errno::NOENT | Errno::ACCESS) => {}
                other => other.at("write the directory to the disk", path)?,
            }
        }
        Ok(())
    }
}

/// Returns the directories of the target in which a change creates temporary files.
pub(crate) fn directories(change: &Change) -> Vec<Vec<u8>> {
    let paths = [Some(&change.path), change.from.as_ref()];
    let mut all: Vec<Vec<u8>> = Vec::new();
    for path in paths.into_iter().flatten() {
        let mut at = split(path).0;
        loop {
            all.push(at.to_vec());
            if at.is_empty() {
                break;
            }
            at = split(at).0;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_lie_in_the_directories_above() {
        let change = Change {
            path: b"a/b/c".to_vec(),
            kind: ChangeKind::Added,
            from: None,
            before: None,
            after: None,
            content: true,
        };
        assert_eq!(directories(&change), [b"a/b".to_vec(), b"a".to_vec(), b"".to_vec()]);
    }
}
