//! The check of hard links: the entries of the link index, and the link counts in the identity log.

use super::finding::Problem;
use super::place::Place;
use super::{CheckError, Checker, Spot};
use crate::branch::{Lower, is_dir};
use crate::log::{Log, Record};
use crate::logfile::IDENT;
use crate::lookup::Hit;
use crate::ownfiles::Own;
use crate::ownnames::IndexName;
use crate::whiteout::reserved;
use crate::work::entries;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use vnode::{Errno, Name, OpenFlags, Result};

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

impl Checker<'_> {
    /// Checks the link index of each branch, and compares the link counts with the names in the
    /// union.
    pub(super) fn link_counts(&mut self) -> std::result::Result<(), CheckError> {
        let mut numbers: BTreeSet<u64> = self.core.identity.known().names.into_keys().collect();
        for at in 0..self.branches.len() {
            match self.index_of(at) {
                Ok(found) => numbers.extend(found),
                Err(errno) => self.not_checked(at, b"/.wh..wh.links", errno),
            }
        }
        if numbers.is_empty() || self.uncountable {
            return Ok(());
        }
        let (counted, complete) = self.count_names(&numbers)?;
        if complete {
            for (number, names) in &counted {
                self.compare(*number, names);
            }
            self.unused_entries(&numbers, &counted);
        }
        Ok(())
    }

    /// Checks the entries of a branch's index. Returns the numbers of valid ones.
    fn index_of(&mut self, at: usize) -> Result<Vec<u64>> {
        let Some(member) = self.set().order.get(at) else { return Ok(Vec::new()) };
        let branch = member.id;
        let Some(dir) = self.core.links_dir(&self.op, branch)? else { return Ok(Vec::new()) };
        let mut valid = Vec::new();
        for (name, _) in entries(&self.op, &dir)? {
            let Some(number) = IndexName::parse(&name) else { continue };
            let path = [b"/.wh..wh.links/", &*name].concat();
            let Some(entry) = dir.lookup(&self.op, Name::new(&name)?)? else { continue };
            let copy = Lower { vnode: entry.vnode, branch };
            if is_dir(&copy.vnode) || !self.core.may_be_indexed(&self.op, number, &copy)? {
                let problem = Problem::IndexInvalid;
                self.found(at, Spot::new(problem, &path), |this| this.set_aside(at, problem, (&dir, &name), &path));
            } else if self.core.links.branch(number).is_some_and(|other| other != branch) {
                // If the branches are listed in another order than they are mounted in, it is the
                // newer one.
                let problem = Problem::IndexSuperseded;
                self.found(at, Spot::new(problem, &path), |this| this.set_aside(at, problem, (&dir, &name), &path));
            } else {
                valid.push(number);
            }
        }
        Ok(valid)
    }

    /// Counts the names of these files in the whole union. The second value is false if parts could
    /// not be read.
    fn count_names(&mut self, numbers: &BTreeSet<u64>) -> std::result::Result<(Counted, bool), CheckError> {
        let (mut counted, mut complete) = (Counted::new(), true);
        let mut todo: Vec<(Rc<[Lower]>, Rc<Place>)> = vec![(self.set().roots().into(), Place::root())];
        while let Some((stack, place)) = todo.pop() {
            if !self.inspector.progress(self.checked, self.known) {
                return Err(CheckError::Stopped);
            }
            if self.count_in(numbers, &stack, &place, &mut counted, &mut todo).is_err() {
                complete = false;
            }
        }
        Ok((counted, complete))
    }

    fn count_in(
        &self,
        numbers: &BTreeSet<u64>,
        stack: &[Lower],
        place: &Rc<Place>,
        counted: &mut Counted,
        todo: &mut Vec<(Rc<[Lower]>, Rc<Place>)>,
    ) -> Result<()> {
        let mut names = BTreeSet::new();
        for part in stack {
            names.extend(entries(&self.op, &part.vnode)?.into_iter().map(|(name, _)| name));
        }
        for name in names.iter().filter(|name| !reserved(name)) {
            match self.core.probe(&self.op, stack, Name::new(name)?)?.hit {
                Hit::None => {}
                Hit::Dir { stack, .. } => todo.push((stack.into(), place.child(name))),
                Hit::Leaf { branch, entry } => {
                    let (lower, attr) = self.core.follow_index(&self.op, branch, entry)?;
                    let number = self.core.number_of(&self.op, &lower, &attr)?;
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

    /// Compares the number of names with the count. Names outside of the branches are counted too,
    /// so a count can be too high for good reasons.
    fn compare(&mut self, number: u64, names: &Names) {
        let count = self.core.link_count(number, names.lower);
        let Some(missing) = names.visible.checked_sub(count).filter(|missing| *missing > 0) else { return };
        let detail = format!("{} names, counted {count}", names.visible);
        self.found(0, Spot::new(Problem::LinkCountLow, &names.path).detail(&detail), |this| {
            let known = this.core.identity.names(number).unwrap_or_default();
            let (used, more) = (known.used.saturating_sub(missing), missing.saturating_sub(known.used));
            this.log(&Record::Names { number, first: known.first.saturating_add(more).max(1), used })
        });
    }

    /// Appends a record to the identity log.
    fn log(&self, record: &Record) -> Result<()> {
        let root = self.root(0).ok_or(Errno::STALE)?;
        let entry = root.lookup(&self.op, Name::new(IDENT)?)?.ok_or(Errno::NOENT)?;
        let file = entry.vnode.open(&self.op, OpenFlags::RDWR)?;
        Log::new(file, entry.attr.size).append(&self.op, [record])
    }

    /// Index entries of files that no name leads to.
    fn unused_entries(&mut self, numbers: &BTreeSet<u64>, counted: &Counted) {
        for number in numbers.iter().filter(|number| !counted.contains_key(number)) {
            let Some(branch) = self.core.links.branch(*number) else { continue };
            let at = self.set().position(branch);
            if let Err(errno) = self.unused_entry(at, *number) {
                self.not_checked(at, b"/.wh..wh.links", errno);
            }
        }
    }

    fn unused_entry(&mut self, at: usize, number: u64) -> Result<()> {
        let Some(member) = self.set().order.get(at) else { return Ok(()) };
        let Some(dir) = self.core.own_dir(&self.op, member.id, Own::Links)? else { return Ok(()) };
        let name = IndexName::of(number);
        let name = name.name()?;
        let Some(entry) = dir.lookup(&self.op, name)?.filter(|entry| entry.attr.nlink == 1) else { return Ok(()) };
        drop(entry);
        let (problem, path) = (Problem::IndexUnused, [b"/.wh..wh.links/", name.as_bytes()].concat());
        self.found(at, Spot::new(problem, &path), |this| this.set_aside(at, problem, (&dir, name.as_bytes()), &path));
        Ok(())
    }
}
