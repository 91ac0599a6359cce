//! Opening a store: the tables are read from the packs, or from the files that cache their
//! contents.

use crate::format::{BlockHead, Fields, HEADER, Kind, PackHeader, put_number};
use crate::pack::{self, FIRST, Pack, Scanned, index_name, pack_name, pack_number, read_full, write_full};
use crate::recipe::{self, RecipeId};
use crate::table::{Place, Tables};
use core::ops::ControlFlow;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind as FileKind, Name, OpenFlags, Result, Vnode};

/// Magic number at the start of an index file.
const MAGIC: [u8; 8] = *b"\x93strbix\n";

/// Version of the index file's format. Files of other versions are ignored.
const VERSION: u32 = 1;

/// Maximum size of an index file in bytes.
const INDEX_MAX: u64 = 512 << 20;

/// A store's tables.
pub(crate) struct Loaded {
    pub(crate) tables: Tables,
    pub(crate) next_id: u64,
    /// The pack to append to, and its size.
    pub(crate) last: Option<(Arc<Pack>, u64)>,
}

/// One entry of a pack, as the index file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    kind: Kind,
    offset: u64,
    /// A block's tag, or the id of a recipe.
    key: u64,
}

/// Reads the tables. Unless `read_only`, cuts off what a power failure left, and writes index files
/// that are missing.
pub(crate) fn load(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, read_only: bool) -> Result<Loaded> {
    let numbers = list(cx, dir)?;
    let mut loaded = Loaded { tables: Tables::default(), next_id: 1, last: None };
    let newest = numbers.last().copied();
    for number in numbers {
        let Some(vnode) = pack::lookup(cx, dir, &pack_name(number))? else { continue };
        let pack = Arc::new(Pack::new(number, vnode, None));
        let header = match header(cx, &pack) {
            Ok(header) => Some(header),
            Err(Errno::IO) => None,
            Err(errno) => return Err(errno),
        };
        let items = if newest == Some(number) {
            let (items, end) = scan_newest(cx, &pack, read_only)?;
            // Nothing is appended to a pack whose header was never written.
            loaded.last = header.map(|_| (Arc::clone(&pack), end));
            items
        } else {
            indexed(cx, dir, &pack, read_only)?
        };
        loaded.next_id = loaded.next_id.max(header.map_or(0, |header| header.next_id));
        for item in items {
            loaded.add(number, item);
        }
        pack.close();
        loaded.tables.packs.insert(number, pack);
    }
    loaded.tables.recipes.retain(|_, slot| slot.place.is_some());
    Ok(loaded)
}

impl Loaded {
    fn add(&mut self, pack: u32, item: Item) {
        let Ok(offset) = u32::try_from(item.offset) else { return };
        let place = Place { pack, offset };
        match item.kind {
            Kind::Block => self.tables.add_block(item.key, place, false),
            Kind::Recipe => self.tables.add_recipe(RecipeId(item.key), place, false),
            Kind::Tombstone => self.tables.delete_recipe(RecipeId(item.key)),
            Kind::Mark => return,
        }
        if item.kind != Kind::Block {
            self.next_id = self.next_id.max(item.key.saturating_add(1));
        }
    }
}

