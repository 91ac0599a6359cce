//! The commands: rules and moved processes, changed at run time.

use crate::shared::Shared;
use classify::{Condition, MoveError, Rule, ViewId};
use serde::Serialize;
use vnode::{Command, CommandAccess, Cx, Errno, Result};

/// Lists views, rules and moved processes.
pub(crate) const LIST: Command = Command {
    name: "viewfs.list",
    help: "Returns the views, the rules in order, and the processes that were moved, as JSON.",
    access: CommandAccess::Owner,
};

/// Adds a rule.
pub(crate) const ADD: Command = Command {
    name: "viewfs.add",
    help: "Adds a rule before all others. The input is the condition, a blank and the view: 'uid=1000 bad'. Returns an empty reply.",
    access: CommandAccess::Owner,
};

/// Removes a rule.
pub(crate) const REMOVE: Command = Command {
    name: "viewfs.remove",
    help: "Removes the rule whose condition is the input. Returns an empty reply.",
    access: CommandAccess::Owner,
};

/// Moves a process.
pub(crate) const MOVE: Command = Command {
    name: "viewfs.move",
    help: "Moves a process and its descendants to a view. The input is the process ID, a blank and the view: '1234 bad'. \
           Returns an empty reply.",
    access: CommandAccess::Owner,
};

/// Ends a move.
pub(crate) const RELEASE: Command = Command {
    name: "viewfs.release",
    help: "Ends the move of the process whose ID is the input, and of all processes that were moved with it: the rules decide \
           again. Returns an empty reply.",
    access: CommandAccess::Owner,
};

/// Returns the view of a process.
pub(crate) const WHICH: Command = Command {
    name: "viewfs.which",
    help: "Returns the name of the view of the process whose ID is the input.",
    access: CommandAccess::Owner,
};

/// Drops cached replies of the classifier.
pub(crate) const FORGET: Command = Command {
    name: "viewfs.forget",
    help: "Drops the cached replies of the classifier. Returns an empty reply.",
    access: CommandAccess::Owner,
};

/// All commands.
pub(crate) const ALL: [Command; 7] = [LIST, ADD, REMOVE, MOVE, RELEASE, WHICH, FORGET];

#[derive(Serialize)]
struct Listed<'a> {
    views: Vec<&'a str>,
    trusted: &'a str,
    rules: Vec<ListedRule<'a>>,
    moved: Vec<ListedMove<'a>>,
    classifier: bool,
}

#[derive(Serialize)]
struct ListedRule<'a> {
    condition: String,
    view: &'a str,
}

#[derive(Serialize)]
struct ListedMove<'a> {
    pid: u32,
    view: &'a str,
    /// Number of processes that are known to be in the view because of this move.
    processes: usize,
}

impl<N> Shared<N> {
    /// Runs one of the layer's commands. `None`: it is another layer's.
    pub(crate) fn run_command(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Option<Result<Vec<u8>>> {
        let command = ALL.into_iter().find(|known| known.name == command)?;
        Some(self.run_own(cx, command, input.trim_ascii()))
    }

    fn run_own(&self, cx: &Cx<'_>, command: Command, input: &[u8]) -> Result<Vec<u8>> {
        cx.require_blocking()?;
        // Otherwise a process could leave its view.
        if self.view_of(cx)? != self.trusted {
            return Err(Errno::PERM);
        }
        if command == LIST {
            return if input.is_empty() { self.list() } else { Err(Errno::INVAL) };
        }
        if command == WHICH {
            return self.which(cx, pid(input)?);
        }
        if command == ADD {
            let (condition, view) = self.with_view(input)?;
            let condition = Condition::parse(condition).map_err(|_| Errno::INVAL)?;
            self.rules.add(Rule { condition, view });
        } else if command == REMOVE {
            let condition = Condition::parse(input).map_err(|_| Errno::INVAL)?;
            if !self.rules.remove(&condition) {
                return Err(Errno::NOENT);
            }
        } else if command == MOVE {
            let (process, view) = self.with_view(input)?;
            self.moves.put(pid(process)?, view).map_err(errno)?;
        } else if command == RELEASE {
            self.moves.release(pid(input)?).map_err(errno)?;
        } else if let Some(external) = &self.external {
            external.forget();
        }
        Ok(Vec::new())
    }

    fn name_of(&self, view: ViewId) -> &str {
        self.views.get(view).map_or("", |view| &view.name)
    }

    fn list(&self) -> Result<Vec<u8>> {
        let rule = |rule: Rule| ListedRule { condition: rule.condition.to_string(), view: self.name_of(rule.view) };
        let listed = Listed {
            views: self.views.iter().map(|view| &*view.name).collect(),
            trusted: self.name_of(self.trusted),
            rules: self.rules.list().into_iter().map(rule).collect(),
            moved: self
                .moves
                .list()
                .into_iter()
                .map(|moved| ListedMove {
                    pid: moved.process,
                    view: self.name_of(moved.view),
                    processes: moved.members,
                })
                .collect(),
            classifier: self.external.is_some(),
        };
        serde_json::to_vec(&listed).map_err(|_| Errno::IO)
    }

    fn which(&self, cx: &Cx<'_>, pid: u32) -> Result<Vec<u8>> {
        let (uid, gid) = self.processes.credentials(pid).ok_or(Errno::SRCH)?;
        let call = cx.call().ok_or(Errno::IO)?.for_other_process();
        let never = core::sync::atomic::AtomicBool::new(false);
        let of_process = Cx::new(uid, gid, pid, 0, true, &never).with_call(&call);
        let view = self.view_of(&of_process)?;
        Ok(self.name_of(view).as_bytes().to_vec())
    }

    /// Splits `WHAT VIEW` at the last blank.
    fn with_view<'a>(&self, input: &'a [u8]) -> Result<(&'a [u8], ViewId)> {
        let at = input.iter().rposition(|&byte| byte == b' ').ok_or(Errno::INVAL)?;
        let (what, view) = (input.get(..at).unwrap_or_default(), input.get(at + 1..).unwrap_or_default());
        Ok((what.trim_ascii(), self.find(view).ok_or(Errno::INVAL)?))
    }
}

fn pid(input: &[u8]) -> Result<u32> {
    core::str::from_utf8(input).ok().and_then(|text| text.parse().ok()).ok_or(Errno::INVAL)
}

fn errno(error: MoveError) -> Errno {
    match error {
        MoveError::NoProcess => Errno::SRCH,
        MoveError::NotMoved => Errno::NOENT,
    }
}
