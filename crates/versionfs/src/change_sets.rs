//! Changes of whole version sets, the head included: rename, unlink, rmdir, chown, chmod (Versionfs
//! paper, section 3.4). They make no version.

use crate::change_versions::{copy_files, set_attributes, take_files_back};
use crate::core::Core;
use crate::history::{At, History};
use crate::node::{VersionVnode, is_reserved};
use crate::permission::{owns, require_owner, require_removable, require_writable};
use crate::retain::remove_tree;
use crate::set::{Set, link_stem};
use std::sync::Arc;
use versionset::Record;
use vnode::{Cx, Entry, Errno, Kind, Name, RenameFlags, Result, SetAttr};

/// The set-group-ID bit of a mode.
const SET_GID: u32 = 0o2000;

impl History {
    /// Returns the owners of the head and of all versions.
    fn owners(&self) -> Vec<u32> {
        self.head.iter().map(|head| head.attr.uid).chain(self.versions.iter().map(|seen| seen.version.uid)).collect()
    }

    fn require_any(&self) -> Result<()> {
        if self.head.is_none() && self.versions.is_empty() { Err(Errno::NOENT) } else { Ok(()) }
    }

    /// Returns the sets that keep versions of the name now: its own, and that of its inode.
    fn sets(&self, core: &Core) -> Vec<Arc<Set>> {
        let open = self.links.last().filter(|period| period.until.is_none());
        // A link that failed may have left a period of another inode.
        let is_head = |stem: &[u8]| self.head.as_ref().is_some_and(|head| *link_stem(&*head.vnode) == *stem);
        let link = open.filter(|period| is_head(&period.stem)).map(|period| core.set_of_link(&period.stem));
        core::iter::once(Arc::clone(&self.own)).chain(link).collect()
    }
}

/// Sets the owner, the group, or the mode of the head and of all versions.
fn set_all(core: &Core, cx: &Cx<'_>, history: &History, change: &SetAttr, record: &Record) -> Result<()> {
    let server = core.server(cx);
    if let Some(head) = &history.head {
        head.vnode.setattr(&server, change, None)?;
        core.report_attributes(head);
    }
    history.sets(core).iter().try_for_each(|set| set_attributes(core, &server, set, record.clone()))
}

/// Sets the owner and group; `u32::MAX` keeps one.
pub(crate) fn chown(core: &Core, cx: &Cx<'_>, at: &At, uid: u32, gid: u32) -> Result<()> {
    let history = at.history(core, cx)?;
    history.require_any()?;
    let owners = history.owners();
    require_owner(cx, owners.iter().copied())?;
    let may_give = uid == u32::MAX || owners.iter().all(|owner| *owner == uid);
    let may_join = gid == u32::MAX || cx.is_in_group(gid);
    if cx.uid != 0 && !(may_give && may_join) {
        return Err(Errno::PERM);
    }
    let keep = |id| Some(id).filter(|id| *id != u32::MAX);
    let change = SetAttr { uid: keep(uid), gid: keep(gid), kill_suidgid: true, ..SetAttr::default() };
    set_all(core, cx, &history, &change, &Record::Owner(uid, gid))
}

/// Sets the permission bits.
pub(crate) fn chmod(core: &Core, cx: &Cx<'_>, at: &At, mode: u32) -> Result<()> {
    let history = at.history(core, cx)?;
    history.require_any()?;
    require_owner(cx, history.owners())?;
    // The server would be allowed to set it, which the owner is not.
    let groups =
        history.head.iter().map(|head| head.attr.gid).chain(history.versions.iter().map(|seen| seen.version.gid));
    let may_set_gid = cx.uid == 0 || groups.into_iter().all(|gid| cx.is_in_group(gid));
    let mode = if may_set_gid { mode } else { mode & !SET_GID };
    let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
    set_all(core, cx, &history, &change, &Record::Mode(mode))
}

/// Removes the head and all versions: of a file, or of a directory that users see as empty.
pub(crate) fn remove(core: &Arc<Core>, cx: &Cx<'_>, at: &At, is_dir: bool) -> Result<()> {
    let _renames = core.renames.lock();
    let history = at.history(core, cx)?;
    history.require_any()?;
    let newest = history.versions.last().map(|seen| seen.version.kind);
    let kind = history.head.as_ref().map(|head| head.attr.kind()).or(newest);
    match (is_dir, kind == Some(Kind::Directory)) {
        (true, false) => return Err(Errno::NOTDIR),
        (false, true) => return Err(Errno::ISDIR),
        _ => {}
    }
    let owners = history.owners();
    require_removable(cx, &at.dir, &owners)?;
    if !owns(cx, at.dir.getattr(cx)?.uid) {
        // History is not only a name.
        require_owner(cx, owners)?;
    }
    let server = core.server(cx);
    // The names of a file with several share its versions: they go with the last one.
    let is_last = history.head.as_ref().is_none_or(|head| head.attr.nlink < 2 || is_dir);
    if let Some(head) = &history.head {
        remove_head(core, &server, at, head)?;
        core.report_entry(at, head);
        core.report_attributes(head);
    }
    let removed =
        remove_sets(core, &server, &history, is_last).and_then(|()| core.forget_lost(&server, &at.dir, &at.name));
    core.report_versions(at.dir.id(), &at.name);
    removed
}

