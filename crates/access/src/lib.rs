//! Who may do what with a file, by its mode, owner, group and POSIX ACL (POSIX.1e draft 17, section 23.1.5), as Linux decides it.
//!
//! The kernel decides by itself what callers may do, and tells the server only that it has refused something
//! ([`vnode::Vnode::refused`]). This crate finds out what that can have been. It opens no door: nothing is allowed because of its answer.
//!
//! Requests say nothing of capabilities: user 0 is taken to have those of root, all others to have none.
#![forbid(unsafe_code)]

mod acl;
mod caller;
mod rules;

pub use acl::{ACL_ACCESS, Acl};
pub use caller::Caller;
pub use rules::{READ, Rules, SEARCH, WRITE, refused};
