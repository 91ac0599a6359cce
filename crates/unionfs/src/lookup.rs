//! Lookup of a name in a directory: docs/design/unionfs.md, "Operations".

use crate::branch::{BranchId, Lower, Stack, is_dir, same_stack};
use crate::entry_lock::Certainty;
use crate::metacopy::leftmost_branch;
use crate::node::{Core, Dir, NegativeLookup, Place, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::{Found, OPAQUE, Onward, Walk, components};
use crate::parallel::ask_both;
use crate::set::BranchSet;
use crate::shortname::ShortName;
use crate::whiteout::{OLD_OPAQUE, reserved};
use parking_lot::RwLockReadGuard;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vnode::{Attr, Entry, Errno, Name, Result};

/// How long a cached negative lookup is valid. A file that is created out of band is found after
/// this time at the latest.
const NEGATIVE_TTL: Duration = Duration::from_secs(1);

/// The object that a name resolves to, and its attributes; `None` if there is none.
type Shown = Option<(Arc<UnionVnode>, Attr)>;

/// The lower objects that a name resolves to, for which a union vnode is to be found or created.
#[derive(Debug)]
pub(crate) enum Hit {
    /// No object.
    None,
    /// An object that is not a directory.
    Leaf {
        /// The leftmost branch that has the name.
        branch: BranchId,
        /// The lower object on that branch. It hides those on branches further right.
        entry: Entry,
    },
    /// A directory.
    Dir {
        /// The parts that it merges; not empty.
        stack: Vec<Lower>,
        /// Attributes of the leftmost part.
        attr: Attr,
        /// The redirect of its part on the union's leftmost branch, if there is one.
        redirect: Option<Box<[u8]>>,
    },
}

/// The result of [`Core::probe`].
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) hit: Hit,
    /// The branch of the whiteout that ended the search, if one did.
    pub(crate) whiteout: Option<BranchId>,
}

impl Probe {
    /// Returns the branch on which the name is visible, if it is.
    pub(crate) fn branch(&self) -> Option<BranchId> {
        match &self.hit {
            Hit::None => None,
            Hit::Leaf { branch, .. } => Some(*branch),
            Hit::Dir { stack, .. } => stack.first().map(|part| part.branch),
        }
    }

    /// Returns the position of the rightmost branch on which a new object of this name would be
    /// visible: that of the branch which now has the object, its metacopy or the whiteout.
    /// `usize::MAX` if there is none.
    pub(crate) fn bound(&self, set: &BranchSet) -> usize {
        let shown = match &self.hit {
            Hit::Leaf { branch, entry } => Some(leftmost_branch(&entry.vnode, *branch)),
            Hit::None | Hit::Dir { .. } => self.branch(),
        };
        shown.or(self.whiteout).map_or(usize::MAX, |branch| set.position(branch))
    }
}

/// The parts of a directory that were found so far.
#[derive(Default)]
struct Merge {
    stack: Vec<Lower>,
    attr: Option<Attr>,
    redirect: Option<Box<[u8]>>,
    /// The last part was not checked for an opaque mark. The check is postponed until another part
    /// is found to its right, because the mark has no effect otherwise.
    unchecked: bool,
    /// The result of that check, if it was made already.
    opaque: Option<bool>,
}

impl Merge {
    fn done(self, whiteout: Option<BranchId>) -> Probe {
        let hit = match self.attr {
            Some(attr) => Hit::Dir { stack: self.stack, attr, redirect: self.redirect },
            None => Hit::None,
        };
        Probe { hit, whiteout }
    }
}

impl Core {
    /// Looks `name` up in the directories of `stack`, from left to right.
    pub(crate) fn probe(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>) -> Result<Probe> {
        self.probe_with(op, stack, name, &mut Walk::new())
    }

