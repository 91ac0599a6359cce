//! An io_uring instance whose queues lie in memory of this process.
//!
//! By default the kernel allocates the queues and the process maps them. Such a mapping keeps the
//! instance, and thus the FUSE device registered with it, until the last thread of the process has
//! ended. A thread of a killed server that waits for a reply cannot end before the device is
//! closed: see [`crate::mount_user`]. With `IORING_SETUP_NO_MMAP` only the descriptor keeps the
//! instance. All kernels with FUSE over io_uring have that flag, and `IORING_SETUP_NO_SQARRAY`.

use crate::Errno;
use crate::sys::Mapping;
use core::sync::atomic::{AtomicU32, Ordering};
use io_uring::squeue::Entry128;
use rustix::io_uring::{
    IoringCqeFlags, IoringEnterFlags, IoringRegisterOp, IoringSetupFlags, io_uring_enter, io_uring_enter_arg,
    io_uring_getevents_arg, io_uring_params, io_uring_ptr, io_uring_register, io_uring_setup,
};
use rustix::time::Timespec;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Room for the kernel's `struct io_rings`, which precedes the completion queue.
const RINGS_HEADER: usize = 4096;

/// A completion queue entry: `struct io_uring_cqe`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Completion {
    pub(super) user_data: u64,
    pub(super) result: i32,
    flags: u32,
}

impl Completion {
    /// Whether the same request will complete again.
    pub(super) const fn has_more(&self) -> bool {
        self.flags & IoringCqeFlags::MORE.bits() != 0
    }
}

/// An io_uring instance. Belongs to the thread that created it.
pub(super) struct Uring {
    /// The first field, hence dropped first: the kernel may use the memory until it is closed.
    fd: OwnedFd,
    /// The indices of both queues, and the completion queue.
    rings: Mapping,
    /// The submission queue.
    sqes: Mapping,
    submission: Indices,
    completion: Indices,
    /// Offset of the completion queue's entries in `rings`, in bytes.
    completions_at: usize,
}

/// Where the indices of a queue lie in `rings`, in bytes, and its size.
struct Indices {
    head: usize,
    tail: usize,
    /// Number of entries: a power of two.
    len: u32,
}

impl Uring {
    /// Creates an instance for `entries` submissions (a power of two) and twice as many
    /// completions, with `file` as its only registered file.
    pub(super) fn new(entries: u32, file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let len = entries as usize;
        let rings = Mapping::new(RINGS_HEADER + 2 * len * size_of::<Completion>())?;
        let sqes = Mapping::new(len * size_of::<Entry128>())?;
        let mut params = io_uring_params::default();
        // A single thread submits, and the kernel runs its deferred work only inside that thread's
        // own system calls. `Queue::shrink` relies on this.
        params.flags = IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN
            | IoringSetupFlags::SQE128
            | IoringSetupFlags::NO_MMAP
            | IoringSetupFlags::NO_SQARRAY;
        params.cq_off.user_addr = io_uring_ptr::new(rings.address(0).cast());
        params.sq_off.user_addr = io_uring_ptr::new(sqes.address(0).cast());
        // SAFETY: the kernel uses the memory that its queues need, as their sizes are part of the
        // ABI: `entries` of 128 bytes, and twice as many of 16 bytes after a header much smaller
        // than `RINGS_HEADER`. Both mappings outlive `fd`, and are accessed below only.
        let fd = unsafe { io_uring_setup(entries, &mut params)? };
        let indices = |head: u32, tail: u32, len| Indices { head: head as usize, tail: tail as usize, len };
        let (sq, cq) = (params.sq_off, params.cq_off);
        let submission = indices(sq.head, sq.tail, params.sq_entries);
        let completion = indices(cq.head, cq.tail, params.cq_entries);
        let uring = Self { fd, rings, sqes, submission, completion, completions_at: cq.cqes as usize };
        if !uring.is_as_expected(entries) {
            return Err(Errno::INVAL);
        }
        let files = [file.as_raw_fd()];
        // SAFETY: the operation reads one descriptor from `files`, which outlives the call.
        unsafe { io_uring_register(&uring.fd, IoringRegisterOp::RegisterFiles, files.as_ptr().cast(), 1)? };
        Ok(uring)
    }

    /// Whether the layout that the kernel chose fits into the mappings, which `index`, `push` and
    /// `next_completion` rely on.
    fn is_as_expected(&self, entries: u32) -> bool {
        let Self { submission, completion, .. } = self;
        let end = self.completions_at + completion.len as usize * size_of::<Completion>();
        let indices = [submission.head, submission.tail, completion.head, completion.tail];
        submission.len == entries
            && entries.is_power_of_two()
            && completion.len.is_power_of_two()
            && end <= self.rings.len()
            && self.completions_at.is_multiple_of(align_of::<Completion>())
            && indices.iter().all(|at| at.is_multiple_of(4) && *at < RINGS_HEADER)
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `is_as_expected` has checked that the place lies in the mapping and is aligned.
        // It lives as long as `self`; kernel and process access it atomically only.
        unsafe { &*self.rings.address(at).cast::<AtomicU32>() }
    }

