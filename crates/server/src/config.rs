use core::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// An attribute of the mount's root that says something about the mount.
#[derive(Clone)]
pub struct Report {
    /// Its name: `user.strata.` and a word.
    pub name: &'static str,
    /// Its value, made anew for whoever asks. At most 64 KiB.
    pub text: Arc<dyn Fn() -> String + Send + Sync>,
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The level of the server's log, which can be changed while it serves: a number of [`fuse::control::LEVELS`].
pub trait DebugLevel: Send + Sync + fmt::Debug {
    /// What it is.
    fn get(&self) -> u32;

    /// Changes it. Answers false where there is no such level.
    fn set(&self, level: u32) -> bool;
}

/// When reading moves times of access on the directories at the bottom, which can be changed while the server serves.
pub trait AccessTimes: Send + Sync + fmt::Debug {
    /// Changes it: bits of [`fuse::control::access_times`].
    ///
    /// # Errors
    /// Where the host does not permit it.
    fn set(&self, times: u32) -> vnode::Result<()>;
}

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
    /// no ACLs, file capabilities or user attributes, and the root has no [`Config::reports`].
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
    /// The user who may, beside root, change the level of the log and the flags of the mount.
    pub owner: u32,
    /// What the mount's root says besides what the server itself knows.
    pub reports: Vec<Report>,
    /// Reads and sets the level of the log, if that can be changed.
    pub debug: Option<Arc<dyn DebugLevel>>,
    /// Sets when reading moves times of access, if that can be changed.
    pub access_times: Option<Arc<dyn AccessTimes>>,
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
            reports: Vec::new(),
            debug: None,
            access_times: None,
        }
    }
}
