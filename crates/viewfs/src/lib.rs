//! Views: one mount point that shows different processes different trees.
//!
//! Each view is a layer of its own, usually a union. A [`classify::Chain`] chooses the view of the
//! caller of each operation.
//!
//! * A file belongs to one view: each view has a vnode of its own for it, even if two views show
//!   the same lower file. So nothing that the kernel caches for an inode (pages, attributes, locks)
//!   crosses views.
//! * A directory is one vnode for all views that have a directory of this name. The kernel has one
//!   dentry per name; with a vnode per view, each view's lookups would detach the other's working
//!   directories. Per view, the vnode has at most one lower directory, which never changes.
//! * Before a view removes or moves a directory that another view has too, it gets a vnode of its
//!   own for it ([`table`]): the kernel marks the inode of a removed directory as dead.
//! * The kernel checks permissions by attributes that it may have read for a caller of another
//!   view. Where these differ for a directory, the layer checks again ([`permission`]).
//!
//! | concept | file |
//! |---|---|
//! | options, the layer type; the layer; a view | `declare`, `layer`, `view` |
//! | state that all vnodes share; numbers | `shared`, `number` |
//! | an object; which view's lower object an operation uses | `node` |
//! | directories by name and by number | `table`, `by_number` |
//! | permissions that differ between views | `permission` |
//! | operations; open files | `vnode_impl`, `rename`; `file` |
//! | open files of processes that were moved to another view | `foreign` |
//! | notifications from the layers below | `upcalls` |
//! | commands: list, add, remove, move, release, which | `commands` |
#![forbid(unsafe_code)]

mod by_number;
mod commands;
mod declare;
mod file;
mod foreign;
mod layer;
mod node;
mod number;
mod permission;
mod rename;
mod shared;
mod table;
mod upcalls;
mod view;
mod vnode_impl;

pub use declare::LAYER;
pub use layer::{Setup, ViewFs};
pub use number::MAX_VIEWS;
pub use view::View;
