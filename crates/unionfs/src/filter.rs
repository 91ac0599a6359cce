//! Which parts of a merged directory an operation on a name has to ask: "The name index" in
//! docs/design/unionfs.md.

use crate::branch::{BranchId, Lower, Stack};
use crate::known::{Checked, Known, Plan, Reread};
use crate::listing::{PartStamps, Stamp, Stamps};
use crate::lookup::{Hit, Probe};
use crate::metacopy::metacopy_name;
use crate::names::{NameIndex, PartNames, hash};
use crate::node::{Core, Dir, UnionVnode};
use crate::op::Op;
use crate::parallel::ask_slow;
use crate::watched::Watched;
use crate::whiteout::WhiteoutName;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use vnode::{Errno, MAY_BLOCK, Name, Result};

/// A directory with fewer parts has no index: asking them costs less than keeping it.
const FEWEST_PARTS: usize = 3;
/// The index is built after this many lookups in vain for each part. Reading a part costs about as
/// much as ten lookups.
const MISSES_PER_PART: usize = 4;
/// A directory whose parts have more entries in total has no index.
pub(crate) const MOST_ENTRIES: usize = 1 << 22;
/// A directory with more different names has no index.
const MOST_NAMES: usize = 1 << 19;
/// Maximum number of parts to read or verify on a thread that serves other callers.
const NONBLOCKING_PARTS: usize = 64;
/// Number of attempts to verify an index that other threads invalidate.
const ATTEMPTS: usize = 4;
/// Maximum number of names to read on such a thread.
const NONBLOCKING_NAMES: usize = 8192;

/// The parts to ask for a name.
pub(crate) enum Parts {
    /// All.
    All(Stack),
    /// Some, from left to right. The others have neither the name nor a whiteout or metacopy of it.
    Some(Vec<Lower>),
}

impl Deref for Parts {
    type Target = [Lower];

    fn deref(&self) -> &[Lower] {
        match self {
            Self::All(stack) => stack,
            Self::Some(parts) => parts,
        }
    }
}

/// Which parts an operation needs besides those that may have the name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// None: a lookup.
    Nothing,
    /// The leftmost part, to change an entry there.
    Leftmost,
}

impl UnionVnode {
    /// Looks a name up in this directory, whose parts are `stack`. Asks only the parts that may
    /// have it.
    pub(crate) fn probe(&self, op: &Op<'_>, stack: &Stack, name: Name<'_>) -> Result<Probe> {
        let parts = self.parts_for(op, stack, name, Need::Nothing)?;
        let probe = match op.set.isolated {
            false => self.core.probe(op, &parts, name)?,
            true => self.probe_isolated(op, &parts, name)?,
        };
        if matches!(parts, Parts::All(_)) && self.is_indexable(op, stack) {
            self.count_misses(op, stack, &probe);
        }
        Ok(probe)
    }

    /// As [`Core::probe`], where a branch may hang or be lost. Every path leads through directories
    /// that merge such a branch: a subdirectory in use is found without it.
    fn probe_isolated(&self, op: &Op<'_>, parts: &Parts, name: Name<'_>) -> Result<Probe> {
        match self.core.probe(&op.without_waiting(), parts, name) {
            Err(errno @ (Errno::TIMEDOUT | Errno::IO)) => match self.probe_in_use(op, name) {
                Some(probe) => Ok(probe),
                // The answer is needed.
                None if errno == Errno::TIMEDOUT => self.core.probe(op, parts, name),
                None => Err(errno),
            },
            probe => probe,
        }
    }

    /// Returns the subdirectory of this name that is in use, as it was when it was last looked up.
    fn probe_in_use(&self, op: &Op<'_>, name: Name<'_>) -> Option<Probe> {
        let is_it = |vnode: &Arc<Self>| {
            vnode.dir.is_some()
                && vnode.is_at(self, name.as_bytes())
                && vnode.is_current(op.set)
                && !vnode.is_gone()
                && !vnode.is_detached()
        };
        let found = self.core.table.live().into_iter().find(is_it)?;
        let stack = found.stack().ok()?.to_vec();
        let attr = stack.first()?.vnode.getattr(&op.without_waiting()).ok()?;
        let redirect = found.dir.as_ref()?.redirect.lock().clone();
        Some(Probe { hit: Hit::Dir { stack, attr, redirect }, whiteout: None })
    }

    /// Whether the directory can have a name index.
    pub(crate) fn is_indexable(&self, op: &Op<'_>, stack: &Stack) -> bool {
        stack.len() >= FEWEST_PARTS && !self.core.options.check_interval.is_zero() && op.set.lists_exactly
    }

