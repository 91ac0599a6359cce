#![forbid(unsafe_code)]
//! The union layer: several directories, its *branches*, merged into one tree.
//!
//! A [`Unionfs`] is a [`vnode::Layer`] over the layers of its branches. A union vnode refers to
//! lower vnodes: a file to the leftmost one of its name, a directory to all parts that it merges
//! (`node`). Each live object has one vnode (`intern`, `table`). All other files by concept:
//!
//! | concept | file |
//! |---|---|
//! | options, their validation, building a union | `declare`, `options`, `build` |
//! | a branch; the ordered set of branches; the current set | `branch`, `set`, `current` |
//! | changing the set of a union in use, excluding other changes | `change`, `gate` |
//! | the beginning of each operation; revalidating vnodes | `revalidate` |
//! | state shared by all vnodes, choice of branch; the context of one operation | `core`, `op` |
//! | lookup: left to right, whiteouts, merging | `lookup` |
//! | reserved names, whiteouts | `whiteout` |
//! | opaque marks and redirects | `opaque_redirect` |
//! | which records on disk are trusted | `trust` |
//! | listings: readdir; merged listings that are kept | `readdir`, `listing` |
//! | the lock on a directory's entries | `entry_lock` |
//! | attributes, extended attributes, open files | `attr`, `xattr`, `file` |
//! | copy-up of files: protocol, data and attributes | `copyup`, `copydata` |
//! | copies of directories; which branches can take one | `parents` |
//! | one copy-up of an object at a time; writes against moves | `jobs`, `write_gate` |
//! | copy-up of attributes without data: creating metacopies; using them | `copymeta`, `metacopy` |
//! | create, remove, rename | `create`, `remove`, `rmdir`, `rename`, `rename_dir`, `exchange` |
//! | retries after a race | `retry` |
//! | whiteouts and opaque marks created by users | `unpack` |
//! | control commands, passed to the branches' layers | `control` |
//! | hard links: the index of copies, in memory and on disk | `links`, `index` |
//! | link counts, and their recovery after a crash | `link_count`, `link_recovery` |
//! | persistent inode numbers | `numbers`, `identity`, `log`, `logfile` |
//! | file handles: objects by number | `by_number` |
//! | work directory | `work` |
//! | removals on a full branch | `full_branch`, `reserve` |
//! | the union's own names in a branch's root | `ownnames`, `ownfiles` |
//! | warnings logged once or rarely; restoring times | `logged_once`, `times` |
//! | values of unknown size; names stored inline | `read_sized`, `shortname` |
//! | every vnode operation, dispatched to the files above | `vnode_impl` |
//!
//! Modules import each other downward only: `scripts/import-cycles.sh unionfs`. `core` is generic
//! over the vnode type, so that it can lie below `node`.
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
mod create;
mod current;
mod declare;
mod entry_lock;
mod exchange;
mod file;
mod full_branch;
mod gate;
mod identity;
mod index;
mod intern;
mod jobs;
mod link_count;
mod link_recovery;
mod links;
mod listing;
mod log;
mod logfile;
mod logged_once;
mod lookup;
mod metacopy;
mod node;
mod numbers;
mod op;
mod opaque_redirect;
mod options;
mod ownfiles;
mod ownnames;
mod parents;
mod read_sized;
mod readdir;
mod remove;
mod rename;
mod rename_dir;
mod reserve;
mod retry;
mod revalidate;
mod rmdir;
mod set;
mod shortname;
mod table;
mod times;
mod trust;
mod unpack;
mod vnode_impl;
mod whiteout;
mod work;
mod write_gate;
mod xattr;

pub use build::Unionfs;
pub use change::BranchChange;
pub use declare::LAYER;
pub use options::{Branch, BuildError, Copyup, Delete, LowerFiles, Metacopy, Mode, Numbers, Options, Whiteouts};
