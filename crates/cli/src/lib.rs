//! The command-line programs, all in one binary. It selects a program by the name in `argv[0]`:
//!
//! * `mount.TYPE` (`mount.strata`, `mount.unionfs` and so on for every layer) is a helper of
//!   mount(8). mount(8) runs `mount.fuse.TYPE` for a remount.
//! * `umount.TYPE` is a helper of umount(8): module [`umount`].
//! * `strata` mounts stacks, inspects mounts and creates layers: module [`strata`].
//! * `unionctl` is the same as `strata union`: module [`unionctl`].
//! * `uniondbg` is the same as `strata union-debug`: module [`uniondbg`].
//! * `fsck.unionfs` is the same as `strata fsck`: module [`mod@fsck`].
//! * `fsck.versionfs` checks and repairs version sets: module [`fsck_versionfs`].
//! * `snapmerge` is the same as `strata snapmerge`: module [`snapmerge`].
//! * `usenetctl` is the same as `strata usenet`: module [`usenetctl`].
//! * `cryptctl` is the same as `strata crypt`: module [`cryptctl`].
//! * `versionctl` is the same as `strata versions`: module [`versionctl`].
//!
//! A mount passes through these modules:
//!
//! 1. [`cmdline`] reads the arguments, and [`options`] the list after `-o`. [`flags`] has the
//!    options that mount(8) defines for every file system. The crate `stack` parses escapes,
//!    options of layers and stack descriptions; [`registry`] maps names to layers.
//! 2. [`background`] starts the server process and waits for its result.
//! 3. In the server process, [`helper`] checks the [`device`] and the [`mod@stack`]. A stack is a
//!    [`tree`] of layers whose [`leaf`] nodes are host directories, each opened as a [`host_dir`].
//! 4. [`already_mounted`] refuses a second mount of the same stack at the same place, and a mount
//!    over one whose server has exited. [`hung_mounts`] asks other mounts without waiting for those
//!    that hang.
//! 5. [`helper`] builds the stack, mounts it, reports readiness to the parent and waits for the
//!    unmount, or for the end of its mount namespace ([`namespace_end`]).
//!
//! While it is mounted, [`live`] lists and changes the branches of a union for [`branches`], which
//! [`unionctl`] and [`remount`] use (`edits` reads the options of a remount). [`users`] finds the
//! processes that prevent a change. [`remount`] also changes the flags of a mount. The subcommands
//! of `strata` have a module each: [`layers`], [`new`], [`stats`], [`draw`] (from the server's
//! [`report`]), [`lower`], [`debug`], [`control`], [`views`],
//! [`sync`], [`check`], [`man`], and [`sandbox`] for `strata run`.
//!
//! [`exit`] lists every exit status.
#![forbid(unsafe_code)]

pub mod already_mounted;
mod archive;
mod atime;
pub mod background;
pub mod branches;
pub mod change_list;
pub mod channel;
pub mod check;
pub mod cmdline;
pub mod commit;
pub mod control;
mod crypt_host;
pub mod cryptctl;
pub mod debug;
pub mod device;
pub mod diff;
pub mod draw;
pub mod edits;
pub mod exit;
pub mod export;
pub mod flags;
pub mod fsck;
pub mod fsck_versionfs;
pub mod helper;
pub mod histogram;
pub mod host_dir;
pub mod hung_mounts;
pub mod import;
pub mod layers;
pub mod leaf;
pub mod live;
pub mod logging;
pub mod lower;
pub mod man;
pub mod mountinfo;
pub mod moves;
pub mod namespace_end;
pub mod new;
pub mod offline;
pub mod options;
mod policy_program;
pub mod process;
pub mod progress;
pub mod registry;
pub mod remount;
pub mod report;
pub mod sandbox;
pub mod signals;
pub mod snapmerge;
pub mod sole_layer;
pub mod stack;
pub mod stats;
pub mod strata;
pub mod sync;
pub mod syslog;
mod tool;
pub mod tree;
pub mod umount;
pub mod unionctl;
pub mod uniondbg;
pub mod usenetctl;
pub mod users;
pub mod version_policies;
pub mod versionctl;
pub mod views;

use options::Type;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;

/// Runs the program that the first argument names.
#[must_use]
pub fn run(args: &[OsString]) -> ExitCode {
    let program = args.first().map(|name| name.as_bytes()).unwrap_or_default();
    if sandbox::is_called(program) {
        return sandbox::run_stage(args).into();
    }
    if hung_mounts::is_called(program) {
        return hung_mounts::run(args).into();
    }
    if usenetctl::is_called(program) {
        return usenetctl::run(args).into();
    }
    if cryptctl::is_called(program) {
        return cryptctl::run(args);
    }
    if versionctl::is_called(program) {
        return versionctl::run(args).into();
    }
    if unionctl::is_called(program) {
        return unionctl::run(args).into();
    }
    if uniondbg::is_called(program) {
        return uniondbg::run(args).into();
    }
    if fsck_versionfs::is_called(program) {
        return fsck_versionfs::run(args).into();
    }
    if fsck::is_called(program) {
        return fsck::run(args).into();
    }
    if snapmerge::is_called(program) {
        return snapmerge::run(args).into();
    }
    if umount::is_called(program) {
        return umount::run(args).into();
    }
    match Type::from_program(program) {
        Some(kind) => helper::run(kind, args).into(),
        None => strata::run(args),
    }
}
