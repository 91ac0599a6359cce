use crate::{Cx, Reports, Result, Upcalls, Vnode};
use core::fmt;
use std::sync::Arc;

/// Properties of a layer and everything below it. A layer starts from the properties of its lower
/// layer and adds its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The tree can never be changed through this layer: every modification fails with `EROFS`.
    pub read_only: bool,

    /// Operations may block on something that can hang, such as a network. They never run on a
    /// thread that serves other requests.
    pub may_hang: bool,

    /// Closing a file can report errors that no other operation reports (as with NFS). The server
    /// then forwards each close to [`crate::OpenFile::flush`], which costs one request per close.
    pub needs_flush: bool,

    /// The layer audits denied accesses and negative lookups. The server then reports every one of
    /// them ([`Vnode::refused`], [`Vnode::lookup`]), which costs additional lookups.
    pub audits_refusals: bool,

    /// Several names may resolve to one directory entry (`foo` and `FOO` in a case-insensitive
    /// directory).
    ///
    /// The kernel must then not cache names. It would keep `FOO` after `foo` is removed or renamed,
    /// and a program that opens `FOO` would write to the removed or renamed file.
    pub merges_names: bool,

    /// Different callers see different names, or some see none. The kernel then caches no names,
    /// listings and link targets, so that the layer is asked at each step of a path.
    pub varies_by_caller: bool,

    /// Different callers see different attributes of one object. The kernel then caches none.
    pub attributes_vary_by_caller: bool,

    /// Different callers who have one file open see different data. The kernel then caches no data,
    /// except of mapped files.
    pub data_varies_by_caller: bool,
}

impl Properties {
    /// Whether what one caller obtained must not be used for another.
    #[must_use]
    pub const fn differs_by_caller(self) -> bool {
        self.varies_by_caller || self.attributes_vary_by_caller || self.data_varies_by_caller
    }

    /// Returns the properties of a combination of two layers: every property that either has, but
    /// [`Self::read_only`] only if both have it.
    #[must_use]
    pub const fn join(self, other: Self) -> Self {
        Self {
            read_only: self.read_only && other.read_only,
            may_hang: self.may_hang || other.may_hang,
            needs_flush: self.needs_flush || other.needs_flush,
            audits_refusals: self.audits_refusals || other.audits_refusals,
            merges_names: self.merges_names || other.merges_names,
            varies_by_caller: self.varies_by_caller || other.varies_by_caller,
            attributes_vary_by_caller: self.attributes_vary_by_caller || other.attributes_vary_by_caller,
            data_varies_by_caller: self.data_varies_by_caller || other.data_varies_by_caller,
        }
    }
}

/// The users who may run a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandAccess {
    /// Root and the user who mounted the file system.
    Owner,
    /// Any user who may open the object. The layer checks any further requirement.
    Anyone,
}

/// A layer-specific command, sent through the control channel of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// `LAYER.WORD`, such as `lbfs.replicas`; the same in every mount.
    pub name: &'static str,
    /// What the command does, its input and its output, in sentences.
    pub help: &'static str,
    /// The users who may run it.
    pub access: CommandAccess,
}

/// A mounted layer (the "superblock" of the stackable file system papers).
pub trait Layer: Send + Sync + fmt::Debug {
    /// Returns the root directory. Always the same object.
    fn root(&self) -> Arc<dyn Vnode>;

    /// Returns the properties of the layer. They do not change after [`Self::attach`].
    fn properties(&self) -> Properties;

    /// Registers the layer or server above, which wants to be notified of changes. Called at most
    /// once, before the first operation. A stacked layer attaches itself, or passes on `upcalls`,
    /// to the layers below.
    fn attach(&self, upcalls: Arc<dyn Upcalls>);

    /// Returns the source of the reports of this layer, if it reports each entry that changes in a
    /// directory with a live vnode, except by an operation through this layer. `None` if some such
    /// changes are not reported, and before [`Self::attach`].
    fn reports(&self) -> Option<Arc<dyn Reports>>;

    /// Returns the vnode with this number, even if it has not been looked up since the server
    /// started. Used for file handles (open_by_handle_at(2), NFS).
    ///
    /// # Errors
    /// `ESTALE` if no object has this number.
    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>>;

    /// Returns a number that tells this tree from copies of it and from other trees at its place.
    /// It is the same for as long as the root directory exists, also after a restart, and is
    /// stored. `None` if that can't be known.
    fn fingerprint(&self) -> Option<u64> {
        None
    }

    /// Returns the commands that [`Vnode::control`] accepts, including those of the layers below.
    fn commands(&self) -> Vec<Command>;

    /// Makes all completed changes durable.
    ///
    /// # Errors
    /// As syncfs(2).
    fn sync(&self, cx: &Cx<'_>) -> Result<()>;

    /// The file system has been unmounted, and no operation follows: the layer removes what it
    /// keeps below only while it is mounted. A layer passes the call on to the layers below. Not
    /// called if the server is killed. Open files and vnodes can still exist.
    fn unmounted(&self);
}
