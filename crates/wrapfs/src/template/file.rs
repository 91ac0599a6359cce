//! Open files.

use super::core::Core;
use super::data::{CodedFile, Inode, copy, require_blocking_for};
use super::format::{FormatFile, FormatInode};
use super::look_through::look_through;
use super::record::Record;
use super::resized::Held;
use crate::hooks::{Object, ObjectInfo, Op, OpKind, State};
use std::any::Any;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, OpenFlags, Result, Vnode, Whence};

/// An open file of the layer below, with its hooks.
#[derive(Debug)]
pub(crate) struct TemplateFile {
    pub(crate) core: Arc<Core>,
    pub(crate) vnode: Arc<dyn Vnode>,
    pub(crate) record: Option<Arc<Record>>,
    pub(crate) lower: Arc<dyn OpenFile>,
    /// Flags as requested by the program. An encoded file that is written is also open for reading
    /// below, and never opened with `O_APPEND`.
    pub(crate) flags: OpenFlags,
    /// Set if there is a data hook.
    pub(crate) inode: Option<Arc<Inode>>,
    /// Set if the data size changes.
    pub(crate) held: Option<Held>,
    /// Set if data is stored in blocks of a larger size.
    pub(crate) format: Option<Arc<FormatInode>>,
    /// What the hook of the format returned when the file was opened.
    pub(crate) opened: Option<State>,
}

/// Returns the file of the layer below if `file` belongs to the template, otherwise `file` itself.
pub(crate) fn lower_of(file: &dyn OpenFile) -> &dyn OpenFile {
    file.as_any().downcast_ref::<TemplateFile>().map_or(file, |own| &*own.lower)
}

/// Returns what the hook of the format returned when `file` was opened.
pub(crate) fn opened_of(file: &dyn OpenFile) -> Option<&State> {
    file.as_any().downcast_ref::<TemplateFile>()?.opened.as_ref()
}

/// Returns the file of [`lower_of`] if it can be written.
pub(crate) fn writable_lower_of(file: &dyn OpenFile) -> Option<&dyn OpenFile> {
    let own = file.as_any().downcast_ref::<TemplateFile>()?;
    own.flags.writes().then_some(&*own.lower)
}

impl TemplateFile {
    /// Returns the file of the layer below, if reading it is the same as reading this file.
    pub(crate) fn transparent(&self) -> Option<&dyn OpenFile> {
        if self.is_changed() || self.core.watch(OpKind::Read).is_some() { None } else { Some(&*self.lower) }
    }

