//! The check of redirects.

use super::directory::{Content, Directory};
use super::finding::Problem;
use super::repair::remove;
use super::{Checker, Spot};
use crate::branch::{BranchId, Lower, same_stack};
use crate::lookup::Hit;
use crate::opaque_redirect::{MOVED, OPAQUE, REDIRECT, Redirect, Walk, components};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Errno, Name, Result, Vnode};

/// The directories that redirects lead to.
#[derive(Default)]
pub(super) struct Targets {
    /// By the branch of the redirect and the target: the path of the directory with the redirect.
    seen: HashMap<(BranchId, BranchId, u64), Vec<u8>>,
    /// The branches for which a missing mark was reported.
    unannounced: HashSet<usize>,
}

impl Targets {
    /// Returns whether a missing mark is reported for the first time.
    pub(super) fn is_first_on(&mut self, at: usize) -> bool {
        self.unannounced.insert(at)
    }
}

const NO_BRANCH: &str = "no branch lies to the right; list all branches of the union";

impl Checker<'_> {
    /// Whether the branch has the mark that announces redirects.
    pub(super) fn announces_redirects(&self, at: usize) -> bool {
        self.set().order.get(at).is_some_and(|member| member.state.has_redirects.load(Ordering::Acquire))
    }

    /// Checks the redirect of a directory.
    pub(super) fn redirect(&mut self, dir: &Rc<Directory>, content: &Content) -> Result<()> {
        if !content.redirect {
            return Ok(());
        }
        let own = dir.own()?.clone();
        let file = dir.path_of(REDIRECT);
        let set_aside = |this: &mut Self, problem| this.set_aside(dir.at, problem, (&own.vnode, REDIRECT), &file);
        let path = match self.core.redirect_of(&self.op, &own)? {
            Redirect::None => return Ok(()),
            Redirect::Valid(path) => path,
            Redirect::NotAFile => {
                let problem = Problem::RedirectUntrusted;
                let spot = Spot::new(problem, &file).detail("it is not a small regular file");
                self.found(dir.at, spot, |this| set_aside(this, problem));
                return Ok(());
            }
            Redirect::Untrusted { owner, mode } => {
                let (problem, detail) = (Problem::RedirectUntrusted, format!("owner {owner}, mode {mode:03o}"));
                let obstacle = self.obstacle_of_owner(dir.at, owner)?;
                let spot = Spot::new(problem, &file).detail(&detail).obstacle(obstacle);
                self.found(dir.at, spot, |this| set_aside(this, problem));
                return Ok(());
            }
            Redirect::Damaged => {
                let problem = Problem::RedirectDamaged;
                self.found(dir.at, Spot::new(problem, &file), |this| set_aside(this, problem));
                return Ok(());
            }
        };
        if content.is_opaque() {
            self.found(dir.at, Spot::new(Problem::RedirectBesideOpaque, &file), |this| {
                remove(&this.op, &own.vnode, REDIRECT)
            });
            return Ok(());
        }
        if !self.announces_redirects(dir.at) {
            self.unannounced(dir.at, Problem::RedirectUnannounced, MOVED);
            return Ok(());
        }
        self.target(dir, &path, &file)?;
        dir.place.set_redirect(&path);
        Ok(())
    }

    /// Checks where a valid redirect leads.
    fn target(&mut self, dir: &Rc<Directory>, path: &[u8], file: &[u8]) -> Result<()> {
        let own = dir.own()?.clone();
        let detail = format!("to {}", path.escape_ascii());
        if *path == *dir.place.by_name() && self.is_needless(dir)? {
            let beside = dir.beside_whiteout && self.still_beside_whiteout(dir)?;
            let obstacle = beside.then_some("the whiteout beside the directory is to be removed before");
            let spot = Spot::new(Problem::RedirectToItself, file).detail(&detail).obstacle(obstacle);
            self.found(dir.at, spot, |this| {
                this.set_aside(dir.at, Problem::RedirectToItself, (&own.vnode, REDIRECT), file)
            });
            return Ok(());
        }
        let Some(first) = dir.tail().first().cloned() else {
            let is_last = self.set().is_last(own.branch);
            let problem = Problem::RedirectNowhere;
            let spot = Spot::new(problem, file).detail(&detail).obstacle(is_last.then_some(NO_BRANCH));
            self.found(dir.at, spot, |this| {
                // Opaque beats a redirect, and the directory merges nothing.
                this.create(dir.at, problem, (&own.vnode, OPAQUE), &dir.path_of(OPAQUE))?;
                this.set_aside(dir.at, problem, (&own.vnode, REDIRECT), file)
            });
            return Ok(());
        };
        let key = (own.branch, first.branch, first.vnode.id());
        if let Some(other) = self.targets.seen.get(&key) {
            let detail = format!("{detail}, which {} shows", other.escape_ascii());
            self.found(dir.at, Spot::new(Problem::RedirectShared, file).detail(&detail), |_| Ok(()));
            return Ok(());
        }
        self.targets.seen.insert(key, dir.place.path());
        if self.is_shown_by_name(&own, path, &first)? {
            let detail = format!("{detail}, which is shown under that name as well");
            self.found(dir.at, Spot::new(Problem::RedirectShared, file).detail(&detail), |_| Ok(()));
        }
        Ok(())
    }

    /// Whether the directory would have the same tail without its redirect and without a whiteout
    /// beside it.
    fn is_needless(&self, dir: &Directory) -> Result<bool> {
        if dir.place.is_root() {
            return Ok(false);
        }
        Ok(match self.core.probe(&self.op, dir.tail_above(), Name::new(dir.place.name())?)?.hit {
            Hit::Dir { stack, .. } => same_stack(&stack, dir.tail()),
            Hit::Leaf { .. } | Hit::None => dir.tail().is_empty(),
        })
    }

    fn still_beside_whiteout(&self, dir: &Directory) -> Result<bool> {
        let Some(parent) = dir.above.first() else { return Ok(false) };
        self.core.has_whiteout(&self.op, parent, Name::new(dir.place.name())?)
    }

    /// Whether the union of the redirect's branch and those to its right shows `part` at `path` in
    /// a directory other than the one with the redirect, `own`: `own` can have been moved back to
    /// that path below another directory.
    fn is_shown_by_name(&self, own: &Lower, path: &[u8], part: &Lower) -> Result<bool> {
        let mut stack = self.set().roots_right_of(own.branch);
        let root = self.set().member(own.branch).map(crate::set::Member::top);
        stack.splice(0..0, root);
        let mut walk = Walk::new();
        for name in components(path) {
            match self.core.probe_with(&self.op, &stack, name?, &mut walk)?.hit {
                Hit::Dir { stack: next, .. } => stack = next,
                Hit::Leaf { .. } | Hit::None => return Ok(false),
            }
        }
        Ok(stack.iter().any(|shown| shown.is(part)) && !stack.iter().any(|shown| shown.is(own)))
    }

    /// Reports, once, that a branch lacks the mark which announces some kind of record.
    pub(super) fn unannounced(&mut self, at: usize, problem: Problem, mark: &[u8]) {
        let key = if mark == MOVED { at * 2 } else { at * 2 + 1 };
        if !self.targets.is_first_on(key) {
            return;
        }
        let Some(root) = self.root(at) else { return };
        let path = [b"/", mark].concat();
        self.found(at, Spot::new(problem, &path), |this| {
            this.create(at, problem, (&root, mark), &path)?;
            this.restart = true;
            Ok(())
        });
    }

    pub(super) fn root(&self, at: usize) -> Option<Arc<dyn Vnode>> {
        self.set().order.get(at).map(|member| member.state.root.clone())
    }

    /// Returns why a record of this owner can't be called forged: the branch belongs to the same
    /// user, who probably runs the union.
    pub(super) fn obstacle_of_owner(&self, at: usize, owner: u32) -> Result<Option<&'static str>> {
        let root = self.root(at).ok_or(Errno::STALE)?.getattr(&self.op)?;
        let same = owner != 0 && root.uid == owner;
        Ok(same.then_some("it belongs to the owner of the branch; run this command as the user who mounts the union"))
    }
}
