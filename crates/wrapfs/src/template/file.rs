//! Open files.

use super::core::Core;
use super::node::TemplateVnode;
use crate::file::look_through;
use crate::hooks::{Object, Op, OpKind};
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vnode::{Cx, OpenFile, Result, SeekFrom, Vnode};

/// An open file of the layer below, and the hooks that it goes through.
#[derive(Debug)]
pub(crate) struct TemplateFile {
    core: Arc<Core>,
    vnode: Arc<dyn Vnode>,
    lower: Arc<dyn OpenFile>,
}

/// The file of the layer below, if it is one of the template's; else the file itself.
pub(crate) fn lower_of(file: &dyn OpenFile) -> &dyn OpenFile {
    file.as_any().downcast_ref::<TemplateFile>().map_or(file, |own| &*own.lower)
}

impl TemplateFile {
    pub(crate) fn over(vnode: &TemplateVnode, lower: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(Self { core: Arc::clone(&vnode.core), vnode: Arc::clone(&vnode.lower), lower })
    }

    /// The file of the layer below, if reading that is the same as reading this one.
    pub(crate) fn transparent(&self) -> Option<&dyn OpenFile> {
        if self.core.watch(OpKind::Read).is_some() { None } else { Some(&*self.lower) }
    }

    fn object(&self) -> Object<'_> {
        Object::new(&*self.vnode)
    }
}

/// Does an operation, seen by the hook if it wants to see operations of this kind.
macro_rules! seen {
    ($self:ident, $cx:ident, $kind:ident { $($field:ident $(: $value:expr)?),* }, $act:expr) => {
        match $self.core.watch(OpKind::$kind) {
            None => $act,
            Some(watch) => watch.around($cx, &Op::$kind { file: &$self.object(), $($field $(: $value)?),* }, || $act),
        }
    };
}

impl OpenFile for TemplateFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<BorrowedFd<'_>> {
        let seen = self.core.watch(OpKind::Read).or_else(|| self.core.watch(OpKind::Write));
        if seen.is_some() { None } else { self.lower.backing() }
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let Some(watch) = self.core.watch(OpKind::Read) else { return self.lower.read(cx, out, offset) };
        let op = Op::Read { file: &self.object(), offset, len: out.len() };
        watch.around_bytes(cx, &op, out, |out| self.lower.read(cx, out, offset))
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        seen!(self, cx, Write { offset, data }, self.lower.write(cx, data, offset))
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        seen!(self, cx, Flush {}, self.lower.flush(cx))
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        seen!(self, cx, Fsync { data_only }, self.lower.fsync(cx, data_only))
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        seen!(self, cx, Fallocate { mode, offset, len }, self.lower.fallocate(cx, mode, offset, len))
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: SeekFrom) -> Result<u64> {
        seen!(self, cx, Seek { offset }, self.lower.seek(cx, offset, whence))
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        let below = look_through(source);
        seen!(self, cx, Copy { offset, len }, self.lower.copy_from(cx, offset, below, source_offset, len))
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let below = look_through(source);
        seen!(self, cx, Copy { offset: 0, len: u64::MAX }, self.lower.reflink_from(cx, below))
    }
}
