//! Views over unions in memory, and a model of what the kernel does with vnodes.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use classify::{Answer, Classifier, Decision, Process, ProcessTable};
use memfs::{Faults, MemFs};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use unionfs::{Branch, Mode, Unionfs};
use viewfs::{Setup, View, ViewFs};
use vnode::{Cx, Entry, Errno, Kind, Layer, Name, OpenFile, RenameFlags, Result, Vnode, forward, forward_wrapped};

/// Puts all callers into one view.
#[derive(Debug, Default)]
pub struct Switch(AtomicUsize);

impl Switch {
    pub fn set(&self, view: usize) {
        self.0.store(view, Ordering::Relaxed);
    }
}

impl Classifier for Switch {
    fn classify(&self, _cx: &Cx<'_>) -> Result<Answer> {
        Ok(Answer::View(self.0.load(Ordering::Relaxed)))
    }
}

#[derive(Debug)]
struct NoProcesses;

impl ProcessTable for NoProcesses {
    fn process(&self, _thread: u32) -> Option<Process> {
        None
    }

    fn credentials(&self, _process: u32) -> Option<(u32, u32)> {
        None
    }

    fn all(&self) -> Vec<Process> {
        Vec::new()
    }
}

/// Returns views of these layers, named by their numbers, and the switch that selects one.
pub fn views(layers: Vec<Arc<dyn Layer>>) -> (Arc<ViewFs>, Arc<Switch>) {
    let switch = Arc::new(Switch::default());
    let setup = Setup {
        processes: Arc::new(NoProcesses),
        classifiers: vec![Arc::clone(&switch) as Arc<dyn Classifier>],
        rules: Vec::new(),
        external: None,
        default: 0,
        unknown: Decision::Refuse,
        trusted: 0,
    };
    let views = layers.into_iter().enumerate().map(|(i, layer)| View::new(i.to_string(), layer)).collect();
    (ViewFs::new(views, setup), switch)
}

/// Returns a union of a writable branch and read-only ones.
pub fn union(changes: &Arc<MemFs>, below: &[&Arc<MemFs>]) -> Arc<dyn Layer> {
    let branch = |number: usize, layer: &Arc<MemFs>| Branch {
        layer: Arc::clone(layer) as Arc<dyn Layer>,
        path: format!("/{number}").into(),
        mode: if number == 0 { Mode::ReadWrite } else { Mode::ReadOnly },
    };
    let branches = [changes].into_iter().chain(below.iter().copied()).enumerate();
    Unionfs::new(branches.map(|(number, layer)| branch(number, layer)).collect(), unionfs::Options::default()).unwrap()
}

/// Returns a copy with the same content.
pub fn copy(tree: &Arc<MemFs>) -> Arc<MemFs> {
    tree.fork(&Faults::new())
}

/// A model of the kernel: it remembers vnodes, repeats calls that fail with `ESTALE`, and can't use
/// the number of a removed directory any more. It looks names up before it changes them.
#[derive(Debug)]
pub struct Kernel {
    layer: Arc<dyn Layer>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    known: Mutex<VecDeque<Arc<dyn Vnode>>>,
    capacity: usize,
    /// Removed directories, by number.
    dead: Mutex<HashMap<u64, Arc<dyn Vnode>>>,
}

impl Kernel {
    /// Returns a model that remembers `capacity` vnodes.
    pub fn over(layer: Arc<dyn Layer>, capacity: usize) -> Arc<Self> {
        let state = State { known: Mutex::default(), capacity, dead: Mutex::default() };
        Arc::new(Self { layer, state: Arc::new(state) })
    }
}

impl State {
    fn wrap(self: &Arc<Self>, entry: Entry) -> Entry {
        let vnode: Arc<dyn Vnode> = Arc::new(Inode { state: Arc::clone(self), lower: Arc::clone(&entry.vnode) });
        let number = entry.vnode.id();
        assert!(!self.dead.lock().unwrap().contains_key(&number), "number {number} is that of a removed directory");
        let mut known = self.known.lock().unwrap();
        known.push_back(entry.vnode);
        let dropped = if known.len() > self.capacity { known.pop_front() } else { None };
        drop(known);
        drop(dropped);
        Entry { vnode, attr: entry.attr }
    }

