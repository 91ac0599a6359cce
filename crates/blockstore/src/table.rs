//! What is stored where: the tables in memory.

use crate::name::BlockName;
use crate::pack::Pack;
use crate::recipe::RecipeId;
use hashbrown::HashTable;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pack: u32,
    pub(crate) offset: u32,
}

/// The bit of a slot's offset that marks a block in use.
const MARKED: u32 = 1 << 31;

/// A block: 16 bytes. The whole name is in the pack.
#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u64,
    pack: u32,
    offset: u32,
}

impl Slot {
    fn place(&self) -> Place {
        Place { pack: self.pack, offset: self.offset & !MARKED }
    }
}

/// A recipe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecipeSlot {
    /// Where its newest entry is. `None` if only its tombstone is known.
    pub(crate) place: Option<Place>,
    pub(crate) deleted: bool,
    /// Whether the garbage collector found it in use.
    pub(crate) marked: bool,
    /// Number of entries with this recipe in all packs.
    pub(crate) copies: u32,
}

/// All tables.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    blocks: HashTable<Slot>,
    pub(crate) recipes: BTreeMap<RecipeId, RecipeSlot>,
    pub(crate) packs: BTreeMap<u32, Arc<Pack>>,
}

impl Tables {
    pub(crate) fn pack(&self, number: u32) -> Option<Arc<Pack>> {
        self.packs.get(&number).cloned()
    }

    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the places where this block may be, newest first, with their packs. There is more
    /// than one only if the names of two blocks begin with the same 64 bits, or if a block is
    /// stored again because its entry is damaged.
    pub(crate) fn block(&self, name: &BlockName) -> Vec<(Place, Arc<Pack>)> {
        let tag = name.tag();
        let slots = self.blocks.iter_hash(tag).filter(|slot| slot.tag == tag);
        let mut found: Vec<_> = slots.filter_map(|slot| Some((slot.place(), self.pack(slot.pack)?))).collect();
        found.sort_by_key(|(place, _)| core::cmp::Reverse((place.pack, place.offset)));
        found
    }

    pub(crate) fn add_block(&mut self, tag: u64, place: Place, marked: bool) {
        let offset = place.offset | if marked { MARKED } else { 0 };
        self.blocks.insert_unique(tag, Slot { tag, pack: place.pack, offset }, |slot| slot.tag);
    }

    /// Replaces the place of a block.
    pub(crate) fn move_block(&mut self, tag: u64, from: Place, to: Place) {
        if let Some(slot) = self.blocks.find_mut(tag, |slot| slot.tag == tag && slot.place() == from) {
            *slot = Slot { tag, pack: to.pack, offset: to.offset | (slot.offset & MARKED) };
        }
    }

    /// Whether the table has the block at this place.
    pub(crate) fn has_block(&self, tag: u64, place: Place) -> bool {
        self.blocks.find(tag, |slot| slot.tag == tag && slot.place() == place).is_some()
    }

    /// Whether all blocks with this tag are marked, and there is at least one.
    pub(crate) fn all_marked(&self, tag: u64) -> bool {
        let mut slots = self.blocks.iter_hash(tag).filter(|slot| slot.tag == tag).peekable();
        slots.peek().is_some() && slots.all(|slot| slot.offset & MARKED != 0)
    }

    /// Marks the block at this place. Returns whether it was not marked before.
    pub(crate) fn mark(&mut self, tag: u64, place: Place) -> bool {
        match self.blocks.find_mut(tag, |slot| slot.tag == tag && slot.place() == place) {
            Some(slot) if slot.offset & MARKED == 0 => {
                slot.offset |= MARKED;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn clear_marks(&mut self) {
        for slot in &mut self.blocks {
            slot.offset &= !MARKED;
        }
        for slot in self.recipes.values_mut() {
            slot.marked = false;
        }
    }

    pub(crate) fn add_recipe(&mut self, id: RecipeId, place: Place, marked: bool) {
        let slot =
            self.recipes.entry(id).or_insert(RecipeSlot { place: None, deleted: false, marked: false, copies: 0 });
        slot.place = Some(place);
        slot.copies += 1;
        slot.marked |= marked;
    }

    pub(crate) fn delete_recipe(&mut self, id: RecipeId) {
        let slot =
            self.recipes.entry(id).or_insert(RecipeSlot { place: None, deleted: true, marked: false, copies: 0 });
        slot.deleted = true;
    }

    /// Forgets the entries of a pack that was removed.
    pub(crate) fn remove_copies(&mut self, id: RecipeId, removed: u32) {
        if let Some(slot) = self.recipes.get_mut(&id) {
            slot.copies = slot.copies.saturating_sub(removed);
            if slot.copies == 0 {
                self.recipes.remove(&id);
            }
        }
    }

    /// Forgets all blocks that are not marked.
    pub(crate) fn retain_marked(&mut self) {
        self.blocks.retain(|slot| slot.offset & MARKED != 0);
        if self.blocks.len() < self.blocks.capacity() / 4 {
            self.blocks.shrink_to_fit(|slot| slot.tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_16_bytes() {
        assert_eq!(size_of::<Slot>(), 16);
    }
}
