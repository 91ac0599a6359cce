//! Open files, and how the data of each open inode travels.
//!
//! The kernel wants one way per inode: while any open file of an inode uses passthrough, all must, with the same
//! backing id; while any uses the page cache of the FUSE inode, none may use passthrough (it answers EIO otherwise). So the way
//! is chosen by the first open file and kept until the last is released. The kernel gives the way up before it
//! sends RELEASE, so this side never believes an inode free that the kernel still holds.

use crate::held::Held;
use crate::mapped::Mapped;
use crate::pages::{Cached, Pages};
use crate::teller::Teller;
use fuse::BackingId;
use fuse::abi::OpenOut;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use vnode::{Attr, Backing, Drained, Errno, MAY_BLOCK, OpenFile, OpenFlags, Result};

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
    /// An open has waited in vain for the RELEASE of the last writer: there really is one.
    has_writer: bool,
}

impl OpenInode {
    fn new(way: Way, bare: bool) -> Self {
        Self { opens: 0, writers: 0, programs: 0, way, bare, has_writer: false }
    }
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

/// The inodes with open files, locked.
type Inodes<'a> = MutexGuard<'a, HashMap<u64, OpenInode>>;

/// The open files of a mount.
#[derive(Default)]
pub(crate) struct Files {
    handles: RwLock<Slab>,
    inodes: Mutex<HashMap<u64, OpenInode>>,
    /// The last open file for writing of some inode was released.
    unwritten: Condvar,
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
    /// The layers want to know of each close(2).
    pub(crate) keep_flush: bool,
}

/// How long an open waits until the kernel has dropped outdated pages, and before that for the RELEASE of a writer.
const PATIENCE: Duration = Duration::from_millis(50);

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

/// A file that was opened, and is to be taken in.
pub(crate) struct Opening<'a> {
    pub(crate) node: u64,
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) use_: Use,
    /// The file's attributes, if its data is likely to go through the page cache.
    pub(crate) attr: Option<&'a Attr>,
    /// The thread may be kept.
    pub(crate) may_block: bool,
}

/// What has to be known, and done, to choose the way of a file's data.
pub(crate) trait Kernel {
    /// Gives a host file to the kernel: under the number that it has already, if it was given it a moment ago. `None`: it
    /// takes none.
    fn register(&self, backing: Backing<'_>) -> Option<Arc<BackingId>>;

    /// Has the node a successor, so that it must not be opened any more?
    fn is_superseded(&self, node: u64) -> bool;
}

/// Does anybody have the file open for writing?
fn is_written(inodes: &HashMap<u64, OpenInode>, node: u64) -> bool {
    inodes.get(&node).is_some_and(|inode| inode.writers > 0)
}

impl Files {
    fn inodes(&self) -> Inodes<'_> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an open file and chooses the way of its data. Where the kernel takes no host file, the file is served
    /// through the page cache.
    ///
    /// # Errors
    /// `ESTALE` where the node has a successor; `MAY_BLOCK` where the kernel must drop pages first.
    pub(crate) fn add(&self, opening: Opening<'_>, teller: &Arc<Teller>, kernel: &impl Kernel) -> Result<OpenOut> {
        let mut out =
            OpenOut { open_flags: if self.keep_flush { 0 } else { fuse::abi::FOPEN_NOFLUSH }, ..OpenOut::default() };
        let (mut inodes, keep_pages) = self.settled(&opening, teller)?;
        let Opening { node, file, use_, .. } = opening;
        if kernel.is_superseded(node) {
            return Err(Errno::STALE);
        }
        let inode = match inodes.entry(node) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(slot) => {
                let backing = if self.is_stopped(node) { None } else { file.backing() };
                let way = backing.and_then(|backing| kernel.register(backing)).map_or(Way::Cached, Way::Passthrough);
                slot.insert(OpenInode::new(way, use_.creates))
            }
        };
        let first = inode.opens == 0;
        inode.opens += 1;
        inode.writers += u32::from(use_.writes);
        inode.programs += u32::from(use_.executes);
        match &inode.way {
            Way::Passthrough(id) => {
                file.bind();
                out.open_flags |= fuse::abi::FOPEN_PASSTHROUGH;
                out.backing_id = id.id();
                if self.is_stopped(node) {
                    // The kernel allows no other way beside the first one, but this: requests, with the host
                    // file for mappings only.
                    out.open_flags |= fuse::abi::FOPEN_DIRECT_IO;
                }
                if use_.maps {
                    self.mapped.opened(node);
                }
                if first {
                    self.pages.forget(node);
                }
            }
            Way::Cached if self.uncached => out.open_flags |= fuse::abi::FOPEN_DIRECT_IO,
            Way::Cached if keep_pages => out.open_flags |= fuse::abi::FOPEN_KEEP_CACHE,
            Way::Cached => {}
        }
        drop(inodes);
        out.fh = self.insert(Handle { node, use_, file, in_place: None });
        Ok(out)
    }

