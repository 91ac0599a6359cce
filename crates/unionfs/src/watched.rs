//! Which parts of a directory need no verification, because their branches report each change of an
//! entry: "Verification" in docs/design/unionfs.md.

use crate::branch::Stack;
use crate::set::BranchSet;
use std::sync::Arc;
use vnode::Reports;

/// Which parts of a directory lie on branches that report changes.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// The positions of the parts whose changes are not reported.
    pub(crate) unreported: Vec<u16>,
    /// The sources of the reports of the others, each once.
    sources: Vec<Arc<dyn Reports>>,
}

impl Watched {
    /// Returns which parts are watched from now on. To be called before the parts are read.
    pub(crate) fn of(set: &BranchSet, stack: &Stack) -> Arc<Self> {
        let mut this = Self::default();
        for (at, part) in (0..).zip(stack.iter()) {
            match set.member(part.branch).and_then(|member| member.state.reports.get()) {
                None => this.unreported.push(at),
                Some(source) if this.sources.iter().any(|known| Arc::ptr_eq(known, source)) => {}
                Some(source) => this.sources.push(source.clone()),
            }
        }
        Arc::new(this)
    }

    /// Whether all changes of watched parts that were complete before this call were reported.
    pub(crate) fn is_complete(&self) -> bool {
        !self.sources.is_empty() && self.sources.iter().all(|source| source.are_complete())
    }
}
