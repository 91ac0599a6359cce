//! The segments of the log, and appending to them.

use crate::core::Core;
use crate::set::{make_dir, make_store};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use versionset::{
    AuditPlace, AuditRecord, Audited, LOG, MAX_AUDIT_RECORD, SEGMENT_START, SegmentPart, SegmentParts, Who,
    segment_name, segment_of, segment_start,
};
use vnode::{Cx, Errno, MAY_BLOCK, Name, OpenFile, OpenFlags, Result, Time, Vnode};

/// Bytes that are allocated ahead, so that not every record has to.
const AHEAD: u64 = 256 * 1024;

/// Flag of fallocate(2): the file does not become longer.
const KEEP_SIZE: u32 = 1;

/// Largest segment that is read, in bytes. The layer writes none of this size.
const MAX_SEGMENT: u64 = 64 * 1024 * 1024;

/// The log of a mount.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Opened for the first record.
    segment: Option<Segment>,
    /// Operations under way whose records will follow.
    reserved: u64,
    /// Operations that were not recorded, because there was no space and the mount permits that.
    lost: u64,
}

/// The segment that receives records.
#[derive(Debug)]
struct Segment {
    dir: Arc<dyn Vnode>,
    file: Arc<dyn OpenFile>,
    /// Where the next record begins.
    len: u64,
    /// The number of the next record.
    next: u64,
    /// Up to where the file is allocated.
    allocated: u64,
    /// Records that could not be written yet.
    pending: Vec<u8>,
    is_dirty: bool,
    /// Whether the segment was created since the directory was last made durable.
    is_new: bool,
}

/// Room for a record in the log.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    core: &'a Core,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut state = self.core.log.0.lock();
        state.reserved = state.reserved.saturating_sub(1);
    }
}

