use crate::table::Table;
use crate::view::View;
use classify::{Chain, External, Moves, ProcessTable, Rules, ViewId};
use std::sync::{Arc, OnceLock, Weak};
use vnode::{Cx, Errno, Result};

/// State that all vnodes share. `N` is their type: this module does not import it.
#[derive(Debug)]
pub(crate) struct Shared<N> {
    pub(crate) views: Vec<View>,
    pub(crate) chain: Chain,
    pub(crate) processes: Arc<dyn ProcessTable>,
    pub(crate) moves: Arc<Moves>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) external: Option<Arc<External>>,
    /// The view whose processes may change the rules.
    pub(crate) trusted: ViewId,
    pub(crate) table: Table<N>,
    /// Set once the root exists, which the layer keeps.
    pub(crate) root: OnceLock<Weak<N>>,
}

impl<N> Shared<N> {
    /// Returns the view of the caller.
    pub(crate) fn view_of(&self, cx: &Cx<'_>) -> Result<ViewId> {
        self.chain.view(cx)
    }

    pub(crate) fn view(&self, view: ViewId) -> Result<&View> {
        self.views.get(view).ok_or(Errno::IO)
    }

    pub(crate) fn root(&self) -> Result<Arc<N>> {
        self.root.get().and_then(Weak::upgrade).ok_or(Errno::STALE)
    }

    /// Returns the view with this name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<ViewId> {
        self.views.iter().position(|view| view.name.as_bytes() == name)
    }
}
