use super::Object;
use core::fmt;
use vnode::{Command, Cx, Result};

/// Gives a layer commands of its own on the control channel of the mount: `strata control PATH LAYER.WORD`.
pub trait Commands: Send + Sync + fmt::Debug {
    /// The commands: always the same. A name is `LAYER.WORD`, with the layer's name.
    fn commands(&self) -> Vec<Command>;

    /// Answers one of [`Self::commands`], given on `object`, to a caller whom [`Command::who`] allows it.
    ///
    /// Only changes that are made by operations of the layer below are safe where that is read-only.
    ///
    /// # Errors
    /// `ENOTTY` if the command is not for this object: it goes to the layer below. `EINVAL` for input
    /// that is not understood.
    fn control(&self, cx: &Cx<'_>, object: &Object<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>>;
}
