//! Open files of the layer below.

use crate::abi::{self, Bytes};
use crate::convert::caller_out;
use crate::guest::server::{UNSUPPORTED, done, errno, length, server};
use std::any::Any;
use vnode::{Cx, OpenFile, Result, Whence, refuse};

/// An open file of the layer below.
#[derive(Debug)]
pub(super) struct RemoteFile(*mut abi::File);

// SAFETY: the server's functions may be called from any thread, and this side owns the file until
// it is closed.
unsafe impl Send for RemoteFile {}
// SAFETY: as for Send.
unsafe impl Sync for RemoteFile {}

impl RemoteFile {
    /// # Safety
    /// `file` is an open file passed by the server.
    pub(super) unsafe fn new(file: *mut abi::File) -> Self {
        Self(file)
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        if let Some(close) = server().ok().and_then(|server| server.lower.close) {
            // SAFETY: passed by the server, and closed once.
            unsafe { close(self.0) };
        }
    }
}

// SAFETY of all calls below: the file, the caller and the result buffers outlive the call.
impl OpenFile for RemoteFile {
    refuse!(UNSUPPORTED => flush, copy_from, reflink_from);

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<vnode::Backing<'_>> {
        None
    }

    fn closes_quickly(&self) -> bool {
        false
    }

    fn bind(&self) {
        // The file is never passed to the kernel.
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let (read, caller) = (server()?.lower.read.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        length(unsafe { read(self.0, &raw const caller, out.as_mut_ptr(), out.len(), offset) })
    }

    fn read_host(&self, _cx: &Cx<'_>, _take: vnode::HostReader<'_>) -> Result<Option<usize>> {
        Ok(None)
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let (write, caller) = (server()?.lower.write.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        length(unsafe { write(self.0, &raw const caller, Bytes::of(data), offset) })
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        let (fsync, caller) = (server()?.lower.fsync.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { fsync(self.0, &raw const caller, data_only.into()) })
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        let (fallocate, caller) = (server()?.lower.fallocate.ok_or(UNSUPPORTED)?, caller_out(cx));
        // SAFETY: see above.
        done(unsafe { fallocate(self.0, &raw const caller, mode, offset, len) })
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        let (seek, caller) = (server()?.lower.seek.ok_or(UNSUPPORTED)?, caller_out(cx));
        let whence = match whence {
            Whence::Data => abi::SEEK_DATA,
            Whence::Hole => abi::SEEK_HOLE,
        };
        // SAFETY: see above.
        let found = unsafe { seek(self.0, &raw const caller, offset, whence) };
        u64::try_from(found).map_err(|_| errno(found))
    }
}
