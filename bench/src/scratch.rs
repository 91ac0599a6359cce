//! A fresh file system on a loop device whose image is in memory.
//!
//! ext4 creates inodes slowly after many were deleted, and an aged file system varies between runs.
//! So each contender gets a fresh one for each repetition.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::process;

/// Size of a contender's file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// Type of a contender's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Ext4,
    /// For what needs reflinks.
    Xfs,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Format::Ext4 => "ext4",
            Format::Xfs => "xfs",
        }
    }

    /// Returns the command that creates a file system on `image`.
    fn mkfs(self, image: &Path, size: Size) -> Command {
        let mut mkfs = Command::new(format!("mkfs.{}", self.name()));
        match self {
            // Initialises everything now: otherwise a kernel thread would do it during the
            // measurement.
            Format::Ext4 => mkfs
                .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-N"])
                .arg(size.inodes.to_string()),
            // XFS creates inodes as they are needed.
            Format::Xfs => mkfs.args(["-q", "-f", "-K", "-m", "reflink=1"]),
        };
        mkfs.arg(image);
        mkfs
    }
}

/// The file system, mounted at [`ScratchFs::disk`] until it is dropped.
#[derive(Debug)]
pub(crate) struct ScratchFs {
    base: PathBuf,
    // Dropped in this order: the file system is unmounted before the tmpfs with its image.
    disk: Mounted,
    ram: Mounted,
    format: Format,
}

impl ScratchFs {
    /// Creates an ext4 and mounts it below the directory `base`.
    pub(crate) fn new(base: &Path, size: Size) -> Result<Self> {
        Self::with_format(base, size, Format::Ext4)
    }

    /// Creates a file system of that type and mounts it below the directory `base`.
    pub(crate) fn with_format(base: &Path, size: Size, format: Format) -> Result<Self> {
        let ram = tmpfs(&base.join("ram"))?;
        let disk_dir = base.join("disk");
        fs::create_dir_all(&disk_dir).with_context(|| format!("create {}", disk_dir.display()))?;
        let image = ram.at.join(IMAGE);
        File::create(&image)
            .and_then(|file| file.set_len(size.bytes))
            .context("create the image of the file system")?;
        process::run(&mut format.mkfs(&image, size), &ram.at.join("mkfs.log"))?;
        mount_image(&ram.at, &disk_dir, format)?;
        Ok(Self { base: base.to_owned(), disk: Mounted { at: disk_dir }, ram, format })
    }

    /// Unmounts the file system and mounts it again, which empties its caches.
    pub(crate) fn remount(&self) -> Result<()> {
        unmount(self.disk()).with_context(|| format!("unmount {}", self.disk().display()))?;
        let image = self.ram.at.join(IMAGE);
        let begun = Instant::now();
        // Files that a FUSE server passed through keep the file system alive for a while: mounting
        // the image then finds it, with its caches.
        while is_attached(&image)? {
            ensure!(begun.elapsed() < PATIENCE, "{}: still in use after the unmount", image.display());
            std::thread::sleep(PAUSE);
        }
        mount_image(&self.ram.at, self.disk(), self.format)
    }

    /// Returns the mount point of the file system.
    pub(crate) fn disk(&self) -> &Path {
        &self.disk.at
    }

    /// Returns a directory outside the file system, for mount points.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// Returns a file outside the file system, for the output of programs.
    pub(crate) fn log(&self) -> PathBuf {
        self.ram.at.join("program.log")
    }

    /// Opens the root of the file system, to sync it.
    pub(crate) fn open(&self) -> Result<OwnedFd> {
        rustix::fs::open(self.disk(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("open {}", self.disk().display()))
    }
}

/// How long to wait for something that is released soon, and between two attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// Name of the image in the tmpfs.
const IMAGE: &str = "image";

/// Mounts a tmpfs that may use all memory.
pub(crate) fn tmpfs(at: &Path) -> Result<Mounted> {
    fs::create_dir_all(at).with_context(|| format!("create {}", at.display()))?;
    rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(c"size=100%"))
        .with_context(|| format!("mount a tmpfs at {}", at.display()))?;
    Ok(Mounted { at: at.to_owned() })
}

fn mount_image(ram: &Path, disk: &Path, format: Format) -> Result<()> {
    let mut mount = Command::new("mount");
    mount.args(["-t", format.name(), "-o", "loop"]).arg(ram.join(IMAGE)).arg(disk);
    process::run(&mut mount, &ram.join("mount.log"))
}

/// Whether a loop device has this image.
fn is_attached(image: &Path) -> Result<bool> {
    let devices = fs::read_dir("/sys/block").context("list the loop devices")?;
    // A device without an image has no such file.
    let images = devices.flatten().filter_map(|device| fs::read(device.path().join("loop/backing_file")).ok());
    Ok(images.into_iter().any(|name| name.trim_ascii_end() == image.as_os_str().as_bytes()))
}

/// Unmounts. Waits while the mount is busy: it is so briefly after its last user, in particular the
/// tmpfs under a loop device, which releases its image after the unmount has returned.
fn unmount(at: &Path) -> rustix::io::Result<()> {
    let begun = Instant::now();
    loop {
        match rustix::mount::unmount(at, UnmountFlags::empty()) {
            Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// A mount that is unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.at) {
            eprintln!("strata-bench: {}: can't unmount: {error}; detached", self.at.display());
            // If this fails as well, the mount ends with the namespace.
            let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
        }
    }
}
