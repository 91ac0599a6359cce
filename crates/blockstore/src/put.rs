//! Storing versions.

use crate::chunk::Chunker;
use crate::codec;
use crate::format::{Base, BlockHead, Coding};
use crate::name::BlockName;
use crate::read::Source;
use crate::recipe::{self, META_MAX, PARTS_MAX, Part, Recipe, RecipeId};
use crate::store::{BlockStore, Content};
use crate::table::Place;
use crate::writer::Writer;
use std::collections::HashMap;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Recipes are decoded from at most this many others.
const RECIPE_CHAIN: u8 = 16;

/// The version that a new one resembles.
struct Hint {
    recipe: Arc<Recipe>,
    /// Where each block is in it.
    places: HashMap<BlockName, usize>,
    /// The block that the next block resembles, unless it is a known one.
    cursor: usize,
}

impl Hint {
    fn new(recipe: Arc<Recipe>) -> Self {
        let places = recipe.parts.iter().enumerate().map(|(at, part)| (part.name, at)).collect();
        Self { recipe, places, cursor: 0 }
    }

    /// Whether the version has this block. The next one is expected after it.
    fn has(&mut self, name: &BlockName) -> bool {
        let found = self.places.get(name).copied();
        if let Some(at) = found {
            self.cursor = at + 1;
        }
        found.is_some()
    }

    /// Returns the block that a new one probably resembles.
    fn similar(&mut self) -> Option<BlockName> {
        let part = self.recipe.parts.get(self.cursor)?;
        self.cursor += 1;
        Some(part.name)
    }
}

impl BlockStore {
    /// Stores a version: `content`, and a key and header that mean something to the caller only (64
    /// KiB each at most). `hint` is the version that it probably resembles. The version is complete
    /// when this returns; [`BlockStore::sync`] makes it durable.
    ///
    /// # Errors
    /// `EROFS` if the store was opened for reading, `EFBIG` for more than about a million blocks,
    /// `EINVAL` for a key or header that is too long, errors of `content`, and as write(2). The
    /// store is unchanged then.
    pub fn put_version(
        &self,
        cx: &Cx<'_>,
        key: &[u8],
        header: &[u8],
        content: Content<'_>,
        hint: Option<RecipeId>,
    ) -> Result<RecipeId> {
        self.require_writable()?;
        if key.len() > META_MAX || header.len() > META_MAX {
            return Err(Errno::INVAL);
        }
        let mut writer = self.writer.lock();
        let stored = self.put_locked(cx, &mut writer, (key, header), content, hint);
        if stored.is_err() {
            writer.discard();
        }
        stored
    }

    fn put_locked(
        &self,
        cx: &Cx<'_>,
        writer: &mut Writer,
        (key, header): (&[u8], &[u8]),
        content: Content<'_>,
        hint: Option<RecipeId>,
    ) -> Result<RecipeId> {
        // A version that can't be read is no help, but no obstacle either.
        let known = hint.filter(|&id| self.has(id)).and_then(|id| Some((id, self.recipe(cx, id).ok()?)));
        let parts = self.put_content(cx, writer, content, known.as_ref().map(|(_, recipe)| Arc::clone(recipe)))?;
        let recipe = Recipe { key: key.to_vec(), header: header.to_vec(), parts, depth: 0, base: None };
        let id = writer.new_id()?;
        self.put_recipe(cx, writer, id, recipe, known.map(|(id, _)| id))?;
        writer.flush(cx, self)?;
        Ok(id)
    }

    /// Adds a recipe to the batch, as a difference to `base` or one that `base` depends on.
    pub(crate) fn put_recipe(
        &self,
        cx: &Cx<'_>,
        writer: &mut Writer,
        id: RecipeId,
        mut recipe: Recipe,
        base: Option<RecipeId>,
    ) -> Result<()> {
        let base = self.usable_base(cx, id, base);
        recipe.base = base.as_ref().map(|(id, _)| *id);
        recipe.depth = base.as_ref().map_or(0, |(_, base)| base.depth + 1);
        let place = writer.next_place(cx, self)?;
        let near = |name: &BlockName| self.near(cx, writer, place, name);
        let used = base.as_ref().map(|(_, base)| &**base);
        let body = recipe::encode(&recipe, id, used, u64::from(place.offset), &near);
        writer.put_recipe(place, id, &body)
    }

    /// Returns the first recipe of a chain that is not deleted, and not too deep.
    fn usable_base(&self, cx: &Cx<'_>, id: RecipeId, mut base: Option<RecipeId>) -> Option<(RecipeId, Arc<Recipe>)> {
        let mut limit = RECIPE_CHAIN;
        while let Some(found) = base.filter(|&base| base < id) {
            let recipe = self.recipe(cx, found).ok()?;
            if recipe.depth < limit && self.has(found) {
                return Some((found, recipe));
            }
            if recipe.depth >= RECIPE_CHAIN {
                limit = RECIPE_CHAIN / 2;
            }
            base = recipe.base;
        }
        None
    }

