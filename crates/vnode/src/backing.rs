use core::any::Any;
use core::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host file that backs an open file: see [`crate::OpenFile::backing`].
#[derive(Clone, Copy, Debug)]
pub struct Backing<'a> {
    /// The descriptor of this open file, with the access mode of the open file.
    pub file: BorrowedFd<'a>,
    /// Where a registration of the host file can be cached after the open file is closed, if the
    /// layer provides such a place.
    pub cached: Option<CachedBacking<'a>>,
}

/// A cached descriptor of the host file, and the registration made through it.
#[derive(Clone, Copy, Debug)]
pub struct CachedBacking<'a> {
    /// The descriptor to register. The registration keeps it open, so it must not be writable: a
    /// file open for writing cannot be executed, and its file system cannot be remounted read-only.
    /// It need not be readable (`O_PATH`).
    pub file: BorrowedFd<'a>,
    /// The cached registration of this file.
    pub registration: &'a Registration,
}

impl<'a> Backing<'a> {
    /// Returns a backing file whose registration ends with the last open file.
    #[must_use]
    pub const fn alone(file: BorrowedFd<'a>) -> Self {
        Self { file, cached: None }
    }
}

/// A registration of a host file, made by a user of the layer (the FUSE server). The layer below
/// stores it because it knows how long the registration is valid. It drops the registration when
/// the host file is removed, the cache is full or the registration has been idle for a while. Only
/// the owner knows the concrete type.
#[derive(Default)]
pub struct Registration(Mutex<Option<Arc<dyn Any + Send + Sync>>>);

impl Registration {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Any + Send + Sync>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the registration if it has type `T` and satisfies `fits`.
    pub fn get<T: Any + Send + Sync>(&self, fits: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let registered = self.lock().clone()?;
        registered.downcast::<T>().ok().filter(|registered| fits(registered))
    }

    /// Stores a registration, replacing the previous one.
    pub fn set<T: Any + Send + Sync>(&self, registered: Arc<T>) {
        let before = self.lock().replace(registered);
        // Drop outside the lock: dropping a registration may make a system call.
        drop(before);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.lock().is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_is_returned_by_type_and_predicate() {
        let registration = Registration::default();
        assert_eq!(registration.get::<u32>(|_| true), None);
        registration.set(Arc::new(7_u32));
        assert_eq!(registration.get::<u32>(|_| true).as_deref(), Some(&7));
        assert_eq!(registration.get::<u32>(|&number| number == 8), None);
        assert_eq!(registration.get::<String>(|_| true), None);
        registration.set(Arc::new("text".to_owned()));
        assert_eq!(registration.get::<u32>(|_| true), None);
        assert_eq!(registration.get::<String>(|_| true).as_deref().map(String::as_str), Some("text"));
    }
}
