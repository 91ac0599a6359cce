//! Open files, and the data path of each open inode: FUSE passthrough, or requests and the page
//! cache.
//!
//! The kernel allows one data path per inode and fails other opens with `EIO`. While any open file
//! of an inode uses passthrough, all must, with the same backing id. While any uses the FUSE
//! inode's page cache, none may use passthrough. So the first open file chooses the path for all
//! that follow, until the last RELEASE. The kernel clears its own record of the path before it
//! sends RELEASE. After the last RELEASE, the server can therefore choose either path.

use crate::notifier::NotificationQueue;
use crate::open_cache::OpenCache;
use crate::page_cache::{HeldSize, PageCache, PageState};
use crate::shared_mappings::SharedMappings;
use crate::unsent_modes::UnsentModes;
use fuse::BackingId;
use fuse::abi::OpenOut;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use vnode::{Attr, Backing, Drained, Errno, MAY_BLOCK, OpenFile, OpenFlags, Result};

/// An inode with open files.
struct OpenInode {
    opens: u32,
    writers: u32,
    /// Open files of running programs: execve(2) keeps them open.
    programs: u32,
    data_path: DataPath,
    /// Created by this server's CREATE and no extended attribute set since, so
    /// `security.capability`, which the kernel requests before the first write, is known to be
    /// absent.
    no_xattrs: bool,
    /// An open has waited in vain for the last writer's RELEASE. So a process has the file open for
    /// writing, and later opens do not wait.
    writer_wait_timed_out: bool,
}

impl OpenInode {
    fn new(data_path: DataPath, no_xattrs: bool) -> Self {
        Self { opens: 0, writers: 0, programs: 0, data_path, no_xattrs, writer_wait_timed_out: false }
    }
}

enum DataPath {
    /// Requests and the FUSE inode's page cache.
    Cached,
    /// Passthrough. The id must live until the last RELEASE.
    Passthrough(Arc<BackingId>),
}

struct Handle {
    node: u64,
    use_: Use,
    file: Arc<dyn OpenFile>,
    /// A second open file without `O_APPEND`, for writes at an offset: see
    /// [`Files::get_in_place`].
    in_place: Option<Arc<dyn OpenFile>>,
}

/// The locked table of inodes with open files.
type Inodes<'a> = MutexGuard<'a, HashMap<u64, OpenInode>>;

/// Open files of a mount.
#[derive(Default)]
pub(crate) struct Files {
    handles: RwLock<Slab>,
    inodes: Mutex<HashMap<u64, OpenInode>>,
    /// Signalled when the last open file for writing of some inode was released.
    last_writer_closed: Condvar,
    /// State of the kernel's page cache, for files on the cached path.
    pub(crate) pages: PageCache,
    /// Files whose mode the kernel may not know.
    pub(crate) unsent_modes: UnsentModes,
    /// Files that may change through a shared mapping.
    pub(crate) shared_mappings: SharedMappings,
    /// Cached open files, for a kernel that does not send OPEN. `None` if it sends OPEN.
    pub(crate) open_cache: Option<OpenCache>,
    /// Time of the last warning about a shortage of descriptors.
    warned: Mutex<Option<Instant>>,
    /// Files that must not use passthrough, with callbacks for when none of their open files uses
    /// it.
    stopped: Mutex<HashMap<u64, Vec<Drained>>>,
    /// Whether to bypass the page cache, because data may differ by caller.
    uncached: bool,
    /// Number of GETATTRs that wait until pages are dropped.
    drop_waiters: AtomicUsize,
    /// Whether the layers need FLUSH, the request that the kernel sends for each close(2).
    pub(crate) keep_flush: bool,
}

/// How long an open waits for a writer's RELEASE and for the kernel to drop stale pages.
const OPEN_TIMEOUT: Duration = Duration::from_millis(250);
/// How long a GETATTR waits for the kernel to drop stale pages.
const DROP_TIMEOUT: Duration = Duration::from_millis(5);
/// Maximum number of GETATTRs that wait so at a time.
const MAX_DROP_WAITERS: usize = 4;

/// Minimum time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Handles by number, which is the protocol's `fh`.
#[derive(Default)]
struct Slab {
    slots: Vec<Option<Handle>>,
    free: Vec<usize>,
}

