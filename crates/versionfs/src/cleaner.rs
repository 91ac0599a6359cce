//! The cleaner and converter (Versionfs paper, section 3.5): a thread that converts versions which
//! were made in the cheapest way into the format of their policy, and now and then applies the
//! policies to the whole tree.

use crate::convert::{Outcome, is_content};
use crate::core::Core;
use crate::retain::remove_tree;
use crate::set::{Set, read_block_id};
use crate::space;
use crate::walk::{self, Found, Position};
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;
use versionpolicy::VersionInfo;
use versionset::{Letter, StoreName, Version, parse, version_name};
use vnode::{Cx, Errno, Name, OpenFlags, RenameFlags, Result};

/// Versions that wait for their conversion. Beyond that, the next walk finds them.
const QUEUE: usize = 1 << 16;

/// Versions that are known to stay as they are.
const USELESS: usize = 1 << 17;

/// How long the thread waits after a version was made: the next change may soon follow.
const DELAY: Duration = Duration::from_secs(3);

/// How often a version whose file is being changed is tried again.
const TRIES: u8 = 5;

/// Time from the mount to the first walk, and between walks.
const FIRST_WALK: Duration = Duration::from_secs(600);
const WALKS: Duration = Duration::from_secs(24 * 3600);

/// Directories after which a walk notes its position.
const NOTED: u32 = 64;

/// In the root's store: how far the walk is.
const POSITION: &[u8] = b";walk";
const NEW_POSITION: &[u8] = b";walk~";

/// Longest file with a position in bytes.
const MAX_POSITION: u64 = 1 << 20;

/// A version to be converted.
#[derive(Debug)]
struct Job {
    set: Arc<Set>,
    number: u64,
    tries: u8,
}

/// A version that stays as it is: its set's directory and stem, and its number.
type Useless = (u64, Arc<[u8]>, u64);

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Job>,
    useless: HashSet<Useless>,
    /// Content-addressed versions that the last walk found no file of.
    nameless: BTreeSet<u64>,
    /// Whether the audit log has begun a new segment since its bounds were applied.
    has_log_grown: bool,
    stops: bool,
}

/// The state of the background work of a mount.
#[derive(Debug, Default)]
pub(crate) struct Background {
    state: Mutex<State>,
    changed: Condvar,
    ended: Condvar,
    /// One at a time converts and cleans.
    works: Mutex<()>,
}

/// What a pass over the tree did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleaned {
    /// Version sets that were looked at.
    pub(crate) sets: u64,
    /// Versions that remain.
    pub(crate) versions: u64,
    /// What they take, in bytes.
    pub(crate) stored: u64,
    pub(crate) converted: u64,
    pub(crate) discarded: u64,
    /// Bytes of the discarded versions.
    pub(crate) freed: u64,
    /// Leftovers of interrupted operations that were removed.
    pub(crate) leftovers: u64,
    /// Sets that could not be handled.
    pub(crate) failed: u64,
}

impl Background {
    /// Notes a version that was made.
    pub(crate) fn made(&self, set: &Arc<Set>, number: u64) {
        let mut state = self.state.lock();
        if state.queue.len() >= QUEUE {
            state.queue.pop_front();
        }
        // Waking the thread for each version would take longer than queuing it.
        if state.queue.is_empty() {
            self.changed.notify_one();
        }
        state.queue.push_back(Job { set: Arc::clone(set), number, tries: 0 });
    }

    /// The audit log has begun a new segment.
    pub(crate) fn log_grew(&self) {
        self.state.lock().has_log_grown = true;
        self.changed.notify_one();
    }

    fn next(&self) -> Option<Job> {
        self.state.lock().queue.pop_front()
    }

    fn again(&self, job: Job) {
        if job.tries < TRIES {
            self.state.lock().queue.push_back(Job { tries: job.tries + 1, ..job });
        }
    }

    fn is_useless(&self, set: &Set, number: u64) -> bool {
        self.state.lock().useless.contains(&(set.home_id(), Arc::clone(&set.stem), number))
    }

