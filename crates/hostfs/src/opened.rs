//! Descriptors of open files. A user's opens of one inode with the same flags share a descriptor.
//! Reads and writes are positional, so such open files differ only in the errors that fsync(2)
//! reports to each.

use crate::attr::sync_fd;
use crate::create::host_flags;
use crate::descriptors::Charge;
use crate::hot::{Hot, Stamp, Use};
use crate::layer::Shared;
use crate::vnode_impl::HostVnode;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use vnode::{Backing, CachedBacking, Cx, Errno, OpenFlags, Result, SHARDS, shard_of};

/// Identifies a shared descriptor: inode, user and open flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    number: u64,
    uid: u32,
    flags: u32,
}

/// The open files of a layer that may share their descriptors.
#[derive(Debug, Default)]
pub(crate) struct SharedFiles {
    shards: [Mutex<HashMap<Key, Weak<OpenFd>>>; SHARDS],
}

impl SharedFiles {
    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<Key, Weak<OpenFd>>> {
        // The index is always in range; the first shard avoids a panic path.
        let shard = self.shards.get(shard_of(number)).unwrap_or(&self.shards[0]);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &Key) -> Option<Arc<OpenFd>> {
        self.shard(key.number).get(key).and_then(Weak::upgrade)
    }
}

/// A descriptor of a regular file, with the fsync(2) failures met through it. The host reports a
/// failure once to each of its open files; the layer must report it once to each open file above
/// that shares the descriptor.
pub(crate) struct Descriptor {
    fd: OwnedFd,
    /// Number of failed syncs, and the last error.
    failures: AtomicU32,
    failure: Mutex<Option<Errno>>,
    /// Held for reading during a sync.
    syncing: RwLock<()>,
}

impl Descriptor {
    pub(crate) fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { fd, failures: AtomicU32::new(0), failure: Mutex::default(), syncing: RwLock::default() })
    }

    fn report(&self, reported: &AtomicU32, shared: bool, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let syncing = self.syncing.read().unwrap_or_else(PoisonError::into_inner);
        if let Err(errno) = sync() {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            *failure = Some(errno);
            reported.store(self.failures.fetch_add(1, Ordering::AcqRel) + 1, Ordering::Release);
            return Err(errno);
        }
        drop(syncing);
        if shared {
            // The host may have reported a failure to a concurrent sync on this descriptor, and
            // therefore not to this one. Wait until such syncs have recorded it.
            drop(self.syncing.write().unwrap_or_else(PoisonError::into_inner));
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = self.failures.load(Ordering::Acquire);
        match *failure {
            Some(errno) if reported.swap(failures, Ordering::AcqRel) != failures => Err(errno),
            _ => Ok(()),
        }
    }

    /// Whether `fd`, also open, refers to the same inode.
    fn is_of_same_inode(&self, fd: &OwnedFd) -> Result<bool> {
        let (a, b) = (rustix::fs::fstat(&self.fd)?, rustix::fs::fstat(fd)?);
        Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl core::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Descriptor({:?})", self.fd)
    }
}

/// A descriptor used by one or more open files of one user.
pub(crate) struct OpenFd {
    descriptor: Arc<Descriptor>,
    /// The hot file entry, which outlives the last close and holds the registration.
    hot: Option<Arc<Hot>>,
    fs: Arc<Shared>,
    /// The key under which it is shared, if it may be shared.
    key: Option<Key>,
    _charge: Charge,
}