/// How a file was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Created by the same request.
    pub(crate) creates: bool,
    /// Opened for writing.
    pub(crate) writes: bool,
    /// May be mapped writable: opened for reading and writing.
    pub(crate) maps: bool,
    /// Opened with `O_APPEND`.
    pub(crate) appends: bool,
    /// Opened by execve(2).
    pub(crate) executes: bool,
}

impl Use {
    /// Returns the use of a file opened with `flags`.
    pub(crate) fn of(flags: OpenFlags) -> Self {
        let (writes, appends) = (flags.writes(), flags.appends());
        Self { writes, maps: writes && flags.reads(), appends, ..Self::default() }
    }
}

/// A file that was opened and is to be registered.
pub(crate) struct Opening<'a> {
    pub(crate) node: u64,
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) use_: Use,
    /// The file's attributes, for comparison with those of cached pages. `None` if they are not
    /// available, or if the file probably does not use the page cache.
    pub(crate) attr: Option<&'a Attr>,
    /// Whether the thread may block.
    pub(crate) may_block: bool,
}

/// What [`Files`] needs from the server to choose a data path.
pub(crate) trait Kernel {
    /// Registers a host file with the kernel, or returns its existing registration. `None`: no
    /// passthrough.
    fn register(&self, backing: Backing<'_>) -> Option<Arc<BackingId>>;

    /// Whether the node must not be opened any more, because its data moved and another node has
    /// replaced it: see [`crate::successors`].
    fn is_superseded(&self, node: u64) -> bool;
}

/// Whether the file is open for writing.
fn is_written(inodes: &HashMap<u64, OpenInode>, node: u64) -> bool {
    inodes.get(&node).is_some_and(|inode| inode.writers > 0)
}

impl Files {
    fn inodes(&self) -> Inodes<'_> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an open file and returns the reply to OPEN. The first open file of an inode
    /// chooses the data path: passthrough if the layer offers a host file and the kernel accepts
    /// it.
    ///
    /// # Errors
    /// `ESTALE` if the node is superseded; `MAY_BLOCK` if the kernel must drop pages first and this
    /// thread must not wait for that.
    pub(crate) fn add(
        &self,
        opening: Opening<'_>,
        notifier: &Arc<NotificationQueue>,
        kernel: &impl Kernel,
    ) -> Result<OpenOut> {
        let mut out =
            OpenOut { open_flags: if self.keep_flush { 0 } else { fuse::abi::FOPEN_NOFLUSH }, ..OpenOut::default() };
        let (mut inodes, keep_pages) = self.await_valid_pages(&opening, notifier)?;
        let Opening { node, file, use_, .. } = opening;
        if kernel.is_superseded(node) {
            return Err(Errno::STALE);
        }
        let inode = match inodes.entry(node) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(slot) => {
                let backing = if self.is_stopped(node) { None } else { file.backing() };
                let data_path = backing
                    .and_then(|backing| kernel.register(backing))
                    .map_or(DataPath::Cached, DataPath::Passthrough);
                slot.insert(OpenInode::new(data_path, use_.creates))
            }
        };
        let first = inode.opens == 0;
        inode.opens += 1;
        inode.writers += u32::from(use_.writes);
        inode.programs += u32::from(use_.executes);
        match &inode.data_path {
            DataPath::Passthrough(id) => {
                file.bind();
                out.open_flags |= fuse::abi::FOPEN_PASSTHROUGH;
                out.backing_id = id.id();
                if self.is_stopped(node) {
                    // While others use passthrough, this is the only other mode that the kernel
                    // allows: requests for read and write, the host file for mappings.
                    out.open_flags |= fuse::abi::FOPEN_DIRECT_IO;
                }
                if use_.maps {
                    self.shared_mappings.opened(node);
                }
                if first {
                    self.pages.forget(node);
                }
            }
            DataPath::Cached if self.uncached => out.open_flags |= fuse::abi::FOPEN_DIRECT_IO,
            DataPath::Cached if keep_pages => out.open_flags |= fuse::abi::FOPEN_KEEP_CACHE,
            DataPath::Cached => {}
        }
        drop(inodes);
        out.fh = self.insert(Handle { node, use_, file, in_place: None });
        Ok(out)
    }

