use super::Object;
use core::fmt;
use vnode::{Cx, Result};

/// Changes names (Wrapfs paper, section 2.1.2 and Table 1): one component at a time, `.` and `..` never.
///
/// An encoded name may be of any length: one that the layer below can't take is stored by its hash, with the name itself in a file beside
/// it. It must not be empty, `.` or `..`, nor hold a `/` or a NUL (`EIO` and a word in the log). A name found below is seen exactly if it
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
