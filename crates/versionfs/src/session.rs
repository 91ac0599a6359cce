//! The open files of an inode, and the version that receives the blocks they overwrite.
//!
//! Everything that changes the bytes of a head goes through [`Active::save`] first.

use crate::set::Set;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use versionset::{SparseWriter, is_zero, read_full};
use vnode::{Cx, Errno, OpenFile, Result, Upcalls};

/// Bytes that are saved at once.
const CHUNK: usize = 128 * 1024;

/// The state of the open files of an inode.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Open files.
    pub(crate) opens: u32,
    /// Open files whose writes the layer sees.
    pub(crate) writers: u32,
    /// Number of renames of the file. The first write after one makes a version, so that the former
    /// name keeps showing what the file was until the rename.
    pub(crate) renames: u32,
    /// Open files that are written without the layer: those that created the file.
    creators: Vec<Creator>,
    /// The newest version, if it depends on the head: it receives the blocks before they are
    /// overwritten.
    pub(crate) active: Option<Active>,
    /// Of the open file whose truncation is delayed: whether it has made its version.
    pub(crate) delayed_by: Option<Arc<AtomicBool>>,
}

/// The open file that created the file. The kernel does its I/O.
#[derive(Debug)]
pub(crate) struct Creator {
    pub(crate) lower: Arc<dyn OpenFile>,
    /// Whether the kernel has the host file, shared with the open file of the layer.
    pub(crate) is_bound: Arc<AtomicBool>,
}

impl Session {
    /// Notes that the file is written without the layer from now on.
    pub(crate) fn begin_direct(&mut self, creator: Creator) {
        self.creators.push(creator);
    }

    /// Notes that an open file is closed that may have created the file.
    pub(crate) fn end_direct(&mut self, is_bound: &Arc<AtomicBool>) {
        self.creators.retain(|creator| !Arc::ptr_eq(&creator.is_bound, is_bound));
    }

    /// Whether the file is written without the layer.
    pub(crate) const fn is_direct(&self) -> bool {
        !self.creators.is_empty()
    }

    /// Forgets the creators that programs have closed: the kernel tells of that only later, maybe
    /// after the next request of the same program.
    pub(crate) fn drop_closed_creators(&mut self, upcalls: &dyn Upcalls) {
        self.creators.retain(|creator| {
            let is_unused = |file| upcalls.is_host_file_unused(file, false);
            let is_bound = creator.is_bound.load(Ordering::Relaxed);
            !is_bound || !creator.lower.backing().is_some_and(|backing| is_unused(backing.file))
        });
    }
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
