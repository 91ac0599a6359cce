//! Appending to the newest pack.

use crate::format::{self, Kind, PackHeader, put_number};
use crate::gc::Gc;
use crate::load;
use crate::name::BlockName;
use crate::pack::{self, FIRST, Pack, pack_name, write_full};
use crate::recipe::RecipeId;
use crate::store::BlockStore;
use crate::table::Place;
use std::collections::HashMap;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, OpenFile, OpenFlags, Result};

/// Entries are collected up to this many bytes.
const BATCH: usize = 1 << 20;

/// The pack that is appended to.
#[derive(Debug)]
struct Current {
    pack: Arc<Pack>,
    file: Option<Arc<dyn OpenFile>>,
    /// Where the next batch is written.
    end: u64,
}

/// An entry of the batch, for the tables.
#[derive(Debug)]
enum Pending {
    /// A block, and where it is moved from.
    Block(BlockName, Place, Option<Place>),
    Recipe(RecipeId, Place),
}

/// The only thing that changes a store. All changes hold its lock.
#[derive(Debug)]
pub(crate) struct Writer {
    current: Option<Current>,
    batch: Vec<u8>,
    pending: Vec<Pending>,
    /// Blocks of the batch, and where they will be.
    places: HashMap<BlockName, Place>,
    /// Whether the pack has bytes that are not durable.
    unsynced: bool,
    /// Whether the next entry must be preceded by a mark.
    mark_due: bool,
    /// Whether a failed write may have left bytes after the end.
    torn: bool,
    next_id: u64,
    pub(crate) gc: Gc,
}

impl Writer {
    pub(crate) fn new(next_id: u64, last: Option<(Arc<Pack>, u64)>, gc: Gc) -> Self {
        Self {
            current: last.map(|(pack, end)| Current { pack, file: None, end }),
            batch: Vec::new(),
            pending: Vec::new(),
            places: HashMap::new(),
            // What a previous session left may not be durable.
            unsynced: true,
            mark_due: false,
            torn: false,
            next_id,
            gc,
        }
    }

    /// Returns an id that was never used.
    pub(crate) fn new_id(&mut self) -> Result<RecipeId> {
        let id = self.next_id;
        self.next_id = id.checked_add(1).ok_or(Errno::OVERFLOW)?;
        Ok(RecipeId(id))
    }

    /// Returns where a block of the batch will be.
    pub(crate) fn pending_place(&self, name: &BlockName) -> Option<Place> {
        self.places.get(name).copied()
    }

    /// Returns the number of the pack that is appended to.
    pub(crate) fn current_pack(&self) -> Option<u32> {
        self.current.as_ref().map(|current| current.pack.number)
    }

    /// Returns where the next entry will be. May write the batch and begin a pack.
    pub(crate) fn next_place(&mut self, cx: &Cx<'_>, store: &BlockStore) -> Result<Place> {
        if self.batch.len() >= BATCH {
            self.flush(cx, store)?;
        }
        let full = |current: &Current, batch: usize| current.end + batch as u64 >= u64::from(store.options.pack_size);
        if self.current.as_ref().is_some_and(|current| full(current, self.batch.len())) {
            self.seal(cx, store)?;
        }
        if self.current.is_none() {
            self.begin_pack(cx, store)?;
        }
        if self.mark_due {
            self.mark_due = false;
            let place = self.end_place()?;
            format::put_entry(&mut self.batch, (place.pack, u64::from(place.offset)), Kind::Mark, &[]);
        }
        self.end_place()
    }

    fn end_place(&self) -> Result<Place> {
        let current = self.current.as_ref().ok_or(Errno::IO)?;
        let offset = u32::try_from(current.end + self.batch.len() as u64).map_err(|_| Errno::FBIG)?;
        Ok(Place { pack: current.pack.number, offset })
    }

    fn put(&mut self, place: Place, kind: Kind, body: &[u8]) -> Result<()> {
        if body.len() > format::BODY_MAX {
            return Err(Errno::FBIG);
        }
        format::put_entry(&mut self.batch, (place.pack, u64::from(place.offset)), kind, body);
        Ok(())
    }

    /// Adds a block to the batch, at the place that [`Self::next_place`] returned.
    pub(crate) fn put_block(
        &mut self,
        place: Place,
        name: BlockName,
        body: &[u8],
        moved_from: Option<Place>,
    ) -> Result<()> {
        self.put(place, Kind::Block, body)?;
        self.places.insert(name, place);
        self.pending.push(Pending::Block(name, place, moved_from));
        Ok(())
    }

    /// Adds a recipe to the batch, at the place that [`Self::next_place`] returned.
    pub(crate) fn put_recipe(&mut self, place: Place, id: RecipeId, body: &[u8]) -> Result<()> {
        self.put(place, Kind::Recipe, body)?;
        self.pending.push(Pending::Recipe(id, place));
        Ok(())
    }

