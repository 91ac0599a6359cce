use std::ops::Range;
use vnode::{DirEntry, Kind, Name, Result};

/// The end of the range of positions.
pub(crate) const END: u64 = 1 << 62;

/// The entries with positions in a range, in order.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) positions: Range<u64>,
    /// The change count of the directory: see [`crate::managed::Managed::changes`].
    pub(crate) changes: u64,
    items: Vec<Item>,
}

/// An entry of a lower directory.
#[derive(Debug)]
pub(crate) struct Item {
    /// The position of its name. In a listing it may be slightly larger, to be unique.
    pub(crate) cookie: u64,
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    pub(crate) name: Box<[u8]>,
}

impl Listing {
    /// Sorts the entries. An entry that was found in two places because it was being moved is
    /// listed once.
    pub(crate) fn new(positions: Range<u64>, changes: u64, mut items: Vec<Item>) -> Self {
        items.sort_unstable_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
        items.dedup_by(|a, b| a.name == b.name);
        let mut last = 0;
        for item in &mut items {
            last = item.cookie.max(last + 1);
            item.cookie = last;
        }
        Self { positions, changes, items }
    }

    /// Returns the entries after a cookie.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = Result<DirEntry<'_>>> {
        let first = self.items.partition_point(|item| item.cookie <= cookie);
        self.items.get(first..).unwrap_or_default().iter().map(|item| {
            let name = Name::new(&item.name)?;
            Ok(DirEntry { cookie: item.cookie, ino: item.ino, kind: item.kind, name })
        })
    }
}
