//! Deltas without holes: `foo;x8` (Versionfs paper, section 6.1).
//!
//! Ranges of the newer version are found by content, wherever they are: bytes that an insertion
//! shifted are copied, too. As in rsync, aligned blocks of the newer version are found in the older
//! one by a rolling hash, and matches are extended in both directions.

use crate::content::{Content, clamp, fill_from};
use crate::edits::{Edited, Edits, Format};
use crate::header::Header;
use crate::names::Letter;
use std::sync::Arc;
use vnode::{Cx, OpenFile, Result};

const MAGIC: &[u8; 8] = b"VERSDLT1";

/// Bytes of the older version that are compared at a time.
const SEGMENT: usize = 8 * 1024 * 1024;

/// Bytes of the newer version before and behind a segment in which matches are searched.
const REACH: u64 = 4 * 1024 * 1024;

/// Bytes of a block in the smallest windows.
const MIN_BLOCK: usize = 16;

/// Most blocks of a window: larger windows have larger blocks.
const MAX_BLOCKS: usize = 1 << 18;

/// Multiplier of the rolling hash.
const PRIME: u32 = 0x0100_0193;

/// Deltas by content.
#[derive(Debug)]
pub struct Delta;

impl Delta {
    /// Writes what of `old` is not in `newer`, the version with number `base` or the head, to `file`,
    /// which is empty. Needs memory for 24 MiB of content. Returns the length of the file in bytes;
    /// `None` if it takes no fewer blocks than `old`.
    ///
    /// # Errors
    /// `E2BIG` if the extended attributes are too large, `EINVAL` for the level; errors of the
    /// contents and of the layer below.
    pub fn write(
        cx: &Cx<'_>,
        file: Arc<dyn OpenFile>,
        header: &Header,
        old: &dyn Content,
        newer: &dyn Content,
        base: u64,
        level: i32,
    ) -> Result<Option<u64>> {
        let header = header.stored_as(Letter::Delta, old.size());
        match differences(cx, old, newer)? {
            Some(edits) => edits.write(cx, file, &Format { magic: MAGIC, header: &header, base, level }, old),
            None => Ok(None),
        }
    }

    /// Opens a version of `len` bytes.
    ///
    /// # Errors
    /// `EIO` if the file is damaged; errors of the layer below.
    pub fn open(cx: &Cx<'_>, file: Arc<dyn OpenFile>, len: u64) -> Result<Edited> {
        Edited::open(cx, file, len, MAGIC)
    }

    /// Reads the header, and the base: 0 if nothing is copied.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn header(cx: &Cx<'_>, file: &dyn OpenFile) -> Result<(Header, u64)> {
        Edited::header(cx, file, MAGIC)
    }
}

/// Compares two contents, segment by segment.
fn differences(cx: &Cx<'_>, old: &dyn Content, newer: &dyn Content) -> Result<Option<Edits>> {
    let mut edits = Edits::default();
    // How much farther back than in the older version the last match is in the newer one.
    let mut drift = 0i64;
    while edits.size() < old.size() {
        let at = edits.size();
        let mut segment = vec![0; SEGMENT];
        let segment = clamp(&mut segment, at, old.size());
        fill_from(cx, old, segment, at)?;
        let middle = at.saturating_add_signed(drift);
        let start = middle.saturating_sub(REACH).min(newer.size());
        let end = middle.saturating_add(segment.len() as u64 + REACH).min(newer.size());
        let mut window = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
        fill_from(cx, newer, &mut window, start)?;
        if let Some(last) = compare(segment, &window, start, &mut edits) {
            drift = last.wrapping_sub(edits.size()).cast_signed();
        }
        if edits.is_too_long() {
            return Ok(None);
        }
    }
    Ok(Some(edits))
}

/// Appends the edits for `old`. `start` is the offset of `newer` in the newer version. Returns where
/// in the newer version the byte behind `old` would be if it continued the last match.
fn compare(old: &[u8], newer: &[u8], start: u64, edits: &mut Edits) -> Option<u64> {
    let size = (newer.len() / MAX_BLOCKS).next_power_of_two().max(MIN_BLOCK);
    let blocks = Blocks::new(newer, size);
    let leading = PRIME.wrapping_pow(u32::try_from(size).unwrap_or(0));
    let (mut done, mut at, mut sum) = (0, 0, None);
    let mut last = None;
    while let Some(block) = old.get(at..at + size) {
        let hash = sum.unwrap_or_else(|| hash(block));
        // What continues the last match is better than an equal block elsewhere.
        let expected = last.map(|delta: i64| (at as u64).saturating_add_signed(delta));
        let found = expected.and_then(|at| usize::try_from(at).ok()).filter(|from| is_at(newer, *from, block));
        let Some(from) = found.or_else(|| blocks.find(hash, newer, block)) else {
            let (first, next) = (block.first(), old.get(at + size));
            sum = first.zip(next).map(|(first, next)| {
                let rolled = hash.wrapping_mul(PRIME).wrapping_add(u32::from(*next) + 1);
                rolled.wrapping_sub((u32::from(*first) + 1).wrapping_mul(leading))
            });
            at += 1;
            continue;
        };
        let back = common(
            old.get(done..at).unwrap_or_default().iter().rev(),
            newer.get(..from).unwrap_or_default().iter().rev(),
        );
        let forth = common(
            old.get(at + size..).unwrap_or_default().iter(),
            newer.get(from + size..).unwrap_or_default().iter(),
        );
        edits.own((at - back - done) as u64);
        edits.copy((back + size + forth) as u64, start + (from - back) as u64);
        last = Some((from as u64).wrapping_sub(at as u64).cast_signed());
        at += size + forth;
        (done, sum) = (at, None);
    }
    edits.own((old.len() - done) as u64);
    last.map(|delta| start.saturating_add((old.len() as u64).saturating_add_signed(delta)))
}

fn common<'a>(one: impl Iterator<Item = &'a u8>, other: impl Iterator<Item = &'a u8>) -> usize {
    one.zip(other).take_while(|(one, other)| one == other).count()
}

fn is_at(bytes: &[u8], at: usize, block: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|bytes| bytes.starts_with(block))
}

fn hash(block: &[u8]) -> u32 {
    block.iter().fold(0u32, |hash, byte| hash.wrapping_mul(PRIME).wrapping_add(u32::from(*byte) + 1))
}

/// The aligned blocks of a window by hash: a table with one block in each slot.
struct Blocks {
    /// Number of a block plus 1; 0 is empty.
    slots: Vec<u32>,
    size: usize,
}

impl Blocks {
    fn new(bytes: &[u8], size: usize) -> Self {
        let mut blocks = Self { slots: vec![0; (bytes.len() / size * 2).next_power_of_two().max(16)], size };
        for (block, number) in bytes.chunks_exact(size).zip(1u32..) {
            let slot = blocks.slot(hash(block));
            // The first of equal blocks stays: a longer match begins there.
            if let Some(slot) = blocks.slots.get_mut(slot).filter(|slot| **slot == 0) {
                *slot = number;
            }
        }
        blocks
    }

    fn slot(&self, hash: u32) -> usize {
        (hash.wrapping_mul(0x9e37_79b1) as usize >> 7) & (self.slots.len() - 1)
    }

    fn find(&self, hash: u32, bytes: &[u8], block: &[u8]) -> Option<usize> {
        let number = *self.slots.get(self.slot(hash))?;
        let at = (number as usize).checked_sub(1)? * self.size;
        is_at(bytes, at, block).then_some(at)
    }
}
