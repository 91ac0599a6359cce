//! Applying the records that a crash left in the journal.

use super::super::data::Scratch;
use super::super::lower_io::{read_full, set_size};
use super::kept::{Kept, KeptFile};
use super::record::{self, FILE_HEADER, Mark, PREFIX, Record, Version};
use super::restore::{Interrupted, Part, Target};
use super::{FIRST_SLOT, Journal};
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Result, SetAttr, Vnode, Whence};

/// Permission bit: the owner may write.
const OWNER_WRITES: u32 = 0o200;

/// A record of version 1 is not applied to a file that was changed more than this many seconds
/// after the time in the record, that of the begin of the change. It has no checksums of the bytes
/// before the change, so the time must tell whether another program has changed the file. If a
/// recovery wrote a part of the data and failed, the next one keeps the data, too.
const SOON: i64 = 5;

/// What became of a record.
pub(super) enum Outcome {
    /// The change is complete, or was undone.
    Applied,
    /// The record is not whole: the change had not begun.
    Incomplete,
    /// The file is gone, or is not the one that was changed: there is nothing to restore.
    Gone(&'static str),
    /// The file contains other bytes than those from before and after the change, which remain.
    /// What the record has for their place, if anything, is to be kept.
    Foreign(Option<Box<Kept>>),
}

/// What the beginning of a journal says.
pub(super) enum Header<'a> {
    /// It was being created, and contains nothing.
    Short,
    Damaged,
    /// It is of a newer version, or of files with another layout.
    Other,
    Readable(Left<'a>),
}

/// A journal that was left by a server that was killed, or kept by a recovery.
pub(super) struct Left<'a> {
    pub(super) journal: &'a Journal,
    pub(super) cx: &'a Cx<'a>,
    file: &'a dyn OpenFile,
    version: Version,
    /// Size of a slot in bytes.
    slot: u64,
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
        if entry.vnode.kind() != Kind::Regular {
            let kept =
                self.move_aside(&cx, false).map_err(|errno| failed("is no file, and cannot be renamed", errno))?;
            tracing::warn!("the journal {shown} is no regular file; it is now {kept}");
            return Ok(());
        }
        self.check_owner(&entry).map_err(|why| format!("journal {shown}: {why}"))?;
        let file = entry.vnode.open(&cx, OpenFlags::RDWR).map_err(|errno| failed("cannot be opened", errno))?;
        let is_needed = match self.left(&cx, &*file).map_err(|errno| failed("cannot be read", errno))? {
            Header::Short => false,
            Header::Damaged => {
                drop(file);
                let kept =
                    self.move_aside(&cx, true).map_err(|errno| failed("is damaged, and cannot be renamed", errno))?;
                tracing::warn!("the journal {shown} is damaged: no interrupted write was restored; it is now {kept}");
                return Ok(());
            }
            Header::Other => {
                return Err(format!(
                    "journal {shown}: it is of another version, or of other files: mount with that version"
                ));
            }
            Header::Readable(left) => left.recover().map_err(|(number, errno)| match number {
                Some(number) => failed(&format!("cannot restore the file with inode number {number}"), errno),
                None => failed("cannot be read, or what it has be kept", errno),
            })?,
        };
        if is_needed {
            drop(file);
            let kept = self.move_aside(&cx, false).map_err(|errno| failed("cannot be renamed", errno))?;
            tracing::warn!("other objects have all names for a kept journal: the journal {shown} is now {kept}");
            return Ok(());
        }
        // If it can't be removed, the next mount must not keep the same again.
        set_size(&*entry.vnode, &*file, &cx, 0).map_err(|errno| failed("cannot be emptied", errno))?;
        drop(file);
        root.unlink(&cx, name).map_err(|errno| failed("cannot be removed", errno))
    }

    /// Reads the beginning of a journal.
    pub(super) fn left<'a>(&'a self, cx: &'a Cx<'a>, file: &'a dyn OpenFile) -> Result<Header<'a>> {
        let mut header = [0; FILE_HEADER];
        if read_full(file, cx, &mut header, 0)? < FILE_HEADER {
            return Ok(Header::Short);
        }
        let Some((version, slot)) = record::parse_file_header(&header) else { return Ok(Header::Damaged) };
        match version.filter(|version| header == record::file_header(*version, self.layout, slot)) {
            Some(version) => Ok(Header::Readable(Left { journal: self, cx, file, version, slot })),
            None => Ok(Header::Other),
        }
    }

    /// Whether nobody else can have written the records. In a copy of the tree, others may read
    /// them.
    pub(super) fn check_owner(&self, entry: &Entry) -> core::result::Result<(), String> {
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

    /// Returns the path of a file in the layer below, for a message.
    pub(super) fn path_below(&self, cx: &Cx<'_>, number: u64) -> String {
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

impl Left<'_> {
    /// Applies all records. Returns whether the journal has something that could not be kept in
    /// another one. An error comes with the number of the file that it is about.
    fn recover(&self) -> core::result::Result<bool, (Option<u64>, Errno)> {
        let (mut aside, mut is_needed) = (None, false);
        let applied = self.each(|record, outcome| {
            let inode = record.number;
            match outcome {
                Outcome::Applied => tracing::info!(inode, "completed or undid a write that was interrupted"),
                Outcome::Incomplete => tracing::info!("a write had not begun when the server ended"),
                Outcome::Gone(why) => {
                    let path = self.journal.path_below(self.cx, inode);
                    tracing::warn!(inode, "{path}: an interrupted write was not restored: {why}");
                }
                Outcome::Foreign(kept) => is_needed |= !self.report_foreign(inode, kept, &mut aside)?,
            }
            Ok(())
        });
        let Some(aside) = &mut aside else { return applied.map(|()| is_needed) };
        let done = applied.and_then(|()| aside.publish(self.cx, self.journal).map_err(|errno| (None, errno)));
        if done.is_err() {
            aside.discard(self.cx, self.journal);
        }
        done.map(|()| is_needed)
    }

    /// Reports that bytes of a file are neither old nor new, and keeps what the record has for
    /// their place. Returns false if that is not possible.
    fn report_foreign(&self, inode: u64, kept: Option<Box<Kept>>, aside: &mut Option<KeptFile>) -> Result<bool> {
        let path = self.journal.path_below(self.cx, inode);
        let why = "other bytes than those before and after it are in their place, and stay";
        let Some(kept) = kept else {
            tracing::warn!(inode, "{path}: an interrupted write was not undone: {why}");
            return Ok(true);
        };
        if aside.is_none() {
            *aside = self.journal.create_kept(self.cx, self.slot)?;
        }
        let Some(file) = aside else {
            tracing::warn!(inode, "{path}: an interrupted write was not restored: {why}");
            return Ok(false);
        };
        file.add(self.cx, &kept)?;
        let name = file.name();
        tracing::warn!(inode, "{path}: an interrupted write was not restored: {why}; what it wrote is kept in {name}");
        Ok(true)
    }

    /// Applies each record, and calls `then` with what became of it.
    pub(super) fn each(
        &self,
        mut then: impl FnMut(&Record, Outcome) -> Result<()>,
    ) -> core::result::Result<(), (Option<u64>, Errno)> {
        self.each_change(|record, change| {
            let outcome = change.map_or(Ok(Outcome::Incomplete), |change| self.apply(change))?;
            then(record, outcome)
        })
    }

    /// Calls `then` with each record, and with the whole change unless the record is damaged.
    pub(super) fn each_change(
        &self,
        mut then: impl FnMut(&Record, Option<Interrupted>) -> Result<()>,
    ) -> core::result::Result<(), (Option<u64>, Errno)> {
        let mut slot = 0;
        while let Some(next) = self.next_slot(slot).map_err(|errno| (None, errno))? {
            let mut prefix = [0; PREFIX];
            read_full(self.file, self.cx, &mut prefix, self.start_of(next)).map_err(|errno| (None, errno))?;
            if let Some((record, sum)) = Record::parse(&prefix, self.version) {
                let change = self.read_change(next, (&prefix, record, sum));
                let done = change.and_then(|change| then(&record, change));
                done.map_err(|errno| (Some(record.number), errno))?;
            }
            slot = next + 1;
        }
        Ok(())
    }

    fn start_of(&self, slot: u64) -> u64 {
        FIRST_SLOT.saturating_add(slot.saturating_mul(self.slot))
    }

    /// Returns the first slot from `slot` on that is not a hole.
    fn next_slot(&self, slot: u64) -> Result<Option<u64>> {
        match self.file.seek(self.cx, self.start_of(slot), Whence::Data) {
            Ok(data) => Ok(Some(slot.max(data.saturating_sub(FIRST_SLOT) / self.slot))),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns a record with its data, if it is whole.
    fn read_change(&self, slot: u64, (prefix, record, sum): (&[u8], Record, u32)) -> Result<Option<Interrupted>> {
        let layout = self.journal.layout;
        if !record.is_possible(layout.header()) || u64::from(record.total) > self.slot {
            return Ok(None);
        }
        let segments: Vec<_> = record.head_segments().chain(record.segments(layout.stored())).collect();
        let marks = if self.version.has_marks() { segments.len() * size_of::<Mark>() } else { 0 };
        let len = marks + record.len as usize;
        if (PREFIX + len) as u64 > self.slot {
            return Ok(None);
        }
        let mut bytes = Scratch::take(len);
        let got = read_full(self.file, self.cx, &mut bytes, self.start_of(slot) + PREFIX as u64)?;
        let Some((of_marks, data)) = bytes.split_at_checked(marks).filter(|_| got == len) else { return Ok(None) };
        let is_right = record::checksum(prefix, if self.version.has_marks() { of_marks } else { data }) == sum;
        if !is_right {
            return Ok(None);
        }
        let mut parsed = record::parse_marks(of_marks).into_iter();
        // Without marks, they are made of the file before the change is applied.
        let marked: Vec<_> =
            segments.into_iter().map(|range| (range, parsed.next().unwrap_or(Mark { old: 0, new: 0 }))).collect();
        let (head, blocks) = data.split_at_checked(record.head as usize).ok_or(Errno::IO)?;
        let (of_head, of_blocks) = marked.split_at(record.head_segments().count());
        let change = Interrupted {
            head: Part { offset: 0, data: head.to_vec(), marked: of_head.to_vec() },
            blocks: Part { offset: record.offset, data: blocks.to_vec(), marked: of_blocks.to_vec() },
            record,
        };
        let is_whole = !self.version.has_marks() || (change.head.is_whole() && change.blocks.is_whole());
        Ok(is_whole.then_some(change))
    }

    fn apply(&self, mut change: Interrupted) -> Result<Outcome> {
        let (journal, cx, record) = (self.journal, self.cx, change.record);
        let vnode = match journal.lower.vnode(cx, record.number) {
            Ok(vnode) => vnode,
            Err(Errno::STALE | Errno::NOENT) => return Ok(Outcome::Gone("the file was removed")),
            Err(errno) => return Err(errno),
        };
        if vnode.kind() != Kind::Regular || vnode.generation() != record.generation {
            return Ok(Outcome::Gone("the file was replaced"));
        }
        let attr = vnode.getattr(cx)?;
        let file = open_writable(cx, &vnode, &attr)?;
        let mut header = Scratch::take(journal.layout.header() as usize);
        let len = read_full(&*file, cx, &mut header, 0)?;
        if len < header.len() || journal.id_of(&header) != record.header {
            return Ok(Outcome::Gone("the file has another header"));
        }
        let target = Target { vnode: &*vnode, file: &*file, size: attr.size, block: journal.layout.stored() };
        if let Some(time) = record.time {
            if attr.ctime.sec.saturating_sub(time.cast_signed()) > SOON || !record.explains(attr.size) {
                if target.has_data(cx, &change)? {
                    return Ok(Outcome::Applied);
                }
                return Ok(Outcome::Foreign(target.kept(cx, &change, None)?));
            }
            target.mark(cx, &mut change)?;
        }
        if record.undoes() && attr.size == record.after {
            // It was complete: shortening the file is its last step.
            return Ok(Outcome::Applied);
        }
        let foreign = target.restore(cx, &change)?;
        if journal.is_durable() {
            file.fsync(cx, true)?;
        }
        if foreign.is_empty() {
            Ok(Outcome::Applied)
        } else {
            target.kept(cx, &change, Some(&foreign)).map(Outcome::Foreign)
        }
    }
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
