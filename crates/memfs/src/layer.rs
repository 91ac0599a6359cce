use crate::dump::Dump;
use crate::faults::{Faults, Op};
use crate::node::MemVnode;
use crate::shared::{MemOptions, Shared};
use crate::tree::{ROOT, Tree};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use vnode::{Command, Cx, Errno, Layer, Properties, Result, Upcalls, Vnode};

/// A file system in memory.
#[derive(Debug)]
pub struct MemFs {
    fs: Arc<Shared>,
    root: Arc<MemVnode>,
}

impl MemFs {
    /// An empty one, without faults.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with(MemOptions::default(), &Faults::new())
    }

    /// An empty one.
    #[must_use]
    pub fn with(options: MemOptions, faults: &Faults) -> Arc<Self> {
        let tree = Arc::new(Mutex::new(Tree::new(options.uid, options.gid)));
        Self::over(tree, options, faults.clone())
    }

    fn over(tree: Arc<Mutex<Tree>>, options: MemOptions, faults: Faults) -> Arc<Self> {
        let fs = Arc::new(Shared::new(tree, options, faults));
        let root = Arc::new(MemVnode::hold(&fs, &mut fs.tree(), ROOT));
        Arc::new(Self { fs, root })
    }

    /// What a mount after a crash, at this moment or when the plan of the faults said, would find, with a new plan.
    #[must_use]
    pub fn recover(&self, faults: &Faults) -> Arc<Self> {
        let tree = self.fs.tree().after_crash(self.fs.options.lose_data);
        Self::over(Arc::new(Mutex::new(tree)), self.fs.options, faults.clone())
    }

    /// The same tree, as it is and as it changes, through a layer without faults and limits.
    #[must_use]
    pub fn calm(&self) -> Arc<Self> {
        let options = MemOptions { space: u64::MAX, ..self.fs.options };
        Self::over(Arc::clone(&self.fs.tree), options, Faults::new())
    }

    /// A copy of the tree in a file system of its own.
    #[must_use]
    pub fn fork(&self, faults: &Faults) -> Arc<Self> {
        let tree = self.fs.tree().after_crash(false);
        Self::over(Arc::new(Mutex::new(tree)), self.fs.options, faults.clone())
    }

    /// The plan of faults that this was made with.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.fs.faults
    }

    /// From here on every change answers `EROFS`, or no more.
    pub fn set_read_only(&self, read_only: bool) {
        self.fs.read_only.store(read_only, Ordering::Relaxed);
    }

    /// From here on there are so many bytes in all.
    pub fn set_space(&self, bytes: u64) {
        self.fs.space.store(bytes, Ordering::Relaxed);
    }

    /// How many objects are stored, with those that were removed but are still held.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.fs.tree().inodes.len()
    }

    /// The whole tree as a value. No faults, not counted.
    #[must_use]
    pub fn dump(&self) -> Dump {
        // Without faults nothing of this can fail.
        Dump::of(&*self.calm()).unwrap_or_default()
    }
}

impl Layer for MemFs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    fn properties(&self) -> Properties {
        Properties {
            read_only: self.fs.is_read_only(),
            may_hang: self.fs.options.may_hang,
            varies_by_caller: self.fs.options.varies_by_caller,
            ..Properties::default()
        }
    }

    fn attach(&self, _upcalls: Arc<dyn Upcalls>) {
        // Nothing changes here but by operations.
    }

    fn vnode(&self, _cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let mut tree = self.fs.begin(Op::Vnode)?;
        if number == ROOT {
            return Ok(self.root());
        }
        if !tree.inodes.contains_key(&number) {
            return Err(Errno::STALE);
        }
        Ok(Arc::new(MemVnode::hold(&self.fs, &mut tree, number)))
    }

    fn commands(&self) -> Vec<Command> {
        Vec::new()
    }

    fn sync(&self, _cx: &Cx<'_>) -> Result<()> {
        let mut tree = self.fs.begin(Op::Sync)?;
        for inode in tree.inodes.values_mut() {
            inode.synced = inode.data.clone();
        }
        Ok(())
    }
}
