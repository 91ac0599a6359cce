//! The bytes of a version, whatever stores them.

use core::fmt;
use std::sync::Arc;
use vnode::{Cx, OpenFile, Result};

/// The bytes of a version, or of the head.
pub trait Content: Send + Sync + fmt::Debug {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Reads at `offset`. Returns fewer bytes than requested only at the end.
    ///
    /// # Errors
    /// `EIO` if the version is damaged; errors of the layer below.
    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize>;

    /// Returns the lower file that contains exactly these bytes at the same offsets, if there is
    /// one.
    fn plain(&self) -> Option<&Arc<dyn OpenFile>>;
}

/// A file that contains the bytes as they are: the head, or a full version.
#[derive(Debug)]
pub struct Plain {
    file: Arc<dyn OpenFile>,
    size: u64,
}

impl Plain {
    /// Returns the first `size` bytes of `file`.
    #[must_use]
    pub fn new(file: Arc<dyn OpenFile>, size: u64) -> Self {
        Self { file, size }
    }
}

impl Content for Plain {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        read_full(cx, &*self.file, clamp(out, offset, self.size), offset)
    }

    fn plain(&self) -> Option<&Arc<dyn OpenFile>> {
        Some(&self.file)
    }
}

/// Returns the part of `out` that lies before `size` when `out` is read at `offset`.
pub fn clamp(out: &mut [u8], offset: u64, size: u64) -> &mut [u8] {
    let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let len = out.len().min(left);
    out.get_mut(..len).unwrap_or_default()
}

/// Reads from a lower file until `out` is full or the file ends.
///
/// # Errors
/// Those of the lower file.
pub fn read_full(cx: &Cx<'_>, file: &dyn OpenFile, out: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read(cx, rest, offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Writes all of `data` to a lower file.
///
/// # Errors
/// Those of the lower file; `EIO` if it accepts nothing.
pub fn write_full(cx: &Cx<'_>, file: &dyn OpenFile, data: &[u8], offset: u64) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(cx, rest, offset + done as u64)? {
            0 => return Err(vnode::Errno::IO),
            written => done += written,
        }
    }
    Ok(())
}
