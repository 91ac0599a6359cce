//! Garbage collection: marks what versions use, then copies the entries in use of packs with much
//! garbage to the newest pack, and removes those packs.
//!
//! A kill at any moment loses only the progress. A pack is removed after the copies are durable;
//! an entry that is in two packs counts once. A damaged entry in a pack keeps the whole pack.

use crate::format::{Base, BlockHead, Coding, Fields, Kind};
use crate::name::BlockName;
use crate::pack::{self, FIRST, Pack, Scanned, index_name, pack_name};
use crate::read::Source;
use crate::recipe::{self, RecipeId};
use crate::store::BlockStore;
use crate::table::Place;
use crate::writer::Writer;
use core::ops::{Bound, ControlFlow};
use std::collections::HashMap;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Packs with fewer bytes of garbage are not rewritten.
const GARBAGE_MIN: u64 = 4096;

/// What reading a block or recipe to mark it counts for, in bytes.
const MARK_COST: u64 = 256;

/// What one step of the garbage collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the collection is complete. The next step begins another one.
    pub finished: bool,
    /// Size of the packs that this step removed, minus what it wrote, in bytes; negative if a pack
    /// is only partly copied.
    pub freed: i64,
}

/// The state of the garbage collection.
#[derive(Debug, Default)]
pub(crate) struct Gc {
    phase: Phase,
    /// Bytes in use, for each pack.
    live: HashMap<u32, u64>,
    /// Whether damaged entries are given up. Only after a repair has deleted all versions that
    /// need them.
    drop_damage: bool,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// All versions up to this one are marked.
    Mark(Option<RecipeId>),
    Sweep {
        victims: Vec<u32>,
        current: Option<Victim>,
    },
}

/// A pack that is being emptied.
#[derive(Debug)]
struct Victim {
    pack: Arc<Pack>,
    offset: u64,
    /// The recipes with entries in this pack.
    recipes: HashMap<RecipeId, u32>,
}

impl Gc {
    /// Whether blocks that are added now must be marked. What they depend on is marked, too.
    pub(crate) fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    /// Whether recipes that are added now must be marked. Before, marking still comes to them, and
    /// then to the recipes that they depend on.
    pub(crate) fn is_sweeping(&self) -> bool {
        matches!(self.phase, Phase::Sweep { .. })
    }
}

impl BlockStore {
    /// Does a part of the garbage collection that reads and writes about `budget` bytes. Changes
    /// wait for it, reads do not. The first step after a finished collection begins another one.
    ///
    /// # Errors
    /// `EIO` if a version is damaged: nothing is removed until [`BlockStore::repair`]. Otherwise as
    /// write(2). After an error, the next step begins again.
    pub fn gc_step(&self, cx: &Cx<'_>, budget: u64) -> Result<Progress> {
        self.require_writable()?;
        let mut writer = self.writer.lock();
        let step = self.gc_locked(cx, &mut writer, budget);
        if step.is_err() {
            writer.discard();
            writer.gc = Gc::default();
        }
        step
    }

    /// Collects all garbage, also packs with damaged entries, which no version may need.
    pub(crate) fn collect_damaged(&self, cx: &Cx<'_>) -> Result<()> {
        let mut writer = self.writer.lock();
        writer.gc = Gc { drop_damage: true, ..Gc::default() };
        let done = loop {
            match self.gc_locked(cx, &mut writer, u64::MAX) {
                Ok(progress) if progress.finished => break Ok(()),
                Ok(_) => {}
                Err(errno) => break Err(errno),
            }
        };
        writer.discard();
        writer.gc = Gc::default();
        done
    }

