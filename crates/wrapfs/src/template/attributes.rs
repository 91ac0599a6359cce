//! Translation of attributes between the layer below and programs.

use super::core::Core;
use super::guard::guard;
use super::node::TemplateVnode;
use crate::hooks::Object;
use vnode::{Attr, Cx, Kind, OpenFile, Result, SetAttr, Vnode};

impl Core {
    /// Decodes the attributes of an object of the layer below.
    pub(crate) fn shown(&self, cx: &Cx<'_>, object: &Object<'_>, mut attr: Attr) -> Result<Attr> {
        let lower = object.lower();
        if self.names.is_some() && lower.kind() == Kind::Symlink {
            self.measure_target(cx, lower, &mut attr);
        }
        if let Some(resizing) = &self.resizing
            && lower.kind() == Kind::Regular
            && attr.size > 0
        {
            attr.size = resizing.size(cx, &self.server(cx), lower)?.unwrap_or(attr.size);
        }
        if let Some(format) = self.format.as_ref().filter(|_| lower.kind() == Kind::Regular) {
            attr.size = format.layout.plain_size(attr.size);
        }
        self.decoded(cx, object, attr)
    }

    /// Decodes attributes whose size is already that of the decoded link target.
    pub(crate) fn decoded(&self, cx: &Cx<'_>, object: &Object<'_>, mut attr: Attr) -> Result<Attr> {
        if let Some(hook) = &self.attributes {
            guard("decode_attr", || hook.decode_attr(cx, object, &mut attr))?;
            fix_identity(object.lower(), &mut attr);
        }
        Ok(attr)
    }

    /// Sets the size of a symbolic link to the length of its decoded target. If the target cannot
    /// be read, the size below is kept.
    fn measure_target(&self, cx: &Cx<'_>, lower: &dyn Vnode, attr: &mut Attr) {
        let told = self.names.as_ref().map(|names| guard("target_size", || Ok(names.target_size(attr.size))));
        if let Some(Ok(Some(size))) = told {
            attr.size = size;
            return;
        }
        if let Ok(target) = lower.readlink(cx).and_then(|stored| self.decode_target(cx, stored)) {
            attr.size = target.len() as u64;
        }
    }
}

/// Restores the number and type, which hooks must not change.
pub(crate) fn fix_identity(lower: &dyn Vnode, attr: &mut Attr) {
    attr.ino = lower.id();
    attr.mode = (attr.mode & !Kind::MASK) | lower.kind().mode_bits();
}

impl TemplateVnode {
    /// Returns the encoded mode for a new object in this directory. Type bits remain unchanged.
    pub(crate) fn mode_below(&self, cx: &Cx<'_>, kind: Kind, mode: u32) -> Result<u32> {
        let Some(hook) = &self.core.attributes else { return Ok(mode) };
        let bits = guard("encode_mode", || hook.encode_mode(cx, &self.object(), kind, mode & 0o7777))?;
        Ok((mode & Kind::MASK) | (bits & 0o7777))
    }

    pub(crate) fn show(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.core.shown(cx, &self.object(), self.lower.getattr(cx)?)
    }

    /// Returns the attributes of the object, of which `file` is an open file.
    pub(crate) fn show_open(&self, cx: &Cx<'_>, file: &dyn OpenFile) -> Result<Attr> {
        self.core.shown(cx, &self.object(), self.lower.getattr_open(cx, super::file::lower_of(file))?)
    }

    pub(crate) fn change(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        let mut below = *set;
        if let Some(hook) = &self.core.attributes {
            guard("encode_attr", || hook.encode_attr(cx, &self.object(), &mut below))?;
            if below.is_empty() && !set.is_empty() {
                return self.show(cx);
            }
        }
        let attr = match below.size {
            Some(size) => self.resize(cx, &below, size, file)?,
            None => {
                let change = || self.lower.setattr(cx, &below, file.map(super::file::lower_of));
                match &self.core.resizing {
                    Some(resizing) if below.mtime.is_some() => resizing.set_times(cx, &*self.lower, change)?,
                    _ => change()?,
                }
            }
        };
        self.core.shown(cx, &self.object(), attr)
    }
}
