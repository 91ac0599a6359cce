//! Applying the records that a crash left in the journal.

use super::super::data::{Scratch, is_zero};
use super::super::lower_io::{read_full, set_size, write_full};
use super::record::{self, FILE_HEADER, Mark, PREFIX, Record};
use super::{FIRST_SLOT, Journal};
use std::ops::Range;
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Result, SetAttr, Vnode, Whence};

/// Permission bit: the owner may write.
const OWNER_WRITES: u32 = 0o200;

/// Why a record was not applied.
enum Skipped {
    /// The record is not whole: the change had not begun.
    Incomplete,
    /// The file is gone, or is not in the middle of this change.
    Changed(&'static str),
}

impl Journal {
    /// Applies the records that a previous server left behind, and removes its journal.
    ///
    /// # Errors
    /// A sentence for the mounting user. The journal remains.
    pub(crate) fn recover(&self) -> core::result::Result<(), String> {
        let shown = self.setting.name.escape_ascii().to_string();
        let failed = |what: &str, errno: Errno| format!("journal {shown}: {what}: {errno}");
        let (cx, root) = (self.own(), self.lower.root());
        let name = Name::new(&self.setting.name).map_err(|errno| failed("invalid name", errno))?;
        let Some(entry) = root.lookup(&cx, name).map_err(|errno| failed("cannot be found", errno))? else {
            return Ok(());
        };
        self.check_owner(&entry).map_err(|why| format!("journal {shown}: {why}"))?;
        let file = entry.vnode.open(&cx, OpenFlags::RDWR).map_err(|errno| failed("cannot be opened", errno))?;
        let mut header = [0; FILE_HEADER];
        let len = read_full(&*file, &cx, &mut header, 0).map_err(|errno| failed("cannot be read", errno))?;
        // A shorter one was being created.
        if len == FILE_HEADER {
            if header != record::file_header(self.layout, self.slot) {
                return Err(format!("journal {shown}: it is damaged, or of another version: mount with that version"));
            }
            let mut slot = 0;
            while let Some(next) = self.next_slot(&cx, &*file, slot).map_err(|errno| failed("cannot be read", errno))? {
                self.recover_slot(&cx, &*file, next).map_err(|(number, errno)| {
                    format!("journal {shown}: cannot restore the file with inode number {number}: {errno}")
                })?;
                slot = next + 1;
            }
        }
        drop(file);
        root.unlink(&cx, name).map_err(|errno| failed("cannot be removed", errno))
    }

