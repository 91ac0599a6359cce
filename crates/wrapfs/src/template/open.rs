//! Opening and resizing files below.

use super::data::{CodedFile, Inode, changes_blocks};
use super::file::{TemplateFile, lower_of, opened_of, writable_lower_of};
use super::format::{FormatFile, FormatInode, Formatted};
use super::node::TemplateVnode;
use super::resized::Resizing;
use crate::hooks::State;
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Kind, Name, OpenFile, OpenFlags, Result, SetAttr};

const ACCMODE: u32 = 3;
const APPEND: u32 = 0o2000;

/// Plain bytes at the start of a file that the kernel requests first of a program that reads 32 KiB
/// at a time.
const FIRST_READ: u64 = 64 << 10;

/// Returns the flags for opening an encoded file below: written blocks must also be read, and the
/// end of the file is computed here (Wrapfs paper, section 3.2.1).
const fn widened(flags: OpenFlags) -> OpenFlags {
    if flags.writes() { OpenFlags(flags.0 & !(ACCMODE | APPEND) | OpenFlags::RDWR.0) } else { flags }
}

impl TemplateVnode {
    /// Returns the codec if it may change the size of this file.
    fn resizing(&self) -> Option<&Resizing> {
        self.core.resizing.as_ref().filter(|_| self.lower.kind() == Kind::Regular)
    }

    /// Returns the state shared by the open files of this file, if it is stored in a format.
    fn format_inode(&self) -> Option<Arc<FormatInode>> {
        let format = self.core.format.as_ref().filter(|_| self.lower.kind() == Kind::Regular)?;
        Some(format.inode(self.lower.id()))
    }

    fn file_of_format(
        &self,
        lower: Arc<dyn OpenFile>,
        flags: OpenFlags,
        format: Arc<FormatInode>,
        opened: Option<State>,
    ) -> Arc<dyn OpenFile> {
        let (core, vnode, record) = (Arc::clone(&self.core), Arc::clone(&self.lower), self.record.clone());
        let format = Some(format);
        Arc::new(TemplateFile { core, vnode, record, lower, flags, inode: None, held: None, format, opened })
    }

    /// Calls the hook of the format for this file, which is being opened.
    fn opened(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Option<State>> {
        self.core.format.as_ref().map_or(Ok(None), |format| format.opened(cx, &self.object(), flags))
    }

    fn open_format(&self, cx: &Cx<'_>, flags: OpenFlags, inode: Arc<FormatInode>) -> Result<Arc<dyn OpenFile>> {
        let opened = self.opened(cx, flags)?;
        let lower = if flags.truncates() {
            let _own = inode.own(cx)?;
            let lower = self.lower.open(cx, widened(flags))?;
            inode.forget_header();
            lower
        } else {
            let lower = self.lower.open(cx, widened(flags))?;
            let format = self.core.format.as_ref();
            if let Some(format) = format.filter(|_| !flags.writes() && !inode.is_known()) {
                lower.will_need(cx, 0, format.layout.stored_size(FIRST_READ));
            }
            if let Some(format) = format.filter(|format| format.is_sealed()) {
                let (inode, object, file) = (&*inode, self.object(), &*lower);
                let file = FormatFile { format, inode, object, vnode: &*self.lower, file, opened: opened.as_ref() };
                let _shared = inode.share(cx)?;
                file.check_opened(cx)?;
            }
            lower
        };
        Ok(self.file_of_format(lower, flags, inode, opened))
    }

    fn resize_format(
        &self,
        cx: &Cx<'_>,
        set: &SetAttr,
        new_size: u64,
        file: Option<&dyn OpenFile>,
        (format, inode): (&Formatted, &FormatInode),
    ) -> Result<Attr> {
        cx.require_blocking()?;
        // An open file that can't be written is not used below.
        let known = file.filter(|file| writable_lower_of(*file).is_some()).map(|file| opened_of(file).cloned());
        let opened = known.map_or_else(|| self.opened(cx, OpenFlags::RDWR), Ok)?;
        let opened = opened.as_ref();
        format.used(cx, opened)?;
        let _own = inode.own(cx)?;
        self.with_writable(cx, file, |file| {
            let file = FormatFile { format, inode, object: self.object(), vnode: &*self.lower, file, opened };
            file.resize(cx, set, new_size)
        })
    }

    /// Returns the state shared by the open files of this file, if there is a data hook.
    fn inode(&self, cx: &Cx<'_>) -> Result<Option<Arc<Inode>>> {
        let coding = self.core.data.as_ref().filter(|_| self.lower.kind() == Kind::Regular);
        coding.map(|coding| coding.inode(cx, &self.object())).transpose()
    }

    fn file(&self, lower: Arc<dyn OpenFile>, flags: OpenFlags, inode: Option<Arc<Inode>>) -> Arc<dyn OpenFile> {
        let (core, vnode, record) = (Arc::clone(&self.core), Arc::clone(&self.lower), self.record.clone());
        Arc::new(TemplateFile { core, vnode, record, lower, flags, inode, held: None, format: None, opened: None })
    }

    pub(crate) fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        if let Some(resizing) = self.resizing() {
            let server = self.core.server(cx).held_for_caller();
            return Ok(Arc::new(self.open_resized((cx, &server), resizing, flags, None)?));
        }
        if let Some(format) = self.format_inode() {
            return self.open_format(cx, flags, format);
        }
        let inode = self.inode(cx)?;
        let lower = match inode.as_ref().filter(|inode| inode.coded) {
            None => self.lower.open(cx, flags)?,
            Some(inode) => {
                let _own = if flags.truncates() { Some(inode.own(cx)?) } else { None };
                self.lower.open(cx, widened(flags))?
            }
        };
        Ok(self.file(lower, flags, inode))
    }

