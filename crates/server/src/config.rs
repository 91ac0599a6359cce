use crate::Command;
use std::path::PathBuf;
use std::time::Duration;

/// How a stack is served.
#[derive(Clone, Debug)]
pub struct Config {
    /// How and where to mount, by which transport.
    pub mount: fuse::MountOptions,
    /// How long the kernel may remember names, missing names and attributes without asking again. Changes made through
    /// the mount are seen at once whatever this is; changes made behind its back are seen after this long.
    /// Names are not remembered at all where several lead to one entry ([`vnode::Layer::merges_names`]).
    pub cache: Duration,
    /// Hand host files to the kernel where the layers allow it.
    pub passthrough: bool,
    /// Serve extended attributes. If not, the kernel is told so at its first request and sends no more of them: there are
    /// no ACLs, file capabilities or user attributes.
    pub xattrs: bool,
    /// The kernel opens files without asking and serves their data from its page cache (`FUSE_NO_OPEN_SUPPORT`); the
    /// server answers every change with `EROFS`. Excludes passthrough. For read-only mounts alone: no layer sees who
    /// opens a file.
    pub cached_data: bool,
    /// How many stacked file systems the kernel may find under this one: 1, or 2 where a host directory lies on overlayfs
    /// or on another passthrough mount (overlayfs can then not be put on top of this one).
    pub stack_depth: u32,
    /// The layer's positions in directories have 31 bits, and so are those of `.` and `..` to have.
    pub narrow_positions: bool,
    /// The user who may, beside root, give commands that are for the mount's owner ([`vnode::Who::Owner`]).
    pub owner: u32,
    /// Commands of the control channel besides those that the server itself answers.
    pub commands: Vec<Command>,
}

impl Config {
    /// Defaults for a mount at `mountpoint` that shows as type `fuse.<subtype>` from `source`.
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