    /// Returns the first slot from `slot` on that is not a hole.
    fn next_slot(&self, cx: &Cx<'_>, file: &dyn OpenFile, slot: u64) -> Result<Option<u64>> {
        match file.seek(cx, self.start_of(slot), Whence::Data) {
            Ok(data) => Ok(Some(slot.max(data.saturating_sub(FIRST_SLOT) / self.slot))),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether nobody else can have written the records. In a copy of the tree, others may read
    /// them.
    fn check_owner(&self, entry: &Entry) -> core::result::Result<(), String> {
        let attr = &entry.attr;
        if entry.vnode.kind() == Kind::Regular && attr.uid == self.uid && attr.nlink == 1 && attr.perm() & 0o022 == 0 {
            Ok(())
        } else {
            Err(format!(
                "it is not a file that only user {} can write; move it away if you did not create it",
                self.uid
            ))
        }
    }

    /// Applies the record in a slot, if there is one. An error comes with the number of the file.
    fn recover_slot(&self, cx: &Cx<'_>, file: &dyn OpenFile, slot: u64) -> core::result::Result<(), (u64, Errno)> {
        let mut prefix = [0; PREFIX];
        read_full(file, cx, &mut prefix, self.start_of(slot)).map_err(|errno| (0, errno))?;
        let Some((record, sum)) = Record::parse(&prefix) else { return Ok(()) };
        let applied = self.read_change(cx, file, slot, (&prefix, record, sum)).and_then(|change| match change {
            Some(change) => self.apply(cx, &change),
            None => Ok(Err(Skipped::Incomplete)),
        });
        let inode = record.number;
        match applied.map_err(|errno| (inode, errno))? {
            Ok(()) => tracing::info!(inode, "completed or undid a write that was interrupted"),
            Err(Skipped::Incomplete) => tracing::info!("a write had not begun when the server ended"),
            Err(Skipped::Changed(why)) => {
                let path = self.path_below(cx, inode);
                tracing::warn!(inode, "{path}: an interrupted write was not restored: {why}");
            }
        }
        Ok(())
    }

    /// Returns a record with its data, if it is whole.
    fn read_change(
        &self,
        cx: &Cx<'_>,
        file: &dyn OpenFile,
        slot: u64,
        (prefix, record, sum): (&[u8], Record, u32),
    ) -> Result<Option<Interrupted>> {
        let is_possible = record.is_possible(self.layout.header()) && u64::from(record.total) <= self.slot;
        let block = self.layout.stored();
        let segments: Vec<_> = match is_possible {
            true => record.head_segments().chain(record.segments(block)).collect(),
            false => return Ok(None),
        };
        let marks = segments.len() * size_of::<Mark>();
        let len = marks + record.len as usize;
        if (PREFIX + len) as u64 > self.slot {
            return Ok(None);
        }
        let mut bytes = Scratch::take(len);
        let got = read_full(file, cx, &mut bytes, self.start_of(slot) + PREFIX as u64)?;
        let Some((of_marks, data)) = bytes.split_at_checked(marks).filter(|_| got == len) else { return Ok(None) };
        if record::checksum(prefix, of_marks) != sum {
            return Ok(None);
        }
        let marked: Vec<_> = segments.into_iter().zip(record::parse_marks(of_marks)).collect();
        let (head, blocks) = data.split_at_checked(record.head as usize).ok_or(Errno::IO)?;
        let (of_head, of_blocks) = marked.split_at(record.head_segments().count());
        let change = Interrupted {
            head: Part { offset: 0, data: head.to_vec(), marked: of_head.to_vec() },
            blocks: Part { offset: record.offset, data: blocks.to_vec(), marked: of_blocks.to_vec() },
            record,
        };
        Ok((change.head.is_whole() && change.blocks.is_whole()).then_some(change))
    }

    fn apply(&self, cx: &Cx<'_>, change: &Interrupted) -> Result<core::result::Result<(), Skipped>> {
        let changed = |why| Ok(Err(Skipped::Changed(why)));
        let record = &change.record;
        let vnode = match self.lower.vnode(cx, record.number) {
            Ok(vnode) => vnode,
            Err(Errno::STALE | Errno::NOENT) => return changed("the file was removed"),
            Err(errno) => return Err(errno),
        };
        if vnode.kind() != Kind::Regular || vnode.generation() != record.generation {
            return changed("the file was replaced");
        }
        let attr = vnode.getattr(cx)?;
        // The seal says what size the file has.
        if record.head > 0 && !record.explains(attr.size) {
            return changed("the file has another size");
        }
        let file = open_writable(cx, &vnode, &attr)?;
        let mut header = Scratch::take(self.layout.header() as usize);
        let len = read_full(&*file, cx, &mut header, 0)?;
        if len < header.len() || self.id_of(&header) != record.header {
            return changed("the file has another header");
        }
        if record.undoes() && attr.size == record.after {
            // It was complete: shortening the file is its last step.
            return Ok(Ok(()));
        }
        let target = Target { vnode: &*vnode, file: &*file, size: attr.size, block: self.layout.stored() };
        let is_restored = target.restore(cx, change)?;
        if self.is_durable() {
            file.fsync(cx, true)?;
        }
        if is_restored { Ok(Ok(())) } else { changed("another program has written the same blocks since") }
    }

    /// Returns the path of a file in the layer below, for a message.
    fn path_below(&self, cx: &Cx<'_>, number: u64) -> String {
        /// Maximum depth of a path, which exceeds `PATH_MAX`.
        const MAX_DEPTH: usize = 4096;
        let (root, mut parts) = (self.lower.root().id(), Vec::new());
        let mut at = self.lower.vnode(cx, number).ok();
        while let Some(vnode) = at.filter(|vnode| vnode.id() != root && parts.len() < MAX_DEPTH) {
            let mut parent = None;
            let _found = vnode.names(cx, &mut |dir, name| {
                parts.push(name.as_bytes().escape_ascii().to_string());
                parent = Some(Arc::clone(dir));
                false
            });
            at = parent;
        }
        parts.reverse();
        if parts.is_empty() { "a file without a name".to_owned() } else { parts.join("/") }
    }
}

/// A change that was interrupted.
struct Interrupted {
    record: Record,
    /// The header that the file gets, if it is sealed.
    head: Part,
    blocks: Part,
}

/// Bytes of a change, and what the file may contain in their place.
struct Part {
    offset: u64,
    /// The bytes to write; nothing for blocks that are cut off.
    data: Vec<u8>,
    /// All segments, with their marks.
    marked: Vec<(Range<u64>, Mark)>,
}

impl Part {
    /// Returns the data of a segment; `None` if there is none.
    fn data_of(&self, segment: &Range<u64>) -> Option<&[u8]> {
        let (start, end) = (segment.start.checked_sub(self.offset)?, segment.end.checked_sub(self.offset)?);
        self.data.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    /// Whether the data is what the marks say: all of it from before the change, or from after it.
    fn is_whole(&self) -> bool {
        let is_of = |sum: fn(&Mark) -> u32| {
            self.marked
                .iter()
                .all(|(segment, mark)| self.data_of(segment).is_none_or(|data| crc32c::crc32c(data) == sum(mark)))
        };
        is_of(|mark| mark.old) || is_of(|mark| mark.new)
    }
}

/// The file of an interrupted change.
struct Target<'a> {
    vnode: &'a dyn Vnode,
    file: &'a dyn OpenFile,
    /// The stored size.
    size: u64,
    /// The stored size of a block.
    block: u64,
}

impl Target<'_> {
    /// Writes the data where the file contains bytes from before or after the change, and cuts off
    /// the blocks that the change added at the end. What another program has written since remains:
    /// it was told that this is stored, and the program whose change was interrupted was not.
    /// Returns whether there was nothing of that.
    fn restore(&self, cx: &Cx<'_>, change: &Interrupted) -> Result<bool> {
        let Interrupted { record, head, blocks } = change;
        let foreign = self.foreign_blocks(cx, record, blocks)?;
        let is_sealed = record.head > 0;
        // The seal says what all blocks are.
        if is_sealed && !(foreign.is_empty() && self.foreign_blocks(cx, record, head)?.is_empty()) {
            return Ok(false);
        }
        let step = usize::try_from(self.block).map_err(|_| Errno::IO)?;
        for (start, data) in (record.offset..).step_by(step).zip(blocks.data.chunks(step)) {
            if !foreign.contains(&start) {
                write_full(self.file, cx, data, start).1?;
            }
        }
        if is_sealed {
            set_size(self.vnode, self.file, cx, record.size)?;
        } else if record.explains(self.size) && self.size > record.size {
            let in_gap = if self.has_no_data(cx, record.size, record.offset)? { None } else { Some(record.offset) };
            let ends = foreign.iter().map(|start| start + self.block).chain(in_gap);
            let kept = ends.fold(record.size, u64::max);
            if kept < self.size {
                set_size(self.vnode, self.file, cx, kept)?;
            }
        }
        write_full(self.file, cx, &head.data, 0).1?;
        Ok(foreign.is_empty())
    }

    /// Returns where the blocks begin that contain bytes that are neither old nor new.
    fn foreign_blocks(&self, cx: &Cx<'_>, record: &Record, part: &Part) -> Result<Vec<u64>> {
        let end = part.marked.last().map_or(part.offset, |(segment, _)| segment.end);
        let mut present = Scratch::take((end - part.offset) as usize);
        let len = read_full(self.file, cx, &mut present, part.offset)?;
        present.shorten(len);
        let mut foreign = Vec::new();
        for (segment, mark) in &part.marked {
            let range = (segment.start - part.offset) as usize..(segment.end - part.offset) as usize;
            let bytes = present.get(range.start.min(len)..range.end.min(len)).unwrap_or_default();
            let is_new = segment.start >= record.before;
            if !is_expected(bytes, range.len(), *mark, is_new) {
                let start = segment.start - (segment.start - part.offset) % self.block;
                foreign.push(start);
            }
        }
        foreign.dedup();
        Ok(foreign)
    }

    /// Whether the file has nothing but zeros between two offsets.
    fn has_no_data(&self, cx: &Cx<'_>, mut from: u64, to: u64) -> Result<bool> {
        let mut bytes = Scratch::take(64 << 10);
        while from < to {
            from = match self.file.seek(cx, from, Whence::Data) {
                Ok(data) => data,
                Err(Errno::NXIO) => return Ok(true),
                Err(errno) => return Err(errno),
            };
            let most = bytes.len().min(usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX));
            let len = read_full(self.file, cx, bytes.get_mut(..most).unwrap_or_default(), from)?;
            if !bytes.get(..len).is_some_and(is_zero) {
                return Ok(false);
            }
            from += most as u64;
        }
        Ok(true)
    }
}

/// Whether the bytes of a segment of this length are its old or its new ones. New segments, behind
/// the old end of the file, may be missing; after a power failure, they may be zeros.
fn is_expected(bytes: &[u8], len: usize, mark: Mark, is_new: bool) -> bool {
    if is_new && (bytes.is_empty() || is_zero(bytes)) {
        return true;
    }
    let sum = crc32c::crc32c(bytes);
    bytes.len() == len && (sum == mark.old || sum == mark.new)
}

/// Opens a file for reading and writing, even if its owner, who is the server's user, may not write
/// it: the program that wrote it had opened it before.
fn open_writable(cx: &Cx<'_>, vnode: &Arc<dyn Vnode>, attr: &Attr) -> Result<Arc<dyn OpenFile>> {
    match vnode.open(cx, OpenFlags::RDWR) {
        Err(Errno::ACCESS) => {
            let set_mode = |mode| vnode.setattr(cx, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None);
            set_mode(attr.perm() | OWNER_WRITES)?;
            let opened = vnode.open(cx, OpenFlags::RDWR);
            set_mode(attr.perm())?;
            opened
        }
        opened => opened,
    }
}