    /// Counts the parts that were asked in vain.
    fn count_misses(&self, op: &Op<'_>, stack: &Stack, probe: &Probe) {
        let asked = |branch: BranchId| op.set.position(branch).min(stack.len());
        let misses = match &probe.hit {
            Hit::Dir { stack: found, .. } => stack.len().saturating_sub(found.len()),
            Hit::Leaf { branch, .. } => asked(*branch),
            Hit::None => probe.whiteout.map_or(stack.len(), asked),
        };
        if misses > 0
            && let Some(dir) = &self.dir
        {
            let mut known = dir.known.lock();
            known.get_or_insert_default().misses += misses;
        }
    }

    /// Returns the leftmost part, and the parts that may have a name, or a whiteout or metacopy of
    /// it: for an operation that changes the entry.
    pub(crate) fn parts(&self, op: &Op<'_>, name: Name<'_>) -> Result<Parts> {
        self.parts_for(op, &self.stack()?, name, Need::Leftmost)
    }

    /// Returns the parts that may have a name, or a whiteout or metacopy of it.
    pub(crate) fn parts_for(&self, op: &Op<'_>, stack: &Stack, name: Name<'_>, need: Need) -> Result<Parts> {
        let interval = self.core.options.check_interval;
        let all = || Ok(Parts::All(stack.clone()));
        if !self.is_indexable(op, stack) {
            return all();
        }
        let dir = self.dir()?;
        let (present, fresh, reread) = {
            let mut known = dir.known.lock();
            let Some(known) = known.as_mut() else { return all() };
            let price = known.price.max(MISSES_PER_PART * stack.len());
            let build = known.misses >= price;
            match known.index(stack) {
                Some(index) => (true, index.is_fresh(interval), index.worth_reading()),
                None if build => (false, false, None),
                None => return all(),
            }
        };
        let ready = match (present, fresh, reread) {
            (false, _, _) => self.build_index(op, dir, stack),
            (true, false, _) => self.verify_index(op, dir, stack),
            (true, true, Some(open)) => self.reread(op, dir, stack, &open),
            (true, true, None) => Ok(()),
        };
        match ready {
            Err(errno @ (MAY_BLOCK | Errno::INTR)) => return Err(errno),
            // The parts that failed are asked, and report the error if they are needed.
            Err(_) => return all(),
            Ok(()) => {}
        }
        Ok(chosen(dir, stack, name, need)?.map_or_else(|| Parts::All(stack.clone()), Parts::Some))
    }

    /// Reads the names of all parts.
    fn build_index(&self, op: &Op<'_>, dir: &Dir, stack: &Stack) -> Result<()> {
        if stack.len() > NONBLOCKING_PARTS {
            op.require_blocking()?;
        }
        let begun = (Instant::now(), Watched::of(op.set, stack));
        let before = dir.known.lock().get_or_insert_default().begin_reading();
        let all: Vec<u16> = (0..).take(stack.len()).collect();
        let read = self.read_names(op, stack, &all);
        self.store_index(
            op,
            dir,
            stack,
            (before, begun),
            read.map(|read| read.map(|read| read.into_iter().map(|(_, names)| names).collect())),
        )
    }

