use crate::{Cx, Result, Upcalls, Vnode};
use core::fmt;
use std::sync::Arc;

/// What holds for a whole layer and all below it. A layer over another starts from what the lower
/// one answers and adds its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The tree can never be changed through this layer: every change answers `EROFS`.
    pub read_only: bool,

    /// Operations may wait for something that can hang, such as a network. None of them then runs
    /// on a thread that serves others.
    pub may_hang: bool,

    /// Closing a file reports errors that nothing else would (as NFS does). The server then passes
    /// each close on to [`crate::OpenFile::flush`], which costs a request for each.
    pub needs_flush: bool,

    /// The layer wants to know what callers are refused, and of each look-up of a name that is
    /// missing. The server arranges that it learns of them ([`Vnode::refused`],
    /// [`Vnode::lookup`]), which costs more look-ups.
    pub watches_refusals: bool,

    /// Several names may lead to one entry of a directory (`foo` and `FOO` where case does not matter).
    ///
    /// The kernel then must not cache names: it would keep `FOO` when `foo` is removed or renamed,
    /// and a program that writes to `FOO` would write to the removed file, or to what now has
    /// another name.
    pub merges_names: bool,

    /// Different callers get different answers: other names, attributes or data. The kernel then
    /// caches nothing that it would show to all: names, attributes, listings, data.
    pub varies_by_caller: bool,
}

impl Properties {
    /// What holds for something made of two parts: what holds for either of them.
    /// [`Self::read_only`] only holds where both are.
    #[must_use]
    pub const fn join(self, other: Self) -> Self {
        Self {
            read_only: self.read_only && other.read_only,
            may_hang: self.may_hang || other.may_hang,
            needs_flush: self.needs_flush || other.needs_flush,
            watches_refusals: self.watches_refusals || other.watches_refusals,
            merges_names: self.merges_names || other.merges_names,
            varies_by_caller: self.varies_by_caller || other.varies_by_caller,
        }
    }
}

/// Who may give a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Root and the user who mounted.
    Owner,
    /// Anybody who may open the object; the layer checks what else it takes.
    Anyone,
}

/// A command of a layer's own, given through the control channel of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// `LAYER.WORD`, as in `lbfs.replicas`: the same in every mount.
    pub name: &'static str,
    /// What it does, what it takes and what it answers, in sentences.
    pub help: &'static str,
    /// Who may give it.
    pub who: Who,
}

/// A mounted layer: the superblock of the papers.
pub trait Layer: Send + Sync + fmt::Debug {
    /// The root directory. Always the same object.
    fn root(&self) -> Arc<dyn Vnode>;

    /// What holds for the layer. What is answered after [`Self::attach`] stays so.
    fn properties(&self) -> Properties;

    /// Something stands on this layer now and wants to be told of changes. Called at most once,
    /// before the first operation; a layer over others attaches itself, or what it was given, to
    /// them.
    fn attach(&self, upcalls: Arc<dyn Upcalls>);

    /// The vnode of a number, also of an object that nobody has looked up since the server
    /// started: of a file handle (open_by_handle_at(2), NFS).
    ///
    /// # Errors
    /// `ESTALE` if no object has that number any more.
    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>>;

    /// The commands that [`Vnode::control`] understands, those of the layers below included.
    fn commands(&self) -> Vec<Command>;

    /// Makes everything durable that was done before.
    ///
    /// # Errors
    /// As syncfs(2).
    fn sync(&self, cx: &Cx<'_>) -> Result<()>;
}
