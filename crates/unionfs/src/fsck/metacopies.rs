//! The check of metacopies.

use super::directory::{Content, Directory};
use super::finding::Problem;
use super::{Checker, Spot};
use crate::lookup::Hit;
use crate::metacopy::{METACOPIES, PREFIX, as_metacopy, has_origin, origin};
use crate::whiteout::is_long;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use vnode::{Entry, Kind, Name, Result};

impl Checker<'_> {
    fn announces_metacopies(&self, at: usize) -> bool {
        self.set().order.get(at).is_some_and(|member| member.state.metacopies.load(Ordering::Acquire))
    }

    /// Checks the metacopies of a directory.
    pub(super) fn metacopies(&mut self, dir: &Rc<Directory>, content: &Content) -> Result<()> {
        let mut names: Vec<_> = content.metacopies.iter().collect();
        names.sort_unstable();
        for name in names {
            if let Err(errno) = self.metacopy(dir, content, name) {
                self.not_checked(dir.at, &dir.path_of(&[PREFIX, name].concat()), errno);
            }
        }
        Ok(())
    }

    fn metacopy(&mut self, dir: &Rc<Directory>, content: &Content, name: &[u8]) -> Result<()> {
        let own = dir.own()?.vnode.clone();
        let full = [PREFIX, name].concat();
        let path = dir.path_of(&full);
        let Some(found) = own.lookup(&self.op, Name::new(&full)?)? else { return Ok(()) };
        if found.vnode.kind() == Kind::Regular && has_origin(&self.op, &found.vnode)? {
            let superseded = match content.plain.contains_key(name) {
                true => Some(Problem::MetacopyBesideFile),
                false => self.is_hidden(dir, content, name)?.then_some(Problem::MetacopyBesideWhiteout),
            };
            if let Some(problem) = superseded {
                self.found(dir.at, Spot::new(problem, &path), |this| {
                    this.remove_name(dir.at, problem, (&own, &full), &path)
                });
                return Ok(());
            }
            if !self.announces_metacopies(dir.at) {
                self.unannounced(dir.at, Problem::MetacopyUnannounced, METACOPIES);
                return Ok(());
            }
        }
        let Some(problem) = self.metacopy_problem(dir, name, &found)? else { return Ok(()) };
        let is_last = dir.own().is_ok_and(|own| self.set().is_last(own.branch));
        let missing = is_last && problem == Problem::MetacopyWithoutData;
        let obstacle = match problem {
            _ if missing => Some("no branch lies to the right; list all branches of the union"),
            Problem::MetacopyUntrusted => self.obstacle_of_owner(dir.at, found.attr.uid)?,
            _ => None,
        };
        self.found(dir.at, Spot::new(problem, &path).obstacle(obstacle), |this| {
            this.set_aside(dir.at, problem, (&own, &full), &path)
        });
        Ok(())
    }

    fn is_hidden(&self, dir: &Directory, content: &Content, name: &[u8]) -> Result<bool> {
        if !is_long(name) {
            return Ok(content.hidden.contains(name));
        }
        self.core.has_whiteout(&self.op, dir.own()?, Name::new(name)?)
    }

    /// Returns what is wrong with a metacopy that neither a file nor a whiteout replaces.
    fn metacopy_problem(&self, dir: &Directory, name: &[u8], found: &Entry) -> Result<Option<Problem>> {
        if found.vnode.kind() != Kind::Regular || !has_origin(&self.op, &found.vnode)? {
            return Ok(Some(Problem::MetacopyUntrusted));
        }
        if origin(&self.op, &found.vnode)?.is_none() {
            return Ok(Some(Problem::MetacopyDamaged));
        }
        Ok(match self.core.probe(&self.op, &dir.stack, Name::new(name)?)?.hit {
            Hit::Leaf { entry, .. } if entry.vnode.kind() == Kind::Regular => {
                let own = dir.own()?.branch;
                let applies = as_metacopy(&entry.vnode).is_some_and(|meta| meta.home == own);
                (!applies).then_some(Problem::MetacopyOfOtherFile)
            }
            Hit::Leaf { .. } | Hit::Dir { .. } | Hit::None => Some(Problem::MetacopyWithoutData),
        })
    }
}
