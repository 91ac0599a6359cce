//! Detects accesses that the kernel refuses, for layers that audit them.
//!
//! The kernel checks permissions with cached attributes. Before it refuses an access, it refreshes
//! them by a GETATTR in the name of the caller. It does not send GETATTR for attributes that are
//! still valid: it serves stat(2) from its cache. So a GETATTR for an object whose attributes were
//! sent and have not changed since is a refusal. The request does not say which access was refused;
//! the layer determines what the caller may not do.
//!
//! Three rules make the detection as reliable as possible:
//!
//! * Names of restricted objects ([`is_restricted`]) are not cached by the kernel, so each path to
//!   them causes a LOOKUP by the caller, whose attributes are then valid.
//! * Data of an open file is written without the server's knowledge, and its attributes become
//!   stale unnoticed. For open files, only a GETATTR right after a LOOKUP by the same thread
//!   counts.
//! * Without valid attributes (the object was reached by a descriptor or a working directory), a
//!   GETATTR for a directory that the caller may not search counts as a refusal: a stat(2) would
//!   have looked up its name.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vnode::{Kind, NumberMap, SHARDS, shard_of};

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

/// Minimum validity of attributes: the rest of a system call after its LOOKUP takes less.
pub(crate) const MIN_ATTR_VALIDITY: Duration = Duration::from_secs(1);

/// Time of the last attributes sent for a node, and the thread if it was a LOOKUP (0 otherwise).
#[derive(Clone, Copy, Debug)]
struct AttrReply {
    at: Instant,
    thread: u32,
}

/// Tracks which attributes the kernel has cached.
#[derive(Debug)]
pub(crate) struct RefusalDetector {
    valid: Duration,
    replies: [Mutex<NumberMap<AttrReply>>; SHARDS],
}

impl RefusalDetector {
    /// `valid`: how long the kernel caches attributes.
    pub(crate) fn new(valid: Duration) -> Self {
        Self { valid, replies: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<AttrReply>> {
        self.replies[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that attributes of a node were sent, by a LOOKUP of `thread` if that is not 0.
    pub(crate) fn attributes_sent(&self, node: u64, thread: u32) {
        self.shard(node).insert(node, AttrReply { at: Instant::now(), thread });
    }

    /// Records that the kernel's attributes of the node are stale, or that it has forgotten the
    /// node.
    pub(crate) fn changed(&self, node: u64) {
        self.shard(node).remove(&node);
    }

    /// Returns the permissions of which `thread` was refused at least one when it sends a GETATTR;
    /// 0 if the GETATTR may have another reason. `open`: the node is an open file.
    pub(crate) fn refused_mask(&self, node: u64, kind: Kind, thread: u32, open: bool) -> u32 {
        let reply = self.shard(node).get(&node).copied();
        let valid = reply.is_some_and(|reply| {
            let age = reply.at.elapsed();
            if open { age < MIN_ATTR_VALIDITY && reply.thread == thread } else { age < self.valid }
        });
        match kind {
            Kind::Symlink => 0,
            _ if valid => READ | WRITE | SEARCH,
            Kind::Directory => SEARCH,
            _ => 0,
        }
    }
}

/// Whether the object is restricted, so that some user can be refused. Files always count, because
/// their mode can change any moment. Directories count if the mode does not let everybody list and
/// search them. Write permission is ignored: it is not worth a LOOKUP in every path.
pub(crate) fn is_restricted(mode: u32) -> bool {
    const OPEN_TO_ALL: u32 = 0o555;
    match Kind::from_mode(mode) {
        Some(Kind::Symlink) => false,
        Some(Kind::Directory) => mode & OPEN_TO_ALL != OPEN_TO_ALL,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: Duration = Duration::from_secs(100);

    #[test]
    fn a_getattr_for_valid_attributes_means_refusal() {
        let detector = RefusalDetector::new(VALID);
        assert_eq!(detector.refused_mask(7, Kind::Regular, 1, false), 0);
        detector.attributes_sent(7, 0);
        assert_eq!(detector.refused_mask(7, Kind::Regular, 1, false), 7);
        assert_eq!(detector.refused_mask(7, Kind::Symlink, 1, false), 0);
        assert_eq!(detector.refused_mask(8, Kind::Regular, 1, false), 0);
        detector.changed(7);
        assert_eq!(detector.refused_mask(7, Kind::Regular, 1, false), 0);
    }

    #[test]
    fn expired_attributes_mean_no_refusal() {
        let detector = RefusalDetector::new(Duration::ZERO);
        detector.attributes_sent(7, 1);
        assert_eq!(detector.refused_mask(7, Kind::Regular, 1, false), 0);
        assert_eq!(detector.refused_mask(7, Kind::Directory, 1, false), SEARCH);
    }

    #[test]
    fn for_open_files_only_a_getattr_after_a_lookup_counts() {
        let detector = RefusalDetector::new(VALID);
        detector.attributes_sent(7, 0);
        assert_eq!(detector.refused_mask(7, Kind::Regular, 1, true), 0);
        detector.attributes_sent(7, 2);
        assert_eq!(detector.refused_mask(7, Kind::Regular, 1, true), 0);
        assert_eq!(detector.refused_mask(7, Kind::Regular, 2, true), 7);
    }

    #[test]
    fn directories_open_to_all_are_not_restricted() {
        for (mode, closed) in [
            (0o040_755, false),
            (0o040_711, true),
            (0o040_750, true),
            (0o100_666, true),
            (0o120_777, false),
            (0o010_666, true),
        ] {
            assert_eq!(is_restricted(mode), closed, "{mode:o}");
        }
    }
}
