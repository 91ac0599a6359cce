use super::Object;
use core::fmt;
use vnode::{Attr, Cx, Kind, Result, SetAttr};

/// Changes attributes on their way up and down (Wrapfs paper, sections 2.1.3 and 7.1). The kernel checks permissions by what is shown.
///
/// The number and the kind of an object are not to be changed: the template puts them back.
pub trait Attributes: Send + Sync + fmt::Debug {
    /// Attributes of the layer below become those that programs see.
    ///
    /// # Errors
    /// The operation fails with it. What was to be made is not made, but a change of attributes is done by then.
    fn decode_attr(&self, cx: &Cx<'_>, file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        let _ = (cx, file, attr);
        Ok(())
    }

    /// A change that a program asks for becomes the change of the layer below. What is taken out is not done, and no error.
    ///
    /// # Errors
    /// The operation fails with it.
    fn encode_attr(&self, cx: &Cx<'_>, file: &Object<'_>, set: &mut SetAttr) -> Result<()> {
        let _ = (cx, file, set);
        Ok(())
    }

    /// The permission bits (`07777`, before the umask) that a new object of this kind in `dir` is made with.
    ///
    /// # Errors
    /// The object is not made.
    fn encode_mode(&self, cx: &Cx<'_>, dir: &Object<'_>, kind: Kind, mode: u32) -> Result<u32> {
        let _ = (cx, dir, kind);
        Ok(mode)
    }
}