    fn kill(&self, victim: Option<Entry>) {
        if let Some(victim) = victim.filter(|victim| victim.vnode.kind() == Kind::Directory) {
            let mut dead = self.dead.lock().unwrap();
            if dead.len() > 20 {
                dead.clear();
            }
            dead.insert(victim.vnode.id(), victim.vnode);
        }
    }
}

#[derive(Debug)]
struct Inode {
    state: Arc<State>,
    lower: Arc<dyn Vnode>,
}

impl Inode {
    fn wrap(&self, entry: Entry) -> Entry {
        self.state.wrap(entry)
    }

    fn wrap_both(&self, (entry, file): (Entry, Arc<dyn OpenFile>)) -> (Entry, Arc<dyn OpenFile>) {
        (self.wrap(entry), file)
    }
}

impl Vnode for Inode {
    fn lists_exactly(&self, _cx: &Cx<'_>) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    forward!(lower: id, generation, kind, getattr, setattr, readlink, readdir, listing_stamp, open, names);
    forward!(lower: unlink, getxattr, setxattr, listxattr, removexattr, refused, statfs, fsync, ioctl, control);
    forward_wrapped!(lower, wrap: mknod, mkdir, symlink);
    forward_wrapped!(lower, wrap_both: create, tmpfile);

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        Ok(self.lower.lookup(cx, name)?.map(|entry| self.wrap(entry)))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        self.lower.link(cx, name, &below(target)).map(|entry| self.wrap(entry))
    }

    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let mut victim = self.lower.lookup(cx, name)?;
        let mut done = self.lower.rmdir(cx, name);
        if done == Err(Errno::STALE) {
            // A vnode with another number: the kernel forgets it, and looks the name up again.
            drop(self.lower.lookup(cx, name)?);
            victim = self.lower.lookup(cx, name)?;
            done = self.lower.rmdir(cx, name);
        }
        if done.is_ok() {
            self.state.kill(victim);
        }
        done
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = below(new_dir);
        let rename = || -> Result<_> {
            let (moved, target) = (self.lower.lookup(cx, name)?, to.lookup(cx, new_name)?);
            let done = self.lower.rename(cx, name, &to, new_name, flags);
            Ok((done, moved, target))
        };
        let (mut done, mut moved, mut target) = rename()?;
        if done == Err(Errno::STALE) {
            drop((moved, target));
            drop((self.lower.lookup(cx, name)?, to.lookup(cx, new_name)?));
            (done, moved, target) = rename()?;
        }
        // The kernel moves the inode: a later lookup must find it.
        if let (Ok(()), Some(moved), false) = (&done, &moved, flags.exchange) {
            let found = to.lookup(cx, new_name)?.unwrap();
            let same = moved.vnode.id() == found.vnode.id();
            assert!(same || moved.vnode.kind() != Kind::Directory, "the moved directory has another number");
            if target.as_ref().is_some_and(|target| target.vnode.id() == moved.vnode.id()) {
                target = None;
            }
        }
        if done.is_ok() && !flags.exchange {
            self.state.kill(target);
        }
        done
    }
}

fn below(vnode: &Arc<dyn Vnode>) -> Arc<dyn Vnode> {
    let vnode: &dyn Vnode = &**vnode;
    Arc::clone(&vnode.as_any().downcast_ref::<Inode>().unwrap().lower)
}

impl Layer for Kernel {
    fn root(&self) -> Arc<dyn Vnode> {
        Arc::new(Inode { state: Arc::clone(&self.state), lower: self.layer.root() })
    }

    forward!(layer: properties, attach, reports, commands, sync, unmounted);

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let lower = self.layer.vnode(cx, number)?;
        Ok(Arc::new(Inode { state: Arc::clone(&self.state), lower }))
    }
}
