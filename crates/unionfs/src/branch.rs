//! A branch, regardless of its position. Only a [`crate::set::BranchSet`] knows positions.

use crate::options::{Branch, Mode};
use crate::ownfiles::{Own, OwnDir};
use crate::ownnames::IndexName;
use crate::reserve::Reserve;
use crate::tags::Tags;
use isolate::{Health, Isolate, OnLoss};
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use vnode::{Kind, Layer, Reports, Vnode};

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
    /// The part of `layer` that calls a branch which may hang or be lost.
    pub(crate) isolate: Option<Arc<Isolate>>,
    pub(crate) root: Arc<dyn Vnode>,
    pub(crate) path: PathBuf,
    /// Bits 62..48 of the inode numbers of its objects.
    pub(crate) tag: u16,
    /// The tags of the branch's own records.
    pub(crate) tags: Arc<RwLock<Tags>>,
    /// The number of its file system.
    pub(crate) fsid: OnceLock<u64>,
    /// The branch is listed as `rw`, but its file system returned `EROFS`.
    pub(crate) turned_read_only: AtomicBool,
    /// The warning was logged that the branch refuses the union's own names.
    pub(crate) warned_names_refused: AtomicBool,
    /// Whether directories on the branch may have redirects.
    pub(crate) has_redirects: AtomicBool,
    /// Whether directories on the branch may have metacopies.
    pub(crate) metacopies: AtomicBool,
    /// Host files of the branch may have been handed out, so that programs may have mapped them.
    pub(crate) handed_out: AtomicBool,
    /// The file system, or the server's missing privileges, don't allow metacopies.
    pub(crate) no_metacopies: AtomicBool,
    /// The work directory, where copies are built.
    work: OwnDir,
    /// The index of copied-up files with several names.
    links: OwnDir,
    /// The source of the branch's reports, if it reports each change of an entry.
    pub(crate) reports: OnceLock<Arc<dyn Reports>>,
    /// Set aside so that files can be removed when the branch is full.
    pub(crate) reserve: Reserve,
}

impl BranchState {
    pub(crate) fn new(isolated: Isolated, path: PathBuf, tag: u16, tags: Tags) -> Self {
        let Isolated { layer, isolate } = isolated;
        Self {
            root: layer.root(),
            layer,
            isolate,
            fsid: OnceLock::new(),
            path,
            tag,
            tags: Arc::new(RwLock::new(tags)),
            turned_read_only: AtomicBool::new(false),
            warned_names_refused: AtomicBool::new(false),
            has_redirects: AtomicBool::new(false),
            metacopies: AtomicBool::new(false),
            handed_out: AtomicBool::new(false),
            no_metacopies: AtomicBool::new(false),
            work: OwnDir::new(Own::Work),
            links: OwnDir::new(Own::Links),
            reports: OnceLock::new(),
            reserve: Reserve::default(),
        }
    }

    /// Returns what is wrong with the branch, for lists.
    pub(crate) fn trouble(&self) -> Option<&'static str> {
        match self.isolate.as_ref()?.health() {
            Health::Good => None,
            Health::Stuck => Some("hung"),
            Health::Lost => Some("lost"),
        }
    }

    /// Releases what is only needed while the branch is written to.
    pub(crate) fn release(&self) {
        self.work.forget();
        self.links.forget();
        self.reserve.release();
    }

    /// Returns the name that the index entry of the file with this number has on this branch.
    pub(crate) fn index_name(&self, number: u64) -> IndexName {
        IndexName::of(self.tags.read().log_number(number))
    }

    /// Returns the number of the file with this index entry; `None` if it is none, or that of a
    /// file whose number is not known.
    pub(crate) fn indexed_number(&self, name: &[u8]) -> Option<u64> {
        self.tags.read().union_number(IndexName::parse(name)?)
    }

    /// Returns one of the union's own directories on this branch.
    pub(crate) fn own(&self, which: Own) -> &OwnDir {
        match which {
            Own::Work => &self.work,
            Own::Links => &self.links,
        }
    }
}

/// The layer of a branch. A branch that may hang or be skipped is called through an isolating one,
/// unless it is written: a change can't be abandoned.
#[derive(Clone, Debug)]
pub(crate) struct Isolated {
    pub(crate) layer: Arc<dyn Layer>,
    isolate: Option<Arc<Isolate>>,
}

impl Isolated {
    pub(crate) fn new(branch: &Branch) -> Self {
        let hangs = branch.mode.is_network() || branch.layer.properties().may_hang;
        let on_loss = branch.mode.on_loss();
        if branch.mode == Mode::ReadWrite || !(hangs || on_loss == OnLoss::Empty) {
            return Self { layer: branch.layer.clone(), isolate: None };
        }
        let name = format!("branch {}", branch.path.display());
        let isolate = Isolate::new(branch.layer.clone(), &name, hangs, on_loss);
        Self { layer: isolate.clone(), isolate: Some(isolate) }
    }
}

/// Whether the lower object is a directory.
pub(crate) fn is_dir(vnode: &Arc<dyn Vnode>) -> bool {
    vnode.kind() == Kind::Directory
}
