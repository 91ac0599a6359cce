use crate::tree::{self, Tree};
use crate::{Delete, Mode, Mounted, Sandbox, Spec, Transport};
use std::path::{Path, PathBuf};

/// The usual stage: a union at `/mnt/u` of an empty read-write branch over a read-only one that a test has filled.
///
/// Both branches lie on file systems that can be written, so that a write that went astray would be seen: when the fixture goes,
/// the read-only branch must be as it was, to the last time stamp.
#[derive(Debug)]
pub struct Fixture {
    /// The union.
    pub union: Mounted,
    /// The read-write branch.
    pub rw: PathBuf,
    /// The read-only branch.
    pub ro: PathBuf,
    before: Tree,
    /// Last, since it takes everything with it.
    pub sandbox: Sandbox,
}

impl Fixture {
    /// A union over what `fill` makes.
    #[must_use]
    pub fn new(transport: Transport, fill: impl FnOnce(&Path)) -> Self {
        Self::with(Sandbox::new(), 256, transport, Delete::Whiteout, fill)
    }

    /// The same in the mode `delete=all`.
    #[must_use]
    pub fn delete_all(transport: Transport, fill: impl FnOnce(&Path)) -> Self {
        Self::with(Sandbox::new(), 256, transport, Delete::All, fill)
    }

    /// The same, in a given sandbox, on file systems of `mib` MiB.
    #[must_use]
    pub fn with(sandbox: Sandbox, mib: u64, transport: Transport, delete: Delete, fill: impl FnOnce(&Path)) -> Self {
        let rw = sandbox.ext4("rw", mib).join("branch");
        let ro = sandbox.ext4("ro", mib).join("branch");
        std::fs::create_dir(&rw).expect("the read-write branch");
        std::fs::create_dir(&ro).expect("the read-only branch");
        fill(&ro);
        let before = tree::read(&ro);
        let branches = vec![(rw.clone(), Mode::Rw), (ro.clone(), Mode::Ro)];
        let union = Mounted::new(Spec::Union { branches, delete, transport }, &sandbox.path("u"));
        Self { union, rw, ro, before, sandbox }
    }

    /// A path in the union.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.union.path(name)
    }

    /// Unmounts the union and mounts it again.
    pub fn remount(&mut self) {
        self.union.remount();
    }

    /// The read-only branch must be as it was at the start.
    pub fn check_read_only_branch(&self) {
        let difference = tree::difference(&self.before, &tree::read(&self.ro), tree::Times::Exact);
        assert!(difference.is_empty(), "the read-only branch was changed:\n{difference}");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check_read_only_branch();
        }
    }
}
