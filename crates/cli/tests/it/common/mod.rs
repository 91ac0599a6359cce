//! A directory for a test, removed at its end.
#![allow(unreachable_pub, clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

/// A new directory below that for temporary files.
pub struct Bed(pub PathBuf);

impl Bed {
    /// Creates the directory. `name` must be unique in the test program.
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("strata-test-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
