//! The directory that contains the files of a set.

use crate::content::Content;
use crate::names::{Letter, version_name};
use crate::reconstruct::Source;
use core::fmt;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, OpenFile, OpenFlags, RenameFlags, Result, Vnode};

/// Returns the content of a version of content-addressed blocks: [`Source::blocks`].
pub type OpenBlocks = dyn Fn(&Cx<'_>, Arc<dyn OpenFile>, u64) -> Result<Arc<dyn Content>> + Send + Sync;

/// The files of one set in a store.
#[derive(Clone)]
pub struct StoreFiles {
    /// The store.
    pub dir: Arc<dyn Vnode>,
    /// The stem of the set.
    pub stem: Vec<u8>,
    /// The head, if it is a regular file.
    pub head: Option<Arc<dyn Content>>,
    /// Opens content-addressed versions; without it they are `EIO`.
    pub blocks: Option<Arc<OpenBlocks>>,
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

impl Source for StoreFiles {
    fn open(&self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<(Arc<dyn OpenFile>, u64)> {
        self.open_name(cx, &version_name(&self.stem, letter, number))
    }

    fn head(&self, _cx: &Cx<'_>) -> Result<Arc<dyn Content>> {
        self.head.clone().ok_or(Errno::NOENT)
    }

    fn blocks(&self, cx: &Cx<'_>, file: Arc<dyn OpenFile>, len: u64) -> Result<Arc<dyn Content>> {
        self.blocks.as_ref().ok_or(Errno::IO)?(cx, file, len)
    }
}

impl fmt::Debug for StoreFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreFiles({} in {:?})", self.stem.escape_ascii(), self.dir)
    }
}

/// Builds a file under a temporary name, makes it durable and renames it to `name`, which may exist.
/// If anything fails, the temporary file is removed and `name` is unchanged.
///
/// # Errors
/// Those of `build` and of the layer below.
pub fn replace(
    cx: &Cx<'_>,
    dir: &Arc<dyn Vnode>,
    temporary: &[u8],
    name: &[u8],
    build: impl FnOnce(Arc<dyn OpenFile>) -> Result<()>,
) -> Result<()> {
    let (temporary, name) = (Name::new(temporary)?, Name::new(name)?);
    let file = create_new(cx, dir, temporary)?;
    let built = build(Arc::clone(&file)).and_then(|()| file.fsync(cx, false));
    let renamed = built.and_then(|()| dir.rename(cx, temporary, dir, name, RenameFlags::default()));
    if renamed.is_err() {
        // Left behind, it would only take space: its name says that it is unfinished.
        let _ = dir.unlink(cx, temporary);
    }
    renamed
}

/// Creates a file, in place of one that an interrupted operation left.
fn create_new(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Arc<dyn OpenFile>> {
    match dir.create(cx, name, 0o600, OpenFlags::RDWR) {
        Err(Errno::EXIST) => {
            dir.unlink(cx, name)?;
            Ok(dir.create(cx, name, 0o600, OpenFlags::RDWR)?.1)
        }
        created => Ok(created?.1),
    }
}
