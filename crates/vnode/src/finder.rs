//! Finding an object by its number by walking the tree, for layers that have no index from numbers
//! to names.

use crate::{Cx, DirEntry, Entry, Errno, Kind, Name, NumberHasher, Result, Vnode};
use core::hash::BuildHasherDefault;
use core::time::Duration;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Instant;

/// The index is dropped after this idle time.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum size of the index in bytes: about 1.5 million names of typical length. For a larger
/// tree, it holds all directories and as many files as fit; every other file needs a walk.
const MAX_BYTES: usize = 64 << 20;
/// Maximum size of the index for directories alone. A walk of a tree with more directories fails.
const MAX_DIRECTORIES_BYTES: usize = 4 * MAX_BYTES;
/// After a walk, the next one is delayed by this multiple of the walk's duration.
const PAUSE_FACTOR: u32 = 3;
/// A number missing from the index counts as unused for this long after the walk, or for the walk's
/// duration if that is longer, unless the layer changed meanwhile.
const MISSING_TTL: Duration = Duration::from_secs(1);
/// Maximum number of walks for one query, when concurrent renames, possibly out of band, invalidate
/// the result.
const ATTEMPTS: u32 = 4;
/// Polling interval of threads that wait for a walk, for its end and for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Finds objects of a layer by number.
///
/// The first query walks the whole tree and builds an index from numbers to names, so that many
/// queries cost one walk. Index entries are verified by lookup. A number that is missing from the
/// index counts as unused for one second, unless something changed. After that, the query waits for
/// a new walk, which all waiting queries share. After a walk, the finder pauses for three times the
/// walk's duration, so that a client that invents numbers cannot keep the server walking. The index
/// is dropped after a minute without queries.
#[derive(Debug, Default)]
pub struct Finder {
    state: Arc<Mutex<State>>,
    /// Held by the thread that walks the tree.
    walk_lock: Mutex<()>,
    /// Number of [`Self::moved`] calls.
    moves: AtomicU64,
    /// Number of [`Self::changed`] calls, including those made by [`Self::moved`].
    changes: AtomicU64,
    /// Whether numbers come from lookups instead of listings.
    exact: bool,
}

#[derive(Debug, Default)]
struct State {
    index: Option<Arc<Index>>,
    /// Earliest start of the next walk.
    next_walk: Option<Instant>,
    used: Option<Instant>,
    /// Whether a thread is waiting to drop the index.
    has_idle_timer: bool,
}

/// A name of an object.
#[derive(Debug)]
pub struct Found {
    /// The directory.
    pub dir: Arc<dyn Vnode>,
    /// The name in it.
    pub name: Box<[u8]>,
    /// The result of looking up the name.
    pub entry: Entry,
}

/// The names and numbers seen during a walk.
#[derive(Debug)]
struct Index {
    began: Instant,
    ended: Instant,
    /// Value of [`Finder::moves`] when the walk began.
    moves: u64,
    /// Value of [`Finder::changes`] when the walk began.
    changes: u64,
    /// The number that the walk searched for. It is indexed even if the index is incomplete.
    wanted: u64,
    complete: bool,
    /// The error of a directory that could not be searched.
    failed: Option<Errno>,
    /// The first directory is the root.
    dirs: Vec<Directory>,
    /// Sorted by number.
    places: Vec<Place>,
    /// For each name, one length byte followed by its bytes.
    names: Vec<u8>,
}

#[derive(Debug)]
struct Directory {
    number: u64,
    parent: u32,
    name: u32,
}

#[derive(Debug)]
struct Place {
    number: u64,
    dir: u32,
    name: u32,
}

/// A directory whose subdirectories are being visited.
struct Visit {
    vnode: Arc<dyn Vnode>,
    subdirs: Vec<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the error means that the object has disappeared.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE | Errno::NOTDIR)
}

impl Finder {
    /// Creates a finder for a layer whose listings contain the final numbers of all entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a finder for a layer whose listings may contain different numbers than lookups,
    /// except for directories. The walk looks up every name.
    #[must_use]
    pub fn exact() -> Self {
        Self { exact: true, ..Self::default() }
    }

