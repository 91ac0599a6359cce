//! readdir: docs/design/unionfs.md, "Listings".

use crate::branch::{Lower, Stack};
use crate::filter::{MOST_ENTRIES, Need, Parts};
use crate::inode_number::{compose, mix};
use crate::listing::{Kept, Listing, Stamp, Validity};
use crate::lookup::Hit;
use crate::names::{PartNames, hash};
use crate::node::{Core, Dir, UNCOUNTED, UnionVnode};
use crate::op::Op;
use crate::options::{Numbers, Positions};
use crate::parallel::ask_both;
use crate::set::BranchSet;
use crate::watched::Watched;
use crate::whiteout::{Listed, classify, is_long, long_digest, reserved};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use vnode::{Cx, DirEntry, Errno, Kind, Name, Result};

/// Maximum number of entries to merge on a thread that serves other callers.
const NONBLOCKING_ENTRIES: usize = 8192;
/// Maximum number of changed entries to look up in one call on such a thread.
const NONBLOCKING_LOOKUPS: u32 = 16;
/// Number of entries taken from a listing at a time.
const BATCH: usize = 128;

/// Looks up number and kind of an entry.
type LookUp<'a> = dyn FnMut(Name<'_>) -> Result<Option<(u64, Kind)>> + 'a;

/// A name that was found in part number `part` of the stack.
struct Seen {
    part: usize,
    ino: u64,
    kind: Kind,
}

/// All names that were found.
type AllSeen = HashMap<Box<[u8]>, Seen>;

/// What the parts of a directory list.
struct Collected {
    /// All visible names, each with its leftmost instance.
    seen: AllSeen,
    /// Number of entries that were read.
    work: usize,
    /// Whether a part lists exactly the names that lookups find, if it was asked.
    exact: Vec<Option<bool>>,
}

/// Whiteouts that hide names on branches to the right.
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

