//! System calls that no safe crate wraps: the device's ioctls, private memory, signal masks,
//! scheduling policies.

use crate::abi::BackingMap;
use crate::control::{CONTROL, FRAME};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};

const DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500;
const DEV_IOC_BACKING_OPEN: libc::Ioctl = 0x4010_e501;
const DEV_IOC_BACKING_CLOSE: libc::Ioctl = 0x4004_e502;
const DEV_IOC_SYNC_INIT: libc::Ioctl = 0xe503;
/// Of close_range(2), from linux/close_range.h. Not in the libc crate for all C libraries.
const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;
/// Not in the libc crate. The value of all common architectures.
const F_SETSIG: libc::c_int = 10;

fn check(result: libc::c_int) -> Result<i32, Errno> {
    if result < 0 { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) } else { Ok(result) }
}

/// Attaches the freshly opened `new` to `device`'s connection, with its own list of requests in
/// progress.
pub(crate) fn clone_device(new: BorrowedFd<'_>, device: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut number = u32::try_from(device.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: this command of /dev/fuse reads one u32, which outlives the call; other files refuse
    // it.
    check(unsafe { libc::ioctl(new.as_raw_fd(), DEV_IOC_CLONE, &raw mut number) }).map(drop)
}

/// Registers `file` as a backing file of the connection.
pub(crate) fn backing_open(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<i32, Errno> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: this command of /dev/fuse reads one `BackingMap`, which outlives the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEV_IOC_BACKING_OPEN, &raw const map) })
}

/// Removes the registration of a backing file.
pub(crate) fn backing_close(device: BorrowedFd<'_>, id: i32) -> Result<(), Errno> {
    // SAFETY: this command of /dev/fuse reads one 32-bit number, which outlives the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEV_IOC_BACKING_CLOSE, &raw const id) }).map(drop)
}

/// Requests synchronous INIT: mounting the freshly opened `device` then waits for the reply to
/// INIT.
pub(crate) fn sync_init(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: this command of /dev/fuse has no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEV_IOC_SYNC_INIT) }).map(drop)
}

/// Sends a control frame to the server of the mount that `file` lies on, and replaces it by the
/// reply.
pub(crate) fn control(file: BorrowedFd<'_>, frame: &mut [u8; FRAME]) -> Result<(), Errno> {
    // SAFETY: the command number declares that `FRAME` bytes are read and written; `frame` has that
    // size and outlives the call. The caller has checked that `file` is a regular file or a
    // directory: no kernel file system knows the number, and FUSE honours the declared size.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(CONTROL), frame.as_mut_ptr()) }).map(drop)
}

/// Whether `file` is the only open file for its inode: no process has the inode open or mapped
/// otherwise. With `readers`, others may have it open or mapped for reading. A file system without
/// leases gives no answer: false.
pub(crate) fn is_only_user(file: BorrowedFd<'_>, readers: bool) -> bool {
    let lease = if readers { libc::F_RDLCK } else { libc::F_WRLCK };
    let fd = file.as_raw_fd();
    // A process that opens the file during the lease waits until it ends, and the holder gets a
    // signal: one that is ignored by default, not SIGIO, which would end the process.
    // SAFETY: these commands have an integer argument.
    let signal = check(unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) });
    // SAFETY: as above.
    if signal.is_err() || check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, lease) }).is_err() {
        return false;
    }
    // SAFETY: as above.
    let _ended_by_close_otherwise = check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) });
    true
}

/// Asks for the state of the file system with this `st_dev`, as statfs(2) does, but without a path:
/// ustat(2). Fails with `ENOSYS` on architectures without it. A seccomp filter may refuse it, too,
/// usually with `EPERM`.
pub(crate) fn state_of(file_system: u32) -> Result<(), Errno> {
    #[cfg(any(target_arch = "x86_64", target_arch = "powerpc64", target_arch = "s390x"))]
    {
        // `struct ustat` has at most 32 bytes.
        let mut state = [0_u64; 8];
        // SAFETY: the kernel writes a `struct ustat` there.
        let result = unsafe { libc::syscall(libc::SYS_ustat, file_system, state.as_mut_ptr()) };
        check(i32::try_from(result).unwrap_or(0)).map(drop)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "powerpc64", target_arch = "s390x")))]
    {
        let _unknown = file_system;
        Err(Errno::NOSYS)
    }
}

