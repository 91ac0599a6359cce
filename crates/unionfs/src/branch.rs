//! A branch, regardless of its position. Only a [`crate::set::BranchSet`] knows positions.

use crate::options::Branch;
use crate::ownfiles::{Own, OwnDir};
use crate::reserve::Reserve;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Kind, Layer, Vnode};

/// Identifies a branch for the life of the server. Its position may change, its id does not.
/// (Records on disk refer to the branch's tag.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BranchId(pub(crate) u16);

/// A vnode of a branch.
#[derive(Clone, Debug)]
pub(crate) struct Lower {
    pub(crate) vnode: Arc<dyn Vnode>,
    pub(crate) branch: BranchId,
}

impl Lower {
    /// Whether both are the same lower object.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.branch == other.branch && self.vnode.id() == other.vnode.id()
    }
}

/// The lower directories that a directory merges, from left to right; never empty.
pub(crate) type Stack = Arc<[Lower]>;

/// Whether two stacks consist of the same lower directories.
pub(crate) fn same_stack(a: &[Lower], b: &[Lower]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is(b))
}

/// A branch in use. It lives while a set or an open file refers to it.
#[derive(Debug)]
pub(crate) struct BranchState {
    pub(crate) layer: Arc<dyn Layer>,
    pub(crate) root: Arc<dyn Vnode>,
    pub(crate) path: std::path::PathBuf,
    /// Bits 62..48 of the inode numbers of its objects.
    pub(crate) tag: u16,
    /// The branch is listed as `rw`, but its file system returned `EROFS`.
    pub(crate) turned_read_only: AtomicBool,
    /// The warning was logged that the branch refuses the union's own names.
    pub(crate) warned_names_refused: AtomicBool,
    /// Whether directories on the branch may have redirects.
    pub(crate) has_redirects: AtomicBool,
    /// Whether directories on the branch may have metacopies.
    pub(crate) metacopies: AtomicBool,
    /// The file system, or the server's missing privileges, don't allow metacopies.
    pub(crate) no_metacopies: AtomicBool,
    /// The work directory, where copies are built.
    work: OwnDir,
    /// The index of copied-up files with several names.
    links: OwnDir,
    /// Set aside so that files can be removed when the branch is full.
    pub(crate) reserve: Reserve,
}

impl BranchState {
    pub(crate) fn new(branch: Branch, tag: u16) -> Self {
        Self {
            root: branch.layer.root(),
            layer: branch.layer,
            path: branch.path,
            tag,
            turned_read_only: AtomicBool::new(false),
            warned_names_refused: AtomicBool::new(false),
            has_redirects: AtomicBool::new(false),
            metacopies: AtomicBool::new(false),
            no_metacopies: AtomicBool::new(false),
            work: OwnDir::new(Own::Work),
            links: OwnDir::new(Own::Links),
            reserve: Reserve::default(),
        }
    }

    /// Releases what is only needed while the branch is written to.
    pub(crate) fn release(&self) {
        self.work.forget();
        self.links.forget();
        self.reserve.release();
    }

    /// Returns one of the union's own directories on this branch.
    pub(crate) fn own(&self, which: Own) -> &OwnDir {
        match which {
            Own::Work => &self.work,
            Own::Links => &self.links,
        }
    }
}

/// Whether the lower object is a directory.
pub(crate) fn is_dir(vnode: &Arc<dyn Vnode>) -> bool {
    vnode.kind() == Kind::Directory
}
