//! Open files on branches that are removed: docs/design/unionfs.md, "Branch sets".

use crate::branch::{BranchId, Lower};
use crate::file::UnionFile;
use crate::metacopy::as_metacopy;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::options::{BuildError, Mode};
use crate::set::BranchSet;
use stack::OpenedFile;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::OpenFile;

/// The branches of a union at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchList {
    /// Number of this set of branches. It increases with each change.
    pub generation: u64,
    /// The branches, from left to right.
    pub branches: Vec<BranchStatus>,
}

/// A branch of a union at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchStatus {
    /// The branch's path.
    pub path: PathBuf,
    /// How it is used.
    pub mode: Mode,
    /// Whether it is listed as read-write, but its file system has refused a change with `EROFS`:
    /// it is used as read-only.
    pub turned_read_only: bool,
    /// What is wrong with it: `"hung"` or `"lost"`.
    pub trouble: Option<&'static str>,
    /// Number of open files whose data lie on it. A file that was opened twice counts twice.
    pub open_files: u64,
}

/// A file in use on a branch that is to be removed.
pub(crate) struct Used {
    pub(crate) vnode: Arc<UnionVnode>,
    /// The branch to be removed: that of the file's data or of its metacopy.
    pub(crate) branch: BranchId,
    /// The file is open for writing.
    pub(crate) writing: bool,
}

/// The copies of files in use, by the number of the file.
pub(crate) type Copies = HashMap<u64, Copy>;

/// The copy of a file in use.
pub(crate) struct Copy {
    /// The copy on its branch.
    pub(crate) lower: Lower,
    /// For a copy without a name: keeps it in existence.
    pub(crate) open: Option<Arc<dyn OpenFile>>,
}

/// Returns the open file as one of a union.
pub(crate) fn as_union_file(file: &Arc<dyn OpenFile>) -> Option<&UnionFile> {
    file.as_any().downcast_ref()
}

impl UnionVnode {
    /// Returns the one of these branches that the file's data lie on or, if none, its metacopy.
    pub(crate) fn lies_on(&self, branches: &[BranchId]) -> Option<BranchId> {
        let leaf = self.leaf();
        let home = as_metacopy(&leaf.vnode).map(|meta| meta.home);
        [Some(leaf.branch), home].into_iter().flatten().find(|branch| branches.contains(branch))
    }
}

impl Core {
    /// Returns the files that are open on the branches `removed`, each once. They would exist
    /// nowhere without these branches. A file of which the set without them has an older version,
    /// or one with other attributes, is among them.
    ///
    /// A file that was copied up while the kernel had its host file is not: its name leads to the
    /// copy, and the kernel continues to read the original.
    pub(crate) fn used(&self, op: &Op<'_>, removed: &[BranchId]) -> Result<Vec<Used>, BuildError> {
        if removed.is_empty() {
            return Ok(Vec::new());
        }
        let files = self.open_files.all();
        let mut used: HashMap<u64, Used> = HashMap::new();
        for file in files.iter().filter_map(as_union_file) {
            // A file that has remained on a branch removed earlier is not affected.
            if file.removed_branch(op).is_some() {
                continue;
            }
            let vnode = file.vnode();
            vnode.revalidate(op).map_err(|errno| {
                let path = op.set.branch(file.branch()).map_or_else(|_| PathBuf::new(), |branch| branch.path.clone());
                BuildError::Step { what: "looking up the files that are open on the branch", path, errno }
            })?;
            if let Some(branch) = vnode.lies_on(removed) {
                let new = || Used { vnode: vnode.clone(), branch, writing: false };
                used.entry(vnode.id).or_insert_with(new).writing |= file.writes();
            }
        }
        Ok(used.into_values().collect())
    }

    /// Returns the branches that open files refer to.
    pub(crate) fn branches_of_open_files(&self) -> Vec<BranchId> {
        self.open_files.all().iter().filter_map(as_union_file).map(UnionFile::branch).collect()
    }

    /// Returns the vnodes of all open files, by address.
    pub(crate) fn open_vnodes(&self) -> HashSet<*const UnionVnode> {
        self.open_files.all().iter().filter_map(as_union_file).map(|file| Arc::as_ptr(file.vnode())).collect()
    }

