//! Test replicas that fail or hang on request.
#![allow(dead_code, unreachable_pub)]

use lbfs::{LbFs, Options, Source};
use memfs::{Faults, MemFs};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use vnode::{
    Attr, Command, Cx, DirEntry, Entry, Errno, IoctlReply, Kind, Layer, Name, NameSink, OpenFile, OpenFlags,
    Properties, RenameFlags, Result, SetAttr, StatFs, Upcalls, Vnode, Whence, XattrFlags,
};

pub const CX: Cx<'static> = Cx::internal(0, 0);

/// The behaviour of a replica's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// Calls succeed.
    #[default]
    Healthy,
    /// Calls fail.
    Fails(Errno),
    /// Calls block until the behaviour changes.
    Hangs,
}

/// A gate in front of a replica, through which all calls pass.
#[derive(Debug, Default)]
pub struct Gate {
    behaviour: Mutex<Behaviour>,
    changed: Condvar,
    pub calls: AtomicU64,
    pub reads: AtomicU64,
    pub opened: AtomicU64,
    /// Cache lifetime of names that are looked up there (attributes: twice as long), and the groups
    /// of the last caller of lookup.
    pub lifetime: Mutex<Option<Duration>>,
    pub groups: Mutex<Option<Vec<u32>>>,
}

impl Gate {
    fn looked_up(&self, cx: &Cx<'_>) {
        if let Some(time) = *self.lifetime.lock().unwrap() {
            cx.limit_name_lifetime(time);
            cx.limit_attr_lifetime(time * 2);
            *self.groups.lock().unwrap() = cx.groups().map(<[u32]>::to_vec);
        }
    }

    pub fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
        self.changed.notify_all();
    }

    fn pass(&self) -> Result<()> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut behaviour = self.behaviour.lock().unwrap();
        while *behaviour == Behaviour::Hangs {
            behaviour = self.changed.wait(behaviour).unwrap();
        }
        match *behaviour {
            Behaviour::Fails(errno) => Err(errno),
            _ => Ok(()),
        }
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// A layer behind a gate.
#[derive(Debug)]
pub struct Gated {
    pub lower: Arc<dyn Layer>,
    pub gate: Arc<Gate>,
    pub may_hang: bool,
}

#[derive(Debug)]
struct GatedVnode(Arc<dyn Vnode>, Arc<Gate>);

#[derive(Debug)]
struct GatedFile(Arc<dyn OpenFile>, Arc<Gate>);

impl Layer for Gated {
    fn root(&self) -> Arc<dyn Vnode> {
        Arc::new(GatedVnode(self.lower.root(), Arc::clone(&self.gate)))
    }
    fn properties(&self) -> Properties {
        Properties { read_only: true, may_hang: self.may_hang, needs_flush: false, ..self.lower.properties() }
    }
    fn attach(&self, _upcalls: Arc<dyn Upcalls>) {}
    fn reports(&self) -> Option<Arc<dyn vnode::Reports>> {
        None
    }
    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        self.gate.pass()?;
        Ok(Arc::new(GatedVnode(self.lower.vnode(cx, number)?, Arc::clone(&self.gate))))
    }
    fn commands(&self) -> Vec<Command> {
        Vec::new()
    }
    fn sync(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }
    fn unmounted(&self) {}
}

