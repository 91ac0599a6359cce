//! C ABI functions that call the data hooks, which keep the size.

use super::mounted::{Mounted, code, enter};
use super::remote::Remote;
use super::server::guard;
use crate::abi;
use core::ffi::{c_int, c_void};
use vnode::Errno;
use wrapfs::hooks::Block;

pub(super) static DATA: abi::Data = abi::Data {
    size: size_of::<abi::Data>(),
    block_size: Some(block_size),
    applies: Some(applies),
    encode_data: Some(encode_data),
    decode_data: Some(decode_data),
};

unsafe extern "C" fn block_size(me: *mut c_void) -> usize {
    let size = guard(|| {
        // SAFETY: the header guarantees that `me` was created by `instance`.
        let mounted = unsafe { me.cast::<Mounted>().as_ref() }.ok_or(Errno::IO)?;
        Ok(mounted.hooks.data.as_ref().ok_or(Errno::IO)?.block_size())
    });
    // The server rejects 0.
    size.unwrap_or(0)
}

unsafe extern "C" fn applies(me: *mut c_void, caller: *const abi::Caller, file: *const abi::Object) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let ((mounted, cx), file) = unsafe { (enter(me, caller)?, Remote::new(file)?) };
        Ok(mounted.hooks.data.as_ref().ok_or(Errno::IO)?.applies(&cx, &file.lent())?.into())
    }))
}

macro_rules! blocks {
    ($($function:ident)*) => { $(
        unsafe extern "C" fn $function(
            me: *mut c_void,
            caller: *const abi::Caller,
            file: *const abi::Object,
            number: u64,
            from: *const u8,
            to: *mut u8,
            len: usize,
        ) -> c_int {
            code(guard(|| {
                // SAFETY: the header guarantees the server's arguments: two buffers of `len` bytes
                // that don't overlap.
                let ((mounted, cx), file, from, to) = unsafe {
                    let from = core::slice::from_raw_parts(from, len);
                    (enter(me, caller)?, Remote::new(file)?, from, core::slice::from_raw_parts_mut(to, len))
                };
                let at = Block { file: &file.lent(), number };
                mounted.hooks.data.as_ref().ok_or(Errno::IO)?.$function(&cx, &at, from, to)?;
                Ok(0)
            }))
        }
    )* };
}

blocks! { encode_data decode_data }
