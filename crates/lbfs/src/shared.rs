//! The state that all vnodes of the layer share.

use crate::chooser::Chooser;
use crate::differences::Differences;
use crate::hard_links::HardLinks;
use crate::health::{ReplicaHealth, Set, Times};
use crate::listing::Listings;
use crate::options::{Options, Policy};
use crate::recent_timeouts::RecentTimeouts;
use crate::replica::Replica;
use crate::table::Table;
use core::fmt;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use vnode::{Attr, Finder};

/// The state that all vnodes, of type `V`, share.
pub(crate) struct Shared<V> {
    pub(crate) options: Options,
    pub(crate) replicas: Box<[Replica]>,
    pub(crate) health: ReplicaHealth,
    pub(crate) chooser: Chooser,
    /// Selects at random, independently of the policy.
    any: Chooser,
    pub(crate) table: Table<V>,
    pub(crate) links: HardLinks,
    pub(crate) listings: Listings,
    pub(crate) differences: Differences,
    pub(crate) recent_timeouts: RecentTimeouts,
    /// Finds objects by the numbers in listings, which are those of paths.
    pub(crate) listed: Finder,
    /// Finds objects by looking up every name, since the number of a hard-linked file is not that
    /// of its paths.
    pub(crate) exact: Finder,
    /// The last known attributes of the root.
    pub(crate) root_attr: Mutex<Option<Attr>>,
    /// See [`vnode::StatFs::fsid`].
    pub(crate) fsid: u64,
}

impl<V> Shared<V> {
    /// Returns the shared state, with all replicas up.
    pub(crate) fn new(replicas: Box<[Replica]>, options: Options) -> Self {
        static NEXT_FSID: AtomicU64 = AtomicU64::new(0x6c62_6673_0000_0000);
        let times = Times { timeout: options.timeout, probe: options.probe, ramp: options.ramp };
        Self {
            options,
            health: ReplicaHealth::new(replicas.len(), times, Instant::now()),
            chooser: Chooser::new(options.policy),
            any: Chooser::new(Policy::Random),
            table: Table::new(),
            links: HardLinks::default(),
            listings: Listings::default(),
            differences: Differences::default(),
            recent_timeouts: RecentTimeouts::default(),
            listed: Finder::new(),
            exact: Finder::exact(),
            root_attr: Mutex::new(None),
            fsid: NEXT_FSID.fetch_add(1, Ordering::Relaxed),
            replicas,
        }
    }

    /// Returns the name of a replica, for messages.
    pub(crate) fn name(&self, replica: usize) -> &str {
        self.replicas.get(replica).map_or("", |replica| &replica.name)
    }

    /// Selects a random replica of a set.
    pub(crate) fn any_of(&self, set: Set) -> Option<usize> {
        self.any.choose(set, 0, &self.replicas)
    }

    /// Whether a replica may hang, so that open files may have to move.
    pub(crate) fn may_move(&self) -> bool {
        self.replicas.iter().any(|replica| replica.opened().is_none_or(|opened| opened.pool.is_some()))
    }
}

impl<V> Drop for Shared<V> {
    fn drop(&mut self) {
        self.health.probe_signal().close();
    }
}

impl<V> fmt::Debug for Shared<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LbFs").field("options", &self.options).field("replicas", &self.replicas).finish_non_exhaustive()
    }
}