    /// Number of entries that the kernel has not taken yet.
    fn pending(&self) -> u32 {
        let tail = self.index(self.submission.tail).load(Ordering::Relaxed);
        tail.wrapping_sub(self.index(self.submission.head).load(Ordering::Acquire))
    }

    /// Adds an entry to the submission queue. Returns false if the queue is full.
    ///
    /// # Safety
    /// What the entry points to must live until its completion was seen or `self` was dropped.
    pub(super) unsafe fn push(&mut self, sqe: &Entry128) -> bool {
        if self.pending() >= self.submission.len {
            return false;
        }
        let tail = self.index(self.submission.tail).load(Ordering::Relaxed);
        let at = (tail & (self.submission.len - 1)) as usize * size_of::<Entry128>();
        // SAFETY: the place lies in the mapping, and is aligned because the mapping is. The kernel
        // does not read it before the tail says so. An `Entry128` consists of plain integers.
        unsafe { std::ptr::copy_nonoverlapping(sqe, self.sqes.address(at).cast::<Entry128>(), 1) };
        self.index(self.submission.tail).store(tail.wrapping_add(1), Ordering::Release);
        true
    }

    /// Hands all added entries to the kernel.
    pub(super) fn submit(&self) -> Result<(), Errno> {
        // SAFETY: `push` has ensured that everything that the entries point to is valid.
        unsafe { io_uring_enter(&self.fd, self.pending(), 0, IoringEnterFlags::empty()) }.map(drop)
    }

    /// Hands all added entries to the kernel and waits for a completion. Fails with `ETIME` after
    /// `timeout`, unless an entry was handed over.
    pub(super) fn submit_and_wait(&self, timeout: Option<&Timespec>) -> Result<(), Errno> {
        let Some(timeout) = timeout else {
            // SAFETY: as in `submit`.
            return unsafe { io_uring_enter(&self.fd, self.pending(), 1, IoringEnterFlags::GETEVENTS) }.map(drop);
        };
        let timeout = io_uring_ptr::new(std::ptr::from_ref(timeout).cast_mut().cast());
        let arg = io_uring_getevents_arg { ts: timeout, ..Default::default() };
        let flags = IoringEnterFlags::GETEVENTS | IoringEnterFlags::EXT_ARG;
        // SAFETY: as in `submit`; `arg` and the timeout outlive the call, which only reads them.
        unsafe { io_uring_enter_arg(&self.fd, self.pending(), 1, flags, Some(&arg)) }.map(drop)
    }

    /// Whether no completion is left to take.
    pub(super) fn is_empty(&self) -> bool {
        let head = self.index(self.completion.head).load(Ordering::Relaxed);
        head == self.index(self.completion.tail).load(Ordering::Acquire)
    }

    /// Takes the next completion.
    pub(super) fn next_completion(&mut self) -> Option<Completion> {
        if self.is_empty() {
            return None;
        }
        let head = self.index(self.completion.head).load(Ordering::Relaxed);
        let at = self.completions_at + (head & (self.completion.len - 1)) as usize * size_of::<Completion>();
        // SAFETY: the place lies in the mapping and is aligned (`is_as_expected`). The kernel has
        // written it, since the tail is beyond it, and does not overwrite it before the head is.
        let completion = unsafe { self.rings.address(at).cast::<Completion>().read() };
        self.index(self.completion.head).store(head.wrapping_add(1), Ordering::Release);
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode::Nop;

    fn nop(user_data: u64) -> Entry128 {
        Entry128::from(Nop::new().build().user_data(user_data))
    }

    /// `None`, and the test is skipped, where the kernel has no io_uring or an old one.
    fn uring(entries: u32) -> Option<Uring> {
        let file = std::fs::File::open("/dev/null").unwrap();
        let uring = Uring::new(entries, std::os::fd::AsFd::as_fd(&file));
        uring.inspect_err(|error| testkit::skip(format!("io_uring is not available: {error}"))).ok()
    }

    #[test]
    fn entries_complete_in_order_and_the_indices_wrap() {
        let Some(mut uring) = uring(4) else { return };
        for first in (0..40).step_by(4) {
            for number in first..first + 4 {
                // SAFETY: the operation points to nothing.
                assert!(unsafe { uring.push(&nop(number)) });
            }
            // SAFETY: as above.
            assert!(!unsafe { uring.push(&nop(0)) }, "the queue is full");
            uring.submit_and_wait(None).unwrap();
            for number in first..first + 4 {
                let completion = uring.next_completion().unwrap();
                assert_eq!((completion.user_data, completion.result, completion.has_more()), (number, 0, false));
            }
            assert!(uring.is_empty() && uring.next_completion().is_none());
        }
    }

    #[test]
    fn waiting_ends_after_the_timeout() {
        let Some(uring) = uring(4) else { return };
        let timeout = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        assert_eq!(uring.submit_and_wait(Some(&timeout)), Err(Errno::TIME));
    }

    #[test]
    fn memory_of_the_process_does_not_keep_the_instance() {
        let Some(uring) = uring(4) else { return };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("io_uring"), "{maps}");
        drop(uring);
    }
}
