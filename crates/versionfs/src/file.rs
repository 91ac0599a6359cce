//! Open files: versions are made by their writes.

use crate::audit::{self, Event};
use crate::core::{Core, blocking};
use crate::head::{Head, HeadSets, QUICK_COPY};
use crate::inode::Inode;
use crate::node::VersionVnode;
use crate::options::CopyOn;
use crate::past;
use crate::session::{Creator, Session};
use crate::set::{Made, Set};
use crate::space::{is_partial, of_data, wants};
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use versionpolicy::{NoSpace, Storage};
use versionset::{Audited, BLOCK, Cause, Letter, Record, Stamp, read_full};
use vnode::{
    Attr, Backing, Cx, Errno, HostReader, MAY_BLOCK, OpenFile, OpenFlags, Result, SetAttr, SetTime, Vnode, Whence,
    forward,
};

/// Bytes that are compared at once.
const CHUNK: usize = 128 * 1024;

/// Milliseconds before each look for a mapping at a close: the kernel tells of the close before it
/// closes its own file, which takes a moment on a busy machine.
const PAUSES: [u64; 4] = [0, 1, 4, 15];

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
    made: Arc<AtomicBool>,
    /// [`Session::renames`] when it did, or was opened.
    renames: AtomicU32,
    is_bound: Arc<AtomicBool>,
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
            return Ok(self.file(session.renames, lower, Mode::Reads, flags));
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
        self.head().leave_version(cx)?;
        // Before the file is open for writing here, too.
        self.head().look_for_mappings(cx, &session)?;
        // Blocks are read before they are overwritten, hence reading, too.
        let lower = self.lower.open(cx, with_reading(flags.without_trunc()))?;
        let cx = &blocking(cx);
        self.stop_passthrough();
        session.opens += 1;
        session.writers += 1;
        let file = self.file(session.renames, lower, Mode::Writes, flags);
        let opened = file.as_any().downcast_ref::<VersionFile>().ok_or(Errno::IO)?;
        let begun = opened.begin(cx, &mut session, flags);
        drop(session);
        begun.map(|()| file)
    }

    fn file(&self, renames: u32, lower: Arc<dyn OpenFile>, mode: Mode, flags: OpenFlags) -> Arc<dyn OpenFile> {
        Arc::new(VersionFile {
            core: Arc::clone(&self.core),
            vnode: Arc::clone(&self.lower),
            inode: Arc::clone(&self.inode),
            lower,
            mode,
            reads: flags.reads(),
            appends: flags.appends(),
            made: Arc::new(AtomicBool::new(mode == Mode::Creates)),
            renames: AtomicU32::new(renames),
            is_excluded: OnceLock::new(),
            is_bound: Arc::default(),
            early: Mutex::default(),
        })
    }

    /// Wraps the open file of a file that was just created.
    pub(crate) fn created(&self, cx: &Cx<'_>, lower: Arc<dyn OpenFile>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let mut session = self.inode.session(&blocking(cx))?;
        session.opens += 1;
        let mode = match flags.writes() {
            true if self.sees_first_writes(cx) => Mode::Writes,
            true => Mode::Creates,
            false => Mode::Reads,
        };
        session.writers += u32::from(mode == Mode::Writes);
        let file = self.file(session.renames, Arc::clone(&lower), mode, flags);
        if mode == Mode::Creates
            && let Some(file) = file.as_any().downcast_ref::<VersionFile>()
        {
            session.begin_direct(Creator { lower, is_bound: Arc::clone(&file.is_bound) });
            self.core.space.begins_unseen();
        }
        if !self.core.options.comprehensive {
            // The first content of a file is no change.
            set_made(&*file, session.renames);
        }
        drop(session);
        if mode == Mode::Writes {
            self.stop_passthrough();
        }
        Ok(file)
    }

    /// Returns the flags to create a lower file with. While others write to it, too, and if its
    /// changes are recorded, the layer sees its writes and reads what they overwrite.
    pub(crate) fn flags_of_new(flags: OpenFlags) -> OpenFlags {
        if flags.writes() { with_reading(flags) } else { flags }
    }

    /// Whether the layer sees the writes of the program that creates a file.
    fn sees_first_writes(&self, cx: &Cx<'_>) -> bool {
        self.core.options.comprehensive || self.core.space.is_short() || audit::enabled_for(&self.core, cx)
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

/// Free space from which on nobody is expected to fill a file system while a file is open, in
/// bytes. On a small one it is a fraction of it.
const AMPLE: u64 = 64 << 20;
const AMPLE_FRACTION: u64 = 16;

/// Free inodes that a version may take: itself, an index, a store.
const FEW_INODES: u64 = 16;

impl Head<'_> {
    /// Whether a truncation may be delayed. At the close it would be too late to say that there is
    /// no room for the version: the program has had its answers, and the old content would stay.
    fn may_delay(&self, cx: &Cx<'_>, attr: &Attr) -> Result<bool> {
        if self.policy(cx, attr)?.is_some_and(|policy| policy.nospace == NoSpace::Skip) {
            return Ok(true);
        }
        let Ok(free) = self.lower.statfs(&self.core.server(cx)) else { return Ok(false) };
        let reserve = (free.blocks.saturating_mul(free.frsize) / AMPLE_FRACTION).min(AMPLE);
        // The version may have a table with an entry for each block, too.
        let needed = attr.size.saturating_add(attr.size / 64).saturating_add(reserve);
        // Some file systems do not count inodes.
        let has_inodes = free.files == 0 || free.ffree >= FEW_INODES;
        Ok(has_inodes && free.bavail.saturating_mul(free.frsize) >= needed)
    }

    /// Truncates the file as an open with `O_TRUNC` wanted: makes a version of what is beyond the
    /// bytes that were written again since.
    pub(crate) fn end_delay(&self, cx: &Cx<'_>, session: &mut Session, head: &dyn OpenFile) -> Result<()> {
        let Some(size) = self.inode.delayed() else { return Ok(()) };
        let server = self.core.server(cx);
        let attr = self.lower.getattr(&server)?;
        if size < attr.size {
            let range = size / BLOCK * BLOCK..attr.size;
            let made = self.version_before(cx, session, head, (&attr, Cause::Truncate), Some(range))?;
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            if let Err(errno) = self.lower.setattr(&server, &set, Some(head)) {
                self.take_back(cx, Some(session), made, errno);
                return Err(errno);
            }
            if let Some(made) = &session.delayed_by {
                made.store(true, Ordering::Relaxed);
            }
        } else {
            let time = SetTime::At(self.inode.delayed_time());
            self.before_touch(cx, session, attr.nlink)?;
            self.lower.setattr(&server, &SetAttr { mtime: Some(time), ..SetAttr::default() }, Some(head))?;
        }
        session.delayed_by = None;
        self.inode.delay_is_over();
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
    ) -> Result<Option<Made>> {
        let Some(sets) = self.sets(cx, attr.nlink)? else { return Ok(None) };
        let made = match self.make(cx, session, &sets.keeps, head, (attr, cause), changes.is_some()) {
            // Not even in place can the version that needs the head be written.
            Err(errno) => return self.forgo(cx, session, &sets, (attr, cause, errno)).map(Some),
            Ok(made) => made,
        };
        let Some(range) = changes else { return Ok(Some(made)) };
        let Err(errno) = self.save(cx, session, head, range) else { return Ok(Some(made)) };
        // Nothing has changed yet, whatever the error is.
        if !self.take_back(cx, Some(session), Some(made), Errno::CANCELED) {
            return Err(errno);
        }
        self.forgo(cx, session, &sets, (attr, cause, errno)).map(Some)
    }

    /// Lets a change be made although the bytes that it overwrites had no room: the versions that
    /// need them are discarded.
    ///
    /// # Errors
    /// `errno`, if that may not be; those of the layer below.
    fn forgo(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        sets: &HeadSets,
        (attr, cause, errno): (&Attr, Cause, Errno),
    ) -> Result<Made> {
        let server = self.core.server(cx);
        if !self.may_skip(self.policy(cx, attr)?.as_ref(), cause, errno) || !self.give_up(&server, &sets.keeps)? {
            return Err(errno);
        }
        session.active = None;
        self.skip(&server, &sets.keeps, attr, errno)
    }

    /// Saves the bytes of a range in the version that receives them.
    fn save(&self, cx: &Cx<'_>, session: &mut Session, head: &dyn OpenFile, range: Range<u64>) -> Result<()> {
        let Some(active) = &mut session.active else { return Ok(()) };
        wants(range.end.saturating_sub(range.start).min(active.writer.size()));
        let saved = active.save(&self.core.server(cx), head, range)?;
        if saved > 0 {
            self.core.space.grew(saved, 0);
            self.core.space.took(saved);
        }
        Ok(())
    }

    /// Saves bytes that change without a new version, for older versions that depend on them.
    /// Returns a version if there was no room for them.
    pub(crate) fn preserve(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        head: &dyn OpenFile,
        (attr, cause): (&Attr, Cause),
        range: Range<u64>,
    ) -> Result<Option<Made>> {
        let Some(sets) = self.sets(cx, attr.nlink)? else { return Ok(None) };
        match self.activate(cx, session, &sets.keeps).and_then(|()| self.save(cx, session, head, range)) {
            Err(errno) => self.forgo(cx, session, &sets, (attr, cause, errno)).map(Some),
            Ok(()) => Ok(None),
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
        let may_be_mapped = self.inode.is_bound() && flags.reads();
        if !may_be_mapped && !flags.truncates() {
            return Ok(());
        }
        let attr = self.vnode.getattr(&server)?;
        if may_be_mapped
            && self.versions(cx, &attr)?
            && let Some(sets) = self.head().sets(cx, attr.nlink)?
        {
            session.active = None;
            let made = self.head().copy(cx, &sets.keeps, &*self.lower, &attr, Cause::Write)?;
            *self.early.lock() = Some((made.set, made.number));
            self.made.store(true, Ordering::Relaxed);
        }
        if !flags.truncates() {
            return Ok(());
        }
        if attr.size == 0 {
            // Truncating sets the times even then.
            return self.touch(cx, session, attr.nlink);
        }
        let is_alone = session.opens == 1 && self.core.options.copy_on == CopyOn::Change;
        if is_alone && self.versions(cx, &attr)? && self.head().may_delay(cx, &attr)? {
            self.inode.delay(self.core.now(), self.core.callers.who(cx));
            session.delayed_by = Some(Arc::clone(&self.made));
            return Ok(());
        }
        let made = self.before_change(cx, session, &attr, Cause::Truncate, 0..attr.size)?;
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let truncated = self.vnode.setattr(&server, &set, Some(&*self.lower)).map(|_| ());
        self.checked(cx, session, made, truncated)
    }

    /// Discards the version that was made when the file was opened if nothing changed since, and
    /// nothing can change without the layer.
    fn drop_early(&mut self, cx: &Cx<'_>, session: &Session) -> Result<()> {
        let Some((set, number)) = self.early.get_mut().take() else { return Ok(()) };
        // Mappings can't be told while the file is open for writing.
        self.lower = self.vnode.open(cx, OpenFlags::RDONLY)?;
        let head = self.head();
        for pause in PAUSES {
            std::thread::sleep(Duration::from_millis(pause));
            head.look_for_mappings(cx, session)?;
            if !self.inode.may_be_mapped() || session.is_direct() {
                break;
            }
        }
        if head.is_written_unseen(session) {
            return Ok(());
        }
        let mut locked = set.lock(&self.core, cx)?;
        let versions = &locked.index().versions;
        let is_newest = versions.keys().next_back() == Some(&number);
        // Blocks can be added to sparse versions only.
        let older = versions.range(..number).next_back().map(|(_, older)| older.letter);
        let is_needed = older.is_some_and(|older| older.depends_on_newer() && older != Letter::Sparse);
        let Some(entry) = locked.file(cx, Letter::Full, number)?.filter(|_| is_newest && !is_needed) else {
            return Ok(());
        };
        let old = entry.vnode.open(cx, OpenFlags::RDONLY)?;
        let now = self.vnode.getattr(cx)?;
        if entry.attr.size != now.size || !is_same(cx, &*old, &*self.lower, now.size)? {
            return Ok(());
        }
        locked.reseal_before(cx, number, &Stamp::of(&now))?;
        // It never was: the head has had this content all the time.
        locked.append(cx, &[Record::Retracted(number)])?;
        locked.remove(cx, Letter::Full, number)
    }

    /// Whether this open file makes versions. The file has the attributes `attr`.
    fn versions(&self, cx: &Cx<'_>, attr: &Attr) -> Result<bool> {
        if self.inode.is_buried() {
            return Ok(false);
        }
        Ok(!*self.is_excluded.get_or_init(|| self.head().is_excluded(cx, attr).unwrap_or(false)))
    }

    /// Does what is due before bytes change: makes this open file's version, and saves the bytes.
    fn before_change(
        &self,
        cx: &Cx<'_>,
        session: &mut Session,
        attr: &Attr,
        cause: Cause,
        range: Range<u64>,
    ) -> Result<Option<Made>> {
        let head = self.head();
        let is_renamed = self.renames.swap(session.renames, Ordering::Relaxed) != session.renames;
        let makes = is_renamed || !self.made.load(Ordering::Relaxed) || self.core.options.comprehensive;
        if makes && self.versions(cx, attr)? {
            let made = head.version_before(cx, session, &*self.lower, (attr, cause), Some(range))?;
            self.made.store(true, Ordering::Relaxed);
            return Ok(made);
        }
        head.preserve(cx, session, &*self.lower, (attr, cause), range)
    }

    /// Passes on the result of a change. If it failed, takes back the version made before it.
    fn checked<T>(&self, cx: &Cx<'_>, session: &mut Session, made: Option<Made>, result: Result<T>) -> Result<T> {
        if let Err(errno) = &result
            && self.head().take_back(cx, Some(session), made, *errno)
        {
            self.made.store(false, Ordering::Relaxed);
        }
        result
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
    fn touch(&self, cx: &Cx<'_>, session: &mut Session, nlink: u32) -> Result<()> {
        self.head().before_touch(cx, session, nlink)?;
        let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        self.vnode.setattr(&self.core.server(cx), &set, Some(&*self.lower)).map(|_| ())
    }

    /// Writes while a truncation is delayed. Returns false if that has come to an end.
    fn write_delayed(&self, cx: &Cx<'_>, session: &mut Session, data: &[u8], offset: u64) -> Result<bool> {
        let Some(size) = self.inode.delayed() else { return Ok(false) };
        let attr = self.vnode.getattr(&self.core.server(cx))?;
        if offset <= size && self.is_unchanged(cx, data, offset, attr.size)? {
            self.inode.delay_on(size.max(offset + data.len() as u64), self.core.now());
            return Ok(true);
        }
        self.head().end_delay(cx, session, &*self.lower)?;
        Ok(false)
    }

    /// As [`Self::write_delayed`], of a copy. Returns how many bytes the source had.
    fn copy_delayed(&self, cx: &Cx<'_>, offset: u64, source: (&dyn OpenFile, u64), len: u64) -> Result<Option<u64>> {
        let session = self.inode.session(cx)?;
        let Some(size) = self.inode.delayed().filter(|size| offset <= *size) else { return Ok(None) };
        cx.require_blocking()?;
        let same = self.same_bytes(cx, offset, len, Some(source))?;
        if let Some(same) = same {
            self.inode.delay_on(size.max(offset + same), self.core.now());
        }
        drop(session);
        Ok(same)
    }

    /// Carries out a delayed truncation, before an operation that does not know of it.
    fn settle(&self, cx: &Cx<'_>) -> Result<()> {
        if self.inode.delayed().is_none() {
            return Ok(());
        }
        cx.require_blocking()?;
        self.core.with_room(cx, || {
            let mut session = self.inode.session(cx)?;
            let head = self.vnode.open(&self.core.server(cx), OpenFlags::RDWR)?;
            self.head().end_delay(cx, &mut session, &*head)
        })
    }

    /// Whether the next write may copy more than a thread should that must not block.
    fn may_copy_much(&self, cx: &Cx<'_>) -> Result<bool> {
        if self.made.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let attr = self.vnode.getattr(&self.core.server(cx))?;
        if attr.size <= QUICK_COPY {
            return Ok(false);
        }
        let is_full =
            || self.head().policy(cx, &attr).map(|policy| policy.is_some_and(|policy| policy.storage == Storage::Full));
        Ok(self.inode.delayed().is_some() || is_full()?)
    }

    fn write_seen(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let mut session = self.inode.session(cx)?;
        if !cx.may_block && self.may_copy_much(cx)? {
            return Err(MAY_BLOCK);
        }
        let cx = &blocking(cx);
        let server = self.core.server(cx);
        if data.is_empty() {
            return Ok(0);
        }
        let delayed = self.inode.delayed();
        if delayed.is_some() {
            let offset = delayed.filter(|_| self.appends).unwrap_or(offset);
            if self.write_delayed(cx, &mut session, data, offset)? {
                return Ok(data.len());
            }
        }
        let attr = self.vnode.getattr(&server)?;
        // Where a delayed truncation has ended just now, this is its size.
        let offset = if self.appends { attr.size } else { offset };
        if self.is_unchanged(cx, data, offset, attr.size)? {
            self.touch(cx, &mut session, attr.nlink)?;
            return Ok(data.len());
        }
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let made = self.before_change(cx, &mut session, &attr, Cause::Write, offset..end)?;
        let written = of_data(self.lower.write(cx, data, offset));
        self.checked(cx, &mut session, made, written)
    }

    /// Whether a copy of `len` bytes, or zeros without a source, would change nothing.
    fn has_already(&self, cx: &Cx<'_>, at: u64, len: u64, source: Option<(&dyn OpenFile, u64)>) -> Result<bool> {
        Ok(self.same_bytes(cx, at, len, source)?.is_some())
    }

    /// Returns how many bytes a copy of `len` bytes, or zeros without a source, would write that
    /// are there already; `None` if some are not.
    fn same_bytes(&self, cx: &Cx<'_>, at: u64, len: u64, source: Option<(&dyn OpenFile, u64)>) -> Result<Option<u64>> {
        let server = self.core.server(cx);
        let size = self.vnode.getattr(&server)?.size;
        let (mut new, mut old) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut done = 0;
        while done < len {
            let new = versionset::clamp(&mut new, done, len);
            let count = match source {
                Some((file, from)) => read_full(&server, file, new, from.saturating_add(done))?,
                None => new.len(),
            };
            if count == 0 {
                break;
            }
            let start = at.saturating_add(done);
            if self.core.options.copy_on == CopyOn::Write || start.saturating_add(count as u64) > size {
                return Ok(None);
            }
            let old = versionset::clamp(&mut old, 0, count as u64);
            if read_full(&server, &*self.lower, old, start)? < count || new.get(..count) != Some(&*old) {
                return Ok(None);
            }
            done += count as u64;
        }
        Ok(Some(done))
    }

    /// Runs a change of a range that is made by the layer below. `is_same` returns whether it would
    /// change nothing.
    fn change<T>(
        &self,
        cx: &Cx<'_>,
        cause: Cause,
        range: impl Fn(u64) -> Range<u64>,
        is_same: impl FnOnce(&Cx<'_>, u64) -> Result<bool>,
        change: impl FnOnce(&Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut session = self.inode.session(cx)?;
        if self.mode != Mode::Writes && session.active.is_none() && session.writers == 0 {
            return of_data(change(cx));
        }
        cx.require_blocking()?;
        self.head().end_delay(cx, &mut session, &*self.lower)?;
        let attr = self.vnode.getattr(&self.core.server(cx))?;
        if is_same(cx, attr.size)? {
            self.head().before_touch(cx, &mut session, attr.nlink)?;
            return of_data(change(cx));
        }
        let made = self.before_change(cx, &mut session, &attr, cause, range(attr.size))?;
        let changed = of_data(change(cx));
        if changed.is_err() && Stamp::of(&self.vnode.getattr(&self.core.server(cx))?) != Stamp::of(&attr) {
            // Part of it was made: such changes are not atomic on a full disk.
            is_partial();
            return changed;
        }
        self.checked(cx, &mut session, made, changed)
    }
}

impl OpenFile for VersionFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: flush);

    fn backing(&self) -> Option<Backing<'_>> {
        if self.mode == Mode::Writes { None } else { self.lower.backing() }
    }

    fn closes_quickly(&self) -> bool {
        self.backing().is_some()
    }

    fn bind(&self) {
        if !self.is_bound.swap(true, Ordering::Relaxed) {
            self.inode.bind(self.reads && self.mode != Mode::Reads);
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
        let write = || self.put(cx, data, offset);
        let event = || Ok(Event::head(&self.head(), cx, Audited::Write)?.with_range(offset, 0));
        self.core.audited(cx, event, write, |written, event| {
            event.range = (self.offset_of(cx, offset, *written), *written as u64);
        })
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.settle(cx)?;
        self.lower.seek(cx, offset, whence)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        if self.mode == Mode::Writes {
            if !cx.may_block {
                return Err(MAY_BLOCK);
            }
            self.settle(cx)?;
            if let Some(active) = &self.inode.session(cx)?.active {
                // First the bytes that the version took from the head.
                active.writer.file().fsync(cx, data_only)?;
            }
        }
        self.lower.fsync(cx, data_only)?;
        self.core.log.fsync(&self.core.server(cx))
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        let event = || {
            let event = Event::head(&self.head(), cx, Audited::Fallocate)?;
            Ok(event.with_range(offset, len).with_text(format!("mode={mode:#x}").as_bytes()))
        };
        self.core.audited(cx, event, || self.allocate(cx, mode, offset, len), |(), _| ())
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        let event = || Ok(Event::head(&self.head(), cx, Audited::Write)?.with_range(offset, 0).with_text(b"copy"));
        let copy = || self.copy_seen(cx, offset, source, source_offset, len);
        self.core.audited(cx, event, copy, |copied, event| event.range.1 = *copied)
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let event = || Ok(Event::head(&self.head(), cx, Audited::Write)?.with_text(b"reflink"));
        self.core.audited(cx, event, || self.reflink_seen(cx, source), |(), _| ())
    }
}

impl VersionFile {
    /// Returns where `written` bytes are that were written just now: behind the former end if this
    /// file appends.
    fn offset_of(&self, cx: &Cx<'_>, offset: u64, written: usize) -> u64 {
        if !self.appends {
            return offset;
        }
        let size: Result<u64> =
            self.inode.delayed().map_or_else(|| Ok(self.vnode.getattr(&self.core.server(cx))?.size), Ok);
        size.map_or(offset, |size| size.saturating_sub(written as u64))
    }

    fn allocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        const KEEP_SIZE: u32 = 1;
        self.settle(cx)?;
        if mode & !KEEP_SIZE == 0 {
            let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
            let grows = |size| if mode == 0 && end > size { size..size } else { 0..0 };
            let size = self.vnode.getattr(&self.core.server(cx))?.size;
            if mode == KEEP_SIZE || end <= size {
                // It may set the modification time.
                let mut session = self.inode.session(cx)?;
                let nlink = self.vnode.getattr(&self.core.server(cx))?.nlink;
                self.head().before_touch(cx, &mut session, nlink)?;
                return of_data(self.lower.fallocate(cx, mode, offset, len));
            }
            return self.change(
                cx,
                Cause::Fallocate,
                grows,
                |_, _| Ok(false),
                |cx| self.lower.fallocate(cx, mode, offset, len),
            );
        }
        // Punching and zeroing change the range; collapsing and inserting everything behind it.
        const MOVES: u32 = 0x08 | 0x20;
        let range = |size: u64| {
            let end = if mode & MOVES == 0 { offset.saturating_add(len).min(size) } else { size };
            offset.min(size)..end
        };
        let is_same = |cx: &Cx<'_>, size: u64| {
            let end = offset.saturating_add(len);
            let stays = mode & MOVES == 0 && (mode & KEEP_SIZE != 0 || end <= size);
            Ok(stays && self.has_already(cx, offset, end.min(size).saturating_sub(offset), None)?)
        };
        self.change(cx, Cause::Fallocate, range, is_same, |cx| self.lower.fallocate(cx, mode, offset, len))
    }

    fn put(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        match self.mode {
            Mode::Reads => Err(Errno::BADF),
            Mode::Creates if self.inode.session(cx)?.writers == 0 => of_data(self.lower.write(cx, data, offset)),
            Mode::Creates | Mode::Writes => self.write_seen(cx, data, offset),
        }
    }

    fn copy_seen(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        let source = settled(cx, source)?;
        if source.as_any().is::<past::Opened>() {
            // Reading it locks the head of its set, which may be this file. A short copy is one
            // change, as a write is.
            let mut data = vec![0; usize::try_from(len).unwrap_or(CHUNK).min(CHUNK)];
            let count = read_full(cx, source, &mut data, source_offset)?;
            data.truncate(count);
            return if data.is_empty() { Ok(0) } else { self.put(cx, &data, offset).map(|written| written as u64) };
        }
        if let Some(copied) = self.copy_delayed(cx, offset, (source, source_offset), len)? {
            return Ok(copied);
        }
        let range = |size: u64| offset.min(size)..offset.saturating_add(len).min(size);
        let is_same = |cx: &Cx<'_>, _| self.has_already(cx, offset, len, Some((source, source_offset)));
        let copy = |cx: &Cx<'_>| self.lower.copy_from(cx, offset, source, source_offset, len);
        self.change(cx, Cause::Write, range, is_same, copy)
    }

    fn reflink_seen(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let source = settled(cx, source)?;
        if source.as_any().is::<past::Opened>() {
            return Err(Errno::OPNOTSUPP);
        }
        let is_same = |cx: &Cx<'_>, size: u64| {
            let is_longer = read_full(&self.core.server(cx), source, &mut [0], size)? > 0;
            let on_change = self.core.options.copy_on == CopyOn::Change;
            Ok(on_change && !is_longer && is_same(&self.core.server(cx), &*self.lower, source, size)?)
        };
        self.change(cx, Cause::Write, |size| 0..size, is_same, |cx| self.lower.reflink_from(cx, source))
    }
}