    /// Waits until the kernel holds no outdated pages of a file that is opened. Answers the lock, under which nobody else
    /// opens the file, and whether the kernel may keep what it holds.
    fn settled(&self, opening: &Opening<'_>, teller: &Arc<Teller>) -> Result<(Inodes<'_>, bool)> {
        let mut deadline = None;
        loop {
            let inodes = self.inodes();
            let found = self.find_pages(&inodes, opening, teller);
            let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
            let waits = matches!(found, Cached::Going | Cached::Written) && !is_over && !opening.use_.creates;
            if !waits {
                // An open must not drop pages while somebody may be writing: see `pages`.
                let keep = matches!(found, Cached::Right | Cached::Written) || is_written(&inodes, opening.node);
                return Ok((inodes, keep));
            }
            if !opening.may_block {
                return Err(MAY_BLOCK);
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
            if found == Cached::Written {
                self.wait_for_writers(inodes, opening.node, deadline);
            } else {
                drop(inodes);
                teller.wait_for_pages(opening.node, deadline);
            }
        }
    }

    /// What is to be made of the pages that the kernel may hold of a file that is opened?
    fn find_pages(&self, inodes: &Inodes<'_>, opening: &Opening<'_>, teller: &Arc<Teller>) -> Cached {
        let (node, attr) = (opening.node, opening.attr);
        let open = inodes.get(&node);
        let goes_past = open.is_some_and(|inode| matches!(inode.way, Way::Passthrough(_)));
        if self.uncached || goes_past || (attr.is_none() && !self.pages.any()) {
            return Cached::Unknown;
        }
        if teller.drops_pages(node) {
            return Cached::Going;
        }
        match self.pages.opened(node, attr, is_written(inodes, node), teller) {
            Cached::Written if open.is_some_and(|inode| inode.has_writer) => Cached::Right,
            found => found,
        }
    }

    /// A file has changed out of band that is open for writing, unless the RELEASE of its last writer is on its way. Waits
    /// for that, and if it does not come, notes that it is not to be waited for again.
    fn wait_for_writers(&self, inodes: Inodes<'_>, node: u64, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let written = |inodes: &mut HashMap<u64, OpenInode>| is_written(inodes, node);
        let waited = self.unwritten.wait_timeout_while(inodes, left, written);
        let (mut inodes, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out()
            && let Some(inode) = inodes.get_mut(&node)
        {
            inode.has_writer = true;
        }
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
    pub(crate) fn release(&self, fh: u64, teller: &Arc<Teller>) {
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
                inode.has_writer = false;
                if matches!(inode.way, Way::Cached) {
                    self.pages.unwritten(handle.node, teller);
                }
                self.unwritten.notify_all();
            }
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
        if self.pages.is_news(node, attr) {
            // Under the lock, under which nobody opens the file.
            let inodes = self.inodes();
            self.pages.seen(node, attr, is_written(&inodes, node), teller);
        }
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

    /// Does the data of a file go through the page cache although the kernel could have its host file?
    pub(crate) fn is_cached(&self, node: u64) -> bool {
        let way = self.inodes().get(&node).map(|inode| matches!(inode.way, Way::Cached));
        way.unwrap_or_else(|| self.is_stopped(node))
    }

    /// Does anybody have the file open for writing?
    pub(crate) fn is_written(&self, node: u64) -> bool {
        is_written(&self.inodes(), node)
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

    fn teller() -> Arc<Teller> {
        Teller::new(Arc::new(Nodes::new(MemFs::new().root())))
    }

    fn add(files: &Files, node: u64, use_: Use, attr: Option<&Attr>, may_block: bool) -> Result<OpenOut> {
        files.add(Opening { node, file: file(), use_, attr, may_block }, &teller(), &Refuses)
    }

    const READS: Use = Use { creates: false, writes: false, maps: false, appends: false, executes: false };
    const WRITES: Use = Use { writes: true, ..READS };

    fn attr(changed: i64) -> Attr {
        let time = Time { sec: changed, nsec: 0 };
        let any = MemFs::new().root().getattr(&Cx::internal(0, 0)).unwrap();
        Attr { ctime: time, mtime: time, ..any }
    }

    #[test]
    fn a_file_keeps_its_pages_while_it_is_open_and_while_it_is_the_same() {
        let attr = attr(1);
        let files = Files::default();
        let out = add(&files, 7, Use::default(), Some(&attr), true).unwrap();
        assert_eq!(out.open_flags, fuse::abi::FOPEN_NOFLUSH);
        let again = add(&files, 7, Use::default(), Some(&attr), true).unwrap();
        assert_eq!(again.open_flags, fuse::abi::FOPEN_NOFLUSH | fuse::abi::FOPEN_KEEP_CACHE);
        files.release(again.fh, &teller());
        files.release(out.fh, &teller());
        let out = add(&files, 7, Use::default(), Some(&attr), true).unwrap();
        assert_eq!(out.open_flags, fuse::abi::FOPEN_NOFLUSH | fuse::abi::FOPEN_KEEP_CACHE);
        assert!(files.get(out.fh).is_ok());
        assert_eq!(files.count(), (1, 0));
        files.release(out.fh, &teller());
        assert!(matches!(files.get(out.fh), Err(Errno::BADF)));
        assert_eq!(files.count(), (0, 0));
        // A second release of the same handle, or of none that ever was.
        files.release(out.fh, &teller());
        files.release(u64::MAX, &teller());
    }

    #[test]
    fn handles_are_used_again_and_inodes_counted() {
        let files = Files { keep_flush: true, ..Files::default() };
        let first = add(&files, 7, Use::default(), None, true).unwrap();
        let second = add(&files, 7, Use::default(), None, true).unwrap();
        assert_ne!(first.fh, second.fh);
        assert_eq!(first.open_flags & fuse::abi::FOPEN_NOFLUSH, 0);
        assert_eq!(files.count(), (2, 0));
        files.release(first.fh, &teller());
        assert_eq!(add(&files, 8, Use::default(), None, true).unwrap().fh, first.fh);
        assert_eq!(files.count(), (2, 0));
    }

    #[test]
    fn writers_and_programs_are_counted() {
        let files = Files::default();
        let writer = add(&files, 7, Use { writes: true, ..Use::default() }, None, true).unwrap();
        let program = add(&files, 7, Use { executes: true, ..Use::default() }, None, true).unwrap();
        assert!(files.is_written(7) && files.is_run(7) && !files.is_written(8) && !files.is_run(8));
        files.release(writer.fh, &teller());
        assert!(!files.is_written(7) && files.is_run(7));
        files.release(program.fh, &teller());
        assert!(!files.is_run(7));
    }

    #[test]
    fn a_mapping_of_a_file_in_the_page_cache_is_seen() {
        let files = Files::default();
        let out = add(&files, 7, Use::of(OpenFlags::RDWR), None, true).unwrap();
        assert_eq!(files.mapped.opens(7), 0);
        files.release(out.fh, &teller());
        assert!(!Use::of(OpenFlags::WRONLY).maps && !Use::of(OpenFlags::RDONLY).maps);
    }

    #[test]
    fn a_new_file_is_known_to_be_bare_until_an_attribute_is_set() {
        let files = Files::default();
        let out = add(&files, 7, Use { creates: true, ..Use::default() }, None, true).unwrap();
        assert!(files.is_bare(7));
        assert!(!files.is_bare(8));
        files.not_bare(7);
        assert!(!files.is_bare(7));
        files.release(out.fh, &teller());
        let out = add(&files, 7, Use::default(), None, true).unwrap();
        assert!(!files.is_bare(7));
        files.release(out.fh, &teller());
    }

    /// Somebody writes.
    fn write(files: &Files, changed: i64) {
        let change = files.pages.begin(7);
        files.pages.end(&change, Some(&attr(changed)));
    }

    const KEEPS: u32 = fuse::abi::FOPEN_NOFLUSH | fuse::abi::FOPEN_KEEP_CACHE;

    #[test]
    fn pages_of_a_file_that_others_have_changed_go_at_any_open() {
        let files = Files::default();
        let flags = |changed| add(&files, 7, READS, Some(&attr(changed)), true).unwrap().open_flags;
        assert_eq!((flags(1), flags(1)), (fuse::abi::FOPEN_NOFLUSH, KEEPS));
        // This kernel can't be told in advance.
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
            files.release(writer.fh, &teller());
            assert_eq!(reader.join().unwrap().open_flags, fuse::abi::FOPEN_NOFLUSH);
        });
    }

    #[test]
    fn where_there_is_a_writer_a_change_is_waited_for_once_and_no_pages_go() {
        let files = Files::default();
        add(&files, 7, WRITES, Some(&attr(1)), true).unwrap();
        write(&files, 1);
        let begun = Instant::now();
        assert_eq!(add(&files, 7, READS, Some(&attr(2)), true).unwrap().open_flags, KEEPS);
        assert!(begun.elapsed() >= PATIENCE);
        assert_eq!(add(&files, 7, READS, Some(&attr(2)), false).unwrap().open_flags, KEEPS);
        assert_eq!(add(&files, 7, READS, Some(&attr(3)), false).unwrap().open_flags, KEEPS);
        assert_eq!(add(&files, 7, READS, None, false).unwrap().open_flags, KEEPS);
    }
}
