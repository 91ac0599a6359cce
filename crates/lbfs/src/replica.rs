use crate::options::Isolate;
use crate::stats::Stats;
use core::fmt;
use isolate::Pool;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vnode::{Cx, Errno, Layer, Result, Vnode};

/// Maximum number of replicas of a layer.
pub const MAX_REPLICAS: usize = 64;

/// Maximum number of concurrent probes of a replica: one of the current opening, and one that
/// reopens it.
const PROBES: usize = 2;

/// The source of a replica.
pub struct Source {
    /// Its name in messages: a path.
    pub name: String,
    /// Opens the replica. Called at first, and again if the opened replica has gone away, for
    /// example after its network file system was remounted. May hang.
    pub open: Box<dyn Fn() -> Result<Arc<dyn Layer>> + Send + Sync>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One copy of the tree.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) name: String,
    source: Arc<Source>,
    isolate: Isolate,
    threads: usize,
    opened: RwLock<Option<Arc<Opened>>>,
    /// Threads for probes; separate, so that probes are possible while all other threads are stuck.
    pub(crate) probes: Arc<Pool>,
    /// A thread for asynchronous comparisons.
    pub(crate) comparisons: Arc<Pool>,
    pub(crate) stats: Stats,
    /// Number of consecutive failures that may be due to the objects.
    object_failures: AtomicU32,
}

/// Number of consecutive failures of objects after which the replica is to blame.
const MAX_OBJECT_FAILURES: u32 = 3;

/// An opened replica.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Number of earlier openings. Lower vnodes are valid for one opening.
    pub(crate) number: u32,
    /// The layer and its root; `None` only during drop.
    parts: Option<(Arc<dyn Layer>, Arc<dyn Vnode>)>,
    /// The thread pool for its calls; `None` if it can't hang and is called directly.
    pub(crate) pool: Option<Arc<Pool>>,
}

impl Replica {
    pub(crate) fn new(source: Source, isolate: Isolate, threads: usize) -> Self {
        Self {
            name: source.name.clone(),
            probes: Pool::new(format!("probe {}", source.name), PROBES),
            comparisons: Pool::new(format!("compare {}", source.name), 1),
            source: Arc::new(source),
            isolate,
            threads,
            opened: RwLock::new(None),
            stats: Stats::default(),
            object_failures: AtomicU32::new(0),
        }
    }

    /// Returns the current opening, if any.
    pub(crate) fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.read().clone()
    }

    /// Whether this is the number of the current opening.
    pub(crate) fn is_current(&self, number: u32) -> bool {
        self.opened.read().as_ref().is_some_and(|opened| opened.number == number)
    }

    /// Checks that the replica responds, and reopens it if not. May hang.
    pub(crate) fn probe(&self) -> Result<()> {
        let before = self.opened();
        if let Some(opened) = &before
            && opened.is_there().is_ok()
        {
            return Ok(());
        }
        self.open_anew(before.map_or(0, |opened| opened.number + 1))
    }

    /// Opens the replica, in place of any current opening. May hang.
    pub(crate) fn open_anew(&self, number: u32) -> Result<()> {
        let layer = (self.source.open)()?;
        let isolated = match self.isolate {
            Isolate::Auto => layer.properties().may_hang,
            Isolate::Always => true,
            Isolate::Never => false,
        };
        let pool = isolated.then(|| Pool::new(format!("replica {}", self.name), self.threads));
        let root = layer.root();
        let opened = Opened { number, parts: Some((layer, root)), pool };
        opened.is_there()?;
        let mut place = self.opened.write();
        if place.as_ref().is_none_or(|there| there.number < number) {
            let former = place.replace(Arc::new(opened));
            drop(place);
            // This may be the last reference, so drop it without the lock.
            drop(former);
        }
        Ok(())
    }

    /// Records a failure that may be due to the object. Returns true if there were so many that the
    /// replica is to blame.
    pub(crate) fn record_object_failure(&self) -> bool {
        self.object_failures.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_OBJECT_FAILURES
    }

    /// Records a successful call.
    pub(crate) fn record_success(&self) {
        if self.object_failures.load(Ordering::Relaxed) != 0 {
            self.object_failures.store(0, Ordering::Relaxed);
        }
    }
}

impl Opened {
    pub(crate) fn layer(&self) -> Result<&Arc<dyn Layer>> {
        self.parts.as_ref().map(|(layer, _)| layer).ok_or(Errno::STALE)
    }

    pub(crate) fn root(&self) -> Result<&Arc<dyn Vnode>> {
        self.parts.as_ref().map(|(_, root)| root).ok_or(Errno::STALE)
    }

    /// Checks that the replica responds. statfs needs a round trip to the server; the attributes
    /// prove that the root exists.
    fn is_there(&self) -> Result<()> {
        let cx = Cx::internal(0, 0);
        let root = self.root()?;
        root.statfs(&cx)?;
        let attr = root.getattr(&cx)?;
        if attr.kind() == vnode::Kind::Directory { Ok(()) } else { Err(Errno::NOTDIR) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            // Closing it may hang, so it is left to a thread of the pool.
            pool.dispose(self.parts.take());
        }
    }
}
