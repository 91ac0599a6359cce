use core::fmt;
use vnode::{Cx, Result};

/// What a name in a directory below is to a [`NameStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// An encoded name.
    Name,
    /// What an object is stored under whose encoded name is too long.
    Long {
        /// The side file beside it, which holds the encoded name.
        side: Vec<u8>,
    },
    /// A side file.
    Side {
        /// The object that it belongs to. It is gone, or was never made, if a crash left the side file behind.
        object: Vec<u8>,
    },
    /// What an interrupted operation of the store's own left behind, also of another program with the same format. It is not
    /// shown, and does not keep a directory from being removed.
    Leftover,
    /// Anything else of the store's own. It is not shown, and a name that is encoded like that can't be made.
    Own,
}

/// How an encoded name is stored that is too long for the layer below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongName {
    /// The name of the object.
    pub object: Vec<u8>,
    /// The name of the side file.
    pub side: Vec<u8>,
    /// What the side file holds: at most 128 KiB.
    pub content: Vec<u8>,
}

/// The file in each directory below that holds what the directory's names are encoded with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    /// Its name. [`NameStore::role`] is not asked about it.
    pub name: Vec<u8>,
    /// The permission bits that it is made with.
    pub mode: u32,
    /// A longer one, in bytes, is damaged.
    pub longest: usize,
}

/// How encoded names are kept in the layer below: what is done with those that are too long for it, and what each directory keeps
/// to encode its names with. Without this hook a layer that encodes names has the store of docs/formats/long-names.md.
///
/// The hook says how things are called and what they hold; the template makes, reads, moves and removes them, in an order in
/// which a crash at any point leaves the old or the new tree:
///
/// * A side file is written and made durable before its object gets its name, and removed after the object has lost it. One
///   without an object is used again by the same name and removed with its directory.
/// * The state of a directory is made with the directory (mkdir), made durable before the directory gets its first entry,
///   and removed just before the directory is (rmdir, rename onto it); it stays with a directory that is renamed.
/// * A directory without a state, or with a damaged one, gets a new state before its first entry if it is empty. If it is not, every
///   operation on names in it answers `EIO`, and the log says so.
///
/// What these functions answer depends on their arguments alone, except for [`Self::new_state`].
pub trait NameStore: Send + Sync + fmt::Debug {
    /// What a name below is. Names are hostile input: anybody may have made them below.
    fn role(&self, name: &[u8]) -> Role;

    /// How an encoded name is stored, if not as it is: names of more than 255 bytes never can be. Different names need different
    /// `object`s, and [`Self::role`] must tell both names for what they are. The template stores and lists a name only under
    /// what this answers.
    fn long_name(&self, encoded: &[u8]) -> Option<LongName>;

    /// The encoded name in the side file of `object`; `None` if it is damaged. `content` is hostile input.
    fn encoded_name(&self, object: &[u8], content: &[u8]) -> Option<Vec<u8>>;

    /// The permission bits that side files are made with.
    fn side_mode(&self) -> u32 {
        0o644
    }

    /// The file with the state of a directory; `None`: directories have none. Asked once.
    fn state_file(&self) -> Option<StateFile> {
        None
    }

    /// The state of a new directory. The hooks of [`super::Names`] find it in [`super::Object::directory_state`].
    ///
    /// # Errors
    /// The directory gets none, and is asked for one again before its first entry, which then can't be made.
    fn new_state(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let _ = cx;
        Ok(Vec::new())
    }

    /// Can that be the state of a directory? Else it is damaged. `state` is hostile input.
    fn is_state(&self, state: &[u8]) -> bool {
        let _ = state;
        true
    }
}
