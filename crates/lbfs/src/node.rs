use crate::failover::{Fault, Outcome};
use crate::identity::{self, PathKey};
use crate::layer::Shared;
use crate::replica::Opened;
use core::fmt;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use vnode::{Attr, Cx, Errno, Kind, Name, Result, Vnode};

/// An object of the tree: a place in it, and where that was found on the replicas.
pub(crate) struct Node {
    me: Weak<Self>,
    pub(crate) fs: Arc<Shared>,
    /// Where it is; the root is nowhere.
    pub(crate) at: Option<(Arc<Self>, Box<[u8]>)>,
    path: PathKey,
    number: u64,
    kind: Kind,
    /// The replica that it belongs to; a directory: that its attributes and listings come from.
    choice: AtomicU8,
    state: Mutex<State>,
}

/// No replica was chosen yet.
const NONE: u8 = u8::MAX;

struct State {
    lowers: Lowers,
    seen: Version,
}

/// What was found on the replicas.
enum Lowers {
    /// A file is only used where it belongs.
    One(Option<Lower>),
    /// A directory, on every replica where it was needed.
    Each(Box<[Option<Lower>]>),
}

struct Lower {
    replica: u8,
    opening: u32,
    vnode: Arc<dyn Vnode>,
}

/// What must be the same on all replicas of a file: size, and time of the last change in seconds. Copies made by rsync(1) or
/// tar(1) keep these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) size: u64,
    pub(crate) mtime: i64,
}

impl Version {
    pub(crate) fn of(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime.sec }
    }
}

/// What a new vnode is.
pub(crate) struct Birth {
    pub(crate) at: Option<(Arc<Node>, Box<[u8]>)>,
    pub(crate) path: PathKey,
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) seen: Version,
}