    /// Ends the building of an index with what was read. `None`: too many names.
    pub(crate) fn store_index(
        &self,
        op: &Op<'_>,
        dir: &Dir,
        stack: &Stack,
        (before, begun): (usize, (Instant, Arc<Watched>)),
        read: Result<Option<Vec<PartNames>>>,
    ) -> Result<()> {
        let writable = (0..).zip(stack.iter()).filter(|(_, part)| op.set.writable(part.branch)).map(|(at, _)| at);
        let (read, failed) = match read {
            Ok(read) => (read, None),
            Err(errno) => (None, Some(errno)),
        };
        let mut index = read.map(|read| NameIndex::new(stack.clone(), writable.collect(), read, begun));
        if index.as_ref().is_some_and(|index| index.is_useless() || index.len() > MOST_NAMES) {
            index = None;
        }
        let names = index.as_ref().map(NameIndex::len);
        let installed = {
            let mut known = dir.known.lock();
            let known = known.get_or_insert_default();
            known.price = if names.is_some() || failed.is_some() { 0 } else { MOST_NAMES };
            known.end_reading(before, |slot| *slot = index)
        };
        if let (Some(names), true) = (names, installed) {
            self.core.indexes.remember(&self.arc()?, names);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Reads the names of some open parts again.
    fn reread(&self, op: &Op<'_>, dir: &Dir, stack: &Stack, open: &[u16]) -> Result<()> {
        if open.len() > NONBLOCKING_PARTS {
            op.require_blocking()?;
        }
        let begun = Instant::now();
        let before = dir.known.lock().get_or_insert_default().begin_reading();
        let read = self.read_names(op, stack, open);
        let (read, failed) = match read {
            Ok(read) => (read, None),
            Err(errno) => (None, Some(errno)),
        };
        dir.known.lock().get_or_insert_default().end_reading(before, |slot| {
            let kept = match (slot.as_mut(), read) {
                (Some(index), Some(read)) if Arc::ptr_eq(&index.stack, stack) => index.replace(read, begun),
                (_, read) => read.is_some() || failed.is_some(),
            };
            if !kept {
                *slot = None;
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Reads the names of the parts at these positions. `None` if there are too many.
    fn read_names(&self, op: &Op<'_>, stack: &Stack, which: &[u16]) -> Result<Option<Vec<(u16, PartNames)>>> {
        let mut total = 0;
        let mut read = Vec::with_capacity(which.len());
        let op = &op.without_waiting();
        let parts: Vec<Lower> = which.iter().filter_map(|&at| stack.get(usize::from(at)).cloned()).collect();
        let asked = ask_slow(op, &parts, |op, part| {
            let mut count = 0;
            part_names(op, part, &mut count).map(|names| (names, count))
        });
        for ((&at, part), asked) in which.iter().zip(&parts).zip(asked) {
            op.check()?;
            let one = match asked {
                Some(answer) => answer.map(|(names, count)| {
                    total += count;
                    names
                }),
                None => part_names(op, part, &mut total),
            };
            let one = match one {
                Err(errno @ (MAY_BLOCK | Errno::INTR)) => return Err(errno),
                // It is asked, and reports the error if it is needed.
                Err(_) => PartNames::Failed,
                Ok(one) => one,
            };
            if total > MOST_ENTRIES {
                return Ok(None);
            }
            read.push((at, one));
        }
        Ok(Some(read))
    }

    /// Verifies that the parts are as they were when the index was built.
    fn verify_index(&self, op: &Op<'_>, dir: &Dir, stack: &Stack) -> Result<()> {
        let begun = Instant::now();
        let watched = dir.known.lock().as_mut().and_then(|known| known.index(stack)?.watched().cloned());
        let watched = watched.filter(|watched| self.is_proved(watched));
        for _ in 0..ATTEMPTS {
            let is_watched = watched.as_ref().is_some_and(|watched| watched.unreported.is_empty());
            let checked = if is_watched { None } else { Some(self.part_stamps(op, stack)?) };
            let mut known = dir.known.lock();
            let Some(known) = known.as_mut() else { return Ok(()) };
            if checked.as_ref().is_some_and(|checked| !known.is_current(checked)) {
                // Something unknown has changed since.
                continue;
            }
            match (known.index(stack), checked, &watched) {
                (Some(index), None, Some(watched)) => index.renew(watched, begun),
                (Some(index), Some(checked), Some(watched)) => {
                    index.compare(watched.unreported.iter().copied(), &checked.stamps);
                    index.renew(watched, checked.at.min(begun));
                }
                (Some(index), Some(checked), None) => index.verify(&checked.stamps, checked.at, checked.watched),
                (None, ..) | (_, None, None) => {}
            }
            return Ok(());
        }
        Err(Errno::AGAIN)
    }

    /// Whether all changes of the watched parts that were complete before this call were reported
    /// to this vnode.
    fn is_proved(&self, watched: &Watched) -> bool {
        // Reports reach only the vnode that the table returns.
        watched.is_complete() && self.arc().is_ok()
    }

    /// Returns the stamps of the directory's parts: values that change with each change of an entry
    /// in one of them. They were up to date at most [`crate::Options::check_interval`] ago.
    pub(crate) fn part_stamps(&self, op: &Op<'_>, stack: &Stack) -> Result<Checked> {
        let dir = self.dir()?;
        let interval = self.core.options.check_interval;
        let begun = Instant::now();
        let changes = dir.changes.load(Ordering::Acquire);
        let expired = dir.known.lock().get_or_insert_default().expired(stack, interval);
        // Before what was reported is considered.
        let proved = expired.filter(|watched| self.is_proved(watched));
        let plan = dir.known.lock().get_or_insert_default().plan(stack, (changes, begun), interval, proved.as_ref());
        let (stamps, watched) = match &plan.reread {
            Reread::All => {
                let watched = Watched::of(op.set, stack);
                let all: Vec<usize> = (0..stack.len()).collect();
                (read_stamps(op, stack, &all)?.into_iter().collect::<PartStamps>().into(), watched)
            }
            Reread::Some { of, .. } => (some_stamps(op, stack, &plan)?, of.watched.clone()),
        };
        let mut known = dir.known.lock();
        Ok(known.get_or_insert_default().store(&plan, stack, stamps, watched))
    }
}

/// Returns the stamps of all parts, of which those are read that `plan` says.
fn some_stamps(op: &Op<'_>, stack: &Stack, plan: &Plan) -> Result<Stamps> {
    let Reread::Some { of, unreported, writable, reported } = &plan.reread else { return Ok(Stamps::default()) };
    if !unreported && !writable && reported.is_empty() {
        return Ok(of.stamps.clone());
    }
    let is_read = |at: usize, part: &Lower| {
        *writable && op.set.writable(part.branch)
            || reported.contains(&part.branch)
            || *unreported && u16::try_from(at).is_ok_and(|at| of.watched.unreported.binary_search(&at).is_ok())
    };
    let which: Vec<usize> =
        stack.iter().enumerate().filter(|(at, part)| is_read(*at, part)).map(|(at, _)| at).collect();
    let read = read_stamps(op, stack, &which)?;
    if which.iter().zip(&read).all(|(&at, stamp)| of.stamps.get(at) == Some(stamp)) {
        return Ok(of.stamps.clone());
    }
    let mut stamps = of.stamps.to_vec();
    for (&at, stamp) in which.iter().zip(read) {
        if let Some(slot) = stamps.get_mut(at) {
            *slot = stamp;
        }
    }
    Ok(stamps.into_iter().collect::<PartStamps>().into())
}

/// Reads the stamps of the parts at these positions.
fn read_stamps(op: &Op<'_>, stack: &Stack, which: &[usize]) -> Result<Vec<Result<Stamp>>> {
    if which.len() > NONBLOCKING_PARTS {
        op.require_blocking()?;
    }
    let parts: Vec<Lower> = which.iter().filter_map(|&at| stack.get(at).cloned()).collect();
    let asked = ask_slow(op, &parts, stamp_of);
    let answer = |(part, asked): (&Lower, Option<Result<Stamp>>)| asked.unwrap_or_else(|| stamp_of(op, part));
    Ok(parts.iter().zip(asked).map(answer).collect())
}

/// Returns the parts that may have the name according to the index; `None` if it is of no use.
fn chosen(dir: &Dir, stack: &Stack, name: Name<'_>, need: Need) -> Result<Option<Vec<Lower>>> {
    let whiteout = hash(WhiteoutName::of(name.as_bytes()).name()?.as_bytes());
    let mut names = vec![hash(name.as_bytes()), whiteout];
    names.extend(metacopy_name(name).map(|name| hash(&name)));
    let mut known = dir.known.lock();
    let Some(index) = known.as_mut().and_then(|known| known.index(stack)) else { return Ok(None) };
    let Some(mut chosen) = index.candidates(&names, stack.len()) else { return Ok(None) };
    let last = u16::try_from(stack.len() - 1).map_err(|_| Errno::OVERFLOW)?;
    // A whiteout in the last part is not looked for: so another part follows one that may have
    // a whiteout.
    if chosen.last().is_some_and(|&at| at != last && index.may_have(at, whiteout, names.first().copied())) {
        chosen.push(last);
    }
    if need == Need::Leftmost && chosen.first() != Some(&0) {
        chosen.insert(0, 0);
    }
    drop(known);
    Ok(Some(chosen.iter().filter_map(|&at| stack.get(usize::from(at)).cloned()).collect()))
}

/// Returns a value that changes with each change of an entry in a lower directory. Does not wait
/// for
/// a branch that hangs.
pub(crate) fn stamp_of(op: &Op<'_>, part: &Lower) -> Result<Stamp> {
    let op = &op.without_waiting();
    let stamp = part.vnode.listing_stamp(op);
    part.vnode.getattr(op).map(|attr| (attr.mtime, attr.ctime, stamp))
}

/// Reads the names of a part. `total` counts the names of all parts.
fn part_names(op: &Op<'_>, part: &Lower, total: &mut usize) -> Result<PartNames> {
    let stamp = stamp_of(op, part)?;
    if !part.vnode.lists_exactly(op) {
        return Ok(PartNames::Inexact);
    }
    let mut names = Vec::new();
    let most = if op.may_block { MOST_ENTRIES } else { NONBLOCKING_NAMES };
    part.vnode.readdir(op, 0, &mut |entry| {
        names.push(hash(entry.name.as_bytes()));
        *total += 1;
        *total <= most
    })?;
    if *total > most {
        op.require_blocking()?;
    }
    Ok(PartNames::Read { names, stamp })
}

impl Core {
    /// Makes the union read the stamps of a directory's parts before it uses again what it knows of
    /// them: for a change of unknown parts.
    pub(crate) fn directory_changed(&self, dir: &UnionVnode) {
        if let Some(dir) = &dir.dir
            && let Some(known) = dir.known.lock().as_mut()
        {
            Known::expire(known, self.options.check_interval);
        }
    }

    /// As [`Self::directory_changed`], for a report that an entry of the part on `branch` changed.
    pub(crate) fn part_changed(&self, dir: &UnionVnode, branch: BranchId) {
        if let Some(dir) = &dir.dir
            && let Some(known) = dir.known.lock().as_mut()
        {
            Known::report(known, branch);
        }
    }
}
