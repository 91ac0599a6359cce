//! Listing directories: docs/unionfs.md, "readdir".

use crate::branch::Core;
use crate::identity::mix;
use crate::lookup::Hit;
use crate::node::{Lower, Stack, UnionVnode};
use crate::whiteout::{Listed, classify, is_long, long_digest};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use vnode::{Cx, DirEntry, Kind, Name, Result, Time};

/// Listings that are kept.
const KEPT: usize = 32;
/// More entries than this are not merged on a thread that serves others.
const QUICK: usize = 8192;
/// Entries of a lower directory that are looked at in one go.
const BATCH: usize = 128;

#[derive(Debug)]
struct Item {
    cookie: u64,
    ino: u64,
    start: u32,
    len: u8,
    kind: Kind,
}

/// The merged entries of a directory, in the order of their cookies.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Which state of the directory this is.
    stamps: Vec<Stamp>,
    names: Vec<u8>,
    items: Vec<Item>,
}

impl Listing {
    /// How many of them are directories.
    pub(crate) fn subdirs(&self) -> u32 {
        let dirs = self.items.iter().filter(|item| item.kind == Kind::Directory).count();
        u32::try_from(dirs).unwrap_or(u32::MAX)
    }

    fn after(&self, cookie: u64) -> impl Iterator<Item = DirEntry<'_>> {
        let first = self.items.partition_point(|item| item.cookie <= cookie);
        self.items.get(first..).unwrap_or_default().iter().filter_map(|item| {
            let start = item.start as usize;
            let name = Name::new(self.names.get(start..start + usize::from(item.len))?).ok()?;
            Some(DirEntry { cookie: item.cookie, ino: item.ino, kind: item.kind, name })
        })
    }
}

/// The directories whose merged listings are kept, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    recent: Mutex<VecDeque<Weak<UnionVnode>>>,
}

impl Listings {
    fn remember(&self, dir: &UnionVnode) {
        let Ok(this) = dir.arc() else { return };
        let forgotten = {
            let mut recent = self.recent.lock();
            recent.push_back(Arc::downgrade(&this));
            if recent.len() > KEPT { recent.pop_front() } else { None }
        };
        let Some(old) = forgotten.and_then(|weak| weak.upgrade()) else { return };
        if let Some(part) = old.dir.as_ref().filter(|_| !std::ptr::eq(&raw const *old, dir)) {
            let listing = part.listing.lock().take();
            drop(listing);
        }
    }
}

/// A name seen in one of the directories.
struct Seen {
    part: usize,
    ino: u64,
    kind: Kind,
}

/// What hides names to the right.
#[derive(Default)]
struct Hidden {
    names: HashSet<Box<[u8]>>,
    digests: HashSet<Box<[u8]>>,
}

impl Hidden {
    fn hides(&self, name: &[u8]) -> bool {
        self.names.contains(name)
            || (!self.digests.is_empty() && is_long(name) && self.digests.contains(long_digest(name).as_slice()))
    }
}

/// The position of a name in a merged listing: 62 bits that never change, and never 0.
pub(crate) fn position(name: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in name {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (mix(hash) >> 2).max(1)
}

impl UnionVnode {
    pub(crate) fn read_dir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let dir = self.dir()?;
        if self.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        let names = dir.names.read();
        let stack = self.stack()?;
        if let [only] = &*stack
            && self.core.stays(only.branch)
        {
            return self.core.pass_on(cx, only, cookie, sink);
        }
        let kept = if cookie == 0 { None } else { dir.listing.lock().clone() };
        let listing = match kept {
            Some(listing) => listing,
            None => self.merged_listing(cx)?,
        };
        drop(names);
        for entry in listing.after(cookie) {
            if !sink(&entry) {
                break;
            }
        }
        Ok(())
    }

    /// The merged listing: the kept one, if it is still right. The caller holds the names.
    pub(crate) fn merged_listing(&self, cx: &Cx<'_>) -> Result<Arc<Listing>> {
        let dir = self.dir()?;
        let stack = self.stack()?;
        let stamps = stamps(cx, &stack)?;
        let kept = dir.listing.lock().clone();
        if let Some(kept) = kept.filter(|kept| kept.stamps == stamps) {
            return Ok(kept);
        }
        let changes = dir.changes.load(Ordering::Acquire);
        let listing = Arc::new(self.core.merge_listing(cx, &stack, stamps)?);
        if dir.changes.load(Ordering::Acquire) == changes {
            let old = dir.listing.lock().replace(listing.clone());
            drop(old);
            self.core.listings.remember(self);
        }
        Ok(listing)
    }
}

