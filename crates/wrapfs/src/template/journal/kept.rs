//! Journals that are kept: what recovery found in records, and did not write over the bytes of
//! another program.
//!
//! A kept journal has the same format. Its records say what the file contained when it was kept, so
//! applying one restores a file that was not changed since, and leaves any other.

use super::super::lower_io::write_full;
use super::record::{self, PREFIX, Record};
use super::recover::{Header, Outcome};
use super::restore::{Interrupted, Part};
use super::{FIRST_SLOT, Journal};
use crate::hooks::{Journal as Setting, Layout};
use std::ops::Range;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Layer, Name, OpenFile, OpenFlags, RenameFlags, Result};

/// How many are kept. A further one replaces the oldest.
const MOST: u32 = 16;

/// What follows the journal's name in that of a kept journal that is not complete.
const SPARE: &[u8] = b".new";

/// The largest number of a journal that is moved aside when other objects have all lower ones.
const MOST_ASIDE: u32 = 1000;

/// What a record has for bytes that were not restored.
pub(super) struct Kept(pub(super) Interrupted);

/// A kept journal that is being written.
pub(super) struct KeptFile {
    file: Arc<dyn OpenFile>,
    /// Its name until it is complete, and from then on.
    present: Vec<u8>,
    name: Vec<u8>,
    slot: u64,
    next: u64,
}

/// Whether a name is the one of a kept journal.
pub(crate) fn is_kept(name: &[u8], journal: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(journal) else { return false };
    let is_number = |number: &[u8]| (1..=MOST).any(|kept| kept.to_string().as_bytes() == number);
    rest == SPARE || rest.strip_prefix(b".").is_some_and(is_number)
}

impl Part {
    fn marks(&self) -> impl Iterator<Item = u8> {
        self.marked.iter().flat_map(|(_, mark)| mark.old.to_le_bytes().into_iter().chain(mark.new.to_le_bytes()))
    }
}

impl KeptFile {
    pub(super) fn name(&self) -> String {
        self.name.escape_ascii().to_string()
    }

    pub(super) fn add(&mut self, cx: &Cx<'_>, Kept(change): &Kept) -> Result<()> {
        let marks: Vec<u8> = change.head.marks().chain(change.blocks.marks()).collect();
        let mut bytes = vec![0; PREFIX];
        change.record.write_to(&mut bytes, &marks);
        bytes.extend(marks);
        bytes.extend(&change.head.data);
        bytes.extend(&change.blocks.data);
        if bytes.len() as u64 > self.slot {
            return Err(Errno::FBIG);
        }
        write_full(&*self.file, cx, &bytes, FIRST_SLOT + self.next * self.slot).1?;
        self.next += 1;
        Ok(())
    }

    /// Makes it durable, and gives it its name.
    pub(super) fn publish(&mut self, cx: &Cx<'_>, journal: &Journal) -> Result<()> {
        let root = journal.lower.root();
        self.file.fsync(cx, false)?;
        if self.present != self.name {
            root.rename(cx, Name::new(&self.present)?, &root, Name::new(&self.name)?, RenameFlags::default())?;
            self.present.clone_from(&self.name);
        }
        root.fsync(cx, false)
    }

    /// Removes it: the journal still has all of it.
    pub(super) fn discard(&self, cx: &Cx<'_>, journal: &Journal) {
        let removed = Name::new(&self.present).and_then(|name| journal.lower.root().unlink(cx, name));
        if let Err(errno) = removed {
            tracing::warn!(%errno, "cannot remove {}, which is not complete", self.present.escape_ascii());
        }
    }
}

impl Journal {
    fn kept_name(&self, number: u32) -> Vec<u8> {
        [&*self.setting.name, b".", number.to_string().as_bytes()].concat()
    }

    /// Returns what has the name of the kept journal with this number.
    fn kept(&self, cx: &Cx<'_>, number: u32) -> Result<Option<Entry>> {
        self.lower.root().lookup(cx, Name::new(&self.kept_name(number))?)
    }