    /// Returns where a block is, if it is in the pack of an entry that is about to be written.
    fn near(&self, cx: &Cx<'_>, writer: &Writer, place: Place, name: &BlockName) -> Option<u64> {
        let found = writer.pending_place(name).or_else(|| Some(self.find_block(cx, name).ok()?.1))?;
        (found.pack == place.pack && found.offset < place.offset).then_some(u64::from(found.offset))
    }

    fn put_content(
        &self,
        cx: &Cx<'_>,
        writer: &mut Writer,
        content: Content<'_>,
        hint: Option<Arc<Recipe>>,
    ) -> Result<Vec<Part>> {
        let mut hint = hint.map(Hint::new);
        let mut chunks = Chunker::new(cx, content, self.options.sizes)?;
        let mut parts = Vec::new();
        while let Some(plain) = chunks.next(cx)? {
            if parts.len() >= PARTS_MAX {
                return Err(Errno::FBIG);
            }
            let name = BlockName::of(&plain);
            let known = hint.as_mut().is_some_and(|hint| hint.has(&name));
            if !known && writer.pending_place(&name).is_none() && !self.is_intact(cx, &name) {
                let similar = hint.as_mut().and_then(Hint::similar);
                self.put_block(cx, writer, name, &plain, similar)?;
            }
            self.keep(cx, writer, &name)?;
            parts.push(Part { name, len: plain.len() as u32 });
        }
        Ok(parts)
    }

    /// Whether the store has this block. It may be one that no version uses: then blocks that it
    /// needs may be missing, so it is read.
    fn is_intact(&self, cx: &Cx<'_>, name: &BlockName) -> bool {
        let candidates = !self.tables.read().block(name).is_empty();
        candidates && self.block(cx, name, Source::Disk).is_ok()
    }

    /// Adds a block to the batch, as a difference to `similar` if that is smaller.
    fn put_block(
        &self,
        cx: &Cx<'_>,
        writer: &mut Writer,
        name: BlockName,
        plain: &[u8],
        similar: Option<BlockName>,
    ) -> Result<()> {
        let base = similar.and_then(|similar| self.block_base(cx, similar));
        let mut best = (Coding::Raw, plain.to_vec());
        if let Some((base, depth, prefix)) = &base {
            let difference = codec::compress(self.options.level, plain, Some(prefix))?;
            if difference.len() < best.1.len() {
                best = (Coding::Difference { base: Base::Far(*base), depth: *depth }, difference);
            }
        }
        // A small difference is not worth another attempt.
        if best.1.len() > plain.len() / 16 {
            let alone = codec::compress(self.options.level, plain, None)?;
            if alone.len() < best.1.len() {
                best = (Coding::Frame, alone);
            }
        }
        let place = writer.next_place(cx, self)?;
        let (mut coding, data) = best;
        if let Coding::Difference { base: Base::Far(base), depth } = coding
            && let Some(at) = self.near(cx, writer, place, &base)
        {
            coding = Coding::Difference { base: Base::Near(at), depth };
        }
        let mut body = Vec::with_capacity(data.len() + 60);
        BlockHead { name, plain: plain.len() as u32, coding }.put(&mut body, u64::from(place.offset), &data);
        writer.put_block(place, name, &body, None)?;
        if let Some((base, ..)) = base {
            self.keep(cx, writer, &base)?;
        }
        Ok(())
    }

    /// Returns the block to store a similar one as a difference to, the depth of that one, and the
    /// block's bytes. If the similar block is too deep, that is the block in the middle of its
    /// chain.
    fn block_base(&self, cx: &Cx<'_>, similar: BlockName) -> Option<(BlockName, u8, Arc<Vec<u8>>)> {
        let mut name = similar;
        let mut head = self.find_block(cx, &name).ok()?.0;
        // From the middle of the chain, half a chain of small differences can follow.
        let too_deep = head.coding.depth() >= self.options.chain;
        while too_deep && head.coding.depth() >= self.options.chain.div_ceil(2) {
            if head.coding.depth() == 0 {
                return None;
            }
            (name, head) = self.base_of(cx, &name)?;
        }
        let plain = self.block(cx, &name, Source::Any).ok()?;
        Some((name, head.coding.depth() + 1, plain))
    }

    /// Returns the block that a block is a difference to.
    fn base_of(&self, cx: &Cx<'_>, name: &BlockName) -> Option<(BlockName, BlockHead)> {
        let (head, place, _) = self.find_block(cx, name).ok()?;
        let Coding::Difference { base, .. } = head.coding else { return None };
        let base = match base {
            Base::Far(base) => base,
            Base::Near(at) => {
                let pack = self.tables.read().pack(place.pack)?;
                pack.block_head(cx, at).ok()?.0.name
            }
        };
        Some((base, self.find_block(cx, &base).ok()?.0))
    }
}