    /// Waits until the kernel holds no stale pages of a file that is being opened, at most for
    /// [`OPEN_TIMEOUT`]. Returns the lock, which excludes other opens, and whether the kernel may
    /// keep the file's pages.
    fn await_valid_pages(
        &self,
        opening: &Opening<'_>,
        notifier: &Arc<NotificationQueue>,
    ) -> Result<(Inodes<'_>, bool)> {
        let mut deadline = None;
        loop {
            let inodes = self.inodes();
            let found = self.check_pages(&inodes, opening, notifier);
            let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
            let waits =
                matches!(found, PageState::Dropping | PageState::BeingWritten) && !is_over && !opening.use_.creates;
            if !waits {
                // An open must not drop pages while the file may be written: see `page_cache`.
                let keep =
                    matches!(found, PageState::Valid | PageState::BeingWritten) || is_written(&inodes, opening.node);
                return Ok((inodes, keep));
            }
            if !opening.may_block {
                return Err(MAY_BLOCK);
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + OPEN_TIMEOUT);
            if found == PageState::BeingWritten {
                self.wait_for_writers(inodes, opening.node, deadline);
            } else {
                drop(inodes);
                notifier.wait_for_pages(opening.node, deadline);
            }
        }
    }

    /// Returns the state of the pages that the kernel may hold of a file being opened.
    fn check_pages(&self, inodes: &Inodes<'_>, opening: &Opening<'_>, notifier: &Arc<NotificationQueue>) -> PageState {
        let (node, attr) = (opening.node, opening.attr);
        let open = inodes.get(&node);
        let bypasses_cache = open.is_some_and(|inode| matches!(inode.data_path, DataPath::Passthrough(_)));
        if self.uncached || bypasses_cache || (attr.is_none() && !self.pages.any()) {
            return PageState::Unknown;
        }
        if notifier.drops_pages(node) {
            return PageState::Dropping;
        }
        match self.pages.opened(node, attr, is_written(inodes, node), notifier) {
            PageState::BeingWritten if open.is_some_and(|inode| inode.writer_wait_timed_out) => PageState::Valid,
            found => found,
        }
    }

