//! Descriptors of files that are used again and again, kept for a moment after each use, and beside each what a layer above
//! has registered of the file ([`vnode::Registration`]): the next use opens nothing and registers nothing.
//!
//! A file is kept from its second use on, so that reading a tree once costs nothing more. What is kept must not show:
//!
//! * **Opening for writing or truncation is always done**, since the host may refuse it (immutable files, programs that run, a
//!   file system that was made read-only). Only the registration is used again. What is kept is open for reading at most.
//! * **A removed file gives its room back**: an entry goes when its file is removed or replaced through this layer, when room is
//!   short, when the vnode goes, and after one to two seconds without use. If others removed the file, the link count says
//!   so at the next use; then the entry goes, and the file is reached by its handle, if it still can be.
//! * **Descriptors are bounded**: there are at most as many entries as [`MOST`], and all caches together take their share of
//!   the process's descriptors ([`crate::descriptors`]).

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

/// How many files are kept at most.
const MOST: usize = 1024;
const SHARDS: usize = 16;
/// How many of the files that were used last are remembered, to know a second use from a first.
const REMEMBERED: usize = 512;
/// An entry goes when it has not been used for one to two of these.
const SWEEP: Duration = Duration::from_secs(1);

/// A file that is kept.
#[derive(Debug)]
pub(crate) struct Hot {
    /// Dropped first, since it holds the file as well.
    registration: Registration,
    descriptor: Arc<Descriptor>,
    /// How it was opened, if not for reference only.
    flags: Option<OFlags>,
    /// The address of the vnode: another one of the same number is of another object.
    owner: usize,
    /// [`Inner::clock`] at its last use.
    used: AtomicU32,
    _kept: Kept,
}

impl Hot {
    /// May it stand for a file opened with these flags?
    pub(crate) fn serves(&self, flags: OFlags) -> bool {
        self.flags == Some(flags)
    }

    /// Can it be read, and be asked for extended attributes?
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
    /// How often entries were removed: what was being opened meanwhile is not kept.
    removed: u64,
}

#[derive(Debug)]
struct Inner {
    shards: [Mutex<Shard>; SHARDS],
    count: AtomicUsize,
    clock: AtomicU32,
    /// A thread drops what is not used.
    swept: Mutex<bool>,
}

/// A use of a file, for [`HotFiles::is_second`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    Open,
    Attributes,
}

/// What a shard had seen removed when a file was about to be opened: see [`HotFiles::stamp`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp(u64);

/// The files that are kept.
#[derive(Debug)]
pub(crate) struct HotFiles {
    inner: Arc<Inner>,
    /// The numbers of the files used last, at places that their numbers say; apart for each [`Use`].
    last: [Box<[AtomicU64]>; 2],
    budget: Arc<Budget>,
}

impl Inner {
    fn shard(&self, number: u64) -> MutexGuard<'_, Shard> {
        let index = (number ^ (number >> 9)) as usize % SHARDS;
        // The index is always in range; the first shard stands in for what can't be.
        self.shards.get(index).unwrap_or(&self.shards[0]).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn swept(&self) -> MutexGuard<'_, bool> {
        self.swept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out the entries for which `goes` holds. They are to be dropped after this, and not under a lock.
    fn take(&self, mut goes: impl FnMut(&Hot) -> bool) -> Vec<Arc<Hot>> {
        let mut gone = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            gone.extend(shard.entries.extract_if(|_, hot| goes(hot)).map(|(_, hot)| hot));
        }
        self.count.fetch_sub(gone.len(), Ordering::Relaxed);
        gone
    }

    /// Drops what was not used since the last time but one. Answers whether anything is left.
    fn sweep(&self) -> bool {
        let before = self.clock.fetch_add(1, Ordering::Relaxed);
        drop(self.take(|hot| before.wrapping_sub(hot.used.load(Ordering::Relaxed)) >= 1));
        let mut swept = self.swept();
        *swept = self.count.load(Ordering::Relaxed) > 0;
        *swept
    }
}

impl HotFiles {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let inner = Inner {
            shards: Default::default(),
            count: AtomicUsize::new(0),
            clock: AtomicU32::new(0),
            swept: Mutex::new(false),
        };
        let last = || (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect();
        Self { inner: Arc::new(inner), last: [last(), last()], budget }
    }

    /// Is this not the first use of the file of late? Remembers it.
    pub(crate) fn is_second(&self, use_: Use, number: u64) -> bool {
        let last = &self.last[use_ as usize];
        let place = last.get((number ^ (number >> 9)) as usize % REMEMBERED);
        place.is_some_and(|place| {
            place.load(Ordering::Relaxed) == number || place.swap(number, Ordering::Relaxed) == number
        })
    }

    /// To be asked before a file is opened that is to be kept.
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

