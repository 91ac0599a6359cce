//! Version sets in memory, and the files of a set in its store.

use crate::blocks::VolumeBlocks;
use crate::by_number::is_shown;
use crate::core::Core;
use crate::floor;
use crate::inode::Inode;
use crate::lost_records::with_traces;
use crate::past::head_of;
use crate::space::{Space, is_last_try};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use versionset::{
    Cause, Condition, Departure, Head, Index, LINKS, Letter, OF_NEW_NAME, OF_STORE, Record, STORE, Seal, SetFiles,
    Sparse, SparseWriter, Stamp, StoreFiles, StoreName, Traces, Version, index_name, new_index_name, new_version_name,
    parse, stem_of, version_name,
};
use vnode::{
    Attr, Cx, Entry, Errno, Kind, MAY_BLOCK, Name, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time,
    Vnode,
};

/// Versions of all sets together that stay in memory after use.
const CACHED_VERSIONS: usize = 100_000;

/// Sets that stay in memory after use.
const CACHED_SETS: usize = 4096;

/// The mode of fallocate(2) that keeps the size.
const KEEP_SIZE: u32 = 1;

/// Largest index that is read, in bytes: some 5 million versions.
const MAX_INDEX: u64 = 1 << 29;

/// Which set: that of a name in a directory, or that of an inode with several names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    dir: u64,
    generation: u32,
    stem: Arc<[u8]>,
}

/// A version set.
pub(crate) struct Set {
    /// The directory with the store.
    home: Arc<dyn Vnode>,
    home_inode: Arc<Inode>,
    blocks: Arc<VolumeBlocks>,
    pub(crate) space: Arc<Space>,
    /// Whether the files are in the directory [`LINKS`] of the store.
    is_link: bool,
    pub(crate) stem: Arc<[u8]>,
    /// The file's name, if it is not the stem.
    name: Option<Box<[u8]>>,
    state: Mutex<State>,
    /// Whether the index has a record in memory only, which nothing but the index says.
    is_late: AtomicBool,
    /// How many open files read each version.
    readers: Mutex<HashMap<u64, u32>>,
}

/// A version that is being read. No policy discards it: a program that copies an old version to the
/// head makes a version by that, which may exceed a maximum.
#[derive(Debug)]
pub(crate) struct Reader {
    set: Arc<Set>,
    number: u64,
}

impl Reader {
    pub(crate) fn new(set: &Arc<Set>, number: u64) -> Self {
        *set.readers.lock().entry(number).or_default() += 1;
        Self { set: Arc::clone(set), number }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.set.readers.lock();
        if let Some(count) = readers.get_mut(&self.number) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.number);
            }
        }
    }
}

impl Set {
    /// Whether a program is reading a version.
    pub(crate) fn is_read(&self, number: u64) -> bool {
        self.readers.lock().contains_key(&number)
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Set").field("stem", &self.stem.escape_ascii().to_string()).finish_non_exhaustive()
    }
}

/// What is in the store: loaded at the first use.
#[derive(Debug, Default)]
struct State {
    is_loaded: bool,
    index: Index,
    /// Length of the log in bytes; 0 if there is none.
    log_len: u64,
    /// Whether a repair of the index could not be written: the index is written anew before the
    /// next record.
    is_unwritten: bool,
    store: Option<Arc<dyn Vnode>>,
    /// Whether another user may have made the store. Then the versions have no set-user-ID and
    /// set-group-ID bits, and no privileged extended attributes.
    is_forgeable: bool,
    /// The seal of the version with this number, if it is known.
    seal: Option<(u64, Seal)>,
}

/// A set that is locked and loaded.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    pub(crate) set: &'a Set,
    state: MutexGuard<'a, State>,
    /// Whether another server may be changing the set: then this one changes it only in memory.
    is_foreign: bool,
    trusts_heads: bool,
}

/// A version that was made before a change, or could not be.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) set: Arc<Set>,
    pub(crate) number: u64,
    /// How it is stored; `None` if there was no room for it.
    pub(crate) letter: Option<Letter>,
    /// What its head looked like before the change.
    pub(crate) before: Stamp,
}

impl Made {
    /// Describes a version that was made of an object with these attributes.
    pub(crate) fn new(set: &Arc<Set>, version: &Version, attr: &Attr) -> Self {
        let (set, letter) = (Arc::clone(set), Some(version.letter));
        Self { set, number: version.number, letter, before: Stamp::of(attr) }
    }
}

/// The sets in use, and those used last.
#[derive(Debug, Default)]
pub(crate) struct Sets(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    sets: HashMap<Key, Arc<Set>>,
    /// How many there were when those not in use were dropped.
    left: usize,
}

impl Core {
    /// Returns the set of a name in a directory.
    pub(crate) fn set_of_name(&self, dir: &Arc<dyn Vnode>, name: &[u8]) -> Arc<Set> {
        let stem: Arc<[u8]> = stem_of(name).into();
        let key = Key { dir: dir.id(), generation: dir.generation(), stem };
        let long = (*key.stem != *name).then(|| name.into());
        self.sets.get(key, |stem| self.new_set(Arc::clone(dir), false, stem, long))
    }

    /// Returns the set of an inode with several names.
    pub(crate) fn set_of_link(&self, stem: &[u8]) -> Arc<Set> {
        let key = Key { dir: 0, generation: 0, stem: stem.into() };
        self.sets.get(key, |stem| self.new_set(self.root(), true, stem, None))
    }

    fn new_set(&self, home: Arc<dyn Vnode>, is_link: bool, stem: Arc<[u8]>, name: Option<Box<[u8]>>) -> Set {
        let home_inode = self.inodes.get(home.id());
        let (blocks, space) = (Arc::clone(&self.blocks), Arc::clone(&self.space));
        let (state, readers, is_late) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Set { home, home_inode, blocks, space, is_link, stem, name, state, is_late, readers }
    }
}

impl Sets {
    /// Forgets the sets of a directory, whose store was removed.
    pub(crate) fn forget_dir(&self, dir: u64) {
        self.0.lock().sets.retain(|key, _| key.dir != dir);
    }

