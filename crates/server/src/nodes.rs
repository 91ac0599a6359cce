//! The nodes that the kernel knows.

use crate::successors::Successors;
use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vnode::{Cx, Entry, Errno, Kind, NumberMap, Result, SHARDS, Vnode, shard_of};

/// The node id of the root, fixed by the protocol.
pub(crate) const ROOT: u64 = 1;

/// One inode that the kernel knows.
struct Node {
    vnode: Arc<dyn Vnode>,
    /// Look-ups that the kernel has not yet forgotten.
    lookups: u32,
    /// Tells the kernel apart two objects that had the same id one after the other.
    generation: u32,
}

#[derive(Default)]
struct Shard {
    nodes: NumberMap<Node>,
    /// The parents of directories, for `..` in listings.
    parents: NumberMap<u64>,
    /// How many directories have this one for a parent. Counted after the change of `parents`: below zero for moments.
    directories: NumberMap<i32>,
}

/// From which directory a directory came, and where it is now.
#[derive(Clone, Copy, Default)]
struct Moved {
    from: Option<u64>,
    to: Option<u64>,
}

impl Shard {
    /// An entry was looked up in the directory `parent`, or found by number.
    fn adopt(&mut self, parent: Option<u64>, entry: &Entry) -> Moved {
        let Some(parent) = parent.filter(|_| entry.vnode.kind() == Kind::Directory) else {
            return Moved::default();
        };
        Moved { from: self.parents.insert(entry.vnode.id(), parent), to: Some(parent) }
    }
}

/// Below this many nodes their memory is not worth giving back.
const WORTH_TRIMMING: usize = 10_000;

/// Node id -> vnode and look-up count. A node id is the vnode's own number, but for the root and for [`Successors`].
pub(crate) struct Nodes {
    root: Arc<dyn Vnode>,
    /// The root's own number.
    root_number: u64,
    pub(crate) successors: Successors,
    shards: [Mutex<Shard>; SHARDS],
    /// How many nodes there are, and how many there have been since memory was last given back.
    count: AtomicUsize,
    peak: AtomicUsize,
}

/// What the kernel is told of a node.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub(crate) node: u64,
    pub(crate) generation: u32,
}

impl Nodes {
    pub(crate) fn new(root: Arc<dyn Vnode>) -> Self {
        let root_number = root.id();
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { root, root_number, successors: Successors::default(), shards, count: 0.into(), peak: 0.into() }
    }

