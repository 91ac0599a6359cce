//! Differences of the lines of two texts: `foo;t8` (Versionfs paper, section 6.1).

use crate::content::{Content, fill_from};
use crate::edits::{Edited, Edits, Format};
use crate::header::Header;
use crate::names::Letter;
use similar::{Algorithm, DiffOp};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Cx, OpenFile, Result};

const MAGIC: &[u8; 8] = b"VERSTXT1";

/// Largest text in bytes.
pub const MAX_TEXT: u64 = 4 * 1024 * 1024;

/// After this time, the rest of two texts is taken to differ.
const MAX_TIME: Duration = Duration::from_millis(500);

/// Line differences.
#[derive(Debug)]
pub struct Text;

impl Text {
    /// Writes the lines of `old` that are not in `newer`, the version with number `base` or the head,
    /// to `file`, which is empty. Returns the length of the file in bytes; `None` if one of them is no
    /// text or larger than [`MAX_TEXT`], or the file takes no fewer blocks than `old`.
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
        let (Some(before), Some(after)) = (text(cx, old)?, text(cx, newer)?) else { return Ok(None) };
        let header = header.stored_as(Letter::Text, old.size());
        differences(&before, &after).write(cx, file, &Format { magic: MAGIC, header: &header, base, level }, old)
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

/// Returns a content that is a text: it has no NUL byte, as in diff(1).
fn text(cx: &Cx<'_>, content: &dyn Content) -> Result<Option<Vec<u8>>> {
    let Some(size) = usize::try_from(content.size()).ok().filter(|size| *size as u64 <= MAX_TEXT) else {
        return Ok(None);
    };
    let mut bytes = vec![0; size];
    fill_from(cx, content, &mut bytes, 0)?;
    Ok((!bytes.contains(&0)).then_some(bytes))
}

fn differences(old: &[u8], newer: &[u8]) -> Edits {
    let (old, newer): (Vec<_>, Vec<_>) = (lines(old), lines(newer));
    let (old_offsets, newer_offsets) = (offsets(&old), offsets(&newer));
    let deadline = Instant::now().checked_add(MAX_TIME);
    let mut edits = Edits::default();
    for operation in similar::capture_diff_slices_deadline(Algorithm::Myers, &newer, &old, deadline) {
        let range = operation.new_range();
        let at = |offsets: &[u64], line: usize| offsets.get(line).copied().unwrap_or(0);
        let len = at(&old_offsets, range.end).saturating_sub(at(&old_offsets, range.start));
        match operation {
            DiffOp::Equal { old_index, .. } => edits.copy(len, at(&newer_offsets, old_index)),
            _ => edits.own(len),
        }
    }
    edits
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Returns the offset of each line, and that of the end.
fn offsets(lines: &[&[u8]]) -> Vec<u64> {
    let mut end = 0;
    let ends = lines.iter().map(|line| {
        end += line.len() as u64;
        end
    });
    core::iter::once(0).chain(ends).collect()
}
