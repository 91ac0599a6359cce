//! A branch, whatever its position: that is known to a [`crate::set::BranchSet`] only.

use crate::options::Branch;
use crate::ownfiles::{Own, OwnDir};
use crate::spare::Spare;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Kind, Layer, Vnode};

/// A branch for the life of the server: its position may change, this never does. (What is kept on disk is the branch's tag.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BranchId(pub(crate) u16);

/// A vnode of a branch.
#[derive(Clone, Debug)]
pub(crate) struct Lower {
    pub(crate) vnode: Arc<dyn Vnode>,
    pub(crate) branch: BranchId,
}

impl Lower {
    /// Is that the same lower object?
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.branch == other.branch && self.vnode.id() == other.vnode.id()
    }
}

/// The lower directories that a directory merges, left to right; never empty.
pub(crate) type Stack = Arc<[Lower]>;

/// Do two stacks merge the same directories?
pub(crate) fn same_stack(a: &[Lower], b: &[Lower]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is(b))
}

/// A branch in use. It lives for as long as a set or an open file refers to it.
#[derive(Debug)]
pub(crate) struct BranchState {
    pub(crate) layer: Arc<dyn Layer>,
    pub(crate) root: Arc<dyn Vnode>,
    pub(crate) path: std::path::PathBuf,
    /// Bits 62..48 of the numbers of its objects.
    pub(crate) tag: u16,
    /// It is listed as read-write, but answered `EROFS`.
    pub(crate) refuses: AtomicBool,
    /// It was said that it refuses names of the union's own.
    pub(crate) refuses_names: AtomicBool,
    /// May directories on it have redirects?
    pub(crate) moved: AtomicBool,
    /// May directories on it have metacopies?
    pub(crate) metacopies: AtomicBool,
    /// Its file system, or the server's rights, don't allow metacopies.
    pub(crate) refuses_metacopies: AtomicBool,
    /// Where copies are built.
    work: OwnDir,
    /// The index of copied-up files with several names.
    links: OwnDir,
    /// What removing files needs once the branch is full.
    pub(crate) spare: Spare,
}

impl BranchState {
    pub(crate) fn new(branch: Branch, tag: u16) -> Self {
        Self {
            root: branch.layer.root(),
            layer: branch.layer,
            path: branch.path,
            tag,
            refuses: AtomicBool::new(false),
            refuses_names: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            metacopies: AtomicBool::new(false),
            refuses_metacopies: AtomicBool::new(false),
            work: OwnDir::new(Own::Work),
            links: OwnDir::new(Own::Links),
            spare: Spare::default(),
        }
    }

    /// The branch is not written to any more: lets go what was kept for that.
    pub(crate) fn release(&self) {
        self.work.forget();
        self.links.forget();
        self.spare.release();
    }

    /// A directory of the union's own.
    pub(crate) fn own(&self, which: Own) -> &OwnDir {
        match which {
            Own::Work => &self.work,
            Own::Links => &self.links,
        }
    }
}

/// Is that lower object a directory?
pub(crate) fn is_dir(vnode: &Arc<dyn Vnode>) -> bool {
    vnode.kind() == Kind::Directory
}
