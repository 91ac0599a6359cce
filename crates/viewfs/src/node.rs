use crate::number;
use crate::permission::Permissions;
use crate::shared::Shared;
use crate::table::{Directory, Place};
use classify::ViewId;
use core::fmt;
use parking_lot::{Mutex, RwLock};
use std::sync::{Arc, Weak};
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, Result, Vnode};

/// A directory or another object.
pub(crate) struct Node {
    pub(crate) fs: Arc<Shared<Self>>,
    me: Weak<Self>,
    pub(crate) number: u64,
    generation: u32,
    kind: Kind,
    pub(crate) body: Body,
}

/// What a vnode stands for.
pub(crate) enum Body {
    /// A directory, in each view that has one of this name.
    Directory(Merged),
    /// Any other object, of one view. `at`: where it was found, if it has a name.
    Single { view: ViewId, lower: Arc<dyn Vnode>, at: Option<At> },
}

/// The directories of all views.
pub(crate) struct Merged {
    /// By view. A lower directory stays for the life of the vnode.
    lowers: RwLock<Vec<Option<Arc<dyn Vnode>>>>,
    /// The view that the vnode belongs to, if it is not shared.
    alone: Mutex<Option<ViewId>>,
    /// The parent and the name; `None` for the root.
    at: RwLock<Option<At>>,
    pub(crate) permissions: Permissions,
}

/// A place in the tree. The reference keeps the parent in use.
#[derive(Clone)]
pub(crate) struct At {
    pub(crate) parent: Arc<Node>,
    pub(crate) name: Box<[u8]>,
}

impl At {
    pub(crate) fn place(&self) -> Place {
        (self.parent.number, self.name.clone())
    }
}

/// A lower object, and the view that it belongs to.
pub(crate) struct Lower {
    pub(crate) view: ViewId,
    pub(crate) vnode: Arc<dyn Vnode>,
}

impl Node {
    /// Returns the root.
    pub(crate) fn root(fs: &Arc<Shared<Self>>) -> Arc<Self> {
        let lowers = fs.views.iter().map(|view| Some(Arc::clone(&view.root))).collect();
        Self::merged(fs, number::ROOT, 0, None, (lowers, None))
    }

    fn merged(
        fs: &Arc<Shared<Self>>,
        number: u64,
        generation: u32,
        at: Option<At>,
        (lowers, alone): (Vec<Option<Arc<dyn Vnode>>>, Option<ViewId>),
    ) -> Arc<Self> {
        let merged = Merged {
            permissions: Permissions::new(lowers.len()),
            lowers: RwLock::new(lowers),
            alone: Mutex::new(alone),
            at: RwLock::new(at),
        };
        Self::new(fs, number, generation, Kind::Directory, Body::Directory(merged))
    }

    fn new(fs: &Arc<Shared<Self>>, number: u64, generation: u32, kind: Kind, body: Body) -> Arc<Self> {
        let fs = Arc::clone(fs);
        Arc::new_cyclic(|me| Self { fs, me: Weak::clone(me), number, generation, kind, body })
    }

    /// Returns the vnode for an object of a view that is no directory.
    pub(crate) fn single(fs: &Arc<Shared<Self>>, view: ViewId, lower: Arc<dyn Vnode>, at: Option<At>) -> Arc<Self> {
        let (number, generation, kind) = (number::convert(view, lower.id()), lower.generation(), lower.kind());
        Self::new(fs, number, generation, kind, Body::Single { view, lower, at })
    }

    /// Returns the vnode for a directory that a view has in `parent`.
    pub(crate) fn directory(parent: &Arc<Self>, name: &[u8], view: ViewId, lower: &Arc<dyn Vnode>) -> Arc<Self> {
        let fs = &parent.fs;
        let at = At { parent: Arc::clone(parent), name: name.into() };
        let create = |number, alone| {
            let mut lowers = vec![None; fs.views.len()];
            if let Some(slot) = lowers.get_mut(view) {
                *slot = Some(Arc::clone(lower));
            }
            Self::merged(fs, number, lower.generation(), Some(at), (lowers, alone))
        };
        fs.table.find((parent.number, name.into()), (view, lower), create)
    }

    /// Returns the vnode for an entry that a view has in this directory.
    pub(crate) fn child(&self, name: Name<'_>, view: ViewId, entry: Entry) -> Result<Entry> {
        let Entry { vnode: lower, attr } = entry;
        let parent = self.to_arc()?;
        let node = match lower.kind() {
            Kind::Directory => Self::directory(&parent, name.as_bytes(), view, &lower),
            _ => Self::single(&self.fs, view, lower, Some(At { parent, name: name.as_bytes().into() })),
        };
        let attr = node.present(view, attr);
        Ok(Entry { vnode: node, attr })
    }

