use core::any::Any;
use core::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host file under an open file: see [`crate::OpenFile::backing`].
#[derive(Clone, Copy, Debug)]
pub struct Backing<'a> {
    /// The descriptor of this open file: it may do what the open file may.
    pub file: BorrowedFd<'a>,
    /// Where what was registered of the host file may stay when the open file is closed, if it has such a place.
    pub kept: Option<Kept<'a>>,
}

/// A place for a registration beside a descriptor of the host file that is kept for a while.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// What to register. It can't write, since a registration keeps it open: a file that is open for writing can't be
    /// executed, and its file system not be made read-only. It need not be able to read (`O_PATH`).
    pub file: BorrowedFd<'a>,
    /// What was registered of it.
    pub registration: &'a Registration,
}

impl<'a> Backing<'a> {
    /// A host file whose registration ends with the last open file.
    #[must_use]
    pub const fn alone(file: BorrowedFd<'a>) -> Self {
        Self { file, kept: None }
    }
}

/// What somebody above has registered of a host file: kept by the layer below, which knows how long that is right, and
/// dropped by it when the host file is removed, room is short or nobody has used it for a while. Of what type it is,
/// only its owner knows.
#[derive(Default)]
pub struct Registration(Mutex<Option<Arc<dyn Any + Send + Sync>>>);

impl Registration {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Any + Send + Sync>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was registered, if it is a `T` and `fits`.
    pub fn get<T: Any + Send + Sync>(&self, fits: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let registered = self.lock().clone()?;
        registered.downcast::<T>().ok().filter(|registered| fits(registered))
    }

    /// Keeps what was registered, in place of what was before.
    pub fn set<T: Any + Send + Sync>(&self, registered: Arc<T>) {
        let before = self.lock().replace(registered);
        // Dropping it may take a system call: not under the lock.
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
    fn what_was_registered_is_found_by_its_type() {
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
