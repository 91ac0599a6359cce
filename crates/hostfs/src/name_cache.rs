//! A cache for negative lookups: records which names a directory has.

use crate::identity;
use crate::layer::statx_fd;
use crate::vnode_impl::HostVnode;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, StatxTimestamp};
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use vnode::{Errno, Name, Result};

const SHARDS: usize = 8;
/// Maximum number of directories per shard whose names are cached or misses are counted.
const PER_SHARD: usize = 4;
/// Directories with more names than this are not cached.
const MAX_NAMES: usize = 8192;
/// Number of negative lookups before a directory is listed, plus one for each `NAMES_PER_MISS`
/// names in its last listing: listing costs about a twentieth of a lookup per name.
const MISSES_BEFORE_LISTING: u32 = 8;
const NAMES_PER_MISS: usize = 16;
/// Number of negative lookups before another attempt to list a directory that had too many names.
const MISSES_IF_TOO_LARGE: u32 = 16384;
/// A directory changed more recently than this can change again without a new timestamp: some file
/// systems store whole seconds.
const MIN_AGE: Duration = Duration::from_secs(2);
const BUFFER: usize = 32 << 10;
/// `FS_CASEFOLD_FL` and `FS_ENCRYPT_FL`: lookups find names in other spellings than the listed
/// ones, or will once the key is added.
const ENCODED_NAMES: u32 = 0x4000_0000 | 0x800;

/// A cache of the names in recently searched directories, which returns negative lookups without a
/// system call. A union looks up most names in several directories, and a whiteout for each.
///
/// A directory is listed after several negative lookups in it. Names that are created through this
/// layer are added at once. Out-of-band changes are noticed after `ttl`, by the directory's changed
/// times.
#[derive(Debug)]
pub(crate) struct NameCache {
    shards: [Mutex<Vec<Dir>>; SHARDS],
    ttl: Duration,
    /// Numbers the listings, so that an outdated one is discarded.
    listings: AtomicU64,
}

#[derive(Debug)]
struct Dir {
    id: u64,
    misses: u32,
    /// Number of misses before it is listed.
    threshold: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Unknown,
    /// A thread is listing it; `added` are the names created meanwhile.
    Listing {
        number: u64,
        added: Vec<u32>,
    },
    Known(Listed),
}

/// The names of a directory, as hashes. A collision only costs an unnecessary system call.
#[derive(Debug)]
struct Listed {
    hashes: HashSet<u32>,
    /// When the directory was listed or last verified.
    at: Instant,
    /// Times of the directory, by which later changes are detected; `None` if they are too recent
    /// for that.
    stamp: Option<Stamp>,
}

/// The result of looking up a name in the cache.
#[derive(Debug, PartialEq, Eq)]
enum Cached {
    /// The name may exist.
    Unknown,
    /// The name does not exist.
    Missing,
    /// The listing is too old at `now` to be used, unless the directory's times still equal
    /// `stamp`.
    Expired { now: Instant, stamp: Option<Stamp> },
}

/// Modification and change time, as seconds and nanoseconds.
type Stamp = [(i64, u32); 2];

/// Finds a directory and moves it to the end, where the most recently used ones are.
fn used(shard: &mut [Dir], id: u64) -> Option<&mut Dir> {
    let at = shard.iter().position(|known| known.id == id)?;
    shard[at..].rotate_left(1);
    shard.last_mut()
}

fn hash(name: &[u8]) -> u32 {
    (identity::hash(name) >> 32) as u32
}

