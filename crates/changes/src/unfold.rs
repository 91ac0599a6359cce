//! Unfolds renamed directories: copies into their parts on the upper branch what they merge from
//! the branches below, and makes them opaque. The union does not change.
//!
//! A renamed directory refers to its old path on the branches below. No order of steps on the
//! target would keep that path valid until the new one is complete, for example if two directories
//! were exchanged. An opaque directory refers to nothing.

use crate::branches::{Branches, Views, cx};
use crate::error::{At, Error, Failed};
use crate::find::upper_part;
use crate::ops::{components, is_dir, join, list, lookup, resolve, set_times, split};
use std::sync::Arc;
use unionfs::offline::{OPAQUE_MARK, Record, Writable};
use vnode::{Cx, Errno, Kind, Name, SetAttr, SetTime, Vnode};

impl Branches {
    /// Unfolds the directories at these paths of the union, and gives these `names` of files that
    /// were copied up entries of their own in the upper branch.
    pub(crate) fn unfold(&self, paths: &[Vec<u8>], names: &[Vec<u8>]) -> Result<(), Error> {
        let cx = cx();
        // The union itself copies up, so that all names of a file lead to the copy.
        let union = self.writable()?;
        for path in paths {
            if let Some(dir) = resolve(&cx, &union.root(), path).at("look up", path)? {
                copy_up(&cx, path, &dir)?;
            }
        }
        for path in paths {
            if let Some(dir) = resolve(&cx, &union.root(), path).at("look up", path)? {
                give_entries(&cx, &union, path, &dir)?;
            }
        }
        for path in names {
            give_entry(&cx, &union, path)?;
        }
        drop(union);
        let views = &self.views()?;
        for path in paths {
            let Some(dir) = resolve(&cx, &views.all.root(), path).at("look up", path)? else { continue };
            if let Some(own) = upper_part(views, &dir).at("look up", path)? {
                check_names(&cx, views, path, &dir)?;
                make_opaque(&cx, path, &own)?;
            }
        }
        Ok(())
    }
}

/// Copies everything in a directory to the upper branch, with the data.
fn copy_up(cx: &Cx<'_>, path: &[u8], dir: &Arc<dyn Vnode>) -> Result<(), Failed> {
    for (name, _) in list(cx, dir).at("list", path)? {
        let inner = join(path, &name);
        let Some(entry) = lookup(cx, dir, &name).at("look up", &inner)? else { continue };
        if entry.vnode.kind() == Kind::Regular {
            // A metacopy gets its data only when the file is opened for writing.
            entry.vnode.open(cx, vnode::OpenFlags::WRONLY).at("copy up", &inner)?;
        } else {
            let same = SetAttr { mtime: Some(SetTime::At(entry.attr.mtime)), ..SetAttr::default() };
            entry.vnode.setattr(cx, &same, None).at("copy up", &inner)?;
        }
        if is_dir(&entry.vnode) {
            copy_up(cx, &inner, &entry.vnode)?;
        }
    }
    Ok(())
}

/// Gives the names in a directory, which lead to copies by the index of hard links, entries of
/// their own in the upper branch.
fn give_entries(cx: &Cx<'_>, union: &Writable, path: &[u8], dir: &Arc<dyn Vnode>) -> Result<(), Failed> {
    for (name, _) in list(cx, dir).at("list", path)? {
        let inner = join(path, &name);
        let Some(entry) = lookup(cx, dir, &name).at("look up", &inner)? else { continue };
        if is_dir(&entry.vnode) {
            give_entries(cx, union, &inner, &entry.vnode)?;
        } else {
            let name = Name::new(&name).at("look up", &inner)?;
            union.give_entry(cx, dir, name).at("link the copy to another name", &inner)?;
        }
    }
    dir.fsync(cx, false).at("write the directory to the disk", path)
}

/// As [`give_entries`], for one name.
fn give_entry(cx: &Cx<'_>, union: &Writable, path: &[u8]) -> Result<(), Failed> {
    const SYNC: &str = "write the directory to the disk";
    let (parent, name) = split(path);
    let mut dir = union.root();
    let mut above = vec![Arc::clone(&dir)];
    for name in components(parent) {
        let entry = name.and_then(|name| dir.lookup(cx, name)).at("look up", path)?;
        dir = entry.ok_or(Errno::STALE).at("look up", path)?.vnode;
        above.push(Arc::clone(&dir));
    }
    let name = Name::new(name).at("look up", path)?;
    union.give_entry(cx, &dir, name).at("link the copy to another name", path)?;
    // The directories may be new on the upper branch.
    above.iter().try_for_each(|dir| dir.fsync(cx, false)).at(SYNC, path)
}

/// Checks that the upper branch has all that a directory shows.
fn check_names(cx: &Cx<'_>, views: &Views, path: &[u8], dir: &Arc<dyn Vnode>) -> Result<(), Failed> {
    let own = upper_part(views, dir).at("look up", path)?.ok_or(Errno::STALE).at("look up", path)?;
    for (name, _) in list(cx, dir).at("list", path)? {
        let inner = join(path, &name);
        let Some(shown) = lookup(cx, dir, &name).at("look up", &inner)? else { continue };
        if lookup(cx, &own, &name).at("look up", &inner)?.is_none() {
            return Err(Errno::STALE).at("copy up", &inner);
        }
        if is_dir(&shown.vnode) {
            check_names(cx, views, &inner, &shown.vnode)?;
        }
    }
    Ok(())
}

/// Makes a directory of the upper branch merge nothing.
fn make_opaque(cx: &Cx<'_>, path: &[u8], own: &Arc<dyn Vnode>) -> Result<(), Failed> {
    let before = own.getattr(cx).at("read the attributes", path)?;
    let mark = Name::new(OPAQUE_MARK).at("create an opaque mark", path)?;
    match own.mknod(cx, mark, Kind::Regular.mode_bits() | 0o444, 0) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno).at("create an opaque mark", path),
    }
    own.fsync(cx, false).at("write the directory to the disk", path)?;
    for (name, _) in list(cx, own).at("list", path)? {
        if Record::of(&name) == Record::Redirect {
            Name::new(&name).and_then(|name| own.unlink(cx, name)).at("remove a redirect", path)?;
        }
    }
    set_times(cx, own, &before).at("set the times", path)
}
