//! Objects of the past: read-only vnodes of old versions.
//!
//! | concept | file |
//! |---|---|
//! | which object a version or a moment is | `target` |
//! | the content of a version | `content` |
//! | files | `file` |
//! | directories as they were at a time | `dir` |
//! | the entries of a directory that is being listed | `listing` |
//! | symbolic links and special files | `special` |
//! | the directory `.versions` | `view` |
//! | their numbers | `objects` |

mod content;
mod dir;
mod file;
mod listing;
mod objects;
mod special;
mod target;
mod view;

pub(crate) use content::{Body, head_of, open_version};
pub(crate) use dir::{END, PastDir};
pub(crate) use file::{Opened, PastFile, stored_xattrs};
pub(crate) use listing::Listing;
pub(crate) use objects::{PastKey, PastObjects};
pub(crate) use special::Special;
pub(crate) use target::{Target, object_of, parse_number};
pub(crate) use view::{VIEW, View};
