//! Hooks over a layer, as the server's calls find them.

use crate::abi;
use crate::convert::caller_in;
use core::ffi::{c_int, c_void};
use vnode::{Cx, Errno, Result};
use wrapfs::hooks::Hooks;

/// Hooks over a layer, and the tables that lead to them.
pub(super) struct Mounted {
    pub(super) hooks: Hooks,
    pub(super) matching: c_int,
    pub(super) interest: u64,
}

/// What every function is called with.
///
/// # Safety
/// `me` was made by [`super::instance::instance`], the caller is one of the server's, and both live during the call.
pub(super) unsafe fn enter<'a>(me: *mut c_void, caller: *const abi::Caller) -> Result<(&'a Mounted, Cx<'a>)> {
    // SAFETY: this function's contract.
    unsafe {
        let mounted = me.cast::<Mounted>().as_ref().ok_or(Errno::IO)?;
        Ok((mounted, caller_in(caller.as_ref().ok_or(Errno::IO)?)))
    }
}

/// A function's answer, or its negative errno.
pub(super) fn code(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|errno| -errno.raw_os_error())
}

/// Answers bytes: as many as fit, and how many there are.
///
/// # Safety
/// There is room for `capacity` bytes at `out`.
pub(super) unsafe fn put(result: Result<Vec<u8>>, out: *mut u8, capacity: usize) -> i64 {
    match result {
        Ok(bytes) => {
            // SAFETY: no more than there is room for (this function's contract).
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len().min(capacity)) };
            i64::try_from(bytes.len()).unwrap_or(i64::MAX)
        }
        Err(errno) => -i64::from(errno.raw_os_error()),
    }
}
