use std::ffi::OsString;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new directory of the host, which is removed with its content when dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates a directory below that for temporary files.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it creates a directory")]
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// Creates a directory in memory if this machine has `/dev/shm`: it is fast, and few programs
    /// change that file system.
    #[must_use]
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::within(memory) } else { Self::new() }
    }

    /// Creates a directory in `parent`.
    ///
    /// # Panics
    ///
    /// If it can't be created.
    #[must_use]
    pub fn within(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("strata-test-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Of a killed test, or of one in another PID namespace.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// Creates a subdirectory, and those above it.
    ///
    /// # Panics
    ///
    /// If it can't be created.
    #[must_use]
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}

impl Deref for TempDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TempDir {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the names in a directory, sorted.
///
/// # Panics
///
/// If it can't be read.
#[must_use]
#[track_caller]
pub fn names(dir: &Path) -> Vec<OsString> {
    let entries = std::fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut names: Vec<_> = entries.iter().map(std::fs::DirEntry::file_name).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::{TempDir, names};

    #[test]
    fn directories_are_removed_with_their_content() {
        let (first, second) = (TempDir::new(), TempDir::in_memory());
        assert_ne!(*first, *second);
        std::fs::write(first.dir("b/c").join("file"), "text").unwrap();
        let _ = first.dir("a");
        assert_eq!(names(&first), ["a", "b"]);
        let path = first.to_owned();
        drop(first);
        assert!(!path.exists() && second.is_dir());
    }
}
