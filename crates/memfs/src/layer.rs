use crate::dump::Dump;
use crate::faults::{Faults, Op};
use crate::node::MemVnode;
use crate::shared::{MemOptions, Shared};
use crate::tree::{ROOT, Tree};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vnode::{Command, Cx, Errno, Kind, Layer, Name, Properties, Reports, Result, Upcalls, Vnode};

/// The fingerprint of the next identified file system.
static CREATED: AtomicU64 = AtomicU64::new(1);

/// An in-memory file system.
#[derive(Debug)]
pub struct MemFs {
    fs: Arc<Shared>,
    root: Arc<MemVnode>,
}

impl MemFs {
    /// Creates an empty file system without faults.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with(MemOptions::default(), &Faults::new())
    }

    /// Creates an empty file system.
    #[must_use]
    pub fn with(options: MemOptions, faults: &Faults) -> Arc<Self> {
        let fingerprint = options.identified.then(|| CREATED.fetch_add(1, Ordering::Relaxed));
        let tree = Tree::new((options.uid, options.gid), options.object_pages, fingerprint);
        Self::over(Arc::new(Mutex::new(tree)), options, faults.clone())
    }

    fn over(tree: Arc<Mutex<Tree>>, options: MemOptions, faults: Faults) -> Arc<Self> {
        let fs = Arc::new(Shared::new(tree, options, faults));
        let root = Arc::new(MemVnode::hold(&fs, &mut fs.tree(), ROOT));
        Arc::new(Self { fs, root })
    }

    /// Returns the file system that a mount after a crash would find, with a new fault plan. The
    /// crash is the one of the plan, or happens now.
    #[must_use]
    pub fn recover(&self, faults: &Faults) -> Arc<Self> {
        let tree = self.fs.tree().after_crash(self.fs.options.lose_data);
        Self::over(Arc::new(Mutex::new(tree)), self.fs.options, faults.clone())
    }

    /// Returns the same tree, including later changes, without faults and limits.
    #[must_use]
    pub fn without_faults(&self) -> Arc<Self> {
        let options = MemOptions { space: u64::MAX, quota: u64::MAX, ..self.fs.options };
        Self::over(Arc::clone(&self.fs.tree), options, Faults::new())
    }

    /// Returns an independent copy of the tree.
    #[must_use]
    pub fn fork(&self, faults: &Faults) -> Arc<Self> {
        let tree = self.fs.tree().after_crash(false);
        Self::over(Arc::new(Mutex::new(tree)), self.fs.options, faults.clone())
    }

    /// Returns the fault plan of the file system.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.fs.faults
    }

    /// Makes every change fail with `EROFS`, or ends that.
    pub fn set_read_only(&self, read_only: bool) {
        self.fs.read_only.store(read_only, Ordering::Relaxed);
    }

    /// Sets the total space in bytes.
    pub fn set_space(&self, bytes: u64) {
        self.fs.space.store(bytes, Ordering::Relaxed);
    }

    /// Returns the number of stored objects, including unlinked ones that are still in use.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.fs.tree().inodes.len()
    }

    /// Returns the whole tree as a value, without faults and without counting.
    #[must_use]
    pub fn dump(&self) -> Dump {
        // Cannot fail without faults.
        Dump::of(&*self.without_faults()).unwrap_or_default()
    }
}

impl MemFs {
    /// Returns a directory of this file system as a layer. Files can be linked and renamed between
    /// several such layers.
    ///
    /// # Errors
    /// `ENOENT` if the root has no such entry; `ENOTDIR`.
    pub fn subtree(self: &Arc<Self>, name: &str) -> Result<Arc<Subtree>> {
        let found = self.root.lookup(&Cx::internal(0, 0), Name::new(name.as_bytes())?)?;
        let root = found.ok_or(Errno::NOENT)?.vnode;
        if root.kind() == Kind::Directory {
            Ok(Arc::new(Subtree { whole: Arc::clone(self), root }))
        } else {
            Err(Errno::NOTDIR)
        }
    }
}

/// A directory of a [`MemFs`].
#[derive(Debug)]
pub struct Subtree {
    whole: Arc<MemFs>,
    root: Arc<dyn Vnode>,
}

impl Layer for Subtree {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    fn properties(&self) -> Properties {
        self.whole.properties()
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        self.whole.attach(upcalls);
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        None
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        self.whole.vnode(cx, number)
    }

    fn commands(&self) -> Vec<Command> {
        Vec::new()
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.whole.sync(cx)
    }

    fn unmounted(&self) {}
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
            attributes_vary_by_caller: self.fs.options.varies_by_caller,
            data_varies_by_caller: self.fs.options.varies_by_caller,
            ..Properties::default()
        }
    }

    fn attach(&self, _upcalls: Arc<dyn Upcalls>) {
        // Nothing changes out of band.
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        // Tests change it out of band.
        None
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

    fn fingerprint(&self) -> Option<u64> {
        self.fs.tree().fingerprint
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

    fn unmounted(&self) {}
}
