//! Open files, and how the data of each open inode travels.
//!
//! The kernel wants one way per inode: while any open file of an inode uses passthrough, all must, with the same
//! backing id; while any uses the page cache of the FUSE inode, none may use passthrough (it answers EIO otherwise). So the way
//! is chosen by the first open file and kept until the last is released. The kernel gives the way up before it
//! sends RELEASE, so this side never believes an inode free that the kernel still holds.

use crate::held::Held;
use crate::mapped::Mapped;
use crate::pages::Pages;
use crate::teller::Teller;
use fuse::BackingId;
use fuse::abi::OpenOut;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use vnode::{Attr, Backing, Drained, Errno, OpenFile, OpenFlags, Result};

/// An inode with open files.
struct OpenInode {
    opens: u32,
    writers: u32,
    /// Open files that are programs being run: execve(2) keeps them open.
    programs: u32,
    way: Way,
    /// Made by this server's CREATE and no extended attribute set since: the kernel's question for
    /// `security.capability` before the first write has a known answer.
    bare: bool,
}

enum Way {
    /// Through the page cache of the FUSE inode and requests.
    Cached,
    /// The kernel has the host file. The id must live until the last RELEASE.
    Passthrough(Arc<BackingId>),
}

struct Handle {
    node: u64,
    use_: Use,
    file: Arc<dyn OpenFile>,
    /// The same file opened once more, if that one appends and something was written in its place.
    in_place: Option<Arc<dyn OpenFile>>,
}

/// The open files of a mount.
#[derive(Default)]
pub(crate) struct Files {
    handles: RwLock<Slab>,
    inodes: Mutex<HashMap<u64, OpenInode>>,
    /// What the kernel may hold of the files that are served through its page cache.
    pub(crate) pages: Pages,
    /// Which may change by way of a mapping.
    pub(crate) mapped: Mapped,
    /// Files that the kernel opens without asking; `None`: it asks.
    pub(crate) held: Option<Held>,
    /// When a shortage of descriptors was last warned of.
    warned: Mutex<Option<Instant>>,
    /// Files that must not get passthrough, with who waits until none of their open files has it.
    stopped: Mutex<HashMap<u64, Vec<Drained>>>,
    /// Different callers may read different data: nothing of it is kept in the page cache.
    uncached: bool,
}

/// Between two warnings of the same shortage.
const WARNING: Duration = Duration::from_secs(60);

/// Handles by number: the `fh` of the protocol.
#[derive(Default)]
struct Slab {
    slots: Vec<Option<Handle>>,
    free: Vec<usize>,
}

/// What a file was opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// It was made by the same request.
    pub(crate) creates: bool,
    /// It may be written.
    pub(crate) writes: bool,
    /// It may be mapped to be written: for that it must be open for reading, too.
    pub(crate) maps: bool,
    /// Whatever is written goes to the end.
    pub(crate) appends: bool,
    /// It is a program to be run.
    pub(crate) executes: bool,
}

impl Use {
    /// Of a file that is opened with `flags`.
    pub(crate) fn of(flags: OpenFlags) -> Self {
        let (writes, appends) = (flags.writes(), flags.appends());
        Self { writes, maps: writes && flags.reads(), appends, ..Self::default() }
    }
}

/// What has to be known, and done, to choose the way of a file's data.
pub(crate) trait Kernel {
    /// Gives a host file to the kernel: under the number that it has already, if it was given it a moment ago. `None`: it
    /// takes none.
    fn register(&self, backing: Backing<'_>) -> Option<Arc<BackingId>>;

    /// Has the node a successor, so that it must not be opened any more?
    fn is_superseded(&self, node: u64) -> bool;
}

impl Files {
    fn inodes(&self) -> MutexGuard<'_, HashMap<u64, OpenInode>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an open file of `node` and chooses the way of its data. Where the kernel takes no
    /// host file, the file is served through the page cache. `attr`: the file's attributes, if it is the first and goes that way.
    pub(crate) fn add(
        &self,
        node: u64,
        file: Arc<dyn OpenFile>,
        use_: Use,
        keep_flush: bool,
        attr: Option<&Attr>,
        kernel: &impl Kernel,
    ) -> Result<OpenOut> {
        let mut open_flags = if keep_flush { 0 } else { fuse::abi::FOPEN_NOFLUSH };
        let mut backing_id = 0;
        {
            let mut inodes = self.inodes();
            if kernel.is_superseded(node) {
                return Err(Errno::STALE);
            }
            let inode = match inodes.entry(node) {
                Slot::Occupied(slot) => slot.into_mut(),
                Slot::Vacant(slot) => {
                    let backing = if self.is_stopped(node) { None } else { file.backing() };
                    let way =
                        backing.and_then(|backing| kernel.register(backing)).map_or(Way::Cached, Way::Passthrough);
                    slot.insert(OpenInode { opens: 0, writers: 0, programs: 0, way, bare: use_.creates })
                }
            };
            let first = inode.opens == 0;
            inode.opens += 1;
            inode.writers += u32::from(use_.writes);
            inode.programs += u32::from(use_.executes);
            match &inode.way {
                Way::Passthrough(id) => {
                    file.bind();
                    open_flags |= fuse::abi::FOPEN_PASSTHROUGH;
                    backing_id = id.id();
                    if self.is_stopped(node) {
                        // The kernel allows no other way beside the first one, but this: requests, with the host
                        // file for mappings only.
                        open_flags |= fuse::abi::FOPEN_DIRECT_IO;
                    }
                    if use_.maps {
                        self.mapped.opened(node);
                    }
                    if first {
                        self.pages.forget(node);
                    }
                }
                Way::Cached if self.uncached => open_flags |= fuse::abi::FOPEN_DIRECT_IO,
                // Where others have the file open, what they write may be on its way: see `pages`.
                Way::Cached if !first || self.pages.first_open(node, attr) => {
                    open_flags |= fuse::abi::FOPEN_KEEP_CACHE;
                }
                Way::Cached => {}
            }
        }
        let fh = self.insert(Handle { node, use_, file, in_place: None });
        Ok(OpenOut { fh, open_flags, backing_id })
    }

