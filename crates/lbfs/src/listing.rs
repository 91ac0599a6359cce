//! Cache of directory listings that are being read.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use vnode::{DirEntry, Kind, Name, Result};

/// Maximum number of cached listings.
const KEPT: usize = 64;

/// The entries of a directory, as one replica listed them.
#[derive(Debug)]
pub(crate) struct Listing {
    /// In the order of cookies.
    entries: Vec<Item>,
    names: Vec<u8>,
}

/// An entry of a [`Listing`].
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) cookie: u64,
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// Position of its name in the names of the listing.
    pub(crate) name: Range<usize>,
}

impl Listing {
    /// Returns a listing, sorted by cookie.
    pub(crate) fn new(mut entries: Vec<Item>, names: Vec<u8>) -> Self {
        entries.sort_unstable_by_key(|item| item.cookie);
        Self { entries, names }
    }

    /// Returns the entries after a cookie.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = Result<DirEntry<'_>>> {
        let first = self.entries.partition_point(|item| item.cookie <= cookie);
        self.entries.get(first..).unwrap_or_default().iter().map(|item| {
            let name = Name::new(self.names.get(item.name.clone()).unwrap_or_default())?;
            Ok(DirEntry { cookie: item.cookie, ino: item.ino, kind: item.kind, name })
        })
    }
}

/// The cached listings, by directory number.
#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<VecDeque<(u64, Arc<Listing>)>>);

impl Listings {
    pub(crate) fn get(&self, dir: u64) -> Option<Arc<Listing>> {
        self.0.lock().iter().find(|(of, _)| *of == dir).map(|(_, listing)| Arc::clone(listing))
    }

    pub(crate) fn put(&self, dir: u64, listing: &Arc<Listing>) {
        let mut all = self.0.lock();
        all.retain(|(of, _)| *of != dir);
        if all.len() >= KEPT {
            all.pop_front();
        }
        all.push_back((dir, Arc::clone(listing)));
    }

    pub(crate) fn remove(&self, dir: u64) {
        self.0.lock().retain(|(of, _)| *of != dir);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