    fn gc_locked(&self, cx: &Cx<'_>, writer: &mut Writer, budget: u64) -> Result<Progress> {
        let mut left = budget.max(1);
        let mut freed = 0;
        while left > 0 {
            cx.check()?;
            match core::mem::take(&mut writer.gc.phase) {
                Phase::Idle => {
                    self.tables.write().clear_marks();
                    writer.gc.live.clear();
                    writer.gc.phase = Phase::Mark(None);
                }
                Phase::Mark(after) => {
                    writer.gc.phase = Phase::Mark(after);
                    match self.next_in_use(after) {
                        Some(id) => {
                            let cost = self.mark_version(cx, &mut writer.gc, id)?;
                            left = left.saturating_sub(cost);
                            writer.gc.phase = Phase::Mark(Some(id));
                        }
                        None => self.begin_sweep(cx, writer)?,
                    }
                }
                Phase::Sweep { victims, current } => {
                    writer.gc.phase = Phase::Sweep { victims, current: None };
                    let Some(victim) = current.map_or_else(|| self.next_victim(writer), |victim| Ok(Some(victim)))?
                    else {
                        writer.gc = Gc::default();
                        return Ok(Progress { finished: true, freed });
                    };
                    freed += self.empty(cx, writer, victim, &mut left)?;
                }
            }
        }
        Ok(Progress { finished: false, freed })
    }

    /// Returns the next version that exists or is open.
    fn next_in_use(&self, after: Option<RecipeId>) -> Option<RecipeId> {
        let readers = self.readers.lock();
        let tables = self.tables.read();
        let bounds = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut slots = tables.recipes.range::<RecipeId, _>(bounds);
        slots.find(|(id, slot)| !slot.deleted || readers.contains_key(id)).map(|(id, _)| *id)
    }

    /// Marks a version, the recipes that its recipe depends on, and its blocks. Returns what it
    /// cost.
    fn mark_version(&self, cx: &Cx<'_>, gc: &mut Gc, id: RecipeId) -> Result<u64> {
        let recipe = self.recipe(cx, id)?;
        let mut cost = MARK_COST;
        for part in &recipe.parts {
            cost += self.mark_block(cx, gc, &part.name)?;
        }
        let mut next = Some(id);
        while let Some(id) = next {
            if !self.mark_recipe(cx, gc, id)? {
                break;
            }
            next = self.recipe(cx, id)?.base;
        }
        Ok(cost)
    }

    /// Marks a recipe. Returns whether it was not marked before.
    fn mark_recipe(&self, cx: &Cx<'_>, gc: &mut Gc, id: RecipeId) -> Result<bool> {
        let (place, pack) = {
            let mut tables = self.tables.write();
            let slot = tables.recipes.get_mut(&id).ok_or(Errno::IO)?;
            if slot.marked {
                return Ok(false);
            }
            slot.marked = true;
            let place = slot.place.ok_or(Errno::IO)?;
            (place, tables.pack(place.pack).ok_or(Errno::IO)?)
        };
        self.limit_open(&pack);
        *gc.live.entry(place.pack).or_default() += pack.entry(cx, u64::from(place.offset))?.len();
        Ok(true)
    }

    /// Marks a block and those that it depends on. Returns what it cost.
    fn mark_block(&self, cx: &Cx<'_>, gc: &mut Gc, name: &BlockName) -> Result<u64> {
        let mut name = *name;
        let mut cost = 1;
        while !self.tables.read().all_marked(name.tag()) {
            cost += MARK_COST;
            let (head, place, _) = self.find_block(cx, &name)?;
            self.mark_places(cx, gc, &name)?;
            let Coding::Difference { base, .. } = head.coding else { break };
            name = match base {
                Base::Far(base) => base,
                Base::Near(at) => {
                    let pack = self.tables.read().pack(place.pack).ok_or(Errno::IO)?;
                    pack.block_head(cx, at)?.0.name
                }
            };
        }
        Ok(cost)
    }

    /// Marks all entries with this name.
    fn mark_places(&self, cx: &Cx<'_>, gc: &mut Gc, name: &BlockName) -> Result<()> {
        let found = self.tables.read().block(name);
        for (place, pack) in found {
            let (head, len) = match pack.block_head(cx, u64::from(place.offset)) {
                Ok(found) => found,
                Err(_) if gc.drop_damage => continue,
                // It may be the only intact entry.
                Err(errno) => return Err(errno),
            };
            if head.name == *name && self.tables.write().mark(name.tag(), place) {
                *gc.live.entry(place.pack).or_default() += len;
            }
        }
        Ok(())
    }

