//! C ABI functions that call a codec, which changes the size of data.

use super::mounted::{Mounted, code, put};
use super::server::guard;
use crate::abi::{self, Bytes};
use crate::convert::slice;
use core::ffi::{c_int, c_void};
use std::sync::Arc;
use vnode::{Errno, Result};
use wrapfs::Foreign;
use wrapfs::container::{BlockAt, BlockCodec};

pub(super) static CODEC: abi::Codec = abi::Codec {
    size: size_of::<abi::Codec>(),
    storage: Some(storage),
    max_encoded: Some(max_encoded),
    encode: Some(encode),
    decode: Some(decode),
};

/// Returns the codec of an instance.
///
/// # Safety
/// `me` was created by [`super::instance::instance`].
unsafe fn resizing<'a>(me: *mut c_void) -> Result<&'a (Arc<dyn BlockCodec>, Foreign)> {
    // SAFETY: guaranteed by the caller.
    let mounted = unsafe { me.cast::<Mounted>().as_ref() }.ok_or(Errno::IO)?;
    mounted.hooks.resizing.as_ref().ok_or(Errno::IO)
}

unsafe extern "C" fn storage(me: *mut c_void, out: *mut abi::Storage) -> c_int {
    code(guard(|| {
        // SAFETY: `me` was created by `instance`, and the header guarantees the server's buffer.
        let ((codec, foreign), out) = unsafe { (resizing(me)?, out.as_mut().ok_or(Errno::IO)?) };
        let foreign = match foreign {
            Foreign::Plain => abi::FOREIGN_PLAIN,
            Foreign::Refuse => abi::FOREIGN_REFUSE,
        };
        *out = abi::Storage { id: codec.id(), block_size: codec.block_size(), foreign };
        Ok(0)
    }))
}

unsafe extern "C" fn max_encoded(me: *mut c_void, plain: usize) -> usize {
    // SAFETY: the header guarantees that `me` was created by `instance`.
    let most = guard(|| unsafe { resizing(me) }.map(|(codec, _)| codec.max_encoded(plain)));
    // The server rejects 0.
    most.unwrap_or(0)
}

/// # Safety
/// `at` comes from the server.
unsafe fn place(at: *const abi::BlockAt) -> Result<BlockAt> {
    // SAFETY: guaranteed by the caller.
    let at = unsafe { at.as_ref() }.ok_or(Errno::IO)?;
    Ok(BlockAt { file: at.file, block: at.block })
}

unsafe extern "C" fn encode(
    me: *mut c_void,
    at: *const abi::BlockAt,
    plain: Bytes,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    let made = guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let ((codec, _), at, plain) = unsafe { (resizing(me)?, place(at)?, slice(plain)) };
        let mut encoded = Vec::with_capacity(capacity);
        codec.encode(&at, plain, &mut encoded)?;
        Ok(encoded)
    });
    // SAFETY: the header guarantees the server's buffer.
    unsafe { put(made, out, capacity) }
}

unsafe extern "C" fn decode(
    me: *mut c_void,
    at: *const abi::BlockAt,
    encoded: Bytes,
    out: *mut u8,
    len: usize,
) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments: room for `len` bytes.
        let ((codec, _), at, encoded, out) =
            unsafe { (resizing(me)?, place(at)?, slice(encoded), core::slice::from_raw_parts_mut(out, len)) };
        codec.decode(&at, encoded, out)?;
        Ok(0)
    }))
}