    /// Records that an object was renamed or linked: a walk in progress may have missed it.
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Release);
        self.changed();
    }

    /// Records that an entry was added or removed: the index may lack it.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns names below `root` of the object with number `ino`: at least `enough`, or all that
    /// exist. Returns none if no object has this number.
    ///
    /// # Errors
    /// [`crate::MAY_BLOCK`] or `EINTR`; the error that kept the walk out of a part of the tree, if
    /// the object was not found elsewhere.
    pub fn find(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, ino: u64, enough: usize) -> Result<Vec<Found>> {
        cx.require_blocking()?;
        let query_time = Instant::now();
        let mut index = self.present();
        for _ in 0..ATTEMPTS {
            if let Some(index) = &index {
                let (found, stale) = index.verified(cx, root, ino)?;
                let last = self.is_fresh(index, query_time, ino) || (!stale && self.is_trusted(index, ino));
                if last && found.is_empty() {
                    return index.failed.map_or(Ok(found), Err);
                }
                if last || (!found.is_empty() && found.len() >= enough) {
                    return Ok(found);
                }
            }
            index = Some(self.walk_since(cx, root, ino, query_time)?);
        }
        index.map_or(Ok(Vec::new()), |index| Ok(index.verified(cx, root, ino)?.0))
    }

    /// Whether the index has every name that the number had at some moment after `query_time`.
    fn is_fresh(&self, index: &Index, query_time: Instant, ino: u64) -> bool {
        index.covers(ino) && index.began >= query_time && index.moves == self.moves.load(Ordering::Acquire)
    }

    /// Whether the index can still be trusted to have every name of the number.
    fn is_trusted(&self, index: &Index, ino: u64) -> bool {
        let lasts = MISSING_TTL.max(index.ended - index.began);
        let unchanged = index.changes == self.changes.load(Ordering::Acquire);
        index.covers(ino) && unchanged && index.ended.elapsed() < lasts
    }

    /// Returns the current index and marks it as used.
    fn present(&self) -> Option<Arc<Index>> {
        let mut state = lock(&self.state);
        state.used = Some(Instant::now());
        state.index.clone()
    }

    /// Returns the index of a walk that began after `query_time` and indexed the number if it
    /// exists.
    fn walk_since(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, ino: u64, query_time: Instant) -> Result<Arc<Index>> {
        loop {
            cx.check()?;
            if let Some(index) = self.present().filter(|index| self.is_fresh(index, query_time, ino)) {
                return Ok(index);
            }
            let guard = match self.walk_lock.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            let next_walk = lock(&self.state).next_walk.is_none_or(|next_walk| next_walk <= Instant::now());
            if guard.is_some() && next_walk {
                return self.walk(cx, root, ino);
            }
            drop(guard);
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Walks the tree and stores the index. The caller holds `walk_lock`.
    fn walk(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, ino: u64) -> Result<Arc<Index>> {
        let mut index = Index::new(ino);
        (index.moves, index.changes) = (self.moves.load(Ordering::Acquire), self.changes.load(Ordering::Acquire));
        let walked = index.fill(cx, root, self.exact);
        let ended = Instant::now();
        index.ended = ended;
        let mut state = lock(&self.state);
        state.next_walk = Some(ended + (ended - index.began) * PAUSE_FACTOR);
        walked?;
        index.places.sort_unstable_by_key(|place| place.number);
        let index = Arc::new(index);
        let old = state.index.replace(Arc::clone(&index));
        state.used = Some(ended);
        if !state.has_idle_timer {
            state.has_idle_timer = spawn_idle_timer(&self.state);
        }
        drop(state);
        drop(old);
        Ok(index)
    }
}

/// Starts a thread that drops the index when it is idle. Returns false if the thread cannot be
/// created.
fn spawn_idle_timer(state: &Arc<Mutex<State>>) -> bool {
    let state: Weak<Mutex<State>> = Arc::downgrade(state);
    let wait = move || {
        loop {
            std::thread::sleep(IDLE);
            let Some(state) = state.upgrade() else { return };
            let mut state = lock(&state);
            if state.used.is_none_or(|used| used.elapsed() >= IDLE) {
                state.has_idle_timer = false;
                let old = state.index.take();
                drop(state);
                drop(old);
                return;
            }
        }
    };
    std::thread::Builder::new().name("index".to_owned()).spawn(wait).is_ok()
}

impl Index {
    fn new(wanted: u64) -> Self {
        let root = Directory { number: 0, parent: 0, name: 0 };
        let now = Instant::now();
        Self {
            began: now,
            ended: now,
            moves: 0,
            changes: 0,
            wanted,
            complete: true,
            failed: None,
            dirs: vec![root],
            places: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Whether the index would contain this number.
    fn covers(&self, ino: u64) -> bool {
        self.complete || self.wanted == ino
    }

    /// Walks all directories.
    fn fill(&mut self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, exact: bool) -> Result<()> {
        let mut seen = HashSet::<u64, BuildHasherDefault<NumberHasher>>::default();
        seen.insert(root.id());
        let mut path = vec![self.list(cx, Arc::clone(root), 0, exact)?];
        while let Some(visit) = path.last_mut() {
            cx.check()?;
            let Some(next) = visit.subdirs.pop() else {
                path.pop();
                continue;
            };
            let vnode = match self.step(cx, &visit.vnode, next) {
                Ok(Some(vnode)) if seen.insert(vnode.id()) => vnode,
                // Removed, or a second path to the same directory, which only an out-of-band change
                // can create.
                Ok(_) => continue,
                Err(errno) => {
                    self.record_failure(errno)?;
                    continue;
                }
            };
            path.push(self.list(cx, vnode, next, exact)?);
        }
        Ok(())
    }

    /// Records that a part of the tree could not be searched.
    fn record_failure(&mut self, errno: Errno) -> Result<()> {
        match errno {
            Errno::INTR | crate::MAY_BLOCK => Err(errno),
            errno if is_gone(errno) => Ok(()),
            errno => {
                self.failed.get_or_insert(errno);
                Ok(())
            }
        }
    }

    /// Looks up a subdirectory in its parent; `None` if it is no longer there.
    fn step(&self, cx: &Cx<'_>, parent: &Arc<dyn Vnode>, dir: u32) -> Result<Option<Arc<dyn Vnode>>> {
        let Some(known) = self.dirs.get(dir as usize) else { return Ok(None) };
        let found = parent.lookup(cx, self.name(known.name)?)?;
        let same = |entry: &Entry| entry.attr.ino == known.number && entry.vnode.kind() == Kind::Directory;
        Ok(found.filter(same).map(|entry| entry.vnode))
    }

    /// Indexes the entries of a directory.
    fn list(&mut self, cx: &Cx<'_>, vnode: Arc<dyn Vnode>, dir: u32, exact: bool) -> Result<Visit> {
        let mut subdirs = Vec::new();
        let mut failed = None;
        let listed = vnode.readdir(cx, 0, &mut |entry| {
            let number = if exact { exact_number(cx, &*vnode, entry) } else { Ok(Some(entry.ino)) };
            let added = number.and_then(|number| number.map_or(Ok(None), |n| self.add_entry(dir, n, entry)));
            match added {
                Ok(subdir) => subdirs.extend(subdir),
                Err(errno) => failed = Some(errno),
            }
            // Skip an entry that cannot be looked up, but list the others.
            !matches!(failed, Some(Errno::NOMEM | crate::MAY_BLOCK)) && !cx.is_cancelled()
        });
        if let Err(errno) = failed.map_or(listed, Err) {
            self.record_failure(errno)?;
        }
        cx.check()?;
        Ok(Visit { vnode, subdirs })
    }

    /// Indexes an entry. Returns the directory's position if it is a directory to visit.
    fn add_entry(&mut self, dir: u32, number: u64, entry: &DirEntry<'_>) -> Result<Option<u32>> {
        let is_dir = entry.kind == Kind::Directory;
        let places = self.places.len() * size_of::<Place>();
        let size = self.names.len() + places + self.dirs.len() * size_of::<Directory>();
        if size > MAX_BYTES {
            self.complete = false;
            if !is_dir && number != self.wanted {
                return Ok(None);
            }
            if size > MAX_DIRECTORIES_BYTES {
                return Err(Errno::NOMEM);
            }
        }
        let bytes = entry.name.as_bytes();
        let name = u32::try_from(self.names.len()).map_err(|_| Errno::NOMEM)?;
        self.names.push(u8::try_from(bytes.len()).map_err(|_| Errno::NAMETOOLONG)?);
        self.names.extend_from_slice(bytes);
        self.places.push(Place { number, dir, name });
        if !is_dir {
            return Ok(None);
        }
        let subdir = u32::try_from(self.dirs.len()).map_err(|_| Errno::NOMEM)?;
        self.dirs.push(Directory { number, parent: dir, name });
        Ok(Some(subdir))
    }

    fn name(&self, at: u32) -> Result<Name<'_>> {
        let (len, rest) = self.names.get(at as usize..).and_then(<[u8]>::split_first).ok_or(Errno::IO)?;
        Name::new(rest.get(..usize::from(*len)).ok_or(Errno::IO)?)
    }

    /// Returns the indexed names of the number that are still valid, and whether any was stale.
    fn verified(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, ino: u64) -> Result<(Vec<Found>, bool)> {
        let first = self.places.partition_point(|place| place.number < ino);
        let places = self.places.get(first..).unwrap_or_default().iter().take_while(|place| place.number == ino);
        let (mut all, mut stale) = (Vec::new(), false);
        for place in places {
            match self.verify(cx, root, place) {
                Ok(Some(found)) => all.push(found),
                Ok(None) => stale = true,
                Err(errno) if is_gone(errno) => stale = true,
                Err(errno) => return Err(errno),
            }
        }
        Ok((all, stale))
    }

    fn verify(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, place: &Place) -> Result<Option<Found>> {
        let mut path = Vec::new();
        let mut dir = place.dir;
        while dir != 0 {
            path.push(dir);
            dir = self.dirs.get(dir as usize).ok_or(Errno::IO)?.parent;
        }
        let mut vnode = Arc::clone(root);
        for dir in path.into_iter().rev() {
            let Some(next) = self.step(cx, &vnode, dir)? else { return Ok(None) };
            vnode = next;
        }
        let name = self.name(place.name)?;
        let found = vnode.lookup(cx, name)?.filter(|entry| entry.attr.ino == place.number);
        Ok(found.map(|entry| Found { dir: vnode, name: name.as_bytes().into(), entry }))
    }
}

/// Returns the number from a lookup of the entry; `None` if it was removed. Listings contain the
/// final number of directories.
fn exact_number(cx: &Cx<'_>, dir: &dyn Vnode, entry: &DirEntry<'_>) -> Result<Option<u64>> {
    if entry.kind == Kind::Directory {
        return Ok(Some(entry.ino));
    }
    match dir.lookup(cx, entry.name) {
        Err(errno) if is_gone(errno) => Ok(None),
        found => Ok(found?.map(|found| found.attr.ino)),
    }
}
