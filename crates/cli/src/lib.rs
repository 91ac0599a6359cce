//! The commands: options become a stack of layers, and the stack a server.
//!
//! One binary has all of them and looks at the name it is called by:
//!
//! * `mount.unionfs`, `mount.wrapfs`, `mount.lbfs` (and `mount.fuse.TYPE`, which is what mount(8) runs at a remount): helpers of mount(8).
//!   The way of a mount: [`cmdline`] reads the arguments, [`options`] the list after `-o` (its escapes: [`text`], its
//!   branches: [`branches`], the general options: [`flags`]); [`background`] starts the process that serves; there
//!   [`helper`] checks the directories ([`place`]) and the device ([`device`]), builds the [`stack`], mounts it, says that it
//!   is ready, and waits. The directories of a load-balanced mount ([`replicas`]) are not touched before that, since they may hang.
//!   [`remount`] changes flags.
//! * `strata`: looks at mounts ([`stats`]), and writes manual pages and completions ([`strata`], [`man`]).
//!
//! Every exit status stands in [`exit`].
#![forbid(unsafe_code)]

pub mod background;
pub mod branches;
pub mod cmdline;
pub mod device;
pub mod exit;
pub mod flags;
pub mod helper;
pub mod logging;
pub mod man;
pub mod mountinfo;
pub mod options;
pub mod place;
pub mod process;
pub mod remount;
pub mod replicas;
pub mod signals;
pub mod stack;
pub mod stats;
pub mod strata;
pub mod syslog;
pub mod text;

use exit::Exit;
use options::Type;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

/// Does what the name in the first argument asks for.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    match args.first().and_then(|name| Type::from_program(name.as_bytes())) {
        Some(kind) => helper::run(kind, args),
        None => strata::run(args),
    }
}
