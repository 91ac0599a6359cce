//! The open files of an inode, and the version that receives the blocks they overwrite.
//!
//! Everything that changes the bytes of a head goes through [`Active::save`] first.

use crate::set::Set;
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use std::sync::Arc;
use versionset::{SparseWriter, is_zero, read_full};
use vnode::{Cx, Errno, OpenFile, Result};

/// Bytes that are saved at once.
const CHUNK: usize = 128 * 1024;

/// The state of the open files of an inode.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Open files.
    pub(crate) opens: u32,
    /// Open files whose writes the layer sees.
    pub(crate) writers: u32,
    /// Open files that are written without the layer: the kernel does their I/O.
    pub(crate) direct: u32,
    /// The newest version, if it depends on the head: it receives the blocks before they are
    /// overwritten.
    pub(crate) active: Option<Active>,
    /// Of the open file whose truncation is delayed: whether it has made its version.
    pub(crate) delayed_by: Option<Arc<AtomicBool>>,
}

/// The newest version of a set, open for adding blocks.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) set: Arc<Set>,
    pub(crate) number: u64,
    pub(crate) writer: SparseWriter,
}

impl Active {
    /// Saves the blocks that `range` touches and the version lacks. `head` is the lower file, open
    /// for reading. Returns how many bytes were saved; zeros take no space.
    pub(crate) fn save(&mut self, cx: &Cx<'_>, head: &dyn OpenFile, range: Range<u64>) -> Result<u64> {
        let (mut buffer, mut saved) = (Vec::new(), 0);
        while let Some(missing) = self.writer.missing(range.clone()) {
            let len = usize::try_from(missing.end - missing.start).unwrap_or(CHUNK).min(CHUNK);
            buffer.resize(len, 0);
            if read_full(cx, head, &mut buffer, missing.start)? < len {
                // The head is shorter than the version: it was changed out of band.
                return Err(Errno::IO);
            }
            // Not by the holes of the head: not every file system below tells them of bytes that
            // are in its cache only.
            if is_zero(&buffer) {
                self.writer.add_zeros(cx, missing.start..missing.start + len as u64)?;
                continue;
            }
            self.writer.add(cx, &buffer, missing.start)?;
            saved += len as u64;
        }
        Ok(saved)
    }
}
