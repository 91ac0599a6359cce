//! Finding an object by its number where nothing leads from the number to it: by a walk of the tree.

use crate::{Cx, DirEntry, Entry, Errno, Kind, Name, NumberHasher, Result, Vnode};
use core::hash::BuildHasherDefault;
use core::time::Duration;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Instant;

/// An index that nobody has used for this long is dropped.
const IDLE: Duration = Duration::from_secs(60);
/// How many bytes the index takes at most: some 1.5 million names of usual length. Of a larger tree
/// it has the directories and as many files as there is room for; each other file takes a walk.
const ROOM: usize = 64 << 20;
/// The most that the directories alone may take. A walk of a tree that has more of them ends.
const ROOM_OF_DIRECTORIES: usize = 4 * ROOM;
/// After a walk none begins for this many times as long as it took.
const REST: u32 = 3;
/// For so long after a walk, or for as long as it took if that is longer, a number that it did not
/// meet is believed to be nobody's, if nothing was changed through the layer meanwhile.
const BELIEVED: Duration = Duration::from_secs(1);
/// How often a walk is repeated when objects were moved meanwhile, behind its back perhaps.
const ATTEMPTS: u32 = 4;
/// How often those who wait for a walk look for its end, or whether their caller has given up.
const TICK: Duration = Duration::from_millis(2);

/// Finds objects of a layer by their numbers.
///
/// The first question walks the whole tree and remembers which name has which number, so that many
/// questions cost one walk. What the index says is verified by look-ups. That a number is not in it
/// is believed for a second, unless something changed. After that the question waits for a walk
/// that begins after it; all such questions share that walk. A walk is followed by a rest of three
/// times its duration, so that numbers which a client makes up can't keep the server walking. The
/// index is dropped when nobody has asked for a minute.
#[derive(Debug, Default)]
pub struct Finder {
    state: Arc<Mutex<State>>,
    /// Held by the thread that walks.
    turn: Mutex<()>,
    /// Counts [`Self::moved`].
    moves: AtomicU64,
    /// Counts [`Self::changed`], and moves too.
    changes: AtomicU64,
    /// Are numbers taken from look-ups in place of listings?
    exact: bool,
}

#[derive(Debug, Default)]
struct State {
    index: Option<Arc<Index>>,
    /// No walk begins before this.
    rested: Option<Instant>,
    used: Option<Instant>,
    /// A thread waits to drop the index.
    watched: bool,
}

/// A name that an object has.
#[derive(Debug)]
pub struct Found {
    /// The directory.
    pub dir: Arc<dyn Vnode>,
    /// The name in it.
    pub name: Box<[u8]>,
    /// What the look-up of the name answered.
    pub entry: Entry,
}

/// Which names had which numbers during a walk.
#[derive(Debug)]
struct Index {
    began: Instant,
    ended: Instant,
    /// [`Finder::moves`] when the walk began.
    moves: u64,
    /// [`Finder::changes`] then.
    changes: u64,
    /// The number that the walk was for: it is here even if the index is not complete.
    wanted: u64,
    complete: bool,
    /// Why a directory could not be searched.
    failed: Option<Errno>,
    /// The first is the root.
    dirs: Vec<Directory>,
    /// By number.
    places: Vec<Place>,
    /// A byte for the length of each name, then its bytes.
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

/// Does that error mean that something was there a moment ago and is not any more?
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE | Errno::NOTDIR)
}

impl Finder {
    /// For a layer whose listings show the numbers of all entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For a layer whose listings may show other numbers than look-ups do, but for directories:
    /// each name of the tree is looked up.
    #[must_use]
    pub fn exact() -> Self {
        Self { exact: true, ..Self::default() }
    }

