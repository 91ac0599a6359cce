//! A walk over all stores of a tree, those in removed directories included. It goes by the order of
//! the paths, so it can be continued later at a path.

use crate::set::find_store;
use std::sync::Arc;
use versionset::{LINKS, Letter, STORE, StoreName, parse};
use vnode::{Cx, DirEntry, Errno, Kind, Name, Result, Vnode};

/// A position: the names from the root to a directory.
pub(crate) type Position = Vec<Vec<u8>>;

/// Called for each store with its position. Returns whether the walk goes on.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[Vec<u8>], &Found) -> Result<bool>;

/// Called for each directory or store that can't be read, with its position. An error ends the
/// walk.
pub(crate) type Unread<'a> = &'a mut dyn FnMut(&[Vec<u8>], Errno) -> Result<()>;

/// A directory with a store.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The directory.
    pub(crate) dir: Arc<dyn Vnode>,
    /// Its store, or for the sets of inodes with several names the directory in the root's store.
    pub(crate) store: Arc<dyn Vnode>,
    pub(crate) is_links: bool,
}

/// A directory whose subdirectories are visited.
struct Level {
    dir: Arc<dyn Vnode>,
    /// In descending order: the next is the last.
    left: Vec<Vec<u8>>,
}

/// Visits every store behind `after`. `visit` returns false to end the walk; the position is then
/// that of the last directory that it accepted.
///
/// # Errors
/// Those of `unread`, which gets those of `visit`, too. Directories that vanish meanwhile are
/// passed over.
pub(crate) fn stores(
    cx: &Cx<'_>,
    root: &Arc<dyn Vnode>,
    after: &[Vec<u8>],
    (visit, unread): (Visit<'_>, Unread<'_>),
) -> Result<bool> {
    let mut position: Position = Vec::new();
    let mut levels = Vec::new();
    if after.is_empty() && !visit_dir(cx, &position, root, (visit, unread))? {
        return Ok(false);
    }
    levels.push(Level { dir: Arc::clone(root), left: or_none(subdirectories(cx, root), &position, unread)? });
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.left.pop() else {
            levels.pop();
            position.pop();
            continue;
        };
        let opened = open(cx, &level.dir, &name);
        position.push(name);
        let Some(dir) = or_none(opened, &position, unread)? else {
            position.pop();
            continue;
        };
        let is_above = after.starts_with(&position);
        if *position <= *after && !is_above {
            position.pop();
            continue;
        }
        if !is_above && !visit_dir(cx, &position, &dir, (visit, unread))? {
            return Ok(false);
        }
        let left = or_none(subdirectories(cx, &dir), &position, unread)?;
        levels.push(Level { dir, left });
    }
    Ok(true)
}

/// Returns the store of a directory, or that of the inodes with several names.
fn store_of(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, is_links: bool) -> Result<Option<Found>> {
    let Some(mut store) = find_store(cx, dir)? else { return Ok(None) };
    if is_links {
        let links = store.lookup(cx, Name::new(LINKS)?)?.filter(|entry| entry.vnode.kind() == Kind::Directory);
        let Some(links) = links else { return Ok(None) };
        store = links.vnode;
    }
    Ok(Some(Found { dir: Arc::clone(dir), store, is_links }))
}

/// Reports what can't be read, and goes on with nothing.
fn or_none<T: Default>(read: Result<T>, position: &[Vec<u8>], unread: Unread<'_>) -> Result<T> {
    read.or_else(|errno| unread(position, errno).map(|()| T::default()))
}

fn visit_dir(
    cx: &Cx<'_>,
    position: &[Vec<u8>],
    dir: &Arc<dyn Vnode>,
    (visit, unread): (Visit<'_>, Unread<'_>),
) -> Result<bool> {
    for is_links in [true, false] {
        if (!is_links || position.is_empty())
            && let Some(found) = or_none(store_of(cx, dir, is_links), position, unread)?
            && !visit(position, &found).or_else(|errno| unread(position, errno).map(|()| true))?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the subdirectories in descending order: the removed ones, in the store, as
/// `.;versions/foo;d8`.
fn subdirectories(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    list(cx, dir, &mut |entry| {
        if entry.kind == Kind::Directory && !matches!(entry.name.as_bytes(), STORE | b"." | b"..") {
            names.push(entry.name.as_bytes().to_vec());
        }
    })?;
    if let Some(store) = find_store(cx, dir)? {
        list(cx, &store, &mut |entry| {
            let name = entry.name.as_bytes();
            if matches!(parse(name), StoreName::Version { letter: Letter::Directory, .. }) {
                names.push([STORE, b"/", name].concat());
            }
        })?;
    }
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}

/// Returns the store at a position; `None` if there is none any more.
pub(crate) fn store_at(
    cx: &Cx<'_>,
    root: &Arc<dyn Vnode>,
    position: &[Vec<u8>],
    is_links: bool,
) -> Result<Option<Found>> {
    let mut dir = Arc::clone(root);
    for name in position {
        let Some(next) = open(cx, &dir, name)? else { return Ok(None) };
        dir = next;
    }
    store_of(cx, &dir, is_links)
}

/// Opens a subdirectory by its name in a position.
fn open(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Option<Arc<dyn Vnode>>> {
    let mut at = Arc::clone(dir);
    for part in name.split(|byte| *byte == b'/') {
        let Some(entry) = at.lookup(cx, Name::new(part)?)?.filter(|entry| entry.vnode.kind() == Kind::Directory) else {
            return Ok(None);
        };
        at = entry.vnode;
    }
    Ok(Some(at))
}

/// Whether a store has the file of a version.
pub(crate) fn has_version(cx: &Cx<'_>, store: &Arc<dyn Vnode>) -> Result<bool> {
    let mut has_one = false;
    list(cx, store, &mut |entry| {
        has_one |= matches!(parse(entry.name.as_bytes()), StoreName::Version { .. });
    })?;
    Ok(has_one)
}

/// Lists a directory.
pub(crate) fn list(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, add: &mut dyn FnMut(&DirEntry<'_>)) -> Result<()> {
    let mut cookie = 0;
    loop {
        let before = cookie;
        dir.readdir(cx, cookie, &mut |entry| {
            cookie = entry.cookie;
            add(entry);
            true
        })?;
        if cookie == before {
            return Ok(());
        }
    }
}
