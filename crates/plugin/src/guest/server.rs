//! The server that loaded this plugin: the functions that it offers.

use crate::abi;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use vnode::{Errno, Result};

/// The functions offered by the server, as far as both sides know them.
static SERVER: OnceLock<Server> = OnceLock::new();

#[derive(Debug)]
pub(super) struct Server {
    pub(super) host: abi::Host,
    pub(super) lower: abi::Lower,
}

/// Copies the part of a table that both sides know. The table begins with its size; missing fields
/// are `NULL`.
///
/// # Safety
/// `at` is a table from the server, and any pointer in `T` may be `NULL`.
unsafe fn copied<T>(at: *const T) -> T {
    let mut table = MaybeUninit::<T>::zeroed();
    // SAFETY: guaranteed by the caller; every table begins with its size, and only bytes that both
    // sides have are copied.
    unsafe {
        let known = at.cast::<usize>().read().min(size_of::<T>());
        core::ptr::copy_nonoverlapping(at.cast::<u8>(), table.as_mut_ptr().cast(), known);
        table.assume_init()
    }
}

/// Stores the server's functions.
///
/// # Safety
/// `host` is the server's table as the header defines it.
pub(super) unsafe fn set_server(host: *const abi::Host) {
    SERVER.get_or_init(|| {
        // SAFETY: guaranteed by the caller; these structs contain only numbers and pointers.
        unsafe {
            let host = copied(host);
            let lower = match host.lower {
                Some(lower) => copied(core::ptr::from_ref(lower)),
                None => MaybeUninit::zeroed().assume_init(),
            };
            Server { host, lower }
        }
    });
}

/// Calls a hook. No panic unwinds into the server: a hook that panics returns `EIO`, and the panic
/// is logged by the server.
pub(super) fn guard<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        log_error(&format!("a hook panicked: {}", text.unwrap_or("no message")));
        Err(Errno::IO)
    })
}

fn log_error(text: &str) {
    const ERROR: c_int = 1;
    if let Some(log) = SERVER.get().and_then(|server| server.host.log) {
        // SAFETY: calls the server's function; the text outlives the call.
        unsafe { log(ERROR, text.as_ptr().cast(), text.len()) };
    }
}

/// The errno for a function that this server lacks.
pub(super) const UNSUPPORTED: Errno = Errno::OPNOTSUPP;

/// Returns the server's functions.
///
/// # Errors
/// [`UNSUPPORTED`] before the server is known.
pub(super) fn server() -> Result<&'static Server> {
    SERVER.get().ok_or(UNSUPPORTED)
}

/// Converts a function's result to an errno.
pub(super) fn errno(code: i64) -> Errno {
    match code.checked_neg().and_then(|code| i32::try_from(code).ok()) {
        Some(code @ 1..4096) => Errno::from_raw_os_error(code),
        _ => Errno::IO,
    }
}

/// Converts the result of a function that returns 0 or an error.
pub(super) fn done(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(errno(code.into())) }
}

/// Converts the result of a function that returns a length or an error.
pub(super) fn length(answer: i64) -> Result<usize> {
    usize::try_from(answer).map_err(|_| errno(answer))
}
