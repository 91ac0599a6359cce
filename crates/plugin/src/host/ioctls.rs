use super::instance::{Instance, must};
use super::offers::with;
use crate::abi::{self, Bytes};
use crate::convert::caller_out;
use std::sync::Arc;
use vnode::{Cx, IoctlReply, Result};
use wrapfs::hooks::{self, Object};

#[derive(Debug)]
pub(super) struct Ioctls {
    instance: Arc<Instance>,
    ioctl: abi::IoctlFn,
}

impl Ioctls {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::Ioctls) -> core::result::Result<Self, String> {
        Ok(Self { instance: instance.clone(), ioctl: must(table.ioctl, "ioctl")? })
    }
}

impl hooks::Ioctls for Ioctls {
    fn ioctl(
        &self,
        cx: &Cx<'_>,
        file: &Object<'_>,
        cmd: u32,
        input: &[u8],
        out: &mut [u8],
    ) -> Result<Option<IoctlReply>> {
        const HOOK: &str = "ioctl";
        let (caller, input, room, capacity) = (caller_out(cx), Bytes::of(input), out.as_mut_ptr(), out.len());
        let (mut len, mut result) = (0, 0);
        let code = with(file, |file| {
            let (me, len, result) = (self.instance.me(), &raw mut len, &raw mut result);
            // SAFETY: calls the plugin's hook; all arguments outlive the call, and the buffer has
            // `capacity` bytes.
            unsafe { (self.ioctl)(me, &raw const caller, file, cmd, input, room, capacity, len, result) }
        });
        match code {
            0 => Ok(None),
            1 if len > capacity || result < 0 => {
                let what = format_args!("returned {len} bytes for a buffer of {capacity}, and the result {result}");
                Err(self.instance.log_error(HOOK, what))
            }
            1 => Ok(Some(IoctlReply { result, len })),
            code => Err(self.instance.errno_for(cx, HOOK, code.into())),
        }
    }
}
