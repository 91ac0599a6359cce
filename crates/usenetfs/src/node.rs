use crate::core::Core;
use crate::managed::{Change, Found, Managed, Spot};
use crate::state::{DirState, Form, Guard};
use parking_lot::MutexGuard;
use std::sync::{Arc, OnceLock};
use vnode::{Cx, Entry, Errno, Kind, Name, Result, Vnode};

/// A vnode of the layer below. Open files are those of the layer below themselves: data are none of this layer's business.
#[derive(Debug)]
pub(crate) struct UsenetVnode {
    pub(crate) core: Arc<Core>,
    pub(crate) lower: Arc<dyn Vnode>,
    state: OnceLock<Arc<DirState>>,
}

/// A directory that is being changed: nobody else looks at it meanwhile if it is managed.
pub(crate) enum Held<'a> {
    Flat(Guard<'a>),
    Managed(parking_lot::MappedRwLockWriteGuard<'a, Managed>),
}

impl Held<'_> {
    pub(crate) fn find(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Option<Found>> {
        match self {
            Self::Flat(_) => Ok(dir.lookup(cx, name)?.map(|entry| (Spot::Flat, Arc::clone(dir), entry))),
            Self::Managed(managed) => managed.find(cx, dir, name),
        }
    }

    pub(crate) fn count(&mut self, spot: &Spot, kind: Kind, change: Change) {
        if let Self::Managed(managed) = self {
            managed.count(spot, kind, change);
        }
    }
}

impl UsenetVnode {
    pub(crate) fn over(core: &Arc<Core>, lower: Arc<dyn Vnode>) -> Self {
        Self { core: Arc::clone(core), lower, state: OnceLock::new() }
    }

    /// The vnode of this layer that an argument of the interface is.
    pub(crate) fn same_layer<'a>(&self, other: &'a Arc<dyn Vnode>) -> Result<&'a Self> {
        let other = other.as_any().downcast_ref::<Self>().ok_or(Errno::XDEV)?;
        if Arc::ptr_eq(&self.core, &other.core) { Ok(other) } else { Err(Errno::XDEV) }
    }

    /// What the layer below answered, as this one answers it.
    pub(crate) fn raise(&self, cx: &Cx<'_>, entry: Entry) -> Result<Entry> {
        let vnode = Self::over(&self.core, entry.vnode);
        let attr = vnode.shown(cx, entry.attr)?;
        Ok(Entry { vnode: Arc::new(vnode), attr })
    }

    /// The same for what was just made, which must not be refused any more.
    pub(crate) fn raise_new(&self, cx: &Cx<'_>, entry: Entry) -> Entry {
        let vnode = Self::over(&self.core, entry.vnode);
        let mut patient = *cx;
        patient.may_block = true;
        let attr = vnode.shown(&patient, entry.attr).unwrap_or(entry.attr);
        Entry { vnode: Arc::new(vnode), attr }
    }

    pub(crate) fn state(&self) -> Result<&Arc<DirState>> {
        if self.lower.kind() != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        Ok(self.state.get_or_init(|| self.core.states.get(self.lower.id())))
    }

    /// What the directory is, known and staying so.
    pub(crate) fn look(&self, cx: &Cx<'_>) -> Result<Guard<'_>> {
        self.state()?.look(&self.core.server(cx), &self.lower)
    }

    /// The directory, to be changed.
    pub(crate) fn hold(&self, cx: &Cx<'_>) -> Result<Held<'_>> {
        let guard = self.look(cx)?;
        if matches!(*guard, Form::Flat) {
            return Ok(Held::Flat(guard));
        }
        drop(guard);
        let guard = self.state()?.change(&self.core.server(cx), &self.lower)?;
        match parking_lot::RwLockWriteGuard::try_map(guard, |form| match form {
            Form::Managed(managed) => Some(&mut **managed),
            Form::Flat | Form::Unknown => None,
        }) {
            Ok(managed) => Ok(Held::Managed(managed)),
            Err(guard) => Ok(Held::Flat(parking_lot::RwLockWriteGuard::downgrade(guard))),
        }
    }

    /// For whoever locks more than one directory.
    pub(crate) fn several(&self) -> MutexGuard<'_, ()> {
        self.core.several.lock()
    }
}