    pub(crate) fn create_file(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let below = self.mode_below(cx, Kind::Regular, mode)?;
        let how = self.flags_of_new(flags);
        let (entry, file) = self.create_with(cx, name, |name| self.lower.create(cx, name, below, how))?;
        let made = self.same_layer(&entry.vnode).and_then(|made| made.opened_new(cx, file, flags));
        match made {
            Ok(file) => Ok((entry, file)),
            Err(errno) => {
                if let Err(errno) = self.remove_file(cx, name) {
                    tracing::warn!(%errno, "created file not removed after it could not be opened");
                }
                Err(errno)
            }
        }
    }

    pub(crate) fn create_unnamed(
        &self,
        cx: &Cx<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let below = self.mode_below(cx, Kind::Regular, mode)?;
        let (entry, file) = self.lower.tmpfile(cx, below, self.flags_of_new(flags))?;
        let entry = self.wrap_entry(cx, None, entry)?;
        let file = self.same_layer(&entry.vnode)?.opened_new(cx, file, flags)?;
        Ok((entry, file))
    }

    /// Returns the open flags for a new file. Whether it is encoded is known only once it exists.
    fn flags_of_new(&self, flags: OpenFlags) -> OpenFlags {
        if self.core.resizing.is_some() {
            // Another process may write it while this open file exists.
            widened(OpenFlags(flags.0 | OpenFlags::RDWR.0))
        } else if self.core.data.is_some() || self.core.format.is_some() {
            widened(flags)
        } else {
            flags
        }
    }

    fn opened_new(&self, cx: &Cx<'_>, mut lower: Arc<dyn OpenFile>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        if let Some(resizing) = self.resizing() {
            let server = self.core.server(cx).held_for_caller();
            return Ok(Arc::new(self.open_resized((cx, &server), resizing, flags.without_trunc(), Some(lower))?));
        }
        if let Some(format) = self.format_inode() {
            let opened = self.opened(cx, flags)?;
            return Ok(self.file_of_format(lower, flags, format, opened));
        }
        let inode = self.inode(cx)?;
        if self.flags_of_new(flags) != flags && inode.as_ref().is_some_and(|inode| !inode.coded) {
            lower = self.lower.open(&self.core.server(cx), flags.without_trunc())?;
        }
        Ok(self.file(lower, flags, inode))
    }

    /// Changes attributes below, including the size.
    pub(crate) fn resize(
        &self,
        cx: &Cx<'_>,
        set: &SetAttr,
        new_size: u64,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        if let Some(resizing) = self.resizing() {
            return self.resize_container(cx, resizing, set, new_size);
        }
        if let Some((format, inode)) = self.core.format.as_ref().zip(self.format_inode()) {
            return self.resize_format(cx, set, new_size, file, (format, &inode));
        }
        let inode = self.inode(cx)?;
        let coded = self.core.data.as_ref().zip(inode.as_ref().filter(|inode| inode.coded));
        let Some((coding, inode)) = coded else { return self.lower.setattr(cx, set, file.map(lower_of)) };
        cx.require_blocking()?;
        let _own = inode.own(cx)?;
        let size = self.lower.getattr(cx)?.size;
        if !changes_blocks(coding.block(), size, new_size) {
            return self.lower.setattr(cx, set, file.map(lower_of));
        }
        self.with_writable(cx, file, |file| {
            CodedFile { coding, vnode: &*self.lower, known: self, file }.resize(cx, set, size, new_size)
        })
    }

    /// Runs `change` with the file below that `file` has open, if that is open for reading and
    /// writing, else with one that is opened for the duration.
    fn with_writable<T>(
        &self,
        cx: &Cx<'_>,
        file: Option<&dyn OpenFile>,
        change: impl FnOnce(&dyn OpenFile) -> Result<T>,
    ) -> Result<T> {
        match file.and_then(writable_lower_of) {
            Some(file) => change(file),
            None => change(&*self.lower.open(&self.core.server(cx), OpenFlags::RDWR)?),
        }
    }
}
