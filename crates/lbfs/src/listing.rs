//! Listing directories.
//!
//! Each replica has cookies of its own, so a listing that goes on elsewhere could not be resumed by them. A whole directory is read from one
//! replica and its entries are put in the order of a hash of their names, which is the same on all replicas: that is the
//! cookie.

use crate::node::Node;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use vnode::{Cx, DirEntry, Kind, Name, Result, Vnode};

/// How many listings are kept that are not at their end.
const KEPT: usize = 64;

/// A directory as one replica listed it.
#[derive(Debug)]
pub(crate) struct Listing {
    /// In the order of cookies.
    entries: Vec<Item>,
    names: Vec<u8>,
}

#[derive(Debug)]
struct Item {
    cookie: u64,
    ino: u64,
    kind: Kind,
    name: Range<usize>,
}

/// What a replica listed.
struct Raw {
    entries: Vec<(Kind, Range<usize>)>,
    names: Vec<u8>,
}

/// Listings that somebody has begun to read, by the directory's number.
#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<VecDeque<(u64, Arc<Listing>)>>);

impl Listings {
    fn get(&self, dir: u64) -> Option<Arc<Listing>> {
        self.0.lock().iter().find(|(of, _)| *of == dir).map(|(_, listing)| Arc::clone(listing))
    }

    fn put(&self, dir: u64, listing: &Arc<Listing>) {
        let mut all = self.0.lock();
        all.retain(|(of, _)| *of != dir);
        if all.len() >= KEPT {
            all.pop_front();
        }
        all.push_back((dir, Arc::clone(listing)));
    }

    fn remove(&self, dir: u64) {
        self.0.lock().retain(|(of, _)| *of != dir);
    }
}

impl Node {
    pub(crate) fn list(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.must_be_directory()?;
        let begun = if cookie == 0 { None } else { self.fs.listings.get(self.number()) };
        let listing = match begun {
            Some(listing) => listing,
            None => {
                let fresh = Arc::new(self.read_listing(cx)?);
                self.fs.listings.put(self.number(), &fresh);
                fresh
            }
        };
        let first = listing.entries.partition_point(|item| item.cookie <= cookie);
        let rest = listing.entries.get(first..).unwrap_or_default();
        if rest.is_empty() {
            self.fs.listings.remove(self.number());
        }
        for item in rest {
            let name = Name::new(listing.names.get(item.name.clone()).unwrap_or_default())?;
            if !sink(&DirEntry { cookie: item.cookie, ino: item.ino, kind: item.kind, name }) {
                break;
            }
        }
        Ok(())
    }

    fn read_listing(&self, cx: &Cx<'_>) -> Result<Listing> {
        let raw = self.ask(cx, |dir, cx| read(&**dir, cx))?;
        let entries = raw.entries.into_iter().map(|(kind, name)| {
            let path = self.path().child(raw.names.get(name.clone()).unwrap_or_default());
            // A file with several names has the number of none of them.
            let ino = self.fs.table.get(path).map_or_else(|| path.number(), |node| node.number());
            Item { cookie: path.cookie(), ino, kind, name }
        });
        let mut entries: Vec<Item> = entries.collect();
        entries.sort_unstable_by_key(|item| item.cookie);
        Ok(Listing { entries, names: raw.names })
    }
}

/// All entries of a replica's directory.
fn read(dir: &dyn Vnode, cx: &Cx<'_>) -> Result<Raw> {
    let mut raw = Raw { entries: Vec::new(), names: Vec::new() };
    dir.readdir(cx, 0, &mut |entry| {
        let begin = raw.names.len();
        raw.names.extend_from_slice(entry.name.as_bytes());
        raw.entries.push((entry.kind, begin..raw.names.len()));
        true
    })?;
    Ok(raw)
}