    /// As [`Self::probe`], for one component of a longer path. `walk` limits the number of steps.
    pub(crate) fn probe_with(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>, walk: &mut Walk) -> Result<Probe> {
        let mut merge = Merge::default();
        let last = stack.last().map(|part| part.branch);
        let look_up = |op: &Op<'_>, part: &Lower| part.vnode.lookup(op, name);
        let is_hidden = |op: &Op<'_>, part: &Lower| Ok(Some(part.branch) != last && self.has_whiteout(op, part, name)?);
        let (asked, whiteouts) = ask_both(op, stack, look_up, Some(&is_hidden));
        let mut opaque = self.ask_opaque(op, stack, &asked);
        for (((index, part), asked), whiteout) in stack.iter().enumerate().zip(asked).zip(whiteouts) {
            walk.step()?;
            let more = index + 1 < stack.len();
            let entry = asked.unwrap_or_else(|| part.vnode.lookup(op, name))?;
            match entry {
                Some(entry) if is_dir(&entry.vnode) => {
                    if self.check_opaque(op, &mut merge)? {
                        return Ok(merge.done(None));
                    }
                    let found = Lower { vnode: entry.vnode, branch: part.branch };
                    let last = self.merge(op, &mut merge, (found, entry.attr), (stack, name), walk)?;
                    if last {
                        return Ok(merge.done(None));
                    }
                    merge.opaque = opaque.remove(&index);
                }
                Some(entry) if merge.stack.is_empty() => {
                    let left = stack.get(..index).unwrap_or_default();
                    let entry = self.with_metacopy(op, (left, name), part.branch, entry)?;
                    return Ok(Probe { hit: Hit::Leaf { branch: part.branch, entry }, whiteout: None });
                }
                // A file right of a directory is hidden, and hides everything further right.
                Some(_) => return Ok(merge.done(None)),
                None => {}
            }
            // A whiteout in the last directory would hide nothing.
            let hides = || whiteout.unwrap_or_else(|| self.has_whiteout(op, part, name));
            if more && hides()? {
                let whiteout = if self.check_opaque(op, &mut merge)? { None } else { Some(part.branch) };
                return Ok(merge.done(whiteout));
            }
        }
        Ok(merge.done(None))
    }

    /// Asks slow parts for the opaque marks of the directories that were found in them. Returns
    /// whether they have one, by the positions of the parts.
    fn ask_opaque(
        &self,
        op: &Op<'_>,
        stack: &[Lower],
        found: &[Option<Result<Option<Entry>>>],
    ) -> HashMap<usize, bool> {
        let mut dirs = Vec::new();
        for ((at, part), found) in stack.iter().enumerate().zip(found) {
            if let Some(Ok(Some(entry))) = found
                && is_dir(&entry.vnode)
            {
                dirs.push((at, Lower { vnode: entry.vnode.clone(), branch: part.branch }));
            }
        }
        // A mark in the last one would have no effect.
        dirs.pop();
        let parts: Vec<Lower> = dirs.iter().map(|(_, part)| part.clone()).collect();
        let has = |mark| move |op: &Op<'_>, part: &Lower| Ok(part.vnode.lookup(op, Name::new(mark)?)?.is_some());
        let (new, old) = ask_both(op, &parts, has(OPAQUE), Some(&has(OLD_OPAQUE)));
        let answers = dirs.iter().zip(new.into_iter().zip(old));
        answers.filter_map(|((at, _), (new, old))| Some((*at, new?.ok()? || old?.ok()?))).collect()
    }

    /// Whether the last part found so far is opaque, so that the directory has no parts further
    /// right. Checks the mark if [`Self::merge`] has postponed that.
    fn check_opaque(&self, op: &Op<'_>, merge: &mut Merge) -> Result<bool> {
        match merge.stack.last() {
            Some(part) if std::mem::take(&mut merge.unchecked) => match merge.opaque.take() {
                Some(opaque) => Ok(opaque),
                None => self.is_opaque(op, part),
            },
            _ => Ok(false),
        }
    }

    /// Adds a part to a directory, and the parts that its redirect leads to. Returns true if the
    /// directory has no other parts.
    fn merge(
        &self,
        op: &Op<'_>,
        merge: &mut Merge,
        (part, attr): (Lower, Attr),
        found: Found<'_>,
        walk: &mut Walk,
    ) -> Result<bool> {
        let onward = self.onward(op, &part, found, walk)?;
        let branch = part.branch;
        let leftmost = merge.stack.is_empty();
        let elsewhere = match &onward {
            Onward::Redirected(path) => self.resolve(op, &part, found, path, walk)?,
            Onward::ByName | Onward::Unchecked | Onward::Opaque => Vec::new(),
        };
        merge.stack.push(part);
        merge.attr.get_or_insert(attr);
        match onward {
            Onward::ByName => Ok(false),
            Onward::Unchecked => {
                merge.unchecked = true;
                Ok(false)
            }
            Onward::Opaque => Ok(true),
            Onward::Redirected(path) => {
                merge.stack.extend(elsewhere);
                if leftmost && op.set.is_leftmost(branch) {
                    merge.redirect = Some(path);
                }
                Ok(true)
            }
        }
    }

