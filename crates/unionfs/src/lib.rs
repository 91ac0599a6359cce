#![forbid(unsafe_code)]
//! Several directories unified into one: the stackable union of the papers.
//!
//! A [`Unionfs`] is a [`vnode::Layer`] over several others, its *branches*. A union vnode holds the lower vnodes that it
//! shows: the leftmost one of a file, all of a directory (`node`; one vnode for each object: `intern`, `table`). Everything else is found by its concept:
//!
//! | concept | file |
//! |---|---|
//! | what users choose, and why a union can't be made | `declare`, `options`, `build` |
//! | a branch; the set of them and their order; the present set | `branch`, `set`, `current` |
//! | changing the set while the union is in use; who waits for that; bringing vnodes up to it | `change`, `gate`, `revalidate` |
//! | what all vnodes share, and on which branch a change goes; what one operation goes by | `core`, `op` |
//! | finding a name: left to right, whiteouts, merging | `lookup` |
//! | names that are kept from users; hiding | `whiteout` |
//! | opaque directories and redirects | `marks` |
//! | records that only the server can have made | `trust` |
//! | listing | `readdir` |
//! | attributes, extended attributes, open files | `attr`, `xattr`, `file` |
//! | copy-up | `copyup`, `copydata`, `parents` (of directories), `jobs` and `movers` (who waits for whom) |
//! | copy-up of attributes without data | `copymeta`; what comes of it, and how that is found: `metacopy` |
//! | making, removing, renaming | `create`, `remove`, `rmdir`, `rename`, `rename_dir`, `exchange` |
//! | beginning anew when overtaken | `retry` |
//! | marks that users write by name | `unpack` |
//! | commands for the layers of branches | `control` |
//! | files of several names: the index of copies, counting, after a crash | `links`, `index`, `counting`, `recovery` |
//! | numbers that stay | `numbers`, `identity`, `log`, `logfile` |
//! | file handles: objects by number | `by_number` |
//! | what is unfinished | `work` |
//! | removing from a full branch | `freeing`, `spare` |
//! | the union's own names in a branch's root | `ownnames`, `ownfiles` |
//! | what is not said twice in the log; times that stay | `said`, `times` |
//! | values whose size is asked first | `sized` |
//!
//! Modules import each other downward only: `scripts/import-cycles.sh unionfs`. `core` is generic over the vnode, so that it lies below it.
//!
//! Design and lock order: docs/design/unionfs.md. Records on disk: docs/formats/union-branch.md.

mod attr;
mod branch;
mod build;
mod by_number;
mod change;
mod control;
mod copydata;
mod copymeta;
mod copyup;
mod core;
mod counting;
mod create;
mod current;
mod declare;
mod exchange;
mod file;
mod freeing;
mod gate;
mod identity;
mod index;
mod intern;
mod jobs;
mod links;
mod listing;
mod log;
mod logfile;
mod lookup;
mod marks;
mod metacopy;
mod movers;
mod names;
mod node;
mod numbers;
mod op;
mod options;
mod ownfiles;
mod ownnames;
mod parents;
mod readdir;
mod recovery;
mod remove;
mod rename;
mod rename_dir;
mod retry;
mod revalidate;
mod rmdir;
mod said;
mod set;
mod shortname;
mod sized;
mod spare;
mod table;
mod times;
mod trust;
mod unpack;
mod vnode_impl;
mod whiteout;
mod work;
mod xattr;

pub use build::Unionfs;
pub use change::BranchChange;
pub use declare::LAYER;
pub use options::{Branch, BuildError, Copyup, Delete, LowerFiles, Metacopy, Mode, Numbers, Options, Whiteouts};
