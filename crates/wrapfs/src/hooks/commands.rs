use super::Object;
use core::fmt;
use vnode::{Command, Cx, Result};

/// Adds layer-specific commands to the control channel of the mount: `strata control PATH
/// LAYER.WORD`.
pub trait Commands: Send + Sync + fmt::Debug {
    /// Returns the commands, which never change. Each name is `LAYER.WORD`, with the layer's name.
    fn commands(&self) -> Vec<Command>;

    /// Runs one of [`Self::commands`] on `object`, for a caller permitted by [`Command::access`].
    ///
    /// On a read-only layer below, make changes only through operations of that layer.
    ///
    /// # Errors
    /// `ENOTTY` if the command does not apply to this object; the layer below then receives it.
    /// `EINVAL` for invalid input.
    fn control(&self, cx: &Cx<'_>, object: &Object<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>>;
}