impl Vnode for GatedVnode {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn id(&self) -> u64 {
        self.0.id()
    }
    fn kind(&self) -> Kind {
        self.0.kind()
    }
    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.1.pass()?;
        self.0.getattr(cx)
    }
    fn setattr(&self, _cx: &Cx<'_>, _set: &SetAttr, _file: Option<&dyn OpenFile>) -> Result<Attr> {
        panic!("a replica is changed")
    }
    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        self.1.pass()?;
        self.1.looked_up(cx);
        let wrap = |e: Entry| Entry { vnode: Arc::new(GatedVnode(e.vnode, Arc::clone(&self.1))), attr: e.attr };
        Ok(self.0.lookup(cx, name)?.map(wrap))
    }
    fn generation(&self) -> u32 {
        self.0.generation()
    }
    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        self.1.pass()?;
        self.0.names(cx, &mut |dir, name| {
            let dir: Arc<dyn Vnode> = Arc::new(GatedVnode(Arc::clone(dir), Arc::clone(&self.1)));
            sink(&dir, name)
        })
    }
    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        self.1.pass()?;
        self.0.control(cx, command, input)
    }
    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.1.pass()?;
        self.0.readlink(cx)
    }
    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.1.pass()?;
        self.0.readdir(cx, cookie, sink)
    }
    fn lists_exactly(&self, cx: &Cx<'_>) -> bool {
        self.0.lists_exactly(cx)
    }

    fn listing_stamp(&self, cx: &Cx<'_>) -> Option<u64> {
        self.0.listing_stamp(cx)
    }
    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        self.1.pass()?;
        self.1.opened.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(GatedFile(self.0.open(cx, flags)?, Arc::clone(&self.1))))
    }
    fn create(&self, _: &Cx<'_>, _: Name<'_>, _: u32, _: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        panic!("a replica is changed")
    }
    fn tmpfile(&self, _: &Cx<'_>, _: u32, _: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)> {
        panic!("a replica is changed")
    }
    fn mknod(&self, _: &Cx<'_>, _: Name<'_>, _: u32, _: u64) -> Result<Entry> {
        panic!("a replica is changed")
    }
    fn mkdir(&self, _: &Cx<'_>, _: Name<'_>, _: u32) -> Result<Entry> {
        panic!("a replica is changed")
    }
    fn symlink(&self, _: &Cx<'_>, _: Name<'_>, _: &[u8]) -> Result<Entry> {
        panic!("a replica is changed")
    }
    fn link(&self, _: &Cx<'_>, _: Name<'_>, _: &Arc<dyn Vnode>) -> Result<Entry> {
        panic!("a replica is changed")
    }
    fn unlink(&self, _: &Cx<'_>, _: Name<'_>) -> Result<()> {
        panic!("a replica is changed")
    }
    fn rmdir(&self, _: &Cx<'_>, _: Name<'_>) -> Result<()> {
        panic!("a replica is changed")
    }
    fn rename(&self, _: &Cx<'_>, _: Name<'_>, _: &Arc<dyn Vnode>, _: Name<'_>, _: RenameFlags) -> Result<()> {
        panic!("a replica is changed")
    }
    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.1.pass()?;
        self.0.getxattr(cx, name, out)
    }
    fn setxattr(&self, _: &Cx<'_>, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        panic!("a replica is changed")
    }
    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.1.pass()?;
        self.0.listxattr(cx, out)
    }
    fn removexattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<()> {
        panic!("a replica is changed")
    }
    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()> {
        self.1.pass()?;
        self.0.refused(cx, mask)
    }
    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.1.pass()?;
        self.0.statfs(cx)
    }
    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        Ok(())
    }
    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        self.1.pass()?;
        self.0.ioctl(cx, cmd, input, out)
    }
}

impl OpenFile for GatedFile {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn backing(&self) -> Option<vnode::Backing<'_>> {
        self.0.backing()
    }
    fn closes_quickly(&self) -> bool {
        self.0.closes_quickly()
    }
    fn bind(&self) {
        self.0.bind();
    }
    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.1.reads.fetch_add(1, Ordering::SeqCst);
        self.1.pass()?;
        self.0.read(cx, out, offset)
    }
    fn read_host(&self, _: &Cx<'_>, _: vnode::HostReader<'_>) -> Result<Option<usize>> {
        Ok(None)
    }
    fn write(&self, _: &Cx<'_>, _: &[u8], _: u64) -> Result<usize> {
        panic!("a replica is changed")
    }
    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }
    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        Ok(())
    }
    fn fallocate(&self, _: &Cx<'_>, _: u32, _: u64, _: u64) -> Result<()> {
        panic!("a replica is changed")
    }
    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.1.pass()?;
        self.0.seek(cx, offset, whence)
    }
    fn copy_from(&self, _: &Cx<'_>, _: u64, _: &dyn OpenFile, _: u64, _: u64) -> Result<u64> {
        panic!("a replica is changed")
    }
    fn reflink_from(&self, _: &Cx<'_>, _: &dyn OpenFile) -> Result<()> {
        panic!("a replica is changed")
    }
}