impl Node {
    pub(crate) fn new(fs: &Arc<Shared>, birth: Birth) -> Arc<Self> {
        let lowers = match birth.kind {
            Kind::Directory => Lowers::Each(fs.replicas.iter().map(|_| None).collect()),
            _ => Lowers::One(None),
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            fs: Arc::clone(fs),
            at: birth.at,
            path: birth.path,
            number: birth.number,
            kind: birth.kind,
            choice: AtomicU8::new(NONE),
            state: Mutex::new(State { lowers, seen: birth.seen }),
        })
    }

    /// The root.
    pub(crate) fn root(fs: &Arc<Shared>) -> Arc<Self> {
        let seen = Version { size: 0, mtime: 0 };
        let birth = Birth { at: None, path: PathKey::root(), number: identity::ROOT, kind: Kind::Directory, seen };
        Self::new(fs, birth)
    }

    /// Itself, to be kept. Whoever calls this holds it; an object on its way out has nobody to ask for it.
    pub(crate) fn me(&self) -> Result<Arc<Self>> {
        self.me.upgrade().ok_or(Errno::STALE)
    }

    pub(crate) fn path(&self) -> PathKey {
        self.path
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn kind_of(&self) -> Kind {
        self.kind
    }

    pub(crate) fn is_root(&self) -> bool {
        self.at.is_none()
    }

    /// `ENOTDIR` unless it is a directory.
    pub(crate) fn must_be_directory(&self) -> Result<()> {
        if self.kind == Kind::Directory { Ok(()) } else { Err(Errno::NOTDIR) }
    }

    /// The replica that it belongs to.
    pub(crate) fn choice(&self) -> Option<usize> {
        match self.choice.load(Ordering::Relaxed) {
            NONE => None,
            replica => Some(replica.into()),
        }
    }

    /// From now on it belongs to that one.
    pub(crate) fn choose(&self, replica: usize) {
        self.choice.store(u8::try_from(replica).unwrap_or(NONE), Ordering::Relaxed);
    }

    /// Attributes as this layer shows them: the number is its own, and there is no birth, which is another on each replica.
    pub(crate) fn present(&self, attr: Attr) -> Attr {
        Attr { ino: self.number, btime: None, ..attr }
    }

    /// As it was last seen.
    pub(crate) fn seen(&self) -> Version {
        self.state.lock().seen
    }

    /// It was seen like this.
    pub(crate) fn saw(&self, attr: &Attr) {
        if self.kind != Kind::Directory {
            self.state.lock().seen = Version::of(attr);
        } else if self.is_root() {
            *self.fs.root_attr.lock() = Some(*attr);
        }
    }

    /// What was found on that replica.
    pub(crate) fn lower(&self, replica: usize, opening: u32) -> Option<Arc<dyn Vnode>> {
        let state = self.state.lock();
        let lower = match &state.lowers {
            Lowers::One(lower) => lower.as_ref(),
            Lowers::Each(all) => all.get(replica)?.as_ref(),
        };
        let lower = lower.filter(|lower| usize::from(lower.replica) == replica && lower.opening == opening);
        lower.map(|lower| Arc::clone(&lower.vnode))
    }

    /// It was found there.
    pub(crate) fn bind(&self, replica: usize, opening: u32, vnode: &Arc<dyn Vnode>) {
        let Ok(index) = u8::try_from(replica) else { return };
        let new = Some(Lower { replica: index, opening, vnode: Arc::clone(vnode) });
        let mut state = self.state.lock();
        let former = match &mut state.lowers {
            Lowers::One(lower) => core::mem::replace(lower, new),
            Lowers::Each(all) => all.get_mut(replica).and_then(|lower| core::mem::replace(lower, new)),
        };
        drop(state);
        drop(former);
    }

    /// It is not there any more.
    fn unbind(&self, replica: usize) {
        let mut state = self.state.lock();
        let former = match &mut state.lowers {
            Lowers::One(lower) if lower.as_ref().is_some_and(|lower| usize::from(lower.replica) == replica) => {
                lower.take()
            }
            Lowers::One(_) => None,
            Lowers::Each(all) => all.get_mut(replica).and_then(Option::take),
        };
        drop(state);
        drop(former);
    }

    /// Does `op` on the object of that replica, which is looked for again if it is not the one any more that it was.
    pub(crate) fn perform<T>(
        &self,
        replica: usize,
        opened: &Opened,
        cx: &Cx<'_>,
        op: &impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T>,
    ) -> Outcome<T> {
        if let Some(lower) = self.lower(replica, opened.number) {
            match op(&lower, cx) {
                Err(Errno::STALE) => self.unbind(replica),
                other => return other.map_err(Fault::Errno),
            }
        }
        let lower = self.locate(replica, opened, cx)?;
        self.bind(replica, opened.number, &lower);
        op(&lower, cx).map_err(Fault::Errno)
    }

    /// Finds the object on a replica by the names on the way to it.
    pub(crate) fn locate(&self, replica: usize, opened: &Opened, cx: &Cx<'_>) -> Outcome<Arc<dyn Vnode>> {
        match self.walk(replica, opened, cx, true) {
            // A directory on the way is another one by now.
            Err(Fault::Errno(Errno::STALE)) => self.walk(replica, opened, cx, false),
            other => other,
        }
    }

    /// From the nearest directory that is known there, or from the root.
    fn walk(&self, replica: usize, opened: &Opened, cx: &Cx<'_>, trusting: bool) -> Outcome<Arc<dyn Vnode>> {
        let mut missing = Vec::new();
        let mut here = self;
        let mut lower = loop {
            let Some((parent, name)) = &here.at else { break Arc::clone(opened.root().map_err(Fault::Errno)?) };
            missing.push((here, name));
            if trusting && let Some(known) = parent.lower(replica, opened.number) {
                break known;
            }
            here = parent;
        };
        for (node, name) in missing.into_iter().rev() {
            let name = Name::new(name).map_err(Fault::Errno)?;
            let found = match lower.lookup(cx, name) {
                Ok(Some(entry)) if entry.vnode.kind() == node.kind => entry.vnode,
                Ok(_) | Err(Errno::NOTDIR | Errno::NOENT) => return Err(Fault::Missing),
                Err(errno) => return Err(Fault::Errno(errno)),
            };
            if node.kind == Kind::Directory {
                node.bind(replica, opened.number, &found);
            }
            lower = found;
        }
        Ok(lower)
    }

    /// Where it is, for messages.
    pub(crate) fn show(&self) -> String {
        let mut names = Vec::new();
        let mut here = self;
        while let Some((parent, name)) = &here.at {
            names.push(name.escape_ascii().to_string());
            here = parent;
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.fs.table.forget(self);
        // A long chain of parents that nobody else holds must not be dropped by recursion.
        let mut next = self.at.take().map(|(parent, _)| parent);
        while let Some(parent) = next {
            next = Arc::into_inner(parent).and_then(|mut parent| parent.at.take().map(|(above, _)| above));
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({:?} {:x} at {:?})", self.kind, self.number, self.choice())
    }
}
