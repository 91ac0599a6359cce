//! The oracle: the same random operations on the native file system and on another one must have the same outcomes and leave
//! the same tree.
//!
//! * [`population`]: the tree from which a run starts;
//! * [`op`]: what can be done, and doing it;
//! * [`plan`]: which operations are chosen, from a seed;
//! * [`run`]: doing them side by side, and comparing.

mod op;
mod plan;
pub mod population;
mod run;

pub use op::Step;
pub use run::Oracle;
