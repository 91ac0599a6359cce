//! The directory that contains the files of a set.

use crate::content::{Content, Partial as _};
use crate::header::Header;
use crate::names::{Letter, version_name};
use crate::reconstruct::{Source, Stored, read_header};
use crate::seal::{Seal, Stamp};
use crate::sparse::SparseBlocks;
use core::fmt;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Name, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, Vnode};

/// The content-addressed versions of a volume.
pub trait Blocks: Send + Sync + fmt::Debug {
    /// Opens the version with this number in the block store.
    ///
    /// # Errors
    /// `EIO` if it is missing or damaged; those of the layer below.
    fn open(&self, cx: &Cx<'_>, id: u64) -> Result<(Header, Arc<dyn Content>)>;
}

/// Returns the target of the symbolic link that is the file of a content-addressed version: its
/// number in the block store, in hexadecimal digits.
#[must_use]
pub fn block_target(id: u64) -> Vec<u8> {
    format!("{id:x}").into_bytes()
}

/// Returns the number that such a target contains. `None` if it is none.
#[must_use]
pub fn block_id(target: &[u8]) -> Option<u64> {
    let id = u64::from_str_radix(core::str::from_utf8(target).ok()?, 16).ok()?;
    (*block_target(id) == *target).then_some(id)
}

/// The head of a version set.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its bytes.
    pub content: Arc<dyn Content>,
    /// By what it is recognised; `None` if it is trusted, whatever was done to it.
    pub stamp: Option<Stamp>,
}

/// The files of one set in a store.
#[derive(Clone)]
pub struct StoreFiles {
    /// The store.
    pub dir: Arc<dyn Vnode>,
    /// The stem of the set.
    pub stem: Vec<u8>,
    /// The head, if it is a regular file.
    pub head: Option<Head>,
    /// The content-addressed versions; without them they are `EIO`.
    pub blocks: Option<Arc<dyn Blocks>>,
}

impl StoreFiles {
    /// Opens a file of the store for reading. Returns it with its length in bytes.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` if it is not a regular file; those of the layer below.
    pub fn open_name(&self, cx: &Cx<'_>, name: &[u8]) -> Result<(Arc<dyn OpenFile>, u64)> {
        let entry = self.dir.lookup(cx, Name::new(name)?)?.ok_or(Errno::NOENT)?;
        // Opening a FIFO or a device would wait, or do something.
        if entry.attr.kind() != vnode::Kind::Regular {
            return Err(Errno::IO);
        }
        Ok((entry.vnode.open(cx, OpenFlags::RDONLY)?, entry.attr.size))
    }
}

impl StoreFiles {
    /// Returns the seal of a sparse version.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` if it is damaged; those of the layer below.
    pub fn seal(&self, cx: &Cx<'_>, number: u64) -> Result<Seal> {
        let (file, len) = self.open_name(cx, &version_name(&self.stem, Letter::Sparse, number))?;
        Ok(SparseBlocks::open(cx, file, len)?.seal())
    }

    /// Opens a content-addressed version ([`Letter::Blocks`]).
    ///
    /// # Errors
    /// `ENOENT`, `EIO` if it is damaged; those of the layer below.
    pub fn open_blocks(&self, cx: &Cx<'_>, number: u64) -> Result<(Header, Arc<dyn Content>)> {
        let name = version_name(&self.stem, Letter::Blocks, number);
        let entry = self.dir.lookup(cx, Name::new(&name)?)?.ok_or(Errno::NOENT)?;
        if entry.attr.kind() != vnode::Kind::Symlink {
            return Err(Errno::IO);
        }
        let id = block_id(&entry.vnode.readlink(cx)?).ok_or(Errno::IO)?;
        self.blocks.as_ref().ok_or(Errno::IO)?.open(cx, id)
    }

    /// Reads the header of a version file. `None` for a format that has none.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` if it is damaged; those of the layer below.
    pub fn header(&self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<Option<Stored>> {
        if letter == Letter::Blocks {
            let (header, _) = self.open_blocks(cx, number)?;
            return Ok(Some(Stored { header, base: None }));
        }
        let (file, len) = self.open_name(cx, &version_name(&self.stem, letter, number))?;
        read_header(cx, letter, &*file, len)
    }
}

impl Source for StoreFiles {
    fn open(&self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<(Arc<dyn OpenFile>, u64)> {
        self.open_name(cx, &version_name(&self.stem, letter, number))
    }

    fn head(&self, _cx: &Cx<'_>, seal: Seal) -> Result<Arc<dyn Content>> {
        let head = self.head.as_ref().ok_or(Errno::NOENT)?;
        if head.stamp.is_some_and(|stamp| !seal.admits(&stamp)) {
            return Err(Errno::IO);
        }
        Ok(Arc::clone(&head.content))
    }

    fn blocks(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Content>> {
        self.open_blocks(cx, number).map(|(_, content)| content)
    }
}

impl fmt::Debug for StoreFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreFiles({} in {:?})", self.stem.escape_ascii(), self.dir)
    }
}

/// Gives a version file to the owner of the version, whose quota it counts against. A server that
/// is not root may not, and keeps it.
///
/// # Errors
/// Those of the layer below.
pub fn give(cx: &Cx<'_>, file: &Entry, uid: u32, gid: u32) -> Result<()> {
    if (file.attr.uid, file.attr.gid) == (uid, gid) {
        return Ok(());
    }
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    match file.vnode.setattr(cx, &owner, None) {
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Builds a file under a temporary name, makes it durable and renames it to `name`, which may
/// exist. If anything fails, the temporary file is removed and `name` is unchanged.
///
/// # Errors
/// Those of `build` and of the layer below.
pub fn replace(
    cx: &Cx<'_>,
    dir: &Arc<dyn Vnode>,
    temporary: &[u8],
    name: &[u8],
    build: impl FnOnce(&Entry, Arc<dyn OpenFile>) -> Result<()>,
) -> Result<()> {
    let (temporary, name) = (Name::new(temporary)?, Name::new(name)?);
    let (entry, file) = create_new(cx, dir, temporary)?;
    let built = build(&entry, Arc::clone(&file)).and_then(|()| file.fsync(cx, false));
    let renamed = built.and_then(|()| dir.rename(cx, temporary, dir, name, RenameFlags::default()));
    if renamed.is_err() {
        // Left behind, it would only take space: its name says that it is unfinished.
        let _ = dir.unlink(cx, temporary);
    }
    renamed
}

/// Creates a file, in place of one that an interrupted operation left.
fn create_new(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<(Entry, Arc<dyn OpenFile>)> {
    match dir.create(cx, name, 0o600, OpenFlags::RDWR) {
        Err(Errno::EXIST) => {
            dir.unlink(cx, name)?;
            dir.create(cx, name, 0o600, OpenFlags::RDWR)
        }
        created => created,
    }
}
