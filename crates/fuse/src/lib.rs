//! The FUSE kernel protocol, its two transports, and mounting. No file-system policy.
//!
//! A [`Filesystem`] answers requests; [`Session::mount`] attaches it to the tree and serves it until it is unmounted. The
//! kernel's own structures ([`abi`]) are the types of the interface: nothing is translated on the way.
//!
//! Requests come one of two ways, and a handler does not notice which:
//!
//! * **the ring** (`ring`, Linux 6.14 and newer): io_uring queues, one per CPU, one system call per request;
//! * **the device** (`device`): `/dev/fuse`, read by a pool of threads. FORGET and INTERRUPT always come this way.
//!
//! Both end in one dispatcher (`dispatch`), which turns bytes into the call of a handler and its answer into bytes. It does
//! no I/O and takes any bytes without harm.
//!
//! `unsafe` is confined to `sys` (ioctls, memory), `ring::sqe` (submission queue entries) and `ring::queue` (their
//! submission).

pub mod abi;
mod backing;
mod backlog;
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
mod heap;
mod inflight;
mod init;
mod mount;
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
#[path = "../tests/common/dummy.rs"]
#[allow(unreachable_pub, reason = "shared with the integration tests")]
mod dummy;

pub use backing::BackingId;
pub use counters::CounterSnapshot;
pub use dirbuf::DirBuf;
pub use error::MountError;
pub use filesystem::{Filesystem, Reply};
pub use heap::trim_heap;
pub use init::{Agreed, Wish};
pub use mount::{Flags, MountOptions, Mounter, Transport};
pub use notify::Notifier;
pub use opcode::Opcode;
pub use request::Request;
pub use rustix::io::Errno;
pub use session::Session;

/// "This would take long": answered by a handler, before it changed anything, where [`Request::may_block`] is false. The
/// handler is then called again on a thread that may wait.
///
/// The number is the kernel-internal `EIOCBQUEUED`, which never reaches a program.
pub const MAY_BLOCK: Errno = Errno::from_raw_os_error(529);
