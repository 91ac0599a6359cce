//! Replicas that differ.
//!
//! Nothing compares whole trees: some of what is looked up is compared with another replica, afterwards and on the side, and
//! open files are when they move.

use crate::failover::{Fault, Outcome};
use crate::health::only;
use crate::identity::PathKey;
use crate::layer::Shared;
use crate::node::Node;
use crate::replica::Replica;
use core::fmt;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vnode::{Cx, Entry, Kind, Name, Result, Vnode};

/// How many differing files are remembered.
const MAX_KNOWN: usize = 100_000;
/// How many lines are logged in a [`WINDOW`].
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// The differences found so far.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    known: Mutex<HashSet<PathKey>>,
    lookups: AtomicU64,
    compared: AtomicU64,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// May a line be logged? How many were not, since the last one that was?
    fn allow(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written >= MAX_LINES {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(core::mem::take(&mut self.left_out))
    }
}

impl Differences {
    /// Files that are known to differ.
    pub(crate) fn count(&self) -> usize {
        self.known.lock().len()
    }

    /// Objects that were compared.
    pub(crate) fn compared(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }

    /// Is this look-up one of those that are compared, one of `every`?
    fn is_drawn(&self, every: u32) -> bool {
        every != 0 && self.lookups.fetch_add(1, Ordering::Relaxed).is_multiple_of(every.into())
    }

    /// A file differs: says so, once.
    pub(crate) fn found(&self, path: PathKey, what: impl FnOnce() -> String) {
        {
            let mut known = self.known.lock();
            if known.len() >= MAX_KNOWN || !known.insert(path) {
                return;
            }
        }
        let Some(left_out) = self.lines.lock().allow(Instant::now()) else { return };
        let what = what();
        match left_out {
            0 => tracing::warn!("{what}"),
            more => tracing::warn!("{what} ({more} more were not logged)"),
        }
    }

    /// A file does not differ, or no more.
    fn not_found(&self, path: PathKey) {
        let mut known = self.known.lock();
        if !known.is_empty() {
            known.remove(&path);
        }
    }
}

/// What must be the same on all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Facts {
    Absent,
    Regular { size: u64, mtime: i64 },
    Symlink(Vec<u8>),
    Other(Kind),
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("nothing"),
            Self::Regular { size, mtime } => write!(f, "a file of {size} bytes changed at {mtime}"),
            Self::Symlink(target) => write!(f, "a link to {}", target.escape_ascii()),
            Self::Other(kind) => write!(f, "a {}", format!("{kind:?}").to_lowercase()),
        }
    }
}

impl Facts {
    fn of(entry: Option<Entry>, cx: &Cx<'_>) -> Result<Self> {
        let Some(Entry { vnode, attr }) = entry else { return Ok(Self::Absent) };
        Ok(match vnode.kind() {
            Kind::Regular => Self::Regular { size: attr.size, mtime: attr.mtime.sec },
            Kind::Symlink => Self::Symlink(vnode.readlink(cx)?),
            other => Self::Other(other),
        })
    }
}

impl Node {
    /// Compares an entry that was looked up on `replica` with another replica, if it is its turn; not now and not here.
    pub(crate) fn compare_some(&self, name: Name<'_>, replica: usize) {
        let fs = &self.fs;
        if fs.replicas.len() < 2 || !fs.differences.is_drawn(fs.options.compare) {
            return;
        }
        let others = fs.board.up() & !only(replica);
        let Some(other) = fs.any_of(others) else { return };
        let (Ok(dir), name): (_, Arc<[u8]>) = (self.me(), name.as_bytes().into()) else { return };
        let first = move || {
            let Ok(here) = dir.facts(&name, replica) else { return };
            let fs = Arc::clone(&dir.fs);
            let second = move || {
                if let Ok(there) = dir.facts(&name, other) {
                    dir.judge(&name, &(replica, here), &(other, there));
                }
            };
            if let Some(other) = fs.replicas.get(other) {
                other.aside.submit_if_free(Box::new(second));
            }
        };
        if let Some(replica) = fs.replicas.get(replica) {
            replica.aside.submit_if_free(Box::new(first));
        }
    }

    /// What a replica says of an entry.
    fn facts(&self, name: &[u8], replica: usize) -> Outcome<Facts> {
        let opened = self.fs.replicas.get(replica).and_then(Replica::opened);
        let opened = opened.ok_or(Fault::Missing)?;
        let cx = Cx::internal(0, 0);
        let ask = |dir: &Arc<dyn Vnode>, cx: &Cx<'_>| Facts::of(dir.lookup(cx, Name::new(name)?)?, cx);
        self.perform(replica, &opened, &cx, &ask)
    }

    fn judge(&self, name: &[u8], here: &(usize, Facts), there: &(usize, Facts)) {
        let differences = &self.fs.differences;
        differences.compared.fetch_add(1, Ordering::Relaxed);
        let path = self.path().child(name);
        if here.1 == there.1 {
            return differences.not_found(path);
        }
        differences.found(path, || {
            let dir = if self.is_root() { String::new() } else { self.show() };
            let [a, b] = [here, there].map(|(replica, facts)| format!("{facts} on {}", self.fs.name(*replica)));
            format!("replicas differ: {dir}/{} is {a} and {b}", name.escape_ascii())
        });
    }

    /// An open file that has to move did not find the same file on another replica.
    pub(crate) fn differs_on(&self, replica: usize, from: usize) {
        self.fs.differences.found(self.path(), || {
            let [a, b] = [from, replica].map(|replica| self.fs.name(replica));
            format!("replicas differ: {}, open on {a}, is not the same on {b}", self.show())
        });
    }
}

impl Shared {
    fn name(&self, replica: usize) -> &str {
        self.replicas.get(replica).map_or("", |replica| &replica.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut() {
        let mut lines = Lines::default();
        let now = Instant::now();
        let allowed = (0..100).filter(|_| lines.allow(now).is_some()).count();
        assert_eq!(allowed, 10);
        assert_eq!(lines.allow(now + WINDOW), Some(90));
    }

    #[test]
    fn a_difference_is_told_once_and_forgotten_when_it_is_gone() {
        let differences = Differences::default();
        let mut told = 0;
        let (a, b) = (PathKey::root().child(b"a"), PathKey::root().child(b"b"));
        for path in [a, a, b, a] {
            differences.found(path, || {
                told += 1;
                String::new()
            });
        }
        assert_eq!((told, differences.count()), (2, 2));
        differences.not_found(a);
        assert_eq!(differences.count(), 1);
    }

    #[test]
    fn one_of_n_is_drawn() {
        let differences = Differences::default();
        assert_eq!((0..640).filter(|_| differences.is_drawn(64)).count(), 10);
        assert!(!differences.is_drawn(0));
    }
}