    /// An object was renamed or got another name: a walk that is under way may have missed it.
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Release);
        self.changed();
    }

    /// An entry came or went: what the index lacks may be there now.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The names below `root` of the object that shows the number `ino`: `enough` of them, or all
    /// that there are; none if no object has that number.
    ///
    /// # Errors
    /// [`crate::MAY_BLOCK`], `EINTR`; what kept the walk from a part of the tree, if the object is
    /// nowhere else.
    pub fn find(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, ino: u64, enough: usize) -> Result<Vec<Found>> {
        cx.require_blocking()?;
        let asked = Instant::now();
        let mut index = self.present();
        for _ in 0..ATTEMPTS {
            if let Some(index) = &index {
                let (found, outdated) = index.verified(cx, root, ino)?;
                let last = self.is_fresh(index, asked, ino) || (!outdated && self.is_believed(index, ino));
                if last && found.is_empty() {
                    return index.failed.map_or(Ok(found), Err);
                }
                if last || (!found.is_empty() && found.len() >= enough) {
                    return Ok(found);
                }
            }
            index = Some(self.walk_since(cx, root, ino, asked)?);
        }
        index.map_or(Ok(Vec::new()), |index| Ok(index.verified(cx, root, ino)?.0))
    }

    /// Has the index all that the number had at a moment after `asked`?
    fn is_fresh(&self, index: &Index, asked: Instant, ino: u64) -> bool {
        index.is_for(ino) && index.began >= asked && index.moves == self.moves.load(Ordering::Acquire)
    }

    /// Has it all that the number had a moment ago, as far as is known?
    fn is_believed(&self, index: &Index, ino: u64) -> bool {
        let lasts = BELIEVED.max(index.ended - index.began);
        let unchanged = index.changes == self.changes.load(Ordering::Acquire);
        index.is_for(ino) && unchanged && index.ended.elapsed() < lasts
    }

    /// The index as it is.
    fn present(&self) -> Option<Arc<Index>> {
        let mut state = lock(&self.state);
        state.used = Some(Instant::now());
        state.index.clone()
    }

    /// The index of a walk that began after `asked` and has met the number if it is there.
    fn walk_since(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, ino: u64, asked: Instant) -> Result<Arc<Index>> {
        loop {
            cx.check()?;
            if let Some(index) = self.present().filter(|index| self.is_fresh(index, asked, ino)) {
                return Ok(index);
            }
            let turn = match self.turn.try_lock() {
                Ok(turn) => Some(turn),
                Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            let rested = lock(&self.state).rested.is_none_or(|rested| rested <= Instant::now());
            if turn.is_some() && rested {
                return self.walk(cx, root, ino);
            }
            drop(turn);
            std::thread::sleep(TICK);
        }
    }

    /// Walks, and keeps what it found. In its turn.
    fn walk(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, ino: u64) -> Result<Arc<Index>> {
        let mut index = Index::new(ino);
        (index.moves, index.changes) = (self.moves.load(Ordering::Acquire), self.changes.load(Ordering::Acquire));
        let walked = index.fill(cx, root, self.exact);
        let ended = Instant::now();
        index.ended = ended;
        let mut state = lock(&self.state);
        state.rested = Some(ended + (ended - index.began) * REST);
        walked?;
        index.places.sort_unstable_by_key(|place| place.number);
        let index = Arc::new(index);
        let old = state.index.replace(Arc::clone(&index));
        state.used = Some(ended);
        if !state.watched {
            state.watched = watch(&self.state);
        }
        drop(state);
        drop(old);
        Ok(index)
    }
}

