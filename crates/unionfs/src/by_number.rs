//! Objects by number, and the names of an object: docs/design/unionfs.md, "File handles".
//!
//! A number leads to lower files: the one that it was made from, and copies that have it as their
//! alias. Except below a renamed directory, the paths of a lower file on its branch are its paths
//! in the union, too. So each of them is looked up in the union, and the object there is the right
//! one if it has this number. Objects below renamed directories are found by [`vnode::Finder`].

use crate::branch::Lower;
use crate::inode_number::{ROOT, tag_of};
use crate::lookup::Hit;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::set::{BranchSet, Member};
use crate::whiteout::reserved;
use std::sync::Arc;
use vnode::{Errno, Found, Kind, Name, NameSink, Result, Vnode};

/// Maximum depth of a directory.
const DEEPEST: usize = 1 << 16;

/// A name of an object in the union.
struct Location {
    dir: Arc<UnionVnode>,
    name: Box<[u8]>,
    vnode: Arc<UnionVnode>,
}

/// Reports each name of an object once, until the receiver has enough.
struct Reporter<'a> {
    take: &'a mut dyn FnMut(Location) -> bool,
    reported: Vec<(u64, Box<[u8]>)>,
    enough: bool,
}

impl Reporter<'_> {
    /// Reports a name. Returns false if the receiver has enough.
    fn report(&mut self, found: Location) -> bool {
        let place = (found.dir.id, found.name.clone());
        if !self.enough && !self.reported.contains(&place) {
            self.reported.push(place);
            self.enough = !(self.take)(found);
        }
        !self.enough
    }
}

/// Turns errors that mean a concurrent removal into `None`.
fn unless_gone<T>(result: Result<Option<T>>) -> Result<Option<T>> {
    match result {
        Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        other => other,
    }
}

impl Core {
    /// Returns the vnode with this number.
    pub(crate) fn by_number(&self, op: &Op<'_>, number: u64) -> Result<Arc<UnionVnode>> {
        if let Some(live) = self.table.get(number) {
            return Ok(live);
        }
        op.require_blocking()?;
        let mut found = None;
        self.each_name(op, number, 1, &mut |location| {
            found = Some(location.vnode);
            false
        })?;
        found.ok_or(Errno::STALE)
    }

    /// Returns the generation of an object: that of the lower file that its number was made from.
    /// The log has it once the object consists of another lower file.
    pub(crate) fn generation_of(&self, set: &BranchSet, number: u64, lower: &Lower) -> u32 {
        let alias = set.branch(lower.branch).ok().and_then(|branch| self.identity.alias(branch.tag, lower.vnode.id()));
        match alias {
            Some(alias) if alias.number == number => alias.generation,
            _ => lower.vnode.generation(),
        }
    }

    /// Passes the names of the object with this number to `take` until that returns false. Names
    /// below renamed directories are searched for only if fewer than `enough` others were found.
    fn each_name(&self, op: &Op<'_>, number: u64, enough: usize, take: &mut dyn FnMut(Location) -> bool) -> Result<()> {
        let root = self.table.get(ROOT).ok_or(Errno::STALE)?;
        root.revalidate(op)?;
        let mut reporter = Reporter { take, reported: Vec::new(), enough: false };
        let natural = tag_of(number).is_some();
        let mut exists = !natural;
        // A directory that the server may not read hides no other names.
        let mut denied = false;
        for (member, lower) in self.origins(op, number) {
            if reporter.enough {
                return Ok(());
            }
            let reported = member.state.layer.vnode(op, lower).and_then(|lower| {
                exists = true;
                self.each_name_of_lower(op, &root, (member, &lower), number, &mut reporter)
            });
            match reported {
                Ok(()) | Err(Errno::STALE | Errno::NOENT) => {}
                Err(Errno::ACCESS) => denied = true,
                Err(errno) => return Err(errno),
            }
        }
        if denied && reporter.reported.is_empty() {
            return Err(Errno::ACCESS);
        }
        // Paths on a branch don't lead to objects below a renamed directory.
        let elsewhere = exists && (!natural || self.may_be_renamed(op));
        if reporter.enough || reporter.reported.len() >= enough || !elsewhere {
            return Ok(());
        }
        let top: Arc<dyn Vnode> = root;
        for Found { dir, name, entry } in self.finder.find(op, &top, self.shown(number), enough)? {
            if let (Some(dir), Some(vnode)) = (own_vnode(&dir), own_vnode(&entry.vnode))
                && vnode.id == number
                && !reporter.report(Location { dir, name, vnode })
            {
                break;
            }
        }
        Ok(())
    }

