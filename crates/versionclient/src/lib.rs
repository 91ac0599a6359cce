//! Old versions of files on a mounted versionfs, for programs in Rust (Versionfs paper, section
//! 3.4). docs/versionfs-commands.md describes the commands that this crate sends, and
//! `include/versionfs.h` is the same interface for C.
//!
//! ```no_run
//! use versionclient::Directory;
//!
//! let dir = Directory::open("/mnt/reports")?;
//! let Some(list) = dir.versions(b"june.txt")? else { return Ok(()) };
//! for version in &list.versions {
//!     println!("{}: {} bytes, until {}", version.number, version.size, version.died);
//! }
//! if let Some(newest) = list.versions.last() {
//!     let mut copy = std::fs::File::create("/tmp/june.txt").unwrap();
//!     dir.recover(b"june.txt", newest.number, &mut copy).unwrap();
//! }
//! # Ok::<(), versionclient::Error>(())
//! ```
//!
//! | to | use | file |
//! |---|---|---|
//! | send commands to a directory of the mount, open old versions | [`Directory`] | `directory` |
//! | read replies: versions, names, origins, the audit log | [`List`], [`Version`], [`Named`], [`LogLine`] | `reply` |
#![forbid(unsafe_code)]

mod directory;
mod reply;

pub use directory::Directory;
pub use fuse::control::Error;
pub use reply::{
    Kind, List, LogLine, Lost, Named, Origin, Recorded, Set, Version, Who, Why, escape, list, log, lost, names,
    origins, tags, time, time_field, unescape,
};
