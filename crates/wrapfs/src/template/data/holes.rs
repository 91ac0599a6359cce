use super::lower::CodedFile;
use vnode::{Cx, Errno, Result, Whence};

impl CodedFile<'_> {
    /// Finds data or a hole. A block is a hole if it is a hole below, and data if any part of it is
    /// data.
    pub(crate) fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        // Fails if the offset is beyond the end of the file.
        self.file.seek(cx, offset, Whence::Hole)?;
        match whence {
            Whence::Data => {
                let found = self.file.seek(cx, self.block_start(offset), Whence::Data)?;
                Ok(offset.max(self.block_start(found)))
            }
            Whence::Hole => self.next_hole(cx, offset),
        }
    }

    fn block_start(&self, offset: u64) -> u64 {
        offset - offset % self.coding.block()
    }

    fn next_hole(&self, cx: &Cx<'_>, offset: u64) -> Result<u64> {
        let size = self.size(cx)?;
        let mut start = self.block_start(offset);
        while start < size {
            let next = start + self.coding.block();
            let data = match self.file.seek(cx, start, Whence::Data) {
                Ok(data) => data,
                Err(Errno::NXIO) => size,
                Err(errno) => return Err(errno),
            };
            if data >= next.min(size) {
                return Ok(offset.max(start));
            }
            // This block contains data: continue in the block where the data ends, or in the next
            // one.
            let hole = self.file.seek(cx, data, Whence::Hole)?;
            start = next.max(self.block_start(hole));
            if hole >= size {
                break;
            }
        }
        Ok(size)
    }
}