    /// Returns the lower objects that may have this number, copies first.
    fn origins<'a>(&self, op: &Op<'a>, number: u64) -> Vec<(&'a Member, u64)> {
        let set = op.set;
        let with_tag = |tag: u16| set.order.iter().find(|member| member.state.tag == tag);
        let mut all: Vec<(&Member, u64)> = self
            .identity
            .aliases_of(number)
            .into_iter()
            .filter_map(|(tag, lower)| Some((with_tag(tag)?, lower)))
            .collect();
        all.sort_by_key(|(member, _)| set.position(member.id));
        if let Some(member) = tag_of(number).and_then(with_tag) {
            all.push((member, crate::inode_number::lower_of(number)));
        }
        all
    }

    /// Whether there may be renamed directories.
    fn may_be_renamed(&self, op: &Op<'_>) -> bool {
        op.set.order.iter().any(|member| op.set.has_redirects(member.id))
    }

    /// Reports the names of a lower object that lead to the object with this number in the union.
    fn each_name_of_lower(
        &self,
        op: &Op<'_>,
        root: &Arc<UnionVnode>,
        (member, lower): (&Member, &Arc<dyn Vnode>),
        number: u64,
        reporter: &mut Reporter<'_>,
    ) -> Result<()> {
        let mut failed = Ok(());
        let listed = lower.names(op, &mut |dir, name| {
            let found = self.location(op, root, (member, dir), name, number);
            match unless_gone(found) {
                Ok(found) => found.is_none_or(|found| reporter.report(found)),
                Err(errno) => {
                    failed = Err(errno);
                    false
                }
            }
        });
        failed?;
        unless_gone(listed.map(Some)).map(|_| ())
    }

    /// Returns the object at the path of a lower name in the union, if it has this number.
    fn location(
        &self,
        op: &Op<'_>,
        root: &Arc<UnionVnode>,
        (member, lower): (&Member, &Arc<dyn Vnode>),
        name: Name<'_>,
        number: u64,
    ) -> Result<Option<Location>> {
        let Some(dir) = self.directory_at(op, root, (member, lower), name)? else { return Ok(None) };
        let found = dir.find(op, name)?.filter(|(vnode, _)| vnode.id == number);
        Ok(found.map(|(vnode, _)| Location { dir, name: name.as_bytes().into(), vnode }))
    }

    /// Returns the directory at the path of a lower directory, which has an entry `name`, in the
    /// union.
    fn directory_at(
        &self,
        op: &Op<'_>,
        root: &Arc<UnionVnode>,
        (member, lower): (&Member, &Arc<dyn Vnode>),
        name: Name<'_>,
    ) -> Result<Option<Arc<UnionVnode>>> {
        let Some(path) = path_on(op, member, lower)? else { return Ok(None) };
        if reserved(name.as_bytes()) || path.iter().any(|name| reserved(name)) {
            return Ok(None);
        }
        let mut dir = Arc::clone(root);
        for name in path.iter().rev() {
            match dir.find(op, Name::new(name)?)? {
                Some((next, _)) if next.kind == Kind::Directory => dir = next,
                _ => return Ok(None),
            }
        }
        Ok(Some(dir))
    }

    /// Whether a name of a lower file leads to this very file in the union.
    pub(crate) fn is_shown(&self, op: &Op<'_>, member: &Member, lower: &Arc<dyn Vnode>) -> Result<bool> {
        let root = self.table.get(ROOT).ok_or(Errno::STALE)?;
        let mut shown = Ok(false);
        let listed = lower.names(op, &mut |dir, name| {
            let found = self.directory_at(op, &root, (member, dir), name).and_then(|dir| match dir {
                Some(dir) => dir.probe(op, &dir.stack()?, name).map(Some),
                None => Ok(None),
            });
            shown = unless_gone(found).map(|probe| match probe.map(|probe| probe.hit) {
                Some(Hit::Leaf { branch, entry }) => branch == member.id && entry.vnode.id() == lower.id(),
                _ => false,
            });
            matches!(shown, Ok(false))
        });
        unless_gone(listed.map(Some))?;
        shown
    }
}

/// Returns `vnode` as a union vnode, if it is one.
fn own_vnode(vnode: &Arc<dyn Vnode>) -> Option<Arc<UnionVnode>> {
    vnode.as_any().downcast_ref::<UnionVnode>()?.arc().ok()
}

/// Returns the path of a lower directory on its branch, the last name first. `None` if it has none.
fn path_on(op: &Op<'_>, member: &Member, dir: &Arc<dyn Vnode>) -> Result<Option<Vec<Box<[u8]>>>> {
    let top = member.state.root.id();
    let mut path: Vec<Box<[u8]>> = Vec::new();
    let mut at = Arc::clone(dir);
    while at.id() != top {
        op.check()?;
        let mut above = None;
        at.names(op, &mut |dir, name| {
            above = Some((Arc::clone(dir), Box::from(name.as_bytes())));
            false
        })?;
        let Some((dir, name)) = above.filter(|_| path.len() < DEEPEST) else { return Ok(None) };
        path.push(name);
        at = dir;
    }
    Ok(Some(path))
}

impl UnionVnode {
    /// Reports the names of this object; none for the root and for removed objects.
    pub(crate) fn report_names(&self, op: &Op<'_>, sink: NameSink<'_>) -> Result<()> {
        if self.id == ROOT {
            return Ok(());
        }
        // A crash may have lost the link count with the end of the log.
        let uncounted = self.core.links.branch(self.id).is_some() && self.core.identity.names(self.id).is_none();
        let known = match self.place() {
            Some(place) => unless_gone(place.parent.find(op, place.name()?))?
                .filter(|(vnode, _)| vnode.id == self.id)
                .map(|(_, attr)| (place, attr)),
            None => None,
        };
        if let Some((place, attr)) = &known {
            let parent: Arc<dyn Vnode> = place.parent.clone();
            if !sink(&parent, place.name()?) || self.dir.is_some() || (attr.nlink < 2 && !uncounted) {
                return Ok(());
            }
        }
        let names = match self.get_attr(op)?.nlink {
            _ if uncounted => usize::MAX,
            0 => return Ok(()),
            nlink if self.dir.is_none() => nlink as usize,
            _ => 1,
        };
        op.require_blocking()?;
        self.core.each_name(op, self.id, names, &mut |Location { dir, name, .. }| {
            let reported = known
                .as_ref()
                .is_some_and(|(place, _)| Arc::ptr_eq(&place.parent, &dir) && place.name.as_bytes() == &*name);
            let dir: Arc<dyn Vnode> = dir;
            reported || Name::new(&name).map_or(true, |name| sink(&dir, name))
        })
    }
}
