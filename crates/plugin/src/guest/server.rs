//! The server that loaded this object: what it offers, and what it answers.

use crate::abi;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use vnode::{Errno, Result};

/// What the server offers that this object was loaded by: as much of it as both know.
static SERVER: OnceLock<Server> = OnceLock::new();

#[derive(Debug)]
pub(super) struct Server {
    pub(super) host: abi::Host,
    pub(super) lower: abi::Lower,
}

/// Copies a table that begins with its size, as far as both sides know it; what the other one lacks is `NULL`.
///
/// # Safety
/// `at` is a table of the server's, and `T` one that may have any of its pointers `NULL`.
unsafe fn copied<T>(at: *const T) -> T {
    let mut table = MaybeUninit::<T>::zeroed();
    // SAFETY: this function's contract; every table begins with its size, and as many bytes as both have are copied.
    unsafe {
        let known = at.cast::<usize>().read().min(size_of::<T>());
        core::ptr::copy_nonoverlapping(at.cast::<u8>(), table.as_mut_ptr().cast(), known);
        table.assume_init()
    }
}

/// Remembers the server.
///
/// # Safety
/// The server's table, by the header.
pub(super) unsafe fn meet(host: *const abi::Host) {
    SERVER.get_or_init(|| {
        // SAFETY: this function's contract; all that these have are numbers and pointers.
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
    if let Some(log) = SERVER.get().and_then(|server| server.host.log) {
        // SAFETY: the server's function, with text that lives during the call.
        unsafe { log(ERROR, text.as_ptr().cast(), text.len()) };
    }
}

/// What a function answers that this server lacks.
pub(super) const NO: Errno = Errno::OPNOTSUPP;

/// The server.
///
/// # Errors
/// [`NO`] before there is one.
pub(super) fn server() -> Result<&'static Server> {
    SERVER.get().ok_or(NO)
}

/// The error of a function's answer.
pub(super) fn errno(code: i64) -> Errno {
    match code.checked_neg().and_then(|code| i32::try_from(code).ok()) {
        Some(code @ 1..4096) => Errno::from_raw_os_error(code),
        _ => Errno::IO,
    }
}

/// The result of a function that answers 0 or an error.
pub(super) fn done(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(errno(code.into())) }
}

/// The result of a function that answers a length or an error.
pub(super) fn length(answer: i64) -> Result<usize> {
    usize::try_from(answer).map_err(|_| errno(answer))
}
