use core::fmt;
use vnode::{Cx, Result};

/// The role of a name in a directory below, for a [`NameStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// An encoded name.
    Name,
    /// An object whose encoded name is too long.
    Long {
        /// Its side file, which holds the encoded name.
        side: Vec<u8>,
    },
    /// A side file.
    Side {
        /// The object that it belongs to. After a crash, the object may be missing.
        object: Vec<u8>,
    },
    /// A leftover of an interrupted operation of the store, or of another program that uses the
    /// same format. It is hidden and does not prevent the removal of its directory.
    Leftover,
    /// Any other name reserved by the store. It is hidden, and a name that encodes to it cannot be
    /// created.
    Own,
}

/// How an encoded name is stored that is too long for the layer below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongName {
    /// The name of the object.
    pub object: Vec<u8>,
    /// The name of the side file.
    pub side: Vec<u8>,
    /// The content of the side file, at most 128 KiB.
    pub content: Vec<u8>,
}

/// The file in each directory below that holds the encoding state of the directory's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    /// Its name. [`NameStore::role`] is not called for it.
    pub name: Vec<u8>,
    /// The permission bits that it is created with.
    pub mode: u32,
    /// Maximum size in bytes. A larger file counts as damaged.
    pub longest: usize,
    /// Extended attribute of the directory that keeps a copy of the state. File systems with a
    /// journal order it before the directory's entries, so the file need not be made durable when
    /// a directory is created. Without a copy, each mkdir costs an fsync(2).
    pub copy: Option<&'static [u8]>,
}

/// Determines how encoded names are stored in the layer below: the representation of names that are
/// too long, and the state that each directory keeps to encode its names. Without this hook, a
/// layer that encodes names uses the store of docs/formats/long-names.md.
///
/// The hook defines names and contents. The template creates, reads, moves and removes the files,
/// in an order that leaves the old or the new tree after a crash at any point:
///
/// * A side file is written and made durable before its object gets its name, and removed after the
///   object has lost it. A side file without an object is reused when the same name is created, or
///   removed with its directory.
/// * The state of a directory is created with the directory (mkdir), made durable before the
///   directory gets its first entry, and removed just before the directory is (rmdir, rename onto
///   it). It moves with a directory that is renamed.
/// * If the file is missing or damaged in a directory with entries, it is restored from the copy
///   ([`StateFile::copy`]).
/// * An empty directory with missing or damaged state gets new state before its first entry. In a
///   directory that is not empty, every operation on names then fails with `EIO`, and an error is
///   logged.
///
/// All functions except [`Self::new_state`] must depend only on their arguments.
pub trait NameStore: Send + Sync + fmt::Debug {
    /// Returns the role of a name below. The name is untrusted: it may have been created out of
    /// band.
    fn role(&self, name: &[u8]) -> Role;

    /// Returns how an encoded name is stored, or `None` if it is stored as is. Names of more than
    /// 255 bytes cannot be stored as is. Different names need different `object`s, and
    /// [`Self::role`] must recognize both names of the result. The template stores and lists such a
    /// name only under this result.
    fn long_name(&self, encoded: &[u8]) -> Option<LongName>;

    /// Returns the encoded name from the side file of `object`, or `None` if it is damaged.
    /// `content` is untrusted.
    fn encoded_name(&self, object: &[u8], content: &[u8]) -> Option<Vec<u8>>;

    /// Returns the permission bits for new side files.
    fn side_mode(&self) -> u32 {
        0o644
    }

    /// Returns the state file of directories, or `None` if they have no state. Called once.
    fn state_file(&self) -> Option<StateFile> {
        None
    }

    /// Creates the state of a new directory. The [`super::Names`] hooks read it with
    /// [`super::Object::directory_state`].
    ///
    /// # Errors
    /// The directory has no state yet. The template tries again before its first entry, whose
    /// creation fails if this fails again.
    fn new_state(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let _ = cx;
        Ok(Vec::new())
    }

    /// Whether `state` is valid directory state. If not, it counts as damaged. `state` is
    /// untrusted.
    fn is_state(&self, state: &[u8]) -> bool {
        let _ = state;
        true
    }
}