impl NameCache {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { shards: Default::default(), ttl, listings: AtomicU64::new(0) }
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, Vec<Dir>> {
        // The index is always in range; the first shard avoids a panic path.
        let shard = self.shards.get((id ^ (id >> 9)) as usize % SHARDS).unwrap_or(&self.shards[0]);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a name that was just created in the directory.
    pub(crate) fn note_added(&self, dir: u64, name: Name<'_>) {
        let mut shard = self.shard(dir);
        let Some(dir) = shard.iter_mut().find(|known| known.id == dir) else { return };
        match &mut dir.state {
            State::Unknown => {}
            State::Listing { added, .. } => added.push(hash(name.as_bytes())),
            State::Known(listed) if listed.hashes.len() < 2 * MAX_NAMES => {
                listed.hashes.insert(hash(name.as_bytes()));
            }
            State::Known(_) => dir.state = State::Unknown,
        }
    }

    /// Drops the names of a removed directory.
    pub(crate) fn remove(&self, dir: u64) {
        self.shard(dir).retain(|known| known.id != dir);
    }

    /// Drops the names of all directories.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Counts a negative lookup. If the directory has to be listed now, returns the number of that
    /// listing.
    fn count_miss(&self, id: u64) -> Option<u64> {
        let mut shard = self.shard(id);
        if used(&mut shard, id).is_none() {
            if shard.len() >= PER_SHARD {
                shard.remove(0);
            }
            shard.push(Dir { id, misses: 0, threshold: MISSES_BEFORE_LISTING, state: State::Unknown });
        }
        let dir = shard.last_mut().filter(|dir| matches!(dir.state, State::Unknown))?;
        dir.misses += 1;
        if dir.misses < dir.threshold {
            return None;
        }
        let number = self.listings.fetch_add(1, Ordering::Relaxed);
        dir.misses = 0;
        dir.state = State::Listing { number, added: Vec::new() };
        Some(number)
    }

    /// Stores a finished listing; `None` if the directory can't be cached.
    fn finish_listing(&self, id: u64, number: u64, listed: Option<Listed>) {
        let mut shard = self.shard(id);
        let Some(dir) = shard.iter_mut().find(|known| known.id == id) else { return };
        let State::Listing { number: current, added } = &mut dir.state else { return };
        if *current != number {
            return;
        }
        dir.state = match listed {
            Some(mut listed) => {
                dir.threshold = MISSES_BEFORE_LISTING.saturating_add((listed.hashes.len() / NAMES_PER_MISS) as u32);
                listed.hashes.extend(added.drain(..));
                State::Known(listed)
            }
            None => {
                dir.threshold = MISSES_IF_TOO_LARGE;
                State::Unknown
            }
        };
    }

    /// Looks up a name in the cache.
    fn query(&self, id: u64, name: Name<'_>) -> Cached {
        let mut shard = self.shard(id);
        let Some(Dir { state: State::Known(listed), .. }) = used(&mut shard, id) else { return Cached::Unknown };
        let now = Instant::now();
        if now.saturating_duration_since(listed.at) >= self.ttl {
            Cached::Expired { now, stamp: listed.stamp }
        } else if listed.hashes.contains(&hash(name.as_bytes())) {
            Cached::Unknown
        } else {
            Cached::Missing
        }
    }

    /// Concludes the verification of a listing that had expired at `now`. `verified` is the
    /// listing's stamp if the directory is unchanged, otherwise `None`.
    fn confirm(&self, id: u64, now: Instant, verified: Option<Stamp>) {
        let mut shard = self.shard(id);
        let Some(dir) = shard.iter_mut().find(|known| known.id == id) else { return };
        match &mut dir.state {
            State::Known(listed) if verified.is_some() && listed.stamp == verified => listed.at = now,
            State::Known(_) => dir.state = State::Unknown,
            State::Unknown | State::Listing { .. } => {}
        }
    }
}

impl HostVnode {
    /// Records the name after an attempt to create it in this directory. The name exists even if
    /// the attempt failed because another process created it first.
    pub(crate) fn note_name<T>(&self, name: Name<'_>, result: Result<T>) -> Result<T> {
        self.fs().finder.changed();
        if matches!(result, Ok(_) | Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR)) {
            self.fs().names.note_added(self.number(), name);
        }
        result
    }

    /// Whether the name is known to be missing in this directory, on which `fd` is open.
    pub(crate) fn is_known_missing(&self, fd: &OwnedFd, name: Name<'_>) -> bool {
        let fs = self.fs();
        if !fs.caches_names() {
            return false;
        }
        let mut cached = fs.names.query(self.number(), name);
        if let Cached::Expired { now, stamp } = cached {
            let verified = stamp.filter(|stamp| stamp_of(fd).is_ok_and(|now| now == *stamp));
            fs.names.confirm(self.number(), now, verified);
            cached = fs.names.query(self.number(), name);
        }
        cached == Cached::Missing
    }

    /// Whether lookups in this directory find exactly the listed names.
    pub(crate) fn lists_all_names(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.fs().lists_all_names()
            && self.reopen(flags).is_ok_and(|fd| match rustix::fs::ioctl_getflags(&fd) {
                Ok(flags) => flags.bits() & ENCODED_NAMES == 0,
                // File systems without such flags have no encoded names.
                Err(errno) => matches!(errno, Errno::NOTTY | Errno::OPNOTSUPP),
            })
    }

    /// Records a negative lookup in this directory.
    pub(crate) fn note_missing_name(&self, fd: &OwnedFd) {
        let fs = self.fs();
        if fs.caches_names()
            && let Some(number) = fs.names.count_miss(self.number())
        {
            fs.names.finish_listing(self.number(), number, list(fd).ok().flatten());
        }
    }
}

/// Returns the directory's times.
fn stamp_of(fd: &OwnedFd) -> Result<Stamp> {
    let stat = statx_fd(fd)?;
    let time = |time: StatxTimestamp| (time.tv_sec, time.tv_nsec);
    Ok([time(stat.stx_mtime), time(stat.stx_ctime)])
}

