//! What a stack stands on: a directory of the host, or a file system over several directories.

use crate::atime;
use crate::exit::Failure;
use crate::options::Options;
use crate::own::{Continues, Own};
use crate::place::{Place, Role, reason};
use core::fmt;
use core::time::Duration;
use hostfs::{HostFs, HostOptions};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vnode::Layer;
use wrapfs::OptionSpec;

/// A kind of file system over several directories.
pub struct BottomType {
    /// Its name in a stack, and the type that mount(8) knows it by.
    pub name: &'static str,
    /// One line for lists, without a full stop.
    pub about: &'static str,
    /// The options that it takes.
    pub options: &'static [OptionSpec],
    /// An option whose value may go on after a comma.
    pub continues: Option<Continues>,
    /// What it can't do without, as it stands in a stack.
    pub example: &'static str,
    /// What the first argument of `mount -t NAME` is: the value of this option, or only a name to show.
    pub source: Option<&'static str>,
    /// Finds the directories, and whether they can be used together. Changes nothing.
    pub check: fn(&Own, &Options) -> Checked,
}

/// See [`BottomType::check`].
pub type Checked = Result<Box<dyn Bottom>, Failure>;

impl fmt::Debug for BottomType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BottomType").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Directories that were found to be fit for use.
pub trait Bottom: fmt::Debug {
    /// Can nothing be changed through it, whatever the mount's flags say?
    fn is_read_only(&self) -> bool;

    /// The directories.
    fn places(&self) -> Vec<&Place>;

    /// Paths and modes of directories that are not to be mounted at one place twice. `None`: mounting it over itself makes sense.
    fn branches(&self) -> Option<Vec<(&Path, &'static str)>>;

    /// How long the kernel may trust what it knows, where `cache=` does not say it; `None`: the server's default.
    fn cache(&self) -> Option<Duration>;

    /// Do positions in its directories have 31 bits?
    fn narrow_positions(&self) -> bool;

    /// Opens the directories and puts a layer over them.
    ///
    /// # Errors
    /// Names the step and the directory that failed.
    fn build(&self, options: &Options) -> Result<Built, Failure>;
}

/// What a stack stands on, ready for use.
#[derive(Debug)]
pub struct Built {
    /// The layer.
    pub layer: Arc<dyn Layer>,
    /// The directories under it.
    pub directories: Vec<Directory>,
    /// Those of them that can be written.
    pub written: Vec<Arc<HostFs>>,
}

/// An open directory at the bottom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Its path, without symbolic links, when it was opened.
    pub path: PathBuf,
    /// What it is used for: `rw`, `ro` and the like.
    pub mode: &'static str,
    /// The number of the server's descriptor, if it has one for good.
    pub fd: Option<i32>,
}

/// Opens a directory of the host as a layer.
///
/// # Errors
/// Names the directory and the reason.
pub fn open(place: &Place, read_only: bool, options: &Options) -> Result<Arc<HostFs>, Failure> {
    let host = HostOptions { read_only, ..HostOptions::default() };
    // Whoever wants to see at once what others change below wants no cache here either.
    let believed = options.cache.map_or(host.believed, |cache| cache.min(host.believed));
    let fs = HostFs::open(&place.real, HostOptions { believed, ..host })
        .map_err(|error| Failure::mount(error.to_string()))?;
    if let Err(errno) = fs.suspend_access_times(options.read_only()) {
        tracing::debug!(%errno, "reading still moves times of access");
    }
    if let Err(errno) = fs.set_access_times(atime::of_options(options.flags)) {
        let path = place.given.display();
        tracing::warn!("{path}: noatime, relatime and the like are as on its own mount: {}", reason(errno));
    }
    Ok(fs)
}

/// The directory that `open` opened, for the report.
#[must_use]
pub fn directory(place: &Place, mode: &'static str, fs: &HostFs) -> Directory {
    Directory { path: place.real.clone(), mode, fd: Some(fs.directory().as_raw_fd()) }
}

/// One directory.
#[derive(Debug)]
pub struct Single {
    place: Place,
    read_only: bool,
}

impl Single {
    /// Finds it.
    ///
    /// # Errors
    /// Names the directory, why it can't be used and what to do about it.
    pub fn check(role: Role, path: &Path, read_only: bool) -> Result<Self, Failure> {
        Ok(Self { place: Place::open(role, path)?, read_only })
    }
}

impl Bottom for Single {
    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn places(&self) -> Vec<&Place> {
        vec![&self.place]
    }

    /// A layer over itself is a stack.
    fn branches(&self) -> Option<Vec<(&Path, &'static str)>> {
        None
    }

    fn cache(&self) -> Option<Duration> {
        None
    }

    fn narrow_positions(&self) -> bool {
        false
    }

    fn build(&self, options: &Options) -> Result<Built, Failure> {
        let fs = open(&self.place, self.read_only, options)?;
        let mode = if self.read_only { "ro" } else { "rw" };
        let written = if self.read_only { Vec::new() } else { vec![Arc::clone(&fs)] };
        Ok(Built { directories: vec![directory(&self.place, mode, &fs)], layer: fs, written })
    }
}
