//! The state of a directory: what its names are encoded with, in a file that the layer's store of names keeps in it.
//!
//! A directory without a state is either empty, and gets one before its first entry, or damaged. So a crash may come at any
//! point of mkdir (the state is not there yet) and of rmdir (it is gone already).

use super::core::Core;
use super::guard::guard;
use super::long::{fill, read_all};
use super::node::TemplateVnode;
use super::record::Slot;
use crate::hooks::{Object, Role, StateFile};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Cx, Entry, Errno, Kind, MAY_BLOCK, Name, OpenFlags, Result, SHARDS, Time, shard_of};

/// A state that is changed below is noticed after this long at the latest; by whatever makes entries, at once.
const BELIEVED: Duration = Duration::from_secs(1);

/// What was read of a state file, and what tells that it is still the same.
#[derive(Debug)]
pub(crate) struct Loaded {
    bytes: Arc<[u8]>,
    stamp: Stamp,
    checked: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(u64, u64, Time, Time);

impl Stamp {
    fn of(entry: &Entry) -> Self {
        Self(entry.vnode.id(), entry.attr.size, entry.attr.mtime, entry.attr.ctime)
    }
}

/// A directory whose names can be encoded and decoded.
pub(crate) struct Coded<'a> {
    node: &'a TemplateVnode,
    state: Option<Arc<[u8]>>,
}

impl Coded<'_> {
    /// What hooks see of it.
    pub(crate) fn object(&self) -> Object<'_> {
        self.node.object().with_state(self.state.as_deref().unwrap_or_default())
    }
}

/// How sure the state must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// As it was a moment ago: for looking.
    Lately,
    /// As it is: for whatever makes, moves or removes entries.
    Now,
}

/// Who makes entries in a directory shares its lock; who removes the directory with its state has it alone. Directories share
/// these locks by their numbers.
#[derive(Debug)]
pub(crate) struct DirLocks(Box<[RwLock<()>]>);

/// Locks of some directories.
pub(crate) struct HeldDirs<'a>(#[allow(dead_code)] Vec<Side<'a>>);

#[allow(dead_code)]
enum Side<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Alone(RwLockWriteGuard<'a, ()>),
}

impl Default for DirLocks {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| RwLock::new(())).collect())
    }
}

