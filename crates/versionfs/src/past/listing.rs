use core::time::Duration;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use vnode::Result;

/// How long the parts of a listing come from the same entries.
const LIFETIME: Duration = Duration::from_secs(10);

/// The entries of a directory that a program is listing. The history of each name is read to find
/// them, and a large directory is listed in many parts.
#[derive(Debug)]
pub(crate) struct Listing<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Listing<T> {
    /// Returns the entries for the part behind `cookie`. The first part reads them.
    pub(crate) fn get(&self, cookie: u64, read: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        if cookie > 0
            && let Some((since, entries)) = &*self.0.lock()
            && since.elapsed() < LIFETIME
        {
            return Ok(Arc::clone(entries));
        }
        let entries = Arc::new(read()?);
        *self.0.lock() = Some((Instant::now(), Arc::clone(&entries)));
        Ok(entries)
    }

    /// Forgets the entries: the last part was listed.
    pub(crate) fn end(&self) {
        *self.0.lock() = None;
    }
}