    /// Keeps a block, which a version that is being stored uses, from the collection under way.
    pub(crate) fn keep(&self, cx: &Cx<'_>, writer: &mut Writer, name: &BlockName) -> Result<()> {
        if !matches!(writer.gc.phase, Phase::Mark(_)) || writer.pending_place(name).is_some() {
            return Ok(());
        }
        let marked = self.mark_block(cx, &mut writer.gc, name).map(|_| ());
        if marked.is_err() {
            // The block is marked, but maybe not all that it depends on.
            writer.gc = Gc::default();
        }
        marked
    }

    /// Ends marking: forgets all blocks that no version uses, and chooses the packs to empty.
    fn begin_sweep(&self, cx: &Cx<'_>, writer: &mut Writer) -> Result<()> {
        let packs: Vec<Arc<Pack>> = self.tables.read().packs.values().cloned().collect();
        let mut victims = Vec::new();
        for pack in packs {
            let size = pack.size(cx)?.saturating_sub(FIRST);
            let live = writer.gc.live.get(&pack.number).copied().unwrap_or(0);
            let garbage = size.saturating_sub(live);
            let much = garbage >= GARBAGE_MIN && garbage * 100 >= size * u64::from(self.options.garbage_percent);
            let is_current = writer.current_pack() == Some(pack.number);
            let useless = live == 0 && !is_current;
            let wanted = much || useless || (writer.gc.drop_damage && has_damage(cx, &pack)?);
            if !wanted {
                continue;
            }
            if is_current {
                writer.seal(cx, self)?;
            }
            victims.push(pack.number);
        }
        // The oldest first: they are taken from the end.
        victims.reverse();
        self.tables.write().retain_marked();
        writer.gc.phase = Phase::Sweep { victims, current: None };
        Ok(())
    }

    fn next_victim(&self, writer: &mut Writer) -> Result<Option<Victim>> {
        let Phase::Sweep { victims, .. } = &mut writer.gc.phase else { return Ok(None) };
        while let Some(number) = victims.pop() {
            if let Some(pack) = self.tables.read().pack(number) {
                return Ok(Some(Victim { pack, offset: FIRST, recipes: HashMap::new() }));
            }
        }
        Ok(None)
    }

    /// Copies what is needed of a pack, as far as the budget allows. Removes the pack at its end.
    /// Returns the number of bytes freed.
    fn empty(&self, cx: &Cx<'_>, writer: &mut Writer, mut victim: Victim, left: &mut u64) -> Result<i64> {
        let mut written = 0;
        let mut outcome = Ok(true);
        let (pack, start) = (Arc::clone(&victim.pack), victim.offset);
        let mut complete = true;
        pack.scan(cx, start, &mut |found| {
            if *left == 0 {
                complete = false;
                return ControlFlow::Break(());
            }
            let len = match &found {
                Scanned::Entry { len, .. } | Scanned::Damage { len, .. } => *len,
            };
            outcome = self.copy(cx, writer, &mut victim, &found);
            match outcome {
                Ok(true) => written += len,
                Ok(false) => {}
                Err(_) => return ControlFlow::Break(()),
            }
            victim.offset += len;
            *left = left.saturating_sub(len + 1);
            ControlFlow::Continue(())
        })?;
        match outcome {
            Ok(_) => {}
            // It stays as it is, with everything that was not copied yet.
            Err(Errno::IO) => return Ok(-(written as i64)),
            Err(errno) => return Err(errno),
        }
        if complete {
            let size = self.remove(cx, writer, &victim)?;
            return Ok(size as i64 - written as i64);
        }
        writer.flush(cx, self)?;
        if let Phase::Sweep { current, .. } = &mut writer.gc.phase {
            *current = Some(victim);
        }
        Ok(-(written as i64))
    }