/// What moves whenever an entry of one directory comes or goes: its times, and what else it goes by.
type Stamp = (Time, Time, Option<u64>);

fn stamps(cx: &Cx<'_>, stack: &[Lower]) -> Result<Vec<Stamp>> {
    let stamp_of = |part: &Lower| {
        let stamp = part.vnode.listing_stamp(cx);
        part.vnode.getattr(cx).map(|attr| (attr.mtime, attr.ctime, stamp))
    };
    stack.iter().map(stamp_of).collect()
}

impl UnionVnode {
    /// Moves when entries come or go in a part whose times this directory does not show.
    pub(crate) fn parts_stamp(&self, cx: &Cx<'_>) -> u64 {
        let Ok(stack) = self.stack() else { return 0 };
        let Some((first, others)) = stack.split_first() else { return 0 };
        let mut stamp = first.vnode.listing_stamp(cx).unwrap_or_default();
        for part in others {
            let mut add = |value: u64| stamp = mix(stamp.rotate_left(1) ^ value);
            add(u64::from(part.branch));
            add(part.vnode.id());
            add(part.vnode.listing_stamp(cx).unwrap_or_default());
            match part.vnode.getattr(cx) {
                Ok(attr) => {
                    for time in [attr.mtime, attr.ctime] {
                        add(time.sec.cast_unsigned());
                        add(u64::from(time.nsec));
                    }
                }
                Err(errno) => add(u64::from(errno.raw_os_error().unsigned_abs())),
            }
        }
        stamp
    }
}

impl Core {
    /// Lists a directory that lies on one branch and always will, with that branch's own cookies.
    fn pass_on(
        &self,
        cx: &Cx<'_>,
        dir: &Lower,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if dir.branch < self.last_branch() && self.branch(dir.branch)?.moved.load(Ordering::Acquire) {
            return self.pass_on_redirected(cx, dir, cookie, sink);
        }
        dir.vnode.readdir(cx, cookie, &mut |entry| {
            if classify(entry.name.as_bytes()) != Listed::Plain {
                return true;
            }
            sink(&DirEntry { ino: self.listed_number(dir.branch, entry.ino), ..*entry })
        })
    }

