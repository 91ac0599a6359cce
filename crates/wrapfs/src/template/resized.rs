//! Data of a different size: the file below is a container (docs/formats/container.md), which
//! stores the plain size and supports random access and holes.

use super::core::Core;
use super::file::TemplateFile;
use super::guard::guard;
use super::inverse;
use super::lower_io::touch;
use super::node::TemplateVnode;
use super::table::Table;
use container::{BlockAt, BlockCodec, Container, Probe, probe};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use vnode::{Attr, Cx, Errno, MAY_BLOCK, OpenFile, OpenFlags, Result, SetAttr, SetTime, Vnode, Whence};

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// How to handle files below that are not containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// They are shown, read and written unchanged, directly by the kernel. A file that begins with
    /// 512 zero bytes counts as such a file.
    Plain,
    /// They are listed with the size that they have below, but cannot be opened: `EMEDIUMTYPE`.
    Refuse,
}

/// A codec whose panics are converted to errors. The methods that cannot return an error are called
/// once, when the layer is built.
#[derive(Debug)]
struct Guarded {
    codec: Arc<dyn BlockCodec>,
    id: [u8; 8],
    block_size: u32,
    /// The maximum encoded size of `block_size` bytes.
    max_encoded: usize,
}

impl Guarded {
    fn new(codec: Arc<dyn BlockCodec>) -> Result<Self> {
        let id = guard("id", || Ok(codec.id()))?;
        let block_size = guard("block_size", || Ok(codec.block_size()))?;
        let block = usize::try_from(block_size).map_err(|_| Errno::IO)?;
        let max_encoded = guard("max_encoded", || Ok(codec.max_encoded(block)))?;
        Ok(Self { codec, id, block_size, max_encoded })
    }
}

impl BlockCodec for Guarded {
    fn id(&self) -> [u8; 8] {
        self.id
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn max_encoded(&self, plain: usize) -> usize {
        if u32::try_from(plain) == Ok(self.block_size) {
            return self.max_encoded;
        }
        // The block size of a file written with other settings. The result after a panic is not
        // allowed, so opening the file fails.
        guard("max_encoded", || Ok(self.codec.max_encoded(plain))).unwrap_or(usize::MAX)
    }

    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        guard("encode", || self.codec.encode(at, plain, out))?;
        if !inverse::CHECKED {
            return Ok(());
        }
        let mut again = vec![0; plain.len()];
        let decoded = self.decode(at, out.get(start..).unwrap_or_default(), &mut again);
        let input = || format!("block {} of a container", at.block);
        inverse::check(["encode", "decode"], input, plain, decoded.map(|()| &*again))
    }

    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        guard("decode", || self.codec.decode(at, encoded, out))
    }
}

/// A codec in use.
#[derive(Debug)]
pub(crate) struct Resizing {
    /// The error of every open if one of the codec's methods panicked when the layer was built.
    codec: Result<Arc<Guarded>>,
    foreign: Foreign,
    /// The layer is read-only: no file is opened for writing below.
    pub(crate) read_only: bool,
    table: Arc<Table<Shared>>,
}

/// State shared by the open files of one inode.
#[derive(Debug)]
pub(crate) struct Shared {
    id: u64,
    table: Arc<Table<Shared>>,
    /// Locked while a file is opened and while its last open file is closed, so that a file never
    /// has more than one container object.
    slot: Mutex<Slot>,
    /// Serializes appends: finding the end and writing there is one step.
    append_lock: Mutex<()>,
}

#[derive(Debug, Default)]
struct Slot {
    opens: usize,
    kind: FileKind,
}

/// The kind of an open file.
#[derive(Clone, Debug, Default)]
enum FileKind {
    /// Not open.
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

