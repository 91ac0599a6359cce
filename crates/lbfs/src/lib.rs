//! The load-balancing layer: presents one read-only tree, of which several replicas exist, and
//! distributes requests among them.
//!
//! * A lookup assigns a file to one replica, which the [`Policy`] selects. A directory stands for
//!   the directories of all replicas; each of these is looked up when it is first needed. Every
//!   vnode has its parent and its name, so an object can be found again on a replica that has
//!   recovered.
//! * If a call fails because of the replica, not of the file, it is retried on another replica.
//!   Open files move, too.
//! * A replica whose layer may hang is called on a separate thread pool, whose threads can be
//!   abandoned. The caller waits until the deadline at most.
//! * A failed replica receives only probes until one succeeds. Its share of new files then grows
//!   gradually.
//! * Inode numbers are derived from paths, so they do not depend on the replica and survive a
//!   remount.
//! * Some lookups are compared between replicas to detect differences.
//!
//! | concept | file |
//! |---|---|
//! | options; the layer type; the layer | `options`, `declare`, `layer` |
//! | a replica, its counters | `replica`, `stats` |
//! | the health of replicas; probes of failed ones | `health`, `prober` |
//! | selection of a replica | `chooser`, `rng` |
//! | state that all vnodes share | `shared` |
//! | an object, and its lookup on a replica | `node`, `locate` |
//! | inode numbers: of paths, of hard links; live objects; objects by number | `identity`, `hard_links`, `table`, `by_number` |
//! | classification of failures | `fault` |
//! | one call: its deadline, its accounting, its thread | `deadline`, `call`, `timed_call` |
//! | retries on other replicas | `attempts`, `recent_timeouts`, `failover` |
//! | lookup; directory listings; open files; all other operations | `lookup`, `readdir` and `listing`, `file`, `vnode_impl` |
//! | comparison of replicas | `version`, `differences`, `compare` |
//! | the command `lbfs.replicas` | `report` |
//!
//! Modules import each other without cycles, which `scripts/import-cycles.sh lbfs` checks. `shared`
//! is generic over the vnode type, so that it does not import `node`.
//!
//! docs/lbfs.md has the guarantees and their limits.
#![forbid(unsafe_code)]

mod attempts;
mod by_number;
mod call;
mod chooser;
mod compare;
mod deadline;
mod declare;
mod differences;
mod failover;
mod fault;
mod file;
mod hard_links;
mod health;
mod identity;
mod layer;
mod listing;
mod locate;
mod lookup;
mod node;
mod options;
mod prober;
mod readdir;
mod recent_timeouts;
mod replica;
mod report;
mod rng;
mod shared;
mod stats;
mod table;
mod timed_call;
mod version;
mod vnode_impl;

pub use declare::LAYER;
pub use layer::{LbFs, MakeError};
pub use options::{Isolate, Options, Policy};
pub use replica::{MAX_REPLICAS, Source};

#[cfg(test)]
mod tests;