    /// Waits for the last writer's RELEASE, after an out-of-band change of a file that is open for
    /// writing. On timeout, records that a process has the file open for writing, so that later
    /// opens do not wait.
    fn wait_for_writers(&self, inodes: Inodes<'_>, node: u64, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let written = |inodes: &mut HashMap<u64, OpenInode>| is_written(inodes, node);
        let waited = self.last_writer_closed.wait_timeout_while(inodes, left, written);
        let (mut inodes, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out()
            && let Some(inode) = inodes.get_mut(&node)
        {
            inode.writer_wait_timed_out = true;
        }
    }

    /// Handles a move of the node's data to another host file. If open files of the node use
    /// passthrough to the old host file, calls `supersede` while no file can be opened, and returns
    /// true.
    pub(crate) fn supersede(&self, node: u64, supersede: impl FnOnce()) -> bool {
        let inodes = self.inodes();
        let has_passthrough =
            inodes.get(&node).is_some_and(|inode| matches!(inode.data_path, DataPath::Passthrough(_)));
        if has_passthrough {
            supersede();
        }
        has_passthrough
    }

    fn insert(&self, handle: Handle) -> u64 {
        let mut slab = self.handles.write().unwrap_or_else(PoisonError::into_inner);
        let slab = &mut *slab;
        let index = if let Some(index) = slab.free.pop()
            && let Some(slot) = slab.slots.get_mut(index)
        {
            *slot = Some(handle);
            index
        } else {
            slab.slots.push(Some(handle));
            slab.slots.len() - 1
        };
        index as u64
    }

    /// Returns the open file of a handle.
    pub(crate) fn get(&self, fh: u64) -> Result<Arc<dyn OpenFile>> {
        let index = usize::try_from(fh).map_err(|_| Errno::BADF)?;
        let slab = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        slab.slots.get(index).and_then(Option::as_ref).map(|h| Arc::clone(&h.file)).ok_or(Errno::BADF)
    }

    /// Returns an open file for writing at an offset. If the handle's file was opened with
    /// `O_APPEND`, calls `open` to open the file again. Such writes occur because the kernel writes
    /// back mapped pages through any open file of the inode, and because fcntl(2) can clear
    /// `O_APPEND`.
    pub(crate) fn get_in_place(
        &self,
        fh: u64,
        open: impl FnOnce() -> Result<Arc<dyn OpenFile>>,
    ) -> Result<Arc<dyn OpenFile>> {
        let index = usize::try_from(fh).map_err(|_| Errno::BADF)?;
        {
            let slab = self.handles.read().unwrap_or_else(PoisonError::into_inner);
            let handle = slab.slots.get(index).and_then(Option::as_ref).ok_or(Errno::BADF)?;
            let known = if handle.use_.appends { handle.in_place.as_ref() } else { Some(&handle.file) };
            if let Some(file) = known {
                return Ok(Arc::clone(file));
            }
        }
        let file = open()?;
        let mut slab = self.handles.write().unwrap_or_else(PoisonError::into_inner);
        let handle = slab.slots.get_mut(index).and_then(Option::as_mut);
        // Another thread may have opened one meanwhile; either will do.
        let second = handle.and_then(|handle| handle.in_place.replace(Arc::clone(&file)));
        drop(slab);
        drop(second);
        Ok(file)
    }

    /// Releases a handle: the last descriptor of the open file was closed.
    pub(crate) fn release(&self, fh: u64, notifier: &Arc<NotificationQueue>) {
        let Ok(index) = usize::try_from(fh) else { return };
        let handle = {
            let mut slab = self.handles.write().unwrap_or_else(PoisonError::into_inner);
            let Some(handle) = slab.slots.get_mut(index).and_then(Option::take) else { return };
            slab.free.push(index);
            handle
        };
        let mut gone = None;
        if let Slot::Occupied(mut slot) = self.inodes().entry(handle.node) {
            let inode = slot.get_mut();
            inode.opens -= 1;
            inode.writers -= u32::from(handle.use_.writes);
            if handle.use_.writes && inode.writers == 0 {
                inode.writer_wait_timed_out = false;
                if matches!(inode.data_path, DataPath::Cached) {
                    self.pages.last_writer_closed(handle.node, notifier);
                }
                self.last_writer_closed.notify_all();
            }
            inode.programs -= u32::from(handle.use_.executes);
            if handle.use_.maps && matches!(inode.data_path, DataPath::Passthrough(_)) {
                self.shared_mappings.closed(handle.node);
            }
            if inode.opens == 0 {
                gone = Some(slot.remove());
            }
        }
        // Closing the backing id and the file takes system calls, so not under the lock.
        let node = handle.node;
        let was_last = gone.is_some();
        drop((gone, handle));
        if was_last {
            self.drained(node);
        }
    }

    /// Returns an empty table for a mount on which data may differ by caller.
    pub(crate) fn varying() -> Self {
        Self { uncached: true, ..Self::default() }
    }

    fn stopped(&self) -> MutexGuard<'_, HashMap<u64, Vec<Drained>>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self, node: u64) -> bool {
        self.stopped().contains_key(&node)
    }

    /// Denies passthrough to new open files of the node. `drained` is called once no open file of
    /// it uses passthrough.
    pub(crate) fn stop_passthrough(&self, node: u64, drained: Drained) {
        // An open checks `stopped` under this lock.
        let inodes = self.inodes();
        let has_passthrough =
            inodes.get(&node).is_some_and(|inode| matches!(inode.data_path, DataPath::Passthrough(_)));
        let mut stopped = self.stopped();
        let waiting = stopped.entry(node).or_default();
        if has_passthrough {
            waiting.push(drained);
            return;
        }
        drop(stopped);
        drop(inodes);
        drained();
    }

    /// Reverts [`Self::stop_passthrough`] and drops pending callbacks.
    pub(crate) fn allow_passthrough(&self, node: u64) {
        let waiting = self.stopped().remove(&node);
        drop(waiting);
    }

    /// Returns the nodes with open files that use passthrough.
    pub(crate) fn with_passthrough(&self) -> Vec<u64> {
        let inodes = self.inodes();
        inodes
            .iter()
            .filter(|(_, inode)| matches!(inode.data_path, DataPath::Passthrough(_)))
            .map(|(&node, _)| node)
            .collect()
    }

