//! Recovery of link counts after a crash.

use crate::branch::Lower;
use crate::identity::Using;
use crate::lookup::Hit;
use crate::marks::components;
use crate::node::Core;
use crate::op::Op;
use vnode::{Errno, Name, Result};

/// The state of a name of a lower file.
enum Fate {
    /// It leads to the file as before.
    Shows,
    /// It exists but is hidden.
    Hidden,
    /// It does not exist any more.
    Removed,
}

impl Core {
    /// Completes the changes of link counts that a crash interrupted.
    pub(crate) fn complete_names(&self, op: &Op<'_>) -> Result<()> {
        for (number, using) in self.identity.in_use() {
            if using.path.is_empty() {
                match self.links.branch(number) {
                    Some(at) if op.set.branch(at)?.tag != using.tag => self.index_moved(op, number, using.first),
                    _ => self.end_using(op, number, 0),
                }
                continue;
            }
            let fate = match self.fate(op, number, &using) {
                // No branch can have such a name, so it was not used up.
                Err(Errno::NAMETOOLONG | Errno::INVAL | Errno::LOOP) => Fate::Shows,
                other => other?,
            };
            match fate {
                Fate::Shows => self.end_using(op, number, 0),
                Fate::Hidden => self.use_name(op, number, using.first, 1),
                Fate::Removed if self.links.branch(number).is_some() => self.use_name(op, number, using.first, 1),
                Fate::Removed => self.end_using(op, number, 1),
            }
        }
        Ok(())
    }

    /// Returns the state of a lower name.
    fn fate(&self, op: &Op<'_>, number: u64, using: &Using) -> Result<Fate> {
        let mut stack = op.set.roots();
        let mut fate = Fate::Removed;
        for name in components(&using.path) {
            let name = name?;
            fate = self.fate_in(op, &stack, name, number, using.tag)?;
            match self.probe(op, &stack, name)?.hit {
                Hit::Dir { stack: next, .. } => stack = next,
                Hit::None | Hit::Leaf { .. } => break,
            }
        }
        Ok(fate)
    }

    fn fate_in(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>, number: u64, tag: u16) -> Result<Fate> {
        for part in stack {
            if op.set.branch(part.branch)?.tag != tag {
                continue;
            }
            let Some(entry) = part.vnode.lookup(op, name)? else { break };
            let lower = Lower { vnode: entry.vnode, branch: part.branch };
            if self.number_of(op, &lower, &entry.attr)? != number {
                break;
            }
            let shows = self.probe(op, stack, name)?.branch() == Some(part.branch);
            return Ok(if shows { Fate::Shows } else { Fate::Hidden });
        }
        Ok(Fate::Removed)
    }
}
