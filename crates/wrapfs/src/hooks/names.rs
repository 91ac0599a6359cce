use super::Object;
use core::fmt;
use vnode::{Cx, Result};

/// Which names refer to the same directory entry: see [`Names::matching`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Matching {
    /// Each name refers to its own entry: different names have different encodings.
    #[default]
    Exact,
    /// Names with the same encoding refer to one entry. It is stored and listed under a name that
    /// no program may have used.
    Encoded,
    /// Names with the same [`Names::fold_filename`] refer to one entry, which keeps the name that
    /// it was created with.
    Folded,
}

/// Translates names (Wrapfs paper, section 2.1.2 and Table 1), one component at a time; never `.`
/// or `..`.
///
/// An encoded name may have any length. If it is too long for the layer below, it is stored under
/// its hash, with the full name in a side file, or as the layer's [`super::NameStore`] specifies.
/// An encoded name must not be empty, `.` or `..`, or contain a `/` or a NUL: the operation then
/// fails with `EIO` and an error is logged. A stored name is visible only if it decodes and the
/// decoded name encodes to it again. All other entries below are neither listed nor found.
pub trait Names: Send + Sync + fmt::Debug {
    /// Encodes a plain name to the name stored below.
    ///
    /// # Errors
    /// The operation fails with this errno.
    fn encode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>>;

    /// Decodes a stored name to the plain name.
    ///
    /// # Errors
    /// `EINVAL` means that the name is not an encoded name: the entry is not listed. Any other
    /// errno fails the listing.
    fn decode_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>>;

    /// Whether every name that `encode_filename` accepts decodes to itself, and every stored name
    /// that `decode_filename` accepts encodes to itself. Then this is not verified for each name,
    /// except in debug builds.
    fn is_bijection(&self) -> bool {
        false
    }

    /// Returns which names refer to the same entry. Called once.
    ///
    /// If several names refer to one entry, the kernel must not cache names: it would keep the
    /// entry under one name after its removal under another. A layer that returns
    /// [`Matching::Exact`] but encodes two names alike therefore has only one of them, the one that
    /// its encoding decodes to. The others are not found and cannot be created (`EINVAL`), and an
    /// error is logged once.
    fn matching(&self) -> Matching {
        Matching::Exact
    }

    /// Returns the folded form by which [`Matching::Folded`] compares names. Names with the same
    /// folded form refer to the same entry. The folded form is kept in memory only.
    ///
    /// # Errors
    /// The operation fails with this errno.
    fn fold_filename(&self, cx: &Cx<'_>, dir: &Object<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let _ = (cx, dir);
        Ok(name.to_vec())
    }

    /// Encodes the target of a symbolic link for storage.
    ///
    /// # Errors
    /// The operation fails with this errno.
    fn encode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let _ = cx;
        Ok(target.to_vec())
    }

    /// Decodes the stored target of a symbolic link.
    ///
    /// # Errors
    /// The operation fails with this errno.
    fn decode_target(&self, cx: &Cx<'_>, target: &[u8]) -> Result<Vec<u8>> {
        let _ = cx;
        Ok(target.to_vec())
    }

    /// Returns the length of the plain target whose stored form has `stored` bytes, if the length
    /// alone tells. Otherwise each stat(2) of a symbolic link reads the link below, which can
    /// change its access time.
    fn target_size(&self, stored: u64) -> Option<u64> {
        let _ = stored;
        None
    }
}
