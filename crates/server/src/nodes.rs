//! Table of the nodes that the kernel knows.

use crate::directories::Directories;
use crate::successors::Successors;
use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vnode::{Cx, Entry, Errno, Kind, NumberMap, Result, SHARDS, Vnode, shard_of};

/// Node id of the root, fixed by the protocol.
pub(crate) const ROOT: u64 = 1;

/// One inode that the kernel knows.
struct Node {
    vnode: Arc<dyn Vnode>,
    /// Lookups that the kernel has not yet forgotten.
    lookups: u32,
    /// Distinguishes objects that use the same id one after the other.
    generation: u32,
    /// Size in the attributes that the kernel got last, in bytes. It may have written to the file
    /// since.
    sent_size: u64,
}

/// Below this number of nodes, trimming the heap is not worthwhile.
const MIN_TRIM_NODES: usize = 10_000;

/// Maps node ids to vnodes and lookup counts. A node id is the vnode's own number, except for the
/// root and for [`Successors`].
pub(crate) struct Nodes {
    root: Arc<dyn Vnode>,
    /// The root's own number.
    root_number: u64,
    pub(crate) successors: Successors,
    pub(crate) directories: Directories,
    shards: [Mutex<NumberMap<Node>>; SHARDS],
    /// Number of nodes, and its maximum since the heap was last trimmed.
    count: AtomicUsize,
    peak: AtomicUsize,
}

/// Node id and generation, as sent to the kernel.
#[derive(Clone, Copy)]
pub(crate) struct NodeRef {
    pub(crate) node: u64,
    pub(crate) generation: u32,
}

