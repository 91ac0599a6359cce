//! The load-balancing layer: one read-only tree from several replicas of it, which are asked in turn.
//!
//! * A file belongs to one replica from the look-up on, chosen by the [`Policy`]; a directory stands for the directories of all
//!   replicas, each of which is found when it is first needed. Every vnode knows its parent and its name, so a
//!   replica that was away is entered again from its root ([`node`]).
//! * A call that fails because of the replica, not of the file, is made again on another one ([`failover`]); open files move
//!   too ([`file`]). Which errors these are: [`blame`].
//! * A replica whose layer may hang is called on threads of its own, which can be given up ([`pool`]). The caller waits until
//!   the deadline and no longer.
//! * A replica that fails is left alone and probed until it answers ([`health`], [`keeper`]); then it is given its share back little by
//!   little.
//! * Numbers come from paths, so they are the same whichever replica answers, and after a remount ([`identity`]).
//! * Replicas that differ are found by comparing some of what is looked up ([`compare`]).
//!
//! What is promised, and what is not: docs/lbfs.md.
#![forbid(unsafe_code)]

mod blame;
mod by_number;
mod chooser;
mod compare;
mod declare;
mod failover;
mod file;
mod health;
mod identity;
mod keeper;
mod layer;
mod links;
mod listing;
mod lookup;
mod node;
mod options;
mod pool;
mod replica;
mod rng;
mod stats;
mod table;
mod vnode_impl;

pub use declare::LAYER;
pub use layer::{LbFs, MakeError};
pub use options::{Isolate, Options, Policy};
pub use replica::{MAX_REPLICAS, Source};

#[cfg(test)]
mod tests;
