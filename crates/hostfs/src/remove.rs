//! Removes and renames, and pins objects that lose their last name.

use crate::layer::{WANTED, statx_fd};
use crate::vnode_impl::HostVnode;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, RenameFlags as HostFlags};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result, Vnode};

/// The object of a name that is about to be removed or replaced, if its vnode is referenced.
struct Victim {
    vnode: Arc<HostVnode>,
    /// A descriptor that keeps the object, if it can't be reopened without the name.
    fd: Option<OwnedFd>,
}

impl HostVnode {
    pub(crate) fn remove_file(&self, name: Name<'_>) -> Result<()> {
        let dir = self.dir_to_change()?;
        let _places = self.fs().write_places();
        let victim = self.victim(&dir, name)?;
        rustix::fs::unlinkat(&dir, name.as_bytes(), AtFlags::empty())?;
        self.finish_removal(victim);
        Ok(())
    }

    pub(crate) fn remove_directory(&self, name: Name<'_>) -> Result<()> {
        let dir = self.dir_to_change()?;
        let _places = self.fs().write_places();
        let victim = self.victim(&dir, name)?;
        rustix::fs::unlinkat(&dir, name.as_bytes(), AtFlags::REMOVEDIR)?;
        self.finish_removal(victim);
        Ok(())
    }

    pub(crate) fn move_entry(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let target = self.same_layer(new_dir)?;
        let (dir, new) = (self.dir_to_change()?, target.dir_to_change()?);
        let _places = self.fs().write_places();
        let mut host = HostFlags::empty();
        host.set(HostFlags::NOREPLACE, flags.no_replace);
        host.set(HostFlags::EXCHANGE, flags.exchange);
        host.set(HostFlags::WHITEOUT, flags.whiteout);
        let itself = target.number() == self.number() && name == new_name;
        let victim =
            if !flags.no_replace && !flags.exchange && !itself { target.victim(&new, new_name)? } else { None };
        let moved = if host.is_empty() {
            rustix::fs::renameat(&dir, name.as_bytes(), &new, new_name.as_bytes())
        } else {
            let rename = || rustix::fs::renameat_with(&dir, name.as_bytes(), &new, new_name.as_bytes(), host);
            // The whiteout at the old name belongs to the caller.
            if flags.whiteout { self.fs().server.create_as(cx, 0, |_| rename()) } else { rename() }
        };
        target.note_name(new_name, moved)?;
        self.fs().finder.moved();
        if flags.exchange || flags.whiteout {
            // Btrfs removes both names and adds them at the end, so a concurrent listing may miss
            // them.
            self.fs().names.note_added(self.number(), name);
        }
        if self.fs().handles.is_none() {
            target.note_place(&new, new_name);
            if flags.exchange {
                self.note_place(&dir, name);
            }
        }
        self.finish_removal(victim);
        Ok(())
    }

    /// Returns the object that `name` refers to before it is removed or replaced; `None` if its
    /// vnode is not referenced.
    ///
    /// The host frees an object with its last name, unless it is open. A descriptor keeps it
    /// available to the holders of its vnode. It also postpones the freeing, which takes long for
    /// large files, until the vnode is dropped.
    fn victim(&self, dir: &OwnedFd, name: Name<'_>) -> Result<Option<Victim>> {
        let fs = self.fs();
        if self.is_known_missing(dir, name) {
            return Ok(None);
        }
        let (number, nlink) = match self.number_of_name(dir, name) {
            Ok(found) => found,
            // The operation itself reports the error.
            Err(Errno::NOENT | Errno::XDEV) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let Some(vnode) = fs.table.get(number) else { return Ok(None) };
        if nlink > 1 && vnode.object_kind() != Kind::Directory && !vnode.is_placed_at(self, name.as_bytes()) {
            return Ok(Some(Victim { vnode, fd: None }));
        }
        // Opened by the vnode's locator, so that it is this object and no other. This fails for an
        // object that was removed out of band.
        let fd = vnode.path_fd_in(dir, name).ok();
        Ok(Some(Victim { vnode, fd }))
    }

    /// Returns the number and link count of the object that `name` refers to.
    fn number_of_name(&self, dir: &OwnedFd, name: Name<'_>) -> Result<(u64, u32)> {
        let fs = self.fs();
        if fs.detached {
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let stat = rustix::fs::statx(dir, name.as_bytes(), flags, WANTED)?;
            if fs.is_direct(&stat) {
                return Ok((stat.stx_ino, stat.stx_nlink));
            }
        }
        let fd = fs.path_fd_at(dir, name.as_bytes())?;
        let stat = statx_fd(&fd)?;
        Ok((fs.number_of(&fd, &stat)?, stat.stx_nlink))
    }

    /// Pins the object after its name was removed, and drops its cache entries.
    fn finish_removal(&self, victim: Option<Victim>) {
        let Some(Victim { vnode, fd }) = victim else { return };
        let fs = self.fs();
        if vnode.object_kind() == Kind::Directory {
            fs.dirs.remove(vnode.number());
            fs.listings.remove(vnode.number());
            fs.names.remove(vnode.number());
        }
        if let Some(fd) = fd {
            fs.table.pin(&vnode, fd);
        }
        vnode.drop_kept();
    }

    /// Records the new place of a renamed object. If that fails, the object is found to be stale
    /// later.
    fn note_place(&self, dir: &OwnedFd, name: Name<'_>) {
        let fs = self.fs();
        let Ok(fd) = fs.path_fd_at(dir, name.as_bytes()) else { return };
        let Ok(number) = statx_fd(&fd).and_then(|stat| fs.number_of(&fd, &stat)) else { return };
        if let (Some(vnode), Ok(parent)) = (fs.table.get(number), self.shared_self()) {
            vnode.set_place(&parent, name.as_bytes());
        }
    }
}
