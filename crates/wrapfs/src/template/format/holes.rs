use super::super::data::{Scratch, is_zero};
use super::file::FormatFile;
use vnode::{Cx, Errno, Result, SetAttr, Whence};

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// Number of zeros written at a time, in bytes.
const ZEROS: usize = 64 << 10;

impl FormatFile<'_> {
    /// Finds data or a hole. A block is a hole if it is stored as zeros. In a range of stored data,
    /// only the first block is read and checked, so a hole's first or last block may be reported as
    /// data.
    pub(crate) fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        let (size, plain) = (self.size(cx)?, self.layout().plain());
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let mut number = offset / plain;
        while number * plain < size {
            cx.check()?;
            let start = self.layout().start_of(number);
            let exactly = number == offset / plain || matches!(whence, Whence::Data);
            let (is_hole, next) = self.is_hole(cx, (number, start), exactly)?;
            if let (Some(_), Some(header)) = (self.sealed(), self.header(cx)?) {
                self.verify(cx, &header, number..next)?;
            }
            if is_hole == matches!(whence, Whence::Hole) {
                return Ok(offset.max(number * plain));
            }
            number = next;
        }
        match whence {
            Whence::Data => Err(Errno::NXIO),
            Whence::Hole => Ok(size),
        }
    }

    /// Returns whether a block is a hole, and the next block that may differ.
    fn is_hole(&self, cx: &Cx<'_>, (number, start): (u64, u64), exactly: bool) -> Result<(bool, u64)> {
        let stored = self.layout().stored();
        let block_at = |below: u64| (below.saturating_sub(self.layout().header()) / stored).max(number + 1);
        let data = match self.file.seek(cx, start, Whence::Data) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok((true, u64::MAX / self.layout().plain())),
            Err(errno) => return Err(errno),
        };
        if data >= start + stored {
            return Ok((true, block_at(data)));
        }
        if !exactly && data == start {
            let hole = self.file.seek(cx, data, Whence::Hole)?;
            if hole >= start + stored {
                return Ok((false, block_at(hole)));
            }
        }
        let bytes = self.old_block(cx, number)?;
        if bytes.len() as u64 == stored {
            return Ok((is_zero(&bytes), number + 1));
        }
        // The last block cannot be stored as a hole. Report it as one anyway, so that an extended
        // range is a hole.
        let header = self.header(cx)?.ok_or(Errno::IO)?;
        let mut plain = Scratch::take(self.layout().plain() as usize);
        let len = self.decode_old(cx, (&header, number), &bytes, &mut plain);
        Ok((len.is_ok_and(|len| plain.get(..len).is_some_and(is_zero)), number + 1))
    }

    /// Allocates, punches and zeroes. The caller holds the inode's lock exclusively.
    pub(crate) fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).filter(|&end| end <= self.layout().max_size()).ok_or(Errno::FBIG)?;
        self.settle()?;
        let stored = self.stored(cx)?;
        self.check_length(cx, stored)?;
        let size = self.layout().plain_size(stored);
        match mode & !KEEP_SIZE {
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => return self.zero(cx, offset, end.min(size), size),
            ZERO_RANGE => self.zero(cx, offset, end.min(size), size)?,
            0 => {
                let plain = self.layout().plain();
                let first = self.layout().start_of(offset / plain);
                let last = self.layout().start_of(end.div_ceil(plain));
                self.file.fallocate(cx, KEEP_SIZE, first, last - first)?;
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        if mode & KEEP_SIZE == 0 && end > size {
            self.resize(cx, &SetAttr { size: Some(end), ..SetAttr::default() }, end)?;
        }
        Ok(())
    }

    /// Turns whole blocks into holes and zeroes parts of blocks. A partial last block cannot be a
    /// hole.
    fn zero(&self, cx: &Cx<'_>, from: u64, to: u64, size: u64) -> Result<()> {
        let plain = self.layout().plain();
        if from >= to {
            // Beyond the end there is nothing to zero, but the times of the file change.
            let start = self.layout().start_of(from.div_ceil(plain));
            return self.file.fallocate(cx, PUNCH_HOLE | KEEP_SIZE, start, self.layout().stored());
        }
        let (first, after) = (from.div_ceil(plain), to / plain);
        if first < after {
            self.write_holes(cx, first, after)?;
            let (start, end) = (self.layout().start_of(first), self.layout().start_of(after));
            self.file.fallocate(cx, PUNCH_HOLE | KEEP_SIZE, start, end - start)?;
            self.write_zeros(cx, from, first * plain)?;
            return self.write_zeros(cx, after * plain, to);
        }
        debug_assert!(to <= size);
        self.write_zeros(cx, from, to)
    }

    fn write_zeros(&self, cx: &Cx<'_>, mut from: u64, to: u64) -> Result<()> {
        let zeros = vec![0; ZEROS.min(to.saturating_sub(from) as usize)];
        while from < to {
            let len = ((to - from) as usize).min(zeros.len());
            from += self.write(cx, zeros.get(..len).unwrap_or(&zeros), from)? as u64;
        }
        Ok(())
    }
}
