use crate::core::Core;
use crate::managed::{Change, Found, Location, Managed};
use crate::state::{DirState, Guard, Layout};
use parking_lot::MutexGuard;
use std::sync::{Arc, OnceLock};
use vnode::{Cx, Entry, Errno, Kind, Name, Result, Vnode};

/// A vnode over one of the layer below. Open files are not wrapped, since this layer does not
/// change data.
#[derive(Debug)]
pub(crate) struct UsenetVnode {
    pub(crate) core: Arc<Core>,
    pub(crate) lower: Arc<dyn Vnode>,
    state: OnceLock<Arc<DirState>>,
}

/// A directory that is locked for a change: a managed one exclusively, a flat one shared, since the
/// layer below locks its entries.
pub(crate) enum LockedDir<'a> {
    Flat(Guard<'a>),
    Managed(parking_lot::MappedRwLockWriteGuard<'a, Managed>),
}

impl LockedDir<'_> {
    pub(crate) fn find(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Option<Found>> {
        match self {
            Self::Flat(_) => Ok(dir.lookup(cx, name)?.map(|entry| (Location::Flat, Arc::clone(dir), entry))),
            Self::Managed(managed) => managed.find(cx, dir, name),
        }
    }

    pub(crate) fn count(&mut self, location: &Location, kind: Kind, change: Change) {
        if let Self::Managed(managed) = self {
            managed.count(location, kind, change);
        }
    }
}

impl UsenetVnode {
    pub(crate) fn over(core: &Arc<Core>, lower: Arc<dyn Vnode>) -> Self {
        Self { core: Arc::clone(core), lower, state: OnceLock::new() }
    }

    /// Downcasts an argument to a vnode of this layer; fails with `EXDEV` for others.
    pub(crate) fn same_layer<'a>(&self, other: &'a Arc<dyn Vnode>) -> Result<&'a Self> {
        let other = other.as_any().downcast_ref::<Self>().ok_or(Errno::XDEV)?;
        if Arc::ptr_eq(&self.core, &other.core) { Ok(other) } else { Err(Errno::XDEV) }
    }

    /// Wraps an entry that the layer below returned.
    pub(crate) fn wrap(&self, cx: &Cx<'_>, entry: Entry) -> Result<Entry> {
        let vnode = Self::over(&self.core, entry.vnode);
        let attr = vnode.shown(cx, entry.attr)?;
        Ok(Entry { vnode: Arc::new(vnode), attr })
    }

    /// Wraps a newly created entry. The operation must not fail any more.
    pub(crate) fn wrap_new(&self, cx: &Cx<'_>, entry: Entry) -> Entry {
        let vnode = Self::over(&self.core, entry.vnode);
        let mut blocking = *cx;
        blocking.may_block = true;
        let attr = vnode.shown(&blocking, entry.attr).unwrap_or(entry.attr);
        Entry { vnode: Arc::new(vnode), attr }
    }

    pub(crate) fn state(&self) -> Result<&Arc<DirState>> {
        if self.lower.kind() != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        Ok(self.state.get_or_init(|| self.core.states.get(self.lower.id())))
    }

    /// Locks the directory for reading and returns its layout.
    pub(crate) fn read_layout(&self, cx: &Cx<'_>) -> Result<Guard<'_>> {
        self.state()?.read_layout(&self.core.server(cx), &self.lower)
    }

    /// Locks the directory for a change.
    pub(crate) fn lock_for_change(&self, cx: &Cx<'_>) -> Result<LockedDir<'_>> {
        let guard = self.read_layout(cx)?;
        if matches!(*guard, Layout::Flat) {
            return Ok(LockedDir::Flat(guard));
        }
        drop(guard);
        let guard = self.state()?.write_layout(&self.core.server(cx), &self.lower)?;
        match parking_lot::RwLockWriteGuard::try_map(guard, |layout| match layout {
            Layout::Managed(managed) => Some(&mut **managed),
            Layout::Flat | Layout::Unknown => None,
        }) {
            Ok(managed) => Ok(LockedDir::Managed(managed)),
            Err(guard) => Ok(LockedDir::Flat(parking_lot::RwLockWriteGuard::downgrade(guard))),
        }
    }

    /// Takes the lock that is necessary to lock more than one directory.
    pub(crate) fn multi_dir(&self) -> MutexGuard<'_, ()> {
        self.core.multi_dir.lock()
    }
}