impl Log {
    fn lock(&self, cx: &Cx<'_>) -> Result<MutexGuard<'_, State>> {
        if cx.may_block { Ok(self.0.lock()) } else { self.0.try_lock().ok_or(MAY_BLOCK) }
    }

    /// Reserves room for a record.
    ///
    /// # Errors
    /// Those of the layer below. `ENOSPC` and `EDQUOT` only if the mount does not permit changes
    /// without a version.
    pub(super) fn reserve<'a>(&self, core: &'a Core, cx: &Cx<'_>) -> Result<Reserved<'a>> {
        let mut state = self.lock(cx)?;
        if state.segment.as_ref().is_none_or(|segment| segment.len >= core.options.audit_segment) {
            cx.require_blocking()?;
        }
        match state.prepare(core, &core.server(cx)) {
            Err(errno) if !may_lose(core, errno) => return Err(errno),
            _ => state.reserved += 1,
        }
        Ok(Reserved { core })
    }

    /// Makes all records durable.
    ///
    /// # Errors
    /// Those of the layer below.
    pub(crate) fn fsync(&self, cx: &Cx<'_>) -> Result<()> {
        let mut state = self.0.lock();
        let Some(segment) = state.segment.as_mut().filter(|segment| segment.is_dirty || segment.is_new) else {
            return Ok(());
        };
        segment.write_pending(cx)?;
        let (file, dir) = (Arc::clone(&segment.file), segment.is_new.then(|| Arc::clone(&segment.dir)));
        (segment.is_dirty, segment.is_new) = (false, false);
        // Others append meanwhile.
        drop(state);
        let done = file.fsync(cx, true).and_then(|()| dir.map_or(Ok(()), |dir| dir.fsync(cx, false)));
        if done.is_err()
            && let Some(segment) = &mut self.0.lock().segment
        {
            (segment.is_dirty, segment.is_new) = (true, true);
        }
        done
    }

    /// Reads a segment. Nobody appends meanwhile, so the last record is complete.
    pub(super) fn read_segment(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, first: u64) -> Result<Vec<u8>> {
        let _state = self.0.lock();
        read_segment(cx, dir, first)
    }
}

impl Reserved<'_> {
    /// Appends the record of the operation.
    ///
    /// # Errors
    /// Those of the layer below. The record is written before the next one, and until then every
    /// operation fails.
    pub(super) fn append(self, cx: &Cx<'_>, record: AuditRecord) -> Result<()> {
        let server = self.core.server(cx);
        let mut state = self.core.log.0.lock();
        let lost = state.lost;
        let Some(segment) = &mut state.segment else {
            state.lost = lost.saturating_add(1);
            return Ok(());
        };
        let before = (segment.pending.len(), segment.next);
        if lost > 0 {
            segment.queue(own_record(Audited::Lost, record.time, (0, lost)));
        }
        segment.queue(record);
        match segment.write_pending(&server) {
            Ok(()) => state.lost = 0,
            Err(errno) if may_lose(self.core, errno) => {
                segment.pending.truncate(before.0);
                segment.next = before.1;
                state.lost = lost.saturating_add(1);
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

/// Whether an operation that can't be recorded is permitted.
fn may_lose(core: &Core, errno: Errno) -> bool {
    core.options.no_space == crate::NoSpace::Skip && matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

/// Returns a record that the log writes about itself. It gets its number when it is written.
pub(super) fn own_record(operation: Audited, time: Time, range: (u64, u64)) -> AuditRecord {
    AuditRecord {
        number: 0,
        time,
        operation,
        errno: 0,
        inode: 0,
        place: AuditPlace::default(),
        new_place: None,
        range,
        text: Box::default(),
        versions: Vec::new(),
        who: Who::default(),
        gid: 0,
    }
}

impl State {
    /// Makes sure that the records of all operations under way, and of one more, have room.
    fn prepare(&mut self, core: &Core, cx: &Cx<'_>) -> Result<()> {
        let segment = match self.segment.take() {
            Some(segment) => segment,
            None => open(core, cx)?,
        };
        let segment = self.segment.insert(segment);
        segment.write_pending(cx)?;
        if segment.len >= core.options.audit_segment {
            segment.rotate(cx)?;
            core.background.log_grew();
        }
        segment.allocate(cx, (self.reserved + 1) * MAX_AUDIT_RECORD as u64)
    }
}

impl Segment {
    /// Creates a segment.
    fn create(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, next: u64) -> Result<Self> {
        let name = segment_name(next);
        let name = Name::new(&name)?;
        let file = match dir.create(cx, name, 0o600, OpenFlags::WRONLY) {
            Ok((_, file)) => file,
            // Left without a record.
            Err(Errno::EXIST) => dir.lookup(cx, name)?.ok_or(Errno::IO)?.vnode.open(cx, OpenFlags::WRONLY)?,
            Err(errno) => return Err(errno),
        };
        versionset::write_full(cx, &*file, &segment_start(next), 0)?;
        let len = SEGMENT_START as u64;
        let dir = Arc::clone(dir);
        Ok(Self { dir, file, len, next, allocated: len, pending: Vec::new(), is_dirty: true, is_new: true })
    }

    /// Goes on with a new segment. The old one is never changed again.
    fn rotate(&mut self, cx: &Cx<'_>) -> Result<()> {
        // A later fsync concerns the new one only.
        self.file.fsync(cx, true)?;
        *self = Self::create(cx, &self.dir, self.next)?;
        Ok(())
    }

    /// Allocates at least `room` bytes behind the last record.
    fn allocate(&mut self, cx: &Cx<'_>, room: u64) -> Result<()> {
        let needed = self.len.saturating_add(room);
        if needed <= self.allocated {
            return Ok(());
        }
        for end in [needed.saturating_add(AHEAD), needed] {
            match self.file.fallocate(cx, KEEP_SIZE, self.len, end - self.len) {
                Ok(()) => {
                    self.allocated = end;
                    return Ok(());
                }
                // The file system can't. A record that finds no space then stays in memory.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    self.allocated = u64::MAX;
                    return Ok(());
                }
                Err(Errno::NOSPC | Errno::DQUOT) if end > needed => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn queue(&mut self, record: AuditRecord) {
        AuditRecord { number: self.next, ..record }.encode(&mut self.pending);
        self.next = self.next.saturating_add(1);
    }

    /// Writes the records that are not in the file yet. After a failure, the next attempt begins at
    /// the same offset.
    fn write_pending(&mut self, cx: &Cx<'_>) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        versionset::write_full(cx, &*self.file, &self.pending, self.len)?;
        self.len += self.pending.len() as u64;
        self.pending.clear();
        self.is_dirty = true;
        Ok(())
    }
}

/// Opens the log: goes on with the last segment. If that ends with half a record, a new segment
/// says so, and the old one stays as it is.
fn open(core: &Core, cx: &Cx<'_>) -> Result<Segment> {
    let root = core.root();
    let store = make_store(cx, &root, &core.inodes.get(root.id()))?;
    let dir = make_dir(cx, &store, LOG)?;
    let Some(last) = segments(cx, &dir)?.pop() else { return Segment::create(cx, &dir, 1) };
    let bytes = read_segment(cx, &dir, last)?;
    let (mut next, mut len, mut torn) = (last, SEGMENT_START, 0);
    for part in SegmentParts::of(&bytes, last) {
        (len, torn) = match part {
            SegmentPart::Record(record, end) => {
                next = record.number.saturating_add(1);
                (end, 0)
            }
            SegmentPart::Damage(at, damaged) => (at, damaged),
        };
    }
    if bytes.len() < SEGMENT_START {
        return Segment::create(cx, &dir, last);
    }
    if torn == 0 {
        let name = segment_name(last);
        let file = dir.lookup(cx, Name::new(&name)?)?.ok_or(Errno::IO)?.vnode.open(cx, OpenFlags::WRONLY)?;
        let len = len as u64;
        return Ok(Segment { dir, file, len, next, allocated: len, pending: Vec::new(), is_dirty: true, is_new: true });
    }
    // A segment without any record keeps its name.
    next = next.max(last.saturating_add(1));
    let mut segment = Segment::create(cx, &dir, next)?;
    let record = own_record(Audited::Torn, core.now(), (len as u64, torn as u64));
    segment.queue(AuditRecord { text: segment_name(last).into(), ..record });
    segment.write_pending(cx)?;
    Ok(segment)
}

/// Returns the numbers of the first records of all segments, ascending.
pub(super) fn segments(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    crate::walk::list(cx, dir, &mut |entry| all.extend(segment_of(entry.name.as_bytes())))?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Reads the beginning of a segment: at least one record, if it has one.
pub(super) fn read_start(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, first: u64) -> Result<Vec<u8>> {
    let entry = dir.lookup(cx, Name::new(&segment_name(first))?)?.ok_or(Errno::NOENT)?;
    let mut bytes = vec![0; SEGMENT_START + MAX_AUDIT_RECORD];
    let len = versionset::read_full(cx, &*entry.vnode.open(cx, OpenFlags::RDONLY)?, &mut bytes, 0)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn read_segment(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, first: u64) -> Result<Vec<u8>> {
    let entry = dir.lookup(cx, Name::new(&segment_name(first))?)?.ok_or(Errno::NOENT)?;
    crate::set::read_whole(cx, &entry, MAX_SEGMENT)
}
