//! Directory listings.
//!
//! The position of an entry in a listing is derived from its name, so it does not change while a
//! conversion moves entries. Positions are in the order of buckets, so that only one bucket must be
//! read and sorted at a time.

use crate::listing::{END, Item, Listing};
use crate::managed::{Location, Managed};
use crate::node::UsenetVnode;
use crate::record::is_reserved;
use crate::scheme::{DIGITS_SHIFT, Scheme, hex};
use crate::state::Layout;
use std::ops::Range;
use std::sync::Arc;
use vnode::{Cx, DirEntry, Result, Vnode};

impl UsenetVnode {
    /// Lists the entries after `cookie`: of a managed directory by groups of positions, of a flat
    /// one with the lower directory's cookies.
    pub(crate) fn list(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let mut after = cookie;
        while after < END {
            let listing = match &*self.read_layout(cx)? {
                Layout::Managed(managed) => managed.listing(&self.core.server(cx), &self.lower, after)?,
                Layout::Flat | Layout::Unknown => break,
            };
            // The sink may call this layer, so the lock is not held here.
            for entry in listing.after(after) {
                if !sink(&entry?) {
                    return Ok(());
                }
            }
            after = listing.positions.end - 1;
            if listing.positions.end >= END {
                return Ok(());
            }
        }
        self.lower.readdir(cx, after, &mut |entry| is_reserved(entry.name.as_bytes()) || sink(entry))
    }
}

impl Managed {
    /// Returns the group of entries after a cookie.
    fn listing(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, after: u64) -> Result<Arc<Listing>> {
        let (positions, locations) = self.group(after + 1);
        let mut kept = self.listing.lock();
        if let Some(kept) = kept.as_ref().filter(|kept| kept.positions == positions && kept.changes == self.changes) {
            return Ok(Arc::clone(kept));
        }
        if self.is_split() {
            cx.require_blocking()?;
        }
        let listing = Arc::new(self.read(cx, dir, positions, &locations)?);
        *kept = Some(Arc::clone(&listing));
        Ok(listing)
    }

    /// Returns the range of positions that are read together, and the possible locations of their
    /// entries.
    fn group(&self, position: u64) -> (Range<u64>, Vec<Location>) {
        if self.is_split() {
            let buckets = self.buckets.keys().map(|name| Location::In(name.clone()));
            return (0..END, core::iter::once(Location::Flat).chain(buckets).collect());
        }
        match self.record.scheme {
            Scheme::Digits => self.digits_group(position),
            Scheme::Hash { .. } => {
                let hash = position << 2;
                let digits: [u8; 16] = core::array::from_fn(|i| hex(hash >> (60 - 4 * i)));
                let locations = self.hash_locations(&digits);
                let depth = locations
                    .iter()
                    .map(|location| if let Location::In(name) = location { name.len() } else { 0 })
                    .max();
                let width = END >> (4 * depth.unwrap_or(0));
                let start = position & !(width - 1);
                (start..start + width, locations)
            }
        }
    }

    /// Returns the group of non-numeric names, or that of the next bucket.
    fn digits_group(&self, position: u64) -> (Range<u64>, Vec<Location>) {
        let group = position >> DIGITS_SHIFT;
        let Some(number) = group.checked_sub(1) else { return (0..1 << DIGITS_SHIFT, vec![Location::Flat]) };
        let next = format!("{number:03}").into_bytes();
        // Names of three digits sort in numeric order.
        let rest = if number < 1000 { self.buckets.range(next..).next() } else { None };
        match rest.and_then(|(name, _)| Some((name, position_of(name)?))) {
            Some((name, start)) => (start..start + (1 << DIGITS_SHIFT), vec![Location::In(name.clone())]),
            None => (position..END, Vec::new()),
        }
    }

    fn read(
        &self,
        cx: &Cx<'_>,
        dir: &Arc<dyn Vnode>,
        positions: Range<u64>,
        locations: &[Location],
    ) -> Result<Listing> {
        let mut found = Vec::new();
        for location in locations {
            let Some(place) = self.directory(cx, dir, location)? else { continue };
            place.readdir(cx, 0, &mut |entry| {
                let name = entry.name.as_bytes();
                if self.shows(location, name) {
                    let position = self.record.scheme.position(name);
                    if positions.contains(&position) {
                        found.push(Item { cookie: position, ino: entry.ino, kind: entry.kind, name: name.into() });
                    }
                }
                true
            })?;
            cx.check()?;
        }
        Ok(Listing::new(positions, self.changes, found))
    }
}

/// Returns the first position of a bucket's names.
fn position_of(bucket: &[u8]) -> Option<u64> {
    let number: u64 = core::str::from_utf8(bucket).ok()?.parse().ok()?;
    Some((number + 1) << DIGITS_SHIFT)
}
