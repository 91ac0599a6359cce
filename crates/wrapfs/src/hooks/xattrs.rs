use super::Object;
use core::fmt;
use vnode::{Cx, Result};

/// What the name of an extended attribute translates to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrName {
    /// The same name. Its value is not translated either.
    Same,
    /// Another name. Its value is translated, too.
    Other(Vec<u8>),
    /// None: the attribute does not exist in the layer.
    Hidden,
}

/// Translates the names and values of extended attributes. Names include their namespace:
/// `user.colour`.
///
/// Leave `security.*`, `trusted.*` and `system.posix_acl_*` as they are ([`XattrName::Same`]): the
/// kernel and other programs interpret them in the layer below, and their values.
///
/// For one object, different names need different encodings. A stored name is listed only if it
/// decodes and the decoded name encodes to it again.
pub trait Xattrs: Send + Sync + fmt::Debug {
    /// Encodes a plain name to the name stored below. For [`XattrName::Hidden`], the attribute
    /// does not exist (`ENODATA`) and cannot be set (`EOPNOTSUPP`).
    ///
    /// # Errors
    /// The operation fails with this errno.
    fn encode_name(&self, cx: &Cx<'_>, file: &Object<'_>, name: &[u8]) -> Result<XattrName>;

    /// Decodes a stored name, which is untrusted. [`XattrName::Hidden`] means that the name is not
    /// listed.
    ///
    /// # Errors
    /// The listing fails with this errno.
    fn decode_name(&self, cx: &Cx<'_>, file: &Object<'_>, name: &[u8]) -> Result<XattrName>;

    /// Encodes the value of the attribute with the plain name `name`.
    ///
    /// # Errors
    /// The attribute is not set, and setxattr(2) fails with this errno.
    fn encode_value(&self, cx: &Cx<'_>, file: &Object<'_>, name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        let _ = (cx, file, name);
        Ok(value.to_vec())
    }

    /// Decodes a stored value, which is untrusted, of the attribute with the plain name `name`.
    ///
    /// # Errors
    /// getxattr(2) fails with this errno, for example `EIO` for a damaged value.
    fn decode_value(&self, cx: &Cx<'_>, file: &Object<'_>, name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        let _ = (cx, file, name);
        Ok(value.to_vec())
    }
}
