use core::fmt;
use std::sync::Arc;
use vnode::Upcalls;

/// A function that receives the [`Upcalls`] of the mount: see [`crate::hooks::Hooks::attached`].
pub struct Attached(Box<dyn Fn(Arc<dyn Upcalls>) + Send + Sync>);

impl Attached {
    /// Returns `receive` as a setting of a layer.
    pub fn new(receive: impl Fn(Arc<dyn Upcalls>) + Send + Sync + 'static) -> Self {
        Self(Box::new(receive))
    }

    pub(crate) fn call(&self, upcalls: Arc<dyn Upcalls>) {
        (self.0)(upcalls);
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attached")
    }
}
