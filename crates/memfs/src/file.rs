use crate::data::PAGE;
use crate::faults::Op;
use crate::node::MemVnode;
use crate::tree::Inode;
use std::any::Any;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, OpenFlags, Result, Whence};

/// Number of bytes copied at a time.
const COPY_STEP: usize = 1 << 20;

/// Maximum size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// An open file.
#[derive(Debug)]
pub(crate) struct MemFile {
    vnode: MemVnode,
    flags: OpenFlags,
}

impl MemFile {
    pub(crate) fn new(vnode: MemVnode, flags: OpenFlags) -> Self {
        Self { vnode, flags }
    }

    /// Fails with `EBADF` unless the file is open for writing.
    fn require_writable(&self) -> Result<()> {
        if self.flags.writes() { Ok(()) } else { Err(Errno::BADF) }
    }

    /// Fails with `EINVAL` if the ranges of a copy within one file overlap.
    fn check_overlap(&self, source: &Self, from: u64, to: u64, len: u64) -> Result<()> {
        if !source.flags.reads() {
            return Err(Errno::BADF);
        }
        if !Arc::ptr_eq(&source.vnode.fs, &self.vnode.fs) || source.vnode.ino != self.vnode.ino {
            return Ok(());
        }
        let size = self.vnode.fs.tree().get(self.vnode.ino)?.data.size();
        let len = len.min(size.saturating_sub(from));
        if from.abs_diff(to) < len { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Writes as much as fits.
    fn put(&self, op: Op, data: &[u8], offset: u64) -> Result<usize> {
        let mut tree = self.vnode.fs.begin_change(op)?;
        self.require_writable()?;
        let now = tree.now();
        let file = &tree.get(self.vnode.ino)?.data;
        let offset = if self.flags.appends() { file.size() } else { offset };
        let room = SIZE_MAX.checked_sub(offset).filter(|&room| room > 0 || data.is_empty()).ok_or(Errno::FBIG)?;
        let mut len = (data.len() as u64).min(room);
        let mut needed = file.needed(offset, len);
        let (free, errno) = self.vnode.fs.room(&mut tree, needed);
        while len > 0 && needed > free {
            // Round down to the end of the last page that fits.
            len = ((offset + len - 1) / PAGE * PAGE).saturating_sub(offset);
            needed = tree.get(self.vnode.ino)?.data.needed(offset, len);
        }
        if len == 0 && !data.is_empty() {
            return Err(errno);
        }
        tree.allocates(needed);
        let last_pages = self.vnode.fs.faults.last_pages();
        if let Some(pages) = last_pages {
            len = len.min(((offset / PAGE + pages) * PAGE).saturating_sub(offset));
        }
        let len = len as usize;
        let inode = tree.get_mut(self.vnode.ino)?;
        inode.data.write(data.get(..len).unwrap_or(data), offset);
        if len > 0 {
            data_changed(inode, now);
        }
        if self.vnode.fs.faults.crashed() { Err(Errno::IO) } else { Ok(len) }
    }
}

/// Updates the metadata after a change of the data.
fn data_changed(inode: &mut Inode, now: vnode::Time) {
    (inode.mtime, inode.ctime) = (now, now);
    inode.xattrs.remove(crate::xattr::CAPABILITY);
}

impl OpenFile for MemFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<vnode::Backing<'_>> {
        self.vnode.fs.backing.as_ref().map(|file| vnode::Backing::alone(file.as_fd()))
    }

    fn closes_quickly(&self) -> bool {
        true
    }

    fn bind(&self) {
        // There is no host file.
    }

    fn read(&self, _cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let tree = self.vnode.fs.begin(Op::Read)?;
        if !self.flags.reads() {
            return Err(Errno::BADF);
        }
        Ok(tree.get(self.vnode.ino)?.data.read(out, offset))
    }

    fn read_host(&self, _cx: &Cx<'_>, _take: vnode::HostReader<'_>) -> Result<Option<usize>> {
        Ok(None)
    }

    fn write(&self, _cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        self.put(Op::Write, data, offset)
    }

    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        self.vnode.fs.begin(Op::Flush).map(|_| ())
    }

    fn fsync(&self, _cx: &Cx<'_>, _data_only: bool) -> Result<()> {
        let mut tree = self.vnode.fs.begin(Op::Fsync)?;
        let inode = tree.get_mut(self.vnode.ino)?;
        inode.synced = inode.data.clone();
        Ok(())
    }

    fn fallocate(&self, _cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        let mut tree = self.vnode.fs.begin_change(Op::Fallocate)?;
        self.require_writable()?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).filter(|&end| end <= SIZE_MAX).ok_or(Errno::FBIG)?;
        let now = tree.now();
        let punches = mode == PUNCH_HOLE | KEEP_SIZE;
        let needed = if punches { 0 } else { tree.get(self.vnode.ino)?.data.needed(offset, len) };
        self.vnode.fs.allocate(&mut tree, needed)?;
        let inode = tree.get_mut(self.vnode.ino)?;
        let keep_size = mode & KEEP_SIZE != 0;
        match mode & !KEEP_SIZE {
            0 => inode.data.allocate(offset, len, keep_size),
            ZERO_RANGE => {
                inode.data.zero(offset, end - offset);
                inode.data.allocate(offset, len, keep_size);
            }
            PUNCH_HOLE if keep_size => inode.data.punch(offset, len),
            _ => return Err(Errno::OPNOTSUPP),
        }
        data_changed(inode, now);
        Ok(())
    }

    fn seek(&self, _cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        let tree = self.vnode.fs.begin(Op::Seek)?;
        let data = &tree.get(self.vnode.ino)?.data;
        if offset >= data.size() {
            return Err(Errno::NXIO);
        }
        match whence {
            Whence::Data => data.next_data(offset).ok_or(Errno::NXIO),
            Whence::Hole => Ok(data.next_hole(offset)),
        }
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        self.require_writable()?;
        if self.flags.appends() {
            return Err(Errno::BADF);
        }
        if let Some(source) = source.as_any().downcast_ref::<Self>() {
            self.check_overlap(source, source_offset, offset, len)?;
        }
        let mut buffer = vec![0; COPY_STEP.min(usize::try_from(len).unwrap_or(COPY_STEP))];
        let mut done = 0;
        while done < len {
            let step = (len - done).min(buffer.len() as u64) as usize;
            let copied = cx.check().and_then(|()| {
                let read = source.read(cx, buffer.get_mut(..step).unwrap_or(&mut []), source_offset + done)?;
                self.put(Op::Copy, buffer.get(..read).unwrap_or(&[]), offset + done)
            });
            match copied {
                Ok(0) => break,
                Ok(n) => done += n as u64,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn reflink_from(&self, _cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let mut tree = self.vnode.fs.begin_change(Op::Reflink)?;
        self.require_writable()?;
        if !self.vnode.fs.options.reflink {
            return Err(Errno::OPNOTSUPP);
        }
        let source = source.as_any().downcast_ref::<Self>().ok_or(Errno::XDEV)?;
        if !Arc::ptr_eq(&source.vnode.fs, &self.vnode.fs) {
            return Err(Errno::XDEV);
        }
        let data = tree.get(source.vnode.ino)?.data.clone();
        let now = tree.now();
        tree.allocates(data.allocated());
        let inode = tree.get_mut(self.vnode.ino)?;
        inode.data = data;
        data_changed(inode, now);
        Ok(())
    }
}