    /// The data of a file moved. If open files of the node have passthrough to the old host file, calls `supersede`, before
    /// anybody can open the node again, and answers true.
    pub(crate) fn supersede(&self, node: u64, supersede: impl FnOnce()) -> bool {
        let inodes = self.inodes();
        let has_it = inodes.get(&node).is_some_and(|inode| matches!(inode.way, Way::Passthrough(_)));
        if has_it {
            supersede();
        }
        has_it
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

    /// The open file of a handle.
    pub(crate) fn get(&self, fh: u64) -> Result<Arc<dyn OpenFile>> {
        let index = usize::try_from(fh).map_err(|_| Errno::BADF)?;
        let slab = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        slab.slots.get(index).and_then(Option::as_ref).map(|h| Arc::clone(&h.file)).ok_or(Errno::BADF)
    }

    /// The open file for a write in its place. Where the handle's appends, that is another one, made by `open`: the kernel writes the pages
    /// of mappings through any open file of the inode, and fcntl(2) can take `O_APPEND` away.
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
        // Another thread may have been faster, with one that is as good.
        let second = handle.and_then(|handle| handle.in_place.replace(Arc::clone(&file)));
        drop(slab);
        drop(second);
        Ok(file)
    }

    /// The last descriptor of an open file is gone.
    pub(crate) fn release(&self, fh: u64) {
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
            inode.programs -= u32::from(handle.use_.executes);
            if handle.use_.maps && matches!(inode.way, Way::Passthrough(_)) {
                self.mapped.closed(handle.node);
            }
            if inode.opens == 0 {
                gone = Some(slot.remove());
            }
        }
        // Closing the backing id and the file takes system calls: not under the lock.
        let node = handle.node;
        let was_last = gone.is_some();
        drop((gone, handle));
        if was_last {
            self.drained(node);
        }
    }

    /// The open files of a mount on which callers may read different data.
    pub(crate) fn varying() -> Self {
        Self { uncached: true, ..Self::default() }
    }

