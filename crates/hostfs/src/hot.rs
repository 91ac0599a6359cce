//! A cache of descriptors of *hot* files: files that were used at least twice recently. It keeps a
//! hot file's descriptor open for one to two seconds after each use, together with the
//! [`vnode::Registration`] that the FUSE server stored for the file. The next use then neither
//! opens the file nor registers it with the kernel.
//!
//! The first use of a file does not add it to the cache, so reading a tree once costs nothing
//! extra. Users must not notice that a descriptor is kept open:
//!
//! * **An open for writing or truncation always reaches the host**, because the host may refuse it
//!   (immutable file, running program, file system remounted read-only). Only the registration is
//!   reused. A kept descriptor is open for reading at most.
//! * **A removed file releases its space**: an entry is dropped when its file is removed or
//!   replaced through this layer, when the file system is full, when the vnode is dropped, and
//!   after one to two seconds without use. If the file was removed out of band, the next use finds
//!   that its link count is 0. It then drops the entry and reopens the file by its handle, if
//!   possible.
//! * **Descriptors are bounded**: there are at most [`MAX_ENTRIES`] entries, and all caches
//!   together keep to their share of the process's descriptors ([`crate::descriptors`]).

use crate::descriptors::{Budget, Kept};
use crate::layer::statx_fd;
use crate::opened::Descriptor;
use crate::vnode_impl::HostVnode;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, Statx};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vnode::{Kind, NumberMap, Registration};

/// Maximum number of kept files.
const MAX_ENTRIES: usize = 1024;
const SHARDS: usize = 16;
/// Number of recently used files that are remembered, to distinguish a second use from a first.
const RECENT_USES: usize = 512;
/// An entry is dropped when it was not used for one to two of these intervals.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// An entry of the cache: a descriptor that is kept open.
#[derive(Debug)]
pub(crate) struct Hot {
    /// Declared, and so dropped, before the descriptor, because it refers to the same host file.
    registration: Registration,
    descriptor: Arc<Descriptor>,
    /// The open flags; `None` for an `O_PATH` reference.
    flags: Option<OFlags>,
    /// The address of the vnode. A vnode at another address with the same number is another object.
    owner: usize,
    /// Value of [`Inner::clock`] at the last use.
    used: AtomicU32,
    /// Counts the descriptor against the budget.
    _kept: Kept,
}

impl Hot {
    /// Whether this descriptor can serve an open with `flags`.
    pub(crate) fn serves(&self, flags: OFlags) -> bool {
        self.flags == Some(flags)
    }

    /// Whether the descriptor is open for reading, which is also needed to read extended
    /// attributes.
    pub(crate) fn is_readable(&self) -> bool {
        self.flags.is_some()
    }

    pub(crate) fn descriptor(&self) -> &Arc<Descriptor> {
        &self.descriptor
    }

    pub(crate) fn registration(&self) -> &Registration {
        &self.registration
    }
}

impl AsFd for Hot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[derive(Debug, Default)]
struct Shard {
    entries: NumberMap<Arc<Hot>>,
    /// Number of calls of [`HotFiles::remove`]. If it changes while a file is being opened, the
    /// descriptor is not kept: that file may have been removed.
    removed: u64,
}

#[derive(Debug)]
struct Inner {
    shards: [Mutex<Shard>; SHARDS],
    /// Number of entries in all shards.
    count: AtomicUsize,
    /// Number of sweeps.
    clock: AtomicU32,
    /// Whether the sweeper thread, which drops unused entries, is running.
    sweeper_running: Mutex<bool>,
}

/// A kind of use of a file, for [`HotFiles::is_repeated`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    Open,
    Attributes,
}

/// The value of [`Shard::removed`] before a file was opened: see [`HotFiles::stamp`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp(u64);

/// The kept files.
#[derive(Debug)]
pub(crate) struct HotFiles {
    inner: Arc<Inner>,
    /// The numbers of recently used files, each at the slot that its number selects; one table for
    /// each [`Use`].
    last: [Box<[AtomicU64]>; 2],
    budget: Arc<Budget>,
}