    /// Returns the numbers of the files that are open for writing on the branches `switched`.
    pub(crate) fn open_for_writing<'a>(&self, switched: &'a [BranchId]) -> impl Iterator<Item = u64> + use<'a> {
        let files = self.open_files.all();
        files.into_iter().filter_map(|file| {
            let file = as_union_file(&file)?;
            (file.writes() && switched.contains(&file.branch())).then_some(file.vnode().id)
        })
    }

    /// Returns the files on the branches `switched`, which become read-only, that the kernel may
    /// write without the union: through open files and through mappings that have outlived them.
    pub(crate) fn used_by_kernel(&self, op: &Op<'_>, switched: &[BranchId]) -> Vec<Used> {
        let files = self.open_files.all();
        let held = files.iter().filter_map(as_union_file).filter(|file| file.holds_host_file());
        let used = held.map(|file| Used { vnode: file.vnode().clone(), branch: file.branch(), writing: true });
        let mut used: HashMap<_, _> = used.map(|used| (used.vnode.id, used)).collect();
        for vnode in self.maybe_mapped() {
            let leaf = vnode.leaf();
            let is_new = switched.contains(&leaf.branch) && vnode.dir.is_none() && !used.contains_key(&vnode.id);
            // A file that can't be opened may be mapped.
            if is_new && self.is_open_for_writing(op, &leaf.vnode).unwrap_or(true) {
                used.insert(vnode.id, Used { branch: leaf.branch, vnode, writing: true });
            }
        }
        used.into_values().filter(|used| switched.contains(&used.branch)).collect()
    }

    /// Returns the error for files in use.
    pub(crate) fn in_use(&self, set: &BranchSet, used: impl Iterator<Item = Used>) -> BuildError {
        let opened = |used: Used| OpenedFile {
            branch: set.branch(used.branch).map_or_else(|_| PathBuf::new(), |branch| branch.path.clone()),
            path: used.vnode.own_path(),
            number: self.shown(used.vnode.id),
            writing: used.writing,
        };
        let mut files: Vec<OpenedFile> = used.map(opened).collect();
        files.sort_unstable_by(|a, b| (&a.branch, &a.path, a.number).cmp(&(&b.branch, &b.path, b.number)));
        BuildError::InUse(files)
    }

    /// Pins the open files that lie on the branches `removed` of the set `old` and have no copy
    /// elsewhere, while the set is replaced. Returns all open files: to close the last reference to
    /// one takes the lock of the set.
    #[must_use]
    pub(crate) fn pin_remaining(
        &self,
        old: &BranchSet,
        removed: &[BranchId],
        copies: &Copies,
    ) -> Vec<Arc<dyn OpenFile>> {
        let files = self.open_files.all();
        for file in files.iter().filter_map(as_union_file) {
            if !copies.contains_key(&file.vnode().id) {
                file.pin(old, removed);
            }
        }
        files
    }

    /// Gives the vnodes of files in use their copies, after the set of branches was replaced.
    pub(crate) fn adopt_copies(&self, op: &Op<'_>, used: &[Used], copies: Copies) {
        let mut copies = copies;
        for Used { vnode, .. } in used {
            let Some(Copy { lower, open }) = copies.remove(&vnode.id) else { continue };
            if let Some(open) = open {
                self.write_gate.keep_orphan(vnode.id, open);
            }
            if let Err(errno) = vnode.revalidate(op) {
                tracing::debug!(?vnode, %errno, "could not look up a file in use after the branches changed");
            }
            // Its name does not lead to the copy.
            if op.set.member(vnode.branch()).is_none() {
                vnode.set_leaf(lower);
            }
        }
    }

    /// Returns the current branches.
    pub(crate) fn list_branches(&self) -> BranchList {
        let set = self.branches.get();
        let mut counts: HashMap<BranchId, u64> = HashMap::new();
        for file in self.open_files.all().iter().filter_map(as_union_file) {
            *counts.entry(file.branch()).or_default() += 1;
        }
        let status = |member: &crate::set::Member| BranchStatus {
            path: member.state.path.clone(),
            mode: member.mode,
            turned_read_only: member.state.turned_read_only.load(Ordering::Relaxed),
            trouble: member.state.trouble(),
            open_files: counts.get(&member.id).copied().unwrap_or(0),
        };
        BranchList { generation: set.generation, branches: set.order.iter().map(status).collect() }
    }
}
