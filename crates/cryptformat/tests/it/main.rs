//! The integration tests of `cryptformat`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod config;
mod content;
mod fixtures;
mod names;
mod seals;
