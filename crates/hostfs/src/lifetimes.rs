//! How long names and attributes may be cached above where changes of them are not reported.

use core::time::Duration;
use vnode::{Cx, Kind};

/// Limits on the cache lifetimes of replies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lifetimes {
    /// For names, and for the attributes of directories and the like.
    pub(crate) names: Option<Duration>,
    /// For the attributes of regular files, which change with each write.
    pub(crate) files: Option<Duration>,
}

impl Lifetimes {
    /// Limits the lifetime of attributes of an object of this kind.
    pub(crate) fn limit_attributes(&self, cx: &Cx<'_>, kind: Kind) {
        let limit = if kind == Kind::Regular { self.files } else { self.names };
        if let Some(limit) = limit {
            cx.limit_attr_lifetime(limit);
        }
    }

    /// Limits the lifetimes of a name, and of the attributes of the object that it leads to.
    pub(crate) fn limit_entry(&self, cx: &Cx<'_>, kind: Option<Kind>) {
        if let Some(limit) = self.names {
            cx.limit_name_lifetime(limit);
        }
        if let Some(kind) = kind {
            self.limit_attributes(cx, kind);
        }
    }
}