/// Gives the calling thread a descriptor table of its own, with `file` as the only descriptor.
/// Returns false if it still shares the table of the process: before Linux 5.9, or if a seccomp
/// filter refuses the call.
///
/// # Safety
/// No value that this thread will use or drop owns or borrows another descriptor of the process.
pub(crate) unsafe fn separate_files(file: Option<RawFd>) -> bool {
    let close = |first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint| {
        // SAFETY: with `CLOSE_RANGE_UNSHARE`, or after it, the descriptors are closed in the
        // table of this thread only; the caller vouches for its values.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
    };
    let file = file.and_then(|file| libc::c_uint::try_from(file).ok());
    if !close(file.map_or(0, |file| file + 1), libc::c_uint::MAX, CLOSE_RANGE_UNSHARE) {
        return false;
    }
    if let Some(last) = file.and_then(|file| file.checked_sub(1)) {
        close(0, last, 0);
    }
    true
}

/// Blocks all signals in the calling thread, so that they reach the program's own threads.
pub(crate) fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set, and pthread_sigmask only reads it; the old mask is
    // not requested.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut());
    }
}

/// Scheduling class of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheduling {
    /// `SCHED_OTHER`, the default.
    Normal,
    /// `SCHED_IDLE`: runs only when no other thread wants the CPU.
    Idle,
    /// Any other class, set from outside.
    Other,
}

/// Returns the scheduling class of the calling thread.
pub(crate) fn scheduling() -> Scheduling {
    // SAFETY: the call accesses no memory of ours; 0 is the calling thread.
    match unsafe { libc::sched_getscheduler(0) } {
        libc::SCHED_OTHER => Scheduling::Normal,
        libc::SCHED_IDLE => Scheduling::Idle,
        _ => Scheduling::Other,
    }
}

/// Switches the calling thread to `SCHED_IDLE`, or to `SCHED_OTHER`.
pub(crate) fn set_sched_idle(idle: bool) -> Result<(), Errno> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads one `sched_param`, which outlives it; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const priority) }).map(drop)
}

/// Leaves `SCHED_IDLE` if the calling thread inherited it from a queue thread, unless the whole
/// process runs in that class (`usual`).
pub(crate) fn reset_inherited_policy(usual: Scheduling) {
    if usual == Scheduling::Normal
        && scheduling() == Scheduling::Idle
        && let Err(error) = set_sched_idle(false)
    {
        tracing::debug!(%error, "a thread inherited SCHED_IDLE and can't leave it");
    }
}

/// Private anonymous memory, zero-filled, that occupies memory only where it was written.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Mapping` owns its memory as a `Box<[u8]>` does.
unsafe impl Send for Mapping {}
// SAFETY: shared access yields shared slices only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, page-aligned. `len` must not be 0.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping touches no existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::NOMEM));
        }
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// Returns the length in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of byte `offset`, for the kernel.
    pub(crate) fn address(&self, offset: usize) -> *mut u8 {
        self.start.as_ptr().wrapping_add(offset)
    }

    /// Returns the whole mapping as a slice.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long, initialised (zero or written), and borrowed
        // uniquely through `self`. Where the kernel also writes it (ring entries), the owner
        // ensures that it does not while the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Releases the memory of `bytes` (page-aligned): it reads as zero again and occupies nothing.
    pub(crate) fn discard(&mut self, bytes: std::ops::Range<usize>) {
        let Some(part) = self.bytes().get_mut(bytes) else { return };
        // SAFETY: the range lies in the mapping, which we own and which is not borrowed now; zero
        // is a valid content.
        unsafe { libc::madvise(part.as_mut_ptr().cast(), part.len(), libc::MADV_DONTNEED) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: we own the mapping, and no slice of it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_until_written_and_after_discard() {
        let mut memory = Mapping::new(3 * 4096).unwrap();
        assert!(memory.bytes().iter().all(|&b| b == 0));
        memory.bytes().fill(7);
        memory.discard(4096..8192);
        let bytes = memory.bytes();
        assert!(bytes[..4096].iter().all(|&b| b == 7));
        assert!(bytes[4096..8192].iter().all(|&b| b == 0));
        assert!(bytes[8192..].iter().all(|&b| b == 7));
    }
}
