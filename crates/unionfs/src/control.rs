//! Commands of the control channel: the union has none, its branches' layers may.

use crate::branch::Lower;
use crate::node::UnionVnode;
use crate::set::BranchSet;
use vnode::{Command, Cx, Errno, Result};

/// The commands of all branches.
pub(crate) fn commands(set: &BranchSet) -> Vec<Command> {
    set.order.iter().flat_map(|member| member.state.layer.commands()).collect()
}

/// Is what lies on that branch safe from commands? Which of them change something nobody says: on a branch that the union does
/// not write, the layer itself must not be able to.
fn takes_commands(set: &BranchSet, lower: &Lower) -> bool {
    let layer_refuses = || set.branch(lower.branch).is_ok_and(|branch| branch.layer.properties().read_only);
    set.writable(lower.branch) && !set.read_only || layer_refuses()
}

impl UnionVnode {
    /// Gives the command to the lower object that is shown; of a directory to each part, the leftmost first, until one knows it.
    pub(crate) fn give_command(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        let give = |set: &BranchSet, lower: &Lower| match takes_commands(set, lower) {
            true => lower.vnode.control(cx, command, input),
            false => Err(Errno::NOTTY),
        };
        // A command is given once: the set of branches does not change meanwhile.
        self.changing(cx, |op| {
            if self.dir.is_none() {
                return self.on_leaf(cx, |lower| give(op.set, lower));
            }
            for part in self.stack()?.iter() {
                match give(op.set, part) {
                    Err(Errno::NOTTY) => {}
                    answer => return answer,
                }
            }
            Err(Errno::NOTTY)
        })
    }
}
