use crate::options::Isolate;
use crate::pool::Pool;
use crate::stats::Stats;
use core::fmt;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vnode::{Cx, Errno, Layer, Result, Vnode};

/// The most replicas that a layer can have.
pub const MAX_REPLICAS: usize = 64;

/// Probes of one replica that may be under way: one of what is open, one of what is opened anew.
const PROBES: usize = 2;

/// Where a replica comes from.
pub struct Source {
    /// What it is called in messages: a path.
    pub name: String,
    /// Opens it. Called at the beginning, and again when what was opened is gone for good, such as a network mount that was
    /// mounted anew. May hang.
    pub open: Box<dyn Fn() -> Result<Arc<dyn Layer>> + Send + Sync>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One of the trees that are taken for the same.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) name: String,
    source: Arc<Source>,
    isolate: Isolate,
    threads: usize,
    opened: RwLock<Option<Arc<Opened>>>,
    /// Threads for probes, which must be free while all others are stuck.
    pub(crate) probes: Arc<Pool>,
    /// A thread for comparisons, which nobody waits for.
    pub(crate) aside: Arc<Pool>,
    pub(crate) stats: Stats,
    /// Failures in a row that may have been the objects'.
    doubts: AtomicU32,
}

/// So many failures in a row that may have been the objects' are the replica's.
const DOUBTS: u32 = 3;

/// A replica as it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    /// How often it was opened before: lower vnodes belong to one opening.
    pub(crate) number: u32,
    /// The layer and its root; `None` only while this is dropped.
    parts: Option<(Arc<dyn Layer>, Arc<dyn Vnode>)>,
    /// The threads that call it; `None`: it can't hang, and whoever needs it calls it.
    pub(crate) pool: Option<Arc<Pool>>,
}

impl Replica {
    pub(crate) fn new(source: Source, isolate: Isolate, threads: usize) -> Self {
        Self {
            name: source.name.clone(),
            probes: Pool::new(format!("probe {}", source.name), PROBES),
            aside: Pool::new(format!("compare {}", source.name), 1),
            source: Arc::new(source),
            isolate,
            threads,
            opened: RwLock::new(None),
            stats: Stats::default(),
            doubts: AtomicU32::new(0),
        }
    }

    /// As it was opened last, if it ever was.
    pub(crate) fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.read().clone()
    }

    /// Does an answer of that opening still say something of the replica?
    pub(crate) fn is_current(&self, number: u32) -> bool {
        self.opened.read().as_ref().is_some_and(|opened| opened.number == number)
    }

    /// Asks whether it is there, and opens it (anew) if not. May hang.
    pub(crate) fn probe(&self) -> Result<()> {
        let before = self.opened();
        if let Some(opened) = &before
            && opened.is_there().is_ok()
        {
            return Ok(());
        }
        self.open_anew(before.map_or(0, |opened| opened.number + 1))
    }

    /// Opens it, whatever is open so far. May hang.
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
            // May be the last that holds it: not under the lock.
            drop(former);
        }
        Ok(())
    }

    /// A failure that may be the object's. True: there were so many that it must be the replica.
    pub(crate) fn doubt(&self) -> bool {
        self.doubts.fetch_add(1, Ordering::Relaxed) + 1 >= DOUBTS
    }

    /// Something succeeded.
    pub(crate) fn trust(&self) {
        if self.doubts.load(Ordering::Relaxed) != 0 {
            self.doubts.store(0, Ordering::Relaxed);
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

    /// Asks for something that has to be fetched, and for something that has to be there.
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
            // Closing it may hang, too.
            pool.dispose(self.parts.take());
        }
    }
}
