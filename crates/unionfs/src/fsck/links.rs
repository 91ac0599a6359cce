//! The check of hard links: the entries of the link index, and the link counts in the logs.

use super::finding::Problem;
use super::place::Place;
use super::{CheckError, Checker, Spot};
use crate::branch::{Lower, is_dir};
use crate::build::Unionfs;
use crate::lookup::Hit;
use crate::node::Core;
use crate::op::Op;
use crate::ownfiles::Own;
use crate::whiteout::reserved;
use crate::work::entries;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use vnode::{Name, Result};

/// The names of a file that users see.
struct Names {
    /// Their number.
    visible: u32,
    /// Link count of the file that they lead to.
    lower: u32,
    /// One of them.
    path: Vec<u8>,
}

/// The files whose names are counted, by number.
type Counted = BTreeMap<u64, Names>;

/// An entry of a branch's index.
struct IndexEntry {
    /// The branch's position.
    at: usize,
    /// The entry's name.
    name: Box<[u8]>,
    number: u64,
    /// Whether the copy has no other name on its branch.
    is_alone: bool,
}

/// Counts the names of these files in the whole union. The second value is false if parts could not
/// be read. `None` if `progress` returns false.
fn count_names(
    (core, op): (&Core, &Op<'_>),
    numbers: &BTreeSet<u64>,
    mut progress: impl FnMut() -> bool,
) -> Option<(Counted, bool)> {
    let (mut counted, mut complete) = (Counted::new(), true);
    let mut todo: Vec<(Rc<[Lower]>, Rc<Place>)> = vec![(op.set.roots().into(), Place::root())];
    while let Some((stack, place)) = todo.pop() {
        if !progress() {
            return None;
        }
        complete &= count_in((core, op), numbers, (&stack, &place), &mut counted, &mut todo).is_ok();
    }
    Some((counted, complete))
}

fn count_in(
    (core, op): (&Core, &Op<'_>),
    numbers: &BTreeSet<u64>,
    (stack, place): (&[Lower], &Rc<Place>),
    counted: &mut Counted,
    todo: &mut Vec<(Rc<[Lower]>, Rc<Place>)>,
) -> Result<()> {
    let mut names = BTreeSet::new();
    for part in stack {
        names.extend(entries(op, &part.vnode)?.into_iter().map(|(name, _)| name));
    }
    for name in names.iter().filter(|name| !reserved(name)) {
        match core.probe(op, stack, Name::new(name)?)?.hit {
            Hit::None => {}
            Hit::Dir { stack, .. } => todo.push((stack.into(), place.child(name))),
            Hit::Leaf { branch, entry } => {
                let (lower, attr) = core.follow_index(op, branch, entry)?;
                let number = core.number_of(op, &lower, &attr)?;
                if numbers.contains(&number) {
                    let names = counted.entry(number).or_insert_with(|| Names {
                        visible: 0,
                        lower: attr.nlink,
                        path: place.child(name).path(),
                    });
                    names.visible += 1;
                }
            }
        }
    }
    Ok(())
}

impl Checker<'_> {
    /// Checks the link index of each branch, and compares the link counts with the names in the
    /// union.
    pub(super) fn link_counts(&mut self) -> std::result::Result<(), CheckError> {
        let mut numbers: BTreeSet<u64> = self.core.identity.counted().into_iter().collect();
        let mut index = Vec::new();
        for at in 0..self.branches.len() {
            match self.index_of(at) {
                Ok(found) => index.extend(found),
                Err(errno) => self.not_checked(at, b"/.wh..wh.links", errno),
            }
        }
        numbers.extend(index.iter().map(|entry| entry.number));
        if numbers.is_empty() || self.uncountable {
            return Ok(());
        }
        let (core, op) = (self.core.clone(), self.op);
        let (checked, known) = (self.checked, self.known);
        let counted = count_names((&core, &op), &numbers, || self.inspector.progress(checked, known));
        let (counted, complete) = counted.ok_or(CheckError::Stopped)?;
        if complete {
            for (number, names) in &counted {
                self.compare(*number, names);
            }
            index.retain(|entry| entry.is_alone && !counted.contains_key(&entry.number));
            self.unused_entries(&index)?;
        }
        Ok(())
    }

    /// Checks the entries of a branch's index. Returns the valid ones. Several branches may have
    /// one of the same file: each is used in the unions of that branch and those to its right.
    fn index_of(&mut self, at: usize) -> Result<Vec<IndexEntry>> {
        let Some(member) = self.set().order.get(at) else { return Ok(Vec::new()) };
        let (branch, state) = (member.id, member.state.clone());
        let Some(dir) = self.core.links_dir(&self.op, branch)? else { return Ok(Vec::new()) };
        let mut valid = Vec::new();
        for (name, _) in entries(&self.op, &dir)? {
            let Some(number) = state.indexed_number(&name) else { continue };
            let path = [b"/.wh..wh.links/", &*name].concat();
            let Some(entry) = dir.lookup(&self.op, Name::new(&name)?)? else { continue };
            let (copy, is_alone) = (Lower { vnode: entry.vnode, branch }, entry.attr.nlink == 1);
            if is_dir(&copy.vnode) || !self.core.may_be_indexed(&self.op, number, &copy)? {
                let problem = Problem::IndexInvalid;
                self.found(at, Spot::new(problem, &path), |this| this.set_aside(at, problem, (&dir, &name), &path));
            } else {
                valid.push(IndexEntry { at, name, number, is_alone });
            }
        }
        Ok(valid)
    }

    /// Compares the number of names with the count. Names outside of the branches are counted too,
    /// so a count can be too high for good reasons.
    fn compare(&mut self, number: u64, names: &Names) {
        let count = self.core.link_count(number, names.lower);
        let Some(missing) = names.visible.checked_sub(count).filter(|missing| *missing > 0) else { return };
        let detail = format!("{} names, counted {count}", names.visible);
        self.found(0, Spot::new(Problem::LinkCountLow, &names.path).detail(&detail), |this| {
            this.core.raise_link_count(&this.op, number, missing)
        });
    }

    /// Index entries of files that no name leads to, neither in the union of all branches nor in
    /// that of the entry's branch and those to its right: that is the union as it was before a
    /// snapshot. `index`: those of files that no name leads to in the former.
    fn unused_entries(&mut self, index: &[IndexEntry]) -> std::result::Result<(), CheckError> {
        for at in 0..self.branches.len() {
            let mut own: Vec<&IndexEntry> = index.iter().filter(|entry| entry.at == at).collect();
            if at > 0 && !own.is_empty() {
                let tail = Unionfs::inspect(self.branches.get(at..).unwrap_or_default())?;
                let set = tail.core().branches.get();
                let number = |entry: &IndexEntry| set.order.first()?.state.indexed_number(&entry.name);
                let numbers = own.iter().filter_map(|entry| number(entry)).collect();
                let (checked, known) = (self.checked, self.known);
                let op = Op::new(&self.op, &set);
                let counted = count_names((tail.core(), &op), &numbers, || self.inspector.progress(checked, known));
                let (counted, complete) = counted.ok_or(CheckError::Stopped)?;
                own.retain(|entry| complete && number(entry).is_some_and(|number| !counted.contains_key(&number)));
            }
            for entry in own {
                if let Err(errno) = self.unused_entry(entry) {
                    self.not_checked(at, b"/.wh..wh.links", errno);
                }
            }
        }
        Ok(())
    }

    fn unused_entry(&mut self, entry: &IndexEntry) -> Result<()> {
        let Some(member) = self.set().order.get(entry.at) else { return Ok(()) };
        let Some(dir) = self.core.own_dir(&self.op, member.id, Own::Links)? else { return Ok(()) };
        let (problem, path) = (Problem::IndexUnused, [b"/.wh..wh.links/", &*entry.name].concat());
        self.found(entry.at, Spot::new(problem, &path), |this| {
            this.set_aside(entry.at, problem, (&dir, &entry.name), &path)
        });
        Ok(())
    }
}