impl UnionVnode {
    /// Passes the entries after `cookie` to `sink` until that returns false.
    pub(crate) fn read_dir(&self, op: &Op<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let dir = self.dir()?;
        if self.is_gone() {
            return Ok(());
        }
        let stack = self.stack()?;
        op.check_set(&self.core.branches)?;
        if let [only] = &*stack
            && op.set.files_stay(only.branch)
            && self.core.options.numbers == Numbers::Wide
            && self.core.options.positions == Positions::Branch
            && (op.set.read_only || op.set.is_last(only.branch) || !self.core.spreads(op))
            && dir.listing.lock().readers.begin_lower(only.branch)
        {
            return self.list_lower(op, only, cookie, sink);
        }
        if cookie != 0
            && let Some(part) = self.part_of_reader(op, cookie)?
        {
            return self.continue_lower(op, &part, cookie, sink);
        }
        // A reader that continues uses the kept listing, in which changes are marked.
        let kept = dir.listing.lock().kept().filter(|_| cookie != 0);
        let kept = match kept {
            Some(kept) => kept,
            None => self.merged_listing(op)?,
        };
        dir.listing.lock().readers.begin_merged();
        let mut lookups = 0;
        let mut look_up = |name: Name<'_>| {
            lookups += 1;
            if lookups > NONBLOCKING_LOOKUPS {
                op.require_blocking()?;
            }
            op.check()?;
            self.listed_now(op, name)
        };
        self.each_entry(&kept, cookie, &mut look_up, sink)
    }

    /// Calls `sink` with the entries after a cookie. No lock is held then, because `sink` may call
    /// back.
    fn each_entry(
        &self,
        kept: &Mutex<Kept>,
        cookie: u64,
        look_up: &mut LookUp<'_>,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut after = cookie;
        loop {
            let batch = kept.lock().listing.after(after, BATCH);
            let Some(last) = batch.entries.last() else { return Ok(()) };
            after = last.cookie;
            for entry in &batch.entries {
                let name = Name::new(batch.name(entry))?;
                let mut found = Some((entry.ino, entry.kind));
                if entry.unknown {
                    match look_up(name) {
                        // A directory whose marks this server may not read: it is listed as it was.
                        Err(Errno::ACCESS) => {}
                        looked_up => {
                            found = looked_up?;
                            kept.lock().listing.resolve(&batch, entry, found);
                        }
                    }
                }
                if let Some((ino, kind)) = found
                    && !sink(&DirEntry { cookie: entry.cookie, ino: self.core.shown(ino), kind, name })
                {
                    return Ok(());
                }
            }
        }
    }

    /// Returns number and kind of an entry as it is now.
    fn listed_now(&self, op: &Op<'_>, name: Name<'_>) -> Result<Option<(u64, Kind)>> {
        let found = self.stable_probe(op, name)?;
        self.shown_entry(op, name, &found.probe.hit)
    }

    /// Returns the merged listing: the kept one if it is up to date, else a new one.
    fn merged_listing(&self, op: &Op<'_>) -> Result<Arc<Mutex<Kept>>> {
        let dir = self.dir()?;
        let kept = dir.listing.lock().kept();
        if let Some(kept) = kept {
            let stack = self.stack()?;
            let stamps = self.part_stamps(op, &stack)?.stamps;
            let validity = kept.lock().validity(&stack, &stamps);
            match validity {
                Validity::Yes => return Ok(kept),
                Validity::Until(until) => {
                    dir.listing.lock().until.get_or_insert(until);
                    return Ok(kept);
                }
                Validity::No => {}
            }
        }
        self.merge(op, dir)
    }

    /// Merges the directory. Entries may change meanwhile.
    fn merge(&self, op: &Op<'_>, dir: &Dir) -> Result<Arc<Mutex<Kept>>> {
        let missed = dir.listing.lock().begin_merge();
        let begun = Instant::now();
        let merged = self.stack().and_then(|stack| {
            let stamps = self.part_stamps(op, &stack)?.stamps;
            let listing = self.merge_indexed(op, dir, &stack, &stamps)?;
            Ok(Kept::new(listing, stack, stamps, begun, self.core.options.check_interval))
        });
        let (merged, error) = match merged {
            Ok(merged) => (Some(merged), None),
            Err(error) => (None, Some(error)),
        };
        let ended = dir.listing.lock().end_merge(missed, merged);
        let ended = ended.ok_or(error.unwrap_or(vnode::Errno::IO))?;
        if ended.is_kept {
            // The number of subdirectories may have changed out of band.
            dir.subdirs.store(UNCOUNTED, Ordering::Release);
            self.core.listings.remember(&self.arc()?, ended.work);
        }
        Ok(ended.listing)
    }

    /// Counts the subdirectories of a merged directory.
    pub(crate) fn listed_subdirs(&self, op: &Op<'_>) -> Result<u32> {
        let dir = self.dir()?;
        let kept = self.merged_listing(op)?;
        let mut count = 0_u32;
        // No entry changes through this union while this lock is held, so the count can be kept up
        // to date from here on.
        let names = dir.entry_lock.read(op)?;
        let stack = self.stack()?;
        let mut look_up = |name: Name<'_>| match &names {
            Some(_) => self.shown_entry(op, name, &self.probe(op, &stack, name)?.hit),
            None => self.listed_now(op, name),
        };
        self.each_entry(&kept, 0, &mut look_up, &mut |entry| {
            count = count.saturating_add(u32::from(entry.kind == Kind::Directory));
            true
        })?;
        {
            let slot = dir.listing.lock();
            if names.is_some() && slot.kept().is_some_and(|now| Arc::ptr_eq(&now, &kept)) {
                dir.subdirs.store(count, Ordering::Release);
            }
        }
        drop(names);
        Ok(count)
    }
}