    fn append_lock(&self, cx: &Cx<'_>) -> Result<MutexGuard<'_, ()>> {
        if cx.may_block { Ok(self.append_lock.lock()) } else { self.append_lock.try_lock().ok_or(MAY_BLOCK) }
    }

    /// Reclaims some dead space of the container. Returns true if there is more to reclaim. Writers
    /// wait meanwhile, so that restoring the mtime does not overwrite one that they set.
    fn reclaim(&self, cx: &Cx<'_>, vnode: &dyn Vnode, container: &Container) -> bool {
        if !container.has_dead_space() {
            return false;
        }
        let _append = self.append_lock.lock();
        let mut more = false;
        let step = keeping_mtime(cx, vnode, || container.reclaim(cx).map(|again| more = again));
        if let Err(errno) = step {
            tracing::debug!(%errno, inode = vnode.id(), "dead space of a container not reclaimed");
        }
        more && step.is_ok()
    }
}

/// A reference of one open file to the shared state.
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
            && let FileKind::Container { container, writable: true, .. } = &slot.kind
        {
            let container = Arc::clone(container);
            drop(slot);
            // A thread that opens the file meanwhile waits for one step only, and reclaims the rest
            // later.
            let more = self.shared.reclaim(&self.core.own(), &*self.vnode, &container);
            slot = self.shared.slot.lock();
            if !more {
                break;
            }
        }
        slot.opens -= 1;
        if slot.opens > 0 {
            return;
        }
        if let FileKind::Container { container, writable: true, .. } = std::mem::take(&mut slot.kind) {
            let _append = self.shared.append_lock.lock();
            let cx = &self.core.own();
            if let Err(errno) = keeping_mtime(cx, &*self.vnode, || container.close(cx)) {
                tracing::debug!(%errno, inode = self.vnode.id(), "clean close not recorded in the container");
            }
        }
    }
}

/// Runs `note`, which updates a container without changing the file, and restores the mtime.
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
        Self { codec: Guarded::new(codec).map(Arc::new), foreign, read_only: false, table: Table::new() }
    }

    fn shared(&self, id: u64) -> Arc<Shared> {
        self.table.get(id).unwrap_or_else(|| {
            let (slot, append_lock) = (Mutex::default(), Mutex::default());
            self.table.insert(id, Arc::new(Shared { id, table: Arc::clone(&self.table), slot, append_lock }))
        })
    }

    /// Changes the timestamps of a file below while the container does not touch them.
    pub(crate) fn set_times(
        &self,
        cx: &Cx<'_>,
        vnode: &dyn Vnode,
        change: impl FnOnce() -> Result<Attr>,
    ) -> Result<Attr> {
        let shared = self.table.get(vnode.id());
        let _append = shared.as_ref().map(|shared| shared.append_lock(cx)).transpose()?;
        change()
    }

    /// Returns the plain size of a non-empty file below; `None` if the file is not a container.
    pub(crate) fn size(&self, cx: &Cx<'_>, server: &Cx<'_>, vnode: &dyn Vnode) -> Result<Option<u64>> {
        let shared = self.shared(vnode.id());
        let slot = shared.slot(cx)?;
        match &slot.kind {
            FileKind::Container { container, .. } => Ok(Some(container.size())),
            FileKind::Foreign => Ok(None),
            FileKind::Unknown => match vnode.open(server, OpenFlags::RDONLY).and_then(|file| probe(cx, &*file)) {
                Ok(Probe::Container { size, .. }) => Ok(Some(size)),
                Ok(Probe::Empty) => Ok(Some(0)),
                Ok(Probe::Blank) => Ok(if self.foreign == Foreign::Plain { None } else { Some(0) }),
                Ok(Probe::Foreign) => Ok(None),
                Err(MAY_BLOCK) => Err(MAY_BLOCK),
                // A file that cannot be read must still be found, at least to be removed.
                Err(errno) => {
                    tracing::debug!(%errno, inode = vnode.id(), "container unreadable: showing its stored size");
                    Ok(None)
                }
            },
        }
    }

    fn open_writable(&self, cx: &Cx<'_>, vnode: &Arc<dyn Vnode>) -> Result<Arc<dyn OpenFile>> {
        if self.read_only { Err(Errno::ROFS) } else { vnode.open(cx, OpenFlags::RDWR) }
    }

    /// Determines the kind of a file that has no open files. `made`: the file was just created and
    /// opened with this handle.
    fn identify(&self, cx: &Cx<'_>, vnode: &Arc<dyn Vnode>, made: Option<Arc<dyn OpenFile>>) -> Result<FileKind> {
        let (file, writable) = match made.map_or_else(|| self.open_writable(cx, vnode), Ok) {
            Ok(file) => (file, true),
            // Opening it read-only may still work.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::TXTBSY) => {
                (vnode.open(cx, OpenFlags::RDONLY)?, false)
            }
            Err(errno) => return Err(errno),
        };
        match (probe(cx, &*file)?, self.foreign) {
            (Probe::Foreign | Probe::Blank, Foreign::Plain) => return Ok(FileKind::Foreign),
            (Probe::Foreign, Foreign::Refuse) => return Err(Errno::MEDIUMTYPE),
            _ => {}
        }
        let codec = self.codec.clone()?;
        let container =
            Container::open(cx, codec, Arc::clone(vnode), Arc::clone(&file)).map_err(|errno| match errno {
                // The codec's sizes are not allowed. The program did nothing wrong.
                Errno::INVAL => Errno::IO,
                errno => errno,
            })?;
        Ok(FileKind::Container { container: Arc::new(container), file, writable })
    }
}

