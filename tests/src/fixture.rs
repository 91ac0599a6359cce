use crate::tree::{self, Tree};
use crate::{Delete, Mode, Mounted, Sandbox, Spec, Transport};
use std::path::{Path, PathBuf};

/// A union at `/mnt/u` of an empty read-write branch over a read-only branch that the test fills.
///
/// Both branches lie on writable file systems, so that a misdirected write succeeds and is found:
/// when the fixture is dropped, the read-only branch must be unchanged, timestamps included.
#[derive(Debug)]
pub struct Fixture {
    /// The union.
    pub union: Mounted,
    /// The read-write branch.
    pub rw: PathBuf,
    /// The read-only branch.
    pub ro: PathBuf,
    before: Tree,
    /// Dropped last, because it removes everything else.
    pub sandbox: Sandbox,
}

impl Fixture {
    /// Mounts a union over a read-only branch that `fill` populates.
    #[must_use]
    pub fn new(transport: Transport, fill: impl FnOnce(&Path)) -> Self {
        Self::with(Sandbox::new(), 256, transport, Delete::Whiteout, fill)
    }

    /// Like [`Self::new`], with `delete=all`.
    #[must_use]
    pub fn delete_all(transport: Transport, fill: impl FnOnce(&Path)) -> Self {
        Self::with(Sandbox::new(), 256, transport, Delete::All, fill)
    }

    /// Like [`Self::new`], in the given sandbox, with file systems of `mib` MiB and the given
    /// delete mode.
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

    /// Returns the path of `name` in the union.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.union.path(name)
    }

    /// Unmounts the union and mounts it again.
    pub fn remount(&mut self) {
        self.union.remount();
    }

    /// Panics if the read-only branch has changed since the start.
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