/// Removes the versions of a name; those of its inode only if that is removed.
fn remove_sets(core: &Core, server: &Cx<'_>, history: &History, is_last: bool) -> Result<()> {
    let sets = history.sets(core);
    let count = if is_last { sets.len() } else { 1 };
    for set in sets.iter().take(count) {
        let mut locked = set.lock(core, server)?;
        let versions: Vec<_> =
            locked.index().versions.values().map(|version| (version.letter, version.number)).collect();
        for (letter, number) in versions {
            locked.discard_tail(server, number, letter)?;
        }
        locked.remove_index(server)?;
    }
    Ok(())
}

fn remove_head(core: &Arc<Core>, cx: &Cx<'_>, at: &At, head: &Entry) -> Result<()> {
    let object = VersionVnode::over(core, Arc::clone(&head.vnode));
    let mut session = object.inode.wait_session();
    if head.attr.kind() == Kind::Directory {
        object.require_empty(cx)?;
        remove_tree(cx, Some(&core.blocks), &at.dir, &at.name)?;
        core.sets.forget_dir(head.vnode.id());
        core.policies.forget_paths();
        object.inode.bury(None);
        return Ok(());
    }
    session.active = None;
    at.dir.unlink(cx, Name::new(&at.name)?)?;
    if head.attr.nlink < 2 {
        object.inode.bury(None);
    }
    object.inode.forget_place();
    Ok(())
}

/// Gives the head and all versions another name, which must have neither a head nor versions.
pub(crate) fn rename(core: &Arc<Core>, cx: &Cx<'_>, at: &At, new_dir: u64, new_name: &[u8]) -> Result<()> {
    if is_reserved(Name::new(new_name)?) {
        return Err(Errno::INVAL);
    }
    let _renames = core.renames.lock();
    let server = core.server(cx);
    let found = core.by_number(&server, new_dir)?;
    let to = At::new(&core.wrap_found(&server, found)?.lower, new_name);
    let (history, other) = (at.history(core, cx)?, to.history(core, cx)?);
    history.require_any()?;
    if at.dir.id() == to.dir.id() && at.name == to.name {
        return Ok(());
    }
    let owners = history.owners();
    require_removable(cx, &at.dir, &owners)?;
    require_writable(cx, &to.dir)?;
    if other.head.is_some() || !other.versions.is_empty() {
        return Err(Errno::EXIST);
    }
    let dir_head = history.head.as_ref().filter(|head| head.attr.kind() == Kind::Directory);
    if let Some(head) = dir_head
        && at.dir.id() != to.dir.id()
    {
        require_writable(cx, &head.vnode)?;
    }
    let moved = move_set(core, &server, at, &to, &history, &other);
    for place in [at, &to] {
        if let Some(head) = &history.head {
            core.report_entry(place, head);
        }
        core.report_versions(place.dir.id(), &place.name);
    }
    if let Some(head) = &history.head {
        core.report_attributes(head);
    }
    moved
}

/// Moves a set. Until the head is renamed, the old name has the complete set; after that, the new
/// one has it.
fn move_set(core: &Arc<Core>, cx: &Cx<'_>, at: &At, to: &At, history: &History, other: &History) -> Result<()> {
    let object = history.head.as_ref().map(|head| VersionVnode::over(core, Arc::clone(&head.vnode)));
    let mut session = object.as_ref().map(|object| object.inode.wait_session());
    if let Some(session) = &mut session {
        session.active = None;
    }
    let mut from_set = history.own.lock(core, cx)?;
    let mut to_set = other.own.lock(core, cx)?;
    let has_set = from_set.has_index();
    if has_set {
        core.inodes.get(to.dir.id()).set_has_store(true);
    }
    let copied = if has_set {
        to_set.take_over(cx, &from_set).and_then(|()| copy_files(cx, &from_set, &mut to_set))
    } else {
        Ok(())
    };
    let renamed = copied.and_then(|()| {
        let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
        if object.is_none() {
            return Ok(());
        }
        at.dir.rename(cx, Name::new(&at.name)?, &to.dir, Name::new(&to.name)?, flags)
    });
    if let Err(errno) = renamed {
        if has_set {
            take_files_back(cx, &from_set, &mut to_set)?;
            to_set.remove_index(cx)?;
        }
        return Err(errno);
    }
    if let Some(object) = &object {
        object.inode.forget_place();
        object.inode.found_at(&to.dir, &to.name);
        if object.lower.kind() == Kind::Directory {
            core.policies.forget_paths();
        }
    }
    if has_set {
        let versions: Vec<_> =
            from_set.index().versions.values().map(|version| (version.letter, version.number)).collect();
        for (letter, number) in versions {
            from_set.remove(cx, letter, number)?;
        }
        from_set.remove_index(cx)?;
    }
    Ok(())
}