impl OpenFd {
    /// Creates a descriptor for exactly one open file.
    pub(crate) fn alone(fd: OwnedFd, charge: Charge, fs: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { descriptor: Descriptor::new(fd), hot: None, fs: Arc::clone(fs), key: None, _charge: charge })
    }

    /// Returns the layer of the file.
    pub(crate) fn fs(&self) -> &Arc<Shared> {
        &self.fs
    }

    /// Returns the host file, and the place for its registration.
    pub(crate) fn backing(&self) -> Backing<'_> {
        let cached = self.hot.as_ref().map(|hot| CachedBacking { file: hot.as_fd(), registration: hot.registration() });
        Backing { file: self.as_fd(), cached }
    }

    /// Number of failed syncs.
    pub(crate) fn failures(&self) -> u32 {
        self.descriptor.failures.load(Ordering::Acquire)
    }

    /// Runs fsync(2) or fdatasync(2) for an open file to which `reported` failures were reported.
    pub(crate) fn sync(self: &Arc<Self>, data_only: bool, reported: &AtomicU32) -> Result<()> {
        self.report(reported, || sync_fd(self.as_fd(), data_only))
    }

    fn report(self: &Arc<Self>, reported: &AtomicU32, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let shared = Arc::strong_count(self) > 1 || Arc::strong_count(&self.descriptor) > 1;
        self.descriptor.report(reported, shared, sync)
    }

    /// Whether it uses the descriptor of `hot`.
    fn is_on(&self, hot: &Arc<Hot>) -> bool {
        Arc::ptr_eq(&self.descriptor, hot.descriptor())
    }
}

impl AsFd for OpenFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for OpenFd {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut shard = self.fs.opened.shard(key.number);
        // Another descriptor may have replaced it under this key.
        if shard.get(&key).is_some_and(|known| std::ptr::eq(known.as_ptr(), self)) {
            shard.remove(&key);
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
                let room = shard.len() * 2;
                shard.shrink_to(room);
            }
        }
    }
}

impl HostVnode {
    /// Opens the object with `flags` for the caller. Calls `open` each time, so that the host can
    /// refuse, except for reading a file that is kept ([`crate::hot`]). If an equal descriptor
    /// exists, the new one is closed and the existing one shared.
    pub(crate) fn open_shared(
        &self,
        cx: &Cx<'_>,
        flags: OFlags,
        open: impl FnOnce() -> Result<OwnedFd>,
    ) -> Result<Arc<OpenFd>> {
        // Not shared: some file systems write a truncated file back when it is closed, which must
        // happen at the real last close only. Failures of synchronous writes are reported through
        // the descriptor that was written to.
        let alone = OFlags::TRUNC | OFlags::SYNC | OFlags::DSYNC;
        if !self.fs().traits.open_once || flags.intersects(alone) {
            // An entry of a removed file must be dropped. Otherwise its handle would still reopen
            // the file, and the data written to it would be lost.
            drop(self.hot());
            let charge = self.fs().budget.charge(cx)?;
            return Ok(OpenFd::alone(open()?, charge, self.fs()));
        }
        let key = Key { number: self.number(), uid: cx.caller(), flags: flags.bits() };
        let opening = self.opening(flags);
        if let Some(hot) = opening.hot.as_ref().filter(|hot| hot.serves(flags)) {
            return self.open_hot(cx, key, hot);
        }
        let (fd, charge) = match self.fs().opened.get(&key) {
            Some(known) => {
                let fd = open()?;
                if known.descriptor.is_of_same_inode(&fd)? {
                    return Ok(known);
                }
                (fd, self.fs().budget.charge(cx)?)
            }
            None => {
                let charge = self.fs().budget.charge(cx)?;
                (open()?, charge)
            }
        };
        let descriptor = Descriptor::new(fd);
        let hot = self.keep_opened(opening, &descriptor, flags);
        Ok(self.share(key, descriptor, hot, charge))
    }

    /// Returns an open file that uses a kept descriptor, without opening anything.
    fn open_hot(&self, cx: &Cx<'_>, key: Key, hot: &Arc<Hot>) -> Result<Arc<OpenFd>> {
        if let Some(known) = self.fs().opened.get(&key).filter(|known| known.is_on(hot)) {
            return Ok(known);
        }
        let charge = self.fs().budget.charge(cx)?;
        Ok(self.share(key, Arc::clone(hot.descriptor()), Some(Arc::clone(hot)), charge))
    }

