//! The directories whose entries the kernel may be adding to its name cache right now.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the kernel may take to add the entries of a READDIRPLUS reply.
const ADDING: Duration = Duration::from_secs(2);
/// From this number on, directories that were listed earlier are forgotten.
const MANY: usize = 256;

/// Directories with a READDIRPLUS request in progress, or a recent reply.
///
/// The kernel tags each name that it caches with its epoch, and does not use names with an older
/// one. It tags the names of a READDIRPLUS reply with the epoch at the time when it adds them, not
/// at the time of the request, unlike those of a LOOKUP reply. So names of a listing that began
/// before everything changed could be used afterwards. The kernel holds the directory's lock until
/// it has added them: a notification that takes this lock waits for that.
#[derive(Debug, Default)]
pub(crate) struct RecentListings(Mutex<AllListed>);

#[derive(Debug, Default)]
struct AllListed {
    by_node: HashMap<u64, Listed>,
    /// The number of directories at which those that are not recent are forgotten.
    sweep_at: usize,
}

#[derive(Debug)]
struct Listed {
    in_progress: u32,
    last: Instant,
}

impl Listed {
    fn is_recent(&self) -> bool {
        self.in_progress > 0 || self.last.elapsed() < ADDING
    }
}

/// A READDIRPLUS request in progress, until it is dropped.
pub(crate) struct Listing<'a> {
    all: &'a RecentListings,
    node: u64,
}

impl RecentListings {
    fn lock(&self) -> MutexGuard<'_, AllListed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a request for this directory begins.
    pub(crate) fn begin(&self, node: u64) -> Listing<'_> {
        let mut listed = self.lock();
        if listed.by_node.len() >= listed.sweep_at.max(MANY) {
            listed.by_node.retain(|_, listed| listed.is_recent());
            // The cost is then constant for each directory.
            listed.sweep_at = listed.by_node.len() * 2;
        }
        listed.by_node.entry(node).or_insert_with(|| Listed { in_progress: 0, last: Instant::now() }).in_progress += 1;
        Listing { all: self, node }
    }

    /// Returns the directories.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        let mut listed = self.lock();
        listed.by_node.retain(|_, listed| listed.is_recent());
        listed.by_node.keys().copied().collect()
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        if let Some(listed) = self.all.lock().by_node.get_mut(&self.node) {
            listed.in_progress = listed.in_progress.saturating_sub(1);
            listed.last = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_recent_during_a_request_and_for_a_while_after_it() {
        let listings = RecentListings::default();
        let first = listings.begin(7);
        drop(listings.begin(7));
        drop(listings.begin(8));
        listings.lock().by_node.get_mut(&8).unwrap().last -= ADDING;
        listings.lock().by_node.get_mut(&7).unwrap().last -= ADDING;
        assert_eq!(listings.nodes(), [7]);
        drop(first);
        assert_eq!(listings.nodes(), [7]);
    }
}