    /// Runs the callbacks after the node's last open file was closed.
    fn drained(&self, node: u64) {
        let waiting = self.stopped().get_mut(&node).map(std::mem::take);
        waiting.into_iter().flatten().for_each(|drained| drained());
    }

    /// Compares attributes that are about to be sent to the kernel with those of the pages in its
    /// cache. Drops the pages if the data was changed out of band. Returns the size to send instead
    /// of the file's own, if it has grown and the pages are not dropped yet.
    #[must_use]
    pub(crate) fn attributes_sent(
        &self,
        node: u64,
        attr: &Attr,
        notifier: &Arc<NotificationQueue>,
    ) -> Option<HeldSize> {
        self.forget_cached_open(node);
        if !self.pages.note_sent_attributes(node, attr, notifier) {
            return None;
        }
        self.unsent_modes.add(node);
        // While this lock is held, the file cannot be opened.
        let inodes = self.inodes();
        let held = self.pages.drop_if_stale(node, attr, is_written(&inodes, node), notifier);
        // Nobody reads the pages of a file that is not open, and an open waits until they are
        // dropped.
        held.filter(|_| inodes.contains_key(&node))
    }

    /// As [`Self::attributes_sent`], but waits a moment if the notification is being sent. Only for
    /// GETATTR: during other requests, the kernel may hold a lock that a notification waits for.
    ///
    /// # Errors
    /// `MAY_BLOCK` if it would have to wait.
    pub(crate) fn attributes_sent_after_drop(
        &self,
        node: u64,
        attr: &Attr,
        may_block: bool,
        notifier: &Arc<NotificationQueue>,
    ) -> Result<Option<HeldSize>> {
        let held = self.attributes_sent(node, attr, notifier);
        if !held.is_some_and(|held| held.is_dropping) {
            return Ok(held);
        }
        if !may_block {
            return Err(MAY_BLOCK);
        }
        // The notification may wait for READs, so most threads must remain free to serve them.
        if self.drop_waiters.fetch_add(1, Ordering::Relaxed) < MAX_DROP_WAITERS {
            notifier.wait_while_dropping_pages(node, Instant::now() + DROP_TIMEOUT);
        }
        self.drop_waiters.fetch_sub(1, Ordering::Relaxed);
        Ok(self.attributes_sent(node, attr, notifier))
    }

    /// Compares the attributes of a file whose data was changed out of band with those of the pages
    /// in the kernel's cache. Drops the pages unless they show the change already.
    pub(crate) fn data_changed_out_of_band(&self, node: u64, attr: &Attr, notifier: &Arc<NotificationQueue>) {
        self.forget_cached_open(node);
        self.unsent_modes.add(node);
        // While this lock is held, the file cannot be opened.
        let inodes = self.inodes();
        self.pages.reported(node, attr, is_written(&inodes, node), notifier);
    }

    /// See [`PageCache::drop_late`].
    pub(crate) fn drop_late(&self, node: u64, notifier: &Arc<NotificationQueue>) {
        let inodes = self.inodes();
        self.pages.drop_late(node, is_written(&inodes, node), notifier);
    }

    /// Drops the cached open file of a node whose pages or attributes are invalidated: later READs
    /// use a newly opened file.
    pub(crate) fn forget_cached_open(&self, node: u64) {
        if let Some(open_cache) = &self.open_cache {
            open_cache.forget(node);
        }
    }

    /// Whether the file is open.
    pub(crate) fn is_open(&self, node: u64) -> bool {
        self.inodes().contains_key(&node)
    }

    /// Whether an open of the file would use the page cache even if the layer offers a host file:
    /// its open files use the cache, or passthrough is stopped.
    pub(crate) fn is_cached(&self, node: u64) -> bool {
        let data_path = self.inodes().get(&node).map(|inode| matches!(inode.data_path, DataPath::Cached));
        data_path.unwrap_or_else(|| self.is_stopped(node))
    }

    /// Whether the file is open for writing.
    pub(crate) fn is_written(&self, node: u64) -> bool {
        is_written(&self.inodes(), node)
    }

    /// Whether the file is a running program.
    pub(crate) fn is_executing(&self, node: u64) -> bool {
        self.inodes().get(&node).is_some_and(|inode| inode.programs > 0)
    }