    /// Returns the parts of the directory at `path` on the branches right of `part`, which has a
    /// redirect to that path. Empty if there is no such directory.
    pub(crate) fn resolve(
        &self,
        op: &Op<'_>,
        part: &Lower,
        found: Found<'_>,
        path: &[u8],
        walk: &mut Walk,
    ) -> Result<Vec<Lower>> {
        let mut stack = op.set.roots_right_of(part.branch);
        for name in components(path) {
            match self.probe_with(op, &stack, name?, walk)?.hit {
                Hit::Dir { stack: next, .. } => stack = next,
                Hit::None | Hit::Leaf { .. } => {
                    self.warn_redirect(op, part, found, "leads to no directory on the branches to the right");
                    return Ok(Vec::new());
                }
            }
        }
        stack.retain(|part| is_dir(&part.vnode));
        Ok(stack)
    }

    /// Whether a lower object named `name` on a branch right of `branch` would be visible if there
    /// were neither an entry nor a whiteout of that name on `branch`.
    pub(crate) fn shows_through(&self, op: &Op<'_>, stack: &[Lower], branch: BranchId, name: Name<'_>) -> Result<bool> {
        let last = stack.last().map(|part| part.branch);
        for part in stack.iter().filter(|part| op.set.is_left(branch, part.branch)) {
            if part.vnode.lookup(op, name)?.is_some() {
                return Ok(true);
            }
            if Some(part.branch) != last && self.has_whiteout(op, part, name)? {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Returns the leftmost part of a directory with this stack if it can be written and no other
    /// branch affects `name`. An operation that removes or renames the name can then be forwarded
    /// to that part. Nothing has to be recorded: files of the leftmost branch are never copied up.
    ///
    /// Returns `None` as well if the union has aliases ([`crate::identity`]): the name may then
    /// belong to a copy, whose number is recorded.
    pub(crate) fn only_leftmost<'a>(
        &self,
        op: &Op<'_>,
        stack: &'a [Lower],
        name: Name<'_>,
    ) -> Result<Option<&'a Lower>> {
        let Some(first) = self.direct_leftmost(op, stack) else { return Ok(None) };
        let alone = !self.shows_through(op, stack, first.branch, name)?;
        Ok(alone.then_some(first))
    }

    /// Returns the part on the leftmost branch if an operation may be forwarded to it, once it is
    /// known that no other branch affects the name.
    pub(crate) fn direct_leftmost<'a>(&self, op: &Op<'_>, stack: &'a [Lower]) -> Option<&'a Lower> {
        let first = stack.first().filter(|first| op.set.is_leftmost(first.branch))?;
        let direct = op.set.writable(first.branch) && op.set.files_stay(first.branch) && !self.identity.has_aliases();
        direct.then_some(first)
    }

    /// Returns the vnode for the lower file `entry` on `branch`, which was found at `place`. If the
    /// file has several names and was copied up under another one, returns the vnode of the copy.
    pub(crate) fn present_leaf(
        self: &Arc<Self>,
        op: &Op<'_>,
        place: Place,
        branch: BranchId,
        entry: Entry,
    ) -> Result<(Arc<UnionVnode>, Attr)> {
        let (lower, attr) = self.follow_index(op, branch, entry)?;
        let number = self.number_of(op, &lower, &attr)?;
        let vnode = self.intern_leaf(op, number, place, &lower)?;
        vnode.note_names(attr.nlink);
        let attr = vnode.leaf_attr(attr);
        Ok((vnode, attr))
    }
}

/// The result of [`UnionVnode::stable_probe`], and the lock under which it is valid.
pub(crate) struct StableProbe<'a> {
    /// The shared entry lock. `None` if a writer holds it for long, see [`crate::entry_lock`], or
    /// if this directory was looked up without a lock itself.
    pub(crate) lock: Option<RwLockReadGuard<'a, ()>>,
    /// [`crate::entry_lock::EntryLock::transitions`] before the lookup.
    pub(crate) transitions: u64,
    pub(crate) stack: Stack,
    pub(crate) probe: Probe,
}

