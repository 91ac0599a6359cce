//! What a layer may ask of the server.

use crate::abi;
use crate::convert::{attr_out, caller_in, slice};
use core::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use vnode::{Errno, Result, Vnode};
use wrapfs::hooks::Object;

pub(super) static HOST: abi::Host = abi::Host {
    size: size_of::<abi::Host>(),
    major: abi::MAJOR,
    minor: abi::MINOR,
    getattr: Some(getattr),
    getxattr: Some(getxattr),
    log: Some(log),
};

/// An object as it is lent to a hook: it holds the address of `lower`, which lives as long as the call.
pub(super) fn lend(lower: &&dyn Vnode) -> abi::Object {
    abi::Object {
        host: &raw const HOST,
        id: lower.id(),
        kind: lower.kind().mode_bits(),
        reserved: 0,
        handle: core::ptr::from_ref(lower).cast(),
    }
}

/// Calls with an object that is lent.
pub(super) fn with<R>(object: &Object<'_>, call: impl FnOnce(*const abi::Object) -> R) -> R {
    let lower = object.lower();
    let object = lend(&lower);
    call(&raw const object)
}

/// # Safety
/// The object is one that [`lend`] made, and that call still runs.
unsafe fn lower<'a>(object: *const abi::Object) -> Result<&'a dyn Vnode> {
    // SAFETY: null, or an object that is lent (this function's contract).
    let object = unsafe { object.as_ref() }.ok_or(Errno::INVAL)?;
    // SAFETY: `lend` put the address of a reference there, which lives during the call.
    unsafe { object.handle.cast::<&dyn Vnode>().as_ref() }.copied().ok_or(Errno::INVAL)
}

/// Nothing unwinds into the layer.
fn answer(act: impl FnOnce() -> Result<i64>) -> i64 {
    let done = catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(Errno::IO));
    done.unwrap_or_else(|errno| -i64::from(errno.raw_os_error()))
}

unsafe extern "C" fn getattr(object: *const abi::Object, caller: *const abi::Caller, out: *mut abi::Attr) -> c_int {
    let code = answer(|| {
        // SAFETY: the header lets a layer pass what its hook was called with, within that call.
        let (lower, caller) = unsafe { (lower(object)?, caller.as_ref().ok_or(Errno::INVAL)?) };
        // SAFETY: as before.
        let attr = attr_out(&lower.getattr(&unsafe { caller_in(caller) })?);
        if out.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the layer's own room for one, by the header.
        unsafe { out.write(attr) };
        Ok(0)
    });
    c_int::try_from(code).unwrap_or(-Errno::IO.raw_os_error())
}

unsafe extern "C" fn getxattr(
    object: *const abi::Object,
    caller: *const abi::Caller,
    name: abi::Bytes,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    answer(|| {
        // SAFETY: as in `getattr`; the name is the layer's.
        let (lower, caller, name) = unsafe { (lower(object)?, caller.as_ref().ok_or(Errno::INVAL)?, slice(name)) };
        let room = if out.is_null() || capacity == 0 {
            &mut []
        } else {
            // SAFETY: the layer's own room for `capacity` bytes, by the header.
            unsafe { core::slice::from_raw_parts_mut(out, capacity) }
        };
        // SAFETY: as in `getattr`.
        let len = lower.getxattr(&unsafe { caller_in(caller) }, name, room)?;
        Ok(i64::try_from(len).unwrap_or(i64::MAX))
    })
}

unsafe extern "C" fn log(level: c_int, text: *const c_char, len: usize) {
    answer(|| {
        // SAFETY: text of that length, by the header.
        let text = unsafe { slice(abi::Bytes { bytes: text.cast(), len: len.min(4096) }) };
        // One line, whatever is in it.
        let text: String =
            text.utf8_chunks().flat_map(|chunk| chunk.valid().chars()).filter(|c| !c.is_control()).collect();
        match level {
            1 => tracing::error!(target: "layer", "{text}"),
            2 => tracing::warn!(target: "layer", "{text}"),
            3 => tracing::info!(target: "layer", "{text}"),
            _ => tracing::debug!(target: "layer", "{text}"),
        }
        Ok(0)
    });
}
