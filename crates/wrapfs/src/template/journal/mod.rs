//! A journal of changes of stored blocks, so that a server that is killed leaves no block with a
//! mixture of old and new bytes.
//!
//! A killed process stops in the middle of write(2), between two pages, and between two system
//! calls. So before a change, a record with all new stored bytes of blocks that had old content is
//! written to the journal; it is cleared after the change. After a crash, records that are whole
//! are applied: blocks with old content become new, and blocks that a write was adding are cut off.
//! Records contain stored bytes only, so this needs no key. docs/wrapfs.md lists the guarantees.
//!
//! `record` is the format, `recover` reads what a crash has left, `restore` changes the files that
//! it is about, `kept` keeps what could not be restored, `keep` builds a layer with a journal.

mod keep;
mod kept;
mod record;
mod recover;
mod restore;

pub(crate) use kept::is_kept;
pub use kept::{KeptJournals, KeptWrite};
pub(crate) use record::{HeaderId, PREFIX, Record, Span, marks_of, most_marks};

use super::lower_io::write_full;
use crate::hooks::{Journal as Setting, Layout};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use vnode::{Attr, Cx, Errno, Layer, Name, OpenFile, OpenFlags, Result, SetAttr, SetTime, Upcalls};

/// Offset of the first slot, in bytes.
const FIRST_SLOT: u64 = 4096;

/// `fallocate` mode: keep the size.
const KEEP_SIZE: u32 = 1;

/// The journal of a layer. Its file is created at the first change, and removed when the layer is
/// unmounted or dropped.
#[derive(Debug)]
pub(crate) struct Journal {
    lower: Arc<dyn Layer>,
    setting: Setting,
    layout: Layout,
    /// How many bytes at the start of a file's header identify the file.
    fixed: usize,
    /// Size of a slot, which holds one record with its data, in bytes.
    slot: u64,
    /// The user that the server runs as, who owns the journal.
    uid: u32,
    gid: u32,
    state: Mutex<State>,
    /// Caches the times of the root, which the journal's file moves.
    above: OnceLock<Arc<dyn Upcalls>>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<Arc<dyn OpenFile>>,
    /// Number of the journal's file in the layer below.
    id: u64,
    /// Unused slots among the first `count` ones.
    free: Vec<u64>,
    count: u64,
    /// Slots whose record could not be cleared, and the number of the file that it is about.
    stuck: Vec<(u64, u64)>,
}

/// A record in the journal, which is cleared when this is dropped.
#[derive(Debug)]
pub(crate) struct Recorded<'a> {
    journal: &'a Journal,
    file: Arc<dyn OpenFile>,
    slot: u64,
    number: u64,
    /// Whether recovery makes the whole change. Otherwise it takes back a part, or all.
    completes: bool,
    /// Set once it is cleared, or known that it can't be.
    is_done: bool,
}

impl Journal {
    /// Returns the journal of a layer. `most` is the maximum length of a record's marks and data in
    /// bytes.
    pub(crate) fn new(
        lower: Arc<dyn Layer>,
        setting: Setting,
        (layout, fixed): (Layout, usize),
        most: u64,
        owner: (u32, u32),
    ) -> Self {
        let slot = (PREFIX as u64 + most).next_multiple_of(FIRST_SLOT);
        Self {
            lower,
            setting,
            layout,
            fixed,
            slot,
            uid: owner.0,
            gid: owner.1,
            state: Mutex::default(),
            above: OnceLock::new(),
        }
    }

    /// Sets what is notified of the root's times.
    pub(crate) fn attach(&self, above: Arc<dyn Upcalls>) {
        let _once = self.above.set(above);
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.setting.durable
    }

    /// Returns what the ends of segments are multiples of.
    pub(crate) fn segment(&self) -> u64 {
        if self.is_durable() { record::SECTOR } else { record::PAGE }
    }

    /// Returns what identifies the file with this header.
    pub(crate) fn id_of(&self, header: &[u8]) -> HeaderId {
        HeaderId::of(header.get(..self.fixed).unwrap_or(header))
    }