impl TemplateVnode {
    /// Opens a file whose data size changes, as `server` below. `made`: the file was just created
    /// and opened for reading and writing below.
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
        let kind = if slot.opens == 0 { resizing.identify(server, &self.lower, made)? } else { slot.kind.clone() };
        let (lower, container) = match &kind {
            FileKind::Foreign => (self.lower.open(cx, flags)?, None),
            FileKind::Container { writable: false, .. } if flags.writes() || flags.truncates() => {
                // Returns the reason as its error. If opening for writing works by now, it works
                // once the readers have closed the file.
                self.lower.open(server, OpenFlags::RDWR)?;
                return Err(Errno::BUSY);
            }
            FileKind::Container { container, file, .. } => {
                if flags.truncates() {
                    container.truncate(cx, 0)?;
                    touch(&*self.lower, cx);
                }
                (Arc::clone(file), Some(Arc::clone(container)))
            }
            FileKind::Unknown => return Err(Errno::IO),
        };
        slot.kind = kind;
        slot.opens += 1;
        drop(slot);
        let held = Held { shared, core: Arc::clone(&self.core), vnode: Arc::clone(&self.lower), container };
        let (core, vnode, record) = (Arc::clone(&self.core), Arc::clone(&self.lower), self.record.clone());
        Ok(TemplateFile {
            core,
            vnode,
            record,
            lower,
            flags,
            inode: None,
            held: Some(held),
            format: None,
            opened: None,
        })
    }

    /// Changes attributes, including the size.
    pub(crate) fn resize_container(
        &self,
        cx: &Cx<'_>,
        resizing: &Resizing,
        set: &SetAttr,
        new_size: u64,
    ) -> Result<Attr> {
        let file = self.open_resized((cx, &self.core.server(cx)), resizing, OpenFlags::WRONLY, None)?;
        let Some(resized) = file.resized() else { return self.lower.setattr(cx, set, Some(&*file.lower)) };
        // First what leaves the data alone if it fails: what is cut off can't be brought back.
        let rest = SetAttr { size: None, atime: None, mtime: None, ..*set };
        if !rest.is_empty() {
            self.lower.setattr(cx, &rest, None)?;
        }
        resized.truncate(cx, new_size)?;
        let times = SetAttr { atime: set.atime, mtime: set.mtime.or(Some(SetTime::Now)), ..SetAttr::default() };
        self.lower.setattr(cx, &times, None).or_else(|_| self.lower.getattr(cx))
    }
}

impl TemplateFile {
    /// Returns the file as a container, if it is one.
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

    /// Writes at `offset`, or at the end if it is `None`.
    pub(crate) fn write(&self, cx: &Cx<'_>, data: &[u8], offset: Option<u64>) -> Result<usize> {
        cx.require_blocking()?;
        let _append = self.shared.append_lock.lock();
        self.container.write(cx, data, offset.unwrap_or_else(|| self.container.size()))
    }

    fn truncate(&self, cx: &Cx<'_>, size: u64) -> Result<()> {
        let _append = self.shared.append_lock.lock();
        self.container.truncate(cx, size)
    }

    /// Punches holes and zeroes ranges. Space cannot be preallocated, because the encoded size of
    /// future writes is unknown.
    pub(crate) fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        cx.require_blocking()?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok()).ok_or(Errno::FBIG)?;
        let _append = self.shared.append_lock.lock();
        match (mode & !KEEP_SIZE, mode & KEEP_SIZE != 0) {
            (PUNCH_HOLE | ZERO_RANGE, true) => self.container.punch(cx, offset, len)?,
            (ZERO_RANGE, false) => {
                let size = self.container.size();
                self.container.punch(cx, offset, len)?;
                if end > size {
                    self.container.truncate(cx, end)?;
                }
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        // Also if all of it is a hole or beyond the end, and the container has not changed.
        touch(self.vnode, cx);
        Ok(())
    }

    pub(crate) fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.container.seek(cx, offset, whence)
    }

    pub(crate) fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        cx.require_blocking()?;
        {
            let _append = self.shared.append_lock.lock();
            keeping_mtime(cx, self.vnode, || self.container.sync(cx, data_only))?;
        }
        // All requested data is durable. Reclaiming dead space does not affect the result.
        while self.shared.reclaim(cx, self.vnode, self.container) {}
        Ok(())
    }

    pub(crate) fn size(&self) -> u64 {
        self.container.size()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.container, other.container)
    }
}