    /// Adds a tombstone to the batch.
    pub(crate) fn put_tombstone(&mut self, cx: &Cx<'_>, store: &BlockStore, id: RecipeId) -> Result<()> {
        let place = self.next_place(cx, store)?;
        let mut body = Vec::new();
        put_number(&mut body, id.0);
        self.put(place, Kind::Tombstone, &body)
    }

    /// Deletes a recipe.
    pub(crate) fn delete(&mut self, cx: &Cx<'_>, store: &BlockStore, id: RecipeId) -> Result<()> {
        let done = self.put_tombstone(cx, store, id).and_then(|()| self.flush(cx, store));
        if done.is_err() {
            self.discard();
        } else {
            store.tables.write().delete_recipe(id);
        }
        done
    }

    /// Drops the batch.
    pub(crate) fn discard(&mut self) {
        self.batch.clear();
        self.pending.clear();
        self.places.clear();
        // The batch may have begun with a mark.
        self.mark_due = false;
        self.unsynced = true;
    }

    /// Writes the batch, and enters it into the tables.
    pub(crate) fn flush(&mut self, cx: &Cx<'_>, store: &BlockStore) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let written = self.write(cx);
        if let Err(errno) = written {
            self.discard();
            return Err(errno);
        }
        self.publish(store);
        Ok(())
    }

    fn write(&mut self, cx: &Cx<'_>) -> Result<()> {
        self.cut(cx)?;
        let current = self.current.as_mut().ok_or(Errno::IO)?;
        let file = match &current.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(current.file.insert(current.pack.file(cx, OpenFlags::RDWR)?)),
        };
        let (batch, end) = (&self.batch, current.end);
        if let Err(errno) = write_full(cx, &*file, batch, end) {
            // Otherwise an entry that was written before the error could come back.
            self.torn = true;
            let _cut_now_or_later = self.cut(cx);
            return Err(errno);
        }
        current.end += batch.len() as u64;
        self.unsynced = true;
        Ok(())
    }

    /// Cuts off what a failed write left.
    fn cut(&mut self, cx: &Cx<'_>) -> Result<()> {
        if let Some(current) = self.current.as_ref().filter(|_| self.torn) {
            current.pack.truncate(cx, current.end)?;
        }
        self.torn = false;
        Ok(())
    }

    fn publish(&mut self, store: &BlockStore) {
        let (collecting, sweeping) = (self.gc.is_active(), self.gc.is_sweeping());
        let mut tables = store.tables.write();
        for pending in self.pending.drain(..) {
            match pending {
                Pending::Block(name, place, Some(from)) => tables.move_block(name.tag(), from, place),
                Pending::Block(name, place, None) => tables.add_block(name.tag(), place, collecting),
                Pending::Recipe(id, place) => tables.add_recipe(id, place, sweeping),
            }
        }
        self.batch.clear();
        self.places.clear();
    }

    /// Makes everything durable.
    pub(crate) fn sync(&mut self, cx: &Cx<'_>, store: &BlockStore) -> Result<()> {
        self.flush(cx, store)?;
        self.cut(cx)?;
        let Some(current) = self.current.as_mut().filter(|_| self.unsynced) else { return Ok(()) };
        let file = match &current.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(current.file.insert(current.pack.file(cx, OpenFlags::RDWR)?)),
        };
        file.fsync(cx, false)?;
        self.unsynced = false;
        self.mark_due = true;
        Ok(())
    }

    /// Completes the pack. The next entry begins another one.
    pub(crate) fn seal(&mut self, cx: &Cx<'_>, store: &BlockStore) -> Result<()> {
        self.sync(cx, store)?;
        if let Some(current) = self.current.take() {
            load::seal(cx, &store.dir, &current.pack);
            current.pack.close();
        }
        self.mark_due = false;
        Ok(())
    }

    fn begin_pack(&mut self, cx: &Cx<'_>, store: &BlockStore) -> Result<()> {
        let newest = store.tables.read().packs.keys().next_back().copied();
        let number = newest.map_or(Some(1), |newest| newest.checked_add(1)).ok_or(Errno::NOSPC)?;
        let name = pack_name(number);
        // What an interrupted attempt left.
        pack::remove(cx, &store.dir, &name)?;
        let (entry, file) = store.dir.create(cx, Name::new(&name)?, 0o600, OpenFlags::RDWR)?;
        write_full(cx, &*file, &PackHeader { number, next_id: self.next_id }.bytes(), 0)?;
        file.fsync(cx, false)?;
        store.dir.fsync(cx, false)?;
        let pack = Arc::new(Pack::new(number, entry.vnode, Some(Arc::clone(&file))));
        store.tables.write().packs.insert(number, Arc::clone(&pack));
        self.current = Some(Current { pack, file: Some(file), end: FIRST });
        self.unsynced = true;
        self.mark_due = false;
        Ok(())
    }
}
