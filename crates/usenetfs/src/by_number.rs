//! Objects that were found by number: where they are for users, who see no buckets.

use crate::core::Core;
use crate::node::UsenetVnode;
use crate::record::{STORE, is_reserved};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, NameSink, Result, Vnode};

/// A name below, with the directory that has it.
struct At {
    dir: Arc<dyn Vnode>,
    name: Box<[u8]>,
}

/// What a directory below is to users.
enum Role {
    /// A directory of theirs.
    Shown,
    /// One that the layer keeps for itself: its entries are shown in that one, if anywhere.
    Bucket(Arc<dyn Vnode>),
    /// The directory of buckets.
    Store,
}

/// The names of an object below.
fn names_below(cx: &Cx<'_>, lower: &dyn Vnode) -> Result<Vec<At>> {
    let mut all = Vec::new();
    lower.names(cx, &mut |dir, name| {
        all.push(At { dir: Arc::clone(dir), name: name.as_bytes().into() });
        true
    })?;
    Ok(all)
}

/// The same of a directory, which has one at most.
fn name_below(cx: &Cx<'_>, dir: &dyn Vnode) -> Result<Option<At>> {
    Ok(names_below(cx, dir)?.pop())
}

impl UsenetVnode {
    /// The names of the object below, as users see them.
    pub(crate) fn tell_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
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
    /// The vnode over an object that was found below by its number; `ESTALE` for what the layer
    /// keeps for itself.
    pub(crate) fn raise_found(self: &Arc<Self>, cx: &Cx<'_>, lower: Arc<dyn Vnode>) -> Result<UsenetVnode> {
        let own = if lower.kind() == Kind::Directory {
            !matches!(self.role(cx, &lower)?, Role::Shown)
        } else {
            let names = names_below(cx, &*lower)?;
            !names.is_empty() && names.iter().all(|at| is_reserved(&at.name))
        };
        if own { Err(Errno::STALE) } else { Ok(UsenetVnode::over(self, lower)) }
    }

    /// The directory, as users see it, in which the entry `name` of the directory `dir` below is
    /// shown; `None` if it is not.
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
        // The root, or removed.
        let Some(At { dir: above, name }) = name_below(cx, &**dir)? else { return Ok(Role::Shown) };
        if *name == *STORE {
            return Ok(Role::Store);
        }
        if let Some(At { dir: managed, name }) = name_below(cx, &*above)?
            && *name == *STORE
        {
            return Ok(Role::Bucket(managed));
        }
        // Where buckets lie in the directory itself, no name leads to them.
        let found = UsenetVnode::over(self, Arc::clone(&above)).find(cx, Name::new(&name)?)?;
        Ok(if found.is_some_and(|entry| entry.vnode.id() == dir.id()) { Role::Shown } else { Role::Bucket(above) })
    }
}