    fn stopped(&self) -> MutexGuard<'_, HashMap<u64, Vec<Drained>>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self, node: u64) -> bool {
        self.stopped().contains_key(&node)
    }

    /// From now on no open file of the node gets passthrough. `drained` is called once none has it.
    pub(crate) fn stop_passthrough(&self, node: u64, drained: Drained) {
        // Whoever opens the file holds this lock while it asks.
        let inodes = self.inodes();
        let has_it = inodes.get(&node).is_some_and(|inode| matches!(inode.way, Way::Passthrough(_)));
        let mut stopped = self.stopped();
        let waiting = stopped.entry(node).or_default();
        if has_it {
            waiting.push(drained);
            return;
        }
        drop(stopped);
        drop(inodes);
        drained();
    }

    /// Takes [`Self::stop_passthrough`] back. Whoever still waits is not called.
    pub(crate) fn allow_passthrough(&self, node: u64) {
        let waiting = self.stopped().remove(&node);
        drop(waiting);
    }

    /// The nodes that have open files with passthrough.
    pub(crate) fn with_passthrough(&self) -> Vec<u64> {
        let inodes = self.inodes();
        inodes.iter().filter(|(_, inode)| matches!(inode.way, Way::Passthrough(_))).map(|(&node, _)| node).collect()
    }

    /// The last open file of the node is closed.
    fn drained(&self, node: u64) {
        let waiting = self.stopped().get_mut(&node).map(std::mem::take);
        waiting.into_iter().flatten().for_each(|drained| drained());
    }

    /// The kernel is being told these attributes of a node: if they say that others have changed the file, its pages go.
    pub(crate) fn told(&self, node: u64, attr: &Attr, teller: &Arc<Teller>) {
        self.pages.seen(node, attr, teller);
        self.forget_held(node);
    }

    /// The kernel drops pages of the node, or all it knows of it: what it reads next comes from a file that is opened
    /// after this.
    pub(crate) fn forget_held(&self, node: u64) {
        if let Some(held) = &self.held {
            held.forget(node);
        }
    }

    /// Does anybody have the file open?
    pub(crate) fn is_open(&self, node: u64) -> bool {
        self.inodes().contains_key(&node)
    }

    /// Does anybody have the file open for writing?
    pub(crate) fn is_written(&self, node: u64) -> bool {
        self.inodes().get(&node).is_some_and(|inode| inode.writers > 0)
    }

    /// Is the file a running program?
    pub(crate) fn is_run(&self, node: u64) -> bool {
        self.inodes().get(&node).is_some_and(|inode| inode.programs > 0)
    }

    /// Is it known that this inode has no extended attributes?
    pub(crate) fn is_bare(&self, node: u64) -> bool {
        self.inodes().get(&node).is_some_and(|inode| inode.bare)
    }

    /// An extended attribute is being set.
    pub(crate) fn not_bare(&self, node: u64) {
        if let Some(inode) = self.inodes().get_mut(&node) {
            inode.bare = false;
        }
    }

    /// Has there been no warning of a shortage of descriptors for a while?
    pub(crate) fn is_time_to_warn(&self) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let due = warned.is_none_or(|at| at.elapsed() > WARNING);
        if due {
            *warned = Some(Instant::now());
        }
        due
    }

    /// How many files are open, and how many inodes of them by passthrough.
    pub(crate) fn count(&self) -> (usize, usize) {
        let inodes = self.inodes();
        let open = inodes.values().map(|i| i.opens as usize).sum();
        (open, inodes.values().filter(|i| matches!(i.way, Way::Passthrough(_))).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::{Cx, Layer, Name};

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

    #[test]
    fn a_file_keeps_its_pages_while_it_is_open_and_while_it_is_the_same() {
        let attr = MemFs::new().root().getattr(&Cx::internal(0, 0)).unwrap();
        let files = Files::default();
        let out = files.add(7, file(), Use::default(), false, Some(&attr), &Refuses).unwrap();
        assert_eq!(out.open_flags, fuse::abi::FOPEN_NOFLUSH);
        let again = files.add(7, file(), Use::default(), false, None, &Refuses).unwrap();
        assert_eq!(again.open_flags, fuse::abi::FOPEN_NOFLUSH | fuse::abi::FOPEN_KEEP_CACHE);
        files.release(again.fh);
        files.release(out.fh);
        let out = files.add(7, file(), Use::default(), false, Some(&attr), &Refuses).unwrap();
        assert_eq!(out.open_flags, fuse::abi::FOPEN_NOFLUSH | fuse::abi::FOPEN_KEEP_CACHE);
        assert!(files.get(out.fh).is_ok());
        assert_eq!(files.count(), (1, 0));
        files.release(out.fh);
        assert!(matches!(files.get(out.fh), Err(Errno::BADF)));
        assert_eq!(files.count(), (0, 0));
        // A second release of the same handle, or of none that ever was.
        files.release(out.fh);
        files.release(u64::MAX);
    }

    #[test]
    fn handles_are_used_again_and_inodes_counted() {
        let files = Files::default();
        let first = files.add(7, file(), Use::default(), true, None, &Refuses).unwrap();
        let second = files.add(7, file(), Use::default(), true, None, &Refuses).unwrap();
        assert_ne!(first.fh, second.fh);
        assert_eq!(first.open_flags & fuse::abi::FOPEN_NOFLUSH, 0);
        assert_eq!(files.count(), (2, 0));
        files.release(first.fh);
        assert_eq!(files.add(8, file(), Use::default(), true, None, &Refuses).unwrap().fh, first.fh);
        assert_eq!(files.count(), (2, 0));
    }

    #[test]
    fn writers_and_programs_are_counted() {
        let files = Files::default();
        let writer = files.add(7, file(), Use { writes: true, ..Use::default() }, true, None, &Refuses).unwrap();
        let program = files.add(7, file(), Use { executes: true, ..Use::default() }, true, None, &Refuses).unwrap();
        assert!(files.is_written(7) && files.is_run(7) && !files.is_written(8) && !files.is_run(8));
        files.release(writer.fh);
        assert!(!files.is_written(7) && files.is_run(7));
        files.release(program.fh);
        assert!(!files.is_run(7));
    }

    #[test]
    fn a_mapping_of_a_file_in_the_page_cache_is_seen() {
        let files = Files::default();
        let out = files.add(7, file(), Use::of(OpenFlags::RDWR), true, None, &Refuses).unwrap();
        assert_eq!(files.mapped.opens(7), 0);
        files.release(out.fh);
        assert!(!Use::of(OpenFlags::WRONLY).maps && !Use::of(OpenFlags::RDONLY).maps);
    }

    #[test]
    fn a_new_file_is_known_to_be_bare_until_an_attribute_is_set() {
        let files = Files::default();
        let out = files.add(7, file(), Use { creates: true, ..Use::default() }, false, None, &Refuses).unwrap();
        assert!(files.is_bare(7));
        assert!(!files.is_bare(8));
        files.not_bare(7);
        assert!(!files.is_bare(7));
        files.release(out.fh);
        let out = files.add(7, file(), Use::default(), false, None, &Refuses).unwrap();
        assert!(!files.is_bare(7));
        files.release(out.fh);
    }
}
