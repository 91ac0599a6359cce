//! The integration tests of `versionfs`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod audit;
mod cleaner;
mod clock;
mod common;
mod conformance;
mod deep;
mod fsck;
mod hostile;
mod lost;
mod model;
mod other_heads;
mod passthrough;
mod past_mount;
mod reports;
mod review;
mod scale;
mod space;
mod space_links;
