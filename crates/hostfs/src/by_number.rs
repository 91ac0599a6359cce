//! An object by its number, and the names of an object.
//!
//! Numbers of most objects are inode numbers. On ext4, f2fs, squashfs, btrfs and xfs a file handle
//! can be made from one, and the host opens it; everywhere else a [`Finder`] walks the tree. A
//! handle reaches every inode of the file system, so whatever one opens must be shown to lie inside
//! the root: a directory by its `..`, anything else by a name that leads to it.

use crate::handle::FileHandle;
use crate::identity::{self, HostInode};
use crate::layer::{Shared, dev_of, statx_fd};
use crate::reach::{REFER, proc_path, retry};
use crate::sys;
use crate::vnode_impl::{At, HostVnode, Reach};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, NameSink, Result, Vnode};

/// More directories than this never lie in one another.
const DEEPEST: u32 = 1 << 20;

/// How a file system makes the handle of an inode from its number.
#[derive(Clone, Debug)]
pub(crate) struct Forge {
    kind: i32,
    /// The handle of the root.
    model: Box<[u8]>,
    form: Form,
    /// No inode that a handle can reach lies outside the root.
    whole: bool,
}

/// What such a handle looks like: the number, what else the model has, and the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// 32 bits, and a generation that may be 0 for "any".
    Narrow,
    /// 64 bits, the subvolume, and a generation that may be 0 for "any".
    Btrfs,
    /// 32 or 64 bits, and the generation.
    Xfs,
}

impl Forge {
    /// Of a file system of that type (statfs(2)) whose root directory has this number and handle;
    /// `None` if handles can't be made there.
    pub(crate) fn of(magic: u64, ino: u64, handle: &FileHandle) -> Option<Self> {
        const EXT: u64 = 0xef53;
        const F2FS: u64 = 0xf2f5_2010;
        const SQUASHFS: u64 = 0x7371_7368;
        const BTRFS: u64 = 0x9123_683e;
        const XFS: u64 = 0x5846_5342;
        let (kind, model) = handle.parts();
        let narrow = model.first_chunk() == Some(&(ino as u32).to_le_bytes());
        let wide = model.first_chunk() == Some(&ino.to_le_bytes());
        // The handle types of the kernel's exportfs: FILEID_INO32_GEN, FILEID_BTRFS_WITHOUT_PARENT,
        // and FILEID_INO32_GEN with the flag of xfs for 64 bits.
        let form = match (magic, kind, model.len()) {
            (EXT | F2FS | SQUASHFS, 1, 8) if narrow => Form::Narrow,
            (BTRFS, 0x4d, 20) if wide => Form::Btrfs,
            (XFS, 1, 8) if narrow => Form::Xfs,
            (XFS, 0x81, 12) if wide => Form::Xfs,
            _ => return None,
        };
        // The numbers of the root directories of these file systems and of btrfs subvolumes.
        let whole = matches!((magic, ino), (EXT, 2) | (F2FS, 3) | (BTRFS, 256));
        Some(Self { kind, model: model.into(), form, whole })
    }

    /// The handle of an inode.
    fn handle(&self, root: BorrowedFd<'_>, ino: u64) -> Result<Vec<u8>> {
        let generation = if self.form == Form::Xfs { sys::xfs_generation(root, ino)? } else { 0 };
        let mut handle = self.model.to_vec();
        let at = handle.len().saturating_sub(4);
        let (number, last) = handle.split_at_mut_checked(at).ok_or(Errno::STALE)?;
        last.copy_from_slice(&generation.to_le_bytes());
        if let Some(wide) = number.first_chunk_mut() {
            *wide = ino.to_le_bytes();
        } else {
            number.copy_from_slice(&u32::try_from(ino).map_err(|_| Errno::STALE)?.to_le_bytes());
        }
        Ok(handle)
    }
}

impl Shared {
    /// The vnode of a number that nobody holds.
    pub(crate) fn by_number(self: &Arc<Self>, cx: &Cx<'_>, number: u64) -> Result<Arc<HostVnode>> {
        cx.require_blocking()?;
        match &self.forge {
            Some(forge) if identity::is_plain(number) => self.by_forged_handle(cx, forge, number),
            _ => {
                let found = self.finder.find(cx, &self.root_of_walk()?, number, 1)?.into_iter().next();
                self.own(&found.ok_or(Errno::STALE)?.entry.vnode)
            }
        }
    }

