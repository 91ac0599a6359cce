//! A branch in memory whose out-of-band changes the test makes and reports.

use super::layer_ops::CX;
use memfs::{Faults, MemFs, MemOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use unionfs::{Branch, Mode};
use vnode::{Command, Cx, Kind, Layer, Name, Reports, Result, Upcalls, Vnode, forward};

/// The source of reports of several branches.
#[derive(Debug)]
pub struct Source(AtomicBool);

impl Source {
    /// Returns a source all of whose reports were made.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    /// Sets whether all reports were made.
    pub fn set_complete(&self, complete: bool) {
        self.0.store(complete, Ordering::SeqCst);
    }
}

impl Reports for Source {
    fn are_complete(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A branch whose receiver of reports the test can call.
#[derive(Debug)]
pub struct Reporting {
    pub lower: Arc<MemFs>,
    upcalls: OnceLock<Arc<dyn Upcalls>>,
    source: Option<Arc<Source>>,
}

impl Reporting {
    /// Returns a branch that reports all changes, if it has a source.
    pub fn new(source: Option<&Arc<Source>>, faults: &Faults) -> Arc<Self> {
        let lower = MemFs::with(MemOptions::default(), faults);
        Arc::new(Self { lower, upcalls: OnceLock::new(), source: source.cloned() })
    }

    /// Returns the branch as one of a union. The first is read-write.
    pub fn branch(self: &Arc<Self>, at: usize) -> Branch {
        let mode = if at == 0 { Mode::ReadWrite } else { Mode::ReadOnly };
        Branch { layer: self.clone(), path: format!("/{at}").into(), mode }
    }

    /// Returns the receiver of reports.
    pub fn upcalls(&self) -> &Arc<dyn Upcalls> {
        self.upcalls.get().unwrap()
    }

    /// Reports that an entry of a directory changed.
    pub fn report(&self, dir: &Arc<dyn Vnode>, text: &str) {
        self.upcalls().entry_changed(dir.id(), Name::new(text.as_bytes()).unwrap());
    }

    /// Creates a file in a directory of the branch, and reports it.
    pub fn make(&self, dir: &Arc<dyn Vnode>, text: &str) {
        make(dir, text);
        self.report(dir, text);
    }
}

/// Creates a file out of band.
pub fn make(dir: &Arc<dyn Vnode>, text: &str) {
    dir.mknod(&CX, Name::new(text.as_bytes()).unwrap(), Kind::Regular.mode_bits() | 0o644, 0).unwrap();
}

impl Layer for Reporting {
    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        assert!(self.upcalls.set(upcalls).is_ok(), "attached once");
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        Some(self.source.clone()?)
    }

    fn root(&self) -> Arc<dyn Vnode> {
        self.lower.root()
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        self.lower.vnode(cx, number)
    }

    fn commands(&self) -> Vec<Command> {
        Vec::new()
    }

    forward!(lower: properties, sync, unmounted);
}
