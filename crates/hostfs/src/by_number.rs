//! Vnodes by number, and the names of an object.
//!
//! The numbers of most objects are inode numbers. On ext4, f2fs, squashfs, btrfs and xfs the layer
//! constructs a file handle from the number, and the host opens it. Elsewhere a [`vnode::Finder`]
//! walks the tree. A handle can reach every inode of the file system, so the layer verifies that
//! the object lies inside the root: a directory by following `..`, any other object by a name
//! inside.

use crate::handle::FileHandle;
use crate::identity::{self, HostInode};
use crate::layer::{Shared, dev_of, statx_fd};
use crate::reopen::{PATH_ONLY, proc_path, retry};
use crate::sys;
use crate::vnode_impl::{At, HostVnode, Locator};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, NameSink, Result, Vnode};

/// Maximum depth of directories, against endless loops.
const MAX_DEPTH: u32 = 1 << 20;

/// Constructs file handles from inode numbers on this file system.
#[derive(Clone, Debug)]
pub(crate) struct HandleBuilder {
    kind: i32,
    /// The handle of the root, which has the fields that all handles share.
    model: Box<[u8]>,
    layout: Layout,
    /// Whether the root is the root of the file system or of its btrfs subvolume, so that every
    /// inode that a handle can reach lies inside it.
    reaches_only_root: bool,
}

/// Layout of a handle: inode number, fields copied from the model, generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// A 32-bit number, and a generation that may be 0 for "any".
    Narrow,
    /// A 64-bit number, the subvolume, and a generation that may be 0 for "any".
    Btrfs,
    /// A 32-bit or 64-bit number, and the exact generation.
    Xfs,
}

impl HandleBuilder {
    /// Returns the rule for a file system with this magic number of statfs(2), whose root directory
    /// has this inode number and handle. `None` if handles can't be constructed there.
    pub(crate) fn of(magic: u64, ino: u64, handle: &FileHandle) -> Option<Self> {
        const EXT: u64 = 0xef53;
        const F2FS: u64 = 0xf2f5_2010;
        const SQUASHFS: u64 = 0x7371_7368;
        const BTRFS: u64 = 0x9123_683e;
        const XFS: u64 = 0x5846_5342;
        let (kind, model) = handle.parts();
        let narrow = model.first_chunk() == Some(&(ino as u32).to_le_bytes());
        let wide = model.first_chunk() == Some(&ino.to_le_bytes());
        // Handle types of the kernel's exportfs: FILEID_INO32_GEN, FILEID_BTRFS_WITHOUT_PARENT, and
        // FILEID_INO32_GEN with the xfs flag for 64 bits.
        let layout = match (magic, kind, model.len()) {
            (EXT | F2FS | SQUASHFS, 1, 8) if narrow => Layout::Narrow,
            (BTRFS, 0x4d, 20) if wide => Layout::Btrfs,
            (XFS, 1, 8) if narrow => Layout::Xfs,
            (XFS, 0x81, 12) if wide => Layout::Xfs,
            _ => return None,
        };
        // Inode numbers of the root directories of these file systems, and of btrfs subvolumes.
        let reaches_only_root = matches!((magic, ino), (EXT, 2) | (F2FS, 3) | (BTRFS, 256));
        Some(Self { kind, model: model.into(), layout, reaches_only_root })
    }