    /// Keeps a descriptor of `vnode`, unless there are too many or the file was removed since `stamp`. `flags`: how it was opened, if not
    /// for reference only.
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
        let full = !room || shard.entries.len() >= MOST / SHARDS;
        let oldest = if full && !shard.entries.contains_key(&vnode.number()) {
            let clock = self.inner.clock.load(Ordering::Relaxed);
            let age = |hot: &Hot| clock.wrapping_sub(hot.used.load(Ordering::Relaxed));
            // Without one that can go, there is no room for another.
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
        let gone = [
            oldest.and_then(|oldest| shard.entries.remove(&oldest)),
            shard.entries.insert(vnode.number(), Arc::clone(&hot)),
        ];
        let more = 1 - gone.iter().flatten().count().cast_signed();
        drop(shard);
        self.inner.count.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
        drop(gone);
        self.start_sweeping();
        Some(hot)
    }

    fn start_sweeping(&self) {
        let mut swept = self.inner.swept();
        if *swept {
            return;
        }
        let inner = Arc::downgrade(&self.inner);
        let started = std::thread::Builder::new().name("hot-files".into()).spawn(move || {
            loop {
                std::thread::sleep(SWEEP);
                if !inner.upgrade().is_some_and(|inner| inner.sweep()) {
                    return;
                }
            }
        });
        *swept = started.is_ok();
        drop(swept);
        if started.is_err() {
            // Nobody would close it.
            self.clear();
        }
    }

    /// The file is removed or replaced, or its vnode goes.
    pub(crate) fn remove(&self, number: u64) {
        let mut shard = self.inner.shard(number);
        shard.removed += 1;
        let gone = shard.entries.remove(&number);
        drop(shard);
        if gone.is_some() {
            self.inner.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether [`Self::remove`] would find anything at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.count.load(Ordering::Relaxed) == 0
    }

    /// Keeps nothing.
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
    /// The files that are kept, if this may be one of them.
    pub(crate) fn hot_files(&self) -> Option<&HotFiles> {
        let kept = self.fs().hot.as_ref()?;
        (self.what() == Kind::Regular && !self.is_pinned()).then_some(kept)
    }

    /// Nothing is kept of this object from now on.
    pub(crate) fn cool(&self) {
        if let Some(files) = self.fs().hot.as_ref().filter(|_| self.what() == Kind::Regular) {
            files.remove(self.number());
        }
    }

    /// What is kept of this file, and its attributes. An entry whose file others have removed goes.
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

    /// Keeps a descriptor for reference that was opened after `stamp`, for the next question for attributes.
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
    use std::path::PathBuf;
    use vnode::{Cx, Entry, Errno, Layer, Name, OpenFile, OpenFlags, RenameFlags};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn caller(uid: u32) -> Cx<'static> {
        Cx::new(uid, uid, 1, 0, true, &NEVER)
    }

    /// A directory with a file `f`, which was used once already.
    struct Scratch {
        path: PathBuf,
        fs: Arc<HostFs>,
        file: Entry,
    }

    impl Scratch {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hostfs-hot-{test}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("f"), "text").unwrap();
            let fs = HostFs::open(&path, HostOptions::default()).unwrap();
            assert!(fs.uses_handles(), "the tests need root");
            let file = fs.root().lookup(&caller(0), name("f")).unwrap().unwrap();
            let scratch = Self { path, fs, file };
            scratch.stat().unwrap();
            scratch.open(0, OpenFlags::RDONLY);
            assert_eq!(scratch.kept(), 0, "nothing is kept after the first use");
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

