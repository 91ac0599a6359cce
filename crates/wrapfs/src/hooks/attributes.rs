use super::Object;
use core::fmt;
use vnode::{Attr, Cx, Kind, Result, SetAttr};

/// Translates attributes in both directions (Wrapfs paper, sections 2.1.3 and 7.1). The kernel
/// checks permissions against the decoded attributes.
///
/// A hook must not change the number or type of an object: the template restores them.
pub trait Attributes: Send + Sync + fmt::Debug {
    /// Decodes the attributes of the layer below into those that programs see.
    ///
    /// # Errors
    /// The operation fails with this errno. If it was creating an object, the object is not
    /// created, but a completed attribute change is not reverted.
    fn decode_attr(&self, cx: &Cx<'_>, file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        let _ = (cx, file, attr);
        Ok(())
    }

    /// Encodes an attribute change for the layer below. Attributes that the hook removes from `set`
    /// are silently ignored.
    ///
    /// # Errors
    /// The operation fails with this errno.
    fn encode_attr(&self, cx: &Cx<'_>, file: &Object<'_>, set: &mut SetAttr) -> Result<()> {
        let _ = (cx, file, set);
        Ok(())
    }

    /// Returns the permission bits (`07777`, before the umask) for a new object of this kind in
    /// `dir`.
    ///
    /// # Errors
    /// The object is not created.
    fn encode_mode(&self, cx: &Cx<'_>, dir: &Object<'_>, kind: Kind, mode: u32) -> Result<u32> {
        let _ = (cx, dir, kind);
        Ok(mode)
    }
}