impl UnionVnode {
    /// Returns a value that changes with each change of an entry in a part other than the leftmost.
    /// Changes in the leftmost part are visible in the directory's times, which users see.
    pub(crate) fn parts_stamp(&self, cx: &Cx<'_>) -> u64 {
        let generation = self.core.branches.generation();
        let stack = if self.is_valid_in(generation) { self.stack() } else { self.run_read(cx, |_| self.stack()) };
        let Ok(stack) = stack else { return 0 };
        let Some((first, others)) = stack.split_first() else { return 0 };
        let mut stamp = first.vnode.listing_stamp(cx).unwrap_or_default() ^ self.listing_epoch();
        if generation != BranchSet::FIRST {
            stamp ^= mix(generation);
        }
        if others.is_empty() {
            return stamp;
        }
        let set = self.core.branches.get();
        let Ok(checked) = self.part_stamps(&Op::new(cx, &set), &stack) else { return stamp };
        let stamps = checked.stamps;
        mix(stamp ^ stamps.digest(|| digest(others, stamps.get(1..).unwrap_or_default())))
    }
}

/// Returns a value that depends on parts and their stamps.
fn digest(parts: &[Lower], stamps: &[Result<Stamp>]) -> u64 {
    let mut digest = 0_u64;
    for (part, of_part) in parts.iter().zip(stamps) {
        let mut add = |value: u64| digest = mix(digest.rotate_left(1) ^ value);
        add(u64::from(part.branch.0));
        add(part.vnode.id());
        match of_part {
            Ok((mtime, ctime, inner)) => {
                add(inner.unwrap_or_default());
                for time in [mtime, ctime] {
                    add(time.sec.cast_unsigned());
                    add(u64::from(time.nsec));
                }
            }
            Err(errno) => add(u64::from(errno.raw_os_error().unsigned_abs())),
        }
    }
    digest
}

impl UnionVnode {
    /// Returns a value that changes when a listing expires that was used after own changes
    /// ([`Validity::Until`]): readers may have missed an out-of-band change until then.
    fn listing_epoch(&self) -> u64 {
        let Some(dir) = &self.dir else { return 0 };
        let mut slot = dir.listing.lock();
        if slot.until.take_if(|until| *until <= Instant::now()).is_some() {
            slot.epoch += 1;
        }
        mix(slot.epoch)
    }
}

impl UnionVnode {
    /// Lists a directory that can never merge a second part, with the lower directory's cookies.
    fn list_lower(
        &self,
        op: &Op<'_>,
        dir: &Lower,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if op.set.has_redirects(dir.branch) {
            return self.list_lower_by_batches(op, dir, cookie, sink);
        }
        let tag = op.set.branch(dir.branch)?.tag;
        // The position after the last entry that was listed, and whether the next one has to be
        // looked up for its number.
        let (mut after, mut is_unclear) = (cookie, false);
        dir.vnode.readdir(op, cookie, &mut |entry| {
            let more = match classify(entry.name.as_bytes()) {
                Listed::Plain => match self.core.clear_number(tag, entry.ino) {
                    Some(number) => sink(&DirEntry { ino: self.core.shown(number), ..*entry }),
                    None => {
                        is_unclear = true;
                        false
                    }
                },
                _ => true,
            };
            if more {
                after = entry.cookie;
            }
            more
        })?;
        if is_unclear { self.list_lower_by_batches(op, dir, after, sink) } else { Ok(()) }
    }

