use crate::keyring::Keyring;
use cryptformat::{Keys, XATTR_PREFIX, is_namespaced};
use std::sync::Arc;
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::{Object, XattrName, Xattrs};

/// Encrypts the extended attributes of users. Those of the system, such as ACLs and capabilities,
/// are left to it.
#[derive(Debug)]
pub(crate) struct EncryptedXattrs(pub(crate) Arc<Keyring>);

impl Xattrs for EncryptedXattrs {
    fn encode_name(&self, cx: &Cx<'_>, _file: &Object<'_>, name: &[u8]) -> Result<XattrName> {
        if !name.starts_with(b"user.") {
            return Ok(XattrName::Same);
        }
        if name == b"user." {
            return Err(Errno::INVAL);
        }
        self.0.with(cx, |keys| keys.encrypt_xattr_name(name).map(XattrName::Other).map_err(|_| Errno::RANGE))
    }

    fn decode_name(&self, cx: &Cx<'_>, _file: &Object<'_>, name: &[u8]) -> Result<XattrName> {
        if !name.starts_with(b"user.") {
            return Ok(XattrName::Same);
        }
        if !name.starts_with(XATTR_PREFIX) {
            return Ok(XattrName::Hidden);
        }
        // One in 256 names of another key decrypts, but not to one that Linux permits.
        let decrypt = |keys: &Keys| keys.decrypt_xattr_name(name).ok().filter(|name| is_namespaced(name));
        self.0.with(cx, |keys| Ok(decrypt(keys).map_or(XattrName::Hidden, XattrName::Other)))
    }

    fn encode_value(&self, cx: &Cx<'_>, _file: &Object<'_>, _name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        self.0.with(cx, |keys| keys.seal_xattr(value).map_err(|_| Errno::NOSPC))
    }

    fn decode_value(&self, cx: &Cx<'_>, file: &Object<'_>, _name: &[u8], value: &[u8]) -> Result<Vec<u8>> {
        self.0.with(cx, |keys| {
            keys.open_xattr(value).map_err(|damage| {
                tracing::warn!(inode = file.id(), "extended attribute: {damage}");
                Errno::IO
            })
        })
    }
}
