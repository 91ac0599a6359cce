//! What the layer needs of the host. The layer itself may use neither the host's files nor its
//! processes.

use core::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use zeroize::Zeroizing;

/// A passphrase. It is overwritten when it is dropped.
pub type Secret = Zeroizing<Vec<u8>>;

/// Where the passphrase of a mount comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The mounting user enters it.
    Ask,
    /// The first line of a file.
    File(PathBuf),
    /// The first line of the output of a command, which a shell runs.
    Command(String),
    /// All bytes of a file, in hexadecimal.
    KeyFile(PathBuf),
    /// A credential that systemd passes to the service: a file in `$CREDENTIALS_DIRECTORY`.
    Credential(String),
    /// A key of type `user` in one of the keyrings of the mounting process (keyrings(7)).
    Keyring(String),
}

/// The state of the leader of a session, the process whose ID is the session's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// It exists and started at this time, in clock ticks since boot.
    Started(u64),
    /// It has exited, and other processes of the session remain.
    Exited,
    /// No process of the session exists.
    SessionEnded,
}

/// A session's leader, watched since it was found.
pub trait WatchedLeader: Send + Sync + fmt::Debug {
    /// Whether the process has not exited yet. Called with each use of a key, so it must be fast.
    fn is_running(&self) -> bool;
}

/// The host: passphrases and sessions.
pub trait KeyHost: Send + Sync + fmt::Debug {
    /// Returns a passphrase from `source`. `volume` is the path of the volume, for messages.
    ///
    /// # Errors
    /// A sentence for the mounting user.
    fn passphrase(&self, source: &KeySource) -> Result<Secret, String>;

    /// Returns the content of a configuration file outside the volume.
    ///
    /// # Errors
    /// A sentence for the mounting user.
    fn config(&self, path: &std::path::Path) -> Result<Vec<u8>, String>;

    /// Returns the state of a session's leader. `thorough` also searches for other processes of the
    /// session; without it, [`Leader::Exited`] says nothing about them.
    fn leader(&self, session: u32, thorough: bool) -> Leader;

    /// Watches the leader of a session. `None` if it has exited, or can't be watched.
    fn watch(&self, session: u32) -> Option<Box<dyn WatchedLeader>>;

    /// Keeps the memory of this process out of core dumps and swap, and other processes of the same
    /// user from reading it. Returns what could not be done.
    fn protect_memory(&self) -> Vec<String>;
}

static HOST: OnceLock<Arc<dyn KeyHost>> = OnceLock::new();

/// Sets the host for the layers of this process. Returns false if it was set before.
pub fn set_host(host: Arc<dyn KeyHost>) -> bool {
    HOST.set(host).is_ok()
}

/// Returns the host; `None` before [`set_host`].
pub(crate) fn host() -> Option<Arc<dyn KeyHost>> {
    HOST.get().cloned()
}
