//! What several of these tests use.
#![allow(unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::TempDir;

/// Unmounts a mount whose server did not answer for a while. A process that asked it meanwhile was
/// killed, but ends only once the server has answered, and uses the mount until then.
#[track_caller]
pub fn unmount_after_questions(at: &Path) {
    testkit::until("the mount is no longer asked", || {
        let ended = testkit::outcome(Command::new("umount").arg(at));
        testkit::seen((ended.code, ended.err), |(code, _)| *code == 0)
    });
}

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
