//! Host directories that are removed after the test.
#![allow(clippy::disallowed_methods, reason = "it makes the directories that it works on")]
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed when dropped.
pub(crate) struct Scratch(PathBuf);

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    pub(crate) fn new(place: &Path) -> Self {
        let path = place.join(format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Creates an empty subdirectory.
    pub(crate) fn fresh(&self) -> PathBuf {
        let path = self.0.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
