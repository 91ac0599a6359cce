//! Contexts of OpenSSL, kept for the next block: creating one costs more than a block.

use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use parking_lot::Mutex;

/// Maximum number of idle contexts. More than this number of threads encrypt at the same time only
/// on large machines; the rest create a context for each block.
const IDLE_MAX: usize = 64;

/// Idle contexts. OpenSSL overwrites the key in a context when it is freed.
pub(crate) struct Contexts {
    idle: Mutex<Vec<CipherCtx>>,
}

impl Contexts {
    pub(crate) fn new() -> Self {
        Self { idle: Mutex::new(Vec::with_capacity(IDLE_MAX)) }
    }

    /// Calls `work` with an idle context, or one that `create` creates. A context that failed is
    /// not used again.
    pub(crate) fn with(
        &self,
        create: impl FnOnce() -> Result<CipherCtx, ErrorStack>,
        work: impl FnOnce(&mut CipherCtx) -> Result<(), ErrorStack>,
    ) -> Result<(), ErrorStack> {
        let idle = self.idle.lock().pop();
        let mut context = idle.map_or_else(create, Ok)?;
        work(&mut context)?;
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(context);
        }
        Ok(())
    }
}
