//! The names in a directory, also those of removed objects.

use crate::core::Core;
use crate::set::{find_store, read_index};
use std::collections::BTreeSet;
use std::sync::Arc;
use versionset::{Index, STORE, StoreName, index_name, is_hashed, parse, stem_of};
use vnode::{Cx, Name, Result, Vnode};

/// Returns the names of a directory that exist or that have an index.
pub(crate) fn names_in(core: &Core, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<BTreeSet<Vec<u8>>> {
    let server = core.server(cx);
    let mut names = names_with_sets(core, cx, dir)?;
    dir.readdir(&server, 0, &mut |entry| {
        if entry.name.as_bytes() != STORE {
            names.insert(entry.name.as_bytes().to_vec());
        }
        true
    })?;
    Ok(names)
}

/// Returns the names of a directory that have an index, if only in memory because it had no room.
pub(crate) fn names_with_sets(core: &Core, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<BTreeSet<Vec<u8>>> {
    let server = core.server(cx);
    let late = core.sets.late();
    let in_memory = late.iter().filter_map(|set| set.place()).filter(|(home, _)| home.id() == dir.id());
    let mut names: BTreeSet<_> = in_memory.map(|(_, name)| name.to_vec()).collect();
    let Some(store) = find_store(&server, dir)? else { return Ok(names) };
    let mut hashed = Vec::new();
    store.readdir(&server, 0, &mut |entry| {
        if let StoreName::Index(stem) = parse(entry.name.as_bytes()) {
            if is_hashed(stem) {
                hashed.push(stem.to_vec());
            } else {
                names.insert(stem.to_vec());
            }
        }
        true
    })?;
    for stem in hashed {
        names.extend(long_name(core, cx, &store, &stem)?);
    }
    names.retain(|name| Name::new(name).is_ok());
    Ok(names)
}

/// Returns the long name whose set has this stem. `None` if the index does not say it.
pub(crate) fn long_name(core: &Core, cx: &Cx<'_>, store: &Arc<dyn Vnode>, stem: &[u8]) -> Result<Option<Vec<u8>>> {
    let server = core.server(cx);
    let Some(entry) = store.lookup(&server, Name::new(&index_name(stem))?)? else { return Ok(None) };
    let (index, _) = Index::parse(&read_index(&server, &entry)?);
    // A name with another stem is damaged.
    Ok(index.name.filter(|name| stem_of(name) == stem).map(<[u8]>::into_vec))
}
