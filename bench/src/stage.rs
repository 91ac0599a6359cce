//! A fresh ext4 on a loop device whose image lies in memory.
//!
//! An ext4 that has just deleted many inodes creates new ones slowly, and one with a long life behind it differs from run to
//! run; so each contender gets a new one for each repetition.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::process;

/// How large the file system of a contender is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// The file system, mounted at [`Stage::disk`] until this is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    base: PathBuf,
    // Dropped in this order: the file system is unmounted before the memory that holds its image.
    disk: Mounted,
    ram: Mounted,
}

impl Stage {
    /// Makes and mounts it below the directory `base`.
    pub(crate) fn new(base: &Path, size: Size) -> Result<Self> {
        let (ram_dir, disk_dir) = (base.join("ram"), base.join("disk"));
        for dir in [&ram_dir, &disk_dir] {
            fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        rustix::mount::mount("tmpfs", &ram_dir, "tmpfs", MountFlags::empty(), Some(c"size=100%"))
            .with_context(|| format!("mount a tmpfs at {}", ram_dir.display()))?;
        let ram = Mounted { at: ram_dir };

        let image = ram.at.join("image");
        File::create(&image).and_then(|file| file.set_len(size.bytes)).context("make the image of the file system")?;
        // Everything is initialised now: what ext4 puts off, a kernel thread does later, while we measure.
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

    /// Where the file system is mounted.
    pub(crate) fn disk(&self) -> &Path {
        &self.disk.at
    }

    /// A directory outside the file system, for mount points.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// A file outside the file system for what a program says.
    pub(crate) fn log(&self) -> PathBuf {
        self.ram.at.join("program.log")
    }

    /// The root of the file system, open, to sync it.
    pub(crate) fn open(&self) -> Result<OwnedFd> {
        rustix::fs::open(self.disk(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("open {}", self.disk().display()))
    }
}

/// A mount that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A mount stays busy for a moment after its last user, above all the memory under a loop device, which lets go of
        // its image after the unmount has returned.
        let begun = Instant::now();
        while let Err(error) = rustix::mount::unmount(&self.at, UnmountFlags::empty()) {
            if begun.elapsed() > Duration::from_secs(10) {
                eprintln!("strata-bench: {} does not unmount ({error}): detached", self.at.display());
                // If even this fails, the mount ends with our namespace.
                let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
