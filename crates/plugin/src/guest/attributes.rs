//! C ABI functions that call the attribute hooks.

use super::mounted::{code, enter};
use super::remote::Remote;
use super::server::guard;
use crate::abi;
use crate::convert::{attr_in, attr_out, kind_in, set_in, set_out};
use core::ffi::{c_int, c_void};
use vnode::Errno;

pub(super) static ATTRIBUTES: abi::Attributes = abi::Attributes {
    size: size_of::<abi::Attributes>(),
    decode_attr: Some(decode_attr),
    encode_attr: Some(encode_attr),
    encode_mode: Some(encode_mode),
};

unsafe extern "C" fn decode_attr(
    me: *mut c_void,
    caller: *const abi::Caller,
    file: *const abi::Object,
    attr: *mut abi::Attr,
) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let ((mounted, cx), file, out) =
            unsafe { (enter(me, caller)?, Remote::new(file)?, attr.as_mut().ok_or(Errno::IO)?) };
        let mut attr = attr_in(out).ok_or(Errno::IO)?;
        let hook = mounted.hooks.attributes.as_ref().ok_or(Errno::IO)?;
        hook.decode_attr(&cx, &file.lent(), &mut attr)?;
        *out = attr_out(&attr);
        Ok(0)
    }))
}

unsafe extern "C" fn encode_attr(
    me: *mut c_void,
    caller: *const abi::Caller,
    file: *const abi::Object,
    set: *mut abi::SetAttr,
) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let ((mounted, cx), file, out) =
            unsafe { (enter(me, caller)?, Remote::new(file)?, set.as_mut().ok_or(Errno::IO)?) };
        let mut set = set_in(out).ok_or(Errno::IO)?;
        let hook = mounted.hooks.attributes.as_ref().ok_or(Errno::IO)?;
        hook.encode_attr(&cx, &file.lent(), &mut set)?;
        *out = set_out(&set);
        Ok(0)
    }))
}

unsafe extern "C" fn encode_mode(
    me: *mut c_void,
    caller: *const abi::Caller,
    dir: *const abi::Object,
    kind: u32,
    mode: *mut u32,
) -> c_int {
    code(guard(|| {
        // SAFETY: the header guarantees the server's arguments.
        let ((mounted, cx), dir, mode) =
            unsafe { (enter(me, caller)?, Remote::new(dir)?, mode.as_mut().ok_or(Errno::IO)?) };
        let hook = mounted.hooks.attributes.as_ref().ok_or(Errno::IO)?;
        *mode = hook.encode_mode(&cx, &dir.lent(), kind_in(kind), *mode)?;
        Ok(0)
    }))
}