    /// Copies an entry if it is needed. Returns whether it was.
    ///
    /// # Errors
    /// `EIO` if the entry, or one that it depends on, is damaged.
    fn copy(&self, cx: &Cx<'_>, writer: &mut Writer, victim: &mut Victim, found: &Scanned<'_>) -> Result<bool> {
        let (kind, offset, body) = match *found {
            Scanned::Entry { kind, offset, body, .. } => (kind, offset, body),
            Scanned::Damage { .. } if writer.gc.drop_damage => return Ok(false),
            Scanned::Damage { .. } => return Err(Errno::IO),
        };
        let place = Place { pack: victim.pack.number, offset: u32::try_from(offset).map_err(|_| Errno::IO)? };
        let copied = match kind {
            Kind::Block => {
                let (head, data) = BlockHead::parse(body, offset)?;
                self.tables.read().has_block(head.name.tag(), place)
                    && self.copy_block(cx, writer, (&victim.pack, place), head, data).map(|()| true)?
            }
            Kind::Recipe => {
                let (id, _) = recipe::parse_base(body)?;
                *victim.recipes.entry(id).or_default() += 1;
                let slot = self.tables.read().recipes.get(&id).copied();
                let needed = slot.is_some_and(|slot| slot.place == Some(place) && (slot.marked || !slot.deleted));
                needed && self.copy_recipe(cx, writer, id).map(|()| true)?
            }
            Kind::Tombstone => {
                let id = RecipeId(Fields::new(body).number()?);
                // Copies of the recipe in the batch count.
                writer.flush(cx, self)?;
                let here = victim.recipes.get(&id).copied().unwrap_or(0);
                let needed = self.tables.read().recipes.get(&id).is_some_and(|slot| slot.copies > here);
                needed && writer.put_tombstone(cx, self, id).map(|()| true)?
            }
            Kind::Mark => false,
        };
        Ok(copied)
    }

    fn copy_block(
        &self,
        cx: &Cx<'_>,
        writer: &mut Writer,
        (pack, from): (&Pack, Place),
        mut head: BlockHead,
        data: &[u8],
    ) -> Result<()> {
        let base = match head.coding {
            Coding::Difference { base: Base::Near(at), .. } => Some(pack.block_head(cx, at)?.0.name),
            Coding::Difference { base: Base::Far(base), .. } => Some(base),
            Coding::Raw | Coding::Frame => None,
        };
        let place = writer.next_place(cx, self)?;
        let mut whole = None;
        if let (Some(base), Coding::Difference { depth, .. }) = (base, head.coding) {
            let known = match writer.pending_place(&base) {
                Some(known) => known,
                None => self.find_block(cx, &base)?.1,
            };
            let near = known.pack == place.pack && known.offset < place.offset;
            head.coding = Coding::Difference {
                base: if near { Base::Near(known.offset.into()) } else { Base::Far(base) },
                depth,
            };
            // A base that is found by its place may have a wrong name, and another entry that name.
            if self.block(cx, &base, Source::Any).is_err() {
                whole = self.block(cx, &head.name, Source::Any).ok();
            }
        }
        if whole.is_some() {
            head.coding = Coding::Raw;
        }
        let data = whole.as_ref().map_or(data, |plain| plain);
        let mut body = Vec::with_capacity(data.len() + 60);
        head.put(&mut body, u64::from(place.offset), data);
        writer.put_block(place, head.name, &body, Some(from))
    }

    fn copy_recipe(&self, cx: &Cx<'_>, writer: &mut Writer, id: RecipeId) -> Result<()> {
        let recipe = self.recipe(cx, id)?;
        self.put_recipe(cx, writer, id, (*recipe).clone(), recipe.base)
    }

    /// Removes a pack from which everything was copied. Returns its size.
    fn remove(&self, cx: &Cx<'_>, writer: &mut Writer, victim: &Victim) -> Result<u64> {
        writer.sync(cx, self)?;
        let size = victim.pack.size(cx)?;
        let number = victim.pack.number;
        pack::remove(cx, &self.dir, &index_name(number))?;
        pack::remove(cx, &self.dir, &pack_name(number))?;
        // Before a tombstone of a recipe in this pack is dropped.
        self.dir.fsync(cx, false)?;
        let mut tables = self.tables.write();
        tables.packs.remove(&number);
        for (id, count) in &victim.recipes {
            tables.remove_copies(*id, *count);
        }
        Ok(size)
    }
}

/// Whether a scan finds something that is no entry.
fn has_damage(cx: &Cx<'_>, pack: &Pack) -> Result<bool> {
    let mut damaged = false;
    pack.scan(cx, FIRST, &mut |found| {
        damaged |= matches!(found, Scanned::Damage { .. });
        ControlFlow::Continue(())
    })?;
    Ok(damaged)
}
