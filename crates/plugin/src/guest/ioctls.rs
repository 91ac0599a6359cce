//! C ABI function that calls the ioctl hook.

use super::mounted::{code, enter};
use super::remote::Remote;
use super::server::guard;
use crate::abi::{self, Bytes};
use crate::convert::slice;
use core::ffi::{c_int, c_void};
use vnode::Errno;

pub(super) static IOCTLS: abi::Ioctls = abi::Ioctls { size: size_of::<abi::Ioctls>(), ioctl: Some(ioctl) };

unsafe extern "C" fn ioctl(
    me: *mut c_void,
    caller: *const abi::Caller,
    file: *const abi::Object,
    cmd: u32,
    input: Bytes,
    out: *mut u8,
    capacity: usize,
    out_len: *mut usize,
    result: *mut i32,
) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let ((mounted, cx), file, input) = unsafe { (enter(me, caller)?, Remote::new(file)?, slice(input)) };
        let room = if capacity == 0 {
            &mut []
        } else {
            // SAFETY: the header guarantees a buffer of that many bytes.
            unsafe { core::slice::from_raw_parts_mut(out, capacity) }
        };
        let hook = mounted.hooks.ioctls.as_ref().ok_or(Errno::IO)?;
        let Some(reply) = hook.ioctl(&cx, &file.lent(), cmd, input, room)? else { return Ok(0) };
        // SAFETY: the header guarantees the server's pointers.
        unsafe {
            out_len.write(reply.len);
            result.write(reply.result);
        }
        Ok(1)
    }))
}
