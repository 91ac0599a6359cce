//! Data of another size: a file below is a container (docs/formats/container.md), which keeps the size, random access and holes.

use super::core::Core;
use super::file::TemplateFile;
use super::guard::guard;
use super::inverse;
use super::node::TemplateVnode;
use super::table::Table;
use container::{BlockAt, BlockCodec, Container, Probe, probe};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use vnode::{Attr, Cx, Errno, MAY_BLOCK, OpenFile, OpenFlags, Result, SeekFrom, SetAttr, SetTime, Vnode};

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// What becomes of files below that are no containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// They are shown, read and written as they are, by the kernel itself. A file that begins with 512 zeros counts as one of these.
    Plain,
    /// They are listed, with the size that they have below, but can't be opened: `EMEDIUMTYPE`.
    Refuse,
}

/// A codec whose panics are errors.
#[derive(Debug)]
struct Guarded(Arc<dyn BlockCodec>);

impl BlockCodec for Guarded {
    fn id(&self) -> [u8; 8] {
        self.0.id()
    }

    fn block_size(&self) -> u32 {
        self.0.block_size()
    }

    fn max_encoded(&self, plain: usize) -> usize {
        self.0.max_encoded(plain)
    }

    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        guard("encode", || self.0.encode(at, plain, out))?;
        if !inverse::CHECKED {
            return Ok(());
        }
        let mut again = vec![0; plain.len()];
        let decoded = self.decode(at, out.get(start..).unwrap_or_default(), &mut again);
        let input = || format!("block {} of a container", at.block);
        inverse::check(["encode", "decode"], input, plain, decoded.map(|()| &*again))
    }

    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        guard("decode", || self.0.decode(at, encoded, out))
    }
}

/// A codec in use.
#[derive(Debug)]
pub(crate) struct Resizing {
    codec: Arc<dyn BlockCodec>,
    foreign: Foreign,
    /// The layer refuses every change: no file is opened for writing below.
    pub(crate) read_only: bool,
    table: Arc<Table<Shared>>,
}

/// What the open files of one inode share.
#[derive(Debug)]
pub(crate) struct Shared {
    id: u64,
    table: Arc<Table<Shared>>,
    /// Locked while a file is opened, and while the last one is closed: there is never more than one container of a file.
    slot: Mutex<Slot>,
    /// Who appends finds the end and writes there as one.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Slot {
    opens: usize,
    what: What,
}

/// What a file that is open is.
#[derive(Clone, Debug, Default)]
enum What {
    /// It is not open.
    #[default]
    Unknown,
    Foreign,
    Container {
        container: Arc<Container>,
        file: Arc<dyn OpenFile>,
        writable: bool,
    },
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.table.forget(self.id, self);
    }
}

impl Shared {
    fn slot(&self, cx: &Cx<'_>) -> Result<MutexGuard<'_, Slot>> {
        if cx.may_block { Ok(self.slot.lock()) } else { self.slot.try_lock().ok_or(MAY_BLOCK) }
    }

    fn turn(&self, cx: &Cx<'_>) -> Result<MutexGuard<'_, ()>> {
        if cx.may_block { Ok(self.turn.lock()) } else { self.turn.try_lock().ok_or(MAY_BLOCK) }
    }

    /// One step of giving dead space back; true: there is more to do. Writers wait meanwhile, so that a time of modification that
    /// one of them sets is not undone.
    fn give_back(&self, cx: &Cx<'_>, vnode: &dyn Vnode, container: &Container) -> bool {
        if !container.has_dead_space() {
            return false;
        }
        let _turn = self.turn.lock();
        let mut more = false;
        let step = keeping_mtime(cx, vnode, || container.give_back(cx).map(|again| more = again));
        if let Err(errno) = step {
            tracing::debug!(%errno, inode = vnode.id(), "dead space of a container is not given back for now");
        }
        more && step.is_ok()
    }
}

/// One open file's hold on what it is.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    core: Arc<Core>,
    vnode: Arc<dyn Vnode>,
    container: Option<Arc<Container>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut slot = self.shared.slot.lock();
        while slot.opens == 1
            && let What::Container { container, writable: true, .. } = &slot.what
        {
            let container = Arc::clone(container);
            drop(slot);
            // Whoever opens it meanwhile waits for no more than a step, and does the rest.
            let more = self.shared.give_back(&self.core.own(), &*self.vnode, &container);
            slot = self.shared.slot.lock();
            if !more {
                break;
            }
        }
        slot.opens -= 1;
        if slot.opens > 0 {
            return;
        }
        if let What::Container { container, writable: true, .. } = std::mem::take(&mut slot.what) {
            let _turn = self.shared.turn.lock();
            let cx = &self.core.own();
            if let Err(errno) = keeping_mtime(cx, &*self.vnode, || container.close(cx)) {
                tracing::debug!(%errno, inode = self.vnode.id(), "a container is closed without a note of that");
            }
        }
    }
}

