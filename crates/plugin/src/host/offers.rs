//! Functions of the server that a layer may call.

use super::lower::LOWER;
use crate::abi;
use crate::convert::{attr_out, caller_in, slice};
use core::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vnode::{Errno, Result, Vnode};
use wrapfs::hooks::{Object, ObjectInfo, State};

pub(super) static HOST: abi::Host = abi::Host {
    size: size_of::<abi::Host>(),
    major: abi::MAJOR,
    minor: abi::MINOR,
    getattr: Some(getattr),
    getxattr: Some(getxattr),
    log: Some(log),
    lower: Some(&LOWER),
    path: Some(path),
    attach: Some(attach),
    attached: Some(attached),
};

/// The server's object behind an object of the C ABI.
pub(super) enum Handle<'a> {
    /// An object lent to a hook for the duration of a call.
    Lent(Object<'a>),
    /// An object that the layer holds.
    Held(Held),
}

/// A vnode of the layer below, held by the plugin, without path or attached state.
#[derive(Debug)]
pub(super) struct Held(pub(super) Arc<dyn Vnode>);

impl ObjectInfo for Held {
    fn hold(&self) -> Result<Arc<dyn Vnode>> {
        Ok(Arc::clone(&self.0))
    }

    fn path(&self) -> Option<Vec<u8>> {
        None
    }

    fn attached(&self) -> Option<State> {
        None
    }

    fn attach(&self, _state: State) -> Option<State> {
        None
    }
}

impl Handle<'_> {
    pub(super) fn object(&self) -> Object<'_> {
        match self {
            Self::Lent(object) => *object,
            Self::Held(held) => Object::with(&*held.0, held),
        }
    }
}

/// Converts an object for a plugin. It contains the address of the handle, which must live as long.
pub(super) fn lend(handle: &Handle<'_>) -> abi::Object {
    let object = handle.object();
    abi::Object {
        host: &raw const HOST,
        id: object.id(),
        kind: object.kind().mode_bits(),
        reserved: 0,
        handle: core::ptr::from_ref(handle).cast(),
        state: abi::Bytes::of(object.directory_state()),
    }
}

/// Runs `call` with a lent object.
pub(super) fn with<R>(object: &Object<'_>, call: impl FnOnce(*const abi::Object) -> R) -> R {
    let handle = Handle::Lent(*object);
    let object = lend(&handle);
    call(&raw const object)
}

/// # Safety
/// The object was created by [`lend`] from a handle that lives for `'a`.
pub(super) unsafe fn object<'a>(object: *const abi::Object) -> Result<Object<'a>> {
    // SAFETY: null, or a lent object (guaranteed by the caller).
    let object = unsafe { object.as_ref() }.ok_or(Errno::INVAL)?;
    // SAFETY: `lend` put the address of a handle there, which lives that long (guaranteed by the
    // caller).
    unsafe { object.handle.cast::<Handle<'a>>().as_ref() }.map(Handle::object).ok_or(Errno::INVAL)
}

/// Runs a function called by the plugin and returns its result, or a negative errno. A panic
/// becomes `EIO`, and does not unwind into the plugin.
pub(super) fn catch(act: impl FnOnce() -> Result<i64>) -> i64 {
    let done = catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(Errno::IO));
    done.unwrap_or_else(|errno| -i64::from(errno.raw_os_error()))
}

unsafe extern "C" fn getattr(object: *const abi::Object, caller: *const abi::Caller, out: *mut abi::Attr) -> c_int {
    let code = catch(|| {
        // SAFETY: by the header, a plugin passes what its hook was called with, during that call.
        let (object, caller) = unsafe { (self::object(object)?, caller.as_ref().ok_or(Errno::INVAL)?) };
        // SAFETY: as above.
        let attr = attr_out(&object.attr(&unsafe { caller_in(caller) })?);
        if out.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the header guarantees the plugin's buffer.
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
    catch(|| {
        // SAFETY: as in `getattr`; the name is the layer's.
        let (object, caller, name) =
            unsafe { (self::object(object)?, caller.as_ref().ok_or(Errno::INVAL)?, slice(name)) };
        let room = if out.is_null() || capacity == 0 {
            &mut []
        } else {
            // SAFETY: the header guarantees a buffer of `capacity` bytes.
            unsafe { core::slice::from_raw_parts_mut(out, capacity) }
        };
        // SAFETY: as in `getattr`.
        let len = object.lower().getxattr(&unsafe { caller_in(caller) }, name, room)?;
        Ok(i64::try_from(len).unwrap_or(i64::MAX))
    })
}

unsafe extern "C" fn log(level: c_int, text: *const c_char, len: usize) {
    catch(|| {
        // SAFETY: the header guarantees a text of that length.
        let text = unsafe { slice(abi::Bytes { bytes: text.cast(), len: len.min(4096) }) };
        // Replace control characters, so that the message is one line.
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

/// Copies as many bytes as fit, and returns the total length.
///
/// # Safety
/// `out` is null or a buffer of `capacity` bytes.
pub(super) unsafe fn put(bytes: &[u8], out: *mut u8, capacity: usize) -> i64 {
    if !out.is_null() {
        // SAFETY: copies no more than the buffer's size (guaranteed by the caller).
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len().min(capacity)) };
    }
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

unsafe extern "C" fn path(object: *const abi::Object, out: *mut u8, capacity: usize) -> i64 {
    catch(|| {
        // SAFETY: as in `getattr`.
        let path = unsafe { self::object(object) }?.path().ok_or(Errno::NODATA)?;
        // SAFETY: the header guarantees the plugin's buffer.
        Ok(unsafe { put(&path, out, capacity) })
    })
}

/// The layer's own state, which is only passed back.
#[derive(Debug)]
pub(super) struct Pointer(pub(super) *mut c_void);

// SAFETY: by the header, hooks, which use the pointer, are called from many threads at once.
unsafe impl Send for Pointer {}
// SAFETY: as for Send.
unsafe impl Sync for Pointer {}

fn pointer(state: Option<State>) -> *mut c_void {
    state.and_then(|state| state.downcast_ref::<Pointer>().map(|pointer| pointer.0)).unwrap_or(core::ptr::null_mut())
}

unsafe extern "C" fn attach(object: *const abi::Object, state: *mut c_void) -> *mut c_void {
    let attach = || {
        // SAFETY: as in `getattr`.
        let object = unsafe { self::object(object) }.ok().filter(|_| !state.is_null())?;
        object.attach(Arc::new(Pointer(state)))
    };
    pointer(catch_unwind(AssertUnwindSafe(attach)).ok().flatten())
}

unsafe extern "C" fn attached(object: *const abi::Object) -> *mut c_void {
    let attached = || {
        // SAFETY: as in `getattr`.
        unsafe { self::object(object) }.ok()?.attached()
    };
    pointer(catch_unwind(AssertUnwindSafe(attached)).ok().flatten())
}