/// Begins a thread that drops the index when it is idle. Answers false if there can't be one.
fn watch(state: &Arc<Mutex<State>>) -> bool {
    let state: Weak<Mutex<State>> = Arc::downgrade(state);
    let wait = move || {
        loop {
            std::thread::sleep(IDLE);
            let Some(state) = state.upgrade() else { return };
            let mut state = lock(&state);
            if state.used.is_none_or(|used| used.elapsed() >= IDLE) {
                state.watched = false;
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

    /// Would it have the number?
    fn is_for(&self, ino: u64) -> bool {
        self.complete || self.wanted == ino
    }

    /// Visits every directory.
    fn fill(&mut self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, exact: bool) -> Result<()> {
        let mut seen = HashSet::<u64, BuildHasherDefault<NumberHasher>>::default();
        seen.insert(root.id());
        let mut way = vec![self.list(cx, Arc::clone(root), 0, exact)?];
        while let Some(visit) = way.last_mut() {
            cx.check()?;
            let Some(next) = visit.subdirs.pop() else {
                way.pop();
                continue;
            };
            let vnode = match self.step(cx, &visit.vnode, next) {
                Ok(Some(vnode)) if seen.insert(vnode.id()) => vnode,
                // Gone, or a second way to a directory, which only somebody else can have made.
                Ok(_) => continue,
                Err(errno) => {
                    self.could_not(errno)?;
                    continue;
                }
            };
            way.push(self.list(cx, vnode, next, exact)?);
        }
        Ok(())
    }

    /// Notes that a part of the tree could not be searched.
    fn could_not(&mut self, errno: Errno) -> Result<()> {
        match errno {
            Errno::INTR | crate::MAY_BLOCK => Err(errno),
            errno if is_gone(errno) => Ok(()),
            errno => {
                self.failed.get_or_insert(errno);
                Ok(())
            }
        }
    }

    /// The vnode of a directory in its parent's; `None` if it is not there any more.
    fn step(&self, cx: &Cx<'_>, parent: &Arc<dyn Vnode>, dir: u32) -> Result<Option<Arc<dyn Vnode>>> {
        let Some(known) = self.dirs.get(dir as usize) else { return Ok(None) };
        let found = parent.lookup(cx, self.name(known.name)?)?;
        let same = |entry: &Entry| entry.attr.ino == known.number && entry.vnode.kind() == Kind::Directory;
        Ok(found.filter(same).map(|entry| entry.vnode))
    }

    /// Takes in the entries of a directory.
    fn list(&mut self, cx: &Cx<'_>, vnode: Arc<dyn Vnode>, dir: u32, exact: bool) -> Result<Visit> {
        let mut subdirs = Vec::new();
        let mut failed = None;
        let listed = vnode.readdir(cx, 0, &mut |entry| {
            let number = if exact { exact_number(cx, &*vnode, entry) } else { Ok(Some(entry.ino)) };
            let taken_in = number.and_then(|number| number.map_or(Ok(None), |n| self.take_in(dir, n, entry)));
            match taken_in {
                Ok(subdir) => subdirs.extend(subdir),
                Err(errno) => failed = Some(errno),
            }
            // One entry that can't be looked up keeps nobody from the others.
            !matches!(failed, Some(Errno::NOMEM | crate::MAY_BLOCK)) && !cx.is_cancelled()
        });
        if let Err(errno) = failed.map_or(listed, Err) {
            self.could_not(errno)?;
        }
        cx.check()?;
        Ok(Visit { vnode, subdirs })
    }

    /// Takes in an entry. Answers the place among the directories of one that is to be visited.
    fn take_in(&mut self, dir: u32, number: u64, entry: &DirEntry<'_>) -> Result<Option<u32>> {
        let is_dir = entry.kind == Kind::Directory;
        let places = self.places.len() * size_of::<Place>();
        let size = self.names.len() + places + self.dirs.len() * size_of::<Directory>();
        if size > ROOM {
            self.complete = false;
            if !is_dir && number != self.wanted {
                return Ok(None);
            }
            if size > ROOM_OF_DIRECTORIES {
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

    /// The names of that number that still lead to it. Are there others, which don't?
    fn verified(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, ino: u64) -> Result<(Vec<Found>, bool)> {
        let first = self.places.partition_point(|place| place.number < ino);
        let places = self.places.get(first..).unwrap_or_default().iter().take_while(|place| place.number == ino);
        let (mut all, mut outdated) = (Vec::new(), false);
        for place in places {
            match self.verify(cx, root, place) {
                Ok(Some(found)) => all.push(found),
                Ok(None) => outdated = true,
                Err(errno) if is_gone(errno) => outdated = true,
                Err(errno) => return Err(errno),
            }
        }
        Ok((all, outdated))
    }

    fn verify(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, place: &Place) -> Result<Option<Found>> {
        let mut way = Vec::new();
        let mut dir = place.dir;
        while dir != 0 {
            way.push(dir);
            dir = self.dirs.get(dir as usize).ok_or(Errno::IO)?.parent;
        }
        let mut vnode = Arc::clone(root);
        for dir in way.into_iter().rev() {
            let Some(next) = self.step(cx, &vnode, dir)? else { return Ok(None) };
            vnode = next;
        }
        let name = self.name(place.name)?;
        let found = vnode.lookup(cx, name)?.filter(|entry| entry.attr.ino == place.number);
        Ok(found.map(|entry| Found { dir: vnode, name: name.as_bytes().into(), entry }))
    }
}

/// The number that a look-up of the entry shows; `None` if it is gone. Directories show it in listings.
fn exact_number(cx: &Cx<'_>, dir: &dyn Vnode, entry: &DirEntry<'_>) -> Result<Option<u64>> {
    if entry.kind == Kind::Directory {
        return Ok(Some(entry.ino));
    }
    match dir.lookup(cx, entry.name) {
        Err(errno) if is_gone(errno) => Ok(None),
        found => Ok(found?.map(|found| found.attr.ino)),
    }
}