impl UnionVnode {
    /// Looks a name up in this directory, atomically: the result is the state before or after a
    /// concurrent change, never a state between two of its lower operations. An operation that
    /// changes objects always gets the lock.
    pub(crate) fn stable_probe(&self, op: &Op<'_>, name: Name<'_>) -> Result<StableProbe<'_>> {
        let entries = &self.dir()?.entry_lock;
        loop {
            // While objects move between branches, a writer can hold the lock for longer than a
            // frozen file system would justify, and what was found without it is outdated at once.
            let surely = op.changes || op.set.moving;
            let lock = if surely { Some(entries.read_surely(op)?) } else { entries.read(op)? };
            // What is found in an uncertain stack is uncertain too.
            let lock = lock.filter(|_| self.is_current(op.set));
            let transitions = entries.transitions();
            let stack = self.stack()?;
            let probe = self.probe(op, &stack, name)?;
            if lock.is_some() {
                return Ok(StableProbe { lock, transitions, stack, probe });
            }
            let again = self.probe(op, &stack, name)?;
            if entries.transitions() == transitions && is_same(&probe, &again) {
                return Ok(StableProbe { lock, transitions, stack, probe: again });
            }
            op.require_blocking()?;
            op.check()?;
        }
    }
}

fn is_same(one: &Probe, other: &Probe) -> bool {
    one.whiteout == other.whiteout
        && match (&one.hit, &other.hit) {
            (Hit::None, Hit::None) => true,
            (Hit::Leaf { branch: a, entry: one }, Hit::Leaf { branch: b, entry: other }) => {
                let lower = |entry: &vnode::Entry, branch| Lower { vnode: entry.vnode.clone(), branch };
                lower(one, *a).is(&lower(other, *b))
            }
            (Hit::Dir { stack: one, .. }, Hit::Dir { stack: other, .. }) => same_stack(one, other),
            _ => false,
        }
}

impl UnionVnode {
    /// Looks `name` up in this directory and returns the object. `None` if there is none.
    pub(crate) fn find(&self, op: &Op<'_>, name: Name<'_>) -> Result<Option<(Arc<UnionVnode>, Attr)>> {
        let dir = self.dir()?;
        if reserved(name.as_bytes()) {
            return self.find_mark(op, name);
        }
        match self.find_once(op, dir, name) {
            Err(Errno::STALE) if self.refresh(op)? => self.find_once(op, dir, name),
            other => other,
        }
    }

    fn find_once(&self, op: &Op<'_>, dir: &Dir, name: Name<'_>) -> Result<Option<(Arc<UnionVnode>, Attr)>> {
        loop {
            let StableProbe { lock, transitions, stack, probe } = self.stable_probe(op, name)?;
            let Some(names) = lock else {
                let found = self.found_without_lock(op, name, probe)?;
                if let Some(found) = found
                    && dir.entry_lock.transitions() == transitions
                {
                    return Ok(found);
                }
                op.require_blocking()?;
                op.check()?;
                std::thread::sleep(Duration::from_millis(1));
                self.revalidate(op)?;
                continue;
            };
            match probe.hit {
                Hit::None => {
                    self.remember_negative(op, dir, &stack, name, probe.whiteout);
                    return Ok(None);
                }
                Hit::Leaf { branch, entry } => {
                    return self.core.present_leaf(op, self.place_of(name)?, branch, entry).map(Some);
                }
                Hit::Dir { stack, attr, redirect } => {
                    let vnode = self.core.intern_dir(op, self.place_of(name)?, stack.into(), redirect)?;
                    // Counting the directory's subdirectories may take an entry lock.
                    drop(names);
                    let attr = vnode.dir_attr(op, attr)?;
                    return Ok(Some((vnode, attr)));
                }
            }
        }
    }

