//! Implementation of the commands of [`crate::control`].

use crate::control::{CONVERT, Goal, STATE};
use crate::node::UsenetVnode;
use vnode::{Cx, Errno, Kind, Result, Vnode as _};

impl UsenetVnode {
    /// Runs the layer's commands on a directory, and forwards all others to the layer below.
    pub(crate) fn run_command(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        if self.kind() != Kind::Directory || ![STATE.name, CONVERT.name].contains(&command) {
            return self.lower.control(cx, command, input);
        }
        let progress = if command == STATE.name {
            if !input.is_empty() {
                return Err(Errno::INVAL);
            }
            self.progress(cx)?
        } else {
            let (goal, budget) = Goal::parse(input).ok_or(Errno::INVAL)?;
            if cx.uid != 0 && self.lower.getattr(cx)?.uid != cx.uid {
                return Err(Errno::PERM);
            }
            self.convert(cx, goal, budget)?
        };
        Ok(progress.to_string().into_bytes())
    }
}
