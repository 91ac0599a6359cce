use crate::identity::{Identity, PathKey, ROOT};
use crate::shared::Shared;
use crate::table::Identified;
use crate::version::Version;
use core::fmt;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use vnode::{Attr, Errno, Kind, Result, Vnode};

/// What all vnodes share.
pub(crate) type Core = Shared<Node>;

/// An object of the tree: a place in it, and where that was found on the replicas.
pub(crate) struct Node {
    me: Weak<Self>,
    pub(crate) fs: Arc<Core>,
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

/// What a new vnode is.
pub(crate) struct Birth {
    pub(crate) at: Option<(Arc<Node>, Box<[u8]>)>,
    pub(crate) identity: Identity,
    pub(crate) seen: Version,
}

impl Node {
    pub(crate) fn new(fs: &Arc<Core>, birth: Birth) -> Arc<Self> {
        let Identity { path, number, kind } = birth.identity;
        let lowers = match kind {
            Kind::Directory => Lowers::Each(fs.replicas.iter().map(|_| None).collect()),
            _ => Lowers::One(None),
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            fs: Arc::clone(fs),
            at: birth.at,
            path,
            number,
            kind,
            choice: AtomicU8::new(NONE),
            state: Mutex::new(State { lowers, seen: birth.seen }),
        })
    }

    /// The root.
    pub(crate) fn root(fs: &Arc<Core>) -> Arc<Self> {
        let seen = Version { size: 0, mtime: 0 };
        let identity = Identity { path: PathKey::root(), number: ROOT, kind: Kind::Directory };
        Self::new(fs, Birth { at: None, identity, seen })
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

impl Identified for Node {
    fn identity(&self) -> Identity {
        Identity { path: self.path, number: self.number, kind: self.kind }
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