    fn share(&self, key: Key, descriptor: Arc<Descriptor>, hot: Option<Arc<Hot>>, charge: Charge) -> Arc<OpenFd> {
        let fs = self.fs();
        let fd = Arc::new(OpenFd { descriptor, hot, fs: Arc::clone(fs), key: Some(key), _charge: charge });
        fs.opened.shard(key.number).insert(key, Arc::downgrade(&fd));
        fd
    }

    /// Returns the hot file entry for a file about to be opened, and whether to keep the file from
    /// now on.
    fn opening(&self, flags: OFlags) -> Opening {
        let Some(files) = self.hot_files() else { return Opening::default() };
        let hot = self.hot().map(|(hot, _)| hot);
        let reads = !flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let keep = match &hot {
            // A readable descriptor replaces an `O_PATH` reference.
            Some(hot) => reads && !hot.is_readable(),
            None => files.is_repeated(Use::Open, self.number()),
        };
        Opening { stamp: keep.then(|| files.stamp(self.number())), hot, reads }
    }

    /// Keeps a file that was opened, if it qualifies, and returns its entry.
    fn keep_opened(&self, opening: Opening, descriptor: &Arc<Descriptor>, flags: OFlags) -> Option<Arc<Hot>> {
        let Opening { hot, stamp: Some(stamp), reads } = opening else { return opening.hot };
        if reads {
            return self.keep_open(descriptor, flags, stamp).or(hot);
        }
        // Not the writer's descriptor: a kept descriptor must not be open for writing.
        let flags = host_flags(OpenFlags::RDONLY);
        let reading = self.reopen(flags).ok()?;
        self.keep_open(&Descriptor::new(reading), flags, stamp)
    }
}

