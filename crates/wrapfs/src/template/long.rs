//! Names that are too long for the layer below: objects under short names, with side files that hold the encoded ones.

use super::core::Core;
use super::guard::guard;
use crate::hooks::{LongName, Role};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, OpenFile, OpenFlags, Result, SHARDS, SetAttr, Vnode, shard_of};

/// The longest encoded name in bytes.
pub(crate) const LONGEST: usize = 64 << 10;
/// The longest side file in bytes.
const LONGEST_SIDE: usize = 128 << 10;

/// One operation at a time makes or removes side files in a directory: directories share these locks by their numbers.
#[derive(Debug)]
pub(crate) struct Locks([Mutex<()>; SHARDS]);

impl Default for Locks {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Mutex::new(())))
    }
}

/// Held while long names of one or two directories come and go.
pub(crate) struct Held<'a>(#[allow(dead_code)] [Option<MutexGuard<'a, ()>>; 2]);

impl Locks {
    pub(crate) fn hold(&self, a: u64, b: u64) -> Held<'_> {
        let (a, b) = (shard_of(a), shard_of(b));
        let lock = |shard: usize| self.0.get(shard).map(Mutex::lock);
        // In the order of the shards, so that two renames never wait for each other.
        Held([lock(a.min(b)), if a == b { None } else { lock(a.max(b)) }])
    }

    /// The same, if nobody holds them.
    pub(crate) fn try_hold(&self, a: u64, b: u64) -> Option<Held<'_>> {
        let (a, b) = (shard_of(a), shard_of(b));
        let lock = |shard: usize| self.0.get(shard).and_then(Mutex::try_lock);
        let first = lock(a)?;
        let second = if a == b { None } else { Some(lock(b)?) };
        Some(Held([Some(first), second]))
    }
}

impl Core {
    /// What a name below is to the store.
    pub(crate) fn role(&self, name: &[u8]) -> Result<Role> {
        if self.state_file.as_ref().is_some_and(|file| file.name == name) {
            return Ok(Role::Own);
        }
        guard("role", || Ok(self.store.role(name)))
    }

    /// How an encoded name is stored, if not as it is.
    pub(crate) fn long_name(&self, encoded: &[u8]) -> Result<Option<LongName>> {
        let Some(long) = guard("long_name", || Ok(self.store.long_name(encoded)))? else { return Ok(None) };
        if Name::new(&long.object).is_err() || Name::new(&long.side).is_err() || long.content.len() > LONGEST_SIDE {
            tracing::error!(hook = ?self.store, "long_name made names that can't be, or a side file that is too long");
            return Err(Errno::IO);
        }
        Ok(Some(long))
    }

    /// The encoded name of a long object, from its side file; `None` if that is missing or damaged.
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
            tracing::warn!(directory = dir.id(), "an object with a long name has no side file, and is not listed");
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
            tracing::warn!(directory = dir.id(), "a damaged side file of a long name: its object is not listed");
        }
        Ok(encoded)
    }

    /// The bytes of a side file; none if it is no file.
    fn read_side(&self, cx: &Cx<'_>, side: &Arc<dyn Vnode>) -> Result<Vec<u8>> {
        if side.kind() != Kind::Regular {
            return Ok(Vec::new());
        }
        let file = side.open(&self.server(cx), OpenFlags::RDONLY)?;
        read_all(&*file, cx, LONGEST_SIDE + 1)
    }

    /// Makes sure that the side file of a long name is there, and durable, before its object is. Answers true if it had to be made.
    pub(crate) fn make_side(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &LongName) -> Result<bool> {
        let cx = &self.server(cx);
        let name = Name::new(&long.side)?;
        let file = match dir.lookup(cx, name)? {
            Some(entry) if self.read_side(cx, &entry.vnode)? == long.content => return Ok(false),
            // What a crash cut off is written again. The object may be there: its side file stays whatever happens.
            Some(entry) => {
                let file = entry.vnode.open(cx, OpenFlags::WRONLY)?;
                entry.vnode.setattr(cx, &SetAttr { size: Some(0), ..SetAttr::default() }, Some(&*file))?;
                return fill(&*file, cx, &long.content).map(|()| false);
            }
            None => {
                let mode = guard("side_mode", || Ok(self.store.side_mode()))? & 0o777;
                dir.create(cx, name, mode, OpenFlags::WRONLY)?.1
            }
        };
        let filled = fill(&*file, cx, &long.content);
        if filled.is_err() {
            self.drop_side(cx, dir, long);
        }
        filled.map(|()| true)
    }

    /// Removes a side file that has no object. One that can't be removed is in nobody's way.
    pub(crate) fn drop_side(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &LongName) {
        let gone = Name::new(&long.side).and_then(|name| dir.unlink(&self.server(cx), name));
        if let Err(errno) = gone {
            tracing::debug!(%errno, directory = dir.id(), "the side file of a long name stays");
        }
    }

    /// The same if the object is gone indeed: a rename between two names of one file leaves both.
    pub(crate) fn drop_side_without_object(&self, cx: &Cx<'_>, dir: &dyn Vnode, long: &LongName) {
        if let Ok(None) = Name::new(&long.object).and_then(|name| dir.lookup(cx, name)) {
            self.drop_side(cx, dir, long);
        }
    }
}

/// Writes a new file's bytes, which are durable before anything depends on them: a name that is lost can't be computed again.
pub(crate) fn fill(file: &dyn OpenFile, cx: &Cx<'_>, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(cx, rest, done as u64)? {
            0 => return Err(Errno::IO),
            n => done += n,
        }
    }
    file.fsync(cx, true)
}

/// The bytes of a file: `limit` of them if it has more.
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