    /// Returns attributes of the lower object as those of this one.
    pub(crate) fn present(&self, view: ViewId, attr: Attr) -> Attr {
        if let Body::Directory(merged) = &self.body {
            merged.permissions.seen(view, &attr);
        }
        Attr { ino: number::convert(view, attr.ino), ..attr }
    }

    pub(crate) fn to_arc(&self) -> Result<Arc<Self>> {
        self.me.upgrade().ok_or(Errno::STALE)
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn generation_of(&self) -> u32 {
        self.generation
    }

    pub(crate) const fn kind_of(&self) -> Kind {
        self.kind
    }

    /// Returns the object in the caller's view.
    ///
    /// # Errors
    /// `ESTALE` if the view does not have it; `EACCES` if the caller is refused.
    pub(crate) fn lower(&self, cx: &Cx<'_>) -> Result<Lower> {
        let view = self.fs.view_of(cx)?;
        Ok(Lower { view, vnode: self.lower_in(cx, view)? })
    }

    /// Returns the object in a view.
    pub(crate) fn lower_in(&self, cx: &Cx<'_>, view: ViewId) -> Result<Arc<dyn Vnode>> {
        match &self.body {
            Body::Single { view: own, lower, .. } if *own == view => Ok(Arc::clone(lower)),
            Body::Single { .. } => Err(Errno::STALE),
            Body::Directory(merged) => match merged.lower(view) {
                Some(lower) => Ok(lower),
                None => self.resolve(cx, merged, view),
            },
        }
    }

    /// Finds the directory of a view that has not looked it up: the caller was moved to the view,
    /// or received the directory from a process of another view.
    fn resolve(&self, cx: &Cx<'_>, merged: &Merged, view: ViewId) -> Result<Arc<dyn Vnode>> {
        if merged.alone.lock().is_some() {
            return Err(Errno::STALE);
        }
        let At { parent, name } = merged.at.read().clone().ok_or(Errno::STALE)?;
        let name = Name::new(&name)?;
        let above = parent.lower_in(cx, view)?;
        let found = above.lookup(cx, name)?.ok_or(Errno::STALE)?;
        if found.vnode.kind() != Kind::Directory {
            return Err(Errno::STALE);
        }
        let node = Self::directory(&parent, name.as_bytes(), view, &found.vnode);
        if !core::ptr::eq(&*node, self) {
            return Err(Errno::STALE);
        }
        merged.lower(view).ok_or(Errno::STALE)
    }

    /// Returns the merged directory.
    pub(crate) fn as_directory(&self) -> Option<&Merged> {
        match &self.body {
            Body::Directory(merged) => Some(merged),
            Body::Single { .. } => None,
        }
    }
}

impl Merged {
    pub(crate) fn lower(&self, view: ViewId) -> Option<Arc<dyn Vnode>> {
        self.lowers.read().get(view).cloned().flatten()
    }

    pub(crate) fn at(&self) -> Option<At> {
        self.at.read().clone()
    }

    /// Sets the place of a directory that its view has moved.
    pub(crate) fn set_at(&self, at: At) {
        let before = self.at.write().replace(at);
        // Dropped after the lock: it may be the last reference to the parent.
        drop(before);
    }
}

impl Directory for Node {
    fn has(&self, view: ViewId, wanted: &dyn Vnode) -> Option<bool> {
        let lower = self.as_directory()?.lower(view)?;
        Some(lower.id() == wanted.id() && lower.generation() == wanted.generation())
    }

    fn attach(&self, view: ViewId, lower: Arc<dyn Vnode>) {
        if let Some(merged) = self.as_directory()
            && let Some(slot @ None) = merged.lowers.write().get_mut(view)
        {
            *slot = Some(lower);
        }
    }

    fn views(&self) -> Vec<ViewId> {
        let Some(merged) = self.as_directory() else { return Vec::new() };
        let lowers = merged.lowers.read();
        lowers.iter().enumerate().filter_map(|(view, lower)| lower.as_ref().map(|_| view)).collect()
    }

    fn set_apart(&self, view: Option<ViewId>) {
        if let Some(merged) = self.as_directory() {
            *merged.alone.lock() = view;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Body::Directory(merged) = &mut self.body {
            let place = merged.at.get_mut().as_ref().map(At::place);
            self.fs.table.forget(self.number, place.as_ref());
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("number", &self.number).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Returns a vnode of this layer.
pub(crate) fn downcast(vnode: &Arc<dyn Vnode>) -> Result<&Node> {
    let node: &dyn Vnode = &**vnode;
    node.as_any().downcast_ref::<Node>().ok_or(Errno::XDEV)
}