    /// Returns the object for a lookup that could not take the entry lock, because a writer holds
    /// it for long. The inner `None`: there is no object. The outer `None`: the result depends on
    /// the writer, so the caller has to retry.
    ///
    /// The writer may be publishing a copy-up of the object. Original and copy have the same vnode,
    /// which this function does not switch to the copy: the writer does. Nor does it make a vnode
    /// valid ([`Certainty::Uncertain`]).
    fn found_without_lock(&self, op: &Op<'_>, name: Name<'_>, probe: Probe) -> Result<Option<Shown>> {
        let core = &self.core;
        match probe.hit {
            Hit::None => Ok(Some(None)),
            Hit::Leaf { branch, entry } => {
                let (lower, attr) = core.follow_index(op, branch, entry)?;
                let number = core.number_of(op, &lower, &attr)?;
                let vnode = match core.table.get(number) {
                    Some(live) if live.dir.is_some() || live.kind != lower.vnode.kind() => return Ok(None),
                    Some(live) if !live.is_current(op.set) => {
                        live.set_found_again(op, lower, Certainty::Uncertain)?;
                        live
                    }
                    Some(live) if core.is_dead(&live, &lower) => return Ok(None),
                    Some(live) if live.leaf().is(&lower) || core.jobs.is_running(number) => {
                        if live.place().is_none() {
                            live.set_place(Some(self.place_of(name)?));
                        }
                        live
                    }
                    Some(_) => return Ok(None),
                    None => match core.intern_uncertain(op, number, self.place_of(name)?, lower, None) {
                        Some(vnode) => vnode,
                        None => return Ok(None),
                    },
                };
                let attr = vnode.leaf_attr(attr);
                Ok(Some(Some((vnode, attr))))
            }
            Hit::Dir { stack, attr, redirect } => {
                let number = core.directory_number(op, &stack)?;
                let live = match core.renumbered(op, number, (self, name.as_bytes()), &stack)? {
                    None => core.table.get(number),
                    renumbered => renumbered,
                };
                let vnode = match live {
                    Some(live) if live.dir.is_some() && live.is_at(self, name.as_bytes()) => {
                        live.set_found_dir(op, stack.into(), redirect, None, Certainty::Uncertain)?;
                        live
                    }
                    // The writer may be renaming this directory, and the lookup may have run before
                    // that. Only the writer can set the vnode's place.
                    Some(_) => return Ok(None),
                    None => {
                        let leftmost = stack.first().cloned().ok_or(Errno::IO)?;
                        let of_dir = Some((stack.into(), redirect));
                        match core.intern_uncertain(op, number, self.place_of(name)?, leftmost, of_dir) {
                            Some(vnode) => vnode,
                            None => return Ok(None),
                        }
                    }
                };
                let attr = vnode.dir_attr(op, attr)?;
                Ok(Some(Some((vnode, attr))))
            }
        }
    }

    /// Caches a negative lookup, because the creation of the name often follows.
    fn remember_negative(&self, op: &Op<'_>, dir: &Dir, stack: &[Lower], name: Name<'_>, whiteout: Option<BranchId>) {
        if stack.len() > 1 && !op.set.read_only {
            let negative = NegativeLookup {
                name: ShortName::new(name.as_bytes()),
                changes: dir.changes.load(Ordering::Acquire),
                generation: op.set.generation,
                whiteout,
                at: Instant::now(),
            };
            let old = dir.negative.lock().replace(negative);
            drop(old);
        }
    }

    /// Takes the cached negative lookup of this directory. `None` if it was of another name or is
    /// out of date. Else returns the branch of the whiteout that ended the lookup, or `Some(None)`
    /// if it found no whiteout.
    pub(crate) fn recent_negative(&self, op: &Op<'_>, name: Name<'_>) -> Option<Option<BranchId>> {
        let dir = self.dir.as_ref()?;
        let negative = dir.negative.lock().take()?;
        let fresh = negative.name.as_bytes() == name.as_bytes()
            && negative.generation == op.set.generation
            && negative.changes == dir.changes.load(Ordering::Acquire)
            && negative.at.elapsed() < NEGATIVE_TTL;
        fresh.then_some(negative.whiteout)
    }

