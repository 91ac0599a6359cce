//! C ABI functions that call the name hooks.

use super::mounted::{Mounted, enter, put};
use super::remote::Remote;
use super::server::guard;
use crate::abi::{self, Bytes};
use crate::convert::slice;
use core::ffi::{c_int, c_void};
use vnode::Errno;

pub(super) static NAMES: abi::Names = abi::Names {
    size: size_of::<abi::Names>(),
    encode_filename: Some(encode_filename),
    decode_filename: Some(decode_filename),
    encode_target: Some(encode_target),
    decode_target: Some(decode_target),
    matching: Some(matching),
    fold_filename: Some(fold_filename),
};

macro_rules! names {
    ($($function:ident)*) => { $(
        unsafe extern "C" fn $function(
            me: *mut c_void,
            caller: *const abi::Caller,
            dir: *const abi::Object,
            name: Bytes,
            out: *mut u8,
            capacity: usize,
        ) -> i64 {
            let made = guard(|| {
                // SAFETY: the header guarantees the server's arguments.
                let ((mounted, cx), dir, name) = unsafe { (enter(me, caller)?, Remote::new(dir)?, slice(name)) };
                mounted.hooks.names.as_ref().ok_or(Errno::IO)?.$function(&cx, &dir.lent(), name)
            });
            // SAFETY: the header guarantees the server's buffer.
            unsafe { put(made, out, capacity) }
        }
    )* };
}

macro_rules! targets {
    ($($function:ident)*) => { $(
        unsafe extern "C" fn $function(
            me: *mut c_void,
            caller: *const abi::Caller,
            target: Bytes,
            out: *mut u8,
            capacity: usize,
        ) -> i64 {
            let made = guard(|| {
                // SAFETY: the header guarantees the server's arguments.
                let ((mounted, cx), target) = unsafe { (enter(me, caller)?, slice(target)) };
                mounted.hooks.names.as_ref().ok_or(Errno::IO)?.$function(&cx, target)
            });
            // SAFETY: the header guarantees the server's buffer.
            unsafe { put(made, out, capacity) }
        }
    )* };
}

names! { encode_filename decode_filename fold_filename }
targets! { encode_target decode_target }

unsafe extern "C" fn matching(me: *mut c_void) -> c_int {
    // SAFETY: created by `instance`, and valid until `close`.
    unsafe { me.cast::<Mounted>().as_ref() }.map_or(abi::MATCHING_EXACT, |mounted| mounted.matching)
}
