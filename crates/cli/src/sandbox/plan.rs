//! What the processes of a sandbox agree on before its mounts are made.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// The mounts and the restrictions of a sandbox. Paths are absolute, without symbolic links. They
/// lead to the same place in the host's tree and in the sandbox, except for those of [`Place`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The sandbox's name.
    pub(super) name: String,
    /// An empty directory of the host on which the sandbox's tree is put together.
    pub(super) view: OsString,
    /// The working directory of the command.
    pub(super) cwd: OsString,
    /// The unions, the enclosing ones first; the first one is the root.
    pub(super) unions: Vec<UnionMount>,
    /// Mounts of read-only file systems, which are shown as they are.
    pub(super) shown: Vec<Place>,
    /// What the command may write on the host.
    pub(super) allowed: Vec<Allowed>,
    /// Directories that are empty in the sandbox.
    pub(super) emptied: Vec<OsString>,
    /// The terminal of the command.
    pub(super) terminal: Option<OsString>,
    /// Whether the command gets a user namespace: the caller is not root.
    pub(super) rootless: bool,
    /// Whether the command may use the network.
    pub(super) network: bool,
    /// The signals that the caller has blocked.
    pub(super) blocked: Vec<i32>,
    /// The caller's user and group.
    pub(super) ids: (u32, u32),
}

/// A file system of the host that the sandbox sees through a union.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnionMount {
    pub(super) place: Place,
    /// Whether it is read-only on the host.
    pub(super) read_only: bool,
    /// Whether programs on it can't be executed.
    pub(super) noexec: bool,
}

/// Where a mount of the host is in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The mount point on the host.
    pub(super) point: OsString,
    /// The mount point in the sandbox: another one if a command has renamed a directory above it.
    pub(super) at: OsString,
}

/// A file or directory of the host that is passed through.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Allowed {
    /// Its path.
    pub(super) path: OsString,
    /// Its device and inode number when the user's permission was read.
    pub(super) id: (u64, u64),
}
