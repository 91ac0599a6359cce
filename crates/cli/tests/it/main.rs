//! The integration tests of `cli`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod callers;
mod changes;
mod common;
mod crypt;
mod crypt_bound;
mod docs;
mod ends;
mod fsck;
mod fsck_versionfs;
mod install;
mod mount;
mod oci;
mod option_tables;
mod plugins;
mod sandbox;
mod stacks;
mod version_policies;
mod versions;
mod world;
