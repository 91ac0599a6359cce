//! Commands of the control channel: the layer's own, and those of the layers below.

use super::core::Core;
use super::guard::guard;
use super::node::TemplateVnode;
use crate::hooks::Commands;
use vnode::{Command, Cx, Errno, Result};

/// The hook, and the commands it listed when the layer was built.
#[derive(Debug)]
pub(crate) struct OwnCommands {
    hook: Box<dyn Commands>,
    commands: Vec<Command>,
}

impl OwnCommands {
    pub(crate) fn new(hook: Box<dyn Commands>) -> Self {
        let commands = guard("commands", || Ok(hook.commands())).unwrap_or_default();
        Self { hook, commands }
    }

    fn has(&self, name: &str) -> bool {
        self.commands.iter().any(|command| command.name == name)
    }
}

impl Core {
    /// Returns the layer's own commands and those of the layers below.
    pub(crate) fn all_commands(&self) -> Vec<Command> {
        let own = self.commands.iter().flat_map(|own| own.commands.iter().copied());
        own.chain(self.lower.commands()).collect()
    }
}

impl TemplateVnode {
    /// Runs a command of this layer or of a layer below.
    pub(crate) fn do_control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>> {
        if let Some(own) = self.core.commands.as_ref().filter(|own| own.has(command)) {
            match guard("control", || own.hook.control(cx, &self.object(), command, input)) {
                Err(Errno::NOTTY) => {}
                answer => return answer,
            }
        }
        // Commands may change things, and nothing declares which do.
        if self.core.read_only && !self.core.lower.properties().read_only {
            return Err(Errno::NOTTY);
        }
        self.lower.control(cx, command, input)
    }
}
