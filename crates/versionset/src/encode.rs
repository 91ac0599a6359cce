//! Writes a version in the format of any letter.

use crate::compressed::Compressed;
use crate::content::{Content, for_each_part, write_full};
use crate::delta::Delta;
use crate::header::Header;
use crate::names::Letter;
use crate::sparse::{COMPARED, Sparse};
use crate::sparse_compressed::SparseCompressed;
use crate::text::Text;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result};

/// The newer version that a delta refers to.
#[derive(Clone, Copy, Debug)]
pub struct Newer<'a> {
    /// Its content.
    pub content: &'a dyn Content,
    /// Its number; for the head the number that it will have as a version: [`crate::Index::next`].
    pub base: u64,
}

/// Writes `old` to `file`, which is empty, in the format of `letter`. `level` is a Zstandard level.
/// Returns false if the format saves nothing, or is not for such content; the file is of no use then.
///
/// A full version ([`Letter::Full`]) has no header: the caller gives the file the attributes.
///
/// # Errors
/// `EINVAL` for a letter that is not the format of a file, and for the level; `E2BIG` if the extended
/// attributes are too large; errors of the contents and of the layer below.
pub fn encode(
    cx: &Cx<'_>,
    file: Arc<dyn OpenFile>,
    letter: Letter,
    header: &Header,
    old: &dyn Content,
    newer: Newer<'_>,
    level: i32,
) -> Result<bool> {
    let (content, base) = (newer.content, newer.base);
    let len = match letter {
        Letter::Full => {
            let mut at = 0;
            let mut buffer = vec![0; COMPARED];
            for_each_part(cx, old, 0, old.size(), &mut buffer, |part| {
                write_full(cx, &*file, part, at)?;
                at += part.len() as u64;
                Ok(())
            })?;
            Some(at)
        }
        Letter::Compressed => Compressed::write(cx, file, header, old, level)?,
        Letter::Sparse => Some(Sparse::write(cx, file, header, old, &[content])?.size()),
        Letter::SparseCompressed => SparseCompressed::write(cx, file, header, old, content, base, level)?,
        Letter::Delta => Delta::write(cx, file, header, old, content, base, level)?,
        Letter::Text => Text::write(cx, file, header, old, content, base, level)?,
        Letter::Blocks | Letter::Directory | Letter::Special | Letter::Renamed => return Err(Errno::INVAL),
    };
    Ok(len.is_some())
}
