//! Reconstructs a version through the newer ones (Versionfs paper, section 3.2).
//!
//! A version that is not self-contained lacks bytes that a newer one has, and so on up to the head.
//! A read walks up that chain in a loop: each member fills in the bytes that it has, and the rest
//! is left to the next. So the depth of the stack, and the number of open files, do not depend on
//! the number of versions.

use crate::compressed::Compressed;
use crate::content::{Content, Partial, Piece, Plain, clamp};
use crate::delta::Delta;
use crate::header::Header;
use crate::index::Index;
use crate::names::Letter;
use crate::seal::Seal;
use crate::sparse::{Sparse, SparseBlocks};
use crate::sparse_compressed::SparseCompressed;
use crate::text::Text;
use core::fmt;
use core::ops::Range;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result};

/// Most members of a chain that are open at the same time.
const MAX_OPEN: usize = 16;

/// Bytes that are reconstructed at a time. Bounds the number of pieces.
const WINDOW: usize = 256 * 1024;

/// Self-contained versions after which a chain ends. More than one matters only if discarding
/// versions was interrupted that often: a delta version then refers to a newer one than the next.
const MAX_WHOLE: usize = 8;

/// Opens the files of a version set.
pub trait Source: Send + Sync + fmt::Debug {
    /// Opens a version file. Returns it with its length in bytes.
    ///
    /// # Errors
    /// Those of the layer below.
    fn open(&self, cx: &Cx<'_>, letter: Letter, number: u64) -> Result<(Arc<dyn OpenFile>, u64)>;

    /// Returns the head, from which a version with this seal takes bytes.
    ///
    /// # Errors
    /// `ENOENT` if the name has no head that is a regular file, `EIO` if the seal does not admit
    /// it; those of the layer below.
    fn head(&self, cx: &Cx<'_>, seal: Seal) -> Result<Arc<dyn Content>>;

    /// Returns the content of a content-addressed version ([`Letter::Blocks`]).
    ///
    /// # Errors
    /// `EIO` if it is damaged, or if there is no block store; those of the layer below.
    fn blocks(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Content>>;
}

/// The versions that the content of one may come from, in ascending order. The head follows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    versions: Vec<(u64, Letter)>,
    /// Whether the head follows the last version, and not a version that was left out.
    up_to_head: bool,
}

impl Members {
    /// Returns `number` and the newer versions that it may need. `None` if there is no such
    /// version.
    ///
    /// The list is valid until a version is made, discarded or stored in another way.
    #[must_use]
    pub fn of(index: &Index, number: u64) -> Option<Self> {
        index.versions.contains_key(&number).then(|| Self::from(index, number))
    }

    /// Returns the versions from `number` on that a delta to the first of them may need.
    #[must_use]
    pub fn from(index: &Index, number: u64) -> Self {
        let mut newer = index.versions.range(number..);
        let mut versions = Vec::new();
        let mut whole = 0;
        for (number, version) in newer.by_ref() {
            versions.push((*number, version.letter));
            let is_first = versions.len() == 1;
            whole += usize::from(!version.letter.depends_on_newer());
            if whole == MAX_WHOLE || (is_first && whole == 1) {
                break;
            }
        }
        Self { versions, up_to_head: newer.next().is_none() }
    }

    /// Returns the number of the first version.
    pub(crate) fn first(&self) -> Option<u64> {
        self.versions.first().map(|(number, _)| *number)
    }
}

/// Opens the content of the first of `members`, or of the head if there is none.
///
/// The head must not change during a read of the content, except by changes that were saved in the
/// newest version before. A version of one's own file is returned as it is: [`Content::plain`].
///
/// # Errors
/// `EIO` if a version that is needed now is damaged or is no regular file; those of `source`. Reads
/// of the content fail likewise if further versions are needed.
pub fn open_version(cx: &Cx<'_>, source: &Arc<dyn Source>, members: Members) -> Result<Arc<dyn Content>> {
    let Some(&(number, letter)) = members.versions.first() else {
        return if members.up_to_head { source.head(cx, Seal::Open) } else { Err(Errno::IO) };
    };
    let partial = match open_member(cx, &**source, letter, number)? {
        Member::Whole(content) => return Ok(content),
        Member::Partial(partial) => partial,
    };
    let known = Known { open: VecDeque::from([(0, Member::Partial(Arc::clone(&partial)))]), ..Known::default() };
    Ok(Arc::new(Chain { source: Arc::clone(source), members, size: partial.size(), known: Mutex::new(known) }))
}

/// Opens one version file without those it depends on.
pub(crate) fn open_member(cx: &Cx<'_>, source: &dyn Source, letter: Letter, number: u64) -> Result<Member> {
    if matches!(letter, Letter::Directory | Letter::Special | Letter::Renamed) {
        return Err(Errno::IO);
    }
    if letter == Letter::Blocks {
        return source.blocks(cx, number).map(Member::Whole);
    }
    let (file, len) = source.open(cx, letter, number)?;
    Ok(match letter {
        Letter::Full => Member::Whole(Arc::new(Plain::new(file, len))),
        Letter::Compressed => Member::Whole(Arc::new(Compressed::open(cx, file, len)?)),
        Letter::Sparse => Member::Partial(Arc::new(SparseBlocks::open(cx, file, len)?)),
        Letter::SparseCompressed => Member::Partial(Arc::new(SparseCompressed::open(cx, file, len)?)),
        Letter::Delta => Member::Partial(Arc::new(Delta::open(cx, file, len)?)),
        Letter::Text => Member::Partial(Arc::new(Text::open(cx, file, len)?)),
        Letter::Blocks | Letter::Directory | Letter::Special | Letter::Renamed => return Err(Errno::IO),
    })
}

/// What a version file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The version's attributes.
    pub header: Header,
    /// Number of the oldest version that missing bytes may come from, 0 for the next newer one.
    /// `None` if no bytes are missing.
    pub base: Option<u64>,
}

/// Reads the header of a version file of `len` bytes. `None` for one that has none: its attributes
/// are those of the file.
///
/// # Errors
/// `EIO` if the file is damaged; errors of the layer below.
pub fn read_header(cx: &Cx<'_>, letter: Letter, file: &dyn OpenFile, len: u64) -> Result<Option<Stored>> {
    Ok(match letter {
        Letter::Compressed => Some(Stored { header: Compressed::header(cx, file)?, base: None }),
        Letter::Sparse => {
            let (header, is_whole) = Sparse::header(cx, file, len)?;
            Some(Stored { header, base: (!is_whole).then_some(0) })
        }
        Letter::SparseCompressed => Some(based(SparseCompressed::header(cx, file)?)),
        Letter::Delta => Some(based(Delta::header(cx, file)?)),
        Letter::Text => Some(based(Text::header(cx, file)?)),
        _ => None,
    })
}

fn based((header, base): (Header, u64)) -> Stored {
    Stored { header, base: (base > 0).then_some(base) }
}

/// A member of a chain.
#[derive(Clone, Debug)]
pub(crate) enum Member {
    /// It has all bytes.
    Whole(Arc<dyn Content>),
    /// It lacks some.
    Partial(Arc<dyn Partial>),
}

/// What is remembered of a member after it was closed, so that it is not opened to find nothing.
#[derive(Clone, Debug)]
struct Outline {
    size: u64,
    extent: Range<u64>,
    /// Position of the member that follows.
    next: usize,
}

#[derive(Debug, Default)]
struct Known {
    outlines: Vec<Option<Outline>>,
    /// Open members by their position; the last used is at the end.
    open: VecDeque<(usize, Member)>,
    head: Option<Arc<dyn Content>>,
}

/// A version that may lack bytes, with the newer ones that have them.
#[derive(Debug)]
struct Chain {
    source: Arc<dyn Source>,
    members: Members,
    size: u64,
    known: Mutex<Known>,
}

impl Chain {
    /// Fills `out`, which lies within the version.
    fn resolve(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<()> {
        let mut pieces = vec![Piece { at: 0, len: out.len(), offset }];
        let mut position = 0;
        while !pieces.is_empty() {
            if position >= self.members.versions.len() {
                let head = self.head(cx)?;
                return pieces.iter().try_for_each(|piece| piece.read(cx, &*head, out));
            }
            if let Some(next) = self.passes(position, &pieces)? {
                position = next;
                continue;
            }
            match self.member(cx, position)? {
                Member::Whole(content) => {
                    return pieces.iter().try_for_each(|piece| piece.read(cx, &*content, out));
                }
                Member::Partial(partial) => {
                    pieces = fill(cx, &*partial, &pieces, out)?;
                    if partial.seal() == Seal::Changed && !pieces.is_empty() {
                        return Err(Errno::IO);
                    }
                    position = self.outline(position, &*partial);
                }
            }
        }
        Ok(())
    }

    /// Returns the position of the next member if the one at `position` is known to have none of
    /// the pieces.
    fn passes(&self, position: usize, pieces: &[Piece]) -> Result<Option<usize>> {
        let known = self.known.lock();
        let Some(Some(outline)) = known.outlines.get(position) else { return Ok(None) };
        let mut passes = true;
        for piece in pieces {
            let end = end_of(piece, outline.size)?;
            passes &= end <= outline.extent.start || piece.offset >= outline.extent.end;
        }
        Ok(passes.then_some(outline.next))
    }

    /// Remembers the outline of a member. Returns the position of the next one.
    fn outline(&self, position: usize, partial: &dyn Partial) -> usize {
        let base = partial.base();
        let next = self.members.versions.partition_point(|(number, _)| *number < base).max(position + 1);
        // Blocks are still added to the newest version, and one that was cut off from the head must
        // not be passed.
        if partial.seal() != Seal::Changed && next < self.members.versions.len() {
            let outline = Outline { size: partial.size(), extent: partial.extent(), next };
            let mut known = self.known.lock();
            if known.outlines.len() <= position {
                known.outlines.resize(position + 1, None);
            }
            if let Some(slot) = known.outlines.get_mut(position) {
                *slot = Some(outline);
            }
        }
        next
    }

    fn member(&self, cx: &Cx<'_>, position: usize) -> Result<Member> {
        let mut known = self.known.lock();
        if let Some(at) = known.open.iter().position(|(open, _)| *open == position)
            && let Some(found) = known.open.remove(at)
        {
            let member = found.1.clone();
            known.open.push_back(found);
            return Ok(member);
        }
        // Reads of other threads need not wait for the layer below.
        drop(known);
        let (number, letter) = *self.members.versions.get(position).ok_or(Errno::IO)?;
        let member = open_member(cx, &*self.source, letter, number)?;
        let mut known = self.known.lock();
        if known.open.len() >= MAX_OPEN {
            known.open.pop_front();
        }
        known.open.push_back((position, member.clone()));
        Ok(member)
    }

    fn head(&self, cx: &Cx<'_>) -> Result<Arc<dyn Content>> {
        if !self.members.up_to_head {
            return Err(Errno::IO);
        }
        if let Some(head) = &self.known.lock().head {
            return Ok(Arc::clone(head));
        }
        let last = self.members.versions.len().checked_sub(1).ok_or(Errno::IO)?;
        let seal = match self.member(cx, last)? {
            Member::Partial(partial) => partial.seal(),
            Member::Whole(_) => Seal::Open,
        };
        // Without a head, the version can't be reconstructed.
        let head = self.source.head(cx, seal).map_err(|errno| if errno == Errno::NOENT { Errno::IO } else { errno })?;
        Ok(Arc::clone(self.known.lock().head.insert(head)))
    }
}

/// Returns the end of a piece in a member of `size` bytes.
fn end_of(piece: &Piece, size: u64) -> Result<u64> {
    piece.offset.checked_add(piece.len as u64).filter(|end| *end <= size).ok_or(Errno::IO)
}

/// Fills in the pieces that a member has. Returns those that it lacks.
fn fill(cx: &Cx<'_>, partial: &dyn Partial, pieces: &[Piece], out: &mut [u8]) -> Result<Vec<Piece>> {
    let mut lacking: Vec<Piece> = Vec::new();
    for piece in pieces {
        end_of(piece, partial.size())?;
        partial.fill(cx, piece.part(out)?, piece.offset, &mut |lack| {
            let lack = Piece { at: piece.at + lack.at, ..lack };
            match lacking.last_mut() {
                // Pieces that were divided for an earlier member are joined again.
                Some(last) if last.at + last.len == lack.at && last.offset + last.len as u64 == lack.offset => {
                    last.len += lack.len;
                }
                _ => lacking.push(lack),
            }
        })?;
    }
    Ok(lacking)
}

impl Content for Chain {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let out = clamp(out, offset, self.size);
        let mut at = offset;
        for window in out.chunks_mut(WINDOW) {
            self.resolve(cx, window, at)?;
            at += window.len() as u64;
        }
        Ok(out.len())
    }

    fn plain(&self) -> Option<&Arc<dyn OpenFile>> {
        None
    }
}