/// What is noted in a container is no change of the file.
fn keeping_mtime(cx: &Cx<'_>, vnode: &dyn Vnode, note: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = vnode.getattr(cx)?.mtime;
    note()?;
    if vnode.getattr(cx)?.mtime != before {
        vnode.setattr(cx, &SetAttr { mtime: Some(SetTime::At(before)), ..SetAttr::default() }, None)?;
    }
    Ok(())
}

impl Resizing {
    pub(crate) fn new(codec: Arc<dyn BlockCodec>, foreign: Foreign) -> Self {
        Self { codec: Arc::new(Guarded(codec)), foreign, read_only: false, table: Table::new() }
    }

    fn shared(&self, id: u64) -> Arc<Shared> {
        self.table.get(id).unwrap_or_else(|| {
            let (slot, turn) = (Mutex::default(), Mutex::default());
            self.table.insert(id, Arc::new(Shared { id, table: Arc::clone(&self.table), slot, turn }))
        })
    }

    /// Changes the times of a file below, while the container keeps its hands off them.
    pub(crate) fn set_times(
        &self,
        cx: &Cx<'_>,
        vnode: &dyn Vnode,
        change: impl FnOnce() -> Result<Attr>,
    ) -> Result<Attr> {
        let shared = self.table.get(vnode.id());
        let _turn = shared.as_ref().map(|shared| shared.turn(cx)).transpose()?;
        change()
    }

    /// The plain size of a file that has bytes below; `None` if they are as they are.
    pub(crate) fn size(&self, cx: &Cx<'_>, server: &Cx<'_>, vnode: &dyn Vnode) -> Result<Option<u64>> {
        let shared = self.shared(vnode.id());
        let slot = shared.slot(cx)?;
        match &slot.what {
            What::Container { container, .. } => Ok(Some(container.size())),
            What::Foreign => Ok(None),
            What::Unknown => match vnode.open(server, OpenFlags::RDONLY).and_then(|file| probe(cx, &*file)) {
                Ok(Probe::Container { size, .. }) => Ok(Some(size)),
                Ok(Probe::Empty) => Ok(Some(0)),
                Ok(Probe::Blank) => Ok(if self.foreign == Foreign::Plain { None } else { Some(0) }),
                Ok(Probe::Foreign) => Ok(None),
                Err(MAY_BLOCK) => Err(MAY_BLOCK),
                // What can't be read must still be found, if only to be removed.
                Err(errno) => {
                    tracing::debug!(%errno, inode = vnode.id(), "a container can't be read: the size shown is that below");
                    Ok(None)
                }
            },
        }
    }

    fn open_writable(&self, cx: &Cx<'_>, vnode: &Arc<dyn Vnode>) -> Result<Arc<dyn OpenFile>> {
        if self.read_only { Err(Errno::ROFS) } else { vnode.open(cx, OpenFlags::RDWR) }
    }

    /// Finds out what a file is that nobody has open. `made`: it was just made, and opened like this.
    fn look(&self, cx: &Cx<'_>, vnode: &Arc<dyn Vnode>, made: Option<Arc<dyn OpenFile>>) -> Result<What> {
        let (file, writable) = match made.map_or_else(|| self.open_writable(cx, vnode), Ok) {
            Ok(file) => (file, true),
            // Those who only read can.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::TXTBSY) => {
                (vnode.open(cx, OpenFlags::RDONLY)?, false)
            }
            Err(errno) => return Err(errno),
        };
        match (probe(cx, &*file)?, self.foreign) {
            (Probe::Foreign | Probe::Blank, Foreign::Plain) => return Ok(What::Foreign),
            (Probe::Foreign, Foreign::Refuse) => return Err(Errno::MEDIUMTYPE),
            _ => {}
        }
        let container = Container::open(cx, Arc::clone(&self.codec), Arc::clone(vnode), Arc::clone(&file))?;
        Ok(What::Container { container: Arc::new(container), file, writable })
    }
}