    /// Whether the inode is known to have no extended attributes.
    pub(crate) fn has_no_xattrs(&self, node: u64) -> bool {
        self.inodes().get(&node).is_some_and(|inode| inode.no_xattrs)
    }

    /// Records that an extended attribute is being set.
    pub(crate) fn xattr_set(&self, node: u64) {
        if let Some(inode) = self.inodes().get_mut(&node) {
            inode.no_xattrs = false;
        }
    }

    /// Whether a warning about a shortage of descriptors is due; records it as issued.
    pub(crate) fn is_time_to_warn(&self) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let due = warned.is_none_or(|at| at.elapsed() > WARNING_INTERVAL);
        if due {
            *warned = Some(Instant::now());
        }
        due
    }

    /// Returns the number of open files and the number of inodes with passthrough.
    pub(crate) fn count(&self) -> (usize, usize) {
        let inodes = self.inodes();
        let open = inodes.values().map(|i| i.opens as usize).sum();
        (open, inodes.values().filter(|i| matches!(i.data_path, DataPath::Passthrough(_))).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Nodes;
    use memfs::MemFs;
    use vnode::{Cx, Layer, Name, Time};

    /// A kernel without passthrough.
    struct Refuses;

    impl Kernel for Refuses {
        fn register(&self, _backing: Backing<'_>) -> Option<Arc<BackingId>> {
            None
        }

        fn is_superseded(&self, node: u64) -> bool {
            node == 99
        }
    }

    fn file() -> Arc<dyn OpenFile> {
        let fs = MemFs::new();
        let name = Name::new(b"f").unwrap();
        fs.root().create(&Cx::internal(0, 0), name, 0o644, OpenFlags::RDWR).unwrap().1
    }

    fn notifier() -> Arc<NotificationQueue> {
        NotificationQueue::new(Arc::new(Nodes::new(MemFs::new().root())))
    }

    fn add(files: &Files, node: u64, use_: Use, attr: Option<&Attr>, may_block: bool) -> Result<OpenOut> {
        files.add(Opening { node, file: file(), use_, attr, may_block }, &notifier(), &Refuses)
    }

    const READS: Use = Use { creates: false, writes: false, maps: false, appends: false, executes: false };
    const WRITES: Use = Use { writes: true, ..READS };

    fn attr(changed: i64) -> Attr {
        let time = Time { sec: changed, nsec: 0 };
        let any = MemFs::new().root().getattr(&Cx::internal(0, 0)).unwrap();
        Attr { ctime: time, mtime: time, ..any }
    }

    #[test]
    fn an_unchanged_file_keeps_its_pages() {
        let attr = attr(1);
        let files = Files::default();
        let out = add(&files, 7, Use::default(), Some(&attr), true).unwrap();
        assert_eq!(out.open_flags, fuse::abi::FOPEN_NOFLUSH);
        let again = add(&files, 7, Use::default(), Some(&attr), true).unwrap();
        assert_eq!(again.open_flags, fuse::abi::FOPEN_NOFLUSH | fuse::abi::FOPEN_KEEP_CACHE);
        files.release(again.fh, &notifier());
        files.release(out.fh, &notifier());
        let out = add(&files, 7, Use::default(), Some(&attr), true).unwrap();
        assert_eq!(out.open_flags, fuse::abi::FOPEN_NOFLUSH | fuse::abi::FOPEN_KEEP_CACHE);
        assert!(files.get(out.fh).is_ok());
        assert_eq!(files.count(), (1, 0));
        files.release(out.fh, &notifier());
        assert!(matches!(files.get(out.fh), Err(Errno::BADF)));
        assert_eq!(files.count(), (0, 0));
        // Releasing a handle twice, or one that never existed, has no effect.
        files.release(out.fh, &notifier());
        files.release(u64::MAX, &notifier());
    }

    #[test]
    fn handles_are_reused_and_inodes_counted() {
        let files = Files { keep_flush: true, ..Files::default() };
        let first = add(&files, 7, Use::default(), None, true).unwrap();
        let second = add(&files, 7, Use::default(), None, true).unwrap();
        assert_ne!(first.fh, second.fh);
        assert_eq!(first.open_flags & fuse::abi::FOPEN_NOFLUSH, 0);
        assert_eq!(files.count(), (2, 0));
        files.release(first.fh, &notifier());
        assert_eq!(add(&files, 8, Use::default(), None, true).unwrap().fh, first.fh);
        assert_eq!(files.count(), (2, 0));
    }

    #[test]
    fn writers_and_programs_are_counted() {
        let files = Files::default();
        let writer = add(&files, 7, Use { writes: true, ..Use::default() }, None, true).unwrap();
        let program = add(&files, 7, Use { executes: true, ..Use::default() }, None, true).unwrap();
        assert!(files.is_written(7) && files.is_executing(7) && !files.is_written(8) && !files.is_executing(8));
        files.release(writer.fh, &notifier());
        assert!(!files.is_written(7) && files.is_executing(7));
        files.release(program.fh, &notifier());
        assert!(!files.is_executing(7));
    }

    #[test]
    fn a_mapping_of_a_cached_file_is_not_tracked() {
        let files = Files::default();
        let out = add(&files, 7, Use::of(OpenFlags::RDWR), None, true).unwrap();
        assert_eq!(files.shared_mappings.opens(7), 0);
        files.release(out.fh, &notifier());
        assert!(!Use::of(OpenFlags::WRONLY).maps && !Use::of(OpenFlags::RDONLY).maps);
    }

    #[test]
    fn a_new_file_has_no_xattrs_until_one_is_set() {
        let files = Files::default();
        let out = add(&files, 7, Use { creates: true, ..Use::default() }, None, true).unwrap();
        assert!(files.has_no_xattrs(7));
        assert!(!files.has_no_xattrs(8));
        files.xattr_set(7);
        assert!(!files.has_no_xattrs(7));
        files.release(out.fh, &notifier());
        let out = add(&files, 7, Use::default(), None, true).unwrap();
        assert!(!files.has_no_xattrs(7));
        files.release(out.fh, &notifier());
    }

    /// A write through this mount.
    fn write(files: &Files, changed: i64) {
        let change = files.pages.begin(7);
        files.pages.end(&change, Some(&attr(changed)));
    }

    const KEEPS: u32 = fuse::abi::FOPEN_NOFLUSH | fuse::abi::FOPEN_KEEP_CACHE;

    #[test]
    fn any_open_drops_pages_after_an_out_of_band_change() {
        let files = Files::default();
        let flags = |changed| add(&files, 7, READS, Some(&attr(changed)), true).unwrap().open_flags;
        assert_eq!((flags(1), flags(1)), (fuse::abi::FOPEN_NOFLUSH, KEEPS));
        // No kernel is attached, so it cannot be notified.
        assert_eq!((flags(2), flags(2)), (fuse::abi::FOPEN_NOFLUSH, KEEPS));
        let unknown = add(&files, 7, READS, None, true).unwrap();
        assert_eq!(unknown.open_flags, fuse::abi::FOPEN_NOFLUSH);
    }

    #[test]
    fn an_open_waits_for_the_release_of_the_last_writer() {
        let files = Files::default();
        let writer = add(&files, 7, WRITES, Some(&attr(1)), true).unwrap();
        write(&files, 1);
        assert!(matches!(add(&files, 7, READS, Some(&attr(2)), false), Err(MAY_BLOCK)));
        assert_eq!(files.count(), (1, 0));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| add(&files, 7, READS, Some(&attr(2)), true).unwrap());
            files.release(writer.fh, &notifier());
            assert_eq!(reader.join().unwrap().open_flags, fuse::abi::FOPEN_NOFLUSH);
        });
    }

    #[test]
    fn with_a_writer_an_open_waits_once_and_keeps_the_pages() {
        let files = Files::default();
        add(&files, 7, WRITES, Some(&attr(1)), true).unwrap();
        write(&files, 1);
        let begun = Instant::now();
        assert_eq!(add(&files, 7, READS, Some(&attr(2)), true).unwrap().open_flags, KEEPS);
        assert!(begun.elapsed() >= OPEN_TIMEOUT);
        assert_eq!(add(&files, 7, READS, Some(&attr(2)), false).unwrap().open_flags, KEEPS);
        assert_eq!(add(&files, 7, READS, Some(&attr(3)), false).unwrap().open_flags, KEEPS);
        assert_eq!(add(&files, 7, READS, None, false).unwrap().open_flags, KEEPS);
    }
}
