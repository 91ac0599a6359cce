//! Objects found by number: maps their lower location to the one that users see, without buckets.

use crate::core::Core;
use crate::node::UsenetVnode;
use crate::record::{STORE, is_reserved};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, NameSink, Result, Vnode};

/// A name in a lower directory.
struct At {
    dir: Arc<dyn Vnode>,
    name: Box<[u8]>,
}

/// Role of a lower directory.
enum Role {
    /// A directory that users see.
    Shown,
    /// A bucket of the given managed directory.
    Bucket(Arc<dyn Vnode>),
    /// The store, which contains buckets.
    Store,
}

/// Returns the names of a lower object.
fn names_below(cx: &Cx<'_>, lower: &dyn Vnode) -> Result<Vec<At>> {
    let mut all = Vec::new();
    lower.names(cx, &mut |dir, name| {
        all.push(At { dir: Arc::clone(dir), name: name.as_bytes().into() });
        true
    })?;
    Ok(all)
}

/// Returns the name of a lower directory, which has one at most.
fn name_below(cx: &Cx<'_>, dir: &dyn Vnode) -> Result<Option<At>> {
    Ok(names_below(cx, dir)?.pop())
}

impl UsenetVnode {
    /// Passes the names of the object, as users see them, to `sink`.
    pub(crate) fn report_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        for At { dir, name } in names_below(cx, &*self.lower)? {
            let name = Name::new(&name)?;
            if let Some(dir) = self.core.directory_of(cx, &self.lower, &dir, name)?
                && !sink(&dir, name)
            {
                break;
            }
        }
        Ok(())
    }
}

impl Core {
    /// Wraps a lower object that was found by number. Fails with `ESTALE` for the layer's own
    /// objects.
    pub(crate) fn wrap_found(self: &Arc<Self>, cx: &Cx<'_>, lower: Arc<dyn Vnode>) -> Result<UsenetVnode> {
        let own = if lower.kind() == Kind::Directory {
            !matches!(self.role(cx, &lower)?, Role::Shown)
        } else {
            let names = names_below(cx, &*lower)?;
            !names.is_empty() && names.iter().all(|at| is_reserved(&at.name))
        };
        if own { Err(Errno::STALE) } else { Ok(UsenetVnode::over(self, lower)) }
    }

    /// Returns the directory in which users see the entry `name` of the lower directory `dir`;
    /// `None` if they don't see it.
    fn directory_of(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        lower: &Arc<dyn Vnode>,
        dir: &Arc<dyn Vnode>,
        name: Name<'_>,
    ) -> Result<Option<Arc<dyn Vnode>>> {
        let shown = match self.role(cx, dir)? {
            Role::Shown => Arc::clone(dir),
            Role::Bucket(managed) => managed,
            Role::Store => return Ok(None),
        };
        let shown = UsenetVnode::over(self, shown);
        let found = shown.find(cx, name)?.is_some_and(|entry| entry.vnode.id() == lower.id());
        let shown: Arc<dyn Vnode> = Arc::new(shown);
        Ok(found.then_some(shown))
    }

    fn role(self: &Arc<Self>, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Role> {
        // A directory without a name is the root, or removed.
        let Some(At { dir: above, name }) = name_below(cx, &**dir)? else { return Ok(Role::Shown) };
        if *name == *STORE {
            return Ok(Role::Store);
        }
        if let Some(At { dir: managed, name }) = name_below(cx, &*above)?
            && *name == *STORE
        {
            return Ok(Role::Bucket(managed));
        }
        // A bucket in the managed directory itself can't be found by its name.
        let found = UsenetVnode::over(self, Arc::clone(&above)).find(cx, Name::new(&name)?)?;
        Ok(if found.is_some_and(|entry| entry.vnode.id() == dir.id()) { Role::Shown } else { Role::Bucket(above) })
    }
}
