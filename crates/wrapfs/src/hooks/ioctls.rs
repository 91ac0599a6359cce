use super::Object;
use core::fmt;
use vnode::{Cx, IoctlReply, Result};

/// Adds layer-specific ioctls to files and directories (Wrapfs paper, section 2.2).
pub trait Ioctls: Send + Sync + fmt::Debug {
    /// Handles an ioctl. Returns `None` for an unknown command, which the layer below then
    /// receives. Command numbers must be built with `_IOC` of `asm-generic/ioctl.h`, because the
    /// kernel copies as many bytes in and out as the number encodes.
    ///
    /// # Errors
    /// The ioctl fails with this errno.
    fn ioctl(
        &self,
        cx: &Cx<'_>,
        file: &Object<'_>,
        cmd: u32,
        input: &[u8],
        out: &mut [u8],
    ) -> Result<Option<IoctlReply>>;
}
