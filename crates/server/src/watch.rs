//! Seeing what the kernel refuses, for layers that want to know.
//!
//! The kernel checks permissions by the attributes that it remembers. Before it refuses, it asks for them once more, in the name of the caller,
//! and decides by the answer. Nobody else asks for attributes that can still be believed: a stat(2) is answered by the kernel itself. So a
//! GETATTR of an object that the kernel was told of, and that has not changed since, is a refusal. What is refused is not said: the layer finds
//! out what the caller may not do.
//!
//! Three things make this as sure as it can be:
//! * Names of closed objects ([`is_closed`]) are not remembered by the kernel: each path to them is a LOOKUP by the caller, whose answer
//!   it believes.
//! * The data of an open file are written past us, and its attributes go stale unseen: there only a GETATTR right after the same
//!   thread's LOOKUP counts.
//! * Without that knowledge (the attributes are too old: the object was reached by a descriptor or a working directory), whoever asks for a
//!   directory that they may not search is taken to have been refused: a stat(2) of it would have come by its name.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vnode::{Kind, NumberMap, SHARDS, shard_of};

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

/// So long the kernel believes attributes at least: the rest of a system call after its LOOKUP takes less.
pub(crate) const SHORTEST: Duration = Duration::from_secs(1);

/// When the kernel was last told the attributes of an object, and, if that was by a LOOKUP, whose.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: Instant,
    thread: u32,
}

/// What the kernel knows of attributes.
#[derive(Debug)]
pub(crate) struct Watch {
    valid: Duration,
    told: [Mutex<NumberMap<Told>>; SHARDS],
}

impl Watch {
    /// Where the kernel believes attributes for `valid`.
    pub(crate) fn new(valid: Duration) -> Self {
        Self { valid, told: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<Told>> {
        self.told[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel is told the attributes of a node, by a LOOKUP of `thread` if that is not 0.
    pub(crate) fn told(&self, node: u64, thread: u32) {
        self.shard(node).insert(node, Told { at: Instant::now(), thread });
    }

    /// The kernel does not believe its attributes any more, or has forgotten the node.
    pub(crate) fn changed(&self, node: u64) {
        self.shard(node).remove(&node);
    }

    /// `thread` asks for the attributes of a node: of which rights has the kernel refused it one or more? Of none, if it may have asked for another
    /// reason. `open`: the node is a file that somebody has open.
    pub(crate) fn refused(&self, node: u64, kind: Kind, thread: u32, open: bool) -> u32 {
        let told = self.shard(node).get(&node).copied();
        let believed = told.is_some_and(|told| {
            let age = told.at.elapsed();
            if open { age < SHORTEST && told.thread == thread } else { age < self.valid }
        });
        match kind {
            Kind::Symlink => 0,
            _ if believed => READ | WRITE | SEARCH,
            Kind::Directory => SEARCH,
            _ => 0,
        }
    }
}

/// Can somebody be refused the use of the object? Of files that can change any moment; of directories, if not everybody may list and search
/// them by the mode: each path leads through them. That only few may change most of them is not worth a LOOKUP on every path.
pub(crate) fn is_closed(mode: u32) -> bool {
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
    fn asking_for_what_is_known_is_a_refusal() {
        let watch = Watch::new(VALID);
        assert_eq!(watch.refused(7, Kind::Regular, 1, false), 0);
        watch.told(7, 0);
        assert_eq!(watch.refused(7, Kind::Regular, 1, false), 7);
        assert_eq!(watch.refused(7, Kind::Symlink, 1, false), 0);
        assert_eq!(watch.refused(8, Kind::Regular, 1, false), 0);
        watch.changed(7);
        assert_eq!(watch.refused(7, Kind::Regular, 1, false), 0);
    }

    #[test]
    fn what_is_too_old_is_not_known() {
        let watch = Watch::new(Duration::ZERO);
        watch.told(7, 1);
        assert_eq!(watch.refused(7, Kind::Regular, 1, false), 0);
        assert_eq!(watch.refused(7, Kind::Directory, 1, false), SEARCH);
    }

    #[test]
    fn of_open_files_only_what_follows_a_lookup_counts() {
        let watch = Watch::new(VALID);
        watch.told(7, 0);
        assert_eq!(watch.refused(7, Kind::Regular, 1, true), 0);
        watch.told(7, 2);
        assert_eq!(watch.refused(7, Kind::Regular, 1, true), 0);
        assert_eq!(watch.refused(7, Kind::Regular, 2, true), 7);
    }

    #[test]
    fn directories_that_all_may_use_are_open() {
        for (mode, closed) in [
            (0o040_755, false),
            (0o040_711, true),
            (0o040_750, true),
            (0o100_666, true),
            (0o120_777, false),
            (0o010_666, true),
        ] {
            assert_eq!(is_closed(mode), closed, "{mode:o}");
        }
    }
}
