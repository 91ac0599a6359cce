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
/// Directories of a shard whose names are known or counted.
const PER_SHARD: usize = 4;
/// Directories with more names than this are asked each time.
const NAMES_MAX: usize = 8192;
/// So many names must have been missing before a directory is listed, and one more for each `NAMES_PER_MISS` names that it had when
/// it was listed last: listing costs about a twentieth of a look-up per name.
const MISSES: u32 = 8;
const NAMES_PER_MISS: usize = 16;
/// The same after a directory turned out to have too many.
const MISSES_TOO_MANY: u32 = 16384;
/// A directory whose change time is younger than this can change again without a sign of it: some file systems keep whole seconds.
const SETTLED: Duration = Duration::from_secs(2);
const BUFFER: usize = 32 << 10;
/// `FS_CASEFOLD_FL`, `FS_ENCRYPT_FL`: names are found in other spellings than they are listed in, or will be once there is a key.
const SPELLED_OTHERWISE: u32 = 0x4000_0000 | 0x800;

/// Which names recently searched directories have, so that looking for one that is missing costs no system call. A union looks for
/// most names in several directories, and for a whiteout of each.
///
/// A directory is listed once names were missing there. What is made through this layer is added at once; what is made
/// by others is seen after `believed`, when the directory's times have moved.
#[derive(Debug)]
pub(crate) struct Names {
    shards: [Mutex<Vec<Dir>>; SHARDS],
    believed: Duration,
    /// Numbers the listings, so that one is never taken for another.
    listings: AtomicU64,
}

#[derive(Debug)]
struct Dir {
    id: u64,
    misses: u32,
    /// How many misses it takes to list it.
    enough: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Unknown,
    /// It is being listed by a thread; these names came meanwhile.
    Listing {
        number: u64,
        came: Vec<u32>,
    },
    Known(Listed),
}

/// The names of a directory by their hashes. One hash for two names costs a needless system call, no more.
#[derive(Debug)]
struct Listed {
    hashes: HashSet<u32>,
    /// When this was so.
    at: Instant,
    /// Times of the directory that show whether it has changed since; `None` where they can't.
    stamp: Option<Stamp>,
}

/// What is known of a name.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// It may be there.
    Unknown,
    /// It is missing.
    Missing,
    /// It is known, but since too long before `now` to be relied on unless the directory's times are these still.
    Doubted { now: Instant, stamp: Option<Stamp> },
}

/// Time of the last modification and of the last change: seconds and nanoseconds.
type Stamp = [(i64, u32); 2];

/// The directory of that number, which from now on is the most recently used one: these stand last.
fn used(shard: &mut [Dir], id: u64) -> Option<&mut Dir> {
    let at = shard.iter().position(|known| known.id == id)?;
    shard[at..].rotate_left(1);
    shard.last_mut()
}

fn hash(name: &[u8]) -> u32 {
    (identity::hash(name) >> 32) as u32
}