    /// As [`Self::list_lower`], where entries may have to be looked up for their numbers:
    /// subdirectories that may have redirects, and files whose own number another one has.
    fn list_lower_by_batches(
        &self,
        op: &Op<'_>,
        dir: &Lower,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut after = cookie;
        loop {
            let mut batch: Vec<(u64, u64, Kind, Box<[u8]>)> = Vec::new();
            dir.vnode.readdir(op, after, &mut |entry| {
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
                let seen = Seen { part: 0, ino: *ino, kind: *kind };
                let ino = self.item_number(op, std::slice::from_ref(dir), name, &seen)?;
                if !sink(&DirEntry { cookie: *cookie, ino: self.core.shown(ino), kind: *kind, name }) {
                    return Ok(());
                }
            }
        }
    }

    /// Returns the number of an entry of a merged directory.
    fn merged_number(&self, op: &Op<'_>, stack: &Stack, name: Name<'_>, seen: &Seen) -> Result<u64> {
        if seen.kind != Kind::Directory {
            return self.item_number(op, stack, name, seen);
        }
        let parts = self.parts_for(op, stack, name, Need::Nothing)?;
        match (&parts, stack.get(seen.part)) {
            // It can't merge another part.
            (Parts::Some(only), Some(lower)) if only.len() == 1 && !op.set.has_redirects(lower.branch) => {
                self.core.listed_number(op, lower, name, seen.ino)
            }
            (Parts::Some(some), Some(lower)) => match some.iter().position(|part| part.branch == lower.branch) {
                Some(part) => self.item_number(op, some, name, &Seen { part, ..*seen }),
                None => self.item_number(op, stack, name, seen),
            },
            _ => self.item_number(op, stack, name, seen),
        }
    }

    /// Returns the number of an entry.
    fn item_number(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>, seen: &Seen) -> Result<u64> {
        let Some(lower) = stack.get(seen.part) else { return Ok(seen.ino) };
        let moved = op.set.has_redirects(lower.branch);
        if seen.kind != Kind::Directory || (seen.part + 1 == stack.len() && !moved) {
            return self.core.listed_number(op, lower, name, seen.ino);
        }
        match self.core.probe(op, stack, name).map(|probe| probe.hit) {
            Ok(Hit::Dir { stack, .. }) => self.subdir_number(op, name, &stack),
            // A server without privileges may not read the marks in each directory.
            Ok(Hit::Leaf { .. } | Hit::None) | Err(Errno::ACCESS) => self.core.listed_number(op, lower, name, seen.ino),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the number of a subdirectory with this stack.
    fn subdir_number(&self, op: &Op<'_>, name: Name<'_>, stack: &[Lower]) -> Result<u64> {
        let number = self.core.directory_number(op, stack)?;
        let live = self.core.renumbered(op, number, (self, name.as_bytes()), stack)?;
        Ok(live.map_or(number, |live| live.id))
    }

    /// Returns number and kind of the object that a name leads to.
    fn shown_entry(&self, op: &Op<'_>, name: Name<'_>, hit: &Hit) -> Result<Option<(u64, Kind)>> {
        Ok(match hit {
            Hit::None => None,
            Hit::Leaf { branch, entry } => {
                let lower = Lower { vnode: entry.vnode.clone(), branch: *branch };
                Some((self.core.number_of(op, &lower, &entry.attr)?, lower.vnode.kind()))
            }
            Hit::Dir { stack, .. } => Some((self.subdir_number(op, name, stack)?, Kind::Directory)),
        })
    }

    /// Merges the directory, and builds its name index from what is read.
    fn merge_indexed(&self, op: &Op<'_>, dir: &Dir, stack: &Stack, stamps: &[Result<Stamp>]) -> Result<Listing> {
        if !self.is_indexable(op, stack) {
            let Collected { seen, work, .. } = self.core.collect(op, stack, false, &mut |_, _| {})?;
            return self.number_all(op, stack, seen, work);
        }
        let begun = (Instant::now(), Watched::of(op.set, stack));
        let before = dir.known.lock().get_or_insert_default().begin_reading();
        let mut names: Vec<Vec<u64>> = vec![Vec::new(); stack.len()];
        let collected = self.core.collect(op, stack, true, &mut |part, name| {
            if let Some(names) = names.get_mut(part) {
                names.push(hash(name));
            }
        });
        let read = match &collected {
            Ok(Collected { work, .. }) if *work > MOST_ENTRIES => Ok(None),
            Ok(Collected { exact, .. }) => {
                let mut parts = Vec::with_capacity(stack.len());
                for (((part, names), stamp), exact) in stack.iter().zip(names).zip(stamps).zip(exact) {
                    parts.push(match *stamp {
                        Ok(stamp) if exact.unwrap_or_else(|| part.vnode.lists_exactly(op)) => {
                            PartNames::Read { names, stamp }
                        }
                        Ok(_) => PartNames::Inexact,
                        Err(_) => PartNames::Failed,
                    });
                }
                Ok(Some(parts))
            }
            Err(errno) => Err(*errno),
        };
        // It can only return the error of the merge.
        let _ = self.store_index(op, dir, stack, (before, begun), read);
        let Collected { seen, work, .. } = collected?;
        self.number_all(op, stack, seen, work)
    }

    /// Returns the listing of these names, with their numbers.
    fn number_all(&self, op: &Op<'_>, stack: &Stack, seen: AllSeen, work: usize) -> Result<Listing> {
        let mut listing = Listing::with_capacity(seen.len(), self.core.options.numbers == Numbers::Narrow);
        listing.work = work;
        let (kept, collisions) = if listing.is_narrow() {
            let slot = self.dir()?.listing.lock();
            (slot.kept(), slot.collisions())
        } else {
            (None, None)
        };
        let (placed, gone) = {
            let kept = kept.as_ref().map(|kept| kept.lock());
            let old = kept.as_ref().map(|kept| &kept.listing).or(collisions.as_deref());
            listing.place(old, seen.into_iter().collect())
        };
        let mut gone = gone.into_iter().peekable();
        for (cookie, name, seen) in placed {
            while let Some((cookie, name, ())) = gone.next_if(|(before, ..)| *before < cookie) {
                listing.push_gone(cookie, &name)?;
            }
            let ino = self.merged_number(op, stack, Name::new(&name)?, &seen)?;
            listing.push(cookie, &name, ino, seen.kind)?;
        }
        for (cookie, name, ()) in gone {
            listing.push_gone(cookie, &name)?;
        }
        Ok(listing)
    }
}

impl UnionVnode {
    /// Returns the part whose position `cookie` is, if a reader continues that began when the part
    /// was passed on. Positions in merged listings are hashes, so both have one in common only by
    /// an improbable chance.
    fn part_of_reader(&self, op: &Op<'_>, cookie: u64) -> Result<Option<Lower>> {
        let dir = self.dir()?;
        let (lower, known, lost, was_merged, kept) = {
            let slot = dir.listing.lock();
            let readers = &slot.readers;
            (readers.lower, readers.positions.clone(), readers.lost, readers.had_merged(cookie), slot.kept())
        };
        let Some(part) = lower.map(|branch| self.part(branch)).transpose()?.flatten() else { return Ok(None) };
        let has = |positions: &[u64]| positions.binary_search(&cookie).is_ok();
        if known.as_deref().is_some_and(has) {
            return Ok(Some(part));
        }
        if was_merged || kept.is_some_and(|kept| kept.lock().listing.is_taken(cookie)) {
            return Ok(None);
        }
        op.require_blocking()?;
        // Those of entries that were removed since remain known.
        let mut positions = known.map(|known| known.to_vec()).unwrap_or_default();
        part.vnode.readdir(op, 0, &mut |entry| {
            positions.push(entry.cookie);
            true
        })?;
        positions.sort_unstable();
        positions.dedup();
        // Else it is that of an entry which was removed before: merged listings never had it.
        let is_lower = has(&positions) || !lost;
        dir.listing.lock().readers.positions = Some(positions.into());
        Ok(is_lower.then_some(part))
    }

    /// Passes on the rest of a part, with its own positions, less what is not visible any more.
    fn continue_lower(
        &self,
        op: &Op<'_>,
        part: &Lower,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        op.require_blocking()?;
        let mut after = cookie;
        loop {
            let mut batch: Vec<(u64, Box<[u8]>)> = Vec::new();
            part.vnode.readdir(op, after, &mut |entry| {
                let room = batch.len() < BATCH;
                if room {
                    batch.push((entry.cookie, entry.name.as_bytes().into()));
                }
                room
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            for (cookie, name) in &batch {
                op.check()?;
                after = *cookie;
                if reserved(name) {
                    continue;
                }
                let name = Name::new(name)?;
                let found: Option<(u64, Kind)> = self.listed_now(op, name)?;
                if let Some((ino, kind)) = found
                    && !sink(&DirEntry { cookie: *cookie, ino: self.core.shown(ino), kind, name })
                {
                    return Ok(());
                }
            }
        }
    }
}

/// Name, number and kind of an entry.
type Read = (Box<[u8]>, u64, Kind);

/// Reads all entries of a part.
fn read_all(op: &Op<'_>, part: &Lower) -> Result<Vec<Read>> {
    let mut entries = Vec::new();
    part.vnode.readdir(op, 0, &mut |entry| {
        entries.push((entry.name.as_bytes().into(), entry.ino, entry.kind));
        true
    })?;
    Ok(entries)
}

impl Core {
    /// Returns the number of the file with this lower number, which was listed in `part`.
    fn listed_number(&self, op: &Op<'_>, part: &Lower, name: Name<'_>, lower: u64) -> Result<u64> {
        let tag = op.set.branch(part.branch)?.tag;
        if let Some(number) = self.clear_number(tag, lower) {
            return Ok(number);
        }
        match part.vnode.lookup(op, name)? {
            Some(entry) => self.number_of(op, &Lower { vnode: entry.vnode, branch: part.branch }, &entry.attr),
            None => Ok(compose(tag, lower)),
        }
    }

    /// Returns the number of a lower file on the branch with this tag. `None` if that depends on
    /// its generation, because the number that follows from `lower` is another one's alias.
    fn clear_number(&self, tag: u16, lower: u64) -> Option<u64> {
        if let Some(alias) = self.identity.alias(tag, lower) {
            return Some(alias.number);
        }
        let number = compose(tag, lower);
        (!self.identity.is_alias(number)).then_some(number)
    }

    /// Reads all parts. `ask_exact`: asks slow ones at the same time whether they list exactly.
    /// `note` is called with each name that is read, and its part's position.
    fn collect(
        &self,
        op: &Op<'_>,
        stack: &Stack,
        ask_exact: bool,
        note: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<Collected> {
        let mut seen = AllSeen::new();
        let mut work = 0;
        let mut hidden = Hidden::default();
        let lists_exactly = |op: &Op<'_>, part: &Lower| Ok(part.vnode.lists_exactly(op));
        let (asked, exact) = ask_both(op, stack, read_all, ask_exact.then_some(&lists_exactly));
        for ((part, dir), asked) in stack.iter().enumerate().zip(asked) {
            let mut hides = Hidden::default();
            let mut too_many = false;
            let mut take = |name: &[u8], ino, kind| {
                work += 1;
                note(part, name);
                match classify(name) {
                    Listed::Plain if !seen.contains_key(name) && !hidden.hides(name) => {
                        seen.insert(name.into(), Seen { part, ino, kind });
                    }
                    Listed::Plain | Listed::Mark => {}
                    Listed::Whiteout(name) => drop(hides.names.insert(name.into())),
                    Listed::LongWhiteout(digest) => drop(hides.digests.insert(digest.into())),
                }
                too_many = work > NONBLOCKING_ENTRIES && !op.may_block;
                !too_many
            };
            match asked {
                Some(entries) => drop(entries?.iter().all(|(name, ino, kind)| take(name, *ino, *kind))),
                None => dir.vnode.readdir(op, 0, &mut |entry| take(entry.name.as_bytes(), entry.ino, entry.kind))?,
            }
            if too_many {
                op.require_blocking()?;
            }
            op.check()?;
            hidden.names.extend(hides.names);
            hidden.digests.extend(hides.digests);
        }
        let exact = exact.into_iter().map(|answer| answer?.ok()).collect();
        Ok(Collected { seen, work, exact })
    }

    /// Whether no entry is visible in the directory.
    pub(crate) fn appears_empty(&self, op: &Op<'_>, stack: &Stack) -> Result<bool> {
        if let [only] = &**stack {
            let mut empty = true;
            only.vnode.readdir(op, 0, &mut |entry| {
                empty = classify(entry.name.as_bytes()) != Listed::Plain;
                empty
            })?;
            return Ok(empty);
        }
        Ok(self.collect(op, stack, false, &mut |_, _| {})?.seen.is_empty())
    }
}