    fn object(&self) -> Object<'_> {
        Object::with(&*self.vnode, self)
    }

    /// Returns the file as an encoded file, if it is one.
    fn coded(&self) -> Option<(&Inode, CodedFile<'_>)> {
        let inode = self.inode.as_deref().filter(|inode| inode.coded)?;
        let coding = self.core.data.as_ref()?;
        Some((inode, CodedFile { coding, vnode: &*self.vnode, known: self, file: &*self.lower }))
    }

    /// Returns the file as one stored in a format, if it is one. Its data will be used.
    fn formatted(&self, cx: &Cx<'_>) -> Result<Option<FormatFile<'_>>> {
        let Some((format, inode)) = self.core.format.as_ref().zip(self.format.as_deref()) else { return Ok(None) };
        let (object, opened) = (self.object(), self.opened.as_ref());
        format.used(cx, opened)?;
        Ok(Some(FormatFile { format, inode, object, vnode: &*self.vnode, file: &*self.lower, opened }))
    }

    /// Whether its data differs from the data below.
    fn is_changed(&self) -> bool {
        self.coded().is_some() || self.resized().is_some() || self.format.is_some()
    }

    fn must_read(&self) -> Result<()> {
        if self.flags.reads() { Ok(()) } else { Err(Errno::BADF) }
    }

    fn must_write(&self) -> Result<()> {
        if self.flags.writes() { Ok(()) } else { Err(Errno::BADF) }
    }

    fn read_plain(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(resized) = self.resized() {
            self.must_read()?;
            require_blocking_for(cx, out.len())?;
            return resized.read(cx, out, offset);
        }
        if let Some(file) = self.formatted(cx)? {
            self.must_read()?;
            require_blocking_for(cx, out.len().max(file.format.layout.plain() as usize))?;
            let _shared = file.inode.share(cx)?;
            return file.read(cx, out, offset);
        }
        let Some((inode, file)) = self.coded() else { return self.lower.read(cx, out, offset) };
        self.must_read()?;
        require_blocking_for(cx, out.len().max(file.coding.block() as usize))?;
        let _shared = inode.share(cx)?;
        file.read(cx, out, offset)
    }

    fn write_plain(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        if let Some(resized) = self.resized() {
            self.must_write()?;
            return resized.write(cx, data, (!self.flags.appends()).then_some(offset));
        }
        if let Some(file) = self.formatted(cx)? {
            self.must_write()?;
            require_blocking_for(cx, data.len().max(file.format.layout.plain() as usize))?;
            let _own = file.inode.own(cx)?;
            let offset = if self.flags.appends() { file.size(cx)? } else { offset };
            return file.write(cx, data, offset);
        }
        let Some((inode, file)) = self.coded() else { return self.lower.write(cx, data, offset) };
        self.must_write()?;
        require_blocking_for(cx, data.len().max(file.coding.block() as usize))?;
        let _own = inode.own(cx)?;
        let offset = if self.flags.appends() { file.size(cx)? } else { offset };
        file.write(cx, data, offset)
    }

    fn allocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        if let Some(resized) = self.resized() {
            self.must_write()?;
            return resized.fallocate(cx, mode, offset, len);
        }
        if let Some(file) = self.formatted(cx)? {
            self.must_write()?;
            cx.require_blocking()?;
            let _own = file.inode.own(cx)?;
            return file.fallocate(cx, mode, offset, len);
        }
        let Some((inode, file)) = self.coded() else { return self.lower.fallocate(cx, mode, offset, len) };
        self.must_write()?;
        cx.require_blocking()?;
        let _own = inode.own(cx)?;
        file.fallocate(cx, mode, offset, len)
    }

    fn find(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        if let Some(resized) = self.resized() {
            return resized.seek(cx, offset, whence);
        }
        if let Some(file) = self.formatted(cx)? {
            cx.require_blocking()?;
            let _shared = file.inode.share(cx)?;
            return file.seek(cx, offset, whence);
        }
        let Some((inode, file)) = self.coded() else { return self.lower.seek(cx, offset, whence) };
        let _shared = inode.share(cx)?;
        file.seek(cx, offset, whence)
    }

    fn copy(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        let source = look_through(source);
        if !self.is_changed() {
            return self.lower.copy_from(cx, offset, source, source_offset, len);
        }
        self.must_write()?;
        if self.flags.appends() {
            return Err(Errno::BADF);
        }
        cx.require_blocking()?;
        if let Some(source) = self.same_file(source) {
            source.must_read()?;
            let len = len.min(self.size(cx)?.saturating_sub(source_offset));
            if source_offset.abs_diff(offset) < len {
                return Err(Errno::INVAL);
            }
        }
        // Each step locks the two files one after the other, never both.
        copy(cx, |data, at| self.write_plain(cx, data, at), offset, (source, source_offset), len)
    }

    /// Returns `other` if it is an open file of the same file.
    fn same_file<'a>(&self, other: &'a dyn OpenFile) -> Option<&'a Self> {
        let other = other.as_any().downcast_ref::<Self>()?;
        let by_inode = self.inode.as_ref().zip(other.inode.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        let by_format = self.format.as_ref().zip(other.format.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        let is_same = by_inode || by_format || self.resized().zip(other.resized()).is_some_and(|(a, b)| a.is_same(&b));
        is_same.then_some(other)
    }

    fn size(&self, cx: &Cx<'_>) -> Result<u64> {
        match (self.resized(), self.formatted(cx)?) {
            (Some(resized), _) => Ok(resized.size()),
            (None, Some(file)) => file.size(cx),
            (None, None) => Ok(self.vnode.getattr(cx)?.size),
        }
    }

    fn make_durable(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        match self.resized() {
            Some(resized) => resized.fsync(cx, data_only),
            None => self.lower.fsync(cx, data_only),
        }
    }

    /// Encoded blocks may depend on the file they belong to, so they cannot be shared.
    fn reflink(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let source = look_through(source);
        let is_changed = |file: &dyn OpenFile| file.as_any().downcast_ref::<Self>().is_some_and(Self::is_changed);
        if self.is_changed() || is_changed(source) {
            return Err(Errno::OPNOTSUPP);
        }
        self.lower.reflink_from(cx, source)
    }
}

impl ObjectInfo for TemplateFile {
    fn hold(&self) -> Result<Arc<dyn Vnode>> {
        Ok(Arc::clone(&self.vnode))
    }

    fn path(&self) -> Option<Vec<u8>> {
        self.record.as_ref()?.path()
    }

    fn attached(&self) -> Option<State> {
        self.record.as_ref()?.attached()
    }

    fn attach(&self, state: State) -> Option<State> {
        self.record.as_ref()?.attach(state)
    }
}

/// Runs an operation, observed by the hook if it wants operations of this kind.
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

    fn backing(&self) -> Option<vnode::Backing<'_>> {
        let seen = self.core.watch(OpKind::Read).or_else(|| self.core.watch(OpKind::Write)).is_some();
        if seen || self.is_changed() { None } else { self.lower.backing() }
    }

    fn closes_quickly(&self) -> bool {
        // The last close of a container compacts it.
        self.held.is_none() && self.lower.closes_quickly()
    }

    fn bind(&self) {
        self.lower.bind();
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let Some(watch) = self.core.watch(OpKind::Read) else { return self.read_plain(cx, out, offset) };
        let op = Op::Read { file: &self.object(), offset, len: out.len() };
        watch.around_bytes(cx, &op, out, |out| self.read_plain(cx, out, offset))
    }

    fn read_host(&self, cx: &Cx<'_>, take: vnode::HostReader<'_>) -> Result<Option<usize>> {
        // A hook that observes reads must see the data.
        let seen = self.core.watch(OpKind::Read).is_some();
        if seen || self.is_changed() { Ok(None) } else { self.lower.read_host(cx, take) }
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        seen!(self, cx, Write { offset, data }, self.write_plain(cx, data, offset))
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        seen!(self, cx, Flush {}, self.lower.flush(cx))
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        seen!(self, cx, Fsync { data_only }, self.make_durable(cx, data_only))
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        seen!(self, cx, Fallocate { mode, offset, len }, self.allocate(cx, mode, offset, len))
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        seen!(self, cx, Seek { offset }, self.find(cx, offset, whence))
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        seen!(self, cx, Copy { offset, len }, self.copy(cx, offset, source, source_offset, len))
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        seen!(self, cx, Copy { offset: 0, len: u64::MAX }, self.reflink(cx, source))
    }
}