impl Names {
    pub(crate) fn new(believed: Duration) -> Self {
        Self { shards: Default::default(), believed, listings: AtomicU64::new(0) }
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, Vec<Dir>> {
        // The index is always in range; the first shard stands in for what can't be.
        let shard = self.shards.get((id ^ (id >> 9)) as usize % SHARDS).unwrap_or(&self.shards[0]);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That name has just been made in the directory.
    pub(crate) fn came(&self, dir: u64, name: Name<'_>) {
        let mut shard = self.shard(dir);
        let Some(dir) = shard.iter_mut().find(|known| known.id == dir) else { return };
        match &mut dir.state {
            State::Unknown => {}
            State::Listing { came, .. } => came.push(hash(name.as_bytes())),
            State::Known(listed) if listed.hashes.len() < 2 * NAMES_MAX => {
                listed.hashes.insert(hash(name.as_bytes()));
            }
            State::Known(_) => dir.state = State::Unknown,
        }
    }

    /// The directory is gone.
    pub(crate) fn remove(&self, dir: u64) {
        self.shard(dir).retain(|known| known.id != dir);
    }

    /// Counts a name that was missing. Answers the number of the listing that is to be made now, if it is time for one.
    fn missed(&self, id: u64) -> Option<u64> {
        let mut shard = self.shard(id);
        if used(&mut shard, id).is_none() {
            if shard.len() >= PER_SHARD {
                shard.remove(0);
            }
            shard.push(Dir { id, misses: 0, enough: MISSES, state: State::Unknown });
        }
        let dir = shard.last_mut().filter(|dir| matches!(dir.state, State::Unknown))?;
        dir.misses += 1;
        if dir.misses < dir.enough {
            return None;
        }
        let number = self.listings.fetch_add(1, Ordering::Relaxed);
        dir.misses = 0;
        dir.state = State::Listing { number, came: Vec::new() };
        Some(number)
    }

    /// That listing is made; `None`: it can't be relied on.
    fn listed(&self, id: u64, number: u64, listed: Option<Listed>) {
        let mut shard = self.shard(id);
        let Some(dir) = shard.iter_mut().find(|known| known.id == id) else { return };
        let State::Listing { number: current, came } = &mut dir.state else { return };
        if *current != number {
            return;
        }
        dir.state = match listed {
            Some(mut listed) => {
                dir.enough = MISSES.saturating_add((listed.hashes.len() / NAMES_PER_MISS) as u32);
                listed.hashes.extend(came.drain(..));
                State::Known(listed)
            }
            None => {
                dir.enough = MISSES_TOO_MANY;
                State::Unknown
            }
        };
    }

    /// Is that name missing?
    fn ask(&self, id: u64, name: Name<'_>) -> Answer {
        let mut shard = self.shard(id);
        let Some(Dir { state: State::Known(listed), .. }) = used(&mut shard, id) else { return Answer::Unknown };
        let now = Instant::now();
        if now.saturating_duration_since(listed.at) >= self.believed {
            Answer::Doubted { now, stamp: listed.stamp }
        } else if listed.hashes.contains(&hash(name.as_bytes())) {
            Answer::Unknown
        } else {
            Answer::Missing
        }
    }

    /// What was doubted at `now` was found to be `right` or not.
    fn settle(&self, id: u64, now: Instant, right: Option<Stamp>) {
        let mut shard = self.shard(id);
        let Some(dir) = shard.iter_mut().find(|known| known.id == id) else { return };
        match &mut dir.state {
            State::Known(listed) if right.is_some() && listed.stamp == right => listed.at = now,
            State::Known(_) => dir.state = State::Unknown,
            State::Unknown | State::Listing { .. } => {}
        }
    }
}

impl HostVnode {
    /// Takes note of a name that was to be made in this directory: it is there now, also if it was there already, made by somebody else.
    pub(crate) fn note_name<T>(&self, name: Name<'_>, made: Result<T>) -> Result<T> {
        self.fs().finder.changed();
        if matches!(made, Ok(_) | Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR)) {
            self.fs().names.came(self.number(), name);
        }
        made
    }

    /// Is that name known to be missing in this directory, which `fd` is open on?
    pub(crate) fn surely_lacks(&self, fd: &OwnedFd, name: Name<'_>) -> bool {
        let fs = self.fs();
        if !fs.names_can_be_known() {
            return false;
        }
        let mut answer = fs.names.ask(self.number(), name);
        if let Answer::Doubted { now, stamp } = answer {
            let right = stamp.filter(|stamp| stamp_of(fd).is_ok_and(|now| now == *stamp));
            fs.names.settle(self.number(), now, right);
            answer = fs.names.ask(self.number(), name);
        }
        answer == Answer::Missing
    }

    /// A name was missing in this directory.
    pub(crate) fn missed_name(&self, fd: &OwnedFd) {
        let fs = self.fs();
        if fs.names_can_be_known()
            && let Some(number) = fs.names.missed(self.number())
        {
            fs.names.listed(self.number(), number, list(fd).ok().flatten());
        }
    }
}

/// The directory's times.
fn stamp_of(fd: &OwnedFd) -> Result<Stamp> {
    let stat = statx_fd(fd)?;
    let time = |time: StatxTimestamp| (time.tv_sec, time.tv_nsec);
    Ok([time(stat.stx_mtime), time(stat.stx_ctime)])
}

/// Lists a directory, without a trace of it. `None` if it has too many names, or some that don't stand for themselves.
fn list(dir: &OwnedFd) -> Result<Option<Listed>> {
    let at = Instant::now();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let stamp = stamp_of(dir)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
    match rustix::fs::ioctl_getflags(&fd) {
        Ok(flags) if flags.bits() & SPELLED_OTHERWISE != 0 => return Ok(None),
        // tmpfs knew no such flags, and none of these, before Linux 6.6.
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
        if hashes.len() > NAMES_MAX {
            return Ok(None);
        }
    }
    let settled = stamp.iter().all(|(sec, _)| now.cast_signed().saturating_sub(*sec) > SETTLED.as_secs().cast_signed());
    Ok(Some(Listed { hashes, at, stamp: settled.then_some(stamp) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELIEVED: Duration = Duration::from_secs(60);

    fn name(name: &str) -> Name<'_> {
        Name::new(name.as_bytes()).unwrap()
    }

    fn listed(names: &[&str], at: Instant, stamp: Option<Stamp>) -> Option<Listed> {
        Some(Listed { hashes: names.iter().map(|n| hash(n.as_bytes())).collect(), at, stamp })
    }

    /// The number of the listing that enough misses ask for.
    fn miss_until_listing(names: &Names, dir: u64) -> u64 {
        (0..MISSES).find_map(|_| names.missed(dir)).unwrap()
    }

    #[test]
    fn a_name_that_comes_while_the_directory_is_listed_is_known() {
        let names = Names::new(BELIEVED);
        let now = Instant::now();
        let number = miss_until_listing(&names, 7);
        assert_eq!(names.ask(7, name("new")), Answer::Unknown);
        names.came(7, name("new"));
        names.listed(7, number, listed(&["old"], now, None));
        assert_eq!(names.ask(7, name("new")), Answer::Unknown);
        assert_eq!(names.ask(7, name("old")), Answer::Unknown);
        assert_eq!(names.ask(7, name("none")), Answer::Missing);
        names.came(7, name("none"));
        assert_eq!(names.ask(7, name("none")), Answer::Unknown);
        names.remove(7);
        assert_eq!(names.ask(7, name("other")), Answer::Unknown);
    }

    #[test]
    fn a_listing_that_was_overtaken_is_not_taken_for_another() {
        let names = Names::new(BELIEVED);
        let now = Instant::now();
        let slow = miss_until_listing(&names, 7);
        names.remove(7);
        names.came(7, name("between"));
        let second = miss_until_listing(&names, 7);
        names.listed(7, slow, listed(&[], now, None));
        assert_eq!(names.ask(7, name("between")), Answer::Unknown);
        names.listed(7, second, listed(&["between"], now, None));
        assert_eq!(names.ask(7, name("between")), Answer::Unknown);
        assert_eq!(names.ask(7, name("other")), Answer::Missing);
    }

    #[test]
    fn what_is_old_is_believed_only_while_the_times_stand_still() {
        let names = Names::new(BELIEVED);
        let stamp = [(5, 5), (6, 6)];
        let list_long_ago = || {
            let number = miss_until_listing(&names, 7);
            names.listed(7, number, listed(&[], Instant::now().checked_sub(2 * BELIEVED).unwrap(), Some(stamp)));
        };
        list_long_ago();
        let Answer::Doubted { now, stamp: doubted } = names.ask(7, name("a")) else { panic!("believed") };
        assert_eq!(doubted, Some(stamp));
        names.settle(7, now, doubted);
        assert_eq!(names.ask(7, name("a")), Answer::Missing);
        names.remove(7);
        list_long_ago();
        names.settle(7, now, None);
        assert_eq!(names.ask(7, name("a")), Answer::Unknown);
    }

    #[test]
    fn a_directory_whose_names_are_asked_for_stays_known() {
        let names = Names::new(BELIEVED);
        let number = miss_until_listing(&names, 7);
        names.listed(7, number, listed(&[], Instant::now(), None));
        for dir in 8..1000 {
            names.missed(dir);
            assert_eq!(names.ask(7, name("none")), Answer::Missing);
        }
    }

    #[test]
    fn few_directories_are_known() {
        let names = Names::new(BELIEVED);
        for dir in 0..1000 {
            names.missed(dir);
        }
        assert!(names.shards.iter().all(|shard| shard.lock().unwrap().len() <= PER_SHARD));
    }
}
