//! C ABI function that reports that an object is no longer in use.

use super::mounted::Mounted;
use super::remote::detached;
use super::server::guard;
use crate::abi;
use core::ffi::c_void;
use vnode::Errno;

pub(super) static OBJECTS: abi::Objects = abi::Objects { size: size_of::<abi::Objects>(), freed: Some(freed) };

unsafe extern "C" fn freed(me: *mut c_void, id: u64, state: *mut c_void) {
    // A panic of the hook has been logged.
    let _ = guard(|| {
        // SAFETY: by the header, `me` was created by `instance`, and the attached state is no
        // longer referenced.
        let (mounted, state) = unsafe { (me.cast::<Mounted>().as_ref().ok_or(Errno::IO)?, detached(state)) };
        if let Some(hook) = &mounted.hooks.objects {
            hook.freed(id, state);
        }
        Ok(())
    });
}
