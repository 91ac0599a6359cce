use core::fmt;
use cryptformat::Keys;
use region::LockGuard;

/// Size of a page in bytes, at most.
const PAGE: usize = 4096;

/// A key alone in its pages, so that locking them affects nothing else.
#[repr(align(4096))]
struct Pages(Option<Keys>);

/// The keys of a volume, in memory that is not swapped. They are overwritten when this is dropped.
pub(crate) struct LockedKeys {
    /// Dropped before the memory is freed.
    lock: Option<LockGuard>,
    pages: Box<Pages>,
}

impl LockedKeys {
    /// Locks the keys in memory. If the limit of locked memory is reached (RLIMIT_MEMLOCK), they
    /// stay unlocked and a warning is logged.
    pub(crate) fn new(keys: Keys) -> Self {
        let pages = Box::new(Pages(Some(keys)));
        let size = size_of::<Pages>().next_multiple_of(PAGE);
        let lock = region::lock(core::ptr::from_ref(&*pages), size);
        let lock = lock.inspect_err(|error| {
            tracing::warn!("a key may be swapped to disk: {error}; raise RLIMIT_MEMLOCK (ulimit -l)");
        });
        Self { lock: lock.ok(), pages }
    }

    /// Returns the keys.
    pub(crate) const fn get(&self) -> Option<&Keys> {
        self.pages.0.as_ref()
    }
}

impl Drop for LockedKeys {
    fn drop(&mut self) {
        self.pages.0 = None;
        self.lock = None;
    }
}

impl fmt::Debug for LockedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockedKeys")
    }
}
