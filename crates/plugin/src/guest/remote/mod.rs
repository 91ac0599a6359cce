//! Objects and open files of the layer below, accessed through the C ABI.

mod file;
mod object;

use super::server::{UNSUPPORTED, done, length, server};
use crate::abi;
use crate::convert::{attr_in, caller_out, slice};
use core::ffi::{c_int, c_void};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Result, Vnode};
use wrapfs::hooks::{Object, ObjectInfo, State};

/// An object of the layer below.
pub(super) struct Remote {
    object: abi::Object,
    /// The server's object.
    at: *const abi::Object,
    /// Whether this side owns the object and must release it. Otherwise it is lent to a hook.
    is_held: bool,
}

// SAFETY: the server's functions may be called from any thread; a lent object lives as long as the
// call for which this is created.
unsafe impl Send for Remote {}
// SAFETY: as for Send.
unsafe impl Sync for Remote {}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("id", &self.object.id).field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.is_held
            && let Some(release) = server().ok().and_then(|server| server.lower.release)
        {
            // SAFETY: passed by the server, and released once.
            unsafe { release(self.at.cast_mut()) };
        }
    }
}

/// The output buffers of an operation that creates an object.
struct Created {
    object: *mut abi::Object,
    attr: abi::Attr,
}

impl Created {
    fn new() -> Self {
        Self { object: null_mut(), attr: abi::Attr::default() }
    }

    /// # Safety
    /// The server has filled the buffers.
    unsafe fn entry(self) -> Result<Entry> {
        // SAFETY: guaranteed by the caller.
        let vnode = unsafe { Remote::held(self.object) }?;
        Ok(Entry { vnode, attr: attr_in(&self.attr).ok_or(Errno::IO)? })
    }
}

impl Remote {
    /// # Safety
    /// `at` is null or an object from the server that lives as long as the result.
    pub(super) unsafe fn new(at: *const abi::Object) -> Result<Self> {
        // SAFETY: null, or an object (guaranteed by the caller).
        let object = unsafe { read_object(at) }?;
        Ok(Self { object, at, is_held: false })
    }

    /// # Safety
    /// `at` is null or an object whose ownership the server has passed to this side.
    unsafe fn held(at: *mut abi::Object) -> Result<Arc<dyn Vnode>> {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { read_object(at) }?;
        Ok(Arc::new(Self { object, at, is_held: true }))
    }

    /// Returns the object as hooks see it.
    pub(super) fn lent(&self) -> Object<'_> {
        // SAFETY: bytes from the server, valid as long as the object.
        let state = unsafe { slice(self.object.state) };
        Object::with(self, self).with_state(state)
    }

    /// Returns the server's object for another vnode of the layer below.
    fn server_object(vnode: &Arc<dyn Vnode>) -> Result<*const abi::Object> {
        vnode.as_any().downcast_ref::<Self>().map(|other| other.at).ok_or(Errno::XDEV)
    }

    /// Calls a function that creates an object.
    fn create_entry(
        &self,
        cx: &Cx<'_>,
        call: impl FnOnce(*const abi::Caller, *mut *mut abi::Object, *mut abi::Attr) -> c_int,
    ) -> Result<Entry> {
        let (caller, mut made) = (caller_out(cx), Created::new());
        done(call(&raw const caller, &raw mut made.object, &raw mut made.attr))?;
        // SAFETY: the server reported that it filled it.
        unsafe { made.entry() }
    }

    /// Reads bytes whose length is not known in advance.
    fn bytes(&self, call: impl Fn(*mut u8, usize) -> i64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 256];
        loop {
            let len = length(call(bytes.as_mut_ptr(), bytes.len()))?;
            if len <= bytes.len() {
                bytes.truncate(len);
                return Ok(bytes);
            }
            bytes.resize(len, 0);
        }
    }
}

/// Reads the part of an object that both sides know.
///
/// # Safety
/// `at` is null or an object from the server.
unsafe fn read_object(at: *const abi::Object) -> Result<abi::Object> {
    if at.is_null() {
        return Err(Errno::IO);
    }
    let mut object = MaybeUninit::<abi::Object>::zeroed();
    let is_new = server().is_ok_and(|server| server.host.minor >= abi::MINOR_OF_LOWER);
    let known = if is_new { size_of::<abi::Object>() } else { core::mem::offset_of!(abi::Object, state) };
    // SAFETY: not null, and an object of that many bytes by its version (guaranteed by the caller);
    // zeros are valid null pointers.
    unsafe {
        core::ptr::copy_nonoverlapping(at.cast::<u8>(), object.as_mut_ptr().cast(), known);
        Ok(object.assume_init())
    }
}

impl ObjectInfo for Remote {
    fn hold(&self) -> Result<Arc<dyn Vnode>> {
        let hold = server()?.lower.hold.ok_or(UNSUPPORTED)?;
        let mut held = null_mut();
        // SAFETY: the object and the output pointer are valid.
        done(unsafe { hold(self.at, &raw mut held) })?;
        // SAFETY: the server passed ownership to this side.
        unsafe { Self::held(held) }
    }

    fn path(&self) -> Option<Vec<u8>> {
        let path = server().ok()?.host.path?;
        // SAFETY: the object is valid, and the buffer has `capacity` bytes.
        self.bytes(|out, capacity| unsafe { path(self.at, out, capacity) }).ok()
    }

    fn attached(&self) -> Option<State> {
        let attached = server().ok()?.host.attached?;
        // SAFETY: the object is valid; attached state was created by `attach` and outlives the
        // call.
        unsafe { attached(self.at).cast::<State>().as_ref() }.map(Arc::clone)
    }

    fn attach(&self, state: State) -> Option<State> {
        let attach = server().ok()?.host.attach?;
        let new = Box::into_raw(Box::new(Arc::clone(&state)));
        // SAFETY: the object is valid, and this side owns the pointer.
        let now = unsafe { attach(self.at, new.cast()) }.cast::<State>();
        if now == new {
            return Some(state);
        }
        // SAFETY: the server did not take ownership.
        drop(unsafe { Box::from_raw(new) });
        // SAFETY: null, or attached by another call of this function, and valid during the call.
        unsafe { now.as_ref() }.map(Arc::clone)
    }
}

/// Returns the state behind a pointer that [`Remote::attach`] created.
///
/// # Safety
/// The server no longer uses the pointer.
pub(super) unsafe fn detached(state: *mut c_void) -> State {
    // SAFETY: guaranteed by the caller.
    *unsafe { Box::from_raw(state.cast::<State>()) }
}
