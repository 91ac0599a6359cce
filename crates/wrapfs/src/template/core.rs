use super::commands::OwnCommands;
use super::data::Coding;
use super::directory::DirLocks;
use super::folded::Folded;
use super::format::Formatted;
use super::hashed::Hashed;
use super::long::Locks;
use super::paths::Paths;
use super::record::Records;
use super::resized::Resizing;
use super::watch::Watch;
use crate::hooks::{Attached, Attributes, Ioctls, Matching, NameStore, Names, OpKind, StateFile, Xattrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Cx, Errno, Layer, Result};

/// State shared by all vnodes of a template layer.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) lower: Arc<dyn Layer>,
    /// Whether the layer refuses every change.
    pub(crate) read_only: bool,
    /// Whether the hooks' results depend on the caller.
    pub(crate) varies_by_caller: bool,
    pub(crate) attached: Option<Attached>,
    pub(crate) names: Option<Box<dyn Names>>,
    /// How encoded names are stored, if there is a name hook.
    pub(crate) store: Box<dyn NameStore>,
    /// The state file of directories, if they have state.
    pub(crate) state_file: Option<StateFile>,
    /// The name of the journal, if the layer has one.
    pub(crate) journal_name: Option<Vec<u8>>,
    pub(crate) dirs: DirLocks,
    /// Which names refer to the same entry.
    pub(crate) matching: Matching,
    /// Whether a warning was logged that the name hook merges names without declaring it.
    pub(crate) merge_reported: AtomicBool,
    /// Cached listings of directories with [`Matching::Folded`].
    pub(crate) folded: Folded,
    pub(crate) attributes: Option<Box<dyn Attributes>>,
    pub(crate) xattrs: Option<Box<dyn Xattrs>>,
    pub(crate) ioctls: Option<Box<dyn Ioctls>>,
    pub(crate) commands: Option<OwnCommands>,
    pub(crate) watch: Option<Watch>,
    pub(crate) data: Option<Coding>,
    pub(crate) resizing: Option<Resizing>,
    pub(crate) format: Option<Formatted>,
    /// Records of objects in use, if the layer needs any.
    pub(crate) records: Option<Arc<Records>>,
    pub(crate) long: Locks,
    /// The user that the server runs as: owner of the template's own files.
    uid: u32,
    gid: u32,
}

impl Core {
    pub(crate) fn new(lower: Arc<dyn Layer>) -> Self {
        Self {
            lower,
            read_only: false,
            varies_by_caller: false,
            attached: None,
            names: None,
            store: Box::new(Hashed),
            state_file: None,
            journal_name: None,
            dirs: DirLocks::default(),
            matching: Matching::Exact,
            merge_reported: AtomicBool::new(false),
            folded: Folded::default(),
            attributes: None,
            xattrs: None,
            ioctls: None,
            commands: None,
            watch: None,
            data: None,
            resizing: None,
            format: None,
            records: None,
            long: Locks::default(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Returns a context as the server's user, with the caller's cancellation and blocking rules.
    pub(crate) fn server<'a>(&self, cx: &Cx<'a>) -> Cx<'a> {
        cx.as_server(self.uid, self.gid)
    }

    /// Returns a context as the server's user, for background work.
    pub(crate) const fn own(&self) -> Cx<'static> {
        Cx::internal(self.uid, self.gid)
    }

    /// Returns the user and group that the server runs as.
    pub(crate) const fn owner(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// Fails with `EROFS` on a read-only layer. Called before every change.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Whether different callers see different names or files.
    pub(crate) fn differs_by_caller(&self) -> bool {
        self.varies_by_caller || self.lower.properties().differs_by_caller()
    }

    /// Whether files below differ from those above.
    pub(crate) const fn encodes_data(&self) -> bool {
        self.data.is_some() || self.resizing.is_some() || self.format.is_some()
    }

    /// Returns the known paths of objects, if the layer needs them.
    pub(crate) fn paths(&self) -> Option<&Paths> {
        self.records.as_ref()?.paths()
    }

    /// Returns the hook that observes operations of this kind, if any.
    pub(crate) fn watch(&self, kind: OpKind) -> Option<&Watch> {
        self.watch.as_ref().filter(|watch| watch.sees(kind))
    }
}
