//! The commands: options become a stack of layers, and the stack a server.
//!
//! One binary has all of them and looks at the name it is called by:
//!
//! * `mount.strata`, `mount.unionfs`, `mount.wrapfs` and so on for every layer (and `mount.fuse.TYPE`, which is what mount(8) runs at a
//!   remount): helpers of mount(8). The way of a mount: [`cmdline`] reads the arguments, [`options`] the list after `-o` (the
//!   general options: [`flags`]); escapes, options of layers and stacks in words are the crate `stack`'s; what the names stand for is in
//!   the [`registry`]. [`background`] starts the process that serves; there [`helper`] checks the device ([`device`]) and the
//!   [`mod@stack`], which is a [`tree`] of layers whose [`leaf`]s are directories (each at a [`place`]), builds it unless it is mounted
//!   [`already`], mounts it, says that it is ready, and waits. [`remount`] changes flags.
//! * `strata`: mounts, lists [`layers`], begins a [`new`] one, looks at mounts ([`stats`], [`draw`] from the server's [`report`], [`lower`], [`debug`]), and writes
//!   manual pages and completions ([`strata`], [`man`]).
//!
//! * `usenetctl`, which is `strata usenet` as well: [`usenetctl`].
//!
//! Every exit status stands in [`exit`].
#![forbid(unsafe_code)]

pub mod already;
mod atime;
pub mod background;
pub mod channel;
pub mod check;
pub mod cmdline;
pub mod control;
pub mod debug;
pub mod device;
pub mod draw;
pub mod exit;
pub mod flags;
pub mod helper;
pub mod layers;
pub mod leaf;
pub mod logging;
pub mod lower;
pub mod man;
pub mod mountinfo;
pub mod new;
pub mod options;
pub mod place;
pub mod process;
pub mod progress;
pub mod registry;
pub mod remount;
pub mod report;
pub mod signals;
pub mod stack;
pub mod stats;
pub mod strata;
pub mod sync;
pub mod syslog;
pub mod tree;
pub mod usenetctl;

use exit::Exit;
use options::Type;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

/// Does what the name in the first argument asks for.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    if args.first().is_some_and(|name| usenetctl::is_called(name.as_bytes())) {
        return usenetctl::run(args);
    }
    match args.first().and_then(|name| Type::from_program(name.as_bytes())) {
        Some(kind) => helper::run(kind, args),
        None => strata::run(args),
    }
}
