//! The function of the C ABI that says that an object is gone.

use super::mounted::Mounted;
use super::remote::detached;
use super::server::guard;
use crate::abi;
use core::ffi::c_void;
use vnode::Errno;

pub(super) static OBJECTS: abi::Objects = abi::Objects { size: size_of::<abi::Objects>(), freed: Some(freed) };

unsafe extern "C" fn freed(me: *mut c_void, id: u64, state: *mut c_void) {
    // A hook that panics has been told.
    let _ = guard(|| {
        // SAFETY: made by `instance`, and a state that was attached, which nobody has any more, by the header.
        let (mounted, state) = unsafe { (me.cast::<Mounted>().as_ref().ok_or(Errno::IO)?, detached(state)) };
        if let Some(hook) = &mounted.hooks.objects {
            hook.freed(id, state);
        }
        Ok(())
    });
}
