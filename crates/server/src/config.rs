//! Configuration of a mount.

use crate::Command;
use std::path::PathBuf;
use std::time::Duration;

/// Configuration for serving a stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// Mount point, mount options, transport.
    pub mount: fuse::MountOptions,
    /// How long the kernel may cache names, negative lookups and attributes. Changes through the
    /// mount are visible immediately; out-of-band changes become visible after this time at the
    /// latest. Names are not cached where several names refer to one entry
    /// ([`vnode::Properties::merges_names`]).
    pub cache: Duration,
    /// Use passthrough where the layers allow it.
    pub passthrough: bool,
    /// Serve extended attributes. Otherwise the first request of each kind fails with `ENOSYS` and
    /// the kernel sends no more: there are no ACLs, file capabilities or user attributes.
    pub xattrs: bool,
    /// The kernel opens files without requests and serves data from its page cache
    /// (`FUSE_NO_OPEN_SUPPORT`); changes fail with `EROFS`. Excludes passthrough. Only for
    /// read-only mounts; the layers do not see opens.
    pub cached_data: bool,
    /// Maximum stacking depth of file systems below this one: 1, or 2 if a host directory is on
    /// overlayfs or on another passthrough mount (overlayfs can then not be stacked on this one).
    pub stack_depth: u32,
    /// Directory offsets of the layer have 31 bits, and those of `.` and `..` have to fit too.
    pub narrow_positions: bool,
    /// The user who, besides root, may send owner-only commands ([`vnode::CommandAccess::Owner`]).
    pub owner: u32,
    /// Control commands in addition to the server's own.
    pub commands: Vec<Command>,
}

impl Config {
    /// Returns the defaults for a mount at `mountpoint` of type `fuse.<subtype>` with source
    /// `source`.
    #[must_use]
    pub fn new(mountpoint: PathBuf, source: &str, subtype: &str) -> Self {
        let mut mount = fuse::MountOptions::new(mountpoint);
        source.as_bytes().clone_into(&mut mount.source);
        subtype.clone_into(&mut mount.subtype);
        Self {
            mount,
            cache: Duration::from_secs(10),
            passthrough: true,
            xattrs: true,
            cached_data: false,
            stack_depth: 1,
            narrow_positions: false,
            owner: 0,
            commands: Vec::new(),
        }
    }
}
