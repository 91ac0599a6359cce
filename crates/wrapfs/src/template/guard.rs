use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use vnode::{Errno, Result};

/// Calls a hook. If it panics, logs the panic and returns `EIO`; the file system continues to work.
///
/// A panic can only leave the hook's own state inconsistent. The only template data that a hook can
/// modify is buffers, which are not used after an error.
pub(crate) fn guard<T>(hook: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        tracing::error!(hook, "a hook panicked: {}", panic_message(&*panic));
        Err(Errno::IO)
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_eio() {
        assert_eq!(guard("test", || Ok(1)), Ok(1));
        assert_eq!(guard::<()>("test", || Err(Errno::PERM)), Err(Errno::PERM));
        assert_eq!(guard::<()>("test", || panic!("for this test")), Err(Errno::IO));
        assert_eq!(guard::<()>("test", || std::panic::panic_any(7)), Err(Errno::IO));
    }
}