/// Lists a directory, without updating its access time. `None` if it has too many names, or if
/// names are found in other spellings than listed.
fn list(dir: &OwnedFd) -> Result<Option<Listed>> {
    let at = Instant::now();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let stamp = stamp_of(dir)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
    match rustix::fs::ioctl_getflags(&fd) {
        Ok(flags) if flags.bits() & ENCODED_NAMES != 0 => return Ok(None),
        // Before Linux 6.6 tmpfs had no such flags.
        Ok(_) | Err(Errno::NOTTY | Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(errno),
    }
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
    let mut entries = RawDir::new(&fd, &mut buffer);
    let mut hashes = HashSet::new();
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        hashes.insert(hash(entry.file_name().to_bytes()));
        if hashes.len() > MAX_NAMES {
            return Ok(None);
        }
    }
    let is_old = stamp.iter().all(|(sec, _)| now.cast_signed().saturating_sub(*sec) > MIN_AGE.as_secs().cast_signed());
    Ok(Some(Listed { hashes, at, stamp: is_old.then_some(stamp) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    fn name(name: &str) -> Name<'_> {
        Name::new(name.as_bytes()).unwrap()
    }

    fn listed(names: &[&str], at: Instant, stamp: Option<Stamp>) -> Option<Listed> {
        Some(Listed { hashes: names.iter().map(|n| hash(n.as_bytes())).collect(), at, stamp })
    }

    /// Counts misses until a listing is due, and returns its number.
    fn miss_until_listing(names: &NameCache, dir: u64) -> u64 {
        (0..MISSES_BEFORE_LISTING).find_map(|_| names.count_miss(dir)).unwrap()
    }

    #[test]
    fn a_name_created_during_the_listing_is_included() {
        let names = NameCache::new(TTL);
        let now = Instant::now();
        let number = miss_until_listing(&names, 7);
        assert_eq!(names.query(7, name("new")), Cached::Unknown);
        names.note_added(7, name("new"));
        names.finish_listing(7, number, listed(&["old"], now, None));
        assert_eq!(names.query(7, name("new")), Cached::Unknown);
        assert_eq!(names.query(7, name("old")), Cached::Unknown);
        assert_eq!(names.query(7, name("none")), Cached::Missing);
        names.note_added(7, name("none"));
        assert_eq!(names.query(7, name("none")), Cached::Unknown);
        names.remove(7);
        assert_eq!(names.query(7, name("other")), Cached::Unknown);
    }

    #[test]
    fn an_outdated_listing_is_discarded() {
        let names = NameCache::new(TTL);
        let now = Instant::now();
        let slow = miss_until_listing(&names, 7);
        names.remove(7);
        names.note_added(7, name("between"));
        let second = miss_until_listing(&names, 7);
        names.finish_listing(7, slow, listed(&[], now, None));
        assert_eq!(names.query(7, name("between")), Cached::Unknown);
        names.finish_listing(7, second, listed(&["between"], now, None));
        assert_eq!(names.query(7, name("between")), Cached::Unknown);
        assert_eq!(names.query(7, name("other")), Cached::Missing);
    }

    #[test]
    fn an_expired_listing_is_used_only_if_the_times_are_unchanged() {
        let names = NameCache::new(TTL);
        let stamp = [(5, 5), (6, 6)];
        let list_long_ago = || {
            let number = miss_until_listing(&names, 7);
            names.finish_listing(7, number, listed(&[], Instant::now().checked_sub(2 * TTL).unwrap(), Some(stamp)));
        };
        list_long_ago();
        let Cached::Expired { now, stamp: expired } = names.query(7, name("a")) else { panic!("ttl") };
        assert_eq!(expired, Some(stamp));
        names.confirm(7, now, expired);
        assert_eq!(names.query(7, name("a")), Cached::Missing);
        names.remove(7);
        list_long_ago();
        names.confirm(7, now, None);
        assert_eq!(names.query(7, name("a")), Cached::Unknown);
    }

    #[test]
    fn a_directory_in_use_is_not_evicted() {
        let names = NameCache::new(TTL);
        let number = miss_until_listing(&names, 7);
        names.finish_listing(7, number, listed(&[], Instant::now(), None));
        for dir in 8..1000 {
            names.count_miss(dir);
            assert_eq!(names.query(7, name("none")), Cached::Missing);
        }
    }

    #[test]
    fn the_number_of_cached_directories_is_bounded() {
        let names = NameCache::new(TTL);
        for dir in 0..1000 {
            names.count_miss(dir);
        }
        assert!(names.shards.iter().all(|shard| shard.lock().unwrap().len() <= PER_SHARD));
    }
}
