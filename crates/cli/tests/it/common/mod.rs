//! A directory for a test, removed at its end.
#![allow(unreachable_pub)]

use std::path::PathBuf;
use testkit::TempDir;

/// A new directory below that for temporary files.
pub struct Bed(pub TempDir);

impl Bed {
    pub fn new() -> Self {
        Self(TempDir::new())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}