    /// The same where subdirectories may have redirects, which decide about their numbers.
    fn pass_on_redirected(
        &self,
        cx: &Cx<'_>,
        dir: &Lower,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut after = cookie;
        loop {
            let mut batch: Vec<(u64, u64, Kind, Box<[u8]>)> = Vec::new();
            dir.vnode.readdir(cx, after, &mut |entry| {
                let room = batch.len() < BATCH;
                if room {
                    batch.push((entry.cookie, entry.ino, entry.kind, entry.name.as_bytes().into()));
                }
                room
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            for (cookie, ino, kind, name) in &batch {
                after = *cookie;
                if classify(name) != Listed::Plain {
                    continue;
                }
                let name = Name::new(name)?;
                let ino = self.item_number(cx, std::slice::from_ref(dir), name, 0, *ino, *kind)?;
                if !sink(&DirEntry { cookie: *cookie, ino, kind: *kind, name }) {
                    return Ok(());
                }
            }
        }
    }

    /// The number of a listed file.
    fn listed_number(&self, branch: u16, lower: u64) -> u64 {
        let alias = self.branch(branch).ok().and_then(|b| self.identity.alias(b.tag, lower));
        alias.map_or_else(|| self.natural_number(branch, lower), |alias| alias.number)
    }

    /// The number of an entry that was first seen in part `part`.
    fn item_number(
        &self,
        cx: &Cx<'_>,
        stack: &[Lower],
        name: Name<'_>,
        part: usize,
        ino: u64,
        kind: Kind,
    ) -> Result<u64> {
        let Some(lower) = stack.get(part) else { return Ok(ino) };
        let moved = lower.branch < self.last_branch() && self.branch(lower.branch)?.moved.load(Ordering::Acquire);
        if kind != Kind::Directory || (part + 1 == stack.len() && !moved) {
            return Ok(self.listed_number(lower.branch, ino));
        }
        match self.probe(cx, stack, name)?.hit {
            Hit::Dir { stack, .. } => self.directory_number(&stack),
            Hit::Leaf { .. } | Hit::None => Ok(self.listed_number(lower.branch, ino)),
        }
    }

    fn merge_listing(&self, cx: &Cx<'_>, stack: &Stack, stamps: Vec<Stamp>) -> Result<Listing> {
        let seen = self.collect(cx, stack)?;
        let mut sorted: Vec<(u64, Box<[u8]>, Seen)> =
            seen.into_iter().map(|(name, seen)| (position(&name), name, seen)).collect();
        sorted.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let mut listing = Listing { stamps, names: Vec::new(), items: Vec::with_capacity(sorted.len()) };
        let mut last = 0;
        for (position, name, seen) in sorted {
            let ino = self.item_number(cx, stack, Name::new(&name)?, seen.part, seen.ino, seen.kind)?;
            last = position.max(last + 1);
            let start = u32::try_from(listing.names.len()).map_err(|_| vnode::Errno::OVERFLOW)?;
            let len = u8::try_from(name.len()).map_err(|_| vnode::Errno::NAMETOOLONG)?;
            listing.names.extend_from_slice(&name);
            listing.items.push(Item { cookie: last, ino, start, len, kind: seen.kind });
        }
        Ok(listing)
    }

    /// All names that show, each with its leftmost instance.
    fn collect(&self, cx: &Cx<'_>, stack: &Stack) -> Result<HashMap<Box<[u8]>, Seen>> {
        let mut seen: HashMap<Box<[u8]>, Seen> = HashMap::new();
        let mut hidden = Hidden::default();
        for (part, dir) in stack.iter().enumerate() {
            let mut hides = Hidden::default();
            let mut too_many = false;
            dir.vnode.readdir(cx, 0, &mut |entry| {
                let name = entry.name.as_bytes();
                match classify(name) {
                    Listed::Plain if !seen.contains_key(name) && !hidden.hides(name) => {
                        seen.insert(name.into(), Seen { part, ino: entry.ino, kind: entry.kind });
                    }
                    Listed::Plain | Listed::Mark => {}
                    Listed::Whiteout(name) => drop(hides.names.insert(name.into())),
                    Listed::LongWhiteout(digest) => drop(hides.digests.insert(digest.into())),
                }
                too_many = seen.len() > QUICK && !cx.may_block;
                !too_many
            })?;
            if too_many {
                cx.require_blocking()?;
            }
            cx.check()?;
            hidden.names.extend(hides.names);
            hidden.digests.extend(hides.digests);
        }
        Ok(seen)
    }

    /// Does nothing show in that directory?
    pub(crate) fn shows_nothing(&self, cx: &Cx<'_>, stack: &Stack) -> Result<bool> {
        if let [only] = &**stack {
            let mut empty = true;
            only.vnode.readdir(cx, 0, &mut |entry| {
                empty = classify(entry.name.as_bytes()) != Listed::Plain;
                empty
            })?;
            return Ok(empty);
        }
        Ok(self.collect(cx, stack)?.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_for_ever() {
        // Programs keep them over a remount.
        assert_eq!(position(b"a"), position(b"a"));
        assert_ne!(position(b"a"), position(b"b"));
        assert!(position(b"whatever") >> 62 == 0);
        assert_eq!(position(b"README"), 4_214_858_096_351_549_375);
    }
}
