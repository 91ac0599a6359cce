//! Directory listings.
//!
//! The replicas use different cookies, so a listing could not be resumed on another replica. A
//! directory is therefore read in full from one replica. The cookies are hashes of the names, which
//! are the same on all replicas, and the entries are sorted by cookie.

use crate::listing::{Item, Listing};
use crate::node::Node;
use std::ops::Range;
use std::sync::Arc;
use vnode::{Cx, DirEntry, Kind, Result, Vnode};

/// The listing of a replica.
struct Raw {
    entries: Vec<(Kind, Range<usize>)>,
    names: Vec<u8>,
}

impl Node {
    /// Lists the entries after `cookie`. A new listing is read from one replica and cached.
    pub(crate) fn list(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.require_directory()?;
        let begun = if cookie == 0 { None } else { self.fs.listings.get(self.number()) };
        let listing = match begun {
            Some(listing) => listing,
            None => {
                let fresh = Arc::new(self.read_listing(cx)?);
                self.fs.listings.put(self.number(), &fresh);
                fresh
            }
        };
        for entry in listing.after(cookie) {
            if !sink(&entry?) {
                return Ok(());
            }
        }
        // Nobody needs to ask for what follows the last entry.
        self.fs.listings.remove(self.number());
        Ok(())
    }

    fn read_listing(&self, cx: &Cx<'_>) -> Result<Listing> {
        let raw = self.with_failover(cx, |dir, cx| read(&**dir, cx))?;
        let entries = raw.entries.into_iter().map(|(kind, name)| {
            let path = self.path().child(raw.names.get(name.clone()).unwrap_or_default());
            // The number of a file with several hard links is not that of its path.
            let ino = self.fs.table.get(path).map_or_else(|| path.number(), |node| node.number());
            Item { cookie: path.cookie(), ino, kind, name }
        });
        Ok(Listing::new(entries.collect(), raw.names))
    }
}

/// Reads all entries of a replica's directory.
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