    fn by_forged_handle(self: &Arc<Self>, cx: &Cx<'_>, forge: &Forge, number: u64) -> Result<Arc<HostVnode>> {
        let handle = forge.handle(self.root.as_fd(), number)?;
        let opened = sys::open_by_handle(self.root.as_fd(), forge.kind, &handle, REFER.bits().cast_signed());
        let fd = opened.map_err(|errno| match errno {
            // There is no such inode, or no such number.
            Errno::NOENT | Errno::INVAL => Errno::STALE,
            errno => errno,
        })?;
        let stat = statx_fd(&fd)?;
        let inode = HostInode { dev: dev_of(&stat), ino: stat.stx_ino };
        if (inode.ino, inode.dev) != (number, self.root_dev) || stat.stx_nlink == 0 {
            return Err(Errno::STALE);
        }
        let Entry { vnode, attr } = self.root_vnode()?.entry_of_fd(fd.as_fd(), None)?;
        let vnode = self.own(&vnode)?;
        let inside = forge.whole
            || match attr.kind() {
                Kind::Directory => self.is_inside(&fd)?,
                _ => !vnode.names_of_file(cx, 1)?.is_empty(),
            };
        if inside { Ok(vnode) } else { Err(Errno::STALE) }
    }

    /// Does the directory lie inside the root?
    fn is_inside(&self, dir: &OwnedFd) -> Result<bool> {
        let mut at = inode_of(dir)?;
        let mut above: Option<OwnedFd> = None;
        for _ in 0..DEEPEST {
            if at == self.root_inode {
                return Ok(true);
            }
            let up = match self.up(above.as_ref().unwrap_or(dir)) {
                // Outside of a mount that shows a part of the file system only.
                Err(Errno::NOENT) => return Ok(false),
                other => other?,
            };
            let next = inode_of(&up)?;
            if next == at {
                return Ok(false);
            }
            (at, above) = (next, Some(up));
        }
        Ok(false)
    }

    fn up(&self, dir: impl AsFd) -> Result<OwnedFd> {
        retry(|| rustix::fs::openat(dir.as_fd(), c"..", REFER | OFlags::DIRECTORY, Mode::empty()))
    }

    /// The vnode of a directory that `fd` is open on.
    fn dir_of_fd(self: &Arc<Self>, fd: &OwnedFd) -> Result<Arc<HostVnode>> {
        if inode_of(fd)? == self.root_inode {
            return self.root_vnode();
        }
        self.own(&self.root_vnode()?.entry_of_fd(fd.as_fd(), None)?.vnode)
    }

    fn root_vnode(&self) -> Result<Arc<HostVnode>> {
        self.root_vnode.get().and_then(std::sync::Weak::upgrade).ok_or(Errno::STALE)
    }

    fn root_of_walk(&self) -> Result<Arc<dyn Vnode>> {
        Ok(self.root_vnode()?)
    }

    fn own(&self, vnode: &Arc<dyn Vnode>) -> Result<Arc<HostVnode>> {
        self.root_vnode()?.same_layer(vnode)
    }
}

fn inode_of(fd: impl AsFd) -> Result<HostInode> {
    let stat = statx_fd(fd)?;
    Ok(HostInode { dev: dev_of(&stat), ino: stat.stx_ino })
}

