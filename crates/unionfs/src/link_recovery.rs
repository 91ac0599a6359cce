//! Recovery of link counts after a crash, from names that the log reports as about to be used up
//! (`link_count`).

use crate::branch::Lower;
use crate::lookup::Hit;
use crate::node::Core;
use crate::op::Op;
use crate::opaque_redirect::components;
use crate::recorded::Using;
use vnode::{Errno, Name, Result};

/// The state of a name of a lower file.
enum NameState {
    /// It leads to the file, as before.
    Visible,
    /// It exists on its branch, but is hidden.
    Hidden,
    /// It no longer exists on its branch.
    Removed,
}

impl Core {
    /// Completes the changes of link counts that a crash interrupted.
    pub(crate) fn complete_names(&self, op: &Op<'_>) -> Result<()> {
        for (number, using) in self.identity.unfinished_uses() {
            if using.path.is_empty() {
                match self.links.branch(number) {
                    Some(at) if op.set.branch(at)?.tag == using.by => {
                        self.copy_indexed(op, number, using.by, using.first.saturating_sub(1));
                    }
                    _ => self.end_use(op, number, using.by),
                }
                continue;
            }
            if op.set.order.iter().all(|member| member.state.tag != using.tag) {
                // Only a mount with that branch can tell.
                continue;
            }
            let name_state = match self.name_state(op, number, &using) {
                // No branch can have such a name, so it was not used up.
                Err(Errno::NAMETOOLONG | Errno::INVAL | Errno::LOOP) => NameState::Visible,
                other => other?,
            };
            let copy = self.links.branch(number).and_then(|at| op.set.branch(at).ok());
            match name_state {
                NameState::Hidden => self.use_name(op, number, using.by),
                // The names of a copy's original are counted as they were; the copy counts its own.
                NameState::Removed if copy.is_some_and(|branch| branch.tag != using.tag) => {
                    self.use_name(op, number, using.by);
                }
                NameState::Visible | NameState::Removed => self.end_use(op, number, using.by),
            }
        }
        Ok(())
    }

    /// Returns the state of a lower name.
    fn name_state(&self, op: &Op<'_>, number: u64, using: &Using) -> Result<NameState> {
        // Branches further left can hide the name for reasons of their own.
        let by = op.set.order.iter().position(|member| member.state.tag == using.by).unwrap_or(0);
        let mut stack = op.set.roots();
        stack.retain(|part| op.set.position(part.branch) >= by);
        let mut name_state = NameState::Removed;
        for name in components(&using.path) {
            let name = name?;
            name_state = self.name_state_in(op, &stack, name, number, using.tag)?;
            match self.probe(op, &stack, name)?.hit {
                Hit::Dir { stack: next, .. } => stack = next,
                Hit::None | Hit::Leaf { .. } => break,
            }
        }
        Ok(name_state)
    }

    fn name_state_in(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>, number: u64, tag: u16) -> Result<NameState> {
        for part in stack {
            if op.set.branch(part.branch)?.tag != tag {
                continue;
            }
            let Some(entry) = part.vnode.lookup(op, name)? else { break };
            let lower = Lower { vnode: entry.vnode, branch: part.branch };
            if self.number_of(op, &lower, &entry.attr)? != number {
                break;
            }
            let visible = self.probe(op, stack, name)?.branch() == Some(part.branch);
            return Ok(if visible { NameState::Visible } else { NameState::Hidden });
        }
        Ok(NameState::Removed)
    }
}
