//! Open files: versions are made by their writes.

use crate::core::{Core, blocking};
use crate::head::Head;
use crate::inode::Inode;
use crate::node::VersionVnode;
use crate::options::CopyOn;
use crate::session::Session;
use crate::set::Set;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use versionset::{BLOCK, Cause, Letter, Record, read_full};
use vnode::{
    Attr, Backing, Cx, Errno, HostReader, MAY_BLOCK, OpenFile, OpenFlags, Result, SetAttr, SetTime, Vnode, forward,
};

/// How an open file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Opened for reading.
    Reads,
    /// Created by this open file: nothing was there before it, so it makes no version.
    Creates,
    /// Opened for writing: the layer sees each write.
    Writes,
}

/// An open file of the layer.
#[derive(Debug)]
pub(crate) struct VersionFile {
    core: Arc<Core>,
    vnode: Arc<dyn Vnode>,
    inode: Arc<Inode>,
    lower: Arc<dyn OpenFile>,
    mode: Mode,
    reads: bool,
    appends: bool,
    /// Whether the policy excludes the file: found out at the first change.
    is_excluded: OnceLock<bool>,
    /// Whether this open file has made its version.
    made: AtomicBool,
    is_bound: AtomicBool,
    /// The version that was made when the file was opened, before anything changed.
    early: Mutex<Option<(Arc<Set>, u64)>>,
}

impl VersionVnode {
    /// Opens the file.
    pub(crate) fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let mut session = self.inode.session(cx)?;
        if !flags.writes() {
            if self.inode.delayed().is_some() {
                cx.require_blocking()?;
                self.end_delay(cx, &mut session)?;
            }
            let lower = self.lower.open(cx, flags)?;
            session.opens += 1;
            return Ok(self.file(lower, Mode::Reads, flags));
        }
        self.open_to_write(cx, flags, session)
    }

    fn open_to_write(
        &self,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mut session: parking_lot::MutexGuard<'_, Session>,
    ) -> Result<Arc<dyn OpenFile>> {
        if flags.truncates() || self.inode.delayed().is_some() {
            cx.require_blocking()?;
        }
        if self.inode.delayed().is_some() {
            self.end_delay(cx, &mut session)?;
        }
        // Blocks are read before they are overwritten, hence reading, too.
        let both = OpenFlags(flags.without_trunc().0 & !3 | OpenFlags::RDWR.0);
        let lower = self.lower.open(cx, both)?;
        let cx = &blocking(cx);
        self.stop_passthrough();
        session.opens += 1;
        session.writers += 1;
        let file = self.file(lower, Mode::Writes, flags);
        let opened = file.as_any().downcast_ref::<VersionFile>().ok_or(Errno::IO)?;
        let begun = opened.begin(cx, &mut session, flags);
        drop(session);
        begun.map(|()| file)
    }

    fn file(&self, lower: Arc<dyn OpenFile>, mode: Mode, flags: OpenFlags) -> Arc<dyn OpenFile> {
        Arc::new(VersionFile {
            core: Arc::clone(&self.core),
            vnode: Arc::clone(&self.lower),
            inode: Arc::clone(&self.inode),
            lower,
            mode,
            reads: flags.reads(),
            appends: flags.appends(),
            made: AtomicBool::new(mode == Mode::Creates),
            is_excluded: OnceLock::new(),
            is_bound: AtomicBool::new(false),
            early: Mutex::default(),
        })
    }

    /// Wraps the open file of a file that was just created.
    pub(crate) fn created(&self, cx: &Cx<'_>, lower: Arc<dyn OpenFile>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let mut session = self.inode.session(&blocking(cx))?;
        session.opens += 1;
        let mode = if flags.writes() { Mode::Creates } else { Mode::Reads };
        session.direct += u32::from(mode == Mode::Creates);
        Ok(self.file(lower, mode, flags))
    }

    /// Denies passthrough to files that are opened from now on, so that the layer sees the writes.
    fn stop_passthrough(&self) {
        if let Some(upcalls) = self.core.upcalls.get() {
            upcalls.stop_passthrough(self.inode.id, Box::new(|| {}));
        }
    }

    /// Carries out a delayed truncation.
    pub(crate) fn end_delay(&self, cx: &Cx<'_>, session: &mut Session) -> Result<()> {
        if self.inode.delayed().is_none() {
            return Ok(());
        }
        let server = self.core.server(cx);
        let head = self.lower.open(&server, OpenFlags::RDWR)?;
        self.head().end_delay(cx, session, &*head)
    }

    pub(crate) fn head(&self) -> Head<'_> {
        Head { core: &self.core, lower: &self.lower, inode: &self.inode }
    }
}

