//! Open files: reading, writing, copying.

use crate::create::host_flags;
use crate::layer::Shared;
use crate::opened::OpenFd;
use crate::reopen::retry;
use crate::sys;
use crate::vnode_impl::HostVnode;
use core::fmt;
use core::num::NonZeroU64;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom};
use rustix::io::ReadWriteFlags;
use std::any::Any;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vnode::{Backing, Cx, Errno, HostReader, Kind, MAY_BLOCK, OpenFile, OpenFlags, Result, Whence};

/// Bytes copied between two checks for cancellation: some milliseconds' worth.
const COPY_STEP: u64 = 16 << 20;

/// Buffer size for copies that the host can't do itself.
const COPY_BUFFER: usize = 256 << 10;

/// An open regular file of the host.
pub(crate) struct HostFile {
    fd: Arc<OpenFd>,
    /// Number of the descriptor's sync failures that this open file has reported, or that preceded
    /// it.
    reported: AtomicU32,
    flags: OpenFlags,
}

impl HostFile {
    pub(crate) fn new(fd: Arc<OpenFd>, flags: OpenFlags) -> Self {
        Self { reported: AtomicU32::new(fd.failures()), fd, flags }
    }

    fn fs(&self) -> &Shared {
        self.fd.fs()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn flags(&self) -> OpenFlags {
        self.flags
    }
}

impl HostVnode {
    pub(crate) fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        match self.object_kind() {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::ISDIR),
            Kind::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NXIO),
        }
        if flags.writes() || flags.truncates() {
            self.fs().check_writable()?;
        }
        let host = host_flags(flags);
        let open = |host| self.open_shared(cx, host, || self.reopen_named(host));
        let fd = match open(host) {
            // O_NOATIME needs the owner. The caller may be the owner even though the server is not,
            // and was already checked.
            Err(Errno::PERM) if host.contains(OFlags::NOATIME) => open(host - OFlags::NOATIME)?,
            other => other?,
        };
        Ok(Arc::new(HostFile::new(fd, flags)))
    }
}

impl OpenFile for HostFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<Backing<'_>> {
        Some(self.fd.backing())
    }

    fn closes_quickly(&self) -> bool {
        true
    }

    fn bind(&self) {
        // The data never moves to another host file.
    }

    fn will_need(&self, cx: &Cx<'_>, offset: u64, len: u64) {
        let traits = self.fs().traits;
        if !traits.in_memory && (cx.may_block || !traits.may_hang) {
            // An error has no consequences. The host may wait for its record of where the data is,
            // as a lookup does.
            let _ = rustix::fs::fadvise(&self.fd, offset, NonZeroU64::new(len), Advice::WillNeed);
        }
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        if cx.may_block || self.fs().traits.in_memory {
            self.read_waiting(out, offset)
        } else if self.fs().no_nowait.load(Ordering::Relaxed) {
            Err(MAY_BLOCK)
        } else {
            self.read_cached(out, offset)
        }
    }

    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>> {
        Ok(if cx.may_block { take(self.fd.as_fd()) } else { None })
    }

    fn write(&self, _cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            match self.fs().with_room(|| rustix::io::pwrite(&self.fd, rest, at)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        sys::close_copy(self.fd.as_fd())
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        cx.require_blocking()?;
        self.fd.sync(data_only, &self.reported)
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        cx.require_blocking()?;
        self.fs().check_writable()?;
        let mode = FallocateFlags::from_bits_retain(mode);
        self.fs().with_room(|| retry(|| rustix::fs::fallocate(&self.fd, mode, offset, len)))
    }

    fn seek(&self, _cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        // Nothing else uses the descriptor's position.
        rustix::fs::seek(
            &self.fd,
            match whence {
                Whence::Data => SeekFrom::Data(offset),
                Whence::Hole => SeekFrom::Hole(offset),
            },
        )
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        cx.require_blocking()?;
        let mut done = 0;
        let mut by_host = source.backing().map(|backing| backing.file);
        while done < len {
            let (from, to) = (source_offset.saturating_add(done), offset.saturating_add(done));
            let step = (len - done).min(COPY_STEP);
            let copied = cx.check().and_then(|()| {
                self.fs().with_room(|| match by_host {
                    Some(host) => self.copy_step_by_host(host, from, to, step),
                    None => self.copy_step_by_hand(cx, source, from, to, step),
                })
            });
            match copied {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) if by_host.is_some() => by_host = None,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn reflink_from(&self, _cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let source = source.backing().ok_or(Errno::OPNOTSUPP)?.file;
        match rustix::fs::ioctl_ficlone(&self.fd, source) {
            Err(Errno::NOTTY) => Err(Errno::OPNOTSUPP),
            other => other,
        }
    }
}

impl HostFile {
    fn read_waiting(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.fd, rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads from the page cache, without waiting: everything up to the requested length or the end
    /// of the file, or else nothing.
    fn read_cached(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            match rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(rest)], at, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(MAY_BLOCK),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.fs().no_nowait.store(true, Ordering::Relaxed);
                    return Err(MAY_BLOCK);
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Err(MAY_BLOCK),
            }
        }
        Ok(done)
    }

    fn copy_step_by_host(&self, source: BorrowedFd<'_>, mut from: u64, mut to: u64, len: u64) -> Result<u64> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let copied = retry(|| rustix::fs::copy_file_range(source, Some(&mut from), &self.fd, Some(&mut to), len));
        match copied {
            // Some file systems return EINVAL for unsupported copies. Overlapping ranges of one
            // file really are invalid.
            Err(Errno::INVAL) if !self.is_same_file(source)? => Err(Errno::OPNOTSUPP),
            other => Ok(other? as u64),
        }
    }

    fn is_same_file(&self, other: BorrowedFd<'_>) -> Result<bool> {
        let (a, b) = (rustix::fs::fstat(&self.fd)?, rustix::fs::fstat(other)?);
        Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    fn copy_step_by_hand(&self, cx: &Cx<'_>, source: &dyn OpenFile, from: u64, to: u64, len: u64) -> Result<u64> {
        let mut buffer = vec![0; COPY_BUFFER.min(usize::try_from(len).unwrap_or(COPY_BUFFER))];
        let read = source.read(cx, &mut buffer, from)?;
        let data = buffer.get(..read).unwrap_or(&[]);
        if data.is_empty() { Ok(0) } else { Ok(self.write(cx, data, to)? as u64) }
    }
}

impl fmt::Debug for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostFile({:?}, {:#o})", self.fd.as_fd(), self.flags.0)
    }
}
