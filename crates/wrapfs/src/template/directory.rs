//! Directory state: what the names of a directory are encoded with, in a file that the layer's name
//! store keeps in it.
//!
//! A directory without state is either empty, and gets state before its first entry, or damaged. A
//! crash is therefore safe at any point of mkdir (the state is missing) and of rmdir (the state is
//! already removed).
//!
//! The file can keep a copy in an extended attribute of the directory. That is metadata, which a
//! file system with a journal writes before the entries that are created later; the data of the
//! file may be lost in a power failure unless it is synced.

use super::core::Core;
use super::guard::guard;
use super::long::{fill, read_all};
use super::lower_io::write_full;
use super::node::TemplateVnode;
use super::record::Slot;
use crate::hooks::{Object, Role, StateFile};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Cx, Entry, Errno, Kind, MAY_BLOCK, Name, OpenFlags, Result, SHARDS, Time, XattrFlags, shard_of};

/// State that changed out of band is noticed within this time, and immediately by operations that
/// create entries.
const TRUST_TIME: Duration = Duration::from_secs(1);

/// The content of a state file, and the stamp for validating it.
#[derive(Debug)]
pub(crate) struct Loaded {
    bytes: Arc<[u8]>,
    stamp: Stamp,
    checked: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(u64, u64, Time, Time);

impl Stamp {
    /// That of no file.
    const NONE: Self = Self(0, 0, Time { sec: 0, nsec: 0 }, Time { sec: 0, nsec: 0 });

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
    /// Returns the directory as hooks see it.
    pub(crate) fn object(&self) -> Object<'_> {
        self.node.object().with_state(self.state.as_deref().unwrap_or_default())
    }
}

/// How fresh the state must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// As of a moment ago: for lookups, listings, and removing entries. With outdated state, a name
    /// is not found.
    Recent,
    /// Current: for creating or moving entries.
    Current,
}

/// Directory locks, sharded by directory number. Creating entries takes the lock shared; removing
/// the directory with its state takes it exclusively.
#[derive(Debug)]
pub(crate) struct DirLocks(Box<[RwLock<()>]>);

