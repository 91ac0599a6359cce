#![forbid(unsafe_code)]
//! What the *upper* branch of a union changes against the branches below it.
//!
//! [`Branches`] are the branches of a union that is not mounted: the upper one, the *target* right
//! below it, and those below that. [`Branches::changes`] compares the union of all branches with
//! the union of those below the upper one. [`Branches::commit`] moves changes to the target,
//! [`Branches::discard`] drops them.
//!
//! A commit never changes the union of all branches. While the upper branch has a record of a path
//! (a file, whiteout or mark), it hides that path on the target. So the target gets the new state
//! first, durably, and then the record is removed from the upper branch. The next run completes a
//! commit that was killed: a path that the target already has in its new state compares as equal,
//! and only its record is removed from the upper branch.
//!
//! | concept | file |
//! |---|---|
//! | the branches, views of them | `branches` |
//! | a change; finding changes | `change`, `find` |
//! | comparing two objects | `compare` |
//! | paths that the user selects | `select` |
//! | text differences | `text` |
//! | files of the target that changed meanwhile | `conflict`, `own_times` |
//! | copies of objects, built aside | `copy`, `temp` |
//! | applying changes to the target | `commit`, `target` |
//! | removing records of the upper branch that have no effect any more | `prune` |
//! | dropping changes | `discard` |
//! | copying what a renamed directory merges | `unfold` |
//! | the order in which snapshots are merged | `merge` |
//! | after a kill | `journal` |
//! | whiteouts above unknown branches | `marks` |
//! | records that lead to branches that are not given | `missing` |
//! | branches as image layers | `oci` |
//! | small operations on vnodes; errors | `ops`, `error` |

mod branches;
mod change;
mod commit;
mod compare;
mod conflict;
mod copy;
mod discard;
mod error;
mod find;
mod journal;
mod marks;
mod merge;
mod missing;
pub mod oci;
mod ops;
mod own_times;
mod prune;
mod select;
mod target;
mod temp;
mod text;
mod unfold;

pub use branches::{Branches, Floor, Source};
pub use change::{Change, ChangeKind, Conflict, ConflictKind, Facts};
pub use commit::{CommitOptions, Outcome, Progress};
pub use error::{Error, Failed};
pub use journal::NAME as JOURNAL;
pub use merge::MergeStep;
pub use prune::OWN_FILES;
pub use select::Selection;
pub use text::{Text, Texts};
