//! What directories lost: in the file `;lost` of a store, names with a state that is not in the
//! history. Nothing depends on it but what a restore says, so a crash may lose a part of it.

use crate::core::Core;
use crate::set::{find_store, make_store, read_whole};
use parking_lot::Mutex;
use std::sync::Arc;
use versionset::{LOST, Lost, MAX_LOST, lost_to_bytes, parse_lost};
use vnode::{Cx, Errno, Name, OpenFlags, Result, Vnode};

/// The name of the file while it is written anew.
const NEW: &[u8] = b";lost~";

/// Records that wait for room, in memory.
const WAITING: usize = 1024;

/// The records that wait for room, with their directories. Held while such a file is written: sets
/// of one store are changed by several threads.
#[derive(Debug, Default)]
pub(crate) struct Losses(Mutex<Vec<(Arc<dyn Vnode>, Lost)>>);

impl Core {
    /// Notes that a state of a name in `dir` is not in the history. Does not fail: what has no room
    /// waits for it.
    pub(crate) fn note_lost(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, lost: Lost) {
        let mut waiting = self.losses.0.lock();
        if waiting.iter().any(|(home, other)| home.id() == dir.id() && *other == lost) {
            return;
        }
        match make_store(cx, dir, &self.inodes.get(dir.id())).and_then(|store| add(cx, &store, &lost)) {
            Ok(()) => {}
            Err(Errno::NOSPC | Errno::DQUOT) if waiting.len() < WAITING => waiting.push((Arc::clone(dir), lost)),
            Err(errno) => tracing::debug!(%errno, "can't note that {} lost a state", lost.name.escape_ascii()),
        }
    }

    /// Writes the records that had no room.
    pub(crate) fn write_lost(&self, cx: &Cx<'_>) {
        let waiting = core::mem::take(&mut *self.losses.0.lock());
        for (dir, lost) in waiting {
            self.note_lost(cx, &dir, lost);
        }
    }

    /// Returns what a directory lost, the oldest first.
    pub(crate) fn lost_in(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<Lost>> {
        let waiting = self.losses.0.lock();
        let mut all = find_store(cx, dir)?.map_or(Ok(Vec::new()), |store| read(cx, &store))?;
        let of_dir = waiting.iter().filter(|(home, _)| home.id() == dir.id());
        all.extend(of_dir.map(|(_, lost)| lost.clone()));
        Ok(all)
    }

    /// Forgets what a name lost: its history is removed.
    pub(crate) fn forget_lost(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
        let mut waiting = self.losses.0.lock();
        waiting.retain(|(home, lost)| home.id() != dir.id() || *lost.name != *name);
        let Some(store) = find_store(cx, dir)? else { return Ok(()) };
        let all = read(cx, &store)?;
        let rest: Vec<_> = all.iter().filter(|lost| *lost.name != *name).cloned().collect();
        if rest.len() == all.len() { Ok(()) } else { replace(cx, &store, &lost_to_bytes(&rest)) }
    }
}

/// Returns the records of a store. A file that this software did not write counts as none.
fn read(cx: &Cx<'_>, store: &Arc<dyn Vnode>) -> Result<Vec<Lost>> {
    let Some(entry) = store.lookup(cx, Name::new(LOST)?)? else { return Ok(Vec::new()) };
    match read_whole(cx, &entry, MAX_LOST) {
        Err(Errno::IO) => Ok(Vec::new()),
        bytes => Ok(parse_lost(&bytes?)),
    }
}

/// Adds a record to the file of a store, unless it is there: what it describes may fail, and be
/// tried again.
fn add(cx: &Cx<'_>, store: &Arc<dyn Vnode>, lost: &Lost) -> Result<()> {
    let mut all = read(cx, store)?;
    if all.contains(lost) {
        return Ok(());
    }
    let before = lost_to_bytes(&all);
    all.push(lost.clone());
    let bytes = lost_to_bytes(&all);
    let name = Name::new(LOST)?;
    let found = store.lookup(cx, name)?.filter(|entry| entry.attr.size == before.len() as u64);
    match (found, bytes.strip_prefix(&*before)) {
        (Some(entry), Some(added)) => {
            let file = entry.vnode.open(cx, OpenFlags::WRONLY)?;
            versionset::write_full(cx, &*file, added, before.len() as u64)
        }
        _ => replace(cx, store, &bytes),
    }
}

/// Writes the file anew.
fn replace(cx: &Cx<'_>, store: &Arc<dyn Vnode>, bytes: &[u8]) -> Result<()> {
    versionset::replace(cx, store, NEW, LOST, |_, file| versionset::write_full(cx, &*file, bytes, 0))
}
