//! Commands of the control channel: the union's own, and those of the layers of its branches.

use crate::branch::Lower;
use crate::debug::{REVALIDATE, STATE};
use crate::move_steps::MOVE;
use crate::node::UnionVnode;
use crate::query::QUERY;
use crate::set::BranchSet;
use vnode::{Command, Cx, Errno, Result};

/// Returns the union's own commands and those of all branches.
pub(crate) fn commands(set: &BranchSet) -> Vec<Command> {
    let branches = set.order.iter().flat_map(|member| member.state.layer.commands());
    [QUERY, MOVE, STATE, REVALIDATE].into_iter().chain(branches).collect()
}

/// Whether commands may be passed to an object on that branch. A command may change the object. So
/// on a branch that the union does not write, the layer must be read-only, and refuse changes.
fn accepts_commands(set: &BranchSet, lower: &Lower) -> bool {
    let layer_refuses = || set.branch(lower.branch).is_ok_and(|branch| branch.layer.properties().read_only);
    set.writable(lower.branch) && !set.read_only || layer_refuses()
}

impl UnionVnode {
    /// Runs the union's own command, or passes a command to the visible lower object; for a
    /// directory to each part, from the left, until one knows the command.
    pub(crate) fn run_command(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        if command == QUERY.name {
            return self.query(cx);
        }
        if command == MOVE.name {
            return self.move_step(cx, input);
        }
        if command == STATE.name {
            return self.state_of_branches(cx);
        }
        if command == REVALIDATE.name {
            cx.require_blocking()?;
            return self.revalidate_all();
        }
        let pass = |set: &BranchSet, lower: &Lower| match accepts_commands(set, lower) {
            true => lower.vnode.control(cx, command, input),
            false => Err(Errno::NOTTY),
        };
        // A command must run only once, so the set of branches must not change meanwhile.
        self.run_change(cx, |op| {
            if self.dir.is_none() {
                return self.on_leaf(cx, |lower| pass(op.set, lower));
            }
            for part in self.stack()?.iter() {
                match pass(op.set, part) {
                    Err(Errno::NOTTY) => {}
                    answer => return answer,
                }
            }
            Err(Errno::NOTTY)
        })
    }
}