impl HostVnode {
    /// Tells the names of this object: none if it is the root or was removed. The first one is
    /// cheap if it is known; that there are no more of them may take a walk.
    pub(crate) fn tell_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        if let Reach::Root(_) = self.reach() {
            return Ok(());
        }
        let nlink = self.attributes()?.nlink as usize;
        if nlink == 0 {
            return Ok(());
        }
        let mut tell = |names: &[At]| -> Result<bool> {
            for At { parent, name } in names {
                let dir: Arc<dyn Vnode> = Arc::clone(parent) as Arc<dyn Vnode>;
                if !sink(&dir, Name::new(name)?) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if self.what() == Kind::Directory {
            let names: Vec<At> = self.name_of_directory(cx)?.into_iter().collect();
            return tell(&names).map(|_| ());
        }
        let first = self.names_of_file(cx, 1)?;
        if tell(&first)? && first.len() < nlink {
            let mut rest = self.names_of_file(cx, nlink)?;
            rest.retain(|at| !first.iter().any(|told| Arc::ptr_eq(&told.parent, &at.parent) && told.name == at.name));
            tell(&rest)?;
        }
        Ok(())
    }

    /// Its name, by `..`. Nothing if it was moved out of the root or removed meanwhile.
    fn name_of_directory(&self, cx: &Cx<'_>) -> Result<Option<At>> {
        if let Some(known) = self.known_place()? {
            return Ok(Some(known));
        }
        cx.require_blocking()?;
        // The kernel knows the way to a directory that is open.
        if let Some(known) = self.name_in_cache()? {
            return Ok(Some(known));
        }
        let fs = self.fs();
        let up = match fs.up(&*self.dir_fd()?) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        if !fs.is_inside(&up)? {
            return Ok(None);
        }
        let parent = fs.dir_of_fd(&up)?;
        let mut name = None;
        parent.list(0, &mut |entry| {
            if entry.ino == self.number() {
                name = Some(Box::from(entry.name.as_bytes()));
            }
            name.is_none() && !cx.is_cancelled()
        })?;
        cx.check()?;
        Ok(name.map(|name| At { parent, name }))
    }

    /// `enough` names of something that is no directory, or all of them.
    fn names_of_file(&self, cx: &Cx<'_>, enough: usize) -> Result<Vec<At>> {
        let known = match self.known_place()? {
            None => self.name_in_cache()?,
            known => known,
        };
        if enough <= 1
            && let Some(known) = known
        {
            return Ok(vec![known]);
        }
        let fs = self.fs();
        let found = fs.finder.find(cx, &fs.root_of_walk()?, self.number(), enough)?;
        let mut names = Vec::new();
        for found in found {
            // Another object may have the number by now.
            if std::ptr::eq(Arc::as_ptr(&fs.own(&found.entry.vnode)?), self) {
                names.push(At { parent: fs.own(&found.dir)?, name: found.name });
            }
        }
        Ok(names)
    }

    /// Where it was known to be, if it is still there.
    fn known_place(&self) -> Result<Option<At>> {
        let Reach::Place(_, place) = self.reach() else { return Ok(None) };
        match self.walk_to(place) {
            Ok(_) => Ok(Some(place.snapshot())),
            Err(Errno::STALE) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The name that the kernel has in its cache, verified.
    fn name_in_cache(&self) -> Result<Option<At>> {
        let fs = self.fs();
        if !fs.detached {
            return Ok(None);
        }
        let fd = self.fd()?;
        let inode = inode_of(&fd)?;
        // From the root of our own mount; "/" alone if the kernel doesn't know.
        let path = rustix::fs::readlink(proc_path(&fd), Vec::new())?.into_bytes();
        let Some(cut) = path.iter().rposition(|&byte| byte == b'/') else { return Ok(None) };
        let (dir, name) = (path.get(1..cut).unwrap_or_default(), path.get(cut + 1..).unwrap_or_default());
        if Name::new(name).is_err() {
            return Ok(None);
        }
        let dir = if dir.is_empty() { b"." } else { dir };
        let flags = REFER | OFlags::DIRECTORY;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        // Anything may have been renamed meanwhile: then the name is not known.
        let Ok(dir) = rustix::fs::openat2(&*fs.root, dir, flags, Mode::empty(), beneath) else { return Ok(None) };
        if fs.refer_verified(&dir, name, inode).is_err() {
            return Ok(None);
        }
        Ok(Some(At { parent: fs.dir_of_fd(&dir)?, name: name.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forge(magic: u64, ino: u64, kind: i32, handle: &[u8]) -> Option<Forge> {
        Forge::of(magic, ino, &FileHandle::new(kind, handle))
    }

    #[test]
    fn handles_are_made_where_their_form_is_known() {
        let root = rustix::fs::open("/", OFlags::RDONLY, Mode::empty()).unwrap();
        let ext4 = forge(0xef53, 2, 1, &[2, 0, 0, 0, 9, 9, 9, 9]).unwrap();
        assert!(ext4.whole);
        assert_eq!(ext4.handle(root.as_fd(), 0x0102).unwrap(), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ext4.handle(root.as_fd(), 1 << 32), Err(Errno::STALE));
        let mut bytes = [7; 20];
        bytes[..8].copy_from_slice(&257u64.to_le_bytes());
        let btrfs = forge(0x9123_683e, 257, 0x4d, &bytes).unwrap();
        assert!(!btrfs.whole);
        let made = btrfs.handle(root.as_fd(), 1 << 40).unwrap();
        assert_eq!(made, [[0, 0, 0, 0, 0, 1, 0, 0].as_slice(), &[7; 8], &[0; 4]].concat());
        // Another type of handle, another file system, a handle of another inode.
        assert!(forge(0xef53, 2, 2, &[2, 0, 0, 0, 9, 9, 9, 9]).is_none());
        assert!(forge(0x0102_1994, 2, 1, &[2, 0, 0, 0, 9, 9, 9, 9]).is_none());
        assert!(forge(0xef53, 3, 1, &[2, 0, 0, 0, 9, 9, 9, 9]).is_none());
        let xfs = [[128, 0, 0, 0, 0, 0, 0, 0].as_slice(), &[1, 2, 3, 4]].concat();
        assert_eq!(forge(0x5846_5342, 128, 0x81, &xfs).unwrap().form, Form::Xfs);
    }
}