    fn set_useless(&self, set: &Set, number: u64) {
        let mut state = self.state.lock();
        if state.useless.len() >= USELESS {
            state.useless.clear();
        }
        state.useless.insert((set.home_id(), Arc::clone(&set.stem), number));
    }

    /// Policies changed: nothing is known any more.
    pub(crate) fn forget(&self) {
        self.state.lock().useless.clear();
    }

    fn stops(&self) -> bool {
        self.state.lock().stops
    }

    /// Waits until there is something to do or `until`. Returns false at the end.
    fn wait(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.stops && state.queue.is_empty() && !state.has_log_grown {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        !state.stops
    }

    /// Waits for a while. Returns false at the end.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.stops && !self.ended.wait_until(&mut state, until).timed_out() {}
        !state.stops
    }
}

/// The threads of a mount. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    core: Weak<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl Worker {
    /// Starts the threads.
    pub(crate) fn start(core: &Arc<Core>) -> Self {
        let start = |name: &str, run: fn(&Arc<Core>), lack: &str| {
            let core = Arc::clone(core);
            let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&core));
            started.inspect_err(|error| tracing::warn!(%error, "{lack}")).ok()
        };
        let cleaner = start("versionfs", run, "no thread for conversion; versions stay as they were made");
        let keeper = start("versionfs-space", space::keep, "no thread that keeps the bound of the history");
        Self { core: Arc::downgrade(core), threads: cleaner.into_iter().chain(keeper).collect() }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.background.state.lock().stops = true;
            core.background.changed.notify_all();
            core.background.ended.notify_all();
            core.space.stop();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(core: &Arc<Core>) {
    // Of this thread only.
    if let Err(errno) = rustix::process::nice(19) {
        tracing::debug!(%errno, "can't lower the priority of the cleaner");
    }
    let mut walk = Instant::now() + FIRST_WALK;
    while core.background.wait(walk) {
        if Instant::now() >= walk {
            if let Err(errno) = core.clean_from_position() {
                tracing::warn!(%errno, "the cleaner can't walk through the tree");
            }
            walk = Instant::now() + WALKS;
        }
        if core::mem::take(&mut core.background.state.lock().has_log_grown) {
            core.bound_log_alone();
        }
        if !core.background.pause(DELAY) {
            return;
        }
        core.convert_queue(&|| core.background.stops());
        core.sets.trim();
    }
}