impl Head<'_> {
    /// Truncates the file as an open with `O_TRUNC` wanted: makes a version of what is beyond the
    /// bytes that were written again since.
    pub(crate) fn end_delay(&self, cx: &Cx<'_>, session: &mut Session, head: &dyn OpenFile) -> Result<()> {
        let Some(size) = self.inode.delayed() else { return Ok(()) };
        let server = self.core.server(cx);
        let attr = self.lower.getattr(&server)?;
        if size < attr.size {
            self.version_before(cx, session, head, (&attr, Cause::Truncate), Some(size / BLOCK * BLOCK..attr.size))?;
            self.lower.setattr(&server, &SetAttr { size: Some(size), ..SetAttr::default() }, Some(head))?;
        }
        self.inode.set_delayed(None);
        Ok(())
    }

    /// Makes a version before a change of `changes`, and saves these bytes. Without a range, the
    /// data remains.
    pub(crate) fn version_before(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        head: &dyn OpenFile,
        (attr, cause): (&Attr, Cause),
        changes: Option<Range<u64>>,
    ) -> Result<()> {
        let Some(sets) = self.sets(cx, attr.nlink)? else { return Ok(()) };
        self.make(cx, session, &sets.keeps, head, (attr, cause))?;
        match (&mut session.active, changes) {
            (Some(active), Some(range)) => active.save(&self.core.server(cx), head, range),
            _ => Ok(()),
        }
    }

    /// Saves bytes that change without a new version, for older versions that depend on them.
    pub(crate) fn preserve(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        head: &dyn OpenFile,
        nlink: u32,
        range: Range<u64>,
    ) -> Result<()> {
        let Some(sets) = self.sets(cx, nlink)? else { return Ok(()) };
        self.activate(cx, session, &sets.keeps)?;
        match &mut session.active {
            Some(active) => active.save(&self.core.server(cx), head, range),
            None => Ok(()),
        }
    }
}

