use crate::data::PAGE;
use crate::dump::Dump;
use crate::faults::{Faults, Op};
use crate::ops::MemVnode;
use crate::tree::{ROOT, Tree};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vnode::{Command, Cx, Errno, Layer, Properties, Result, StatFs, Upcalls, Vnode};

/// What a memory file system is like.
#[derive(Clone, Copy, Debug)]
pub struct MemOptions {
    /// Owner of the root.
    pub uid: u32,
    /// Group of the root.
    pub gid: u32,
    /// Can files share data (`FICLONE`)?
    pub reflink: bool,
    /// Can it make files without a name?
    pub tmpfile: bool,
    /// Are bytes lost in a crash that were written but not made durable? Names and attributes never are.
    pub lose_data: bool,
    /// How many bytes there are in all.
    pub space: u64,
    /// Does it claim that its operations may hang?
    pub may_hang: bool,
    /// Do answers depend on the caller? They don't, but whoever stands above has to take it for true.
    pub varies_by_caller: bool,
    /// The generation of all numbers.
    pub generation: u32,
}

impl Default for MemOptions {
    fn default() -> Self {
        Self {
            uid: 0,
            gid: 0,
            reflink: false,
            tmpfile: true,
            lose_data: false,
            space: 1 << 30,
            may_hang: false,
            varies_by_caller: false,
            generation: 0,
        }
    }
}

/// A file system in memory.
#[derive(Debug)]
pub struct MemFs {
    fs: Arc<Shared>,
    root: Arc<MemVnode>,
}

/// What all vnodes share.
#[derive(Debug)]
pub(crate) struct Shared {
    tree: Arc<Mutex<Tree>>,
    faults: Faults,
    pub(crate) options: MemOptions,
    read_only: AtomicBool,
    space: AtomicU64,
    fsid: u64,
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
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let fs = Arc::new(Shared {
            tree,
            faults,
            options,
            read_only: AtomicBool::new(false),
            space: AtomicU64::new(options.space),
            fsid: NEXT.fetch_add(1, Ordering::Relaxed),
        });
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

impl Shared {
    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation that changes nothing.
    pub(crate) fn begin(&self, op: Op) -> Result<MutexGuard<'_, Tree>> {
        self.faults.meet(op)?;
        Ok(self.tree())
    }

    /// Begins an operation that changes something.
    pub(crate) fn begin_change(&self, op: Op) -> Result<MutexGuard<'_, Tree>> {
        self.faults.meet(op)?;
        self.changing()?;
        Ok(self.tree())
    }

    pub(crate) fn changing(&self) -> Result<()> {
        if self.read_only.load(Ordering::Relaxed) { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Pages that may still be allocated.
    pub(crate) fn free_pages(&self, tree: &Tree) -> u64 {
        (self.space.load(Ordering::Relaxed) / PAGE).saturating_sub(tree.allocated())
    }

    pub(crate) fn figures(&self, tree: &Tree) -> StatFs {
        let free = self.free_pages(tree);
        StatFs {
            frsize: PAGE,
            bsize: PAGE,
            blocks: self.space.load(Ordering::Relaxed) / PAGE,
            bfree: free,
            bavail: free,
            files: 1 << 32,
            ffree: (1 << 32) - tree.inodes.len() as u64,
            namemax: 255,
            fsid: self.fsid,
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
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