    /// Constructs the handle of an inode.
    fn handle(&self, root: BorrowedFd<'_>, ino: u64) -> Result<Vec<u8>> {
        let generation = if self.layout == Layout::Xfs { sys::xfs_generation(root, ino)? } else { 0 };
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
    /// Returns the vnode of a number that has no live vnode.
    pub(crate) fn vnode_by_number(self: &Arc<Self>, cx: &Cx<'_>, number: u64) -> Result<Arc<HostVnode>> {
        cx.require_blocking()?;
        match &self.handle_builder {
            Some(builder) if identity::is_plain(number) => self.vnode_by_built_handle(cx, builder, number),
            _ => {
                let found = self.finder.find(cx, &self.root_of_walk()?, number, 1)?.into_iter().next();
                self.downcast(&found.ok_or(Errno::STALE)?.entry.vnode)
            }
        }
    }

    fn vnode_by_built_handle(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        builder: &HandleBuilder,
        number: u64,
    ) -> Result<Arc<HostVnode>> {
        let handle = builder.handle(self.root.as_fd(), number)?;
        let opened = sys::open_by_handle(self.root.as_fd(), builder.kind, &handle, PATH_ONLY.bits().cast_signed());
        let fd = opened.map_err(|errno| match errno {
            // No such inode, or an invalid number.
            Errno::NOENT | Errno::INVAL => Errno::STALE,
            errno => errno,
        })?;
        let stat = statx_fd(&fd)?;
        let inode = HostInode { dev: dev_of(&stat), ino: stat.stx_ino };
        if (inode.ino, inode.dev) != (number, self.root_dev) || stat.stx_nlink == 0 {
            return Err(Errno::STALE);
        }
        let Entry { vnode, attr } = self.root_vnode()?.entry_of_fd(fd.as_fd(), None)?;
        let vnode = self.downcast(&vnode)?;
        let inside = builder.reaches_only_root
            || match attr.kind() {
                Kind::Directory => self.is_inside(&fd)?,
                _ => !vnode.names_of_file(cx, 1)?.is_empty(),
            };
        if inside { Ok(vnode) } else { Err(Errno::STALE) }
    }

    /// Returns this layer's vnode of an object of another layer. The object may lie outside of this
    /// layer's root.
    ///
    /// # Errors
    /// `EXDEV` if the other layer is not a directory of the same file system, or if its objects
    /// can't be opened by handle.
    pub(crate) fn adopt(self: &Arc<Self>, object: &Arc<dyn Vnode>) -> Result<Arc<HostVnode>> {
        let theirs = object.as_any().downcast_ref::<HostVnode>().ok_or(Errno::XDEV)?;
        let handle = match theirs.locator() {
            Locator::Small(_, handle) => FileHandle::Small(handle.clone()),
            Locator::Large(_, handle) => FileHandle::Large(handle.clone()),
            Locator::Root(_) | Locator::Place(..) => return Err(Errno::XDEV),
        };
        if self.handles.is_none() || theirs.fs().root_dev != self.root_dev {
            return Err(Errno::XDEV);
        }
        // Opened on this layer's mount: the kernel links nothing across mounts.
        let fd = handle.open(self.root.as_fd(), PATH_ONLY.bits().cast_signed())?;
        if inode_of(&fd)? != inode_of(theirs.fd()?)? {
            return Err(Errno::XDEV);
        }
        self.downcast(&self.root_vnode()?.entry_of_fd(fd.as_fd(), None)?.vnode)
    }

    /// Whether the directory lies inside the root.
    fn is_inside(&self, dir: &OwnedFd) -> Result<bool> {
        let mut at = inode_of(dir)?;
        let mut above: Option<OwnedFd> = None;
        for _ in 0..MAX_DEPTH {
            if at == self.root_inode {
                return Ok(true);
            }
            let up = match self.open_parent(above.as_ref().unwrap_or(dir)) {
                // Outside a mount that exposes only a part of the file system.
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

    fn open_parent(&self, dir: impl AsFd) -> Result<OwnedFd> {
        retry(|| rustix::fs::openat(dir.as_fd(), c"..", PATH_ONLY | OFlags::DIRECTORY, Mode::empty()))
    }

    /// Returns the vnode of the directory that `fd` is open on.
    fn dir_of_fd(self: &Arc<Self>, fd: &OwnedFd) -> Result<Arc<HostVnode>> {
        if inode_of(fd)? == self.root_inode {
            return self.root_vnode();
        }
        self.downcast(&self.root_vnode()?.entry_of_fd(fd.as_fd(), None)?.vnode)
    }

    fn root_vnode(&self) -> Result<Arc<HostVnode>> {
        self.root_vnode.get().and_then(std::sync::Weak::upgrade).ok_or(Errno::STALE)
    }

    fn root_of_walk(&self) -> Result<Arc<dyn Vnode>> {
        Ok(self.root_vnode()?)
    }

    fn downcast(&self, vnode: &Arc<dyn Vnode>) -> Result<Arc<HostVnode>> {
        self.root_vnode()?.same_layer(vnode)
    }
}

fn inode_of(fd: impl AsFd) -> Result<HostInode> {
    let stat = statx_fd(fd)?;
    Ok(HostInode { dev: dev_of(&stat), ino: stat.stx_ino })
}

impl HostVnode {
    /// Passes the names of this object to `sink`: none for the root or a removed object. The first
    /// name is cheap if it is known. Finding further names, or that there are none, may take a walk
    /// of the tree.
    pub(crate) fn emit_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        if let Locator::Root(_) = self.locator() {
            return Ok(());
        }
        let nlink = self.attributes()?.nlink as usize;
        if nlink == 0 {
            return Ok(());
        }
        let mut emit = |names: &[At]| -> Result<bool> {
            for At { parent, name } in names {
                let dir: Arc<dyn Vnode> = Arc::clone(parent) as Arc<dyn Vnode>;
                if !sink(&dir, Name::new(name)?) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if self.object_kind() == Kind::Directory {
            let names: Vec<At> = self.name_of_directory(cx)?.into_iter().collect();
            return emit(&names).map(|_| ());
        }
        let first = self.names_of_file(cx, 1)?;
        if emit(&first)? && first.len() < nlink {
            let mut rest = self.names_of_file(cx, nlink)?;
            rest.retain(|at| !first.iter().any(|seen| Arc::ptr_eq(&seen.parent, &at.parent) && seen.name == at.name));
            emit(&rest)?;
        }
        Ok(())
    }

    /// Finds the name of this directory through `..`. `None` if it was moved out of the root or
    /// removed meanwhile.
    fn name_of_directory(&self, cx: &Cx<'_>) -> Result<Option<At>> {
        if let Some(known) = self.known_place()? {
            return Ok(Some(known));
        }
        cx.require_blocking()?;
        // The kernel's dentry cache has the path of an open directory.
        if let Some(known) = self.name_in_cache()? {
            return Ok(Some(known));
        }
        let fs = self.fs();
        let up = match fs.open_parent(&*self.dir_fd()?) {
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

    /// Returns up to `wanted` names of a non-directory.
    fn names_of_file(&self, cx: &Cx<'_>, wanted: usize) -> Result<Vec<At>> {
        let known = match self.known_place()? {
            None => self.name_in_cache()?,
            known => known,
        };
        if wanted <= 1
            && let Some(known) = known
        {
            return Ok(vec![known]);
        }
        let fs = self.fs();
        let found = fs.finder.find(cx, &fs.root_of_walk()?, self.number(), wanted)?;
        let mut names = Vec::new();
        for found in found {
            // Another object may have taken the number.
            if std::ptr::eq(Arc::as_ptr(&fs.downcast(&found.entry.vnode)?), self) {
                names.push(At { parent: fs.downcast(&found.dir)?, name: found.name });
            }
        }
        Ok(names)
    }

    /// Returns the last known place, if the object is still there.
    fn known_place(&self) -> Result<Option<At>> {
        let Locator::Place(_, place) = self.locator() else { return Ok(None) };
        match self.walk_to(place) {
            Ok(_) => Ok(Some(place.snapshot())),
            Err(Errno::STALE) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the name in the kernel's dentry cache, verified.
    fn name_in_cache(&self) -> Result<Option<At>> {
        let fs = self.fs();
        if !fs.detached {
            return Ok(None);
        }
        let fd = self.fd()?;
        let inode = inode_of(&fd)?;
        // The path is relative to the root of our private mount; it is "/" alone if the kernel
        // doesn't know it.
        let path = rustix::fs::readlink(proc_path(&fd), Vec::new())?.into_bytes();
        let Some(cut) = path.iter().rposition(|&byte| byte == b'/') else { return Ok(None) };
        let (dir, name) = (path.get(1..cut).unwrap_or_default(), path.get(cut + 1..).unwrap_or_default());
        if Name::new(name).is_err() {
            return Ok(None);
        }
        let dir = if dir.is_empty() { b"." } else { dir };
        let flags = PATH_ONLY | OFlags::DIRECTORY;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        // If a concurrent rename invalidates the path, the name counts as unknown.
        let Ok(dir) = rustix::fs::openat2(&*fs.root, dir, flags, Mode::empty(), beneath) else { return Ok(None) };
        if fs.path_fd_verified(&dir, name, inode).is_err() {
            return Ok(None);
        }
        Ok(Some(At { parent: fs.dir_of_fd(&dir)?, name: name.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder(magic: u64, ino: u64, kind: i32, handle: &[u8]) -> Option<HandleBuilder> {
        HandleBuilder::of(magic, ino, &FileHandle::new(kind, handle))
    }

    #[test]
    fn handles_are_constructed_for_known_layouts() {
        let root = rustix::fs::open("/", OFlags::RDONLY, Mode::empty()).unwrap();
        let ext4 = builder(0xef53, 2, 1, &[2, 0, 0, 0, 9, 9, 9, 9]).unwrap();
        assert!(ext4.reaches_only_root);
        assert_eq!(ext4.handle(root.as_fd(), 0x0102).unwrap(), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ext4.handle(root.as_fd(), 1 << 32), Err(Errno::STALE));
        let mut bytes = [7; 20];
        bytes[..8].copy_from_slice(&257u64.to_le_bytes());
        let btrfs = builder(0x9123_683e, 257, 0x4d, &bytes).unwrap();
        assert!(!btrfs.reaches_only_root);
        let handle = btrfs.handle(root.as_fd(), 1 << 40).unwrap();
        assert_eq!(handle, [[0, 0, 0, 0, 0, 1, 0, 0].as_slice(), &[7; 8], &[0; 4]].concat());
        // Rejected: another handle type, another file system, the handle of another inode.
        assert!(builder(0xef53, 2, 2, &[2, 0, 0, 0, 9, 9, 9, 9]).is_none());
        assert!(builder(0x0102_1994, 2, 1, &[2, 0, 0, 0, 9, 9, 9, 9]).is_none());
        assert!(builder(0xef53, 3, 1, &[2, 0, 0, 0, 9, 9, 9, 9]).is_none());
        let xfs = [[128, 0, 0, 0, 0, 0, 0, 0].as_slice(), &[1, 2, 3, 4]].concat();
        assert_eq!(builder(0x5846_5342, 128, 0x81, &xfs).unwrap().layout, Layout::Xfs);
    }
}