impl Core {
    pub(crate) fn own_cx(&self) -> Cx<'static> {
        self.server(&Cx::internal(0, 0))
    }

    /// Converts the versions that are in the queue now. Returns how many were converted.
    pub(crate) fn convert_queue(self: &Arc<Self>, stops: &dyn Fn() -> bool) -> u64 {
        let _works = self.background.works.lock();
        let count = self.background.state.lock().queue.len();
        let mut converted = 0;
        for _ in 0..count {
            if stops() {
                break;
            }
            let Some(job) = self.background.next() else { break };
            let again = self.convert_one(&job.set, job.number, &mut converted);
            if again {
                self.background.again(job);
            }
        }
        converted
    }

    /// Converts a version and the one before it, whose format may need that it is not the newest.
    /// Returns whether to try again.
    fn convert_one(self: &Arc<Self>, set: &Arc<Set>, number: u64, converted: &mut u64) -> bool {
        let cx = self.own_cx();
        let before = set.lock(self, &cx).ok().and_then(|locked| {
            let versions = &locked.index().versions;
            versions.range(..number).next_back().filter(|(_, before)| is_content(before.letter)).map(|(n, _)| *n)
        });
        let mut is_busy = false;
        // The older one first: its delta may come from the newer one's blocks.
        for number in before.into_iter().chain([number]) {
            if self.background.is_useless(set, number) {
                continue;
            }
            match self.convert(&cx, set, number) {
                Ok(Outcome::Done) => *converted += 1,
                Ok(Outcome::Busy) => is_busy = true,
                Ok(Outcome::Useless) => self.background.set_useless(set, number),
                Ok(Outcome::Unchanged) => {}
                Err(errno) => {
                    tracing::warn!(%errno, "can't convert version {number} of {}", set.stem.escape_ascii());
                }
            }
        }
        is_busy
    }

    /// Applies the bounds of the audit log while nobody cleans.
    fn bound_log_alone(&self) {
        let _works = self.background.works.lock();
        if let Err(errno) = self.bound_log(&self.own_cx()) {
            tracing::warn!(%errno, "can't discard old segments of the audit log");
        }
    }

    /// Applies the policies to the whole tree.
    ///
    /// # Errors
    /// Those of the audit log and the block store; directories and sets that can't be read are
    /// counted.
    pub(crate) fn clean(self: &Arc<Self>, stops: &dyn Fn() -> bool) -> Result<Cleaned> {
        self.clean_after(&Vec::new(), stops, false)
    }

    /// As [`Self::clean`], continuing a walk that was interrupted.
    fn clean_from_position(self: &Arc<Self>) -> Result<Cleaned> {
        let position = self.read_position().unwrap_or_default();
        self.clean_after(&position, &|| self.background.stops(), true)
    }

    fn clean_after(self: &Arc<Self>, after: &Position, stops: &dyn Fn() -> bool, notes: bool) -> Result<Cleaned> {
        let _works = self.background.works.lock();
        let cx = self.own_cx();
        let (mut cleaned, mut since, mut unread) = (Cleaned::default(), 0, 0);
        self.bound_log(&cx)?;
        let moves = self.blocks.moves();
        let mut nameless = if after.is_empty() { self.blocks.ids(&cx)? } else { BTreeSet::new() };
        let visit: walk::Visit<'_> = &mut |position, found| {
            self.clean_store(&cx, found, &mut cleaned, &mut nameless)?;
            since += 1;
            if notes && (since % NOTED == 0 || stops()) {
                self.write_position(&cx, position)?;
            }
            Ok(!stops())
        };
        let pass_over: walk::Unread<'_> = &mut |position, errno| {
            let place = position.join(&b'/');
            tracing::warn!(%errno, "can't clean the versions in the directory /{}", place.escape_ascii());
            unread += 1;
            Ok(())
        };
        let done = walk::stores(&cx, &self.root(), after, (visit, pass_over))?;
        cleaned.failed += unread;
        if done {
            self.remove_position(&cx);
            if after.is_empty() {
                self.bound_volume(&mut cleaned, stops)?;
                let is_sure = moves == self.blocks.moves() && cleaned.failed == 0;
                if !is_sure {
                    nameless.clear();
                }
                self.delete_nameless(&cx, &nameless, &mut cleaned)?;
            }
            self.blocks.collect(&cx, stops)?;
        }
        Ok(cleaned)
    }

    fn clean_store(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        found: &Found,
        cleaned: &mut Cleaned,
        nameless: &mut BTreeSet<u64>,
    ) -> Result<()> {
        let (mut sets, mut unfinished) = (BTreeMap::<Vec<u8>, Vec<(u64, Letter)>>::new(), Vec::new());
        walk::list(cx, &found.store, &mut |entry| match parse(entry.name.as_bytes()) {
            StoreName::Index(stem) => drop(sets.entry(stem.to_vec()).or_default()),
            StoreName::Unfinished(stem) => unfinished.push((stem.to_vec(), entry.name.as_bytes().to_vec())),
            StoreName::Version { stem, letter, number } => {
                sets.entry(stem.to_vec()).or_default().push((number, letter));
            }
            StoreName::Other => {}
        })?;
        for (stem, name) in unfinished {
            match self.remove_unfinished(cx, found, &stem, &name) {
                Ok(removed) => cleaned.leftovers += u64::from(removed),
                Err(errno) => {
                    tracing::warn!(%errno, "can't remove the unfinished {}", name.escape_ascii());
                    cleaned.failed += 1;
                }
            }
        }
        for (stem, files) in sets {
            for (number, _) in files.iter().filter(|(_, letter)| *letter == Letter::Blocks) {
                let name = version_name(&stem, Letter::Blocks, *number);
                if let Some(id) = read_block_id(cx, &found.store, Name::new(&name)?)? {
                    nameless.remove(&id);
                }
            }
            let Some(set) = self.set_in(cx, found, &stem)? else { continue };
            cleaned.sets += 1;
            let done = self.remove_leftovers(cx, &set, &files, cleaned);
            let done = done.and_then(|()| self.clean_set(cx, &set, cleaned)).and_then(|()| self.drop_bare(cx, &set));
            if let Err(errno) = done {
                tracing::warn!(%errno, "can't clean the versions of {}", stem.escape_ascii());
                cleaned.failed += 1;
            }
        }
        Ok(())
    }

    /// Removes a file that was being built when the server was killed, and returns whether it was
    /// there. Everything that builds files has the set locked; only conversions have not, and those
    /// are made by the thread that cleans.
    fn remove_unfinished(&self, cx: &Cx<'_>, found: &Found, stem: &[u8], name: &[u8]) -> Result<bool> {
        // Without an index nothing is known of a long name: left to fsck.
        let Some(set) = self.set_in(cx, found, stem)? else { return Ok(false) };
        let locked = set.lock(self, cx)?;
        if found.store.lookup(cx, Name::new(name)?)?.is_none() {
            // It was completed since the store was listed.
            return Ok(false);
        }
        remove_tree(cx, None, &found.store, name)?;
        drop(locked);
        Ok(true)
    }

    /// Deletes content-addressed versions that neither this walk nor the one before found a file
    /// of: a kill left them. A tree that somebody moves in the lower directory may escape one walk.
    fn delete_nameless(&self, cx: &Cx<'_>, nameless: &BTreeSet<u64>, cleaned: &mut Cleaned) -> Result<()> {
        let before = core::mem::take(&mut self.background.state.lock().nameless);
        for id in nameless.intersection(&before) {
            self.blocks.delete(cx, *id)?;
            cleaned.leftovers += 1;
        }
        self.background.state.lock().nameless = nameless.difference(&before).copied().collect();
        Ok(())
    }

    /// Returns the set with this stem in a store.
    pub(crate) fn set_in(&self, cx: &Cx<'_>, found: &Found, stem: &[u8]) -> Result<Option<Arc<Set>>> {
        if found.is_links {
            return Ok(Some(self.set_of_link(stem)));
        }
        if !versionset::is_hashed(stem) {
            return Ok(Some(self.set_of_name(&found.dir, stem)));
        }
        let name = versionset::index_name(stem);
        let Some(entry) = found.store.lookup(cx, Name::new(&name)?)? else { return Ok(None) };
        let (index, _) = versionset::Index::parse(&crate::set::read_index(cx, &entry)?);
        Ok(index.name.map(|name| self.set_of_name(&found.dir, &name)))
    }

    /// Removes the files of a set that interrupted conversions and discardings left: numbers that
    /// were given but have no record, and formats that are not recorded.
    fn remove_leftovers(
        &self,
        cx: &Cx<'_>,
        set: &Arc<Set>,
        files: &[(u64, Letter)],
        cleaned: &mut Cleaned,
    ) -> Result<()> {
        let mut locked = set.lock(self, cx)?;
        for (number, letter) in files {
            let index = locked.index();
            let recorded = index.versions.get(number).map(|version| version.letter);
            if recorded == Some(*letter) || *number >= index.next() {
                continue;
            }
            if recorded.is_some_and(|recorded| locked.file(cx, recorded, *number).is_ok_and(|file| file.is_none())) {
                // Only this one exists: the index is wrong.
                return locked.rebuild_now(self, cx);
            }
            if *letter == Letter::Directory {
                let store = locked.store(cx)?;
                remove_tree(cx, Some(&self.blocks), &store, &version_name(&set.stem, *letter, *number))?;
            } else {
                locked.remove(cx, *letter, *number)?;
            }
            cleaned.leftovers += 1;
        }
        Ok(())
    }

    fn clean_set(self: &Arc<Self>, cx: &Cx<'_>, set: &Arc<Set>, cleaned: &mut Cleaned) -> Result<()> {
        let Some((newest, infos)) = self.describe_set(cx, set)? else { return Ok(()) };
        let head = set.content_head(self, cx)?;
        let policy = self.policy_of_version(cx, set, head.as_ref(), &newest);
        let path = set.place().map(|(dir, name)| [&*self.path_of(cx, dir), b"/", name].concat());
        let decision = self.decide(&policy, path.as_deref().unwrap_or_default(), &infos);
        self.discard_all(cx, set, &infos, decision.discarded().collect(), cleaned)?;
        let left: Vec<u64> = set.lock(self, cx)?.index().versions.keys().copied().collect();
        for number in left {
            if !self.background.is_useless(set, number) {
                match self.convert(cx, set, number) {
                    Ok(Outcome::Done) => cleaned.converted += 1,
                    Ok(Outcome::Useless) => self.background.set_useless(set, number),
                    // A full disk: what the set takes counts nevertheless.
                    Ok(Outcome::Busy | Outcome::Unchanged) | Err(Errno::NOSPC | Errno::DQUOT) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        if let Some((_, infos)) = self.describe_set(cx, set)? {
            cleaned.versions += infos.len() as u64;
            cleaned.stored += infos.iter().map(|info| info.stored).sum::<u64>();
        }
        Ok(())
    }

    fn describe_set(&self, cx: &Cx<'_>, set: &Arc<Set>) -> Result<Option<(Version, Vec<VersionInfo>)>> {
        let locked = set.lock(self, cx)?;
        let Some(newest) = locked.index().newest().cloned() else { return Ok(None) };
        Ok(Some((newest, locked.infos(cx, &crate::tags::times(self, cx)?)?)))
    }

    fn discard_all(
        &self,
        cx: &Cx<'_>,
        set: &Set,
        infos: &[VersionInfo],
        numbers: Vec<u64>,
        cleaned: &mut Cleaned,
    ) -> Result<()> {
        let before = cleaned.discarded;
        let done = numbers.into_iter().try_for_each(|number| {
            if self.discard(cx, set, number, false)? {
                cleaned.discarded += 1;
                cleaned.freed += infos.iter().find(|info| info.number == number).map_or(0, |info| info.stored);
            }
            Ok(())
        });
        if cleaned.discarded > before {
            self.report_discarded(cx, [set].into_iter(), None);
        }
        done
    }

    fn read_position(&self) -> Option<Position> {
        let cx = self.own_cx();
        let store = crate::set::find_store(&cx, &self.root()).ok()??;
        let entry = store.lookup(&cx, Name::new(POSITION).ok()?).ok()??;
        let len = usize::try_from(entry.attr.size.min(MAX_POSITION)).ok()?;
        let file = entry.vnode.open(&cx, OpenFlags::RDONLY).ok()?;
        let mut text = vec![0; len];
        versionset::read_full(&cx, &*file, &mut text, 0).ok()?;
        Some(text.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    fn write_position(&self, cx: &Cx<'_>, position: &[Vec<u8>]) -> Result<()> {
        let Some(store) = crate::set::find_store(cx, &self.root())? else { return Ok(()) };
        let temporary = Name::new(NEW_POSITION)?;
        match store.unlink(cx, temporary) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let (_, file) = store.create(cx, temporary, 0o600, OpenFlags::RDWR)?;
        versionset::write_full(cx, &*file, &position.join(&0), 0)?;
        store.rename(cx, temporary, &store, Name::new(POSITION)?, RenameFlags::default())
    }

    fn remove_position(&self, cx: &Cx<'_>) {
        if let Ok(Some(store)) = crate::set::find_store(cx, &self.root())
            && let Ok(name) = Name::new(POSITION)
        {
            let _ = store.unlink(cx, name);
        }
    }
}
