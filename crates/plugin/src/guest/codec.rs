//! Functions of the C ABI that call a codec, whose data have another size.

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

/// The codec of an instance.
///
/// # Safety
/// `me` was made by [`super::instance::instance`].
unsafe fn resizing<'a>(me: *mut c_void) -> Result<&'a (Arc<dyn BlockCodec>, Foreign)> {
    // SAFETY: this function's contract.
    let mounted = unsafe { me.cast::<Mounted>().as_ref() }.ok_or(Errno::IO)?;
    mounted.hooks.resizing.as_ref().ok_or(Errno::IO)
}

unsafe extern "C" fn storage(me: *mut c_void, out: *mut abi::Storage) -> c_int {
    code(guard(|| {
        // SAFETY: made by `instance`, and the server's room, by the header.
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
    // SAFETY: made by `instance`, by the header.
    let most = guard(|| unsafe { resizing(me) }.map(|(codec, _)| codec.max_encoded(plain)));
    // Which the server refuses.
    most.unwrap_or(0)
}

/// # Safety
/// A place of the server's.
unsafe fn place(at: *const abi::BlockAt) -> Result<BlockAt> {
    // SAFETY: this function's contract.
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
        // SAFETY: what the server calls with, by the header.
        let ((codec, _), at, plain) = unsafe { (resizing(me)?, place(at)?, slice(plain)) };
        let mut encoded = Vec::with_capacity(capacity);
        codec.encode(&at, plain, &mut encoded)?;
        Ok(encoded)
    });
    // SAFETY: the server's room, by the header.
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
        // SAFETY: what the server calls with, by the header: room for `len` bytes.
        let ((codec, _), at, encoded, out) =
            unsafe { (resizing(me)?, place(at)?, slice(encoded), core::slice::from_raw_parts_mut(out, len)) };
        codec.decode(&at, encoded, out)?;
        Ok(0)
    }))
}
