use super::Object;
use core::fmt;
use vnode::{Cx, Result};

/// Which names mean the same entry of a directory: see [`Names::matching`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Matching {
    /// No two names do: different names have different encodings.
    #[default]
    Exact,
    /// Names with the same encoding: the entry is stored and listed under a name that no program may have given.
    Encoded,
    /// Names with the same [`Names::fold_filename`]: the entry keeps the name that it was created with.
    Folded,
}

/// Changes names (Wrapfs paper, section 2.1.2 and Table 1): one component at a time, `.` and `..` never.
///
/// An encoded name may be of any length: one that the layer below can't take is stored by its hash, with the name itself in a file beside
/// it, or as the layer's [`super::NameStore`] says. It must not be empty, `.` or `..`, nor hold a `/` or a NUL (`EIO` and a word in the log). A name found below is seen exactly if it
/// decodes and the decoded name encodes to it again; all else below is neither listed nor found.
pub trait Names: Send + Sync + fmt::Debug {
    /// The name below for a name above.
    ///
    /// # Errors
    /// The operation fails with it.
    fn encode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>>;

    /// The name above for a name below.
    ///
    /// # Errors
    /// `EINVAL` says that this is none of ours: it is not listed. Any other fails the listing.
    fn decode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>>;

    /// Which names mean the same entry. Asked once.
    ///
    /// Where several names lead to one entry, the kernel must not cache names, or it would find an entry under one name after it was
    /// removed under another. So a layer that answers [`Matching::Exact`], and encodes two names alike all the same, has one of them: the
    /// one that its encoding decodes to. Others are not found and can't be created (`EINVAL`), and the log says so once.
    fn matching(&self) -> Matching {
        Matching::Exact
    }

    /// What names are compared by with [`Matching::Folded`]: two names with the same folding mean the same entry. It is kept in memory only.
    ///
    /// # Errors
    /// The operation fails with it.
    fn fold_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let _ = (cx, dir);
        Ok(name.to_vec())
    }

    /// The target of a symbolic link as it is stored.
    ///
    /// # Errors
    /// The operation fails with it.
    fn encode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let _ = cx;
        Ok(target.to_vec())
    }

    /// The target of a symbolic link as it is read.
    ///
    /// # Errors
    /// The operation fails with it.
    fn decode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let _ = cx;
        Ok(target.to_vec())
    }
}
