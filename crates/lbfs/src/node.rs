use crate::identity::{Identity, PathKey, ROOT};
use crate::shared::Shared;
use crate::table::Identified;
use crate::version::Version;
use core::fmt;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use vnode::{Attr, Errno, Kind, Result, Vnode};

/// The state that all vnodes share.
pub(crate) type Core = Shared<Node>;

/// An object: its path, and its lower vnodes on the replicas.
pub(crate) struct Node {
    me: Weak<Self>,
    pub(crate) fs: Arc<Core>,
    /// Parent and name; `None` for the root.
    pub(crate) at: Option<(Arc<Self>, Box<[u8]>)>,
    path: PathKey,
    number: u64,
    kind: Kind,
    /// The replica that it is assigned to. For a directory, the source of its attributes and
    /// listings.
    choice: AtomicU8,
    state: Mutex<State>,
}

/// No replica is assigned.
const NONE: u8 = u8::MAX;

struct State {
    lowers: Lowers,
    seen: Version,
}

/// The lower vnodes.
enum Lowers {
    /// Of a file: on the replica that it is assigned to.
    One(Option<Lower>),
    /// Of a directory: on every replica where it was needed.
    Each(Box<[Option<Lower>]>),
}

struct Lower {
    replica: u8,
    opening: u32,
    vnode: Arc<dyn Vnode>,
}

/// The parameters of a new vnode.
pub(crate) struct NewNode {
    pub(crate) at: Option<(Arc<Node>, Box<[u8]>)>,
    pub(crate) identity: Identity,
    pub(crate) seen: Version,
}

impl Node {
    pub(crate) fn new(fs: &Arc<Core>, new: NewNode) -> Arc<Self> {
        let Identity { path, number, kind } = new.identity;
        let lowers = match kind {
            Kind::Directory => Lowers::Each(fs.replicas.iter().map(|_| None).collect()),
            _ => Lowers::One(None),
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            fs: Arc::clone(fs),
            at: new.at,
            path,
            number,
            kind,
            choice: AtomicU8::new(NONE),
            state: Mutex::new(State { lowers, seen: new.seen }),
        })
    }

    /// Returns a new root vnode.
    pub(crate) fn root(fs: &Arc<Core>) -> Arc<Self> {
        let seen = Version { size: 0, mtime: 0 };
        let identity = Identity { path: PathKey::root(), number: ROOT, kind: Kind::Directory };
        Self::new(fs, NewNode { at: None, identity, seen })
    }

    /// Returns a strong reference to itself. Fails only during drop, when no caller exists.
    pub(crate) fn to_arc(&self) -> Result<Arc<Self>> {
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

    /// Fails with `ENOTDIR` unless it is a directory.
    pub(crate) fn require_directory(&self) -> Result<()> {
        if self.kind == Kind::Directory { Ok(()) } else { Err(Errno::NOTDIR) }
    }

    /// Returns the replica that it is assigned to.
    pub(crate) fn choice(&self) -> Option<usize> {
        match self.choice.load(Ordering::Relaxed) {
            NONE => None,
            replica => Some(replica.into()),
        }
    }

    /// Assigns it to the replica.
    pub(crate) fn choose(&self, replica: usize) {
        self.choice.store(u8::try_from(replica).unwrap_or(NONE), Ordering::Relaxed);
    }

    /// Returns attributes with this layer's number, and without the birth time, which differs
    /// between replicas.
    pub(crate) fn present(&self, attr: Attr) -> Attr {
        Attr { ino: self.number, btime: None, ..attr }
    }

    /// Returns the version that was last seen.
    pub(crate) fn seen(&self) -> Version {
        self.state.lock().seen
    }

    /// Records the version from current attributes.
    pub(crate) fn record_seen(&self, attr: &Attr) {
        if self.kind != Kind::Directory {
            self.state.lock().seen = Version::of(attr);
        } else if self.is_root() {
            *self.fs.root_attr.lock() = Some(*attr);
        }
    }

    /// Returns the lower vnode on the replica, if it is from the given opening.
    pub(crate) fn lower(&self, replica: usize, opening: u32) -> Option<Arc<dyn Vnode>> {
        let state = self.state.lock();
        let lower = match &state.lowers {
            Lowers::One(lower) => lower.as_ref(),
            Lowers::Each(all) => all.get(replica)?.as_ref(),
        };
        let lower = lower.filter(|lower| usize::from(lower.replica) == replica && lower.opening == opening);
        lower.map(|lower| Arc::clone(&lower.vnode))
    }

    /// Records the lower vnode on the replica.
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

    /// Drops the lower vnode on the replica.
    pub(crate) fn unbind(&self, replica: usize) {
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

    /// Returns its path, for messages.
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

impl Identified for Node {
    fn identity(&self) -> Identity {
        Identity { path: self.path, number: self.number, kind: self.kind }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.fs.table.forget(self);
        // Drop a long chain of otherwise unreferenced parents without recursion.
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
