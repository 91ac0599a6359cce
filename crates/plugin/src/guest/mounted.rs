//! The hooks of an instance, as passed to C ABI functions.

use crate::abi;
use crate::convert::caller_in;
use core::ffi::{c_int, c_void};
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::Hooks;

/// Hooks of an instance, and the tables that point to them.
pub(super) struct Mounted {
    pub(super) hooks: Hooks,
    pub(super) matching: c_int,
    pub(super) interest: u64,
}

/// Converts the arguments common to all functions.
///
/// # Safety
/// `me` was created by [`super::instance::instance`], the caller is one of the server's, and both
/// live during the call.
pub(super) unsafe fn enter<'a>(me: *mut c_void, caller: *const abi::Caller) -> Result<(&'a Mounted, Cx<'a>)> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mounted = me.cast::<Mounted>().as_ref().ok_or(Errno::IO)?;
        Ok((mounted, caller_in(caller.as_ref().ok_or(Errno::IO)?)))
    }
}

/// Returns a function's result or its negative errno.
pub(super) fn code(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|errno| -errno.raw_os_error())
}

/// Copies as many bytes as fit, and returns the total length.
///
/// # Safety
/// `out` is a buffer of `capacity` bytes.
pub(super) unsafe fn put(result: Result<Vec<u8>>, out: *mut u8, capacity: usize) -> i64 {
    match result {
        Ok(bytes) => {
            // SAFETY: copies no more than the buffer's size (guaranteed by the caller).
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len().min(capacity)) };
            i64::try_from(bytes.len()).unwrap_or(i64::MAX)
        }
        Err(errno) => -i64::from(errno.raw_os_error()),
    }
}
