//! Unions of which snapshots are taken: the branches are directories of one file system that
//! supports reflinks, and open files have host files, as with passthrough.

use super::layer_ops::{CX, find, mkdir, name, read, write};
use memfs::{Count, Dump, Fault, Faults, MemFs, MemOptions, Plan};
use std::sync::Arc;
use unionfs::{Branch, BranchChange, BuildError, ChangePolicy, Metacopy, Mode, Options, Unionfs};
use vnode::{Layer, OpenFile, OpenFlags, RenameFlags, SetAttr};

pub const OPTIONS: MemOptions = MemOptions {
    uid: 0,
    gid: 0,
    reflink: true,
    tmpfile: true,
    lose_data: false,
    space: 1 << 30,
    quota: u64::MAX,
    object_pages: 0,
    may_hang: false,
    varies_by_caller: false,
    generation: 5,
    backing: true,
    identified: false,
};

/// Returns a directory of `disk` as a branch.
pub fn branch(disk: &Arc<MemFs>, dir: &str, mode: Mode) -> Branch {
    Branch { layer: disk.subtree(dir).unwrap(), path: format!("/{dir}").into(), mode }
}

pub fn union_of(disk: &Arc<MemFs>, branches: &[(&str, Mode)]) -> Result<Arc<Unionfs>, BuildError> {
    let branches = branches.iter().map(|(dir, mode)| branch(disk, dir, *mode)).collect();
    Unionfs::new(branches, Options { metacopy: Metacopy::Above(30), ..Options::default() })
}

pub fn snapshot(union: &Unionfs, disk: &Arc<MemFs>, dir: &str) -> Result<(), BuildError> {
    snapshot_to(union, branch(disk, dir, Mode::ReadWrite))
}

pub fn snapshot_to(union: &Unionfs, branch: Branch) -> Result<(), BuildError> {
    union.change_branches(vec![BranchChange::Snapshot(branch)], &ChangePolicy::default())
}

/// Returns everything in a directory of `disk`.
pub fn dump(disk: &Arc<MemFs>, dir: &str) -> Dump {
    Dump::of(&*disk.without_faults().subtree(dir).unwrap()).unwrap()
}

/// Opens a file as the kernel does, which gets its host file. Returns it with the host file.
pub fn open_in_kernel(union: &Unionfs, lower: &dyn Layer, path: &str) -> (Arc<dyn OpenFile>, Arc<dyn OpenFile>) {
    let file = find(union, path).unwrap().open(&CX, OpenFlags::RDWR).unwrap();
    assert!(file.backing().is_some());
    file.bind();
    (file, find(lower, path).unwrap().open(&CX, OpenFlags::RDWR).unwrap())
}

/// A union of two read-write branches and a read-only one, with open files.
pub struct World {
    pub faults: Faults,
    pub disk: Arc<MemFs>,
    pub union: Arc<Unionfs>,
    /// The union's open file, and the kernel's.
    pub open: Vec<(Arc<dyn OpenFile>, Arc<dyn OpenFile>)>,
    pub numbers: Vec<u64>,
}

pub const OPEN: [&str; 4] = ["dir/sub/log", "dir/f", "top", "moved/deep/log"];
pub const BRANCHES: [(&str, Mode); 3] = [("a", Mode::ReadWrite), ("b", Mode::ReadWrite), ("c", Mode::ReadOnly)];

impl World {
    /// Returns a world whose server was killed at change number `at` of a snapshot, and what is
    /// left of its disk. `None` if the snapshot makes fewer changes.
    pub fn killed_at(at: u64) -> Option<(Self, Arc<MemFs>)> {
        let world = Self::new();
        world.faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
        let _outcome = snapshot_to(&world.union, branch(&world.disk, "new", Mode::ReadWrite));
        if !world.faults.fired() {
            return None;
        }
        let disk = world.disk.recover(&Faults::new());
        Some((world, disk))
    }

    pub fn new() -> Self {
        let faults = Faults::new();
        let disk = MemFs::with(OPTIONS, &faults);
        for dir in ["a", "b", "c", "new", "newer"] {
            mkdir(&*disk, dir);
        }
        for dir in ["a/dir", "a/dir/sub", "b/dir", "b/dir/sub", "c/dir", "c/old", "c/old/deep"] {
            mkdir(&*disk, dir);
        }
        for file in ["b/dir/other", "c/dir/f", "c/low"] {
            write(&*disk, file, file.as_bytes());
        }
        let union = union_of(&disk, &BRANCHES).unwrap();
        // A directory with a redirect.
        let root = union.root();
        root.rename(&CX, name("old"), &root, name("moved"), RenameFlags::default()).unwrap();
        let mut open = Vec::new();
        for path in OPEN {
            let old = find(&*union, path).is_some();
            if !old {
                write(&*union, path, b"start");
            } else {
                find(&*union, path).unwrap().open(&CX, OpenFlags::RDWR.with_trunc()).unwrap();
            }
            let set = SetAttr { mode: Some(0o640), uid: Some(7), ..SetAttr::default() };
            let vnode = find(&*union, path).unwrap();
            vnode.setattr(&CX, &set, None).unwrap();
            vnode.setxattr(&CX, b"user.x", path.as_bytes(), vnode::XattrFlags::default()).unwrap();
            open.push(open_in_kernel(&union, &*disk.subtree("a").unwrap(), path));
        }
        let numbers = OPEN.iter().map(|path| find(&*union, path).unwrap().id()).collect();
        let world = Self { faults, disk, union, open, numbers };
        world.kernel_writes(b"before");
        world
    }

    /// Writes to all open files without the union.
    pub fn kernel_writes(&self, data: &[u8]) {
        self.open.iter().for_each(|(_, kernel)| assert_eq!(kernel.write(&CX, data, 0), Ok(data.len())));
    }

    pub fn snapshot(&self, dir: &str) -> Result<(), BuildError> {
        snapshot(&self.union, &self.disk, dir)
    }
}

pub fn assert_contents(layer: &dyn Layer, want: &[u8], numbers: &[u64]) {
    for (path, number) in OPEN.iter().zip(numbers) {
        assert_eq!(read(layer, path), want, "{path}");
        let vnode = find(layer, path).unwrap();
        assert_eq!(vnode.id(), *number, "{path}");
        let attr = vnode.getattr(&CX).unwrap();
        assert_eq!((attr.perm(), attr.uid, attr.nlink), (0o640, 7, 1), "{path}");
        let mut value = [0; 20];
        let len = vnode.getxattr(&CX, b"user.x", &mut value).unwrap();
        assert_eq!(&value[..len], path.as_bytes());
    }
}

/// Removes the union's own records, which an attempt may have written.
pub fn strip_own(dump: Dump) -> Dump {
    let mut dump = dump.without_directory_counts();
    dump.0.retain(|path, _| !path.starts_with(b".wh..wh."));
    dump
}
