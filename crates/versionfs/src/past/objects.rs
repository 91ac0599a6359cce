//! Numbers of past objects: the top bit and 63 bits of a hash of what the object is, with a key
//! that is random in each mount.
//!
//! An object has the same number as long as the mount exists. Numbers of live objects with the top
//! bit are hashes, too (crate hostfs), so a collision is as improbable as among those.

use crate::convert::is_content;
use crate::history::{History, Moment, Seen};
use crate::past::{PastDir, parse_number};
use crate::reports::shown_directory;
use core::hash::BuildHasher as _;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, Weak};
use vnode::{Kind, Time, Vnode};

/// The bit that all numbers of past objects have.
const PAST: u64 = 1 << 63;

/// What a past object is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PastKey {
    /// A version of a set.
    Version { dir: u64, generation: u32, is_link: bool, stem: Arc<[u8]>, number: u64, ended: (i64, u32), is_raw: bool },
    /// A directory at a time.
    Tree { dir: u64, generation: u32, time: (i64, u32) },
    /// An entry of a past directory.
    Entry { parent: u64, name: Box<[u8]> },
    /// What an entry of a directory at a time to come has until its next version is made.
    Upcoming { parent: u64, name: Box<[u8]>, object: u64, generation: u32, next: u64 },
    /// What a file with several names was at a time.
    Linked { file: u64, generation: u32, time: (i64, u32) },
    /// The directory `.versions` of a directory.
    View { dir: u64, generation: u32 },
}

impl PastKey {
    /// Returns the key of a version.
    pub(crate) fn version(seen: &Seen, is_raw: bool) -> Self {
        let (dir, generation, is_link) = seen.set.identity();
        let (stem, ended) = (Arc::clone(&seen.set.stem), (seen.ended.sec, seen.ended.nsec));
        Self::Version { dir, generation, is_link, stem, number: seen.version.number, ended, is_raw }
    }

    /// Returns the key of what an entry of a past directory was. The names of a file share it, as
    /// far as their histories say that they are names of one file: it does not depend on whether
    /// the file has changed since.
    pub(crate) fn entry(parent: &PastDir, name: &[u8], history: &History, moment: &Moment) -> Self {
        if parent.is_in_future() {
            // What the name will be then is not known. The kernel may use the object for longer.
            let (object, generation) =
                history.head.as_ref().map(|head| (head.vnode.id(), head.vnode.generation())).unwrap_or_default();
            return Self::Upcoming { parent: parent.id, name: name.into(), object, generation, next: history.next };
        }
        let of_file = match moment {
            Moment::Version(position) => history
                .versions
                .get(*position)
                .filter(|seen| seen.set.is_link() && is_content(seen.version.letter))
                .and_then(|seen| parse_number(&seen.set.stem)),
            Moment::Head => history
                .head
                .as_ref()
                .filter(|head| head.attr.kind() == Kind::Regular && head.attr.nlink > 1)
                .map(|head| (head.vnode.id(), head.vnode.generation())),
            Moment::Inode(..) => None,
        };
        let time = (parent.time.sec, parent.time.nsec);
        of_file.map_or_else(
            || Self::Entry { parent: parent.id, name: name.into() },
            |(file, generation)| Self::Linked { file, generation, time },
        )
    }

    /// Returns the key of a directory at a time.
    pub(crate) fn tree(dir: &dyn Vnode, time: Time) -> Self {
        Self::Tree { dir: dir.id(), generation: dir.generation(), time: (time.sec, time.nsec) }
    }
}

/// The past objects in use by number.
#[derive(Debug, Default)]
pub(crate) struct PastObjects {
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    in_use: HashMap<u64, Weak<dyn Vnode>>,
    /// The past directories that show a live one, by its number.
    directories: HashMap<u64, Vec<u64>>,
}

impl State {
    fn insert(&mut self, number: u64, vnode: &Arc<dyn Vnode>) {
        let is_new = self.in_use.insert(number, Arc::downgrade(vnode)).is_none();
        if is_new && let Some(live) = shown_directory(vnode) {
            self.directories.entry(live).or_default().push(number);
        }
        if self.in_use.len().is_power_of_two() {
            self.in_use.retain(|_, vnode| vnode.strong_count() > 0);
            let in_use = &self.in_use;
            self.directories.retain(|_, numbers| {
                numbers.retain(|number| in_use.contains_key(number));
                !numbers.is_empty()
            });
        }
    }
}

impl PastObjects {
    /// Returns the number of an object.
    pub(crate) fn number(&self, key: &PastKey) -> u64 {
        self.hasher.hash_one(key) | PAST
    }

    /// Returns the position of an entry in a listing. It depends on the entry only.
    pub(crate) fn cookie(&self, key: &PastKey) -> u64 {
        self.number(key) >> 2 & (i64::MAX.cast_unsigned() >> 2) | 1
    }

    /// Returns the object with this key if it is in use, otherwise the one that `make` returns for
    /// its number.
    pub(crate) fn get(&self, key: &PastKey, make: impl FnOnce(u64) -> Arc<dyn Vnode>) -> Arc<dyn Vnode> {
        let number = self.number(key);
        let known = self.state.lock().in_use.get(&number).and_then(Weak::upgrade);
        if let Some(vnode) = known {
            return vnode;
        }
        let vnode = make(number);
        let mut state = self.state.lock();
        let raced = state.in_use.get(&number).and_then(Weak::upgrade);
        if raced.is_none() {
            state.insert(number, &vnode);
        }
        drop(state);
        raced.unwrap_or(vnode)
    }

    /// Returns all objects in use.
    pub(crate) fn in_use(&self) -> Vec<Arc<dyn Vnode>> {
        self.state.lock().in_use.values().filter_map(Weak::upgrade).collect()
    }

    /// Whether a past directory was in use lately.
    pub(crate) fn has_directories(&self) -> bool {
        !self.state.lock().directories.is_empty()
    }

    /// Returns the numbers of the past directories in use that show a live directory.
    pub(crate) fn directories_of(&self, live: u64) -> Vec<u64> {
        let state = self.state.lock();
        let is_in_use = |number: &&u64| state.in_use.get(*number).is_some_and(|vnode| vnode.strong_count() > 0);
        state.directories.get(&live).into_iter().flatten().filter(is_in_use).copied().collect()
    }

    /// Returns the object with this number if it is in use.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<dyn Vnode>> {
        if number & PAST == 0 {
            return None;
        }
        self.state.lock().in_use.get(&number)?.upgrade()
    }
}
