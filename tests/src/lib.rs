//! What is tested on mounted file systems, and what the tests stand on.
//!
//! A test begins with a [`Sandbox`]: its own mount namespace, a tmpfs at `/mnt` that only this test can see, ext4 file
//! systems in loop images on that tmpfs, and a watchdog. What a test mounts in it is a [`Mounted`]: a union, the null
//! layer, overlayfs as a stand-in, or nothing at all (the native file system, with which all is compared). When the sandbox
//! goes, so does everything in it, whatever state a failed test left it in: mounts, loop devices, servers, files.
//!
//! The tests themselves are in `tests/`, one target per subject; docs/testing.md says what is tested where.
//!
//! Tests panic when something is wrong; that is their way to fail, so this crate uses `expect` and `panic` freely.

#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::missing_panics_doc)]

pub mod acl;
mod counters;
mod fixture;
pub mod handle;
pub mod mapping;
mod mounted;
pub mod oracle;
pub mod process;
mod rng;
mod sandbox;
pub mod suite;
pub mod tree;
pub mod user;
mod watchdog;

pub use counters::Requests;
pub use fixture::Fixture;
pub use mounted::{Branch, Delete, Mode, Mounted, Spec, Transport};
pub use rng::Rng;
pub use sandbox::Sandbox;

/// Makes two tests of each function `fn(Transport)`: one in a module `ring`, one in a module `device`.
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

/// Whether the long form of the tests was asked for (`STRATA_TEST_LONG=1`): more seeds, longer runs.
#[must_use]
pub fn long() -> bool {
    std::env::var_os("STRATA_TEST_LONG").is_some_and(|v| v == "1")
}

/// What stands in for Strata: how the tests themselves are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandIn {
    /// `STRATA_STANDIN=overlay`: overlayfs for unions, bind mounts for the null layer.
    Overlay,
    /// `STRATA_STANDIN=native`: all branches copied into the leftmost, and that bind-mounted: what is right natively must be right.
    Native,
}

/// What stands in for Strata, if anything does.
#[must_use]
pub fn stand_in() -> Option<StandIn> {
    match std::env::var("STRATA_STANDIN").as_deref() {
        Ok("overlay") => Some(StandIn::Overlay),
        Ok("native") => Some(StandIn::Native),
        _ => None,
    }
}
