use super::Object;
use core::fmt;
use vnode::{Cx, IoctlReply, Result};

/// Gives files and directories ioctls of the layer's own (Wrapfs paper, section 2.2).
pub trait Ioctls: Send + Sync + fmt::Debug {
    /// Answers an ioctl; `None`: it is not one of these, and goes to the layer below. Numbers are to be made as by `_IOC` of
    /// `asm-generic/ioctl.h`, since the kernel passes as many bytes in and out as the number says.
    ///
    /// # Errors
    /// The ioctl fails with it.
    fn ioctl(
        &self,
        cx: &Cx<'_>,
        file: &Object<'_>,
        cmd: u32,
        input: &[u8],
        out: &mut [u8],
    ) -> Result<Option<IoctlReply>>;
}
