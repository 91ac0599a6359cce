//! Reading blocks, recipes and versions.

use crate::codec;
use crate::format::{Base, BlockHead, Coding, Kind};
use crate::name::BlockName;
use crate::pack::Pack;
use crate::recipe::{self, Part, Recipe, RecipeId, Resolve};
use crate::store::BlockStore;
use crate::table::Place;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Whatever the bytes say, a block or recipe is decoded from at most this many others.
const CHAIN_MAX: u8 = 64;

/// How often a read is repeated because garbage collection moved what it reads.
const MOVES_MAX: usize = 8;

/// Whether decoded blocks may be taken from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Any,
    Disk,
}

impl BlockStore {
    /// Returns the plain bytes of a block.
    ///
    /// # Errors
    /// `EIO` if it is damaged or missing.
    pub(crate) fn block(&self, cx: &Cx<'_>, name: &BlockName, source: Source) -> Result<Arc<Vec<u8>>> {
        self.block_of_chain(cx, name, source, 0)
    }

    fn block_of_chain(&self, cx: &Cx<'_>, name: &BlockName, source: Source, level: u8) -> Result<Arc<Vec<u8>>> {
        if source == Source::Any
            && let Some(plain) = self.blocks.lock().get(name)
        {
            return Ok(plain);
        }
        let mut tried = Vec::new();
        let mut failure = Errno::IO;
        for _ in 0..MOVES_MAX {
            let found = self.tables.read().block(name);
            let places: Vec<Place> = found.iter().map(|(place, _)| *place).collect();
            if places == tried {
                break;
            }
            for (place, pack) in &found {
                match self.plain_at(cx, pack, u64::from(place.offset), Some(name), source, level) {
                    Ok(plain) => return Ok(plain),
                    Err(errno) => failure = errno,
                }
            }
            tried = places;
        }
        Err(failure)
    }

    /// Decodes the block at a place. Only one whose name is given is verified: a wrong base makes
    /// a wrong block.
    fn plain_at(
        &self,
        cx: &Cx<'_>,
        pack: &Arc<Pack>,
        offset: u64,
        name: Option<&BlockName>,
        source: Source,
        level: u8,
    ) -> Result<Arc<Vec<u8>>> {
        if level > CHAIN_MAX {
            return Err(Errno::IO);
        }
        self.limit_open(pack);
        let entry = pack.entry(cx, offset)?;
        if entry.kind() != Kind::Block {
            return Err(Errno::IO);
        }
        let (head, data) = BlockHead::parse(entry.body(), offset)?;
        if name.is_some_and(|name| *name != head.name) {
            return Err(Errno::IO);
        }
        if source == Source::Any
            && let Some(plain) = self.blocks.lock().get(&head.name)
        {
            return Ok(plain);
        }
        let len = head.plain as usize;
        let plain = match head.coding {
            Coding::Raw if data.len() == len => data.to_vec(),
            Coding::Raw => return Err(Errno::IO),
            Coding::Frame => codec::decompress(data, len, None)?,
            Coding::Difference { base, .. } => {
                let prefix = match base {
                    Base::Near(at) => self.plain_at(cx, pack, at, None, source, level + 1)?,
                    Base::Far(base) => self.block_of_chain(cx, &base, source, level + 1)?,
                };
                codec::decompress(data, len, Some(&prefix))?
            }
        };
        let plain = Arc::new(plain);
        if name.is_some() {
            if BlockName::of(&plain) != head.name {
                return Err(Errno::IO);
            }
            self.blocks.lock().put(head.name, &plain, len + 100);
        }
        Ok(plain)
    }

    /// Returns the head of a block, where it is, and the size of its entry.
    pub(crate) fn find_block(&self, cx: &Cx<'_>, name: &BlockName) -> Result<(BlockHead, Place, u64)> {
        let mut failure = Errno::IO;
        for (place, pack) in self.tables.read().block(name) {
            self.limit_open(&pack);
            match pack.block_head(cx, u64::from(place.offset)) {
                Ok((head, len)) if head.name == *name => return Ok((head, place, len)),
                Ok(_) => {}
                Err(errno) => failure = errno,
            }
        }
        Err(failure)
    }

    /// Returns a recipe, also a deleted one that still exists.
    ///
    /// # Errors
    /// `ENOENT` if it does not exist, `EIO` if it is damaged.
    pub(crate) fn recipe(&self, cx: &Cx<'_>, id: RecipeId) -> Result<Arc<Recipe>> {
        self.recipe_of_chain(cx, id, 0)
    }