    fn shard(&self, node: u64) -> MutexGuard<'_, Shard> {
        // The index is below SHARDS; a poisoned lock only means that a handler panicked elsewhere.
        self.shards[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vnode of a node id.
    pub(crate) fn get(&self, node: u64) -> Result<Arc<dyn Vnode>> {
        if node == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        self.shard(node).nodes.get(&node).map(|n| Arc::clone(&n.vnode)).ok_or(Errno::STALE)
    }

    /// Counts one look-up of an entry in the directory `parent`.
    pub(crate) fn remember(&self, parent: u64, entry: &Entry) -> Known {
        self.remember_from(Some(parent), entry)
    }

    /// The same for an object that was found by its number, or as the parent of another.
    pub(crate) fn remember_found(&self, entry: &Entry) -> Known {
        self.remember_from(None, entry)
    }

    fn remember_from(&self, parent: Option<u64>, entry: &Entry) -> Known {
        if self.is_root(&*entry.vnode) {
            return Known { node: ROOT, generation: 0 };
        }
        let (known, moved) = self.count_lookup(parent, entry);
        self.count_directories(moved);
        known
    }

    /// The node id of an object.
    pub(crate) fn node_of(&self, vnode: &dyn Vnode) -> u64 {
        if self.is_root(vnode) { ROOT } else { self.successors.node_of(vnode.id()) }
    }

    /// The file's data moved while the kernel has its old host file: from now on its number has another node.
    pub(crate) fn supersede(&self, number: u64) {
        self.successors.supersede(number, |node| self.knows(node));
    }

    fn knows(&self, node: u64) -> bool {
        self.shard(node).nodes.contains_key(&node)
    }

    /// Is it the root? A layer without a table answers several vnodes of it.
    pub(crate) fn is_root(&self, vnode: &dyn Vnode) -> bool {
        vnode.id() == self.root_number
    }

    fn count_lookup(&self, parent: Option<u64>, entry: &Entry) -> (Known, Moved) {
        let node = self.successors.node_of(entry.vnode.id());
        // Whether the object known by this number is gone; asked for at most once, and not under the lock.
        let mut gone = None;
        loop {
            let mut shard = self.shard(node);
            let known = match shard.nodes.entry(node) {
                Slot::Vacant(slot) => {
                    let generation = entry.vnode.generation();
                    slot.insert(Node { vnode: Arc::clone(&entry.vnode), lookups: 1, generation });
                    self.peak.fetch_max(self.count.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    return (Known { node, generation }, shard.adopt(parent, entry));
                }
                Slot::Occupied(slot) => slot.into_mut(),
            };
            if !Arc::ptr_eq(&known.vnode, &entry.vnode) {
                // Either another vnode of the same object (the null layer has no table), or a new object that was given the
                // number of one that is gone, whose FORGET is still on its way. The kernel must be told: by another
                // generation.
                let generation = entry.vnode.generation();
                if generation != known.generation {
                    match gone {
                        None => {
                            let old = Arc::clone(&known.vnode);
                            drop(shard);
                            gone = Some(is_gone(&*old));
                            continue;
                        }
                        Some(true) => known.generation = generation,
                        Some(false) => {}
                    }
                }
                known.vnode = Arc::clone(&entry.vnode);
            }
            known.lookups = known.lookups.saturating_add(1);
            let generation = known.generation;
            return (Known { node, generation }, shard.adopt(parent, entry));
        }
    }

    /// The kernel forgets `count` look-ups. True: and with them the node.
    pub(crate) fn forget(&self, node: u64, count: u64) -> bool {
        if node == ROOT {
            return false;
        }
        // Dropped after the lock is gone: the last reference of a vnode may do work.
        let mut gone = None;
        let mut moved = Moved::default();
        let mut shard = self.shard(node);
        if let Slot::Occupied(mut slot) = shard.nodes.entry(node) {
            let left = u64::from(slot.get().lookups).saturating_sub(count);
            if left == 0 {
                gone = Some(slot.remove());
                self.count.fetch_sub(1, Ordering::Relaxed);
                moved.from = shard.parents.remove(&node);
                if shard.nodes.len() * 8 < shard.nodes.capacity() {
                    shard.nodes.shrink_to_fit();
                    shard.parents.shrink_to_fit();
                    shard.directories.shrink_to_fit();
                }
            } else {
                slot.get_mut().lookups = u32::try_from(left).unwrap_or(u32::MAX);
            }
        }
        drop(shard);
        let forgotten = gone.is_some();
        drop(gone);
        if forgotten {
            self.successors.forget(node, |other| self.knows(other));
        }
        self.count_directories(moved);
        forgotten
    }

    /// The node id of a directory's parent, if it is known; the directory itself for the root.
    pub(crate) fn parent_of(&self, node: u64) -> Option<u64> {
        if node == ROOT {
            return Some(ROOT);
        }
        self.shard(node).parents.get(&node).copied()
    }

    /// A directory that was found by its number lies in that one. Nothing to do if that was known.
    pub(crate) fn lies_in(&self, node: u64, parent: u64) {
        let mut shard = self.shard(node);
        if node == ROOT || !shard.nodes.contains_key(&node) || shard.parents.contains_key(&node) {
            return;
        }
        shard.parents.insert(node, parent);
        drop(shard);
        self.count_directories(Moved { from: None, to: Some(parent) });
    }

    /// A directory was moved.
    pub(crate) fn moved(&self, node: u64, new_parent: u64) {
        let mut moved = Moved::default();
        if let Some(parent) = self.shard(node).parents.get_mut(&node) {
            moved = Moved { from: Some(std::mem::replace(parent, new_parent)), to: Some(new_parent) };
        }
        self.count_directories(moved);
    }

    /// Does the kernel know any directory in this one?
    pub(crate) fn has_directories(&self, node: u64) -> bool {
        self.shard(node).directories.get(&node).is_some_and(|&count| count > 0)
    }

    fn count_directories(&self, moved: Moved) {
        if moved.from == moved.to {
            return;
        }
        for (parent, by) in [(moved.from, -1), (moved.to, 1)] {
            let Some(parent) = parent else { continue };
            let mut shard = self.shard(parent);
            let count = shard.directories.entry(parent).or_default();
            *count += by;
            if *count == 0 {
                shard.directories.remove(&parent);
            }
        }
    }

    /// Every node that the kernel knows right now.
    pub(crate) fn all(&self) -> Vec<u64> {
        let mut all = vec![ROOT];
        for shard in &self.shards {
            all.extend(shard.lock().unwrap_or_else(PoisonError::into_inner).nodes.keys());
        }
        all
    }

    /// How many nodes the kernel knows, the root not counted.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// After a batch was forgotten: if most of many nodes are gone, gives their memory back to the system.
    pub(crate) fn trim(&self) {
        let (count, peak) = (self.len(), self.peak.load(Ordering::Relaxed));
        if peak > WORTH_TRIMMING && count < peak / 4 {
            self.peak.store(count, Ordering::Relaxed);
            fuse::trim_heap();
        }
    }
}

/// Has the object no name any more, or is it gone altogether?
fn is_gone(vnode: &dyn Vnode) -> bool {
    match vnode.getattr(&Cx::internal(0, 0)) {
        Ok(attr) => attr.nlink == 0,
        Err(errno) => errno == Errno::STALE || errno == Errno::NOENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::{Faults, MemFs, MemOptions};
    use vnode::{Layer, Name};

    fn tree() -> (Arc<MemFs>, Nodes) {
        let fs = MemFs::new();
        let nodes = Nodes::new(fs.root());
        (fs, nodes)
    }

    fn make(fs: &MemFs, name: &str) -> Entry {
        let name = Name::new(name.as_bytes()).unwrap();
        fs.root().mknod(&Cx::internal(0, 0), name, 0o100_644, 0).unwrap()
    }

    #[test]
    fn a_node_lives_until_its_last_lookup_is_forgotten() {
        let (fs, nodes) = tree();
        let entry = make(&fs, "a");
        let first = nodes.remember(ROOT, &entry);
        let second = nodes.remember(ROOT, &entry);
        assert_eq!((first.node, first.generation), (second.node, second.generation));
        assert_eq!(nodes.len(), 1);
        nodes.forget(first.node, 1);
        assert!(nodes.get(first.node).is_ok());
        nodes.forget(first.node, 1);
        assert!(matches!(nodes.get(first.node), Err(Errno::STALE)));
        assert_eq!(nodes.len(), 0);
    }

    #[test]
    fn forgetting_too_much_or_what_is_unknown_harms_nothing() {
        let (fs, nodes) = tree();
        let node = nodes.remember(ROOT, &make(&fs, "a")).node;
        nodes.forget(node, u64::MAX);
        nodes.forget(node, 1);
        nodes.forget(ROOT, 99);
        assert!(nodes.get(ROOT).is_ok());
        assert!(nodes.get(node).is_err());
    }

    /// An entry of another file system that has the same number as `entry`, of another generation.
    fn namesake(entry: &Entry) -> Entry {
        let fs = MemFs::with(MemOptions { generation: 7, ..MemOptions::default() }, &Faults::new());
        let other = make(&fs, "x");
        assert_eq!(entry.vnode.id(), other.vnode.id());
        assert_ne!(entry.vnode.generation(), other.vnode.generation());
        other
    }

    #[test]
    fn a_number_that_is_given_anew_is_another_generation() {
        let (fs, nodes) = tree();
        let entry = make(&fs, "a");
        let before = nodes.remember(ROOT, &entry);
        fs.root().unlink(&Cx::internal(0, 0), Name::new(b"a").unwrap()).unwrap();
        assert_ne!(nodes.remember(ROOT, &namesake(&entry)).generation, before.generation);
    }

    #[test]
    fn an_object_that_still_is_keeps_its_generation() {
        let (fs, nodes) = tree();
        let entry = make(&fs, "a");
        let before = nodes.remember(ROOT, &entry);
        // As when the log of a union below was written by an older server, which kept no generations.
        assert_eq!(nodes.remember(ROOT, &namesake(&entry)).generation, before.generation);
    }

    #[test]
    fn directories_know_their_parent() {
        let (fs, nodes) = tree();
        let cx = Cx::internal(0, 0);
        let dir = fs.root().mkdir(&cx, Name::new(b"d").unwrap(), 0o755).unwrap();
        let sub = dir.vnode.mkdir(&cx, Name::new(b"s").unwrap(), 0o755).unwrap();
        let d = nodes.remember(ROOT, &dir).node;
        let s = nodes.remember(d, &sub).node;
        assert_eq!([ROOT, d, s].map(|node| nodes.parent_of(node)), [ROOT, ROOT, d].map(Some));
        assert!(nodes.has_directories(ROOT) && nodes.has_directories(d) && !nodes.has_directories(s));
        nodes.moved(s, ROOT);
        assert_eq!(nodes.parent_of(s), Some(ROOT));
        assert!(nodes.has_directories(ROOT) && !nodes.has_directories(d));
        // As the kernel looks it up again, and forgets all.
        nodes.remember(ROOT, &sub);
        nodes.forget(s, 2);
        assert!(nodes.has_directories(ROOT));
        nodes.forget(d, 1);
        assert!(!nodes.has_directories(ROOT));
    }

    #[test]
    fn a_directory_that_was_found_by_number_learns_its_parent() {
        let (fs, nodes) = tree();
        let cx = Cx::internal(0, 0);
        let dir = fs.root().mkdir(&cx, Name::new(b"d").unwrap(), 0o755).unwrap();
        let d = dir.vnode.id();
        nodes.lies_in(d, ROOT);
        assert_eq!(nodes.parent_of(d), None, "the kernel does not know it");
        assert_eq!(nodes.remember_found(&dir).node, d);
        assert_eq!(nodes.parent_of(d), None);
        assert!(!nodes.has_directories(ROOT));
        nodes.lies_in(d, ROOT);
        nodes.lies_in(d, 77);
        assert_eq!(nodes.parent_of(d), Some(ROOT));
        assert!(nodes.has_directories(ROOT));
        nodes.remember(ROOT, &dir);
        nodes.forget(d, 2);
        assert!(!nodes.has_directories(ROOT) && nodes.parent_of(d).is_none());
    }
}
