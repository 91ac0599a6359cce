use std::path::PathBuf;
use std::time::Duration;

/// How a stack is served.
#[derive(Clone, Debug)]
pub struct Config {
    /// How and where to mount, by which transport.
    pub mount: fuse::MountOptions,
    /// How long the kernel may remember names, missing names and attributes without asking again. Changes made through
    /// the mount are seen at once whatever this is; changes made behind its back are seen after this long.
    pub cache: Duration,
    /// Hand host files to the kernel where the layers allow it.
    pub passthrough: bool,
    /// How many stacked file systems the kernel may find under this one: 1, or 2 where a host directory lies on overlayfs
    /// or on another passthrough mount (overlayfs can then not be put on top of this one).
    pub stack_depth: u32,
}

impl Config {
    /// Defaults for a mount at `mountpoint` that shows as type `fuse.<subtype>` from `source`.
    #[must_use]
    pub fn new(mountpoint: PathBuf, source: &str, subtype: &str) -> Self {
        let mut mount = fuse::MountOptions::new(mountpoint);
        source.as_bytes().clone_into(&mut mount.source);
        subtype.clone_into(&mut mount.subtype);
        Self { mount, cache: Duration::from_secs(10), passthrough: true, stack_depth: 1 }
    }
}
