//! The command `unionfs.query`: what each branch has at the place of an object.

use crate::branch::{BranchId, Lower, is_dir};
use crate::metacopy::as_metacopy;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::{Found, Onward, Walk, components};
use crate::options::Mode;
use crate::retry::Retries;
use crate::state_text::text;
use serde_json::{Value, json};
use vnode::{Command, CommandAccess, Cx, Errno, Name, Result};

pub(crate) const QUERY: Command = Command {
    name: "unionfs.query",
    help: "Says what each branch has at the place of this file or directory. No input. The output is a JSON object: path and \
           name in the union (null if it has none), kind, and for each branch its path, index, mode and state: shown (the file \
           that users see), metacopy and data (its attributes and data), part (of a merged directory), opaque (a part that \
           hides those of the branches to its right), hidden (by a branch to its left), whiteout (hides the name on branches \
           to its right), or absent. \"at\" is the object's path on the branch, null if it is only in the index of hard links. A \
           path that is not UTF-8 is an array of bytes.",
    access: CommandAccess::Anyone,
};

/// What a branch has at a place in the union.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Shown,
    Metacopy,
    Data,
    Part,
    /// A part that ends the directory.
    Opaque,
    Hidden,
    Whiteout,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            Self::Shown => "shown",
            Self::Metacopy => "metacopy",
            Self::Data => "data",
            Self::Part => "part",
            Self::Opaque => "opaque",
            Self::Hidden => "hidden",
            Self::Whiteout => "whiteout",
        }
    }

    fn is_part(self) -> bool {
        matches!(self, Self::Part | Self::Opaque)
    }
}

/// An object of a branch, or a whiteout.
#[derive(Clone)]
struct Spot {
    branch: BranchId,
    /// Its path on the branch. `None` for a file without a name there.
    at: Option<Vec<u8>>,
    state: State,
    /// `None` for a whiteout.
    lower: Option<Lower>,
}

impl Spot {
    fn of(part: &Lower, at: Vec<u8>, state: State) -> Self {
        Self { branch: part.branch, at: Some(at), state, lower: Some(part.clone()) }
    }

    fn entry_path(&self, name: Name<'_>) -> Vec<u8> {
        [self.at.as_deref().unwrap_or_default(), b"/", name.as_bytes()].concat()
    }
}

fn mode_text(mode: Mode) -> &'static str {
    match mode {
        Mode::ReadWrite => "rw",
        Mode::ReadOnly => "ro",
        Mode::NfsReadOnly => "nfsro",
        Mode::ReadOnlySkip => "ro+skip",
        Mode::NfsReadOnlySkip => "nfsro+skip",
    }
}

impl UnionVnode {
    /// Replies to `unionfs.query`.
    pub(crate) fn query(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.reply(cx, |op| self.query_once(op))
    }

    /// Replies to `unionfs.state`.
    pub(crate) fn state_of_branches(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.reply(cx, |op| {
            let (path, spots) = self.spots(op)?;
            let mut report = self.report(op, path.as_deref(), &spots);
            let lowers: Vec<Lower> = spots.into_iter().filter_map(|spot| spot.lower).collect();
            self.add_state(op, &mut report, &lowers)?;
            Ok(report)
        })
    }

    fn reply(&self, cx: &Cx<'_>, examine: impl Fn(&Op<'_>) -> Result<Value>) -> Result<Vec<u8>> {
        cx.require_blocking()?;
        let mut retries = Retries::new();
        loop {
            let set = self.core.branches.get();
            let op = self.core.server(&Op::new(cx, &set));
            let reply = match self.revalidate(&op) {
                Err(Errno::STALE) if self.is_detached() => Ok(self.report(&op, None, &[])),
                revalidated => revalidated.and_then(|()| examine(&op)),
            };
            if op.check_set(&self.core.branches).is_ok() {
                return reply.map(|reply| reply.to_string().into_bytes());
            }
            retries.count()?;
        }
    }

    fn query_once(&self, op: &Op<'_>) -> Result<Value> {
        let (path, spots) = self.spots(op)?;
        Ok(self.report(op, path.as_deref(), &spots))
    }

    /// Returns the object's path in the union, if it has one, and what the branches have there.
    fn spots(&self, op: &Op<'_>) -> Result<(Option<Vec<u8>>, Vec<Spot>)> {
        let core = &self.core;
        let leaf = self.leaf();
        let path = if self.id == crate::inode_number::ROOT { Vec::new() } else { self.own_path() };
        if path.is_empty() && self.id != crate::inode_number::ROOT {
            let spot = Spot { branch: leaf.branch, at: None, state: State::Shown, lower: Some(leaf) };
            return Ok((None, vec![spot]));
        }
        let mut spots: Vec<Spot> = op.set.roots().iter().map(|root| Spot::of(root, Vec::new(), State::Part)).collect();
        let mut walk = Walk::new();
        for name in components(&path) {
            spots.retain(|spot| spot.state.is_part());
            spots = core.examine(op, &spots, name?, &mut walk)?;
        }
        // A copy of a file with several names may have got another one of them.
        if self.dir.is_none()
            && let Some(shown) = spots.iter().position(|spot| matches!(spot.state, State::Shown))
            && spots.get(shown).is_some_and(|spot| op.set.is_left(leaf.branch, spot.branch))
        {
            spots.iter_mut().skip(shown).take(1).for_each(|spot| spot.state = State::Hidden);
            spots.retain(|spot| spot.branch != leaf.branch);
            spots.push(Spot { branch: leaf.branch, at: None, state: State::Shown, lower: Some(leaf) });
        }
        Ok((Some(path), spots))
    }

    fn report(&self, op: &Op<'_>, path: Option<&[u8]>, spots: &[Spot]) -> Value {
        let branches = op.set.order.iter().enumerate().map(|(index, member)| {
            let spot = spots.iter().find(|spot| spot.branch == member.id);
            let (branch, mode) = (text(member.state.path.as_os_str().as_encoded_bytes()), mode_text(member.mode));
            let Some(Spot { at, state, .. }) = spot else {
                return json!({ "branch": branch, "index": index, "mode": mode, "state": "absent" });
            };
            let at = at.as_deref().map(|at| text(if at.is_empty() { b"/" } else { at }));
            json!({ "branch": branch, "index": index, "mode": mode, "state": state.text(), "at": at })
        });
        let name = path.and_then(|path| path.rsplit(|&b| b == b'/').next());
        let path = path.map(|path| text(if path.is_empty() { b"/" } else { path }));
        let branches: Vec<Value> = branches.collect();
        json!({ "path": path, "name": name.map(text), "kind": self.kind.word(), "branches": branches })
    }
}