    /// Looks the object up again by its name, after an out-of-band change removed its lower object.
    /// Returns false if it has no known name, or if the name leads to another object: for a file,
    /// one with another number, or with another generation because the branch reused the number;
    /// for a directory, see [`Self::is_still`].
    pub(crate) fn refresh(&self, op: &Op<'_>) -> Result<bool> {
        let Some(place) = self.place() else { return Ok(false) };
        self.core.directory_changed(&place.parent);
        // What is found replaces something valid, so it has to be certain.
        let _locked = place.parent.dir()?.entry_lock.read_surely(op)?;
        if !self.place().is_some_and(|now| now.is(&place)) {
            // It was renamed meanwhile, and so exists.
            return Ok(true);
        }
        let stack = place.parent.stack()?;
        match place.parent.probe(op, &stack, place.name()?)?.hit {
            Hit::Leaf { branch, entry } if self.dir.is_none() && entry.vnode.kind() == self.kind => {
                let (lower, attr) = self.core.follow_index(op, branch, entry)?;
                let generation = |lower: &Lower| self.core.generation_of(op.set, self.id, lower);
                let is_reused = generation(&self.leaf()) != generation(&lower);
                if is_reused || self.core.number_of(op, &lower, &attr)? != self.id {
                    return Ok(false);
                }
                self.set_leaf(lower);
                Ok(true)
            }
            Hit::Dir { stack, redirect, .. } if self.dir.is_some() && self.is_still(op, &stack)? => {
                let merges_others = !same_stack(&self.stack()?, &stack);
                self.replace_stack(op, stack.into(), redirect)?;
                if merges_others {
                    self.core.everything_changed();
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Branch, Mode, Options, Unionfs};
    use vnode::{Cx, Layer, RenameFlags, Vnode as _};

    const CX: Cx<'static> = Cx::internal(0, 0);

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    /// The writer renames the directory after a lookup without the lock has found it, and before
    /// that lookup returns.
    #[test]
    fn a_lookup_without_the_lock_does_not_move_a_directory_back() {
        let layer = memfs::MemFs::new();
        let below = layer.root();
        let branch = Branch { layer, path: "/b".into(), mode: Mode::ReadWrite };
        let union = Unionfs::new(vec![branch], Options::default()).unwrap();
        let root = union.root();
        root.mkdir(&CX, name("d"), 0o755).unwrap();
        let dir = root.lookup(&CX, name("d")).unwrap().unwrap().vnode;
        let dir = dir.as_any().downcast_ref::<UnionVnode>().unwrap();
        let top = root.as_any().downcast_ref::<UnionVnode>().unwrap();

        let set = top.core.branches.get();
        let op = Op::new(&CX, &set);
        let probe = top.stable_probe(&op, name("d")).unwrap().probe;
        root.rename(&CX, name("d"), &root, name("e"), RenameFlags::default()).unwrap();
        assert!(top.found_without_lock(&op, name("d"), probe).unwrap().is_none());
        assert!(dir.is_at(top, b"e"));

        // A thread that must not block returns `MAY_BLOCK` instead of waiting for the writer.
        let writer = top.dir().unwrap().entry_lock.write(&CX).unwrap();
        below.rename(&CX, name("e"), &below, name("f"), RenameFlags::default()).unwrap();
        assert!(top.dir().unwrap().entry_lock.read(&CX).unwrap().is_none());
        let never = std::sync::atomic::AtomicBool::new(false);
        let busy = Cx::new(0, 0, 0, 0, false, &never);
        assert_eq!(root.lookup(&busy, name("f")).map(drop), Err(vnode::MAY_BLOCK));
        drop(writer);
        assert!(root.lookup(&CX, name("f")).unwrap().is_some());
        assert!(dir.is_at(top, b"f"));
    }

    /// A union of two branches. New files are created on the second one.
    fn spread() -> ([Arc<memfs::MemFs>; 2], Arc<Unionfs>) {
        let layers = [memfs::MemFs::new(), memfs::MemFs::new()];
        layers[0].set_space(1 << 20);
        layers[0].root().mkdir(&CX, name("d"), 0o755).unwrap();
        let branch = |(layer, path): (&Arc<memfs::MemFs>, &str)| Branch {
            layer: layer.clone(),
            path: path.into(),
            mode: Mode::ReadWrite,
        };
        let create = crate::Create { order: crate::Order::MostFree, ..crate::Create::default() };
        let union = layers.iter().zip(["/0", "/1"]).map(branch).collect();
        let union = Unionfs::new(union, Options { create, ..Options::default() }).unwrap();
        (layers, union)
    }

    /// Looks `d` up while a writer holds the entry lock for long, and returns what was found after
    /// the writer has released it.
    fn probe_without_lock(top: &UnionVnode, op: &Op<'_>) -> Probe {
        let writer = top.dir().unwrap().entry_lock.write(&CX).unwrap();
        let found = top.stable_probe(op, name("d")).unwrap();
        assert!(found.lock.is_none());
        drop(writer);
        found.probe
    }

    /// A directory gets another part, and a file there, between a lookup without the lock and the
    /// use of its result.
    #[test]
    fn a_stack_that_was_found_without_the_lock_replaces_no_other() {
        let (_layers, union) = spread();
        let root = union.root();
        let top = root.as_any().downcast_ref::<UnionVnode>().unwrap();
        let set = top.core.branches.get();
        let op = Op::new(&CX, &set);
        let probe = probe_without_lock(top, &op);
        let Hit::Dir { stack: found, .. } = &probe.hit else { panic!("{probe:?}") };
        let found: Stack = found.as_slice().into();

        let dir = root.lookup(&CX, name("d")).unwrap().unwrap().vnode;
        dir.mknod(&CX, name("f"), 0o100_644, 0).unwrap();
        let own = dir.as_any().downcast_ref::<UnionVnode>().unwrap();
        assert_eq!((found.len(), own.stack().unwrap().len()), (1, 2));
        let finds = || dir.lookup(&CX, name("f")).unwrap().is_some();

        // With the rights of the lock, the lookup would hide the file.
        let place = || top.place_of(name("d")).unwrap();
        top.core.intern_dir(&op, place(), found.clone(), None).unwrap();
        assert!(!finds());
        root.lookup(&CX, name("d")).unwrap();
        assert!(finds());

        let leftmost = found[0].clone();
        assert!(top.core.intern_uncertain(&op, own.id, place(), leftmost, Some((found, None))).is_none() && finds());
        assert!(top.found_without_lock(&op, name("d"), probe).unwrap().is_some() && finds());
    }

    /// As before, but the union forgets the directory meanwhile.
    #[test]
    fn a_directory_that_was_found_without_the_lock_is_looked_up_again() {
        let (layers, union) = spread();
        let root = union.root();
        let top = root.as_any().downcast_ref::<UnionVnode>().unwrap();
        let set = top.core.branches.get();
        let op = Op::new(&CX, &set);
        let probe = probe_without_lock(top, &op);
        let other = layers[1].root().mkdir(&CX, name("d"), 0o755).unwrap().vnode;
        other.mknod(&CX, name("f"), 0o100_644, 0).unwrap();
        let (found, _) = top.found_without_lock(&op, name("d"), probe).unwrap().unwrap().unwrap();
        assert!(!found.is_current(&set));
        assert!(found.lookup(&CX, name("f")).unwrap().is_some());
        assert!(found.is_current(&set));
    }

    /// The set of branches changes. An operation looks an object up at its old name, and then
    /// another one finds it and renames or moves it.
    #[test]
    fn an_object_that_is_valid_is_not_set_back() {
        let (_layers, union) = spread();
        let root = union.root();
        root.mknod(&CX, name("f"), 0o100_644, 0).unwrap();
        let [dir, file] = ["d", "f"].map(|of| root.lookup(&CX, name(of)).unwrap().unwrap().vnode);
        let [dir, file] = [&dir, &file].map(|vnode| vnode.as_any().downcast_ref::<UnionVnode>().unwrap());
        let top = root.as_any().downcast_ref::<UnionVnode>().unwrap();
        let old = file.leaf();
        root.control(&CX, "unionfs.move", br#"{"do":"drain","branch":"/1"}"#).unwrap();
        let set = top.core.branches.get();
        let op = Op::new(&CX, &set);
        assert!(!dir.is_current(&set) && !file.is_current(&set));
        let stack = dir.stack().unwrap();

        root.rename(&CX, name("d"), &root, name("e"), RenameFlags::default()).unwrap();
        dir.set_detached(&op).unwrap();
        assert!(!dir.is_detached() && dir.is_at(top, b"e"));
        let redirect = Some(Box::from(b"/x".as_slice()));
        dir.set_found_dir(&op, stack, redirect, None, Certainty::Uncertain).unwrap();
        assert!(dir.dir().unwrap().redirect.lock().is_none());

        let changing = op.changing(top.core.gate.wanted());
        top.core.copy_up(&changing, &top.find(&op, name("f")).unwrap().unwrap().0, Some(BranchId(0)), None).unwrap();
        file.set_found_again(&op, old, Certainty::Certain).unwrap();
        assert_eq!(file.leaf().branch, BranchId(0));
    }
}
