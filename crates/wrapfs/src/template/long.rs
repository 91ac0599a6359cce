//! Names that are too long for the layer below: objects under short names, with side files that
//! hold the encoded names.

use super::core::Core;
use super::guard::guard;
use super::journal::is_kept;
use super::lower_io::write_full;
use crate::hooks::{LongName, Role};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, OpenFile, OpenFlags, Result, SHARDS, SetAttr, Vnode, shard_of};

/// Maximum size of an encoded name in bytes.
pub(crate) const LONGEST: usize = 64 << 10;
/// Maximum size of a side file in bytes.
const LONGEST_SIDE: usize = 128 << 10;

/// Serializes operations that create or remove side files in a directory. Sharded by directory
/// number.
#[derive(Debug)]
pub(crate) struct Locks([Mutex<()>; SHARDS]);

impl Default for Locks {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Mutex::new(())))
    }
}

/// Locks for changing long names in one or two directories.
pub(crate) struct Held<'a>(#[allow(dead_code)] [Option<MutexGuard<'a, ()>>; 2]);

impl Locks {
    pub(crate) fn hold(&self, a: u64, b: u64) -> Held<'_> {
        let (a, b) = (shard_of(a), shard_of(b));
        let lock = |shard: usize| self.0.get(shard).map(Mutex::lock);
        // Lock in shard order, so that two renames cannot deadlock.
        Held([lock(a.min(b)), if a == b { None } else { lock(a.max(b)) }])
    }

    /// Takes the locks if both are free.
    pub(crate) fn try_hold(&self, a: u64, b: u64) -> Option<Held<'_>> {
        let (a, b) = (shard_of(a), shard_of(b));
        let lock = |shard: usize| self.0.get(shard).and_then(Mutex::try_lock);
        let first = lock(a)?;
        let second = if a == b { None } else { Some(lock(b)?) };
        Some(Held([Some(first), second]))
    }
}

impl Core {
    /// Returns the role of a name below.
    pub(crate) fn role(&self, name: &[u8]) -> Result<Role> {
        let is_state = self.state_file.as_ref().is_some_and(|file| file.name == name);
        let is_journal = |journal: &Vec<u8>| journal == name || is_kept(name, journal);
        if is_state || self.journal_name.as_ref().is_some_and(is_journal) {
            return Ok(Role::Own);
        }
        guard("role", || Ok(self.store.role(name)))
    }

    /// Returns how an encoded name is stored, or `None` if it is stored as is.
    pub(crate) fn long_name(&self, encoded: &[u8]) -> Result<Option<LongName>> {
        let Some(long) = guard("long_name", || Ok(self.store.long_name(encoded)))? else { return Ok(None) };
        if Name::new(&long.object).is_err() || Name::new(&long.side).is_err() || long.content.len() > LONGEST_SIDE {
            tracing::error!(hook = ?self.store, "long_name returned an invalid name or an oversized side file");
            return Err(Errno::IO);
        }
        Ok(Some(long))
    }

    /// Returns the encoded name of a long-named object from its side file, or `None` if that is
    /// missing or damaged.
    pub(crate) fn name_of_long(
        &self,
        cx: &Cx<'_>,
        dir: &dyn Vnode,
        object: &[u8],
        side: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let found = match Name::new(side) {
            Ok(side) => dir.lookup(cx, side)?,
            Err(_) => None,
        };
        let Some(entry) = found else {
            tracing::warn!(directory = dir.id(), "long name without its side file: the object is not listed");
            return Ok(None);
        };
        let content = self.read_side(cx, &entry.vnode)?;
        let encoded = guard("encoded_name", || Ok(self.store.encoded_name(object, &content)))?;
        let is_its = |encoded: &Vec<u8>| {
            self.long_name(encoded)
                .is_ok_and(|long| long.is_some_and(|long| long.object == object && long.side == side))
        };
        let encoded = encoded.filter(is_its);
        if encoded.is_none() {
            tracing::warn!(directory = dir.id(), "damaged side file of a long name: the object is not listed");
        }
        Ok(encoded)
    }

    /// Returns the content of a side file, or nothing if it is not a regular file.
    fn read_side(&self, cx: &Cx<'_>, side: &Arc<dyn Vnode>) -> Result<Vec<u8>> {
        if side.kind() != Kind::Regular {
            return Ok(Vec::new());
        }
        let file = side.open(&self.server(cx), OpenFlags::RDONLY)?;
        read_all(&*file, cx, LONGEST_SIDE + 1)
    }

    /// Creates the side file of a long name and makes it durable, before its object is created.
    /// Returns true if it did not exist yet.
    pub(crate) fn create_side(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &LongName) -> Result<bool> {
        let cx = &self.server(cx);
        let name = Name::new(&long.side)?;
        let file = match dir.lookup(cx, name)? {
            Some(entry) if self.read_side(cx, &entry.vnode)? == long.content => return Ok(false),
            // Rewrite a side file that a crash cut short. Its object may exist, so keep the side
            // file even if the operation fails.
            Some(entry) if entry.vnode.kind() == Kind::Regular => {
                let file = entry.vnode.open(cx, OpenFlags::WRONLY)?;
                entry.vnode.setattr(cx, &SetAttr { size: Some(0), ..SetAttr::default() }, Some(&*file))?;
                return fill(&*file, cx, &long.content).map(|()| false);
            }
            other => {
                // Somebody put something else there.
                if other.is_some() {
                    dir.unlink(cx, name)?;
                }
                let mode = guard("side_mode", || Ok(self.store.side_mode()))? & 0o777;
                dir.create(cx, name, mode, OpenFlags::WRONLY)?.1
            }
        };
        let filled = fill(&*file, cx, &long.content);
        if filled.is_err() {
            self.remove_side(cx, dir, long);
        }
        filled.map(|()| true)
    }

    /// Removes a side file that has no object. If this fails, the leftover does no harm.
    pub(crate) fn remove_side(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &LongName) {
        let gone = Name::new(&long.side).and_then(|name| dir.unlink(&self.server(cx), name));
        if let Err(errno) = gone {
            tracing::debug!(%errno, directory = dir.id(), "unused side file of a long name not removed");
        }
    }

    /// Removes a side file if its object no longer exists. A rename between two names of one file
    /// leaves both.
    pub(crate) fn remove_side_without_object(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &LongName) {
        if let Ok(None) = Name::new(&long.object).and_then(|name| dir.lookup(cx, name)) {
            self.remove_side(cx, dir, long);
        }
    }
}

/// Writes a new file and makes it durable before anything depends on it: a lost name cannot be
/// recomputed.
pub(crate) fn fill(file: &dyn OpenFile, cx: &Cx<'_>, bytes: &[u8]) -> Result<()> {
    write_full(file, cx, bytes, 0).1?;
    file.fsync(cx, true)
}

/// Reads a whole file, up to `limit` bytes.
pub(crate) fn read_all(file: &dyn OpenFile, cx: &Cx<'_>, limit: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 1024.min(limit)];
    let mut done = 0;
    loop {
        let n = file.read(cx, bytes.get_mut(done..).unwrap_or_default(), done as u64)?;
        done += n;
        if n == 0 || done >= limit {
            bytes.truncate(done);
            return Ok(bytes);
        }
        if done == bytes.len() {
            bytes.resize((done * 4).min(limit), 0);
        }
    }
}
