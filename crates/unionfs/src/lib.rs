#![forbid(unsafe_code)]
//! Several directories unified into one: the stackable union of the papers.
//!
//! A [`Unionfs`] is a [`vnode::Layer`] over several others, its *branches*. A union vnode holds the lower vnodes that it
//! shows: the leftmost one of a file, all of a directory (`node`, `table`). Everything else is found by its concept:
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
//! | making, removing, renaming | `create`, `remove`, `rmdir`, `rename`, `rename_dir`, `exchange` |
//! | beginning anew when overtaken | `retry` |
//! | marks that users write by name | `unpack` |
//! | files of several names | `hardlink` |
//! | numbers that stay | `identity`, `log`, `logfile` |
//! | what is unfinished | `work` |
//! | removing from a full branch | `spare` |
//! | the union's own names in a branch's root | `ownfiles` |
//!
//! How it decides, and its locks: docs/unionfs.md. What it writes into branches: docs/formats/union-branch.md.

mod attr;
mod branch;
mod build;
mod change;
mod copydata;
mod copyup;
mod core;
mod create;
mod current;
mod declare;
mod exchange;
mod file;
mod gate;
mod hardlink;
mod identity;
mod jobs;
mod listing;
mod log;
mod logfile;
mod lookup;
mod marks;
mod movers;
mod names;
mod node;
mod op;
mod options;
mod ownfiles;
mod parents;
mod readdir;
mod remove;
mod rename;
mod rename_dir;
mod retry;
mod revalidate;
mod rmdir;
mod set;
mod shortname;
mod spare;
mod table;
mod trust;
mod unpack;
mod vnode_impl;
mod whiteout;
mod work;
mod xattr;

pub use build::Unionfs;
pub use change::BranchChange;
pub use declare::LAYER;
pub use options::{Branch, BuildError, Copyup, Delete, LowerFiles, Mode, Numbers, Options, Whiteouts};
