//! The FUSE kernel protocol, its two transports, and mounting. No file-system policy.
//!
//! A [`Filesystem`] handles requests. [`Session::mount`] mounts it and serves it until it is
//! unmounted. Handlers take and return the kernel's own structures ([`abi`]), so nothing is
//! translated in between.
//!
//! Requests arrive over one of two transports. A handler cannot tell them apart:
//!
//! * **the ring** (`ring`, Linux 6.14 and newer): io_uring queues, one per CPU, one system call per
//!   request;
//! * **the device** (`device`): `/dev/fuse`, read by a pool of threads. FORGET and INTERRUPT always
//!   arrive here.
//!
//! Both feed one dispatcher (`dispatch`), which decodes a request, calls the handler and encodes
//! the reply. It does no I/O and accepts arbitrary bytes safely.
//!
//! `unsafe` is confined to `sys` (ioctls, memory, scheduling, descriptor tables), `mount_user`
//! (descriptors of a thread with its own table), `ring::uring` (the queues shared with the kernel),
//! `ring::sqe` (building submission queue entries), `ring::queue` (submitting them), `ring::entry`
//! (`Send`), `ring::stall_recovery`, `mount` and `notice_thread` (starting such threads) and
//! `heap_trim` (malloc_trim(3)).

pub mod abi;
mod backing;
mod backlog;
mod callers;
pub mod control;
mod core;
mod counters;
mod device;
mod dirbuf;
mod dispatch;
mod error;
mod filesystem;
pub mod flags;
mod fusermount;
mod heap_trim;
mod inflight;
mod init;
mod latency;
mod mount;
mod mount_user;
mod notice_thread;
mod notify;
pub mod offline;
mod opcode;
mod pipe;
mod readahead;
mod request;
mod ring;
mod session;
mod sys;
mod trace;
mod workers;

#[cfg(test)]
extern crate self as fuse;
#[cfg(test)]
#[path = "../tests/it/common/dummy.rs"]
#[allow(unreachable_pub, reason = "shared with the integration tests")]
mod dummy;

pub use backing::BackingId;
pub use callers::proc_shows_callers;
pub use counters::CounterSnapshot;
pub use dirbuf::DirBuf;
pub use error::MountError;
pub use filesystem::{Filesystem, Reply};
pub use fusermount::unmount as unmount_as_user;
pub use heap_trim::trim_heap;
pub use init::{Agreed, InitConfig};
pub use latency::{BUCKETS, LatencySnapshot};
pub use mount::{Connection, Flags, MountOptions, Mounter, Transport};
pub use notify::{Notifier, expires_missing_names};
pub use opcode::Opcode;
pub use request::Request;
pub use rustix::io::Errno;
pub use session::Session;
pub use trace::hide_names_in_trace;

/// The error of a handler that would have to block although [`Request::may_block`] is false. The
/// handler must not have changed anything; it is called again on a thread that may block.
///
/// The number is that of the kernel-internal `EIOCBQUEUED`, which never reaches a program.
pub const MAY_BLOCK: Errno = Errno::from_raw_os_error(529);

/// Whether `file` is the only open file for its inode, which no process has open or mapped
/// otherwise. With `readers`, others may have it open or mapped for reading. False if the file
/// system can't tell.
#[must_use]
pub fn is_only_user(file: std::os::fd::BorrowedFd<'_>, readers: bool) -> bool {
    sys::is_only_user(file, readers)
}