impl Core {
    /// Returns what the branches have at `name` in the directory with the parts `dir`, at most one
    /// object for each branch.
    fn examine(&self, op: &Op<'_>, dir: &[Spot], name: Name<'_>, walk: &mut Walk) -> Result<Vec<Spot>> {
        let stack: Vec<Lower> = dir.iter().filter_map(|spot| spot.lower.clone()).collect();
        let mut spots: Vec<Spot> = Vec::new();
        // Whether objects further right are hidden.
        let mut ended = false;
        for (index, (part, parent)) in dir.iter().zip(&stack).enumerate() {
            walk.step()?;
            let entry = parent.vnode.lookup(op, name)?;
            let whiteout = index + 1 < stack.len() && self.has_whiteout(op, parent, name)?;
            let at = part.entry_path(name);
            let known = spots.iter().any(|spot| spot.branch == part.branch);
            match entry {
                // A directory that was renamed has another part on this branch.
                Some(_) if known => continue,
                Some(entry) => {
                    let found = Lower { vnode: entry.vnode.clone(), branch: part.branch };
                    let mut spot = Spot::of(&found, at, State::Hidden);
                    if !ended && is_dir(&entry.vnode) {
                        let (state, elsewhere) = self.examine_part(op, &found, (&stack, name), walk)?;
                        spot.state = if whiteout { State::Opaque } else { state };
                        ended = spot.state == State::Opaque || elsewhere.is_some();
                        spots.push(spot);
                        spots.extend(elsewhere.into_iter().flatten());
                        continue;
                    }
                    if !ended && spots.iter().all(|spot| !spot.state.is_part()) {
                        spot.state = State::Shown;
                        let left = stack.get(..index).unwrap_or_default();
                        let entry = self.with_metacopy(op, (left, name), part.branch, entry)?;
                        if let Some(meta) = as_metacopy(&entry.vnode) {
                            spot.state = State::Data;
                            let home =
                                dir.iter().find(|spot| spot.branch == meta.home).map(|spot| spot.entry_path(name));
                            spots.push(Spot { branch: meta.home, at: home, state: State::Metacopy, lower: None });
                        }
                    }
                    ended = true;
                    spots.push(spot);
                }
                None if whiteout && !ended => {
                    spots.push(Spot { branch: part.branch, at: Some(at), state: State::Whiteout, lower: None });
                    ended = true;
                }
                None => {}
            }
        }
        Ok(spots)
    }

    /// Returns the state of a visible part of a directory. If it has a redirect, also returns the
    /// parts that this leads to.
    fn examine_part(
        &self,
        op: &Op<'_>,
        part: &Lower,
        found: Found<'_>,
        walk: &mut Walk,
    ) -> Result<(State, Option<Vec<Spot>>)> {
        let path = match self.onward(op, part, found, walk)? {
            Onward::Opaque => return Ok((State::Opaque, None)),
            Onward::Unchecked if self.is_opaque(op, part)? => return Ok((State::Opaque, None)),
            Onward::Unchecked | Onward::ByName => return Ok((State::Part, None)),
            Onward::Redirected(path) => path,
        };
        let roots = op.set.roots_right_of(part.branch);
        let mut spots: Vec<Spot> = roots.iter().map(|root| Spot::of(root, Vec::new(), State::Part)).collect();
        for name in components(&path) {
            spots.retain(|spot| spot.state.is_part());
            spots = self.examine(op, &spots, name?, walk)?;
        }
        spots.retain(|spot| spot.state.is_part());
        Ok((State::Part, Some(spots)))
    }
}