    impl Drop for Scratch {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.path).unwrap();
        }
    }

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    fn number_of(file: &Arc<dyn OpenFile>) -> i32 {
        file.backing().unwrap().file.as_raw_fd()
    }

    #[test]
    fn a_file_that_is_read_again_is_not_opened_again() {
        let scratch = Scratch::new("read");
        let second = scratch.open(7, OpenFlags::RDONLY);
        let number = number_of(&second);
        drop(second);
        assert_eq!(scratch.kept(), 1);
        // Of whatever user; and two users have it open at once.
        let (third, fourth) = (scratch.open(7, OpenFlags::RDONLY), scratch.open(8, OpenFlags::RDONLY));
        assert_eq!((number_of(&third), number_of(&fourth)), (number, number));
        let mut bytes = [0; 8];
        assert_eq!(third.read(&caller(7), &mut bytes, 1), Ok(3));
        assert_eq!(scratch.stat().unwrap().size, 4);
        assert_eq!(scratch.kept(), 1);
    }

    #[test]
    fn attributes_keep_a_reference_which_gives_way_to_a_descriptor() {
        let scratch = Scratch::new("stat");
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
    fn writers_are_really_opened_and_what_is_kept_can_not_write() {
        let scratch = Scratch::new("write");
        let writer = scratch.open(7, OpenFlags::WRONLY);
        let kept = writer.backing().unwrap().cached.unwrap();
        kept.registration.set(Arc::new(7_u32));
        assert_ne!(kept.file.as_raw_fd(), number_of(&writer));
        assert_eq!(rustix::io::write(kept.file, b"lost"), Err(Errno::BADF));
        writer.write(&caller(7), b"TEXT", 0).unwrap();
        drop(writer);
        // The registration is there for whoever opens it next, for reading or writing.
        for flags in [OpenFlags::RDONLY, OpenFlags::WRONLY, OpenFlags::RDWR] {
            let file = scratch.open(8, flags);
            let kept = file.backing().unwrap().cached.unwrap();
            assert_eq!(kept.registration.get::<u32>(|_| true).as_deref(), Some(&7));
        }
        // The host refuses to open a program that runs, although it is kept.
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
    fn what_is_removed_or_replaced_goes() {
        let scratch = Scratch::new("removed");
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
        assert_eq!(scratch.kept(), 0, "what has no name is not kept");

        ["a", "b", "c"].iter().for_each(|name| std::fs::write(scratch.path.join(name), "text").unwrap());
        let held = [warm("a"), warm("b"), warm("c")];
        assert_eq!(scratch.kept(), 3);
        root.rename(&caller(0), name("a"), &root, name("b"), RenameFlags::default()).unwrap();
        assert_eq!(scratch.kept(), 2, "b was replaced");
        scratch.fs.shared().with_room(|| Err::<(), _>(Errno::NOSPC)).unwrap_err();
        assert_eq!(scratch.kept(), 0, "room was short");
        drop(held);
        drop(warm("c"));
        assert_eq!(scratch.kept(), 0, "its vnode went");
    }

    #[test]
    fn what_others_removed_is_stale_as_ever() {
        let scratch = Scratch::new("others");
        let vnode = &scratch.file.vnode;
        drop(scratch.open(0, OpenFlags::RDONLY));
        let open = scratch.open(0, OpenFlags::RDONLY);
        assert_eq!(scratch.kept(), 1);
        std::fs::remove_file(scratch.path.join("f")).unwrap();
        assert_eq!(scratch.stat().unwrap().nlink, 0, "it is open");
        assert_eq!(scratch.kept(), 0);
        drop(open);
        assert_eq!(scratch.stat().map(drop), Err(Errno::STALE));

        // Met first by an open, and by nobody.
        for met in [true, false] {
            std::fs::write(scratch.path.join("g"), "text").unwrap();
            let other = scratch.fs.root().lookup(&caller(0), name("g")).unwrap().unwrap().vnode;
            (0..3).for_each(|_| drop(other.open(&caller(0), OpenFlags::RDONLY).unwrap()));
            assert_eq!(scratch.kept(), 1);
            std::fs::remove_file(scratch.path.join("g")).unwrap();
            if met {
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
    fn what_is_not_used_goes_and_what_is_used_stays() {
        let scratch = Scratch::new("idle");
        // As if there were a thread.
        *scratch.files().inner.swept() = true;
        scratch.open(7, OpenFlags::RDONLY);
        for _ in 0..5 {
            scratch.files().sweep();
            assert_eq!(scratch.kept(), 1);
            scratch.stat().unwrap();
        }
        scratch.files().sweep();
        scratch.files().sweep();
        assert_eq!(scratch.kept(), 0);
        // The thread does it by itself.
        scratch.open(7, OpenFlags::RDONLY);
        while scratch.kept() > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let weak = Arc::downgrade(&scratch.files().inner);
        scratch.open(7, OpenFlags::RDONLY);
        drop(scratch);
        assert_eq!(weak.strong_count(), 0, "the thread does not keep them");
    }

    #[test]
    fn what_is_removed_while_it_is_opened_is_not_kept() {
        let scratch = Scratch::new("race");
        let vnode = scratch.fs.shared().table.get(scratch.file.vnode.id()).unwrap();
        let descriptor = || Descriptor::new(std::fs::File::open(scratch.path.join("f")).unwrap().into());
        let stamp = scratch.files().stamp(vnode.number());
        vnode.cool();
        assert!(vnode.keep_open(&descriptor(), OFlags::RDONLY, stamp).is_none());
        let stamp = scratch.files().stamp(vnode.number());
        assert!(vnode.keep_open(&descriptor(), OFlags::RDONLY, stamp).is_some());
    }

    #[test]
    fn there_is_a_bound() {
        let scratch = Scratch::new("bound");
        let files = MOST + 200;
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
        assert!((1..=MOST).contains(&scratch.kept()), "{}", scratch.kept());
    }
}
