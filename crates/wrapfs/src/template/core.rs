use super::commands::Own;
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
use crate::hooks::{Attributes, Ioctls, Matching, NameStore, Names, OpKind, StateFile};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Cx, Errno, Layer, Result};

/// What all vnodes of a layer made with the template share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) lower: Arc<dyn Layer>,
    /// Does the layer refuse every change?
    pub(crate) read_only: bool,
    pub(crate) names: Option<Box<dyn Names>>,
    /// How encoded names are kept, where there is a hook for names.
    pub(crate) store: Box<dyn NameStore>,
    /// Where directories keep what their names are encoded with, if they do.
    pub(crate) state_file: Option<StateFile>,
    pub(crate) dirs: DirLocks,
    /// Which names mean the same entry.
    pub(crate) matching: Matching,
    /// Was it said that the hook for names merges names without having declared it?
    pub(crate) undeclared: AtomicBool,
    /// What is known of directories with [`Matching::Folded`].
    pub(crate) folded: Folded,
    pub(crate) attributes: Option<Box<dyn Attributes>>,
    pub(crate) ioctls: Option<Box<dyn Ioctls>>,
    pub(crate) commands: Option<Own>,
    pub(crate) watch: Option<Watch>,
    pub(crate) data: Option<Coding>,
    pub(crate) resizing: Option<Resizing>,
    pub(crate) format: Option<Formatted>,
    /// What is kept with objects, if anything is.
    pub(crate) records: Option<Arc<Records>>,
    pub(crate) long: Locks,
    /// The user that the server runs as: owner of what the template keeps for itself.
    uid: u32,
    gid: u32,
}

impl Core {
    pub(crate) fn new(lower: Arc<dyn Layer>) -> Self {
        Self {
            lower,
            read_only: false,
            names: None,
            store: Box::new(Hashed),
            state_file: None,
            dirs: DirLocks::default(),
            matching: Matching::Exact,
            undeclared: AtomicBool::new(false),
            folded: Folded::default(),
            attributes: None,
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

    /// The caller's interruption and patience, as the server's user.
    pub(crate) fn server<'a>(&self, cx: &Cx<'a>) -> Cx<'a> {
        cx.as_server(self.uid, self.gid)
    }

    /// The server's user, in work that nobody waits for.
    pub(crate) const fn own(&self) -> Cx<'static> {
        Cx::internal(self.uid, self.gid)
    }

    /// To be asked before anything is changed.
    pub(crate) fn changing(&self) -> Result<()> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Where objects were last seen, if anybody wants to know.
    pub(crate) fn paths(&self) -> Option<&Paths> {
        self.records.as_ref()?.paths()
    }

    /// Who wants to see operations of this kind, if anybody does.
    pub(crate) fn watch(&self, kind: OpKind) -> Option<&Watch> {
        self.watch.as_ref().filter(|watch| watch.sees(kind))
    }
}