    /// Returns the sets with records that are in memory only.
    pub(crate) fn late(&self) -> Vec<Arc<Set>> {
        let table = self.0.lock();
        table.sets.values().filter(|set| set.is_late.load(Ordering::Relaxed)).map(Arc::clone).collect()
    }

    /// Drops sets that nobody uses any more, after much work.
    pub(crate) fn trim(&self) {
        let mut table = self.0.lock();
        while table.sets.len() >= CACHED_SETS {
            let before = table.sets.len();
            table.evict();
            if table.sets.len() == before {
                break;
            }
        }
        let room = CACHED_SETS.max(table.sets.len());
        table.sets.shrink_to(room);
    }

    fn get(&self, key: Key, make: impl FnOnce(Arc<[u8]>) -> Set) -> Arc<Set> {
        let mut table = self.0.lock();
        if let Some(set) = table.sets.get(&key) {
            return Arc::clone(set);
        }
        if is_eviction_due(table.sets.len(), table.left) {
            table.evict();
        }
        let set = Arc::new(make(Arc::clone(&key.stem)));
        table.sets.insert(key, Arc::clone(&set));
        set
    }
}

/// Whether to look for sets to drop among these. `left` stayed the last time. Many may be in use,
/// for example by the queue of the cleaner: then not all are looked at for each new one.
fn is_eviction_due(count: usize, left: usize) -> bool {
    count >= CACHED_SETS.max(left + left / 8)
}

impl Table {
    /// Drops sets that nobody uses: all large ones, and half of the others.
    fn evict(&mut self) {
        let mut versions = 0;
        let mut keep = false;
        self.sets.retain(|_, set| {
            if Arc::strong_count(set) > 1 || set.is_late.load(Ordering::Relaxed) {
                return true;
            }
            keep = !keep;
            versions += set.state.try_lock().map_or(0, |state| state.index.versions.len());
            keep && versions < CACHED_VERSIONS
        });
        self.left = self.sets.len();
    }
}

/// Returns the stem of the set of an inode with several names.
pub(crate) fn link_stem(vnode: &dyn Vnode) -> Vec<u8> {
    format!("{:x}.{:x}", vnode.id(), vnode.generation()).into_bytes()
}