    /// Returns the number of a further kept journal, and whether it replaces another one: the
    /// oldest, or a file that is none. `None` if objects that are no files have all names.
    fn number_for_kept(&self, cx: &Cx<'_>) -> Result<Option<(u32, bool)>> {
        let mut oldest = None;
        for number in 1..=MOST {
            let Some(entry) = self.kept(cx, number)? else { return Ok(Some((number, false))) };
            if entry.vnode.kind() == Kind::Regular {
                let age = (self.check_owner(&entry).is_ok(), entry.attr.mtime, number);
                oldest = Some(oldest.map_or(age, |oldest: (_, _, _)| oldest.min(age)));
            }
        }
        Ok(oldest.map(|(_, _, number)| (number, true)))
    }

    fn warn_of_replacing(name: &[u8]) {
        let shown = name.escape_ascii();
        tracing::warn!("{MOST} journals are kept: the oldest, {shown}, is replaced");
    }

    /// Renames the journal, and returns its new name. It may replace the oldest kept journal.
    pub(super) fn move_aside(&self, cx: &Cx<'_>, may_replace: bool) -> Result<String> {
        let root = self.lower.root();
        let number = match self.number_for_kept(cx)? {
            Some((number, replaces)) if may_replace || !replaces => {
                if replaces {
                    Self::warn_of_replacing(&self.kept_name(number));
                }
                number
            }
            _ => self.unused_number(cx)?,
        };
        let name = self.kept_name(number);
        root.rename(cx, Name::new(&self.setting.name)?, &root, Name::new(&name)?, RenameFlags::default())?;
        Ok(name.escape_ascii().to_string())
    }

    /// Returns an unused number behind those of kept journals.
    fn unused_number(&self, cx: &Cx<'_>) -> Result<u32> {
        for number in MOST + 1..=MOST_ASIDE {
            if self.kept(cx, number)?.is_none() {
                return Ok(number);
            }
        }
        Err(Errno::EXIST)
    }

    /// Creates a kept journal whose slots have at least `slot` bytes. `None` if objects that are no
    /// files have all names.
    pub(super) fn create_kept(&self, cx: &Cx<'_>, slot: u64) -> Result<Option<KeptFile>> {
        let Some((number, replaces)) = self.number_for_kept(cx)? else { return Ok(None) };
        let (root, name) = (self.lower.root(), self.kept_name(number));
        let mut present = [&*self.setting.name, SPARE].concat();
        match root.lookup(cx, Name::new(&present)?)? {
            None => {}
            // A recovery was interrupted.
            Some(entry) if entry.vnode.kind() == Kind::Regular => root.unlink(cx, Name::new(&present)?)?,
            Some(_) if replaces => return Ok(None),
            Some(_) => present.clone_from(&name),
        }
        if replaces {
            Self::warn_of_replacing(&name);
        }
        let slot = slot.max(self.slot);
        let (_, file) = root.create(cx, Name::new(&present)?, 0o600, OpenFlags::RDWR)?;
        let kept = KeptFile { file, present, name, slot, next: 0 };
        let header = record::file_header(record::Version::Two, self.layout, slot);
        let written = write_full(&*kept.file, cx, &header, 0).1;
        if written.is_err() {
            kept.discard(cx, self);
        }
        written.map(|()| Some(kept))
    }
}

/// The journals that recoveries have kept in a tree, for tools. No layer may use the tree.
#[derive(Debug)]
pub struct KeptJournals(Journal);

/// An interrupted write whose bytes are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptWrite {
    /// The path of the file in the layer below, with unusual bytes escaped.
    pub path: String,
    /// The number of the file.
    pub inode: u64,
    /// Which plain bytes were to be written.
    pub bytes: Range<u64>,
    /// Whether the file has a seal. Restoring the write then replaces the seal, too: other blocks
    /// that were changed between the write and the recovery no longer fit it, and can't be read.
    pub replaces_seal: bool,
    /// Why the bytes can't be restored. `None` if they can be, or were.
    pub problem: Option<&'static str>,
}

