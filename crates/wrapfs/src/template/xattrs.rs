//! Extended attributes, with names and values translated.

use super::guard::guard;
use super::inverse;
use super::node::TemplateVnode;
use crate::hooks::{XattrName, Xattrs};
use vnode::{Cx, Errno, Result, XattrFlags, copy_value, read_value};

/// Maximum length of a name in bytes (`XATTR_NAME_MAX`).
const NAME_MAX: usize = 255;

/// Where an attribute is stored.
enum Stored<'a> {
    /// Unchanged below, under the same name.
    Same,
    /// Under this name, with a translated value.
    Encoded(Vec<u8>, &'a dyn Xattrs),
}

impl TemplateVnode {
    pub(crate) fn xattr_get(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        match self.stored_xattr(cx, name)? {
            None => Err(Errno::NODATA),
            Some(Stored::Same) => self.lower.getxattr(cx, name, out),
            Some(Stored::Encoded(below, hook)) => {
                let value = read_value(|out| self.lower.getxattr(cx, &below, out))?;
                let value = guard("decode_value", || hook.decode_value(cx, &self.object(), name, &value))?;
                copy_value(&value, out)
            }
        }
    }

    pub(crate) fn xattr_set(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        match self.stored_xattr(cx, name)? {
            None => Err(Errno::OPNOTSUPP),
            Some(Stored::Same) => self.lower.setxattr(cx, name, value, flags),
            Some(Stored::Encoded(below, hook)) => {
                if self.plain_xattr(cx, hook, &below)?.as_deref() != Some(name) {
                    // It could not be listed.
                    return Err(Errno::INVAL);
                }
                let stored = guard("encode_value", || hook.encode_value(cx, &self.object(), name, value))?;
                if inverse::CHECKED {
                    let decoded = guard("decode_value", || hook.decode_value(cx, &self.object(), name, &stored));
                    let input = || format!("the attribute \"{}\"", name.escape_ascii());
                    let decoded = decoded.as_deref().map_err(|errno| *errno);
                    inverse::check(["encode_value", "decode_value"], input, value, decoded)?;
                }
                self.lower.setxattr(cx, &below, &stored, flags)
            }
        }
    }

    pub(crate) fn xattr_list(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        let Some(hook) = self.core.xattrs.as_deref() else { return self.lower.listxattr(cx, out) };
        let stored = read_value(|out| self.lower.listxattr(cx, out))?;
        let mut plain = Vec::with_capacity(stored.len());
        for below in stored.split(|&byte| byte == 0).filter(|below| !below.is_empty()) {
            if let Some(name) = self.plain_xattr(cx, hook, below)? {
                plain.extend_from_slice(&name);
                plain.push(0);
            }
        }
        copy_value(&plain, out)
    }

    pub(crate) fn xattr_remove(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        match self.stored_xattr(cx, name)? {
            None => Err(Errno::NODATA),
            Some(Stored::Same) => self.lower.removexattr(cx, name),
            Some(Stored::Encoded(below, _)) => self.lower.removexattr(cx, &below),
        }
    }

    /// Returns where an attribute is stored; `None` if the layer cannot have it.
    fn stored_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Option<Stored<'_>>> {
        let Some(hook) = self.core.xattrs.as_deref() else { return Ok(Some(Stored::Same)) };
        match guard("encode_name", || hook.encode_name(cx, &self.object(), name))? {
            XattrName::Same => Ok(Some(Stored::Same)),
            XattrName::Hidden => Ok(None),
            XattrName::Other(below) if below.len() > NAME_MAX => Err(Errno::RANGE),
            XattrName::Other(below) if is_valid(&below) => Ok(Some(Stored::Encoded(below, hook))),
            XattrName::Other(below) => {
                tracing::error!("encode_name returned an invalid name: \"{}\"", below.escape_ascii());
                Err(Errno::IO)
            }
        }
    }

    /// Returns the name that a stored attribute is listed as; `None` if it is not listed.
    fn plain_xattr(&self, cx: &Cx<'_>, hook: &dyn Xattrs, below: &[u8]) -> Result<Option<Vec<u8>>> {
        let object = self.object();
        let plain = match guard("decode_name", || hook.decode_name(cx, &object, below))? {
            XattrName::Hidden => return Ok(None),
            XattrName::Same => below.to_vec(),
            XattrName::Other(plain) if is_valid(&plain) => plain,
            XattrName::Other(_) => return Ok(None),
        };
        // Without this check, two stored attributes could be listed as one, or a listed one not
        // found. A stored name could also decode to a name such as `security.capability`.
        let is_found = match guard("encode_name", || hook.encode_name(cx, &object, &plain)) {
            Ok(XattrName::Same) => plain == below,
            Ok(XattrName::Other(again)) => again == below,
            Ok(XattrName::Hidden) => false,
            Err(errno) => return Err(errno),
        };
        Ok(is_found.then_some(plain))
    }
}

/// Whether this can be the name of an attribute.
fn is_valid(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&0)
}