/// Returns the store of a directory, if it has one.
pub(crate) fn find_store(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Option<Arc<dyn Vnode>>> {
    Ok(find_dir(cx, dir, STORE)?.map(|entry| entry.vnode))
}

/// Looks up a directory; anything else of that name counts as nothing.
fn find_dir(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Option<Entry>> {
    Ok(dir.lookup(cx, Name::new(name)?)?.filter(|entry| entry.vnode.kind() == Kind::Directory))
}

/// Returns the store of a directory; creates it if necessary.
pub(crate) fn make_store(cx: &Cx<'_>, home: &Arc<dyn Vnode>, inode: &Inode) -> Result<Arc<dyn Vnode>> {
    if let Some(store) = find_store(cx, home)? {
        return Ok(store);
    }
    // The new entry is the layer's: the directory's times stay those of users' changes.
    let before = home.getattr(cx)?;
    let store = make_dir(cx, home, STORE)?;
    inode.set_has_store(true);
    let set = SetAttr { mtime: Some(SetTime::At(before.mtime)), ..SetAttr::default() };
    home.setattr(cx, &set, None)?;
    Ok(store)
}

/// Returns a directory of the layer's own, which is created if it does not exist.
pub(crate) fn make_dir(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
    let name = Name::new(name)?;
    match dir.mkdir(cx, name, 0o700) {
        Ok(entry) => Ok(entry.vnode),
        Err(Errno::EXIST) => {
            let found = dir.lookup(cx, name)?.ok_or(Errno::IO)?;
            if found.vnode.kind() == Kind::Directory { Ok(found.vnode) } else { Err(Errno::IO) }
        }
        Err(errno) => Err(errno),
    }
}

impl Set {
    /// Returns what identifies the set: the number and generation of its directory, and whether it
    /// belongs to an inode with several names.
    pub(crate) fn identity(&self) -> (u64, u32, bool) {
        (self.home.id(), self.home.generation(), self.is_link)
    }

    /// Whether the set belongs to an inode with several names.
    pub(crate) const fn is_link(&self) -> bool {
        self.is_link
    }

    /// Returns the head, if it is a regular file: only such a one has contents that versions share.
    pub(crate) fn content_head(&self, core: &Core, cx: &Cx<'_>) -> Result<Option<Arc<dyn Vnode>>> {
        Ok(self.head(core, cx)?.filter(|head| head.kind() == Kind::Regular))
    }

    /// Returns the lower object that is the head of the versions, if there is one.
    pub(crate) fn head(&self, core: &Core, cx: &Cx<'_>) -> Result<Option<Arc<dyn Vnode>>> {
        if !self.is_link {
            let name = self.name.as_deref().unwrap_or(&self.stem);
            return Ok(self.home.lookup(cx, Name::new(name)?)?.map(|entry| entry.vnode));
        }
        let Some((number, generation)) = crate::past::parse_number(&self.stem) else { return Err(Errno::IO) };
        match core.by_number(cx, number) {
            Ok(vnode) => Ok((vnode.generation() == generation).then_some(vnode)),
            Err(Errno::STALE | Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Locks the set and loads its index.
    ///
    /// # Errors
    /// `MAY_BLOCK` if another thread has the lock and this one must not wait; errors of the layer
    /// below.
    pub(crate) fn lock<'a>(&'a self, core: &Core, cx: &Cx<'_>) -> Result<Locked<'a>> {
        let state = if cx.may_block { self.state.lock() } else { self.state.try_lock().ok_or(MAY_BLOCK)? };
        let (is_foreign, trusts_heads) = (core.options.read_only, core.options.trust_heads);
        let mut locked = Locked { set: self, state, is_foreign, trusts_heads };
        if !locked.state.is_loaded || locked.is_foreign {
            locked.load(core, &core.server(cx))?;
        }
        Ok(locked)
    }

    /// Notes the seal that a version got.
    pub(crate) fn note_seal(&self, number: u64, seal: Seal) {
        let mut state = self.state.lock();
        if state.is_loaded {
            state.seal = Some((number, seal));
        }
    }

    /// Returns the content-addressed versions of the mount.
    pub(crate) fn blocks(&self) -> &VolumeBlocks {
        &self.blocks
    }

    /// Returns the number of the directory with the store.
    pub(crate) fn home_id(&self) -> u64 {
        self.home.id()
    }

    /// Returns the directory and the name of the file; `None` for the set of an inode.
    pub(crate) fn place(&self) -> Option<(&Arc<dyn Vnode>, &[u8])> {
        (!self.is_link).then(|| (&self.home, self.name.as_deref().unwrap_or(&self.stem)))
    }

    fn find_store(&self, cx: &Cx<'_>) -> Result<Option<Entry>> {
        match find_dir(cx, &self.home, STORE)? {
            Some(store) if self.is_link => find_dir(cx, &store.vnode, LINKS),
            store => Ok(store),
        }
    }
}

impl Locked<'_> {
    pub(crate) fn index(&self) -> &Index {
        &self.state.index
    }

    /// Reads the index, or rebuilds it if it is damaged. Every use of the set begins here.
    fn load(&mut self, core: &Core, cx: &Cx<'_>) -> Result<()> {
        *self.state = State::default();
        self.set.is_late.store(false, Ordering::Relaxed);
        let Some(store) = self.set.find_store(cx)? else {
            self.state.is_loaded = true;
            return Ok(());
        };
        self.state.is_forgeable = store.attr.uid != core.uid;
        let store = store.vnode;
        self.state.store = Some(Arc::clone(&store));
        let name = index_name(&self.set.stem);
        if let Some(entry) = store.lookup(cx, Name::new(&name)?)? {
            let bytes = read_index(cx, &entry)?;
            let (index, condition) = Index::parse(&bytes);
            self.state.index = index;
            self.state.log_len = bytes.len() as u64;
            if condition != Condition::Complete {
                tracing::warn!("the index {} is damaged and is rebuilt", name.escape_ascii());
                let rebuilt = self.rebuild(core, cx, &store);
                self.or_unwritten(rebuilt)?;
            } else if self.has_unknown(cx)? {
                tracing::warn!("the index {} lacks versions and is rebuilt", name.escape_ascii());
                let rebuilt = self.rebuild(core, cx, &store);
                self.or_unwritten(rebuilt)?;
            } else if !self.has_newest(cx, &store)? {
                self.drop_newest(core, cx)?;
            } else {
                self.drop_unfinished(cx)?;
                self.add_lost_birth(core, cx, &entry.attr)?;
            }
            self.end_stale_period(core, cx)?;
        } else {
            self.state.index.apply(Record::Next(floor::read(cx, &store)?));
        }
        self.state.is_loaded = true;
        self.drop_set_ids();
        Ok(())
    }

    /// Takes the set-user-ID and set-group-ID bits from versions that another user may have made:
    /// root must not restore them.
    fn drop_set_ids(&mut self) {
        if self.state.is_forgeable {
            self.state.index.versions.values_mut().for_each(|version| version.mode &= !0o6000);
        }
    }

    /// Whether another user may have made the store.
    pub(crate) fn is_forgeable(&self) -> bool {
        self.state.is_forgeable
    }

    /// Whether there is a version after the newest recorded one: a power failure can lose the end
    /// of the log while the file is durable already. These are the letters of new versions.
    fn has_unknown(&self, cx: &Cx<'_>) -> Result<bool> {
        let next = self.state.index.next();
        for letter in [Letter::Sparse, Letter::Full, Letter::Renamed, Letter::Special, Letter::Directory] {
            if self.file(cx, letter, next)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends the period of an inode with several names that does not have this name: a link that
    /// failed, a removal whose record a kill or a full disk prevented, or a copy of the directory,
    /// in which each file is another inode. The next versions are numbered after those that the
    /// name could have of the inode.
    ///
    /// Nobody knows when a name left. Before it did, a version was made for that, so what the inode
    /// has after the first such version may be of other names only.
    pub(crate) fn end_stale_period(&mut self, core: &Core, cx: &Cx<'_>) -> Result<()> {
        let (records, _) = self.end_of_stale_period(core, cx)?;
        if records.is_empty() { Ok(()) } else { self.repair(cx, &records) }
    }

    /// Returns the index as [`Self::end_stale_period`] makes it in a copy of the directory. `None`
    /// if this is none: somebody may be about to record the end of the period.
    pub(crate) fn index_of_copy(&self, core: &Core, cx: &Cx<'_>) -> Result<Option<Index>> {
        let (records, is_copy) = self.end_of_stale_period(core, cx)?;
        if !is_copy {
            return Ok(None);
        }
        let mut index = self.index().clone();
        records.into_iter().for_each(|record| index.apply(record));
        Ok(Some(index))
    }

    /// Returns the records that end a stale period, and whether the directory is a copy.
    fn end_of_stale_period(&self, core: &Core, cx: &Cx<'_>) -> Result<(Vec<Record>, bool)> {
        const NONE: (Vec<Record>, bool) = (Vec::new(), false);
        let Some(period) = self.state.index.open_link() else { return Ok(NONE) };
        let Some((dir, name)) = self.set.place() else { return Ok(NONE) };
        let head = dir.lookup(cx, Name::new(name)?)?;
        if head.as_ref().is_some_and(|head| *link_stem(&*head.vnode) == *period.stem) {
            return Ok(NONE);
        }
        let (from, first, now) = (period.from, period.first, core.now());
        let link = core.set_of_link(&period.stem);
        let (made, newest, last_end) = {
            let of_inode = link.lock(core, cx)?;
            let mut versions = of_inode.index().versions.values();
            let made = versions.find(|version| version.number >= first && version.cause == Cause::Link);
            let made = made.map(|made| (made.died, made.number));
            (made, of_inode.index().next() - 1, of_inode.index().last_end)
        };
        let next = first.max(newest + 1);
        let changed = from.max(last_end.unwrap_or(from));
        let is_copy = head.is_some() && link.head(core, cx)?.is_none() && self.is_in_copy(cx)?;
        let (end, last) = made.unwrap_or((now, newest));
        // Before numbers were recorded, the times say it. A copy has the content that the inode had
        // since its last version.
        let departure = (first > 0 && !is_copy).then_some(Departure { last, cause: Cause::Unlink });
        let end = if is_copy { changed } else { end.max(from) };
        let mut records = vec![Record::Unlinked(end, departure)];
        if next > self.state.index.next() {
            records.push(Record::Next(next));
        }
        if is_copy {
            let (cause, who) = (Cause::Link, versionset::Who::default());
            records.push(Record::Born(versionset::Birth { time: end, cause, who, from: None, first: next }));
        }
        Ok((records, is_copy))
    }

    /// Whether the store is younger than the last change of the index: a copy that keeps times.
    fn is_in_copy(&self, cx: &Cx<'_>) -> Result<bool> {
        let Some(store) = &self.state.store else { return Ok(false) };
        let Some(born) = store.getattr(cx)?.btime else { return Ok(false) };
        let index = store.lookup(cx, Name::new(&index_name(&self.set.stem))?)?;
        Ok(index.is_some_and(|index| index.attr.mtime < born))
    }

    /// Whether the file of the newest version exists. Its record is written first, so a kill can
    /// leave a record without a file, but no other one.
    fn has_newest(&self, cx: &Cx<'_>, store: &Arc<dyn Vnode>) -> Result<bool> {
        let Some(newest) = self.state.index.newest() else { return Ok(true) };
        let name = version_name(&self.set.stem, newest.letter, newest.number);
        Ok(store.lookup(cx, Name::new(&name)?)?.is_some())
    }

    /// Drops a newest version that a rename made before a kill interrupted it: the file has its
    /// name still.
    fn drop_unfinished(&mut self, cx: &Cx<'_>) -> Result<()> {
        let Some(newest) = self.state.index.newest() else { return Ok(()) };
        let (number, letter) = (newest.number, newest.letter);
        let is_rename = letter == Letter::Renamed || newest.cause == Cause::Replace;
        // A head with a recorded birth came later: the rename was completed.
        let is_over = self.state.index.birth.is_some();
        if is_over || !is_rename || letter == Letter::Directory {
            return Ok(());
        }
        let Some(file) = self.file(cx, letter, number)? else { return Ok(()) };
        let is_head = if self.set.is_link {
            // The version is the inode. Users see a name of it only if the rename did not take
            // that. It can have others elsewhere: in a copy of the store made of hard links.
            // If nobody can tell, the version stays.
            letter == Letter::Full
                && file.attr.nlink > 1
                && match is_shown(cx, &file.vnode) {
                    Err(errno) if errno != MAY_BLOCK => false,
                    is_shown => is_shown?,
                }
        } else {
            let name = Name::new(self.set.name.as_deref().unwrap_or(&self.set.stem))?;
            let Some(head) = self.set.home.lookup(cx, name)? else { return Ok(()) };
            match letter {
                Letter::Renamed => refers_to(&file.vnode.readlink(cx)?, &*head.vnode),
                _ => file.vnode.id() == head.vnode.id(),
            }
        };
        if is_head {
            self.repair(cx, &[Record::Retracted(number)])?;
            let removed = self.remove(cx, letter, number);
            self.or_unwritten(removed)?;
        }
        Ok(())
    }

    /// Drops the record of a version whose file was never made, unless it is stored in another way
    /// than recorded.
    fn drop_newest(&mut self, core: &Core, cx: &Cx<'_>) -> Result<()> {
        let Some(number) = self.state.index.newest().map(|newest| newest.number) else { return Ok(()) };
        for letter in Letter::ALL {
            if self.file(cx, letter, number)?.is_some() {
                return self.repair(cx, &[Record::Converted { number, letter }]);
            }
        }
        let has_head = self.set.head(core, cx)?.is_some();
        // After a power failure, the file may be lost with the head that it was.
        let record = if has_head { Record::Retracted(number) } else { Record::Discarded(number) };
        self.repair(cx, &[record])
    }

    /// Records how the index is repaired.
    pub(crate) fn repair(&mut self, cx: &Cx<'_>, records: &[Record]) -> Result<()> {
        let written = self.append(cx, records);
        let is_written = written.is_ok();
        self.or_unwritten(written)?;
        if !is_written {
            records.iter().for_each(|record| self.state.index.apply(record.clone()));
        }
        Ok(())
    }

    /// Accepts that a repair can't be written: versions are read even on a full or read-only disk.
    fn or_unwritten(&mut self, written: Result<()>) -> Result<()> {
        match written {
            Err(Errno::NOSPC | Errno::DQUOT | Errno::ROFS) => {
                self.state.is_unwritten = true;
                Ok(())
            }
            written => written,
        }
    }

    /// Reconciles the index with the files of the store.
    fn rebuild(&mut self, core: &Core, cx: &Cx<'_>, store: &Arc<dyn Vnode>) -> Result<()> {
        let mut found = SetFiles::default();
        store.readdir(cx, 0, &mut |entry| {
            if let StoreName::Version { stem, letter, number } = parse(entry.name.as_bytes())
                && *stem == *self.set.stem
            {
                found.versions.push((number, letter));
            }
            true
        })?;
        let name = index_name(&self.set.stem);
        let index = store.lookup(cx, Name::new(&name)?)?.map(|entry| entry.attr);
        if index.is_some() && self.state.index == Index::default() {
            self.state.index.apply(Record::Next(floor::read(cx, store)?));
        }
        let head = self.set.head(core, cx)?;
        if let Some(head) = &head {
            self.forget_second_names(cx, &mut found, head)?;
        }
        let files = self.store_files(store, None);
        let rebuilt = self.with_traces(core, cx, (index, head.as_ref()), |traces| {
            versionset::rebuild(cx, &files, &found, &self.state.index, traces)
        })?;
        self.state.index = rebuilt.index;
        self.drop_set_ids();
        // The record of a long name may be what is damaged.
        self.state.index.name = self.set.name.clone();
        if !self.is_foreign {
            // On a read-only disk they can't be read either: the index has the new names.
            for (name, unreadable) in &rebuilt.doubtful {
                store.rename(cx, Name::new(name)?, store, Name::new(unreadable)?, RenameFlags::default())?;
            }
        }
        self.rewrite(cx)
    }

    fn with_traces<T>(
        &self,
        core: &Core,
        cx: &Cx<'_>,
        (index, head): (Option<Attr>, Option<&Arc<dyn Vnode>>),
        infer: impl FnOnce(&Traces<'_>) -> Result<T>,
    ) -> Result<T> {
        with_traces(
            cx,
            (index, self.set.is_link, head),
            |attr| core.birth(attr),
            |number| core.by_number(cx, number),
            infer,
        )
    }

    /// Removes versions without a record that are second names of the head: the rename that would
    /// have replaced it did not happen.
    fn forget_second_names(&mut self, cx: &Cx<'_>, found: &mut SetFiles, head: &Arc<dyn Vnode>) -> Result<()> {
        if self.is_foreign || self.set.is_link {
            return Ok(());
        }
        let unrecorded = |(number, letter): &(u64, Letter)| {
            *letter == Letter::Full && !self.state.index.versions.contains_key(number)
        };
        let doubtful: Vec<_> = found.versions.iter().copied().filter(unrecorded).collect();
        for (number, letter) in doubtful {
            if self.file(cx, letter, number)?.is_some_and(|entry| entry.vnode.id() == head.id()) {
                self.remove(cx, letter, number)?;
                found.versions.retain(|version| *version != (number, letter));
            }
        }
        Ok(())
    }

    /// Records since when there is the head, if a rename brought it and a kill or a power failure
    /// prevented the record.
    fn add_lost_birth(&mut self, core: &Core, cx: &Cx<'_>, made: &Attr) -> Result<()> {
        let index = &self.state.index;
        let is_ended = index.newest().is_none_or(|newest| newest.cause.ends_head());
        if self.set.is_link || !is_ended || !versionset::may_lack_birth(index) {
            return Ok(());
        }
        let head = self.set.head(core, cx)?;
        let birth = self.with_traces(core, cx, (Some(*made), head.as_ref()), |traces| {
            Ok(versionset::lost_birth(&self.state.index, traces))
        })?;
        birth.map_or(Ok(()), |birth| self.repair(cx, &[Record::Born(birth)]))
    }

    /// Writes the index anew.
    pub(crate) fn rewrite(&mut self, cx: &Cx<'_>) -> Result<()> {
        if self.is_foreign {
            return Ok(());
        }
        let store = self.store(cx)?;
        let bytes = self.state.index.to_bytes();
        let (temporary, name) = (new_index_name(&self.set.stem), index_name(&self.set.stem));
        let (temporary, name) = (Name::new(&temporary)?, Name::new(&name)?);
        match store.unlink(cx, temporary) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let (_, file) = store.create(cx, temporary, 0o600, OpenFlags::RDWR)?;
        // It replaces what is durable, and only the log has the flags, notes and links.
        let written = versionset::write_full(cx, &*file, &bytes, 0).and_then(|()| file.fsync(cx, true));
        drop(file);
        let renamed = written.and_then(|()| store.rename(cx, temporary, &store, name, RenameFlags::default()));
        if let Err(errno) = renamed {
            let _ = store.unlink(cx, temporary);
            return Err(errno);
        }
        self.state.log_len = bytes.len() as u64;
        self.state.is_unwritten = false;
        self.set.is_late.store(false, Ordering::Relaxed);
        self.state.index.rewritten();
        Ok(())
    }

    /// Records what is, or is about to be, the case whether or not there is room for the record. If
    /// nothing more can be discarded for that, the record is in memory until there is some.
    ///
    /// # Errors
    /// Those of the layer below; `ENOSPC` or `EDQUOT` if more can be discarded.
    pub(crate) fn append_surely(&mut self, cx: &Cx<'_>, records: &[Record]) -> Result<()> {
        match self.append(cx, records) {
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) if !is_last_try() => Err(errno),
            appended => self.kept(records, appended),
        }
    }

    /// Records a change that was made. It does not fail for lack of space.
    pub(crate) fn append_after(&mut self, cx: &Cx<'_>, records: &[Record]) -> Result<()> {
        let appended = self.append(cx, records);
        self.kept(records, appended)
    }

    /// Keeps records in memory for which there was no room.
    fn kept(&mut self, records: &[Record], appended: Result<()>) -> Result<()> {
        let Err(Errno::NOSPC | Errno::DQUOT) = appended else { return appended };
        tracing::warn!("no room for a record in the index {} yet", self.set.stem.escape_ascii());
        records.iter().for_each(|record| self.state.index.apply(record.clone()));
        // What is in memory is right, even if part of it is in the file: all is written anew.
        (self.state.is_unwritten, self.state.is_loaded) = (true, true);
        self.set.is_late.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sees to it that records of some bytes have room, before a change that is recorded after it.
    ///
    /// # Errors
    /// Those of the layer below. What a record needs is then as before.
    pub(crate) fn reserve(&mut self, cx: &Cx<'_>, bytes: u64) -> Result<()> {
        if self.is_foreign {
            return Ok(());
        }
        self.write_late(cx)?;
        if self.state.log_len == 0 {
            self.append(cx, &[Record::Next(self.index().next())])?;
        }
        let store = self.store(cx)?;
        let name = index_name(&self.set.stem);
        let index = store.lookup(cx, Name::new(&name)?)?.ok_or(Errno::IO)?.vnode;
        match index.open(cx, OpenFlags::WRONLY)?.fallocate(cx, KEEP_SIZE, self.state.log_len, bytes) {
            // Not every file system can allocate ahead.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            reserved => reserved,
        }
    }

    /// Returns the store; creates it if necessary.
    pub(crate) fn store(&mut self, cx: &Cx<'_>) -> Result<Arc<dyn Vnode>> {
        if let Some(store) = &self.state.store {
            return Ok(Arc::clone(store));
        }
        let home = &self.set.home;
        let store = make_store(cx, home, &self.set.home_inode)?;
        let store = if self.set.is_link { make_dir(cx, &store, LINKS)? } else { store };
        self.state.store = Some(Arc::clone(&store));
        Ok(store)
    }

    /// Returns the files of the set for reading contents. `head` is the head, unless no version
    /// depends on it.
    ///
    /// # Errors
    /// `EIO` if there is no store; those of the layer below.
    pub(crate) fn files(&self, cx: &Cx<'_>, head: Option<&Arc<dyn Vnode>>) -> Result<StoreFiles> {
        let head = head.map(|head| head_of(cx, head)).transpose()?;
        let head = head.map(|head| Head { stamp: head.stamp.filter(|_| !self.trusts_heads), ..head });
        let store = self.state.store.as_ref().ok_or(Errno::IO)?;
        Ok(self.store_files(store, head))
    }

    fn store_files(&self, store: &Arc<dyn Vnode>, head: Option<Head>) -> StoreFiles {
        let blocks: Arc<dyn versionset::Blocks> = Arc::clone(&self.set.blocks) as _;
        StoreFiles { dir: Arc::clone(store), stem: self.set.stem.to_vec(), head, blocks: Some(blocks) }
    }

    /// Returns the store, if it exists.
    pub(crate) fn store_dir(&self) -> Option<Arc<dyn Vnode>> {
        self.state.store.clone()
    }

    /// Appends records to the index, and applies them.
    ///
    /// # Errors
    /// Those of the layer below. Then the set is as before, but may be read again.
    pub(crate) fn append(&mut self, cx: &Cx<'_>, records: &[Record]) -> Result<()> {
        if self.is_foreign {
            records.iter().for_each(|record| self.state.index.apply(record.clone()));
            return Ok(());
        }
        let store = self.store(cx)?;
        if self.state.is_unwritten {
            self.rewrite(cx)?;
        }
        let mut log = Vec::new();
        if self.state.log_len == 0 {
            log.extend_from_slice(versionset::MAGIC);
            if let Some(name) = &self.set.name {
                Record::Name(name.clone()).encode(&mut log);
            }
            if self.state.index.next() > 1 {
                Record::Next(self.state.index.next()).encode(&mut log);
            }
        }
        for record in records {
            record.encode(&mut log);
        }
        if let Err(errno) = self.append_bytes(cx, &store, &log) {
            // Part of it may be on disk. To rebuild the index takes space, to shorten it does not.
            self.state.is_loaded = self.cut(cx, &store).is_ok();
            return Err(errno);
        }
        if self.state.log_len == 0 {
            self.state.index.name = self.set.name.clone();
        }
        self.state.log_len += log.len() as u64;
        for record in records {
            self.state.index.apply(record.clone());
        }
        if self.state.index.wants_rewrite()
            && let Err(errno) = self.rewrite(cx)
        {
            tracing::warn!(%errno, "can't write the index {} anew", self.set.stem.escape_ascii());
            self.state.is_loaded = false;
        }
        Ok(())
    }

    fn append_bytes(&self, cx: &Cx<'_>, store: &Arc<dyn Vnode>, log: &[u8]) -> Result<()> {
        let name = index_name(&self.set.stem);
        let name = Name::new(&name)?;
        let file = if self.state.log_len == 0 {
            match store.create(cx, name, self.mode_of_index(cx)?, OpenFlags::WRONLY) {
                Ok((_, file)) => file,
                // Left empty by a failed append.
                Err(Errno::EXIST) => store.lookup(cx, name)?.ok_or(Errno::IO)?.vnode.open(cx, OpenFlags::WRONLY)?,
                Err(errno) => return Err(errno),
            }
        } else {
            store.lookup(cx, name)?.ok_or(Errno::IO)?.vnode.open(cx, OpenFlags::WRONLY)?
        };
        versionset::write_full(cx, &*file, log, self.state.log_len)
    }

    /// Returns the mode of a new index. It says whether the name has a file, because a power
    /// failure may take the records.
    fn mode_of_index(&self, cx: &Cx<'_>) -> Result<u32> {
        let Some((dir, name)) = self.set.place() else { return Ok(OF_STORE) };
        Ok(if dir.lookup(cx, Name::new(name)?)?.is_some() { OF_STORE } else { OF_NEW_NAME })
    }

    /// Removes from the log what a failed append left.
    fn cut(&self, cx: &Cx<'_>, store: &Arc<dyn Vnode>) -> Result<()> {
        let name = index_name(&self.set.stem);
        let name = Name::new(&name)?;
        let Some(entry) = store.lookup(cx, name)? else { return Ok(()) };
        if self.state.log_len == 0 {
            return store.unlink(cx, name);
        }
        let size = SetAttr { size: Some(self.state.log_len), ..SetAttr::default() };
        entry.vnode.setattr(cx, &size, None).map(|_| ())
    }

    /// Returns the length of the index on disk, in bytes.
    pub(crate) fn index_len(&self) -> u64 {
        self.state.log_len
    }

    /// Writes the index if a record could not be written for lack of space.
    pub(crate) fn write_late(&mut self, cx: &Cx<'_>) -> Result<()> {
        if self.state.is_unwritten { self.rewrite(cx) } else { Ok(()) }
    }

    /// Whether the index has what could not be written.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.state.is_unwritten
    }

    /// Whether the set has an index on disk.
    pub(crate) fn has_index(&self) -> bool {
        self.state.log_len > 0
    }

    /// Gives this set, which is empty, the content of another one's index.
    pub(crate) fn take_over(&mut self, cx: &Cx<'_>, other: &Locked<'_>) -> Result<()> {
        self.state.index = other.index().clone();
        self.state.index.name.clone_from(&self.set.name);
        let written = self.rewrite(cx);
        self.state.is_loaded &= written.is_ok();
        written
    }

    /// Removes the index of a set whose versions are gone.
    pub(crate) fn remove_index(&mut self, cx: &Cx<'_>) -> Result<()> {
        self.state.is_loaded = false;
        let Some(store) = self.state.store.clone() else { return Ok(()) };
        match store.unlink(cx, Name::new(&index_name(&self.set.stem))?) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Forgets what is in memory: the next use reads the index again.
    pub(crate) fn reload(&mut self) {
        self.state.is_loaded = false;
    }

    /// Looks up the file of a version.
    pub(crate) fn file(&self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<Option<Entry>> {
        let Some(store) = &self.state.store else { return Ok(None) };
        store.lookup(cx, Name::new(&version_name(&self.set.stem, letter, number))?)
    }

    /// Creates the file of a version aside: a kill must leave no half of one.
    pub(crate) fn create(&mut self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let store = self.store(cx)?;
        let name = new_version_name(&self.set.stem, letter, number);
        let name = Name::new(&name)?;
        match store.create(cx, name, 0o600, OpenFlags::RDWR) {
            Err(Errno::EXIST) => {
                store.unlink(cx, name)?;
                store.create(cx, name, 0o600, OpenFlags::RDWR)
            }
            created => created,
        }
    }

    /// Gives the file of a version its name, or removes it if it could not be completed. With
    /// `replaces` it replaces one of the same content.
    pub(crate) fn publish<T>(
        &mut self,
        cx: &Cx<'_>,
        (letter, number, replaces): (Letter, u64, bool),
        complete: Result<T>,
    ) -> Result<T> {
        let store = self.store(cx)?;
        let (aside, name) =
            (new_version_name(&self.set.stem, letter, number), version_name(&self.set.stem, letter, number));
        let (aside, name) = (Name::new(&aside)?, Name::new(&name)?);
        let published = complete.and_then(|made| {
            if replaces {
                store.rename(cx, aside, &store, name, RenameFlags::default())?;
            } else {
                move_new(cx, &store, aside, &store, name)?;
            }
            Ok(made)
        });
        if published.is_err() {
            let _ = store.unlink(cx, aside);
        }
        published
    }

    /// Records that a version has its content in a new file, with this letter, and removes the old
    /// one.
    ///
    /// # Errors
    /// Those of recording it, as on a full disk. Then the old file counts, and the new one is gone.
    pub(crate) fn stored_anew(&mut self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<()> {
        let old = self.index().versions.get(&number).map(|version| version.letter).filter(|old| *old != letter);
        if let Err(errno) = self.append(cx, &[Record::Converted { number, letter }]) {
            // If the log has to be read again, it may have the record.
            if old.is_some() && self.state.is_loaded {
                let _ = self.remove(cx, letter, number);
            }
            return Err(errno);
        }
        // The new file counts from here on.
        if let Some(Err(errno)) = old.map(|old| self.remove(cx, old, number)) {
            tracing::warn!(%errno, "version {number} of {} is stored twice", self.set.stem.escape_ascii());
        }
        Ok(())
    }

    /// Removes the file of a version, if it exists.
    pub(crate) fn remove(&mut self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<()> {
        if self.is_foreign {
            return Ok(());
        }
        let store = self.store(cx)?;
        let name = version_name(&self.set.stem, letter, number);
        let name = Name::new(&name)?;
        let id = if letter == Letter::Blocks { read_block_id(cx, &store, name)? } else { None };
        match store.unlink(cx, name) {
            Err(Errno::NOENT) => return Ok(()),
            removed => removed?,
        }
        // A kill before this leaves blocks without a name, which the cleaner deletes.
        id.map_or(Ok(()), |id| self.set.blocks.delete(cx, id))
    }
}

/// Returns the number that the file of a content-addressed version contains.
pub(crate) fn read_block_id(cx: &Cx<'_>, store: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Option<u64>> {
    let Some(entry) = store.lookup(cx, name)?.filter(|entry| entry.vnode.kind() == Kind::Symlink) else {
        return Ok(None);
    };
    Ok(versionset::block_id(&entry.vnode.readlink(cx)?))
}

/// Whether the text of a reference to a renamed file names this object: see `rename`.
fn refers_to(text: &[u8], vnode: &dyn Vnode) -> bool {
    text.split(|byte| *byte == b' ').nth(1) == Some(&link_stem(vnode))
}

pub(crate) fn read_index(cx: &Cx<'_>, entry: &Entry) -> Result<Vec<u8>> {
    read_whole(cx, entry, MAX_INDEX)
}

/// Reads a file of a store. Fails with `EIO` if it is no regular file or exceeds `max` bytes.
pub(crate) fn read_whole(cx: &Cx<'_>, entry: &Entry, max: u64) -> Result<Vec<u8>> {
    if entry.vnode.kind() != Kind::Regular || entry.attr.size > max {
        return Err(Errno::IO);
    }
    let file = entry.vnode.open(cx, OpenFlags::RDONLY)?;
    let mut bytes = vec![0; usize::try_from(entry.attr.size).map_err(|_| Errno::IO)?];
    let len = versionset::read_full(cx, &*file, &mut bytes, 0)?;
    bytes.truncate(len);
    Ok(bytes)
}

impl Locked<'_> {
    /// Whether the name belongs to the inode with this stem, which has or had several names.
    pub(crate) fn is_linked(&self, stem: &[u8]) -> bool {
        self.index().open_link().is_some_and(|period| *period.stem == *stem)
    }

    /// Returns the records by which the name joins an inode with several names. The inode's
    /// versions from `first` on are the name's.
    pub(crate) fn joining(&self, from: Time, stem: &[u8], first: u64) -> Vec<Record> {
        let left = self.index().open_link().map(|_| Record::Unlinked(from, None));
        left.into_iter().chain([Record::Linked(from, stem.into(), first)]).collect()
    }

    /// Returns the time of a change of the name: `now`, or a later time if the clock was set back
    /// since the last change.
    pub(crate) fn time_of_change(&self, now: Time) -> Time {
        let newest = self.index().last_end;
        let linked = self.index().links.last().map(|period| period.until.unwrap_or(period.from));
        [newest, linked].into_iter().flatten().fold(now, Time::max)
    }

    /// Whether the newest version is one of the present head, whose versions this set keeps. Once
    /// the name left its head, or became one of several, the set takes no bytes from a head.
    pub(crate) fn has_head(&self) -> bool {
        self.index().open_link().is_none()
            && self.index().newest().is_some_and(|newest| crate::head::is_of_head(self.index(), newest))
    }

    /// Returns the newest version if it lacks bytes that are in the head.
    pub(crate) fn dependent(&self) -> Option<(u64, Letter)> {
        let newest = self.index().newest()?;
        let depends = newest.letter.depends_on_newer() && self.has_head();
        depends.then_some((newest.number, newest.letter))
    }

    /// Opens the newest version for saving blocks. `None` if it lacks bytes that no head has any
    /// more. `head` is what the head looks like before it is changed.
    pub(crate) fn activate(&mut self, cx: &Cx<'_>, number: u64, head: &Stamp) -> Result<Option<SparseWriter>> {
        let Some(mut writer) = self.reopen(cx, number)? else { return Ok(None) };
        let is_known = self.check_seal(cx, &mut writer, number, head)?;
        if is_known {
            writer.set_seal(cx, Seal::Open)?;
            self.state.seal = Some((number, Seal::Open));
        }
        Ok(is_known.then_some(writer))
    }

    /// Notes that a version was made and receives blocks.
    pub(crate) fn opened(&mut self, number: u64) {
        self.state.seal = Some((number, Seal::Open));
    }

    /// Opens a sparse version for saving blocks. `None` if it is damaged, as by a power failure:
    /// nobody can read it.
    fn reopen(&self, cx: &Cx<'_>, number: u64) -> Result<Option<SparseWriter>> {
        let Some(entry) = self.file(cx, Letter::Sparse, number)? else { return Ok(None) };
        let reopened = entry.vnode.open(cx, OpenFlags::RDWR).and_then(|file| Sparse::reopen(cx, file, entry.attr.size));
        match reopened {
            Err(Errno::IO | Errno::NOENT) => Ok(None),
            reopened => reopened.map(Some),
        }
    }

    /// Finds out whether the head was changed unseen since the newest version was sealed, before
    /// the next one is made: then the versions that exist must not take bytes from that.
    pub(crate) fn check_head(&mut self, cx: &Cx<'_>, head: &Stamp) -> Result<()> {
        let Some((number, Letter::Sparse)) = self.dependent() else { return Ok(()) };
        if self.is_foreign || self.state.seal.is_some_and(|(known, seal)| known == number && seal.admits(head)) {
            return Ok(());
        }
        let Some(mut writer) = self.reopen(cx, number)? else { return Ok(()) };
        self.check_seal(cx, &mut writer, number, head).map(drop)
    }

    /// Lets the version before `number`, which is about to go, take bytes from the head as it is
    /// now: the head has the same bytes as when that version was sealed, but maybe another time.
    pub(crate) fn reseal_before(&mut self, cx: &Cx<'_>, number: u64, head: &Stamp) -> Result<()> {
        let Some((older, version)) = self.index().versions.range(..number).next_back() else { return Ok(()) };
        let older = *older;
        if version.letter != Letter::Sparse || version.cause.ends_head() {
            return Ok(());
        }
        let Some(mut writer) = self.reopen(cx, older)? else { return Ok(()) };
        if writer.seal() != Seal::Changed {
            writer.set_seal(cx, Seal::Sealed(*head))?;
        }
        self.state.seal = Some((older, writer.seal()));
        Ok(())
    }

    /// Cuts a version off from a head that was changed unseen. Returns whether it may take bytes
    /// from it.
    fn check_seal(&mut self, cx: &Cx<'_>, writer: &mut SparseWriter, number: u64, head: &Stamp) -> Result<bool> {
        let seal = writer.seal();
        // A version that lacks nothing does not depend on the head.
        let is_whole = || writer.has(0..writer.size());
        let is_known = seal.admits(head) || (self.trusts_heads && seal != Seal::Changed) || is_whole();
        if !is_known && seal != Seal::Changed {
            let name = version_name(&self.set.stem, Letter::Sparse, number);
            tracing::warn!(
                "the file of version {} in directory {} was changed below the mount: the version lacks bytes",
                name.escape_ascii(),
                self.set.home.id()
            );
            writer.set_seal(cx, Seal::Changed)?;
        }
        self.state.seal = Some((number, writer.seal()));
        Ok(is_known)
    }

    /// Reconciles the index with the store, after it proved wrong.
    pub(crate) fn rebuild_now(&mut self, core: &Core, cx: &Cx<'_>) -> Result<()> {
        let store = self.store(cx)?;
        self.rebuild(core, cx, &store)
    }
}

/// Moves an entry to a name that must not exist.
pub(crate) fn move_new(
    cx: &Cx<'_>,
    dir: &Arc<dyn Vnode>,
    name: Name<'_>,
    new_dir: &Arc<dyn Vnode>,
    new_name: Name<'_>,
) -> Result<()> {
    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
    match dir.rename(cx, name, new_dir, new_name, flags) {
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {}
        moved => return moved,
    }
    // The file system does not know the flag. Nobody else makes version files.
    if new_dir.lookup(cx, new_name)?.is_some() {
        return Err(Errno::EXIST);
    }
    dir.rename(cx, name, new_dir, new_name, RenameFlags::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_in_use_are_not_looked_at_for_each_new_one() {
        let (mut left, mut looks) = (0, 0);
        for count in 0..100_000 {
            if is_eviction_due(count, left) {
                (left, looks) = (count, looks + count);
            }
        }
        assert!(looks > 100_000 && looks < 2_000_000, "{looks}");
    }
}
