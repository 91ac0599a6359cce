#![forbid(unsafe_code)]
//! The union layer: several directories, its *branches*, merged into one tree.
//!
//! A [`Unionfs`] is a [`vnode::Layer`] over the layers of its branches. The branches are ordered. A
//! branch further left has precedence: its file hides files of the same name further right. The
//! vnode of a file refers to the leftmost lower vnode of its name; the vnode of a directory refers
//! to its *stack*, the lower directories (its *parts*) that it merges (`node`). Each live object
//! has one vnode (`intern`, `table`). Operations change the *view*, the tree as users see it, with
//! one lower operation each. The other files, by concept:
//!
//! | concept | file |
//! |---|---|
//! | options, their validation, building a union | `declare`, `options`, `build` |
//! | a branch; an immutable, ordered set of branches; the set in use | `branch`, `set`, `current` |
//! | replacing the set while no operation changes an object | `change`, `gate` |
//! | the beginning of each operation; revalidating vnodes | `revalidate` |
//! | state shared by all vnodes, choice of branch; the context of one operation | `core`, `op` |
//! | lookup of a name on the branches, from left to right | `lookup` |
//! | reserved names, whiteouts | `whiteout` |
//! | opaque marks and redirects | `opaque_redirect` |
//! | which lower files are trusted to be written by the union | `trust` |
//! | which parts have a name: the index of a directory, and its use | `names`, `known`, `filter` |
//! | which parts report their changes, and need no verification | `watched` |
//! | asking slow branches at the same time | `parallel` |
//! | readdir; cached merged listings | `readdir`, `listing` |
//! | the lock on a directory's entries | `entry_lock` |
//! | attributes, extended attributes, open files | `attr`, `xattr`, `file` |
//! | the list of open files; those on a branch that is removed | `open_files`, `in_use` |
//! | copy-up of files: protocol, data and attributes | `copyup`, `copydata` |
//! | copy-up of files in use from branches that are removed | `copy_used` |
//! | open files that a snapshot carries to its new branch; their list; recovery after a kill | `carry`, `carry_list`, `carry_recovery` |
//! | creating a directory's part on a branch; which branches allow that | `parents` |
//! | the lower object to change, which does not move meanwhile | `changeable` |
//! | one copy-up of an object at a time; no changes while an object moves | `jobs`, `write_gate` |
//! | copy-up of attributes without data: creating metacopies; using them | `copymeta`, `metacopy` |
//! | the branch of a new object: `create=`, `minfree=` | `placement` |
//! | moving files to other branches: the steps and their state; files; directories, whiteouts | `move_steps`, `mover`, `move_lease`, `move_file`, `move_dir` |
//! | create, remove, rename | `create`, `remove`, `rmdir`, `rename`, `rename_dir`, `exchange` |
//! | retries after a race | `retry` |
//! | whiteouts and opaque marks created by users | `unpack` |
//! | control commands: its own; those forwarded to the branches' layers | `query`, `debug`, `state_text`, `control` |
//! | out-of-band changes that branches report; which directories merge a lower one | `reported`, `parts` |
//! | hard links: the index of copied-up files, in memory and on disk | `links`, `index` |
//! | link counts, and their recovery after a crash | `link_count`, `link_recovery` |
//! | inode numbers | `numbers`, `inode_number` |
//! | what the branches' logs say, in use and in memory; reading it from all branches | `identity`, `recorded`, `records` |
//! | the logs: their tags, which log has a record, one file, its format | `tags`, `logs`, `logfile`, `log` |
//! | branches that were copied, as by `cp -a` | `copied` |
//! | file handles: objects by number | `by_number` |
//! | branches that no union uses: views of them, names of records | [`offline`] |
//! | work directory | `work` |
//! | removals on a full branch, and the space reserved for them | `full_branch`, `reserve` |
//! | names and directories that the union uses in a branch's root; what is set aside there | `ownnames`, `ownfiles`, `aside` |
//! | warnings logged once or rarely; restoring lower directories' times | `logged_once`, `times` |
//! | names stored inline | `shortname` |
//! | offline check and repair of branches | `fsck` |
//! | every vnode operation, dispatched to the files above | `vnode_impl` |
//!
//! Imports between modules form no cycle, which `scripts/import-cycles.sh unionfs` checks. `core`
//! is therefore generic over the vnode type: `node`, which defines that type, imports it.
//!
//! Design and lock order: docs/design/unionfs.md. Records on disk: docs/formats/union-branch.md.

mod aside;
mod attr;
mod branch;
mod build;
mod by_number;
mod carry;
mod carry_list;
mod carry_recovery;
mod change;
mod changeable;
mod control;
mod copied;
mod copy_used;
mod copydata;
mod copymeta;
mod copyup;
mod core;
mod create;
mod current;
mod debug;
mod declare;
mod entry_lock;
mod exchange;
mod file;
mod filter;
pub mod fsck;
mod full_branch;
mod gate;
mod identity;
mod in_use;
mod index;
mod inode_number;
mod intern;
mod jobs;
mod known;
mod link_count;
mod link_recovery;
mod links;
mod listing;
mod log;
mod logfile;
mod logged_once;
mod logs;
mod lookup;
mod metacopy;
mod move_dir;
mod move_file;
mod move_lease;
mod move_steps;
mod mover;
mod names;
mod node;
mod numbers;
pub mod offline;
mod op;
mod opaque_redirect;
mod open_files;
mod options;
mod ownfiles;
mod ownnames;
mod parallel;
mod parents;
mod parts;
mod placement;
mod query;
mod readdir;
mod readers;
mod recorded;
mod records;
mod released;
mod remove;
mod rename;
mod rename_dir;
mod reported;
mod reserve;
mod retry;
mod revalidate;
mod rmdir;
mod set;
mod shortname;
mod state_text;
mod table;
mod tags;
mod times;
mod trust;
mod unpack;
mod vnode_impl;
mod watched;
mod whiteout;
mod work;
mod write_gate;
mod xattr;

pub use build::Unionfs;
pub use change::BranchChange;
pub use declare::LAYER;
pub use in_use::{BranchList, BranchStatus};
pub use options::{
    Branch, BuildError, Copyup, Create, Delete, FOREIGN, LowerFiles, Metacopy, Mode, Moving, Numbers, Options, Order,
    Positions, Whiteouts, sole_directory_mode, without_group,
};
pub use stack::{ChangePolicy, InUse, OpenedFile};
