use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use vnode::{Errno, Result};

/// Calls a hook. One that panics answers `EIO`, and what it said is logged: the file system lives on.
///
/// What the hook left half-changed is its own: nothing of the template's is lent to a hook to be changed but buffers that are not used after
/// an error.
pub(crate) fn guard<T>(hook: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        tracing::error!(hook, "a hook panicked: {}", said(&*panic));
        Err(Errno::IO)
    })
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it did not say why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(guard("test", || Ok(1)), Ok(1));
        assert_eq!(guard::<()>("test", || Err(Errno::PERM)), Err(Errno::PERM));
        assert_eq!(guard::<()>("test", || panic!("for this test")), Err(Errno::IO));
        assert_eq!(guard::<()>("test", || std::panic::panic_any(7)), Err(Errno::IO));
    }
}