/// Returns the numbers of all packs in ascending order.
fn list(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    dir.readdir(cx, 0, &mut |entry| {
        if entry.kind == FileKind::Regular {
            numbers.extend(pack_number(entry.name.as_bytes()));
        }
        true
    })?;
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads the header of a pack.
///
/// # Errors
/// `EIO` if it is damaged, `EMEDIUMTYPE` if its format is a later version.
pub(crate) fn header(cx: &Cx<'_>, pack: &Pack) -> Result<PackHeader> {
    let mut bytes = [0; HEADER as usize];
    let len = read_full(cx, &*pack.file(cx, OpenFlags::RDONLY)?, &mut bytes, 0)?;
    let header = PackHeader::parse(bytes.get(..len).unwrap_or_default())?;
    if header.number == pack.number { Ok(header) } else { Err(Errno::IO) }
}

/// Returns what an intact entry adds to the tables, if its body is valid.
fn item(kind: Kind, offset: u64, body: &[u8]) -> Option<Item> {
    let key = match kind {
        Kind::Block => BlockHead::parse(body, offset).ok()?.0.name.tag(),
        Kind::Recipe => recipe::parse_base(body).ok()?.0.0,
        Kind::Tombstone => Fields::new(body).number().ok()?,
        Kind::Mark => return None,
    };
    Some(Item { kind, offset, key })
}

/// Reads the newest pack, and cuts off what a power failure left of its end. Returns its end, too.
fn scan_newest(cx: &Cx<'_>, pack: &Pack, read_only: bool) -> Result<(Vec<Item>, u64)> {
    let mut items = Vec::new();
    let mut end = FIRST.min(pack.size(cx)?).max(FIRST);
    // Entries after damage are discarded, unless a mark shows that they were durable.
    let mut doubtful: Option<(usize, u64)> = None;
    pack.scan(cx, FIRST, &mut |found| {
        match found {
            Scanned::Entry { kind, offset, len, body } => {
                if kind == Kind::Mark {
                    doubtful = None;
                }
                items.extend(item(kind, offset, body));
                end = offset + len;
            }
            Scanned::Damage { offset, .. } => {
                doubtful.get_or_insert((items.len(), offset));
            }
        }
        ControlFlow::Continue(())
    })?;
    if let Some((count, offset)) = doubtful {
        items.truncate(count);
        end = offset;
        // A store on a read-only file system is read as if it were cut.
        let cut = if read_only { Err(Errno::ROFS) } else { pack.truncate(cx, end) };
        match cut {
            Ok(()) | Err(Errno::ROFS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok((items, end))
}

/// Reads a complete pack's index file, or the pack itself if there is none that is valid.
fn indexed(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, pack: &Pack, read_only: bool) -> Result<Vec<Item>> {
    if let Some(items) = read_index(cx, dir, pack)? {
        return Ok(items);
    }
    let items = scan_items(cx, pack)?;
    if !read_only {
        write_index(cx, dir, pack, &items);
    }
    Ok(items)
}

fn scan_items(cx: &Cx<'_>, pack: &Pack) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    pack.scan(cx, FIRST, &mut |found| {
        if let Scanned::Entry { kind, offset, body, .. } = found {
            items.extend(item(kind, offset, body));
        }
        ControlFlow::Continue(())
    })?;
    Ok(items)
}

/// Writes the index file of a pack that is complete.
pub(crate) fn seal(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, pack: &Pack) {
    if let Ok(items) = scan_items(cx, pack) {
        write_index(cx, dir, pack, &items);
    }
}

fn read_index(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, pack: &Pack) -> Result<Option<Vec<Item>>> {
    let Some(vnode) = pack::lookup(cx, dir, &index_name(pack.number))? else { return Ok(None) };
    let size = vnode.getattr(cx)?.size;
    if vnode.kind() != FileKind::Regular || size > INDEX_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; size as usize];
    let file = vnode.open(cx, OpenFlags::RDONLY)?;
    let len = read_full(cx, &*file, &mut bytes, 0)?;
    bytes.truncate(len);
    Ok(parse_index(&bytes, pack.number, pack.size(cx)?).ok())
}

/// Writes the index file. It is a cache, so failures are ignored.
fn write_index(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, pack: &Pack, items: &[Item]) {
    let write = || {
        let name = index_name(pack.number);
        pack::remove(cx, dir, &name)?;
        let bytes = index_bytes(pack.number, pack.size(cx)?, items);
        let (_, file) = dir.create(cx, Name::new(&name)?, 0o600, OpenFlags::RDWR)?;
        write_full(cx, &*file, &bytes, 0)
    };
    let _: Result<()> = write();
}

fn index_bytes(number: u32, size: u64, items: &[Item]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    let mut last = 0;
    for item in items {
        let kind = match item.kind {
            Kind::Block => 0,
            Kind::Recipe => 1,
            Kind::Tombstone => 2,
            Kind::Mark => continue,
        };
        put_number(&mut bytes, (item.offset - last) << 2 | kind);
        last = item.offset;
        bytes.extend_from_slice(&item.key.to_le_bytes());
    }
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn parse_index(bytes: &[u8], number: u32, size: u64) -> Result<Vec<Item>> {
    let (covered, sum) = bytes.split_last_chunk::<4>().ok_or(Errno::IO)?;
    if crc32c::crc32c(covered) != u32::from_le_bytes(*sum) {
        return Err(Errno::IO);
    }
    let mut fields = Fields::new(covered);
    let expected = fields.array()? == MAGIC && fields.u32()? == VERSION && fields.u32()? == number;
    if !expected || fields.u64()? != size {
        return Err(Errno::IO);
    }
    let mut items = Vec::with_capacity(fields.rest().len() / 10);
    let mut offset = 0u64;
    while !fields.rest().is_empty() {
        let step = fields.number()?;
        offset = offset.checked_add(step >> 2).filter(|&offset| offset < size).ok_or(Errno::IO)?;
        let kind = match step & 3 {
            0 => Kind::Block,
            1 => Kind::Recipe,
            2 => Kind::Tombstone,
            _ => return Err(Errno::IO),
        };
        items.push(Item { kind, offset, key: fields.u64()? });
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_as_it_was_written_and_belongs_to_one_pack() {
        let item = |kind, offset, key| Item { kind, offset, key };
        let items = [item(Kind::Block, 64, u64::MAX), item(Kind::Recipe, 500, 1), item(Kind::Tombstone, 100_000, 1)];
        let bytes = index_bytes(3, 200_000, &items);
        assert_eq!(parse_index(&bytes, 3, 200_000), Ok(items.to_vec()));
        assert_eq!(parse_index(&bytes, 4, 200_000), Err(Errno::IO));
        assert_eq!(parse_index(&bytes, 3, 200_001), Err(Errno::IO));
        for cut in 0..bytes.len() {
            assert_eq!(parse_index(&bytes[..cut], 3, 200_000), Err(Errno::IO));
        }
    }
}
