//! Rename: the old name keeps a reference to where the file went, the replaced file becomes a
//! version (Versionfs paper, section 3.1).

use crate::core::blocking;
use crate::node::{VersionVnode, is_reserved};
use crate::remove::Fate;
use crate::session::Session;
use crate::set::{Made, link_stem, move_new};
use std::sync::Arc;
use versionset::{Birth, Cause, Letter, Place, Record, version_name};
use vnode::{Attr, Cx, Entry, Errno, Kind, MAY_BLOCK, Name, RenameFlags, Result, Vnode};

/// An entry that is renamed, and where to.
struct Move<'a> {
    from: (&'a VersionVnode, Name<'a>),
    to: (&'a VersionVnode, Name<'a>),
    object: VersionVnode,
    attr: Attr,
}

/// What became of the set of an old name.
#[derive(Clone, Debug)]
enum Left {
    /// Nothing: such objects have no set, or only at their removal.
    Nothing,
    /// There was no room for a version.
    Lost,
    /// It got a version.
    Version(Made),
    /// The versions are in the set of the inode, which has or had several names. It got one with
    /// which the history of the old name ends, unless the policy wants none.
    Inode(Option<Made>),
}

impl Left {
    /// Returns the number of the version that refers to the new place; 0 if there is none.
    fn number(&self) -> u64 {
        match self {
            Self::Version(made) => made.number,
            Self::Nothing | Self::Lost | Self::Inode(_) => 0,
        }
    }
}

impl VersionVnode {
    /// Renames or exchanges entries.
    pub(crate) fn move_to(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Self,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        if is_reserved(name) || (flags.exchange && is_reserved(new_name)) {
            return Err(Errno::NOENT);
        }
        if is_reserved(new_name) || (flags.exchange && (flags.no_replace || flags.whiteout)) {
            return Err(Errno::INVAL);
        }
        let _renames =
            if cx.may_block { self.core.renames.lock() } else { self.core.renames.try_lock().ok_or(MAY_BLOCK)? };
        if new_dir.lower.kind() != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        let source = self.lower.lookup(cx, name)?.ok_or(Errno::NOENT)?;
        if new_dir.inode.is_buried() {
            return Err(Errno::NOENT);
        }
        let target = new_dir.lower.lookup(cx, new_name)?;
        match &target {
            None if flags.exchange => return Err(Errno::NOENT),
            Some(_) if flags.no_replace => return Err(Errno::EXIST),
            _ => {}
        }
        let is_same = target.as_ref().is_some_and(|target| target.vnode.id() == source.vnode.id());
        if is_same {
            // Two names of one file: nothing happens.
            return self.lower.rename(cx, name, &new_dir.lower, new_name, flags);
        }
        cx.require_blocking()?;
        let cx = &blocking(cx);
        let forth =
            Move { object: self.victim(name, &source), attr: source.attr, from: (self, name), to: (new_dir, new_name) };
        // Until it has its new name: a write meanwhile must make a version of neither name.
        let mut session = forth.object.inode.session(cx)?;
        match target {
            Some(target) if flags.exchange => {
                let back = Move {
                    object: new_dir.victim(new_name, &target),
                    attr: target.attr,
                    from: (new_dir, new_name),
                    to: (self, name),
                };
                // Nobody without the lock of renames has two sessions, so this can't deadlock.
                let mut session_back = back.object.inode.session(cx)?;
                let left = forth.leave(cx, &mut session)?;
                let left_back =
                    back.leave(cx, &mut session_back).inspect_err(|_| forth.stay(cx, &mut session, left.clone()))?;
                self.lower.rename(cx, name, &new_dir.lower, new_name, flags).inspect_err(|_| {
                    back.stay(cx, &mut session_back, left_back.clone());
                    forth.stay(cx, &mut session, left.clone());
                })?;
                // Both names end their periods before one begins another.
                back.depart(cx, &mut session_back, &left_back);
                forth.depart(cx, &mut session, &left);
                back.arrive(cx, &left_back, Cause::Rename);
                forth.arrive(cx, &left, Cause::Rename);
                Ok(())
            }
            Some(target) => forth.replace(cx, &mut session, &target, flags),
            None => {
                let left = forth.leave(cx, &mut session)?;
                forth.rename(cx, flags).inspect_err(|_| forth.stay(cx, &mut session, left.clone()))?;
                forth.depart(cx, &mut session, &left);
                forth.arrive(cx, &left, Cause::Rename);
                Ok(())
            }
        }
    }
}

