//! Whiteouts and opaque marks that are written by name through the union, as tools that unpack image layers do
//! (`whiteouts=write`): docs/unionfs.md, "Unpacking image layers".

use crate::branch::{BranchId, Lower};
use crate::file::UnionFile;
use crate::lookup::Hit;
use crate::marks::OPAQUE;
use crate::node::{Core, UNCOUNTED, UnionVnode};
use crate::op::Op;
use crate::options::Whiteouts;
use crate::retry::Tries;
use crate::whiteout::{Listed, classify};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Attr, Entry, Errno, Kind, Name, OpenFile, OpenFlags, RenameFlags, Result, Vnode};

/// A reserved name that some users may write.
#[derive(Clone, Copy)]
pub(crate) enum UserMark<'a> {
    /// Hides this name.
    Whiteout(Name<'a>),
    /// Hides everything that the directory would merge.
    Opaque,
}

/// Makes the lower file of a mark in a lower directory, under that name.
type Make<'a, T> = &'a dyn Fn(&Arc<dyn Vnode>, Name<'_>) -> Result<(Entry, T)>;

impl Core {
    /// What a reserved name means to this caller; `None` where it is refused.
    pub(crate) fn user_mark<'a>(&self, op: &Op<'_>, name: Name<'a>) -> Option<UserMark<'a>> {
        if self.options.whiteouts != Whiteouts::Write || !(op.uid == 0 || op.uid == self.own().uid) {
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
    /// The answer to the making of a reserved name; says why, in the log.
    pub(crate) fn refuse_name(&self, name: Name<'_>) -> Errno {
        if self.core.refusals.is_due() {
            let path = self.path_to(name);
            let path = path.escape_ascii();
            let why = match classify(name.as_bytes()) {
                Listed::Whiteout(_) => {
                    "a union keeps names that begin with .wh. for itself; to unpack an image layer here, mount with \
                     whiteouts=write and unpack as root; a branch of another union can't lie in a union"
                }
                _ if name.as_bytes() == OPAQUE => {
                    "an opaque mark of an image layer: to unpack the layer here, mount with whiteouts=write and unpack as root"
                }
                _ => "a record of a union: a branch of another union can't lie in a union",
            };
            tracing::warn!(%path, "this name can't be made (EPERM): {why}");
        }
        Errno::PERM
    }

    /// Where marks of this directory are written: its leftmost part, if that can be written.
    fn marked_part(&self, op: &Op<'_>) -> Result<Option<Lower>> {
        Ok(self.stack()?.first().filter(|part| op.set.writable(part.branch)).cloned())
    }

    /// The object of a reserved name.
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

    pub(crate) fn make_mark(&self, op: &Op<'_>, name: Name<'_>, mark: UserMark<'_>, mode: u32) -> Result<Entry> {
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

    fn part_for_marks(&self, op: &Op<'_>) -> Result<Lower> {
        let mut tries = Tries::new();
        loop {
            self.check_alive()?;
            let branch = self.target(op)?;
            if let Some(part) = self.part(branch)? {
                return Ok(part);
            }
            // Where no part can be made there after all, the next round chooses anew.
            let _ = self.core.ensure_part(op, &self.arc()?, branch)?;
            tries.again()?;
        }
    }

    /// A file is removed as by unlink(2). A directory is first cut off from what it merges, which is the moment for that; then
    /// what is left of it is removed piece by piece, as by rm(1).
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
            gone_is_done(self.unlink_name(op, hidden))?;
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

    /// A whiteout beside it hides what this directory merges: removes what `part` has of it.
    fn drop_directory(&self, op: &Op<'_>, part: &Lower, name: Name<'_>, was: &Arc<UnionVnode>) -> Result<()> {
        match part.vnode.lookup(op, name)?.filter(|entry| entry.vnode.kind() == Kind::Directory) {
            Some(entry) => {
                if was.stack()?.len() > 1 {
                    // A redirect beats a whiteout; the mark beats both.
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
            // The roots of the branches are merged whatever they say: each entry is hidden by itself.
            for name in self.names_in(op)? {
                self.hide_right(op, part, Name::new(&name)?)?;
            }
        } else {
            self.ends_here(part)?;
        }
        Ok(made)
    }

    /// The directory merges nothing any more but `part`, its leftmost.
    fn ends_here(&self, part: &Lower) -> Result<()> {
        self.set_stack([part.clone()].into())?;
        let dir = self.dir()?;
        dir.subdirs.store(UNCOUNTED, Ordering::Release);
        let old = dir.redirect.lock().take();
        drop(old);
        Ok(())
    }

    /// Hides what branches right of `part` have of that name.
    fn hide_right(&self, op: &Op<'_>, part: &Lower, name: Name<'_>) -> Result<()> {
        match self.core.probe(op, &self.stack()?, name)?.hit {
            Hit::Leaf { branch, .. } if op.set.is_left(part.branch, branch) => gone_is_done(self.unlink_name(op, name)),
            Hit::Dir { stack, .. } if stack.iter().any(|inside| op.set.is_left(part.branch, inside.branch)) => {
                let was = self.find(op, name)?.map(|(vnode, _)| vnode);
                let own = stack.first().filter(|inside| inside.branch == part.branch);
                if let Some(was) = was.as_ref().filter(|_| own.is_some()) {
                    self.core.keep_number(op, was)?;
                }
                let names = self.dir()?.names.write();
                match own {
                    Some(own) => drop(self.core.make_opaque(op, own)?),
                    None => drop(self.core.make_whiteout(op, part, name)?),
                }
                drop(names);
                self.entries_changed();
                match (own, was) {
                    (Some(own), Some(was)) => was.ends_here(own)?,
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
        let _names = self.dir()?.names.write();
        self.check_alive()?;
        let made = match make(&part.vnode, name) {
            // The removal before it has made one. That may be a link to a file that all whiteouts share.
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
                tracing::warn!(%errno, "an unfinished whiteout stays in the work directory");
            }
            return Err(e);
        }
        Ok(made)
    }

    /// Removes a mark: what it hid shows again.
    pub(crate) fn remove_mark(&self, op: &Op<'_>, name: Name<'_>, mark: UserMark<'_>) -> Result<()> {
        let part = self.marked_part(op)?.ok_or(Errno::NOENT)?;
        let names = self.dir()?.names.write();
        part.vnode.unlink(op, name)?;
        self.entries_changed();
        drop(names);
        match mark {
            UserMark::Whiteout(hidden) => self.name_is_back(op, hidden)?,
            UserMark::Opaque => {
                if self.place().is_some() {
                    self.refresh(op)?;
                    self.dir()?.subdirs.store(UNCOUNTED, Ordering::Release);
                }
            }
        }
        Ok(())
    }

    /// Counts a name that a whiteout no longer hides.
    fn name_is_back(&self, op: &Op<'_>, name: Name<'_>) -> Result<()> {
        match self.core.probe(op, &self.stack()?, name)?.hit {
            Hit::Leaf { branch, entry } => {
                self.core.name_came_back(op, &Lower { vnode: entry.vnode, branch }, &entry.attr)
            }
            Hit::Dir { .. } => {
                self.count_subdir(1);
                Ok(())
            }
            Hit::None => Ok(()),
        }
    }

    /// Removes an entry, and all that is in it.
    fn remove_tree(self: Arc<Self>, op: &Op<'_>, name: Name<'_>) -> Result<()> {
        // A tree may be deeper than a thread's stack.
        let mut left: Vec<(Arc<Self>, Box<[u8]>)> = vec![(self, name.as_bytes().into())];
        while let Some((dir, bytes)) = left.last().cloned() {
            op.check()?;
            let name = Name::new(&bytes)?;
            let Some((vnode, _)) = dir.find(op, name)? else {
                left.pop();
                continue;
            };
            if vnode.dir.is_none() {
                gone_is_done(dir.unlink_name(op, name))?;
                left.pop();
                continue;
            }
            match gone_is_done(dir.remove_dir(op, name)) {
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

/// What was to be removed, and is not there, is done.
fn gone_is_done(removed: Result<()>) -> Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