impl VersionFile {
    fn head(&self) -> Head<'_> {
        Head { core: &self.core, lower: &self.vnode, inode: &self.inode }
    }

    /// Returns the lower open file, for a layer that takes one as an argument.
    pub(crate) fn lower(&self) -> &Arc<dyn OpenFile> {
        &self.lower
    }

    /// Begins to write: delays a truncation, or makes the version at once if the kernel does the
    /// I/O of another open file, because mappings of this one bypass the layer then, too.
    fn begin(&self, cx: &Cx<'_>, session: &mut Session, flags: OpenFlags) -> Result<()> {
        let server = self.core.server(cx);
        let attr = self.vnode.getattr(&server)?;
        if session.bound > 0 && flags.reads() && self.versions(cx)? {
            if let Some(sets) = self.head().sets(cx, attr.nlink)? {
                session.active = None;
                let number = self.head().copy(cx, &sets.keeps, &*self.lower, &attr, Cause::Write)?;
                *self.early.lock() = Some((sets.keeps, number));
                self.made.store(true, Ordering::Relaxed);
            }
        }
        if !flags.truncates() || attr.size == 0 {
            return Ok(());
        }
        let is_alone = session.opens == 1 && self.core.options.copy_on == CopyOn::Change;
        if is_alone && self.versions(cx)? {
            self.inode.set_delayed(Some(0));
            return Ok(());
        }
        self.before_change(cx, session, &attr, Cause::Truncate, 0..attr.size)?;
        self.vnode.setattr(&server, &SetAttr { size: Some(0), ..SetAttr::default() }, Some(&*self.lower))?;
        Ok(())
    }

    /// Discards the version that was made when the file was opened if nothing changed since, and
    /// nothing can change without the layer.
    fn drop_early(&self, cx: &Cx<'_>) -> Result<()> {
        let Some((set, number)) = self.early.lock().take() else { return Ok(()) };
        if self.core.upcalls.get().is_some_and(|upcalls| upcalls.maybe_mapped().contains(&self.inode.id)) {
            return Ok(());
        }
        let mut locked = set.lock(&self.core, cx)?;
        let is_newest = locked.index().newest().is_some_and(|newest| newest.number == number);
        let Some(entry) = locked.file(cx, Letter::Full, number)?.filter(|_| is_newest) else { return Ok(()) };
        let old = entry.vnode.open(cx, OpenFlags::RDONLY)?;
        if entry.attr.size != self.vnode.getattr(cx)?.size || !is_same(cx, &*old, &*self.lower, entry.attr.size)? {
            return Ok(());
        }
        locked.append(cx, &[Record::Discarded(number)])?;
        locked.remove(cx, Letter::Full, number)
    }

    /// Whether this open file makes versions.
    fn versions(&self, cx: &Cx<'_>) -> Result<bool> {
        if self.inode.is_buried() {
            return Ok(false);
        }
        if let Some(is_excluded) = self.is_excluded.get() {
            return Ok(!is_excluded);
        }
        let attr = self.vnode.getattr(&self.core.server(cx))?;
        Ok(!*self.is_excluded.get_or_init(|| self.head().is_excluded(cx, &attr).unwrap_or(false)))
    }

    /// Does what is due before bytes change: makes this open file's version, and saves the bytes.
    fn before_change(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        attr: &Attr,
        cause: Cause,
        range: Range<u64>,
    ) -> Result<()> {
        let head = self.head();
        let makes = !self.made.load(Ordering::Relaxed) || self.core.options.comprehensive;
        if makes && self.versions(cx)? {
            head.version_before(cx, session, &*self.lower, (attr, cause), Some(range))?;
            self.made.store(true, Ordering::Relaxed);
            return Ok(());
        }
        head.preserve(cx, session, &*self.lower, attr.nlink, range)
    }

    /// Whether the file has exactly these bytes there already.
    fn is_unchanged(&self, cx: &Cx<'_>, data: &[u8], offset: u64, size: u64) -> Result<bool> {
        if self.core.options.copy_on == CopyOn::Write || offset + data.len() as u64 > size {
            return Ok(false);
        }
        let mut old = vec![0; data.len()];
        let read = read_full(&self.core.server(cx), &*self.lower, &mut old, offset)?;
        Ok(read == data.len() && old == data)
    }

    /// Sets the modification time after a write that changed no byte.
    fn touch(&self, cx: &Cx<'_>) -> Result<()> {
        let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        self.vnode.setattr(&self.core.server(cx), &set, Some(&*self.lower)).map(|_| ())
    }

    /// Writes while a truncation is delayed. Returns false if that has come to an end.
    fn write_delayed(&self, cx: &Cx<'_>, session: &mut Session, data: &[u8], offset: u64) -> Result<bool> {
        let Some(size) = self.inode.delayed() else { return Ok(false) };
        let attr = self.vnode.getattr(&self.core.server(cx))?;
        if offset <= size && self.is_unchanged(cx, data, offset, attr.size)? {
            self.inode.set_delayed(Some(size.max(offset + data.len() as u64)));
            self.touch(cx)?;
            return Ok(true);
        }
        self.head().end_delay(cx, session, &*self.lower)?;
        // The version is made.
        self.made.store(true, Ordering::Relaxed);
        Ok(false)
    }

    fn write_seen(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let mut session = self.inode.session(cx)?;
        let cx = &blocking(cx);
        let server = self.core.server(cx);
        let offset = match (self.appends, self.inode.delayed()) {
            (false, _) => offset,
            (true, Some(size)) => size,
            (true, None) => self.vnode.getattr(&server)?.size,
        };
        if data.is_empty() {
            return Ok(0);
        }
        if self.write_delayed(cx, &mut session, data, offset)? {
            return Ok(data.len());
        }
        let attr = self.vnode.getattr(&server)?;
        if self.is_unchanged(cx, data, offset, attr.size)? {
            self.touch(cx)?;
            return Ok(data.len());
        }
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        self.before_change(cx, &mut session, &attr, Cause::Write, offset..end)?;
        self.lower.write(cx, data, offset)
    }

    /// Runs a change of a range that is made by the layer below.
    fn change<T>(
        &self,
        cx: &Cx<'_>,
        cause: Cause,
        range: impl Fn(u64) -> Range<u64>,
        change: impl FnOnce(&Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut session = self.inode.session(cx)?;
        if self.mode != Mode::Writes && session.active.is_none() && session.writers == 0 {
            return change(cx);
        }
        cx.require_blocking()?;
        self.head().end_delay(cx, &mut session, &*self.lower)?;
        let attr = self.vnode.getattr(&self.core.server(cx))?;
        self.before_change(cx, &mut session, &attr, cause, range(attr.size))?;
        change(cx)
    }
}

