use crate::layer::{WANTED, statx_fd};
use crate::vnode_impl::HostVnode;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, RenameFlags as HostFlags};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result, Vnode};

/// What a name leads to before it goes, if somebody holds its vnode.
struct Victim {
    vnode: Arc<HostVnode>,
    /// What keeps it, if it can't be reached any more once the name is gone.
    fd: Option<OwnedFd>,
}

impl HostVnode {
    pub(crate) fn remove_file(&self, name: Name<'_>) -> Result<()> {
        let dir = self.dir_to_change()?;
        let _steady = self.fs().changing_names();
        let victim = self.victim(&dir, name)?;
        rustix::fs::unlinkat(&dir, name.as_bytes(), AtFlags::empty())?;
        self.bury(victim);
        Ok(())
    }

    pub(crate) fn remove_directory(&self, name: Name<'_>) -> Result<()> {
        let dir = self.dir_to_change()?;
        let _steady = self.fs().changing_names();
        let victim = self.victim(&dir, name)?;
        rustix::fs::unlinkat(&dir, name.as_bytes(), AtFlags::REMOVEDIR)?;
        self.bury(victim);
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
        let _steady = self.fs().changing_names();
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
            // What is left at the old name belongs to the caller.
            if flags.whiteout { self.fs().server.create_as(cx, 0, |_| rename()) } else { rename() }
        };
        target.note_name(new_name, moved)?;
        self.fs().finder.moved();
        if flags.exchange || flags.whiteout {
            // Btrfs takes both names away and makes them anew, at the end: who is listing the directory may miss them.
            self.fs().names.came(self.number(), name);
        }
        if self.fs().handles.is_none() {
            target.note_place(&new, new_name);
            if flags.exchange {
                self.note_place(&dir, name);
            }
        }
        self.bury(victim);
        Ok(())
    }

    /// What `name` is before it is removed or replaced; `None` if nobody holds its vnode.
    ///
    /// The host frees an object with its last name, unless it is open; who still holds its vnode may ask for its attributes.
    /// A descriptor keeps it for them. It also puts off the freeing itself, which takes long for large files, until the vnode
    /// is dropped.
    fn victim(&self, dir: &OwnedFd, name: Name<'_>) -> Result<Option<Victim>> {
        let fs = self.fs();
        if self.surely_lacks(dir, name) {
            return Ok(None);
        }
        let (number, nlink) = match self.number_of_name(dir, name) {
            Ok(found) => found,
            // It is for the operation itself to say what is wrong.
            Err(Errno::NOENT | Errno::XDEV) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let Some(vnode) = fs.table.get(number) else { return Ok(None) };
        if nlink > 1 && vnode.what() != Kind::Directory && !vnode.is_placed_at(self, name.as_bytes()) {
            return Ok(Some(Victim { vnode, fd: None }));
        }
        // By what is known of the vnode, so that it is this object and no other. One that was removed behind our back is
        // not there any more.
        let fd = vnode.refer_at(dir, name).ok();
        Ok(Some(Victim { vnode, fd }))
    }

    /// Number and link count of what `name` is.
    fn number_of_name(&self, dir: &OwnedFd, name: Name<'_>) -> Result<(u64, u32)> {
        let fs = self.fs();
        if fs.detached {
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let stat = rustix::fs::statx(dir, name.as_bytes(), flags, WANTED)?;
            if fs.is_direct(&stat) {
                return Ok((stat.stx_ino, stat.stx_nlink));
            }
        }
        let fd = fs.refer_name(dir, name.as_bytes())?;
        let stat = statx_fd(&fd)?;
        Ok((fs.number_of(&fd, &stat)?, stat.stx_nlink))
    }

    /// Its name is gone.
    fn bury(&self, victim: Option<Victim>) {
        let Some(Victim { vnode, fd }) = victim else { return };
        let fs = self.fs();
        if vnode.what() == Kind::Directory {
            fs.dirs.remove(vnode.number());
            fs.listings.remove(vnode.number());
            fs.names.remove(vnode.number());
        }
        if let Some(fd) = fd {
            fs.table.pin(&vnode, fd);
        }
        vnode.cool();
    }

    /// A renamed object is where it is now. What can't be found out is found to be stale later.
    fn note_place(&self, dir: &OwnedFd, name: Name<'_>) {
        let fs = self.fs();
        let Ok(fd) = fs.refer_name(dir, name.as_bytes()) else { return };
        let Ok(number) = statx_fd(&fd).and_then(|stat| fs.number_of(&fd, &stat)) else { return };
        if let (Some(vnode), Ok(parent)) = (fs.table.get(number), self.shared_self()) {
            vnode.set_place(&parent, name.as_bytes());
        }
    }
}