impl Drop for GatedFile {
    fn drop(&mut self) {
        // Closing a file on a network file system may hang, too.
        let _ = self.1.pass();
        self.1.opened.fetch_sub(1, Ordering::SeqCst);
    }
}

type One<'a> = ((&'a Arc<MemFs>, &'a Arc<Gate>), &'a Arc<AtomicU64>);

/// In-memory replicas of one tree, each behind a gate.
pub struct Replicas {
    pub trees: Vec<Arc<MemFs>>,
    pub gates: Vec<Arc<Gate>>,
    /// Number of times each was opened.
    pub openings: Vec<Arc<AtomicU64>>,
    may_hang: bool,
}

impl Replicas {
    /// Returns `count` replicas of the tree that `build` creates.
    pub fn new(count: usize, may_hang: bool, build: impl FnOnce(&Arc<dyn Vnode>)) -> Self {
        let first = MemFs::new();
        build(&first.root());
        let mut trees: Vec<_> = (1..count).map(|_| first.fork(&Faults::new())).collect();
        trees.insert(0, first);
        let gates = (0..count).map(|_| Arc::default()).collect();
        Self { trees, gates, openings: (0..count).map(|_| Arc::default()).collect(), may_hang }
    }

    pub fn sources(&self) -> Vec<Source> {
        let all = self.trees.iter().zip(&self.gates).zip(&self.openings).enumerate();
        let source = |(i, one): (usize, One<'_>)| {
            let ((tree, gate), openings) = one;
            let (tree, gate, openings) = (Arc::clone(tree), Arc::clone(gate), Arc::clone(openings));
            let may_hang = self.may_hang;
            let open = move || {
                gate.pass()?;
                openings.fetch_add(1, Ordering::SeqCst);
                let gated: Arc<dyn Layer> =
                    Arc::new(Gated { lower: tree.without_faults(), gate: Arc::clone(&gate), may_hang });
                Ok(gated)
            };
            Source { name: format!("r{i}"), open: Box::new(open) }
        };
        all.map(source).collect()
    }

    pub fn mount(&self, options: Options) -> Arc<LbFs> {
        LbFs::new(self.sources(), options).unwrap()
    }

    pub fn all(&self, behaviour: Behaviour) {
        self.gates.iter().for_each(|gate| gate.set(behaviour));
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        // Release hanging threads.
        self.all(Behaviour::Fails(Errno::IO));
    }
}

/// Returns options for tests: short times and a deterministic policy.
pub fn quick() -> Options {
    Options {
        timeout: Duration::from_millis(300),
        ramp: Duration::ZERO,
        probe: Duration::from_millis(500),
        compare: 0,
        policy: lbfs::Policy::RoundRobin,
        ..Options::default()
    }
}

pub fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

/// Returns the reply to `lbfs.replicas`.
pub fn statistics(fs: &LbFs) -> serde_json::Value {
    serde_json::from_str(&fs.statistics()).unwrap()
}

/// Returns the state of each replica.
pub fn states(fs: &LbFs) -> Vec<String> {
    let all = statistics(fs);
    all["replicas"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect()
}

/// Looks up a path.
pub fn walk(fs: &LbFs, path: &str) -> Result<Entry> {
    let root = fs.root();
    let mut here = Entry { attr: root.getattr(&CX)?, vnode: root };
    for part in path.split('/') {
        here = here.vnode.lookup(&CX, name(part))?.ok_or(Errno::NOENT)?;
    }
    Ok(here)
}

/// Reads a file.
pub fn read(fs: &LbFs, path: &str) -> Result<Vec<u8>> {
    let file = walk(fs, path)?.vnode.open(&CX, OpenFlags::RDONLY)?;
    let mut out = vec![0; 1 << 20];
    let len = file.read(&CX, &mut out, 0)?;
    out.truncate(len);
    Ok(out)
}