impl OpenFile for VersionFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: flush, seek);

    fn backing(&self) -> Option<Backing<'_>> {
        if self.mode == Mode::Writes { None } else { self.lower.backing() }
    }

    fn bind(&self) {
        if !self.is_bound.swap(true, Ordering::Relaxed) {
            self.inode.wait_session().bound += 1;
        }
        self.lower.bind();
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        if !self.reads {
            // The lower file is open for reading, too.
            return Err(Errno::BADF);
        }
        match self.inode.delayed() {
            Some(size) => self.lower.read(cx, versionset::clamp(out, offset, size), offset),
            None => self.lower.read(cx, out, offset),
        }
    }

    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>> {
        if self.inode.delayed().is_some() { Ok(None) } else { self.lower.read_host(cx, take) }
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        match self.mode {
            Mode::Reads => Err(Errno::BADF),
            Mode::Creates if self.inode.session(cx)?.writers == 0 => self.lower.write(cx, data, offset),
            Mode::Creates | Mode::Writes => self.write_seen(cx, data, offset),
        }
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        if self.mode == Mode::Writes {
            if !cx.may_block {
                return Err(MAY_BLOCK);
            }
            let mut session = self.inode.session(cx)?;
            self.head().end_delay(cx, &mut session, &*self.lower)?;
            if let Some(active) = &session.active {
                // First the bytes that the version took from the head.
                active.writer.file().fsync(cx, data_only)?;
            }
        }
        self.lower.fsync(cx, data_only)
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        const KEEP_SIZE: u32 = 1;
        if mode & !KEEP_SIZE == 0 {
            let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
            let grows = |size| if mode == 0 && end > size { size..size } else { 0..0 };
            let size = self.vnode.getattr(&self.core.server(cx))?.size;
            if mode == KEEP_SIZE || end <= size {
                return self.lower.fallocate(cx, mode, offset, len);
            }
            return self.change(cx, Cause::Fallocate, grows, |cx| self.lower.fallocate(cx, mode, offset, len));
        }
        // Punching and zeroing change the range; collapsing and inserting everything behind it.
        const MOVES: u32 = 0x08 | 0x20;
        let range = |size: u64| {
            let end = if mode & MOVES == 0 { offset.saturating_add(len).min(size) } else { size };
            offset.min(size)..end
        };
        self.change(cx, Cause::Fallocate, range, |cx| self.lower.fallocate(cx, mode, offset, len))
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        let source = below(source);
        let range = |size: u64| offset.min(size)..offset.saturating_add(len).min(size);
        self.change(cx, Cause::Write, range, |cx| self.lower.copy_from(cx, offset, source, source_offset, len))
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let source = below(source);
        self.change(cx, Cause::Write, |size| 0..size, |cx| self.lower.reflink_from(cx, source))
    }
}

/// Whether two files of `size` bytes have the same content.
fn is_same(cx: &Cx<'_>, one: &dyn OpenFile, other: &dyn OpenFile, size: u64) -> Result<bool> {
    let (mut left, mut right) = (vec![0; 1 << 17], vec![0; 1 << 17]);
    let mut at = 0;
    while at < size {
        let (left, right) = (versionset::clamp(&mut left, at, size), versionset::clamp(&mut right, at, size));
        let read = read_full(cx, one, left, at)?;
        if read < left.len() || read_full(cx, other, right, at)? < read || left != right {
            return Ok(false);
        }
        at += read as u64;
    }
    Ok(true)
}

/// Returns the lower open file of an argument, if it is one of this layer.
pub(crate) fn below(file: &dyn OpenFile) -> &dyn OpenFile {
    file.as_any().downcast_ref::<VersionFile>().map_or(file, |file| &**file.lower())
}

impl Drop for VersionFile {
    fn drop(&mut self) {
        let cx = self.core.server(&Cx::internal(0, 0));
        let mut session = self.inode.wait_session();
        if self.mode == Mode::Writes && session.writers == 1 {
            // Even if it fails the file is as after a kill: it has the old content.
            if let Err(errno) = self.head().end_delay(&cx, &mut session, &*self.lower) {
                tracing::warn!(%errno, "file {}: can't truncate it as its last writer wanted", self.inode.id);
                self.inode.set_delayed(None);
            }
            session.active = None;
            if let Err(errno) = self.drop_early(&cx) {
                tracing::warn!(%errno, "file {}: can't compare a version with it", self.inode.id);
            }
        }
        session.opens = session.opens.saturating_sub(1);
        session.writers = session.writers.saturating_sub(u32::from(self.mode == Mode::Writes));
        session.direct = session.direct.saturating_sub(u32::from(self.mode == Mode::Creates));
        session.bound = session.bound.saturating_sub(u32::from(*self.is_bound.get_mut()));
        let is_last = self.mode == Mode::Writes && session.writers == 0;
        drop(session);
        if is_last && let Some(upcalls) = self.core.upcalls.get() {
            upcalls.allow_passthrough(self.inode.id);
        }
    }
}

/// Whether an open file of this layer has made its version.
pub(crate) fn has_made(file: &dyn OpenFile) -> bool {
    file.as_any().downcast_ref::<VersionFile>().is_some_and(|file| file.made.load(Ordering::Relaxed))
}

/// Notes that an open file of this layer has made its version.
pub(crate) fn set_made(file: &dyn OpenFile) {
    if let Some(file) = file.as_any().downcast_ref::<VersionFile>() {
        file.made.store(true, Ordering::Relaxed);
    }
}