    /// Returns the context of the journal's own work, which no signal interrupts.
    fn own(&self) -> Cx<'static> {
        Cx::internal(self.uid, self.gid)
    }

    /// Writes a record before a change. The record, its marks and the header `head` replace the
    /// first bytes of `buffer`; the rest of its data follows.
    ///
    /// # Errors
    /// Nothing may be changed. `ENOSPC` if there is no space for the record.
    pub(crate) fn record(
        &self,
        cx: &Cx<'_>,
        record: &Record,
        (marks, head): (&[u8], &[u8]),
        buffer: &mut [u8],
    ) -> Result<Recorded<'_>> {
        let (prefix, rest) = buffer.split_at_mut_checked(PREFIX).ok_or(Errno::IO)?;
        record.write_to(prefix, marks);
        let (of_marks, data) = rest.split_at_mut_checked(marks.len()).ok_or(Errno::IO)?;
        of_marks.copy_from_slice(marks);
        data.get_mut(..head.len()).ok_or(Errno::IO)?.copy_from_slice(head);
        let bytes = buffer.get(..PREFIX + marks.len() + record.len as usize).ok_or(Errno::IO)?;
        if bytes.len() as u64 > self.slot {
            return Err(Errno::IO);
        }
        let (slot, file) = self.reserve(cx)?;
        let cx = cx.as_server(self.uid, self.gid);
        let (len, written) = write_full(&*file, &cx, bytes, self.start_of(slot));
        if len == 0 {
            // There is nothing to clear, and on a full disk no space for it.
            self.state.lock().free.push(slot);
            return Err(written.err().unwrap_or(Errno::IO));
        }
        let completes = record.size == record.after;
        let recorded = Recorded { journal: self, file, slot, number: record.number, completes, is_done: false };
        written?;
        if self.is_durable() {
            recorded.file.fsync(&cx, true)?;
        }
        Ok(recorded)
    }

    /// Clears records that could not be cleared before. While that fails, files that they are about
    /// must not change: after a crash, the record would be applied to newer data.
    ///
    /// # Errors
    /// `EIO` if there still is such a record for the file with this number.
    pub(crate) fn settle(&self, number: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.stuck.is_empty() {
            return Ok(());
        }
        let State { file, stuck, free, .. } = &mut *state;
        if let Some(file) = file {
            stuck.retain(|&(slot, _)| {
                let is_stuck = self.clear(&**file, slot).is_err();
                if !is_stuck {
                    free.push(slot);
                }
                is_stuck
            });
        }
        if stuck.iter().any(|&(_, of)| of == number) { Err(Errno::IO) } else { Ok(()) }
    }

    fn start_of(&self, slot: u64) -> u64 {
        FIRST_SLOT + slot * self.slot
    }

    /// Returns an unused slot. There are as many as threads that change files, and a few more.
    fn reserve(&self, cx: &Cx<'_>) -> Result<(u64, Arc<dyn OpenFile>)> {
        let mut state = self.state.lock();
        let file = match &state.file {
            Some(file) => Arc::clone(file),
            None => self.create(&mut state)?,
        };
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = state.count;
                state.count += 1;
                // So that files can be overwritten and truncated on a full disk. If it fails, each
                // record allocates what it needs.
                let cx = cx.as_server(self.uid, self.gid);
                let _ = file.fallocate(&cx, KEEP_SIZE, self.start_of(slot), self.slot);
                slot
            }
        };
        Ok((slot, file))
    }

    fn create(&self, state: &mut State) -> Result<Arc<dyn OpenFile>> {
        let (root, name, cx) = (self.lower.root(), Name::new(&self.setting.name)?, self.own());
        let before = root.getattr(&cx);
        let (entry, file) = match root.create(&cx, name, 0o600, OpenFlags::RDWR) {
            Err(Errno::EXIST) => {
                tracing::error!("{name:?} exists: another server uses the tree; unmount one of the two");
                return Err(Errno::BUSY);
            }
            created => created?,
        };
        // At once: users can create files in the root while this one is written.
        if let Ok(before) = before {
            self.restore_time(&before);
        }
        let header = record::file_header(record::Version::Two, self.layout, self.slot);
        let written = write_full(&*file, &cx, &header, 0).1.and_then(|()| match self.is_durable() {
            true => file.fsync(&cx, false).and_then(|()| root.fsync(&cx, false)),
            false => Ok(()),
        });
        if let Err(errno) = written {
            let _ = root.unlink(&cx, name);
            return Err(errno);
        }
        (state.id, state.file) = (entry.vnode.id(), Some(Arc::clone(&file)));
        Ok(file)
    }

    /// Restores the root's modification time after the journal's file was created or removed.
    /// Its change time has moved.
    fn restore_time(&self, before: &Attr) {
        let times = SetAttr { mtime: Some(SetTime::At(before.mtime)), ..SetAttr::default() };
        let root = self.lower.root();
        let _ = root.setattr(&self.own(), &times, None);
        if let Some(above) = self.above.get() {
            above.attributes_changed(root.id());
        }
    }

    /// Clears the record in a slot. One failure is tolerated.
    fn clear(&self, file: &dyn OpenFile, slot: u64) -> Result<()> {
        let clear = || write_full(file, &self.own(), &[0; record::MAGIC.len()], self.start_of(slot)).1;
        clear().or_else(|_| clear())
    }
}

impl Recorded<'_> {
    /// Clears the record. While that fails, the file can't be changed.
    ///
    /// # Errors
    /// After a crash, recovery would take back what was changed.
    pub(crate) fn clear(&mut self) -> Result<()> {
        if core::mem::replace(&mut self.is_done, true) {
            return Ok(());
        }
        let cleared = self.journal.clear(&*self.file, self.slot).and_then(|()| match self.journal.is_durable() {
            // Otherwise a power failure could bring the record back after later changes.
            true => self.file.fsync(&self.journal.own(), true),
            false => Ok(()),
        });
        let mut state = self.journal.state.lock();
        match cleared {
            Ok(()) => state.free.push(self.slot),
            Err(errno) => {
                tracing::error!(%errno, inode = self.number, "cannot clear a record of the journal: the file cannot be changed");
                state.stuck.push((self.slot, self.number));
            }
        }
        if self.completes { Ok(()) } else { cleared }
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        let _logged = self.clear();
    }
}

impl Journal {
    /// Removes the file, unless it contains a record, or was replaced. The next change creates it
    /// again.
    pub(crate) fn remove(&self) {
        let mut state = self.state.lock();
        // A slot that is not free has a record.
        if state.file.is_none() || state.free.len() as u64 != state.count {
            return;
        }
        (state.file, state.count) = (None, 0);
        state.free.clear();
        let (root, cx) = (self.lower.root(), self.own());
        let before = root.getattr(&cx);
        let removed = Name::new(&self.setting.name).and_then(|name| match root.lookup(&cx, name)? {
            Some(entry) if entry.vnode.id() == state.id => root.unlink(&cx, name),
            _ => Ok(()),
        });
        // No operation runs any more, so this time is that of the last change.
        if let (Ok(before), Ok(())) = (before, &removed) {
            self.restore_time(&before);
        }
        if let Err(errno) = removed {
            tracing::warn!(%errno, "cannot remove the journal {:?}", self.setting.name.escape_ascii().to_string());
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.remove();
    }
}
