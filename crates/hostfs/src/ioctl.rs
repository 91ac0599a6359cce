//! Forwards the ioctls for file flags.

use crate::sys;
use crate::vnode_impl::HostVnode;
use rustix::fd::AsFd;
use vnode::{Errno, IoctlReply, Kind, Result};

/// An ioctl that is passed to the host. Its argument is a plain structure.
struct AllowedIoctl {
    /// The command number, which includes the size of the argument.
    number: u32,
    /// Number of bytes that the host reads.
    reads: usize,
    /// Number of bytes that the host writes.
    writes: usize,
    changes: bool,
}

/// The command numbers must match exactly. Only the kernel can send these numbers, and it has
/// checked that the caller owns the file and may change such flags. The same command with another
/// size can be sent by any program that could open the file, without any check.
///
/// Flags and version of a file are declared as `long` but handled as `int`, so FUSE sends 4 or 8
/// bytes.
const ALLOWED: [AllowedIoctl; 5] = [
    // FS_IOC_GETFLAGS
    AllowedIoctl { number: 0x8008_6601, reads: 0, writes: 4, changes: false },
    // FS_IOC_SETFLAGS
    AllowedIoctl { number: 0x4008_6602, reads: 4, writes: 0, changes: true },
    // FS_IOC_GETVERSION
    AllowedIoctl { number: 0x8008_7601, reads: 0, writes: 4, changes: false },
    // FS_IOC_FSGETXATTR: struct fsxattr, 28 bytes
    AllowedIoctl { number: 0x801c_581f, reads: 0, writes: 28, changes: false },
    // FS_IOC_FSSETXATTR
    AllowedIoctl { number: 0x401c_5820, reads: 28, writes: 0, changes: true },
];

impl HostVnode {
    pub(crate) fn do_ioctl(&self, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply> {
        let allowed = ALLOWED.iter().find(|allowed| allowed.number == cmd).ok_or(Errno::NOTTY)?;
        if allowed.changes {
            self.fs().check_writable()?;
        }
        let Some(fd) = self.readable_fd()? else { return Err(Errno::NOTTY) };
        let mut buffer = [0u64; 8];
        fill(&mut buffer, input.get(..allowed.reads).ok_or(Errno::INVAL)?);
        let result = sys::ioctl(fd.as_fd(), allowed.number, &mut buffer)?;
        if allowed.changes && self.object_kind() == Kind::Directory {
            // The flags may have made the directory case-insensitive.
            self.fs().names.remove(self.number());
        }
        let bytes = buffer.map(u64::to_ne_bytes);
        // A 4-byte value in an 8-byte reply is padded with zeros.
        let len = out.len().min(allowed.writes.next_multiple_of(8));
        let len = if allowed.writes == 0 { 0 } else { len };
        if len < allowed.writes {
            return Err(Errno::INVAL);
        }
        for (to, from) in out.iter_mut().take(len).zip(bytes.as_flattened()) {
            *to = *from;
        }
        Ok(IoctlReply { result, len })
    }
}

fn fill(buffer: &mut [u64; 8], input: &[u8]) {
    for (word, bytes) in buffer.iter_mut().zip(input.chunks(8)) {
        let mut whole = [0; 8];
        for (to, from) in whole.iter_mut().zip(bytes) {
            *to = *from;
        }
        *word = u64::from_ne_bytes(whole);
    }
}
