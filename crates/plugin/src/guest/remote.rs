//! Objects of the layer below, which is on the other side of the border.

use crate::abi;
use crate::convert::{attr_in, caller_out, kind_in};
use core::ffi::c_int;
use core::fmt;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use vnode::{Attr, Cx, Errno, Kind, Result, Vnode, refuse};

/// The server that this object was loaded by.
static SERVER: AtomicPtr<abi::Host> = AtomicPtr::new(core::ptr::null_mut());

/// Remembers the server: for its log.
pub(super) fn meet(host: *const abi::Host) {
    SERVER.store(host.cast_mut(), Ordering::Relaxed);
}

/// Calls a hook. Nothing unwinds into the server: a hook that panics answers `EIO`, and what it said is in the server's log.
pub(super) fn guard<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        complain(&format!("a hook panicked: {}", text.unwrap_or("it did not say why")));
        Err(Errno::IO)
    })
}

fn complain(text: &str) {
    const ERROR: c_int = 1;
    // SAFETY: null, or the server's table, which is a static of it.
    let host = unsafe { SERVER.load(Ordering::Relaxed).as_ref() };
    if let Some(log) = host.and_then(|host| host.log) {
        // SAFETY: the server's function, with text that lives during the call.
        unsafe { log(ERROR, text.as_ptr().cast(), text.len()) };
    }
}

/// An object that a hook is lent.
pub(super) struct Remote {
    object: abi::Object,
    /// As it was lent: what the server knows it by.
    at: *const abi::Object,
}

// SAFETY: the server's functions may be called by any thread, and the object lives as long as the call that this is made for.
unsafe impl Send for Remote {}
// SAFETY: as for Send.
unsafe impl Sync for Remote {}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("id", &self.object.id).field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Remote {
    /// # Safety
    /// An object of the server's, that lives as long as what is made here; or null.
    pub(super) unsafe fn new(at: *const abi::Object) -> Result<Self> {
        // SAFETY: null, or an object (this function's contract).
        let object = unsafe { at.as_ref() }.ok_or(Errno::IO)?;
        Ok(Self { object: *object, at })
    }

    fn host(&self) -> Result<&abi::Host> {
        // SAFETY: the server's table is a static of it.
        unsafe { self.object.host.as_ref() }.ok_or(Errno::OPNOTSUPP)
    }
}

const NO: Errno = Errno::OPNOTSUPP;

impl Vnode for Remote {
    refuse!(NO => setattr, lookup, names, readlink, readdir, open, create, tmpfile, mknod, mkdir, symlink, link);
    refuse!(NO => unlink, rmdir, rename, setxattr, listxattr, removexattr, refused, statfs, fsync, ioctl, control);

    fn generation(&self) -> u32 {
        0
    }

    fn listing_stamp(&self, _cx: &Cx<'_>) -> Option<u64> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.object.id
    }

    fn kind(&self) -> Kind {
        kind_in(self.object.kind)
    }

    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr> {
        let getattr = self.host()?.getattr.ok_or(NO)?;
        let (caller, mut attr) = (caller_out(cx), abi::Attr::default());
        // SAFETY: the object that was lent, within the call; room for what is answered.
        match unsafe { getattr(self.at, &raw const caller, &raw mut attr) } {
            0 => attr_in(&attr).ok_or(Errno::IO),
            code => Err(Errno::from_raw_os_error(-code)),
        }
    }

    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let getxattr = self.host()?.getxattr.ok_or(NO)?;
        let caller = caller_out(cx);
        // SAFETY: as in `getattr`; room for as many bytes as are named.
        let len = unsafe { getxattr(self.at, &raw const caller, abi::Bytes::of(name), out.as_mut_ptr(), out.len()) };
        usize::try_from(len).map_err(|_| i32::try_from(-len).map_or(Errno::IO, Errno::from_raw_os_error))
    }
}
