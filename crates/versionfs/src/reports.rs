//! Reports to the layer above of what commands and the cleaner change: it sees only the operations
//! that pass through it, and caches names and attributes.
//!
//! | change | report |
//! |---|---|
//! | a command removes or renames a head | its name, and the attributes of the object, which may have other names or be open |
//! | a command changes the attributes of a head | the attributes |
//! | a command or the cleaner discards, removes or moves versions of a name | the name in the directories of the past that show it |
//! | a tag is made or removed | its name in each `.versions` |
//! | the policies are read again | each `.versions`, which they may hide |
//!
//! A change is reported once, after it was made, also if the command then fails. Attributes of old
//! versions are not cached.

use crate::core::Core;
use crate::history::At;
use crate::past::{PastDir, VIEW, View};
use crate::set::Set;
use std::collections::BTreeSet;
use std::sync::Arc;
use vnode::{Cx, Entry, Kind, Name, Vnode};

impl Core {
    /// Reports that a name has lost, or got, the object `head`.
    pub(crate) fn report_entry(&self, at: &At, head: &Entry) {
        let (Some(upcalls), Ok(name)) = (self.upcalls.get(), Name::new(&at.name)) else { return };
        if head.attr.kind() == Kind::Directory {
            upcalls.directory_entry_changed(at.dir.id(), name);
        } else {
            upcalls.entry_changed(at.dir.id(), name);
        }
    }

    /// Reports that attributes of a head changed.
    pub(crate) fn report_attributes(&self, head: &Entry) {
        if let Some(upcalls) = self.upcalls.get() {
            upcalls.attributes_changed(head.vnode.id());
        }
    }

    /// Reports that versions of a name are gone or others.
    pub(crate) fn report_versions(&self, dir: u64, name: &[u8]) {
        let (Some(upcalls), Ok(name)) = (self.upcalls.get(), Name::new(name)) else { return };
        for number in self.past.directories_of(dir) {
            upcalls.entry_changed(number, name);
        }
    }

    /// Reports that versions of these sets were discarded, which `at` may have shown.
    pub(crate) fn report_discarded<'a>(&self, cx: &Cx<'_>, sets: impl Iterator<Item = &'a Set>, at: Option<&At>) {
        if self.upcalls.get().is_none() || !self.past.has_directories() {
            return;
        }
        let mut names: BTreeSet<(u64, Vec<u8>)> = at.map(|at| (at.dir.id(), at.name.to_vec())).into_iter().collect();
        for set in sets {
            if let Some((dir, name)) = set.place() {
                names.insert((dir.id(), name.to_vec()));
                continue;
            }
            // The versions of an inode are those of each of its names.
            let Ok(Some(head)) = set.head(self, cx) else { continue };
            let found = head.names(cx, &mut |dir, name| {
                names.insert((dir.id(), name.as_bytes().to_vec()));
                true
            });
            if let Err(errno) = found {
                tracing::debug!(%errno, "directories of the past may show discarded versions for a while");
            }
        }
        names.iter().for_each(|(dir, name)| self.report_versions(*dir, name));
    }

    /// Reports that a tag was made or removed.
    pub(crate) fn report_tag(&self, tag: &[u8]) {
        let (Some(upcalls), Ok(tag)) = (self.upcalls.get(), Name::new(tag)) else { return };
        for view in self.past.in_use().iter().filter(|vnode| is_view(vnode)) {
            upcalls.entry_changed(view.id(), tag);
        }
    }

    /// Reports that the policies may hide old versions from other users now.
    pub(crate) fn report_policies(&self) {
        let (Some(upcalls), Ok(name)) = (self.upcalls.get(), Name::new(VIEW)) else { return };
        for vnode in self.past.in_use() {
            if let Some(view) = vnode.as_any().downcast_ref::<View>() {
                upcalls.directory_entry_changed(view.directory(), name);
            }
        }
    }
}

fn is_view(vnode: &Arc<dyn Vnode>) -> bool {
    vnode.as_any().is::<View>()
}

/// Returns the number of the live directory that a vnode shows as it was.
pub(crate) fn shown_directory(vnode: &Arc<dyn Vnode>) -> Option<u64> {
    vnode.as_any().downcast_ref::<PastDir>().map(|dir| dir.lower.id())
}
