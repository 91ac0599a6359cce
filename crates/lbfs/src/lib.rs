//! The load-balancing layer: one read-only tree from several replicas of it, which are asked in turn.
//!
//! * A file belongs to one replica from the look-up on, chosen by the [`Policy`]; a directory stands for the directories of all
//!   replicas, each of which is found when it is first needed. Every vnode knows its parent and its name, so a
//!   replica that was away is entered again from its root.
//! * A call that fails because of the replica, not of the file, is made again on another one; open files move too.
//! * A replica whose layer may hang is called on threads of its own, which can be given up. The caller waits until
//!   the deadline and no longer.
//! * A replica that fails is left alone and probed until it answers; then it gets its share back little by little.
//! * Numbers come from paths, so they are the same whichever replica answers, and after a remount.
//! * Replicas that differ are found by comparing some of what is looked up.
//!
//! | concept | file |
//! |---|---|
//! | what users choose; the layer as a type, and as a layer | `options`, `declare`, `layer` |
//! | a replica, its threads, its counters | `replica`, `pool`, `stats` |
//! | what is believed of replicas; probing those that failed | `health`, `keeper` |
//! | choosing among replicas | `chooser`, `rng` |
//! | what all vnodes share | `shared` |
//! | an object, and finding it on a replica | `node`, `locate` |
//! | numbers: of paths, of files with several names; live objects; objects by number | `identity`, `links`, `table`, `by_number` |
//! | why a replica gave no answer, and whose fault that is | `fault` |
//! | one call: its caller and its deadline; counting, timing and blaming | `caller`, `deadline`, `call` |
//! | which replica is asked next, and asking until one answers | `attempts`, `gave_up`, `failover` |
//! | finding a name; listing; open files; all other operations | `lookup`, `readdir` and `listing`, `file`, `vnode_impl` |
//! | replicas that differ | `version`, `differences`, `compare` |
//! | the command `lbfs.replicas` | `report` |
//!
//! Modules import each other downward only: `scripts/import-cycles.sh lbfs`. `shared` is generic over the vnode, so that it lies
//! below it.
//!
//! What is promised, and what is not: docs/lbfs.md.
#![forbid(unsafe_code)]

mod attempts;
mod by_number;
mod call;
mod caller;
mod chooser;
mod compare;
mod deadline;
mod declare;
mod differences;
mod failover;
mod fault;
mod file;
mod gave_up;
mod health;
mod identity;
mod keeper;
mod layer;
mod links;
mod listing;
mod locate;
mod lookup;
mod node;
mod options;
mod pool;
mod readdir;
mod replica;
mod report;
mod rng;
mod shared;
mod stats;
mod table;
mod version;
mod vnode_impl;

pub use declare::LAYER;
pub use layer::{LbFs, MakeError};
pub use options::{Isolate, Options, Policy};
pub use replica::{MAX_REPLICAS, Source};

#[cfg(test)]
mod tests;