impl Nodes {
    pub(crate) fn new(root: Arc<dyn Vnode>) -> Self {
        let root_number = root.id();
        let shards = std::array::from_fn(|_| Mutex::default());
        Self {
            root,
            root_number,
            successors: Successors::default(),
            directories: Directories::default(),
            shards,
            count: 0.into(),
            peak: 0.into(),
        }
    }

    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<Node>> {
        // The index is below SHARDS. A poisoned lock only means that a handler panicked elsewhere.
        self.shards[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the vnode of a node id.
    pub(crate) fn get(&self, node: u64) -> Result<Arc<dyn Vnode>> {
        if node == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        self.shard(node).get(&node).map(|n| Arc::clone(&n.vnode)).ok_or(Errno::STALE)
    }

    /// Counts one lookup of an entry at a name in the directory `parent`.
    pub(crate) fn add_lookup(&self, (parent, name): (u64, &[u8]), entry: &Entry) -> NodeRef {
        let known = self.add_lookup_by_id(entry);
        if entry.vnode.kind() == Kind::Directory && known.node != ROOT {
            self.directories.found(known.node, parent, name);
        } else {
            self.directories.lost(parent, name);
        }
        known
    }

    /// Counts one lookup of an object that was found by number, or as the parent of another, or
    /// that has no name.
    pub(crate) fn add_lookup_by_id(&self, entry: &Entry) -> NodeRef {
        if self.is_root(&*entry.vnode) { NodeRef { node: ROOT, generation: 0 } } else { self.count_lookup(entry) }
    }

    /// Counts another lookup of a node that the kernel knows.
    pub(crate) fn repeat_lookup(&self, node: u64) -> Option<NodeRef> {
        let mut shard = self.shard(node);
        let known = shard.get_mut(&node)?;
        known.lookups = known.lookups.saturating_add(1);
        Some(NodeRef { node, generation: known.generation })
    }

    /// Records that the kernel gets attributes with this size, or requests them before it uses the
    /// size. Returns whether it had a smaller one.
    pub(crate) fn set_size(&self, node: u64, size: u64) -> bool {
        let before = self.shard(node).get_mut(&node).map(|known| std::mem::replace(&mut known.sent_size, size));
        before.is_some_and(|before| before < size)
    }

    /// Returns the node id of an object.
    pub(crate) fn node_of(&self, vnode: &dyn Vnode) -> u64 {
        if self.is_root(vnode) { ROOT } else { self.successors.node_of(vnode.id()) }
    }

    /// Assigns a new node to a file whose data moved while the kernel has its old host file.
    pub(crate) fn supersede(&self, number: u64) {
        self.successors.supersede(number, |node| self.knows(node));
    }

    fn knows(&self, node: u64) -> bool {
        self.shard(node).contains_key(&node)
    }

    /// Whether the vnode is the root. A layer without a table has several vnodes for it.
    pub(crate) fn is_root(&self, vnode: &dyn Vnode) -> bool {
        vnode.id() == self.root_number
    }

    fn count_lookup(&self, entry: &Entry) -> NodeRef {
        let mut node = self.successors.node_of(entry.vnode.id());
        // The object known by this number exists. Determined without the lock.
        let mut checked = false;
        loop {
            let mut shard = self.shard(node);
            let known = match shard.entry(node) {
                Slot::Vacant(slot) => {
                    let generation = entry.vnode.generation();
                    let sent_size = entry.attr.size;
                    slot.insert(Node { vnode: Arc::clone(&entry.vnode), lookups: 1, generation, sent_size });
                    self.peak.fetch_max(self.count.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    return NodeRef { node, generation };
                }
                Slot::Occupied(slot) => slot.into_mut(),
            };
            if !Arc::ptr_eq(&known.vnode, &entry.vnode) {
                // Either another vnode of the same object (the null layer has no table), or a new
                // object that reuses the number of one that was removed out of band. The new one
                // gets a node of its own. With the same node and another generation, the kernel
                // would fail all I/O on the old one (`EIO`), even in a program that has it open.
                if entry.vnode.generation() != known.generation && !checked {
                    let old = Arc::clone(&known.vnode);
                    drop(shard);
                    checked = true;
                    if is_removed(&*old) {
                        self.supersede(entry.vnode.id());
                        (node, checked) = (self.successors.node_of(entry.vnode.id()), false);
                    }
                    continue;
                }
                known.vnode = Arc::clone(&entry.vnode);
            }
            known.lookups = known.lookups.saturating_add(1);
            known.sent_size = entry.attr.size;
            let generation = known.generation;
            return NodeRef { node, generation };
        }
    }

    /// Drops `count` lookups. Returns true if the node is forgotten with them; then `forgotten` has
    /// run, before the node can be looked up again.
    pub(crate) fn forget(&self, node: u64, count: u64, forgotten: impl FnOnce()) -> bool {
        if node == ROOT {
            return false;
        }
        // Dropped after unlocking: the last reference of a vnode may do work.
        let mut gone = None;
        let mut shard = self.shard(node);
        if let Slot::Occupied(mut slot) = shard.entry(node) {
            let left = u64::from(slot.get().lookups).saturating_sub(count);
            if left == 0 {
                gone = Some(slot.remove());
                self.count.fetch_sub(1, Ordering::Relaxed);
                self.directories.forget(node);
                forgotten();
                if shard.len() * 8 < shard.capacity() {
                    shard.shrink_to_fit();
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
        forgotten
    }

    /// Returns the node id of a directory's parent, if known. The root is its own parent.
    pub(crate) fn parent_of(&self, node: u64) -> Option<u64> {
        if node == ROOT { Some(ROOT) } else { self.directories.parent_of(node) }
    }

    /// Records the parent of a directory that was found by number, unless it is known.
    pub(crate) fn set_parent(&self, node: u64, parent: u64) {
        if node != ROOT && self.knows(node) {
            self.directories.set_parent(node, parent);
        }
    }

    /// Returns all nodes that the kernel knows.
    pub(crate) fn all(&self) -> Vec<u64> {
        let mut all = vec![ROOT];
        for shard in &self.shards {
            all.extend(shard.lock().unwrap_or_else(PoisonError::into_inner).keys());
        }
        all
    }

    /// Returns the number of nodes that the kernel knows, without the root.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Trims the heap if most of many nodes were forgotten.
    pub(crate) fn trim(&self) {
        let (count, peak) = (self.len(), self.peak.load(Ordering::Relaxed));
        if peak > MIN_TRIM_NODES && count < peak / 4 {
            self.peak.store(count, Ordering::Relaxed);
            fuse::trim_heap();
        }
    }
}

/// Whether the object has no link left, or no longer exists.
fn is_removed(vnode: &dyn Vnode) -> bool {
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
        let first = nodes.add_lookup((ROOT, b"a"), &entry);
        let second = nodes.add_lookup((ROOT, b"a"), &entry);
        assert_eq!((first.node, first.generation), (second.node, second.generation));
        assert_eq!(nodes.len(), 1);
        nodes.forget(first.node, 1, || ());
        assert!(nodes.get(first.node).is_ok());
        nodes.forget(first.node, 1, || ());
        assert!(matches!(nodes.get(first.node), Err(Errno::STALE)));
        assert_eq!(nodes.len(), 0);
    }

    #[test]
    fn excess_and_unknown_forgets_are_harmless() {
        let (fs, nodes) = tree();
        let node = nodes.add_lookup((ROOT, b"a"), &make(&fs, "a")).node;
        nodes.forget(node, u64::MAX, || ());
        nodes.forget(node, 1, || ());
        nodes.forget(ROOT, 99, || ());
        assert!(nodes.get(ROOT).is_ok());
        assert!(nodes.get(node).is_err());
    }

    /// Returns an entry of another file system with the same number as `entry` but another
    /// generation.
    fn namesake(entry: &Entry) -> Entry {
        let fs = MemFs::with(MemOptions { generation: 7, ..MemOptions::default() }, &Faults::new());
        let other = make(&fs, "x");
        assert_eq!(entry.vnode.id(), other.vnode.id());
        assert_ne!(entry.vnode.generation(), other.vnode.generation());
        other
    }

    #[test]
    fn an_object_that_reuses_a_number_gets_another_node() {
        let (fs, nodes) = tree();
        let entry = make(&fs, "a");
        let before = nodes.add_lookup((ROOT, b"a"), &entry);
        fs.root().unlink(&Cx::internal(0, 0), Name::new(b"a").unwrap()).unwrap();
        let other = namesake(&entry);
        let after = nodes.add_lookup((ROOT, b"a"), &other);
        assert_ne!(after.node, before.node);
        assert!(Arc::ptr_eq(&nodes.get(before.node).unwrap(), &entry.vnode));
        assert!(Arc::ptr_eq(&nodes.get(after.node).unwrap(), &other.vnode));
        assert_eq!(
            (nodes.node_of(&*other.vnode), nodes.add_lookup((ROOT, b"a"), &other).node),
            (after.node, after.node)
        );
        // Once the kernel has forgotten both, the number's own node is used again.
        nodes.forget(before.node, 1, || ());
        nodes.forget(after.node, 2, || ());
        assert_eq!(nodes.add_lookup((ROOT, b"a"), &other).node, before.node);
    }

    #[test]
    fn a_live_object_keeps_its_generation() {
        let (fs, nodes) = tree();
        let entry = make(&fs, "a");
        let before = nodes.add_lookup((ROOT, b"a"), &entry);
        // As if the log of a union below was written by an older server, which recorded no
        // generations.
        assert_eq!(nodes.add_lookup((ROOT, b"a"), &namesake(&entry)).generation, before.generation);
    }

    #[test]
    fn parents_of_directories_are_tracked() {
        let (fs, nodes) = tree();
        let cx = Cx::internal(0, 0);
        let dir = fs.root().mkdir(&cx, Name::new(b"d").unwrap(), 0o755).unwrap();
        let sub = dir.vnode.mkdir(&cx, Name::new(b"s").unwrap(), 0o755).unwrap();
        let d = nodes.add_lookup((ROOT, b"d"), &dir).node;
        let s = nodes.add_lookup((d, b"s"), &sub).node;
        assert_eq!([ROOT, d, s].map(|node| nodes.parent_of(node)), [ROOT, ROOT, d].map(Some));
        nodes.directories.renamed((d, b"s"), (ROOT, b"s"), false);
        assert_eq!(nodes.parent_of(s), Some(ROOT));
        // The kernel looks it up again, and forgets everything.
        nodes.add_lookup((ROOT, b"s"), &sub);
        nodes.forget(s, 2, || ());
        nodes.forget(d, 1, || ());
    }

    #[test]
    fn a_directory_found_by_number_gets_its_parent() {
        let (fs, nodes) = tree();
        let cx = Cx::internal(0, 0);
        let dir = fs.root().mkdir(&cx, Name::new(b"d").unwrap(), 0o755).unwrap();
        let d = dir.vnode.id();
        nodes.set_parent(d, ROOT);
        assert_eq!(nodes.parent_of(d), None, "the kernel does not know it");
        assert_eq!(nodes.add_lookup_by_id(&dir).node, d);
        assert_eq!(nodes.parent_of(d), None);
        nodes.set_parent(d, ROOT);
        nodes.set_parent(d, 77);
        assert_eq!(nodes.parent_of(d), Some(ROOT));
        nodes.add_lookup((ROOT, b"d"), &dir);
        nodes.forget(d, 2, || ());
    }
}