impl KeptJournals {
    /// Returns those of the layer with the journal `name` and the format `layout`. The first
    /// `fixed` bytes of a header identify a file; `None`: all of it. `owner` is the user and the
    /// group of the server.
    #[must_use]
    pub fn new(
        lower: Arc<dyn Layer>,
        name: &[u8],
        (layout, fixed): (Layout, Option<usize>),
        owner: (u32, u32),
    ) -> Self {
        Self(Journal::new(lower, Setting::new(name).durable(), (layout, fixed.unwrap_or(usize::MAX)), 0, owner))
    }

    /// Whether `name` is that of a kept journal of a layer with the journal `journal`.
    #[must_use]
    pub fn is_name(journal: &[u8], name: &[u8]) -> bool {
        is_kept(name, journal)
    }

    /// Returns their numbers.
    ///
    /// # Errors
    /// As [`vnode::Vnode::lookup`].
    pub fn numbers(&self) -> Result<Vec<u32>> {
        let mut used = Vec::new();
        for number in 1..=MOST {
            if self.0.kept(&self.0.own(), number)?.is_some() {
                used.push(number);
            }
        }
        Ok(used)
    }

    /// Returns what one contains.
    ///
    /// # Errors
    /// A sentence.
    pub fn writes(&self, number: u32) -> core::result::Result<Vec<KeptWrite>, String> {
        self.read(number, false)
    }

    /// Restores what one contains in files that were not changed since, and removes it if that was
    /// all.
    ///
    /// # Errors
    /// A sentence.
    pub fn apply(&self, number: u32) -> core::result::Result<Vec<KeptWrite>, String> {
        let writes = self.read(number, true)?;
        if writes.iter().all(|write| write.problem.is_none()) {
            let name = self.0.kept_name(number);
            let removed = Name::new(&name).and_then(|name| self.0.lower.root().unlink(&self.0.own(), name));
            removed.map_err(|errno| format!("{}: cannot be removed: {errno}", name.escape_ascii()))?;
        }
        Ok(writes)
    }

    fn read(&self, number: u32, applies: bool) -> core::result::Result<Vec<KeptWrite>, String> {
        let (cx, name) = (self.0.own(), self.0.kept_name(number));
        let shown = name.escape_ascii().to_string();
        let failed = |errno: Errno| format!("{shown}: {errno}");
        let found = Name::new(&name).and_then(|name| self.0.lower.root().lookup(&cx, name)).map_err(failed)?;
        let entry = found.ok_or_else(|| format!("{shown}: no such journal"))?;
        self.0.check_owner(&entry).map_err(|why| format!("{shown}: {why}"))?;
        let file = entry.vnode.open(&cx, OpenFlags::RDWR).map_err(failed)?;
        let Header::Readable(left) = self.0.left(&cx, &*file).map_err(failed)? else {
            return Err(format!("{shown}: it is damaged, or of another version"));
        };
        let mut writes = Vec::new();
        let done = if applies {
            left.each(|record, outcome| {
                writes.push(self.write(&cx, record, problem(&outcome)));
                Ok(())
            })
        } else {
            left.each_change(|record, change| {
                writes.push(self.write(&cx, record, change.is_none().then_some(DAMAGED)));
                Ok(())
            })
        };
        match done {
            Ok(()) => Ok(writes),
            Err((Some(inode), errno)) => Err(format!("{shown}: the file with inode number {inode}: {errno}")),
            Err((None, errno)) => Err(failed(errno)),
        }
    }

    fn write(&self, cx: &Cx<'_>, record: &Record, problem: Option<&'static str>) -> KeptWrite {
        let layout = self.0.layout;
        let end = record.offset.saturating_add(record.total.into());
        let bytes = layout.plain_size(record.offset)..layout.plain_size(end);
        let (inode, replaces_seal) = (record.number, record.head > 0);
        KeptWrite { path: self.0.path_below(cx, inode), inode, bytes, replaces_seal, problem }
    }
}

/// Why a record is useless.
const DAMAGED: &str = "the record is damaged";

fn problem(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Applied => None,
        Outcome::Incomplete => Some(DAMAGED),
        Outcome::Gone(why) => Some(why),
        Outcome::Foreign(_) => Some("the file was changed since"),
    }
}
