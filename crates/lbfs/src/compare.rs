//! Detection of differences between replicas.
//!
//! Some looked-up entries are compared with another replica, asynchronously. Open files are
//! compared when they move. Whole trees are never compared.

use crate::fault::{Fault, Outcome};
use crate::health::only;
use crate::node::Node;
use crate::replica::Replica;
use core::fmt;
use std::sync::Arc;
use vnode::{Cx, Entry, Kind, Name, Result, Vnode};

/// The properties of an entry that must be the same on all replicas.
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
    /// Schedules a comparison of an entry that was looked up on `replica` with another replica, if
    /// this lookup is sampled.
    pub(crate) fn compare_some(&self, name: Name<'_>, replica: usize) {
        let fs = &self.fs;
        if fs.replicas.len() < 2 || !fs.differences.is_sampled(fs.options.compare) {
            return;
        }
        let others = fs.health.up() & !only(replica);
        let Some(other) = fs.any_of(others) else { return };
        let (Ok(dir), name): (_, Arc<[u8]>) = (self.to_arc(), name.as_bytes().into()) else { return };
        let first = move || {
            let Ok(here) = dir.facts(&name, replica) else { return };
            let fs = Arc::clone(&dir.fs);
            let second = move || {
                if let Ok(there) = dir.facts(&name, other) {
                    dir.record_comparison(&name, &(replica, here), &(other, there));
                }
            };
            if let Some(other) = fs.replicas.get(other) {
                other.comparisons.submit_if_free(Box::new(second));
            }
        };
        if let Some(replica) = fs.replicas.get(replica) {
            replica.comparisons.submit_if_free(Box::new(first));
        }
    }

    /// Returns the properties of an entry on a replica.
    fn facts(&self, name: &[u8], replica: usize) -> Outcome<Facts> {
        let opened = self.fs.replicas.get(replica).and_then(Replica::opened);
        let opened = opened.ok_or(Fault::Missing)?;
        let cx = Cx::internal(0, 0);
        let find = |dir: &Arc<dyn Vnode>, cx: &Cx<'_>| Facts::of(dir.lookup(cx, Name::new(name)?)?, cx);
        self.perform(replica, &opened, &cx, &find)
    }

    fn record_comparison(&self, name: &[u8], here: &(usize, Facts), there: &(usize, Facts)) {
        let differences = &self.fs.differences;
        differences.count_compared();
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

    /// Records that an open file could not move, since the other replica does not have the same
    /// file.
    pub(crate) fn differs_on(&self, replica: usize, from: usize) {
        self.fs.differences.found(self.path(), || {
            let [a, b] = [from, replica].map(|replica| self.fs.name(replica));
            format!("replicas differ: {}, open on {a}, is not the same on {b}", self.show())
        });
    }
}
