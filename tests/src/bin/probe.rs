//! Does in a process of its own what a test needs another process for.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

fn main() {}
