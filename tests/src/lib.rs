//! End-to-end tests on mounted file systems, and the support code that they share.
//!
//! A test begins with a [`Sandbox`]: a private mount namespace with a tmpfs at `/mnt`, ext4 file
//! systems in loop images on that tmpfs, and a watchdog. In the sandbox a test creates a
//! [`Mounted`]: a union, the null layer, a stack, or a native file system to compare with. Dropping
//! the sandbox removes everything in it, even after a failure: mounts, loop devices, servers and
//! files.
//!
//! The tests are in `tests/`, one target per subject. docs/testing.md lists the targets.
//!
//! Tests fail by panicking, so this crate may use `expect` and `panic`.

#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::missing_panics_doc)]

pub mod acl;
mod counters;
pub mod crypt;
mod fixture;
pub mod handle;
pub mod mapping;
mod mounted;
pub mod oracle;
pub mod process;
mod sandbox;
pub mod session;
pub mod shell;
pub mod suite;
pub mod tree;
pub mod user;
pub mod versions;
mod watchdog;

pub use counters::Requests;
pub use fixture::Fixture;
pub use mounted::{Branch, Delete, Mode, Mounted, Spec, Transport, unmount_soon};
pub use sandbox::Sandbox;
pub use testkit::{Rng, long};

/// Defines two tests for each function `fn(Transport)`: one in module `ring`, one in module
/// `device`.
#[macro_export]
macro_rules! on_both_transports {
    ($($name:ident),* $(,)?) => {
        mod ring {
            $( #[test] fn $name() { super::$name($crate::Transport::Ring); } )*
        }
        mod device {
            $( #[test] fn $name() { super::$name($crate::Transport::Device); } )*
        }
    };
}

/// File system that replaces Strata, to check the tests themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandIn {
    /// `STRATA_STANDIN=overlay`: overlayfs for unions, bind mounts for the null layer.
    Overlay,
    /// `STRATA_STANDIN=native`: all branches merged into the leftmost one, which is bind-mounted. A
    /// test that fails on it is wrong.
    Native,
}

/// Returns the file system that replaces Strata, if `STRATA_STANDIN` selects one.
#[must_use]
pub fn stand_in() -> Option<StandIn> {
    match std::env::var("STRATA_STANDIN").as_deref() {
        Ok("overlay") => Some(StandIn::Overlay),
        Ok("native") => Some(StandIn::Native),
        _ => None,
    }
}
