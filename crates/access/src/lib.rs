//! Permission checks by mode, owner, group and POSIX ACL (POSIX.1e draft 17, section 23.1.5), with
//! the same results as Linux.
//!
//! The kernel checks permissions itself and notifies the server only that it refused something
//! ([`vnode::Vnode::refused`]). This crate determines which access that can have been. Its result
//! never grants access.
//!
//! Requests carry no capabilities: user 0 is assumed to have those of root, all others none.
#![forbid(unsafe_code)]

mod acl;
mod caller;
mod rules;

pub use acl::{ACL_ACCESS, Acl};
pub use caller::Caller;
pub use rules::{READ, Rules, SEARCH, WRITE, refused};
