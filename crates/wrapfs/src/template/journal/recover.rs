//! Applying the records that a crash left in the journal.

use super::super::data::Scratch;
use super::super::lower_io::{read_full, set_size, write_full};
use super::record::{self, FILE_HEADER, PREFIX, Record};
use super::{FIRST_SLOT, Journal};
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Result, SetAttr, Vnode};

/// A file whose status changed this many seconds after a change was recorded has been changed by
/// another program since, and is left as it is.
const SOON: i64 = 300;

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
            let slots = entry.attr.size.saturating_sub(FIRST_SLOT).div_ceil(self.slot);
            for slot in 0..slots {
                self.recover_slot(&cx, &*file, slot).map_err(|(number, errno)| {
                    format!("journal {shown}: cannot restore the file with inode number {number}: {errno}")
                })?;
            }
        }
        drop(file);
        root.unlink(&cx, name).map_err(|errno| failed("cannot be removed", errno))
    }

    /// Whether nobody else can have written the records.
    fn check_owner(&self, entry: &Entry) -> core::result::Result<(), String> {
        let attr = &entry.attr;
        if entry.vnode.kind() == Kind::Regular && attr.uid == self.uid && attr.nlink == 1 && attr.perm() & 0o077 == 0 {
            Ok(())
        } else {
            Err(format!("it is not a private file of user {}; move it away if you did not create it", self.uid))
        }
    }

    /// Applies the record in a slot, if there is one. An error comes with the number of the file.
    fn recover_slot(&self, cx: &Cx<'_>, file: &dyn OpenFile, slot: u64) -> core::result::Result<(), (u64, Errno)> {
        let mut prefix = [0; PREFIX];
        read_full(file, cx, &mut prefix, self.start_of(slot)).map_err(|errno| (0, errno))?;
        let Some((record, sum)) = Record::parse(&prefix) else { return Ok(()) };
        let applied = self.read_data(cx, file, slot, (&prefix, &record, sum)).and_then(|data| match data {
            Some(data) => self.apply(cx, &record, &data, (file, slot)),
            None => Ok(Err(Skipped::Incomplete)),
        });
        let inode = record.number;
        match applied.map_err(|errno| (inode, errno))? {
            Ok(()) => tracing::info!(inode, "completed or undid a write that was interrupted"),
            Err(Skipped::Incomplete) => tracing::info!("a write had not begun when the server ended"),
            Err(Skipped::Changed(why)) => tracing::warn!(inode, "an interrupted write was not restored: {why}"),
        }
        Ok(())
    }

    /// Returns the data of a record, if the record is whole.
    fn read_data(
        &self,
        cx: &Cx<'_>,
        file: &dyn OpenFile,
        slot: u64,
        (prefix, record, sum): (&[u8], &Record, u32),
    ) -> Result<Option<Scratch>> {
        let is_possible = record.is_possible(self.layout.header());
        if !is_possible || PREFIX as u64 + u64::from(record.len) > self.slot {
            return Ok(None);
        }
        let mut data = Scratch::take(record.len as usize);
        let len = read_full(file, cx, &mut data, self.start_of(slot) + PREFIX as u64)?;
        let is_whole = len == data.len() && record::checksum(prefix, &data) == sum;
        Ok(is_whole.then_some(data))
    }

    fn apply(
        &self,
        cx: &Cx<'_>,
        record: &Record,
        data: &[u8],
        (journal, slot): (&dyn OpenFile, u64),
    ) -> Result<core::result::Result<(), Skipped>> {
        let changed = |why| Ok(Err(Skipped::Changed(why)));
        let vnode = match self.lower.vnode(cx, record.number) {
            Ok(vnode) => vnode,
            Err(Errno::STALE | Errno::NOENT) => return changed("the file was removed"),
            Err(errno) => return Err(errno),
        };
        if vnode.kind() != Kind::Regular || vnode.generation() != record.generation {
            return changed("the file was replaced");
        }
        let attr = vnode.getattr(cx)?;
        if !record.explains(attr.size) {
            return changed("the file has another size");
        }
        if attr.ctime.sec.saturating_sub(record.time.cast_signed()) > SOON {
            return changed("the file was changed later");
        }
        let file = open_writable(cx, &vnode, &attr)?;
        let mut header = Scratch::take(self.layout.header() as usize);
        let len = read_full(&*file, cx, &mut header, 0)?;
        if len < header.len() || self.id_of(&header) != record.header {
            return changed("the file has another header");
        }
        self.renew(cx, record, data, (journal, slot))?;
        let (head, blocks) = data.split_at_checked(record.head as usize).ok_or(Errno::IO)?;
        write_full(&*file, cx, blocks, record.offset).1?;
        set_size(&*vnode, &*file, cx, record.size)?;
        write_full(&*file, cx, head, 0).1?;
        if self.is_durable() {
            file.fsync(cx, true)?;
        }
        Ok(Ok(()))
    }

    /// Sets the time of a record that is about to be applied: this changes the file. If recovery is
    /// interrupted, or fails in the middle, the record must still be applied at the next attempt.
    fn renew(&self, cx: &Cx<'_>, record: &Record, data: &[u8], (file, slot): (&dyn OpenFile, u64)) -> Result<()> {
        let mut buffer = Scratch::take(PREFIX + data.len());
        buffer.get_mut(PREFIX..).unwrap_or_default().copy_from_slice(data);
        Record { time: record::now(), ..*record }.write_to(&mut buffer);
        // These bytes lie in one page, so no kill tears them.
        write_full(file, cx, buffer.get(..PREFIX).unwrap_or_default(), self.start_of(slot)).1?;
        if self.is_durable() { file.fsync(cx, true) } else { Ok(()) }
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