impl Inner {
    fn shard(&self, number: u64) -> MutexGuard<'_, Shard> {
        let index = (number ^ (number >> 9)) as usize % SHARDS;
        // The index is always in range; the first shard avoids a panic path.
        self.shards.get(index).unwrap_or(&self.shards[0]).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sweeper_running(&self) -> MutexGuard<'_, bool> {
        self.sweeper_running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the entries that `expired` selects. The caller drops them without holding a lock.
    fn take(&self, mut expired: impl FnMut(&Hot) -> bool) -> Vec<Arc<Hot>> {
        let mut dropped = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            dropped.extend(shard.entries.extract_if(|_, hot| expired(hot)).map(|(_, hot)| hot));
        }
        self.count.fetch_sub(dropped.len(), Ordering::Relaxed);
        dropped
    }

    /// Drops the entries that were not used since the previous sweep. Returns whether any are left.
    fn sweep(&self) -> bool {
        let before = self.clock.fetch_add(1, Ordering::Relaxed);
        drop(self.take(|hot| before.wrapping_sub(hot.used.load(Ordering::Relaxed)) >= 1));
        let mut sweeper_running = self.sweeper_running();
        *sweeper_running = self.count.load(Ordering::Relaxed) > 0;
        *sweeper_running
    }
}

impl HotFiles {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let inner = Inner {
            shards: Default::default(),
            count: AtomicUsize::new(0),
            clock: AtomicU32::new(0),
            sweeper_running: Mutex::new(false),
        };
        let last = || (0..RECENT_USES).map(|_| AtomicU64::new(0)).collect();
        Self { inner: Arc::new(inner), last: [last(), last()], budget }
    }

    /// Records a use of the file and returns whether it was used recently before.
    pub(crate) fn is_repeated(&self, use_: Use, number: u64) -> bool {
        let last = &self.last[use_ as usize];
        let place = last.get((number ^ (number >> 9)) as usize % RECENT_USES);
        place.is_some_and(|place| {
            place.load(Ordering::Relaxed) == number || place.swap(number, Ordering::Relaxed) == number
        })
    }

    /// Returns a stamp, to be taken before opening a file that is to be kept.
    pub(crate) fn stamp(&self, number: u64) -> Stamp {
        Stamp(self.inner.shard(number).removed)
    }

    fn get(&self, vnode: &HostVnode) -> Option<Arc<Hot>> {
        if self.inner.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let shard = self.inner.shard(vnode.number());
        let hot = shard.entries.get(&vnode.number()).filter(|hot| hot.owner == address(vnode))?;
        hot.used.store(self.inner.clock.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(Arc::clone(hot))
    }

    /// Keeps a descriptor of `vnode`, unless a file of its shard was removed since `stamp`. If
    /// there are too many descriptors, evicts the shard's least recently used entry, or keeps
    /// nothing if there is none. `flags` are the open flags, or `None` for an `O_PATH` reference.
    fn insert(
        &self,
        vnode: &HostVnode,
        descriptor: Arc<Descriptor>,
        flags: Option<OFlags>,
        stamp: Stamp,
    ) -> Option<Arc<Hot>> {
        let (kept, room) = self.budget.keep();
        let mut shard = self.inner.shard(vnode.number());
        if shard.removed != stamp.0 {
            return None;
        }
        let full = !room || shard.entries.len() >= MAX_ENTRIES / SHARDS;
        let oldest = if full && !shard.entries.contains_key(&vnode.number()) {
            let clock = self.inner.clock.load(Ordering::Relaxed);
            let age = |hot: &Hot| clock.wrapping_sub(hot.used.load(Ordering::Relaxed));
            // Without an entry to evict, the descriptor is not kept.
            Some(shard.entries.iter().max_by_key(|(_, hot)| age(hot)).map(|(&number, _)| number)?)
        } else {
            None
        };
        let hot = Arc::new(Hot {
            registration: Registration::default(),
            descriptor,
            flags,
            owner: address(vnode),
            used: AtomicU32::new(self.inner.clock.load(Ordering::Relaxed)),
            _kept: kept,
        });
        let dropped = [
            oldest.and_then(|oldest| shard.entries.remove(&oldest)),
            shard.entries.insert(vnode.number(), Arc::clone(&hot)),
        ];
        let more = 1 - dropped.iter().flatten().count().cast_signed();
        drop(shard);
        self.inner.count.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
        drop(dropped);
        self.start_sweeping();
        Some(hot)
    }

    fn start_sweeping(&self) {
        let mut sweeper_running = self.inner.sweeper_running();
        if *sweeper_running {
            return;
        }
        let inner = Arc::downgrade(&self.inner);
        let started = std::thread::Builder::new().name("hot-files".into()).spawn(move || {
            loop {
                std::thread::sleep(SWEEP_INTERVAL);
                if !inner.upgrade().is_some_and(|inner| inner.sweep()) {
                    return;
                }
            }
        });
        *sweeper_running = started.is_ok();
        drop(sweeper_running);
        if started.is_err() {
            // Without the thread, nothing would close unused descriptors.
            self.clear();
        }
    }

    /// Drops the entry of a file that is removed or replaced, or whose vnode is dropped.
    pub(crate) fn remove(&self, number: u64) {
        let mut shard = self.inner.shard(number);
        shard.removed += 1;
        let dropped = shard.entries.remove(&number);
        drop(shard);
        if dropped.is_some() {
            self.inner.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether there are no entries, so that [`Self::remove`] has nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.count.load(Ordering::Relaxed) == 0
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        drop(self.inner.take(|_| true));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.inner.count.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn sweep(&self) {
        self.inner.sweep();
    }
}

fn address(vnode: &HostVnode) -> usize {
    std::ptr::from_ref(vnode).addr()
}

impl HostVnode {
    /// Returns the cache, if this vnode may have an entry in it.
    pub(crate) fn hot_files(&self) -> Option<&HotFiles> {
        let kept = self.fs().hot.as_ref()?;
        (self.object_kind() == Kind::Regular && !self.is_pinned()).then_some(kept)
    }

    /// Drops the cache entry of this object.
    pub(crate) fn drop_kept(&self) {
        if let Some(files) = self.fs().hot.as_ref().filter(|_| self.object_kind() == Kind::Regular) {
            files.remove(self.number());
        }
    }

    /// Returns the kept descriptor of this file, and the file's attributes. Drops the entry if the
    /// file was removed out of band.
    pub(crate) fn hot(&self) -> Option<(Arc<Hot>, Statx)> {
        let files = self.hot_files()?;
        let hot = files.get(self)?;
        match statx_fd(&*hot) {
            Ok(stat) if stat.stx_nlink > 0 => Some((hot, stat)),
            _ => {
                files.remove(self.number());
                None
            }
        }
    }

    /// Keeps an `O_PATH` reference that was opened after `stamp`, for the next getattr.
    pub(crate) fn keep_reference(&self, fd: OwnedFd, stamp: Stamp) {
        if let Some(files) = self.hot_files() {
            files.insert(self, Descriptor::new(fd), None, stamp);
        }
    }

    /// Keeps a descriptor that was opened for reading, with `flags` and after `stamp`.
    pub(crate) fn keep_open(&self, descriptor: &Arc<Descriptor>, flags: OFlags, stamp: Stamp) -> Option<Arc<Hot>> {
        self.hot_files()?.insert(self, Arc::clone(descriptor), Some(flags), stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostFs, HostOptions};
    use core::sync::atomic::AtomicBool;
    use rustix::fd::AsRawFd;
    use testkit::TempDir;
    use vnode::{Cx, Entry, Errno, Layer, Name, OpenFile, OpenFlags, RenameFlags};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn caller(uid: u32) -> Cx<'static> {
        Cx::new(uid, uid, 1, 0, true, &NEVER)
    }

    /// A directory with a file `f` that was used once.
    struct Scratch {
        path: TempDir,
        fs: Arc<HostFs>,
        file: Entry,
    }

    impl Scratch {
        fn new() -> Self {
            let path = TempDir::new();
            std::fs::write(path.join("f"), "text").unwrap();
            let fs = HostFs::open(&path, HostOptions::default()).unwrap();
            assert!(fs.uses_handles(), "the tests need root");
            let file = fs.root().lookup(&caller(0), name("f")).unwrap().unwrap();
            let scratch = Self { path, fs, file };
            scratch.stat().unwrap();
            scratch.open(0, OpenFlags::RDONLY);
            assert_eq!(scratch.kept(), 0, "kept after the first use");
            scratch
        }

        fn stat(&self) -> vnode::Result<vnode::Attr> {
            self.file.vnode.getattr(&caller(0))
        }

        fn open(&self, uid: u32, flags: OpenFlags) -> Arc<dyn OpenFile> {
            self.file.vnode.open(&caller(uid), flags).unwrap()
        }

        fn files(&self) -> &HotFiles {
            self.fs.shared().hot.as_ref().unwrap()
        }

        fn kept(&self) -> usize {
            self.files().len()
        }
    }

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    fn number_of(file: &Arc<dyn OpenFile>) -> i32 {
        file.backing().unwrap().file.as_raw_fd()
    }

    #[test]
    fn a_file_read_twice_is_opened_once() {
        let scratch = Scratch::new();
        let second = scratch.open(7, OpenFlags::RDONLY);
        let number = number_of(&second);
        drop(second);
        assert_eq!(scratch.kept(), 1);
        // Any user can use it; here two users have it open at once.
        let (third, fourth) = (scratch.open(7, OpenFlags::RDONLY), scratch.open(8, OpenFlags::RDONLY));
        assert_eq!((number_of(&third), number_of(&fourth)), (number, number));
        let mut bytes = [0; 8];
        assert_eq!(third.read(&caller(7), &mut bytes, 1), Ok(3));
        assert_eq!(scratch.stat().unwrap().size, 4);
        assert_eq!(scratch.kept(), 1);
    }

    #[test]
    fn a_readable_descriptor_replaces_the_reference_kept_by_getattr() {
        let scratch = Scratch::new();
        scratch.stat().unwrap();
        assert_eq!(scratch.kept(), 1);
        assert!(!scratch.fs.shared().table.get(scratch.file.vnode.id()).unwrap().hot().unwrap().0.is_readable());
        std::fs::write(scratch.path.join("f"), "longer text").unwrap();
        assert_eq!(scratch.stat().unwrap().size, 11);
        let file = scratch.open(7, OpenFlags::RDONLY);
        let again = scratch.open(7, OpenFlags::RDONLY);
        assert_eq!((number_of(&file), scratch.kept()), (number_of(&again), 1));
        let mut value = [0; 8];
        assert_eq!(scratch.file.vnode.getxattr(&caller(0), b"user.none", &mut value), Err(Errno::NODATA));
    }

    #[test]
    fn writers_open_the_host_file_and_kept_descriptors_are_read_only() {
        let scratch = Scratch::new();
        let writer = scratch.open(7, OpenFlags::WRONLY);
        let kept = writer.backing().unwrap().cached.unwrap();
        kept.registration.set(Arc::new(7_u32));
        assert_ne!(kept.file.as_raw_fd(), number_of(&writer));
        assert_eq!(rustix::io::write(kept.file, b"lost"), Err(Errno::BADF));
        writer.write(&caller(7), b"TEXT", 0).unwrap();
        drop(writer);
        // Later opens find the registration, whether they read or write.
        for flags in [OpenFlags::RDONLY, OpenFlags::WRONLY, OpenFlags::RDWR] {
            let file = scratch.open(8, flags);
            let kept = file.backing().unwrap().cached.unwrap();
            assert_eq!(kept.registration.get::<u32>(|_| true).as_deref(), Some(&7));
        }
        // The host refuses to open a running program for writing, although it is kept.
        std::fs::copy("/bin/sleep", scratch.path.join("program")).unwrap();
        let program = scratch.fs.root().lookup(&caller(0), name("program")).unwrap().unwrap().vnode;
        for _ in 0..3 {
            program.open(&caller(0), OpenFlags::WRONLY).unwrap();
        }
        let mut running = std::process::Command::new(scratch.path.join("program")).arg("60").spawn().unwrap();
        assert_eq!(program.open(&caller(0), OpenFlags::WRONLY).map(drop), Err(Errno::TXTBSY));
        assert!(program.open(&caller(0), OpenFlags::RDONLY).is_ok());
        running.kill().unwrap();
        running.wait().unwrap();
    }

    #[test]
    fn removed_and_replaced_files_are_dropped() {
        let scratch = Scratch::new();
        let root = scratch.fs.root();
        let warm = |text: &str| {
            let vnode = root.lookup(&caller(0), name(text)).unwrap().unwrap().vnode;
            (0..3).for_each(|_| drop(vnode.open(&caller(0), OpenFlags::RDONLY).unwrap()));
            vnode
        };
        let first = warm("f");
        assert_eq!(scratch.kept(), 1);
        root.unlink(&caller(0), name("f")).unwrap();
        assert_eq!(scratch.kept(), 0);
        assert_eq!(first.getattr(&caller(0)).unwrap().nlink, 0, "its vnode is held");
        (0..3).for_each(|_| drop(first.open(&caller(0), OpenFlags::RDONLY).unwrap()));
        assert_eq!(scratch.kept(), 0, "an unnamed file was kept");

        ["a", "b", "c"].iter().for_each(|name| std::fs::write(scratch.path.join(name), "text").unwrap());
        let held = [warm("a"), warm("b"), warm("c")];
        assert_eq!(scratch.kept(), 3);
        root.rename(&caller(0), name("a"), &root, name("b"), RenameFlags::default()).unwrap();
        assert_eq!(scratch.kept(), 2, "b was replaced");
        scratch.fs.shared().with_room(|| Err::<(), _>(Errno::NOSPC)).unwrap_err();
        assert_eq!(scratch.kept(), 0, "no space left");
        drop(held);
        drop(warm("c"));
        assert_eq!(scratch.kept(), 0, "its vnode was dropped");
    }

    #[test]
    fn files_removed_out_of_band_are_stale() {
        let scratch = Scratch::new();
        let vnode = &scratch.file.vnode;
        drop(scratch.open(0, OpenFlags::RDONLY));
        let open = scratch.open(0, OpenFlags::RDONLY);
        assert_eq!(scratch.kept(), 1);
        std::fs::remove_file(scratch.path.join("f")).unwrap();
        assert_eq!(scratch.stat().unwrap().nlink, 0, "still open");
        assert_eq!(scratch.kept(), 0);
        drop(open);
        assert_eq!(scratch.stat().map(drop), Err(Errno::STALE));

        // The removal is detected by an open, or by no use at all.
        for by_open in [true, false] {
            std::fs::write(scratch.path.join("g"), "text").unwrap();
            let other = scratch.fs.root().lookup(&caller(0), name("g")).unwrap().unwrap().vnode;
            (0..3).for_each(|_| drop(other.open(&caller(0), OpenFlags::RDONLY).unwrap()));
            assert_eq!(scratch.kept(), 1);
            std::fs::remove_file(scratch.path.join("g")).unwrap();
            if by_open {
                assert_eq!(other.open(&caller(0), OpenFlags::RDONLY).map(drop), Err(Errno::STALE));
            } else {
                scratch.files().sweep();
                scratch.files().sweep();
                assert_eq!(other.getattr(&caller(0)).map(drop), Err(Errno::STALE));
            }
            assert_eq!(scratch.kept(), 0);
        }
        assert_eq!(vnode.open(&caller(0), OpenFlags::WRONLY).map(drop), Err(Errno::STALE));
    }

    #[test]
    fn only_unused_files_are_dropped() {
        let scratch = Scratch::new();
        // Pretend that the sweeper thread runs.
        *scratch.files().inner.sweeper_running() = true;
        scratch.open(7, OpenFlags::RDONLY);
        for _ in 0..5 {
            scratch.files().sweep();
            assert_eq!(scratch.kept(), 1);
            scratch.stat().unwrap();
        }
        scratch.files().sweep();
        scratch.files().sweep();
        assert_eq!(scratch.kept(), 0);
        // The sweeper thread drops it.
        scratch.open(7, OpenFlags::RDONLY);
        testkit::until("the file is dropped", || testkit::seen(scratch.kept(), |count| *count == 0));
        let weak = Arc::downgrade(&scratch.files().inner);
        scratch.open(7, OpenFlags::RDONLY);
        drop(scratch);
        assert_eq!(weak.strong_count(), 0, "the sweeper thread holds the cache");
    }

    #[test]
    fn a_file_removed_during_its_open_is_not_kept() {
        let scratch = Scratch::new();
        let vnode = scratch.fs.shared().table.get(scratch.file.vnode.id()).unwrap();
        let descriptor = || Descriptor::new(std::fs::File::open(scratch.path.join("f")).unwrap().into());
        let stamp = scratch.files().stamp(vnode.number());
        vnode.drop_kept();
        assert!(vnode.keep_open(&descriptor(), OFlags::RDONLY, stamp).is_none());
        let stamp = scratch.files().stamp(vnode.number());
        assert!(vnode.keep_open(&descriptor(), OFlags::RDONLY, stamp).is_some());
    }

    #[test]
    fn the_number_of_kept_files_is_bounded() {
        let scratch = Scratch::new();
        let files = MAX_ENTRIES + 200;
        let vnodes: Vec<_> = (0..files)
            .map(|i| {
                let text = format!("many-{i}");
                std::fs::write(scratch.path.join(&text), "text").unwrap();
                scratch.fs.root().lookup(&caller(0), name(&text)).unwrap().unwrap().vnode
            })
            .collect();
        for vnode in &vnodes {
            (0..2).for_each(|_| drop(vnode.open(&caller(7), OpenFlags::RDONLY).unwrap()));
        }
        assert!((1..=MAX_ENTRIES).contains(&scratch.kept()), "{}", scratch.kept());
    }
}