impl TemplateVnode {
    /// Opens a file whose size is changed, below as `server`. `made`: it was just made, and opened for reading and writing below.
    pub(crate) fn open_resized(
        &self,
        (cx, server): (&Cx<'_>, &Cx<'_>),
        resizing: &Resizing,
        flags: OpenFlags,
        made: Option<Arc<dyn OpenFile>>,
    ) -> Result<TemplateFile> {
        cx.require_blocking()?;
        let shared = resizing.shared(self.lower.id());
        let mut slot = shared.slot.lock();
        let what = if slot.opens == 0 { resizing.look(server, &self.lower, made)? } else { slot.what.clone() };
        let (lower, container) = match &what {
            What::Foreign => (self.lower.open(cx, flags)?, None),
            What::Container { writable: false, .. } if flags.writes() || flags.truncates() => {
                // Says why. If it can be written by now, it can be once those who read it are gone.
                self.lower.open(server, OpenFlags::RDWR)?;
                return Err(Errno::BUSY);
            }
            What::Container { container, file, .. } => {
                if flags.truncates() {
                    container.truncate(cx, 0)?;
                    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
                    self.lower.setattr(cx, &now, None)?;
                }
                (Arc::clone(file), Some(Arc::clone(container)))
            }
            What::Unknown => return Err(Errno::IO),
        };
        slot.what = what;
        slot.opens += 1;
        drop(slot);
        let held = Held { shared, core: Arc::clone(&self.core), vnode: Arc::clone(&self.lower), container };
        let (core, vnode, record) = (Arc::clone(&self.core), Arc::clone(&self.lower), self.record.clone());
        Ok(TemplateFile { core, vnode, record, lower, flags, inode: None, held: Some(held), format: None })
    }

    /// Changes attributes, the size among them.
    pub(crate) fn resize_container(
        &self,
        cx: &Cx<'_>,
        resizing: &Resizing,
        set: &SetAttr,
        new_size: u64,
    ) -> Result<Attr> {
        let file = self.open_resized((cx, &self.core.server(cx)), resizing, OpenFlags::WRONLY, None)?;
        let Some(resized) = file.resized() else { return self.lower.setattr(cx, set, Some(&*file.lower)) };
        resized.truncate(cx, new_size)?;
        let rest = SetAttr { size: None, mtime: set.mtime.or(Some(SetTime::Now)), ..*set };
        self.lower.setattr(cx, &rest, None)
    }
}

impl TemplateFile {
    /// What there is to be known of a container.
    pub(crate) fn resized(&self) -> Option<Resized<'_>> {
        let held = self.held.as_ref()?;
        Some(Resized { container: held.container.as_deref()?, shared: &held.shared, vnode: &*self.vnode })
    }
}

/// An open file that is a container below.
pub(crate) struct Resized<'a> {
    container: &'a Container,
    shared: &'a Shared,
    vnode: &'a dyn Vnode,
}

impl Resized<'_> {
    pub(crate) fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.container.read(cx, out, offset)
    }

    /// Writes at `offset`; `None`: at the end.
    pub(crate) fn write(&self, cx: &Cx<'_>, data: &[u8], offset: Option<u64>) -> Result<usize> {
        cx.require_blocking()?;
        let _turn = self.shared.turn.lock();
        self.container.write(cx, data, offset.unwrap_or_else(|| self.container.size()))
    }

    fn truncate(&self, cx: &Cx<'_>, size: u64) -> Result<()> {
        let _turn = self.shared.turn.lock();
        self.container.truncate(cx, size)
    }

    /// Punches and zeroes. Room for what will be written can't be set aside: nobody knows how much that takes.
    pub(crate) fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        cx.require_blocking()?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok()).ok_or(Errno::FBIG)?;
        let _turn = self.shared.turn.lock();
        match (mode & !KEEP_SIZE, mode & KEEP_SIZE != 0) {
            (PUNCH_HOLE | ZERO_RANGE, true) => self.container.punch(cx, offset, len),
            (ZERO_RANGE, false) => {
                let size = self.container.size();
                self.container.punch(cx, offset, len)?;
                if end > size { self.container.truncate(cx, end) } else { Ok(()) }
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    pub(crate) fn seek(&self, cx: &Cx<'_>, offset: u64, whence: SeekFrom) -> Result<u64> {
        self.container.seek(cx, offset, whence)
    }

    pub(crate) fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        cx.require_blocking()?;
        {
            let _turn = self.shared.turn.lock();
            keeping_mtime(cx, self.vnode, || self.container.sync(cx, data_only))?;
        }
        // All that was asked for is durable: what becomes of dead space is no part of the answer.
        while self.shared.give_back(cx, self.vnode, self.container) {}
        Ok(())
    }

    pub(crate) fn size(&self) -> u64 {
        self.container.size()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.container, other.container)
    }
}