    fn recipe_of_chain(&self, cx: &Cx<'_>, id: RecipeId, level: u8) -> Result<Arc<Recipe>> {
        if let Some(recipe) = self.recipes.lock().get(&id) {
            return Ok(recipe);
        }
        if level > CHAIN_MAX {
            return Err(Errno::IO);
        }
        let mut tried = None;
        let mut failure = Errno::NOENT;
        for _ in 0..MOVES_MAX {
            let Some((place, pack)) = self.recipe_place(id) else { return Err(failure) };
            if tried == Some(place) {
                break;
            }
            match self.recipe_at(cx, id, &pack, place, level) {
                Ok(recipe) => return Ok(recipe),
                Err(errno) => failure = errno,
            }
            tried = Some(place);
        }
        // The recipe exists, whatever a recipe it needs may be.
        Err(if failure == Errno::NOENT { Errno::IO } else { failure })
    }

    fn recipe_place(&self, id: RecipeId) -> Option<(Place, Arc<Pack>)> {
        let tables = self.tables.read();
        let place = tables.recipes.get(&id)?.place?;
        Some((place, tables.pack(place.pack)?))
    }

    fn recipe_at(&self, cx: &Cx<'_>, id: RecipeId, pack: &Arc<Pack>, place: Place, level: u8) -> Result<Arc<Recipe>> {
        self.limit_open(pack);
        let offset = u64::from(place.offset);
        let entry = pack.entry(cx, offset)?;
        if entry.kind() != Kind::Recipe || recipe::parse_base(entry.body())?.0 != id {
            return Err(Errno::IO);
        }
        let decoded = Arc::new(recipe::decode(entry.body(), offset, &Resolver { store: self, cx, pack, level })?);
        let size = decoded.parts.len() * size_of::<Part>() + decoded.key.len() + decoded.header.len() + 200;
        self.recipes.lock().put(id, &decoded, size);
        Ok(decoded)
    }

    /// Opens a version for reading.
    ///
    /// # Errors
    /// `ENOENT` if there is no such version, `EIO` if its recipe is damaged.
    pub fn version(self: &Arc<Self>, cx: &Cx<'_>, id: RecipeId) -> Result<Version> {
        *self.readers.lock().entry(id).or_default() += 1;
        let mut version = Version { store: Arc::clone(self), id, recipe: Arc::default(), starts: Vec::new(), size: 0 };
        if !self.has(id) {
            return Err(Errno::NOENT);
        }
        version.recipe = self.recipe(cx, id)?;
        version.size = version.recipe.size();
        let lengths = version.recipe.parts.iter().map(|part| u64::from(part.len));
        version.starts = lengths
            .scan(0, |at, len| {
                let start = *at;
                *at += len;
                Some(start)
            })
            .collect();
        Ok(version)
    }
}

/// Finds what a recipe refers to.
struct Resolver<'a> {
    store: &'a BlockStore,
    cx: &'a Cx<'a>,
    pack: &'a Arc<Pack>,
    level: u8,
}

impl Resolve for Resolver<'_> {
    fn near(&self, offset: u64) -> Result<Part> {
        let (head, _) = self.pack.block_head(self.cx, offset)?;
        Ok(Part { name: head.name, len: head.plain })
    }

    fn recipe(&self, id: RecipeId) -> Result<Arc<Recipe>> {
        self.store.recipe_of_chain(self.cx, id, self.level + 1)
    }
}

/// A version that is open for reading. Its content stays readable if it is deleted meanwhile.
#[derive(Debug)]
pub struct Version {
    store: Arc<BlockStore>,
    id: RecipeId,
    recipe: Arc<Recipe>,
    /// Where each block begins in the content.
    starts: Vec<u64>,
    size: u64,
}

impl Version {
    /// Returns the version's id.
    #[must_use]
    pub fn id(&self) -> RecipeId {
        self.id
    }

    /// Returns the size of the content in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the key that the version was stored with.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.recipe.key
    }

    /// Returns the header that the version was stored with.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.recipe.header
    }

    /// Reads at `offset`. Returns fewer bytes than requested only at the end.
    ///
    /// # Errors
    /// `EIO` if a block is damaged or missing.
    pub fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            let index = self.starts.partition_point(|&start| start <= at).saturating_sub(1);
            let Some((part, &start)) = self.recipe.parts.get(index).zip(self.starts.get(index)) else { break };
            if at - start >= u64::from(part.len) {
                break;
            }
            let plain = self.store.block(cx, &part.name, Source::Any)?;
            if plain.len() != part.len as usize {
                return Err(Errno::IO);
            }
            let from = plain.get((at - start) as usize..).unwrap_or_default();
            let len = from.len().min(rest.len());
            if let (Some(to), Some(from)) = (rest.get_mut(..len), from.get(..len)) {
                to.copy_from_slice(from);
            }
            done += len;
        }
        Ok(done)
    }

    /// Reads all blocks from the packs, and verifies them.
    pub(crate) fn verify(&self, cx: &Cx<'_>) -> Result<()> {
        for part in &self.recipe.parts {
            cx.check()?;
            if self.store.block(cx, &part.name, Source::Disk)?.len() != part.len as usize {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        let mut readers = self.store.readers.lock();
        if let Some(count) = readers.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.id);
            }
        }
    }
}
