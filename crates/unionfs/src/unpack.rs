//! Whiteouts and opaque marks created by name through the union, as by tools that unpack image
//! layers (`whiteouts=write`): docs/unionfs.md, "Unpacking image layers".

use crate::branch::{BranchId, Lower};
use crate::file::UnionFile;
use crate::lookup::Hit;
use crate::node::{Core, UNCOUNTED, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::OPAQUE;
use crate::options::Whiteouts;
use crate::retry::Retries;
use crate::whiteout::{Listed, classify};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Attr, Entry, Errno, Kind, Name, OpenFile, OpenFlags, RenameFlags, Result, Vnode};

/// A reserved name that root and the server's user may create.
#[derive(Clone, Copy)]
pub(crate) enum UserMark<'a> {
    /// A whiteout of this name.
    Whiteout(Name<'a>),
    /// An opaque mark.
    Opaque,
}

/// Creates the lower file of a mark in a lower directory, under that name.
type Make<'a, T> = &'a dyn Fn(&Arc<dyn Vnode>, Name<'_>) -> Result<(Entry, T)>;

impl Core {
    /// Returns the meaning of a reserved name for this caller; `None` if the caller may not use it.
    pub(crate) fn user_mark<'a>(&self, op: &Op<'_>, name: Name<'a>) -> Option<UserMark<'a>> {
        if self.options.whiteouts != Whiteouts::Write || !(op.uid == 0 || op.uid == self.server_cx().uid) {
            return None;
        }
        if name.as_bytes() == OPAQUE {
            return Some(UserMark::Opaque);
        }
        match classify(name.as_bytes()) {
            Listed::Whiteout(hidden) => Name::new(hidden).ok().map(UserMark::Whiteout),
            Listed::Plain | Listed::LongWhiteout(_) | Listed::Mark => None,
        }
    }
}

impl UnionVnode {
    /// Returns the error for the creation of a reserved name, and logs the reason.
    pub(crate) fn refuse_name(&self, name: Name<'_>) -> Errno {
        if self.core.refused_names.is_due() {
            let path = self.path_to(name);
            let path = path.escape_ascii();
            let why = match classify(name.as_bytes()) {
                Listed::Whiteout(_) => {
                    "names that begin with .wh. are reserved for the union; to unpack an image layer here, mount with \
                     whiteouts=write and unpack as root; a branch of another union can't lie in a union"
                }
                _ if name.as_bytes() == OPAQUE => {
                    "it is the opaque mark of an image layer; to unpack the layer here, mount with whiteouts=write and unpack as root"
                }
                _ => "it is a record of a union; a branch of another union can't lie in a union",
            };
            tracing::warn!(%path, "could not create this name (EPERM): {why}");
        }
        Errno::PERM
    }

    /// Returns the part that holds the marks users can see: the leftmost, if it can be written.
    fn marked_part(&self, op: &Op<'_>) -> Result<Option<Lower>> {
        Ok(self.stack()?.first().filter(|part| op.set.writable(part.branch)).cloned())
    }

    /// Returns the object of a reserved name.
    pub(crate) fn find_mark(&self, op: &Op<'_>, name: Name<'_>) -> Result<Option<(Arc<UnionVnode>, Attr)>> {
        if self.core.user_mark(op, name).is_none() {
            return Ok(None);
        }
        let Some(part) = self.marked_part(op)? else { return Ok(None) };
        let Some(entry) = part.vnode.lookup(op, name)?.filter(|entry| entry.vnode.kind() == Kind::Regular) else {
            return Ok(None);
        };
        self.core.present_leaf(op, self.place_of(name)?, part.branch, entry).map(Some)
    }

    /// Creates and opens a whiteout or opaque mark by name.
    pub(crate) fn create_mark(
        &self,
        op: &Op<'_>,
        name: Name<'_>,
        mark: UserMark<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let make = |dir: &Arc<dyn Vnode>, name: Name<'_>| dir.create(op, name, mode, flags);
        let (branch, entry, file) = self.write_mark(op, name, mark, &make)?;
        let (vnode, attr) = self.core.present_leaf(op, self.place_of(name)?, branch, entry)?;
        let open = UnionFile::new(op, &vnode, flags, (branch, vnode.moves()), file)?;
        Ok((Entry { vnode, attr }, open))
    }

    /// Creates a whiteout or opaque mark by name, as an empty file.
    pub(crate) fn mknod_mark(&self, op: &Op<'_>, name: Name<'_>, mark: UserMark<'_>, mode: u32) -> Result<Entry> {
        if Kind::from_mode(mode) != Some(Kind::Regular) {
            return Err(self.refuse_name(name));
        }
        let make = |dir: &Arc<dyn Vnode>, name: Name<'_>| Ok((dir.mknod(op, name, mode, 0)?, ()));
        let (branch, entry, ()) = self.write_mark(op, name, mark, &make)?;
        let (vnode, attr) = self.core.present_leaf(op, self.place_of(name)?, branch, entry)?;
        Ok(Entry { vnode, attr })
    }

    fn write_mark<T>(
        &self,
        op: &Op<'_>,
        name: Name<'_>,
        mark: UserMark<'_>,
        make: Make<'_, T>,
    ) -> Result<(BranchId, Entry, T)> {
        self.dir()?;
        op.set.require_writable()?;
        // It may remove a whole tree.
        op.require_blocking()?;
        let part = self.part_for_marks(op)?;
        if part.vnode.lookup(op, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let (entry, rest) = match mark {
            UserMark::Whiteout(hidden) => self.write_whiteout(op, &part, (name, hidden), make)?,
            UserMark::Opaque => self.write_opaque(op, &part, name, make)?,
        };
        Ok((part.branch, entry, rest))
    }

    /// Returns the part in which a new mark is created. Creates the part if necessary.
    fn part_for_marks(&self, op: &Op<'_>) -> Result<Lower> {
        let mut retries = Retries::new();
        loop {
            self.check_alive()?;
            let branch = self.target(op)?;
            if let Some(part) = self.part(branch)? {
                return Ok(part);
            }
            // If no part can be created there after all, the next iteration chooses again.
            let _ = self.core.ensure_part(op, &self.arc()?, branch)?;
            retries.count()?;
        }
    }

    /// Creates a whiteout. A file is removed as by unlink(2). A directory loses the parts that it
    /// merges in one step, by the whiteout; its part beside the whiteout is then removed entry by
    /// entry, as by rm(1).
    fn write_whiteout<T>(
        &self,
        op: &Op<'_>,
        part: &Lower,
        (name, hidden): (Name<'_>, Name<'_>),
        make: Make<'_, T>,
    ) -> Result<(Entry, T)> {
        let found = self.find(op, hidden)?.map(|(vnode, _)| vnode);
        let directory = found.as_ref().filter(|vnode| vnode.dir.is_some());
        if found.is_some() && directory.is_none() {
            ignore_missing(self.unlink_name(op, hidden))?;
        }
        if let Some(directory) = directory.filter(|directory| directory.branch() == part.branch) {
            self.core.keep_number(op, directory)?;
        }
        let made = self.put_mark(op, part, name, make)?;
        if let Some(directory) = directory {
            self.drop_directory(op, part, hidden, directory)?;
        }
        Ok(made)
    }

    /// Removes the part of a directory whose other parts a whiteout hides.
    fn drop_directory(&self, op: &Op<'_>, part: &Lower, name: Name<'_>, was: &Arc<UnionVnode>) -> Result<()> {
        match part.vnode.lookup(op, name)?.filter(|entry| entry.vnode.kind() == Kind::Directory) {
            Some(entry) => {
                if was.stack()?.len() > 1 {
                    // A redirect has precedence over a whiteout, an opaque mark over both.
                    self.core.make_opaque(op, &Lower { vnode: entry.vnode, branch: part.branch })?;
                }
                self.entries_changed();
                self.arc()?.remove_tree(op, name)?;
            }
            None => {
                self.entries_changed();
                self.count_subdir(-1);
            }
        }
        was.mark_removed();
        Ok(())
    }

    fn write_opaque<T>(&self, op: &Op<'_>, part: &Lower, name: Name<'_>, make: Make<'_, T>) -> Result<(Entry, T)> {
        if self.place().is_some() {
            self.core.keep_number(op, self)?;
        }
        let made = self.put_mark(op, part, name, make)?;
        if self.place().is_none() {
            // An opaque mark has no effect in a branch's root: hide each entry.
            for name in self.names_in(op)? {
                self.hide_right(op, part, Name::new(&name)?)?;
            }
        } else {
            self.reduce_to(op, part)?;
        }
        Ok(made)
    }

    /// Reduces the directory to `part`, its leftmost part.
    fn reduce_to(&self, op: &Op<'_>, part: &Lower) -> Result<()> {
        // A lookup that began before the mark was written must not undo this. If the caller is
        // interrupted, the next lookup does it.
        let place = self.place();
        let _locked = place.as_ref().map(|place| place.parent.dir()?.entry_lock.write(op));
        self.set_stack([part.clone()].into())?;
        let dir = self.dir()?;
        dir.subdirs.store(UNCOUNTED, Ordering::Release);
        let old = dir.redirect.lock().take();
        drop(old);
        Ok(())
    }

    /// Hides entries of this name on branches right of `part`.
    fn hide_right(&self, op: &Op<'_>, part: &Lower, name: Name<'_>) -> Result<()> {
        match self.probe(op, &self.stack()?, name)?.hit {
            Hit::Leaf { branch, .. } if op.set.is_left(part.branch, branch) => {
                ignore_missing(self.unlink_name(op, name))
            }
            Hit::Dir { stack, .. } if stack.iter().any(|inside| op.set.is_left(part.branch, inside.branch)) => {
                let was = self.find(op, name)?.map(|(vnode, _)| vnode);
                let own = stack.first().filter(|inside| inside.branch == part.branch);
                if let Some(was) = was.as_ref().filter(|_| own.is_some()) {
                    self.core.keep_number(op, was)?;
                }
                let locked = self.lock_entry(op, name)?;
                match own {
                    Some(own) => drop(self.core.make_opaque(op, own)?),
                    None => drop(self.core.create_whiteout(op, part, name)?),
                }
                drop(locked);
                self.entries_changed();
                match (own, was) {
                    (Some(own), Some(was)) => was.reduce_to(op, own)?,
                    (None, was) => {
                        self.count_subdir(-1);
                        was.inspect(|was| was.mark_removed());
                    }
                    (Some(_), None) => {}
                }
                Ok(())
            }
            Hit::Leaf { .. } | Hit::Dir { .. } | Hit::None => Ok(()),
        }
    }

    fn put_mark<T>(&self, op: &Op<'_>, part: &Lower, name: Name<'_>, make: Make<'_, T>) -> Result<(Entry, T)> {
        let _locked = self.dir()?.entry_lock.write(op)?;
        self.check_alive()?;
        let made = match make(&part.vnode, name) {
            // The removal of the hidden object has created a whiteout. It may be a hard link to the
            // blank (`reserve`), which other whiteouts share.
            Err(Errno::EXIST) => self.replace_mark(op, part, name, make)?,
            other => other?,
        };
        self.entries_changed();
        Ok(made)
    }

    fn replace_mark<T>(&self, op: &Op<'_>, part: &Lower, name: Name<'_>, make: Make<'_, T>) -> Result<(Entry, T)> {
        let server = self.core.server(op);
        let (work, made_as, made) = self.core.begin_work(op, part.branch, make)?;
        let moved = work.rename(&server, made_as.name()?, &part.vnode, name, RenameFlags::default());
        if let Err(e) = moved {
            if let Err(errno) = work.unlink(&server, made_as.name()?) {
                tracing::warn!(%errno, "could not remove an unfinished whiteout from the work directory");
            }
            return Err(e);
        }
        Ok(made)
    }

    /// Removes a mark, which uncovers what it hid.
    pub(crate) fn remove_mark(&self, op: &Op<'_>, name: Name<'_>, mark: UserMark<'_>) -> Result<()> {
        let part = self.marked_part(op)?.ok_or(Errno::NOENT)?;
        let locked = self.dir()?.entry_lock.write(op)?;
        part.vnode.unlink(op, name)?;
        self.entries_changed();
        drop(locked);
        match mark {
            UserMark::Whiteout(hidden) => self.count_uncovered(op, hidden)?,
            UserMark::Opaque => self.extend_stack(op)?,
        }
        Ok(())
    }

    /// Adds the parts that an opaque mark has hidden to the directory. It keeps its number.
    fn extend_stack(&self, op: &Op<'_>) -> Result<()> {
        let Some(place) = self.place() else { return Ok(()) };
        let look = place.parent.stable_probe(op, place.name()?)?;
        match look.probe.hit {
            Hit::Dir { stack, redirect, .. } if self.shares_part(&stack)? => {
                self.replace_stack(op, stack.into(), redirect)
            }
            // It was removed or renamed meanwhile.
            Hit::Dir { .. } | Hit::Leaf { .. } | Hit::None => Ok(()),
        }
    }

    /// Updates counts for a name that a whiteout no longer hides.
    fn count_uncovered(&self, op: &Op<'_>, name: Name<'_>) -> Result<()> {
        match self.probe(op, &self.stack()?, name)?.hit {
            Hit::Leaf { branch, entry } => {
                self.core.name_uncovered(op, &Lower { vnode: entry.vnode, branch }, &entry.attr)
            }
            Hit::Dir { .. } => {
                self.count_subdir(1);
                Ok(())
            }
            Hit::None => Ok(()),
        }
    }

    /// Removes an entry recursively.
    fn remove_tree(self: Arc<Self>, op: &Op<'_>, name: Name<'_>) -> Result<()> {
        // Not by recursion: a deep tree could overflow the thread's stack.
        let mut left: Vec<(Arc<Self>, Box<[u8]>)> = vec![(self, name.as_bytes().into())];
        while let Some((dir, bytes)) = left.last().cloned() {
            op.check()?;
            let name = Name::new(&bytes)?;
            let Some((vnode, _)) = dir.find(op, name)? else {
                left.pop();
                continue;
            };
            if vnode.dir.is_none() {
                ignore_missing(dir.unlink_name(op, name))?;
                left.pop();
                continue;
            }
            match ignore_missing(dir.remove_dir(op, name)) {
                Ok(()) => drop(left.pop()),
                Err(Errno::NOTEMPTY) => {
                    let inside = vnode.names_in(op)?;
                    left.extend(inside.into_iter().map(|name| (vnode.clone(), name)));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn names_in(&self, op: &Op<'_>) -> Result<Vec<Box<[u8]>>> {
        let mut names = Vec::new();
        let mut sink = |entry: &vnode::DirEntry<'_>| {
            names.push(entry.name.as_bytes().into());
            true
        };
        self.read_dir(op, 0, &mut sink)?;
        Ok(names)
    }
}

/// Turns `ENOENT` of a removal into success.
fn ignore_missing(removed: Result<()>) -> Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
