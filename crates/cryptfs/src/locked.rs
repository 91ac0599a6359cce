use core::fmt;
use cryptformat::Keys;
use region::LockGuard;

/// Size of a page in bytes, at most.
const PAGE: usize = 4096;

/// Size of the memory for keys in bytes.
const ROOM: usize = size_of::<Keys>().next_multiple_of(PAGE);

/// Bytes of the room that keys leave free. The rest is for the variant of [`Pages`].
const FREE: usize = ROOM - size_of::<Keys>() - align_of::<Keys>();

/// Keys alone in their pages, so that locking them affects nothing else.
///
/// Every byte has a value in both variants. Otherwise a move would copy what was on the stack there
/// before, such as a passphrase, and keys where they are to be overwritten.
#[repr(align(4096))]
#[expect(dead_code, reason = "only written: they fill the pages")]
enum Pages {
    Keys(Keys, [u8; FREE]),
    Wiped([u8; ROOM - align_of::<Keys>()]),
}

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
        let pages = Box::new(Pages::Keys(keys, [0; FREE]));
        let size = size_of::<Pages>().next_multiple_of(PAGE);
        let lock = region::lock(core::ptr::from_ref(&*pages), size);
        let lock = lock.inspect_err(|error| {
            tracing::warn!("a key may be swapped to disk: {error}; raise RLIMIT_MEMLOCK (ulimit -l)");
        });
        Self { lock: lock.ok(), pages }
    }

    /// Returns the keys.
    pub(crate) const fn get(&self) -> Option<&Keys> {
        match &*self.pages {
            Pages::Keys(keys, _) => Some(keys),
            Pages::Wiped(_) => None,
        }
    }
}

impl Drop for LockedKeys {
    fn drop(&mut self) {
        *self.pages = Pages::Wiped([0; ROOM - align_of::<Keys>()]);
        // The memory is freed next, so the compiler could leave the zeros out.
        core::hint::black_box(&self.pages);
        self.lock = None;
    }
}

impl fmt::Debug for LockedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockedKeys")
    }
}