impl Move<'_> {
    fn rename(&self, cx: &Cx<'_>, flags: RenameFlags) -> Result<()> {
        self.from.0.lower.rename(cx, self.from.1, &self.to.0.lower, self.to.1, flags)
    }

    /// Renames over an existing entry, which becomes a version.
    fn replace(&self, cx: &Cx<'_>, session: &mut Session, target: &Entry, flags: RenameFlags) -> Result<()> {
        let (new_dir, new_name) = self.to;
        let victim = new_dir.victim(new_name, target);
        let left = match (self.object.lower.kind() == Kind::Directory, victim.lower.kind() == Kind::Directory) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) => {
                victim.require_empty(cx)?;
                let left = self.leave(cx, session)?;
                self.replace_directory(cx, &victim, flags).inspect_err(|_| self.stay(cx, session, left.clone()))?;
                left
            }
            (false, false) => {
                let left = self.leave(cx, session)?;
                self.replace_file(cx, &victim, flags).inspect_err(|_| self.stay(cx, session, left.clone()))?;
                left
            }
        };
        self.depart(cx, session, &left);
        self.arrive(cx, &left, Cause::Replace);
        Ok(())
    }

    fn replace_file(&self, cx: &Cx<'_>, victim: &VersionVnode, flags: RenameFlags) -> Result<()> {
        let (new_dir, new_name) = self.to;
        let mut removal = victim.prepare_removal(cx, (&new_dir.lower, new_name), Cause::Replace)?;
        match removal.fate {
            Fate::Named | Fate::Copied => {
                removal.checked(cx, victim, self.rename(cx, flags))?;
                removal.leave_inode(cx, victim, (&new_dir.lower, new_name));
            }
            Fate::Dropped => {
                self.rename(cx, flags)?;
                removal.leave_inode(cx, victim, (&new_dir.lower, new_name));
            }
            Fate::Kept => {
                // The name never lacks a file: the old one gets a second name in the store, then
                // the new one replaces it.
                let made = new_dir.keep(cx, victim, &removal.attr, Cause::Replace, |server, store, version| {
                    match store.link(server, version, &victim.lower) {
                        Ok(_) => {}
                        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::XDEV) => {
                            return self.replace_without_links(cx, (server, store, version), flags);
                        }
                        Err(errno) => return Err(errno),
                    }
                    let renamed = self.rename(cx, flags);
                    if renamed.is_err() {
                        let _ = store.unlink(server, version);
                    }
                    renamed
                });
                match made {
                    Ok(made) => victim.inode.bury(Some(made)),
                    Err(errno) if victim.head().may_lose(cx, &removal.attr, errno)? => {
                        self.rename(cx, flags)?;
                        removal.leave_inode(cx, victim, (&new_dir.lower, new_name));
                    }
                    Err(errno) => return Err(errno),
                }
            }
        }
        victim.inode.forget_place();
        Ok(())
    }

    /// As [`Self::replace_file`], on a file system without hard links.
    fn replace_without_links(
        &self,
        cx: &Cx<'_>,
        (server, store, version): (&Cx<'_>, &Arc<dyn Vnode>, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        let (new_dir, new_name) = self.to;
        move_new(server, &new_dir.lower, new_name, store, version)?;
        let renamed = self.rename(cx, flags);
        if renamed.is_err() {
            let _ = move_new(server, store, version, &new_dir.lower, new_name);
        }
        renamed
    }

    fn replace_directory(&self, cx: &Cx<'_>, victim: &VersionVnode, flags: RenameFlags) -> Result<()> {
        let new_dir = self.to.0;
        let attr = victim.lower.getattr(cx)?;
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        let kept =
            new_dir.keep(cx, victim, &attr, Cause::Replace, |server, store, version| match self.rename(cx, exchange) {
                Ok(()) => {
                    let moved = move_new(server, &self.from.0.lower, self.from.1, store, version);
                    if moved.is_err() {
                        let _ = self.rename(cx, exchange);
                    }
                    moved
                }
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.replace_without_links(cx, (server, store, version), flags)
                }
                Err(errno) => Err(errno),
            });
        match kept {
            Ok(_) => victim.inode.bury(None),
            Err(errno) if victim.may_lose_store(cx, &attr, errno)? => {
                victim.drop_store(cx)?;
                self.rename(cx, flags)?;
                victim.note_lost(cx, (&new_dir.lower, self.to.1), &attr, Cause::Replace);
                victim.leave_without_version(cx, &new_dir.lower, self.to.1, Cause::Replace);
                victim.inode.forget_place();
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Leaves the old name, and sees to it that what follows the rename can be recorded.
    fn leave(&self, cx: &Cx<'_>, session: &mut Session) -> Result<Left> {
        let left = self.leave_name(cx, session)?;
        self.reserve_records(cx, &left).inspect_err(|_| self.stay(cx, session, left.clone()))?;
        Ok(left)
    }

    fn reserve_records(&self, cx: &Cx<'_>, left: &Left) -> Result<()> {
        let (head, core) = (self.object.head(), &self.object.core);
        if matches!(left, Left::Inode(_)) {
            head.reserve_record(cx, &core.set_of_name(&self.from.0.lower, self.from.1.as_bytes()), &self.attr)?;
            head.reserve_record(cx, &head.link_set(), &self.attr)?;
        }
        head.reserve_record(cx, &core.set_of_name(&self.to.0.lower, self.to.1.as_bytes()), &self.attr)
    }

    /// Leaves the old name: its set gets a version that refers to the new place, or a copy if older
    /// versions lack bytes that only the file has.
    fn leave_name(&self, cx: &Cx<'_>, session: &mut Session) -> Result<Left> {
        let object = &self.object;
        object.end_delay(cx, session)?;
        session.active = None;
        let server = object.core.server(cx);
        let Some(sets) = object.head().sets(&server, self.attr.nlink)? else { return Ok(Left::Nothing) };
        if !Arc::ptr_eq(&sets.own, &sets.keeps) {
            let attr = object.lower.getattr(&server)?;
            return object.head().mark(cx, session, &sets.own, (&attr, Cause::Rename)).map(Left::Inode);
        }
        let locked = sets.own.lock(&object.core, &server)?;
        if let Some(made) = object.head().close(cx, locked, &sets.own, Cause::Rename)? {
            return Ok(Left::Version(made));
        }
        if object.head().is_excluded(cx, &self.attr)? {
            return Ok(Left::Nothing);
        }
        if object.lower.kind() == Kind::Regular {
            object.look_for_creators(session);
            object.head().look_for_mappings(cx, session)?;
        }
        if object.head().is_written_unseen(session) {
            // The program that created the file, or has mapped it, may go on writing it.
            let made = object.head().leave_copy(cx, &sets.own, Cause::Rename)?;
            return Ok(made.map_or(Left::Lost, Left::Version));
        }
        let mut locked = sets.own.lock(&object.core, &server)?;
        let target = self.reference();
        let recorded =
            object.head().record(cx, &mut locked, &self.attr, (Cause::Rename, Letter::Renamed), |locked, version| {
                let store = locked.store(&server)?;
                let file = version_name(&locked.set.stem, Letter::Renamed, version.number);
                store.symlink(&server, Name::new(&file)?, &target).map(|_| ())
            });
        drop(locked);
        match recorded {
            Ok((version, ())) => Ok(Left::Version(Made::new(&sets.own, &version, &self.attr))),
            Err(errno) if object.head().may_lose(cx, &self.attr, errno)? => Ok(Left::Lost),
            Err(errno) => Err(errno),
        }
    }

    /// Undoes [`Self::leave`]: the rename failed.
    fn stay(&self, cx: &Cx<'_>, session: &mut Session, left: Left) {
        if let Left::Version(made) | Left::Inode(Some(made)) = left {
            self.object.head().take_back(cx, Some(session), Some(made), Errno::CANCELED);
        }
    }

    /// Returns the text of the reference to the new place: `DIR.GENERATION INODE.GENERATION NAME`,
    /// numbers in hexadecimal.
    fn reference(&self) -> Vec<u8> {
        let (dir, name) = self.to;
        let (dir, object) = (&dir.lower, &self.object.lower);
        let mut text =
            format!("{:x}.{:x} {:x}.{:x} ", dir.id(), dir.generation(), object.id(), object.generation()).into_bytes();
        text.extend_from_slice(name.as_bytes());
        text
    }

    /// Departs from the old name, which was one of several of the inode or got no version. The
    /// rename is done, so this does not fail.
    fn depart(&self, cx: &Cx<'_>, session: &mut Session, left: &Left) {
        session.renames = session.renames.wrapping_add(1);
        let (dir, name) = (&self.from.0.lower, self.from.1);
        match left {
            Left::Version(_) => {}
            Left::Nothing => self.object.leave_without_version(cx, dir, name, Cause::Rename),
            Left::Lost => {
                self.object.note_lost(cx, (dir, name), &self.attr, Cause::Rename);
                self.object.leave_without_version(cx, dir, name, Cause::Rename);
            }
            Left::Inode(made) => {
                self.object.leave_inode(cx, dir, name, (made.as_ref(), Cause::Rename));
                self.object.head().after_change(cx, session);
            }
        }
    }

    /// Arrives at the new name: records where the file came from. The rename is done, so this does
    /// not fail.
    fn arrive(&self, cx: &Cx<'_>, left: &Left, cause: Cause) {
        let (dir, name) = self.to;
        let object = &self.object;
        object.inode.forget_place();
        object.inode.found_at(&dir.lower, name.as_bytes());
        let server = object.core.server(cx);
        if object.lower.kind() == Kind::Directory {
            object.core.policies.forget_paths();
            object.core.blocks.moved();
        }
        let set = object.core.set_of_name(&dir.lower, name.as_bytes());
        let number = left.number();
        let from = Some(Place { dir: self.from.0.lower.id(), name: self.from.1.as_bytes().into(), number });
        let recorded = set.lock(&object.core, &server).and_then(|mut locked| {
            let (mut records, mut first) = (Vec::new(), locked.index().next());
            let time = locked.time_of_change(object.core.now());
            if matches!(left, Left::Inode(_)) {
                // Before the birth: the end of an earlier period ends the head before.
                first = object.head().number_link_after(&server, first)?;
                records.extend(locked.joining(time, &link_stem(&*object.lower), first));
            }
            let who = object.core.callers.who(cx);
            records.push(Record::Born(Birth { time, cause, who, from, first }));
            locked.append_after(&server, &records)
        });
        if let Err(errno) = recorded {
            tracing::warn!(%errno, "can't record where {name} came from");
        }
    }
}