/// Returns the flags with the access mode for reading and writing.
fn with_reading(flags: OpenFlags) -> OpenFlags {
    OpenFlags(flags.0 & !3 | OpenFlags::RDWR.0)
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

/// Returns the lower open file of a file that is copied, whose truncation is delayed no more.
fn settled<'a>(cx: &Cx<'_>, file: &'a dyn OpenFile) -> Result<&'a dyn OpenFile> {
    if let Some(file) = file.as_any().downcast_ref::<VersionFile>() {
        file.settle(cx)?;
    }
    Ok(below(file))
}

/// Returns the lower open file of an argument, if it is one of this layer that has one.
pub(crate) fn below(file: &dyn OpenFile) -> &dyn OpenFile {
    if let Some(version) = file.as_any().downcast_ref::<past::Opened>() {
        return version.plain().unwrap_or(file);
    }
    file.as_any().downcast_ref::<VersionFile>().map_or(file, |file| &**file.lower())
}

impl Drop for VersionFile {
    fn drop(&mut self) {
        let cx = self.core.server(&Cx::internal(0, 0));
        let inode = Arc::clone(&self.inode);
        if self.mode == Mode::Writes {
            let _tried_below = self.core.with_room(&cx, || {
                let mut session = inode.wait_session();
                let is_last = session.writers == 1;
                if is_last { self.head().end_delay(&cx, &mut session, &*self.lower) } else { Ok(()) }
            });
        }
        let mut session = inode.wait_session();
        if self.mode == Mode::Writes && session.writers == 1 {
            // Even if it fails the file is as after a kill: it has the old content.
            if let Err(errno) = self.head().end_delay(&cx, &mut session, &*self.lower) {
                tracing::warn!(%errno, "file {}: can't truncate it as its last writer wanted", self.inode.id);
                self.inode.delay_is_over();
                // Users have seen the file as empty, and the kernel knows it as such.
                if let Some(upcalls) = self.core.upcalls.get() {
                    upcalls.data_changed(self.inode.id, 0..u64::MAX);
                }
            }
            self.head().seal(&cx, &mut session);
        }
        session.opens = session.opens.saturating_sub(1);
        session.writers = session.writers.saturating_sub(u32::from(self.mode == Mode::Writes));
        if self.mode == Mode::Creates {
            session.end_direct(&self.is_bound);
            self.core.space.ends_unseen();
        }
        if self.is_bound.load(Ordering::Relaxed) {
            self.inode.unbind();
        }
        let is_last = self.mode == Mode::Writes && session.writers == 0;
        if is_last && let Err(errno) = self.drop_early(&cx, &session) {
            tracing::warn!(%errno, "file {}: can't compare a version with it", self.inode.id);
        }
        // With the session locked: the next writer stops it again.
        if is_last && let Some(upcalls) = self.core.upcalls.get() {
            upcalls.allow_passthrough(self.inode.id);
        }
    }
}

/// Whether an open file of this layer has made its version since the file was renamed so often.
pub(crate) fn has_made(file: &dyn OpenFile, renames: u32) -> bool {
    file.as_any()
        .downcast_ref::<VersionFile>()
        .is_some_and(|file| file.renames.load(Ordering::Relaxed) == renames && file.made.load(Ordering::Relaxed))
}

/// Notes that an open file of this layer has made its version.
pub(crate) fn set_made(file: &dyn OpenFile, renames: u32) {
    if let Some(file) = file.as_any().downcast_ref::<VersionFile>() {
        file.renames.store(renames, Ordering::Relaxed);
        file.made.store(true, Ordering::Relaxed);
    }
}
