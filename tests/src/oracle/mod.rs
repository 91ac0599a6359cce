//! The oracle: the same random operations on the native file system and on another one must have the same outcomes and leave
//! the same tree.
//!
//! * [`population`]: the tree from which a run starts;
//! * [`op`]: what can be done, and doing it;
//! * [`parts`]: how far it may have got when the server died;
//! * [`plan`]: which operations are chosen, from a seed;
//! * [`run`]: doing them side by side, and comparing.

mod op;
mod parts;
mod plan;
pub mod population;
mod run;

pub use run::{Interrupted, Oracle};