/// Locks held on some directories.
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
    /// Locks in shard order, which prevents deadlock. If the thread must not block, the request is
    /// retried on another one.
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
    /// Locks directories whose entries change (`shared`), and one to be removed (`alone`). Returns
    /// `None` if directories have no state.
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
    /// Returns this directory with its state, or `None` if it has no state and is empty.
    pub(crate) fn coded(&self, cx: &Cx<'_>, trust: Trust) -> Result<Option<Coded<'_>>> {
        let Some(file) = &self.core.state_file else { return Ok(Some(Coded { node: self, state: None })) };
        let slot = &mut *self.slot(cx)?;
        self.load(cx, file, slot, trust)?;
        Ok(slot.as_ref().map(|loaded| self.with_state(loaded)))
    }

    /// Returns this directory with its state for creating an entry, creating the state if missing.
    /// The caller holds the directory's lock.
    pub(crate) fn coded_for_new(&self, cx: &Cx<'_>) -> Result<Coded<'_>> {
        let Some(file) = &self.core.state_file else { return Ok(Coded { node: self, state: None }) };
        let slot = &mut *self.slot(cx)?;
        self.load(cx, file, slot, Trust::Current)?;
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

    /// Creates the state of this new directory. If another thread has already created the first
    /// entry, it also created the state that the entry's name depends on, which is kept. If this
    /// fails, creating the first entry tries again.
    pub(crate) fn init_state(&self, cx: &Cx<'_>) {
        let Some(file) = &self.core.state_file else { return };
        let created = self.slot(cx).and_then(|mut slot| {
            if slot.is_none() {
                *slot = self.create_state(cx, file, self.new_state(cx)?)?;
            }
            Ok(())
        });
        if let Err(errno) = created {
            tracing::debug!(%errno, directory = self.lower.id(), "no state created for a new directory yet");
        }
    }

    /// Removes the state of this empty directory before the directory itself is removed. Returns
    /// what is needed to restore it. The caller holds the directory's lock exclusively.
    pub(crate) fn remove_state(&self, cx: &Cx<'_>) -> Result<Option<Vec<u8>>> {
        let Some(file) = &self.core.state_file else { return Ok(None) };
        let slot = &mut *self.slot(cx)?;
        self.load(cx, file, slot, Trust::Current)?;
        let bytes = slot.take().map(|loaded| loaded.bytes.to_vec());
        match self.lower.unlink(&self.core.server(cx), Name::new(&file.name)?) {
            Ok(()) | Err(Errno::NOENT) => Ok(bytes),
            Err(errno) => Err(errno),
        }
    }

    /// Restores the state after the directory could not be removed.
    pub(crate) fn restore_state(&self, cx: &Cx<'_>, bytes: Vec<u8>) {
        let Some(file) = &self.core.state_file else { return };
        let again = self.slot(cx).and_then(|mut slot| {
            *slot = Some(self.make_state(cx, file, bytes)?);
            Ok(())
        });
        if let Err(errno) = again {
            tracing::warn!(%errno, directory = self.lower.id(), "state of an empty directory lost: it will be created again");
        }
    }

    fn with_state(&self, loaded: &Loaded) -> Coded<'_> {
        Coded { node: self, state: Some(Arc::clone(&loaded.bytes)) }
    }

    /// Returns the slot that caches the state while the directory is in use.
    fn slot(&self, cx: &Cx<'_>) -> Result<Slot<'_>> {
        match &self.record {
            Some(record) if self.lower.kind() == Kind::Directory => record.directory(cx),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Updates the slot: to the state below, or to none if the directory is empty and its state is
    /// missing or damaged.
    fn load(&self, cx: &Cx<'_>, file: &StateFile, slot: &mut Option<Loaded>, trust: Trust) -> Result<()> {
        if trust == Trust::Recent && slot.as_ref().is_some_and(|loaded| loaded.checked.elapsed() < TRUST_TIME) {
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
        // Not in an empty directory, which another thread may be removing.
        if let Some(bytes) = self.copied_state(cx, file) {
            tracing::warn!(
                directory = self.lower.id(),
                "{} is missing or damaged: restored from the copy",
                file.name.escape_ascii()
            );
            let unwritten = Loaded { bytes: bytes.as_slice().into(), stamp: Stamp::NONE, checked: Instant::now() };
            *slot = Some(match self.make_state(cx, file, bytes) {
                // A directory in its place cannot be unlinked.
                Err(Errno::ROFS | Errno::ISDIR) => unwritten,
                made => made?,
            });
            return Ok(());
        }
        if self.record.as_ref().is_none_or(|record| record.is_first_report()) {
            let (name, what) = (file.name.escape_ascii(), if found.is_some() { "damaged" } else { "missing" });
            tracing::error!(
                directory = self.lower.id(),
                "{name} is {what}: the names in its directory cannot be decoded; restore that file"
            );
        }
        Err(Errno::IO)
    }

    fn read_state(&self, cx: &Cx<'_>, file: &StateFile, entry: &Entry) -> Result<Vec<u8>> {
        if entry.vnode.kind() != Kind::Regular {
            // An invalid state, which counts as damaged.
            return Ok(vec![0; file.longest.saturating_add(1)]);
        }
        let open = entry.vnode.open(&self.core.server(cx), OpenFlags::RDONLY)?;
        read_all(&*open, cx, file.longest.saturating_add(1))
    }

    /// Returns the copy of the state, if there is a valid one.
    fn copied_state(&self, cx: &Cx<'_>, file: &StateFile) -> Option<Vec<u8>> {
        let mut bytes = vec![0; file.longest];
        let len = self.lower.getxattr(&self.core.server(cx), file.copy?, &mut bytes).ok()?;
        bytes.truncate(len);
        self.core.is_state(&bytes).is_ok_and(|valid| valid).then_some(bytes)
    }

    /// Stores a copy of the state. Returns false if the file system below cannot keep it.
    fn copy_state(&self, cx: &Cx<'_>, file: &StateFile, bytes: &[u8]) -> bool {
        let Some(name) = file.copy else { return false };
        self.lower.setxattr(cx, name, bytes, XattrFlags::default()).is_ok()
    }

    /// Whether the directory has entries other than the store's own files. Side files without
    /// objects are leftovers.
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
        tracing::error!(hook = ?self.core.store, "new_state returned a state that is_state rejects");
        Err(Errno::IO)
    }

    /// Writes the state file, replacing a damaged one.
    fn make_state(&self, cx: &Cx<'_>, file: &StateFile, bytes: Vec<u8>) -> Result<Loaded> {
        if let Some(made) = self.create_state(cx, file, bytes.clone())? {
            return Ok(made);
        }
        self.lower.unlink(&self.core.server(cx), Name::new(&file.name)?)?;
        self.create_state(cx, file, bytes)?.ok_or(Errno::EXIST)
    }

    /// Writes the state file and makes it durable before anything depends on it. Returns `None` if
    /// it already exists.
    fn create_state(&self, cx: &Cx<'_>, file: &StateFile, bytes: Vec<u8>) -> Result<Option<Loaded>> {
        let (cx, name) = (&self.core.server(cx), Name::new(&file.name)?);
        let (entry, open) = match self.lower.create(cx, name, file.mode & 0o777, OpenFlags::WRONLY) {
            Err(Errno::EXIST) => return Ok(None),
            made => made?,
        };
        let is_copied = self.copy_state(cx, file, &bytes);
        let filled = if is_copied { write_full(&*open, cx, &bytes, 0).1 } else { fill(&*open, cx, &bytes) };
        let made = filled.and_then(|()| entry.vnode.getattr(cx));
        let attr = made.inspect_err(|_| {
            // If the removal fails too, the file counts as damaged and is replaced later.
            let _ = self.lower.unlink(cx, name);
        })?;
        let stamp = Stamp::of(&Entry { attr, ..entry });
        Ok(Some(Loaded { bytes: bytes.into(), stamp, checked: Instant::now() }))
    }
}
