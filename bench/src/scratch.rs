//! A fresh ext4 on a loop device whose image is in memory.
//!
//! ext4 creates inodes slowly after many were deleted, and an aged file system varies between runs.
//! So each contender gets a fresh one for each repetition.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::process;

/// Size of a contender's file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// The file system, mounted at [`ScratchFs::disk`] until it is dropped.
#[derive(Debug)]
pub(crate) struct ScratchFs {
    base: PathBuf,
    // Dropped in this order: the file system is unmounted before the tmpfs with its image.
    disk: Mounted,
    ram: Mounted,
}

impl ScratchFs {
    /// Creates the file system and mounts it below the directory `base`.
    pub(crate) fn new(base: &Path, size: Size) -> Result<Self> {
        let (ram_dir, disk_dir) = (base.join("ram"), base.join("disk"));
        for dir in [&ram_dir, &disk_dir] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        rustix::mount::mount("tmpfs", &ram_dir, "tmpfs", MountFlags::empty(), Some(c"size=100%"))
            .with_context(|| format!("mount a tmpfs at {}", ram_dir.display()))?;
        let ram = Mounted { at: ram_dir };

        let image = ram.at.join("image");
        File::create(&image)
            .and_then(|file| file.set_len(size.bytes))
            .context("create the image of the file system")?;
        // Initialises everything now: otherwise a kernel thread would do it during the measurement.
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-N"])
            .arg(size.inodes.to_string())
            .arg(&image);
        process::run(&mut mkfs, &ram.at.join("mkfs.log"))?;
        process::run(
            Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(&image).arg(&disk_dir),
            &ram.at.join("mount.log"),
        )?;
        Ok(Self { base: base.to_owned(), disk: Mounted { at: disk_dir }, ram })
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

/// A mount that is unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A mount stays busy briefly after its last user, in particular the tmpfs under a loop
        // device, which releases its image after the unmount has returned.
        let begun = Instant::now();
        while let Err(error) = rustix::mount::unmount(&self.at, UnmountFlags::empty()) {
            if begun.elapsed() > Duration::from_secs(10) {
                eprintln!("strata-bench: {}: can't unmount: {error}; detached", self.at.display());
                // If this fails as well, the mount ends with the namespace.
                let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