/// The result of [`HostVnode::opening`].
#[derive(Default)]
struct Opening {
    hot: Option<Arc<Hot>>,
    /// Set if the file is to be kept.
    stamp: Option<Stamp>,
    /// Whether it is opened for reading only.
    reads: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostFs, HostOptions};
    use core::sync::atomic::AtomicBool;
    use testkit::TempDir;
    use vnode::{Entry, Layer, Name, OpenFile, OpenFlags};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn caller(uid: u32) -> Cx<'static> {
        Cx::new(uid, uid, 1, 0, true, &NEVER)
    }

    struct Scratch(TempDir, Arc<HostFs>, Entry);

    impl Scratch {
        fn new() -> Self {
            let path = TempDir::new();
            let fs = HostFs::open(&path, HostOptions::default()).unwrap();
            let name = Name::new(b"f").unwrap();
            let (entry, _) = fs.root().create(&Cx::internal(0, 0), name, 0o644, OpenFlags::RDWR).unwrap();
            Self(path, fs, entry)
        }

        fn open(&self, uid: u32, flags: u32) -> Arc<dyn OpenFile> {
            self.2.vnode.open(&caller(uid), OpenFlags(flags)).unwrap()
        }

        fn known(&self) -> usize {
            self.1.shared().opened.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
        }
    }

    fn number_of(file: &Arc<dyn OpenFile>) -> i32 {
        use rustix::fd::AsRawFd;
        file.backing().unwrap().file.as_raw_fd()
    }

    #[test]
    fn a_user_shares_one_descriptor_per_inode_and_open_flags() {
        const O_APPEND: u32 = 0o2001;
        const O_TRUNC: u32 = 0o1001;
        const O_SYNC: u32 = 0o4_010_001;
        let scratch = Scratch::new();
        let first = scratch.open(7, 0);
        let same: Vec<_> = (0..100).map(|_| scratch.open(7, 0)).collect();
        assert!(same.iter().all(|file| number_of(file) == number_of(&first)));
        let others = [(8, 0), (7, 1), (7, 2), (7, O_APPEND), (7, O_TRUNC), (7, O_TRUNC), (7, O_SYNC), (7, O_SYNC)];
        let others: Vec<_> = others.iter().map(|&(uid, flags)| scratch.open(uid, flags)).collect();
        let mut numbers: Vec<_> = others.iter().chain([&first]).map(number_of).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 9);
        assert_eq!(scratch.known(), 5);
        others[1].write(&caller(7), b"text", 0).unwrap();
        drop((first, others));
        assert_eq!(scratch.known(), 1, "100 opens remain");
        let mut bytes = [0; 8];
        assert_eq!(same[3].read(&caller(7), &mut bytes, 1), Ok(3));
        drop(same);
        assert_eq!(scratch.known(), 0);
    }

    #[test]
    fn a_new_file_with_a_reused_number_gets_its_own_descriptor() {
        let scratch = Scratch::new();
        let old = scratch.open(7, 0);
        let number = scratch.2.vnode.id();
        let key = Key { number, uid: 7, flags: crate::create::host_flags(OpenFlags::RDONLY).bits() };
        // Simulates a host that reuses inode numbers while files are open.
        let other = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        let charge = scratch.1.shared().budget.charge(&caller(7)).unwrap();
        let mut wrong = OpenFd::alone(other, charge, scratch.1.shared());
        Arc::get_mut(&mut wrong).unwrap().key = Some(key);
        scratch.1.shared().opened.shard(number).insert(key, Arc::downgrade(&wrong));
        let new = scratch.open(7, 0);
        assert_ne!(number_of(&new), number_of(&old));
        assert_eq!(number_of(&new), number_of(&scratch.open(7, 0)));
        drop((old, wrong));
        assert_eq!(number_of(&new), number_of(&scratch.open(7, 0)));
    }

    #[test]
    fn a_sync_failure_is_reported_once_to_each_file_open_at_the_time() {
        let scratch = Scratch::new();
        let file = std::fs::File::open(scratch.0.join("f")).unwrap();
        let charge = scratch.1.shared().budget.charge(&caller(7)).unwrap();
        let fd = OpenFd::alone(file.into(), charge, scratch.1.shared());
        let open = || (Arc::clone(&fd), AtomicU32::new(fd.failures()));
        let (a, b) = (open(), open());
        assert_eq!(a.0.report(&a.1, || Ok(())), Ok(()));
        assert_eq!(a.0.report(&a.1, || Err(Errno::IO)), Err(Errno::IO));
        let late = open();
        assert_eq!(a.0.report(&a.1, || Ok(())), Ok(()));
        assert_eq!(late.0.report(&late.1, || Ok(())), Ok(()));
        assert_eq!(b.0.report(&b.1, || Ok(())), Err(Errno::IO));
        assert_eq!(b.0.report(&b.1, || Ok(())), Ok(()));
        assert_eq!(b.0.report(&b.1, || Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert_eq!(late.0.report(&late.1, || Ok(())), Err(Errno::NOSPC));
        assert_eq!(a.0.report(&a.1, || Err(Errno::IO)), Err(Errno::IO));
        assert_eq!(a.0.report(&a.1, || Ok(())), Ok(()));
    }

    #[test]
    fn two_concurrent_syncs_both_report_a_failure() {
        let scratch = Scratch::new();
        let file = std::fs::File::open(scratch.0.join("f")).unwrap();
        let charge = scratch.1.shared().budget.charge(&caller(7)).unwrap();
        let fd = OpenFd::alone(file.into(), charge, scratch.1.shared());
        let (a, b) = (Arc::clone(&fd), Arc::clone(&fd));
        let (reported_a, reported_b) = (AtomicU32::new(0), AtomicU32::new(0));
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                a.report(&reported_a, || {
                    begun.wait();
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    Err(Errno::IO)
                })
            });
            begun.wait();
            assert_eq!(b.report(&reported_b, || Ok(())), Err(Errno::IO));
            assert_eq!(failing.join().unwrap(), Err(Errno::IO));
        });
    }
}
