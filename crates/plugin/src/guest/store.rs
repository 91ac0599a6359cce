//! C ABI functions that call a name store in Rust.

use super::mounted::{Mounted, code, enter, put};
use super::server::guard;
use crate::abi::{self, Bytes, NAME_ROOM};
use crate::convert::slice;
use core::ffi::{c_int, c_void};
use vnode::{Errno, Result};
use wrapfs::hooks::{NameStore, Role};

pub(super) static STORE: abi::NameStore = abi::NameStore {
    size: size_of::<abi::NameStore>(),
    role: Some(role),
    long_name: Some(long_name),
    encoded_name: Some(encoded_name),
    side_mode: Some(side_mode),
    state_file: Some(state_file),
    new_state: Some(new_state),
    is_state: Some(is_state),
};

/// # Safety
/// `me` was created by [`super::instance::instance`].
unsafe fn store<'a>(me: *mut c_void) -> Result<&'a dyn NameStore> {
    // SAFETY: guaranteed by the caller.
    unsafe { me.cast::<Mounted>().as_ref() }.and_then(|mounted| mounted.hooks.store.as_deref()).ok_or(Errno::IO)
}

/// Copies a name into a buffer and returns its length.
fn name_into(name: &[u8], room: &mut [u8]) -> Result<usize> {
    room.get_mut(..name.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(name);
    Ok(name.len())
}

unsafe extern "C" fn role(me: *mut c_void, name: Bytes, other: *mut u8, other_len: *mut usize) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments: room for a name.
        let (store, name, room, len) = unsafe {
            let room = core::slice::from_raw_parts_mut(other, NAME_ROOM - 1);
            (store(me)?, slice(name), room, other_len.as_mut().ok_or(Errno::IO)?)
        };
        let (role, named) = match store.role(name) {
            Role::Name => (abi::ROLE_NAME, None),
            Role::Leftover => (abi::ROLE_LEFTOVER, None),
            Role::Own => (abi::ROLE_OWN, None),
            Role::Long { side } => (abi::ROLE_LONG, Some(side)),
            Role::Side { object } => (abi::ROLE_SIDE, Some(object)),
        };
        *len = name_into(&named.unwrap_or_default(), room)?;
        Ok(role)
    }))
}

unsafe extern "C" fn long_name(me: *mut c_void, encoded: Bytes, out: *mut abi::LongName) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments: room for as much content as it
        // says.
        let (store, encoded, out, room) = unsafe {
            let out = out.as_mut().ok_or(Errno::IO)?;
            let room = core::slice::from_raw_parts_mut(out.content, out.content_capacity);
            (store(me)?, slice(encoded), out, room)
        };
        let Some(long) = store.long_name(encoded) else { return Ok(0) };
        out.object_len = name_into(&long.object, &mut out.object)?;
        out.side_len = name_into(&long.side, &mut out.side)?;
        out.content_len = name_into(&long.content, room)?;
        Ok(1)
    }))
}

unsafe extern "C" fn encoded_name(
    me: *mut c_void,
    object: Bytes,
    content: Bytes,
    out: *mut u8,
    capacity: usize,
) -> i64 {
    let made = guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let (store, object, content) = unsafe { (store(me)?, slice(object), slice(content)) };
        store.encoded_name(object, content).ok_or(Errno::INVAL)
    });
    // SAFETY: the header guarantees the server's buffer.
    unsafe { put(made, out, capacity) }
}

unsafe extern "C" fn side_mode(me: *mut c_void) -> u32 {
    // SAFETY: the header guarantees that `me` was created by `instance`.
    guard(|| Ok(unsafe { store(me) }?.side_mode())).unwrap_or(0o600)
}

unsafe extern "C" fn state_file(me: *mut c_void, out: *mut abi::StateFile) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let (store, out) = unsafe { (store(me)?, out.as_mut().ok_or(Errno::IO)?) };
        let Some(file) = store.state_file() else { return Ok(0) };
        out.name_len = name_into(&file.name, &mut out.name)?;
        (out.longest, out.mode) = (file.longest, file.mode);
        Ok(1)
    }))
}

unsafe extern "C" fn new_state(me: *mut c_void, caller: *const abi::Caller, out: *mut u8, capacity: usize) -> i64 {
    let made = guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let (mounted, cx) = unsafe { enter(me, caller) }?;
        mounted.hooks.store.as_ref().ok_or(Errno::IO)?.new_state(&cx)
    });
    // SAFETY: the header guarantees the server's buffer.
    unsafe { put(made, out, capacity) }
}

unsafe extern "C" fn is_state(me: *mut c_void, state: Bytes) -> c_int {
    // SAFETY: the header guarantees the server's arguments.
    code(guard(|| Ok(unsafe { store(me)?.is_state(slice(state)) }.into())))
}