impl DirLocks {
    /// In the order of the shards, so that nobody waits in a circle. A thread that must not wait runs again on another.
    fn hold(&self, cx: &Cx<'_>, shared: &[u64], alone: Option<u64>) -> Result<HeldDirs<'_>> {
        let alone = alone.map(shard_of);
        let mut shards: Vec<usize> = shared.iter().map(|&id| shard_of(id)).chain(alone).collect();
        shards.sort_unstable();
        shards.dedup();
        let locks = shards.iter().filter_map(|&shard| Some((self.0.get(shard)?, Some(shard) == alone)));
        let held = locks.map(|(lock, alone)| match (cx.may_block, alone) {
            (true, false) => Some(Side::Shared(lock.read())),
            (true, true) => Some(Side::Alone(lock.write())),
            (false, false) => lock.try_read().map(Side::Shared),
            (false, true) => lock.try_write().map(Side::Alone),
        });
        held.collect::<Option<_>>().map(HeldDirs).ok_or(MAY_BLOCK)
    }
}

impl Core {
    /// Locks directories whose entries change, and one that is to go; `None` where directories have no state.
    pub(crate) fn hold_dirs(&self, cx: &Cx<'_>, shared: &[u64], alone: Option<u64>) -> Result<Option<HeldDirs<'_>>> {
        if self.state_file.is_none() {
            return Ok(None);
        }
        self.dirs.hold(cx, shared, alone).map(Some)
    }

    fn is_state(&self, bytes: &[u8]) -> Result<bool> {
        guard("is_state", || Ok(self.store.is_state(bytes)))
    }
}

impl TemplateVnode {
    /// This directory with its state; `None` if it has none, and is empty.
    pub(crate) fn coded(&self, cx: &Cx<'_>, trust: Trust) -> Result<Option<Coded<'_>>> {
        let Some(file) = &self.core.state_file else { return Ok(Some(Coded { node: self, state: None })) };
        let slot = &mut *self.slot(cx)?;
        self.load(cx, file, slot, trust)?;
        Ok(slot.as_ref().map(|loaded| self.with_state(loaded)))
    }

    /// The same for a new entry: a directory without a state gets one. The directory's lock is held.
    pub(crate) fn coded_for_new(&self, cx: &Cx<'_>) -> Result<Coded<'_>> {
        let Some(file) = &self.core.state_file else { return Ok(Coded { node: self, state: None }) };
        let slot = &mut *self.slot(cx)?;
        self.load(cx, file, slot, Trust::Now)?;
        let loaded = match slot {
            Some(loaded) => loaded,
            None => {
                cx.require_blocking()?;
                let bytes = self.new_state(cx)?;
                slot.insert(self.make_state(cx, file, bytes)?)
            }
        };
        Ok(self.with_state(loaded))
    }

    /// Gives this directory, which was just made, its state. Somebody who has found it meanwhile may have made the first
    /// entry, and with it the state that the entry's name depends on: that one stays. If it fails, the first entry brings it.
    pub(crate) fn begin(&self, cx: &Cx<'_>) {
        let Some(file) = &self.core.state_file else { return };
        let begun = self.slot(cx).and_then(|mut slot| {
            if slot.is_none() {
                *slot = self.create_state(cx, file, self.new_state(cx)?)?;
            }
            Ok(())
        });
        if let Err(errno) = begun {
            tracing::debug!(%errno, directory = self.lower.id(), "a new directory has no state yet");
        }
    }

    /// Removes the state of this directory, which is empty and about to go. Answers what it takes to put it back. The
    /// directory's lock is held alone.
    pub(crate) fn end(&self, cx: &Cx<'_>) -> Result<Option<Vec<u8>>> {
        let Some(file) = &self.core.state_file else { return Ok(None) };
        let slot = &mut *self.slot(cx)?;
        self.load(cx, file, slot, Trust::Now)?;
        let bytes = slot.take().map(|loaded| loaded.bytes.to_vec());
        match self.lower.unlink(&self.core.server(cx), Name::new(&file.name)?) {
            Ok(()) | Err(Errno::NOENT) => Ok(bytes),
            Err(errno) => Err(errno),
        }
    }

    /// The directory stays after all: it gets the same state again.
    pub(crate) fn go_on(&self, cx: &Cx<'_>, bytes: Vec<u8>) {
        let Some(file) = &self.core.state_file else { return };
        let again = self.slot(cx).and_then(|mut slot| {
            *slot = Some(self.make_state(cx, file, bytes)?);
            Ok(())
        });
        if let Err(errno) = again {
            tracing::warn!(%errno, directory = self.lower.id(), "an empty directory lost its state: it will get a new one");
        }
    }

    fn with_state(&self, loaded: &Loaded) -> Coded<'_> {
        Coded { node: self, state: Some(Arc::clone(&loaded.bytes)) }
    }

    /// Where the state is kept while the directory is in use.
    fn slot(&self, cx: &Cx<'_>) -> Result<Slot<'_>> {
        match &self.record {
            Some(record) if self.lower.kind() == Kind::Directory => record.directory(cx),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Brings the slot up to date: the state as it is below, or none if the directory is empty and has none that is whole.
    fn load(&self, cx: &Cx<'_>, file: &StateFile, slot: &mut Option<Loaded>, trust: Trust) -> Result<()> {
        if trust == Trust::Lately && slot.as_ref().is_some_and(|loaded| loaded.checked.elapsed() < BELIEVED) {
            return Ok(());
        }
        let found = self.lower.lookup(cx, Name::new(&file.name)?)?;
        if let (Some(entry), Some(loaded)) = (&found, &mut *slot)
            && loaded.stamp == Stamp::of(entry)
        {
            loaded.checked = Instant::now();
            return Ok(());
        }
        *slot = None;
        if let Some(entry) = &found {
            let bytes = self.read_state(cx, file, entry)?;
            if bytes.len() <= file.longest && self.core.is_state(&bytes)? {
                *slot = Some(Loaded { bytes: bytes.into(), stamp: Stamp::of(entry), checked: Instant::now() });
                return Ok(());
            }
        }
        if !self.has_entries(cx)? {
            return Ok(());
        }
        if self.record.as_ref().is_none_or(|record| record.complains()) {
            let (name, what) = (file.name.escape_ascii(), if found.is_some() { "damaged" } else { "missing" });
            tracing::error!(
                directory = self.lower.id(),
                "{name} is {what}, its names can't be decoded: restore that file"
            );
        }
        Err(Errno::IO)
    }

    fn read_state(&self, cx: &Cx<'_>, file: &StateFile, entry: &Entry) -> Result<Vec<u8>> {
        if entry.vnode.kind() != Kind::Regular {
            // Which is damaged.
            return Ok(vec![0; file.longest.saturating_add(1)]);
        }
        let open = entry.vnode.open(&self.core.server(cx), OpenFlags::RDONLY)?;
        read_all(&*open, cx, file.longest.saturating_add(1))
    }

    /// Is there anything in it but what the store keeps for itself? Side files without objects are leftovers.
    fn has_entries(&self, cx: &Cx<'_>) -> Result<bool> {
        let mut found = Ok(false);
        self.lower.readdir(cx, 0, &mut |entry| {
            found = self.core.role(entry.name.as_bytes()).map(|role| matches!(role, Role::Name | Role::Long { .. }));
            matches!(found, Ok(false))
        })?;
        found
    }

    fn new_state(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let bytes = guard("new_state", || self.core.store.new_state(cx))?;
        if self.core.is_state(&bytes)? {
            return Ok(bytes);
        }
        tracing::error!(hook = ?self.core.store, "new_state made a state that is_state refuses");
        Err(Errno::IO)
    }

    /// Writes the state file in place of one that is damaged.
    fn make_state(&self, cx: &Cx<'_>, file: &StateFile, bytes: Vec<u8>) -> Result<Loaded> {
        if let Some(made) = self.create_state(cx, file, bytes.clone())? {
            return Ok(made);
        }
        self.lower.unlink(&self.core.server(cx), Name::new(&file.name)?)?;
        self.create_state(cx, file, bytes)?.ok_or(Errno::EXIST)
    }

    /// Writes the state file, durably, before anything depends on it; `None` if there is one.
    fn create_state(&self, cx: &Cx<'_>, file: &StateFile, bytes: Vec<u8>) -> Result<Option<Loaded>> {
        let (cx, name) = (&self.core.server(cx), Name::new(&file.name)?);
        let (entry, open) = match self.lower.create(cx, name, file.mode & 0o777, OpenFlags::WRONLY) {
            Err(Errno::EXIST) => return Ok(None),
            made => made?,
        };
        let made = fill(&*open, cx, &bytes).and_then(|()| entry.vnode.getattr(cx));
        let attr = made.inspect_err(|_| {
            // One that stays is damaged, and replaced.
            let _ = self.lower.unlink(cx, name);
        })?;
        let stamp = Stamp::of(&Entry { attr, ..entry });
        Ok(Some(Loaded { bytes: bytes.into(), stamp, checked: Instant::now() }))
    }
}
