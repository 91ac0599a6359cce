use crate::audit::Log;
use crate::blocks::VolumeBlocks;
use crate::callers::Callers;
use crate::cleaner::Background;
use crate::copy::Copied;
use crate::inode::Inodes;
use crate::lost::Losses;
use crate::options::Options;
use crate::past::PastObjects;
use crate::policy::MountPolicies;
use crate::set::Sets;
use crate::space::Space;
use crate::token::Tokens;
use core::sync::atomic::AtomicU64;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use vnode::{Attr, Cx, Layer, Result, Time, Upcalls, Vnode};

/// The state that all vnodes share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) lower: Arc<dyn Layer>,
    pub(crate) options: Options,
    pub(crate) inodes: Inodes,
    pub(crate) sets: Sets,
    pub(crate) blocks: Arc<VolumeBlocks>,
    pub(crate) callers: Callers,
    pub(crate) log: Log,
    pub(crate) policies: MountPolicies,
    pub(crate) background: Background,
    pub(crate) space: Arc<Space>,
    pub(crate) losses: Losses,
    /// Held by a rename, which concerns two names.
    pub(crate) renames: Mutex<()>,
    pub(crate) upcalls: OnceLock<Arc<dyn Upcalls>>,
    pub(crate) tokens: Tokens,
    /// The times that tags name, once they are known. Held while the tags are changed.
    pub(crate) tags: Mutex<Option<Arc<[Time]>>>,
    pub(crate) past: PastObjects,
    /// Stamp of the next listing that may change at any time; never 0.
    pub(crate) stamps: AtomicU64,
    pub(crate) uid: u32,
    gid: u32,
    /// Whether the lower directory is a copy.
    pub(crate) copied: Copied,
}

impl Core {
    pub(crate) fn new(lower: Arc<dyn Layer>, options: Options, policies: MountPolicies) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let cx = Cx::internal(uid, gid);
        Self {
            copied: Copied::find(&cx, &*lower.root(), (options.clock)(), options.read_only),
            blocks: Arc::new(VolumeBlocks::new(Arc::clone(&lower), options.read_only)),
            lower,
            options,
            inodes: Inodes::default(),
            sets: Sets::default(),
            callers: Callers::default(),
            log: Log::default(),
            policies,
            background: Background::default(),
            space: Arc::default(),
            losses: Losses::default(),
            renames: Mutex::new(()),
            upcalls: OnceLock::new(),
            tokens: Tokens::default(),
            tags: Mutex::new(None),
            past: PastObjects::default(),
            stamps: AtomicU64::new(1),
            uid,
            gid,
        }
    }

    /// Returns the caller's context as the server's user, for the layer's own files. It may block:
    /// half of a change is no state to stop in.
    pub(crate) fn server<'a>(&self, cx: &Cx<'a>) -> Cx<'a> {
        blocking(&cx.as_server(self.uid, self.gid))
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> Time {
        (self.options.clock)()
    }

    /// Returns the lower root.
    pub(crate) fn root(&self) -> Arc<dyn Vnode> {
        self.lower.root()
    }

    /// Returns since when an object may have existed that has no recorded birth; `None` if the
    /// lower file system does not tell.
    pub(crate) fn birth(&self, attr: &Attr) -> Option<Time> {
        let born = self.copied.birth(attr)?;
        let found = self.inodes.in_use(attr.ino).and_then(|inode| inode.born());
        Some(found.map_or(born, |found| found.min(born)))
    }

    /// Finds a lower object by its number.
    pub(crate) fn by_number(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        self.lower.vnode(cx, number)
    }
}

/// Returns a context that may block, for the steps after the first change.
pub(crate) fn blocking<'a>(cx: &Cx<'a>) -> Cx<'a> {
    let mut cx = *cx;
    cx.may_block = true;
    cx
}
