//! The command-line programs, all in one binary. It selects a program by the name in `argv[0]`:
//!
//! * `mount.TYPE` (`mount.strata`, `mount.unionfs` and so on for every layer) is a helper of
//!   mount(8). mount(8) runs `mount.fuse.TYPE` for a remount.
//! * `strata` mounts stacks, inspects mounts and creates layers: module [`strata`].
//! * `unionctl` is the same as `strata union`: module [`unionctl`].
//! * `usenetctl` is the same as `strata usenet`: module [`usenetctl`].
//!
//! A mount passes through these modules:
//!
//! 1. [`cmdline`] reads the arguments, and [`options`] the list after `-o`. [`flags`] has the
//!    options that mount(8) defines for every file system. The crate `stack` parses escapes,
//!    options of layers and stack descriptions; [`registry`] maps names to layers.
//! 2. [`background`] starts the server process and waits for its result.
//! 3. In the server process, [`helper`] checks the [`device`] and the [`mod@stack`]. A stack is a
//!    [`tree`] of layers whose [`leaf`] nodes are host directories, each opened as a [`host_dir`].
//! 4. [`already_mounted`] refuses a second mount of the same stack at the same place.
//! 5. [`helper`] builds the stack, mounts it, reports readiness to the parent and waits for the
//!    unmount.
//!
//! While it is mounted, [`live`] lists and changes the branches of a union for [`branches`], which
//! [`unionctl`] and [`remount`] use (`edits` reads the options of a remount). [`users`] finds the
//! processes that prevent a change. [`remount`] also changes the flags of a mount. The subcommands
//! of `strata` have a module each: [`layers`], [`new`], [`stats`], [`draw`] (from the server's
//! [`report`]), [`lower`], [`debug`], [`control`], [`sync`], [`check`] and [`man`].
//!
//! [`exit`] lists every exit status.
#![forbid(unsafe_code)]

pub mod already_mounted;
mod atime;
pub mod background;
pub mod branches;
pub mod channel;
pub mod check;
pub mod cmdline;
pub mod control;
pub mod debug;
pub mod device;
pub mod draw;
pub mod edits;
pub mod exit;
pub mod flags;
pub mod helper;
pub mod host_dir;
pub mod layers;
pub mod leaf;
pub mod live;
pub mod logging;
pub mod lower;
pub mod man;
pub mod mountinfo;
pub mod new;
pub mod options;
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
mod tool;
pub mod tree;
pub mod unionctl;
pub mod usenetctl;
pub mod users;

use exit::Exit;
use options::Type;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

/// Runs the program that the first argument names.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    if args.first().is_some_and(|name| usenetctl::is_called(name.as_bytes())) {
        return usenetctl::run(args);
    }
    if args.first().is_some_and(|name| unionctl::is_called(name.as_bytes())) {
        return unionctl::run(args);
    }
    match args.first().and_then(|name| Type::from_program(name.as_bytes())) {
        Some(kind) => helper::run(kind, args),
        None => strata::run(args),
    }
}
