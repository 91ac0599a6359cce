//! A volume on a fresh file system, and the state of the caches.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::entrant::{Entrant, PASSPHRASE, Place};
use crate::cli::Options;
use crate::contender::{self, Running};
use crate::process;
use crate::scratch::{ScratchFs, Size};

/// A mounted volume.
pub(super) struct Volume<'a> {
    options: &'a Options,
    entrant: Entrant,
    // Dropped in this order: the volume is unmounted before the file system below.
    running: Option<Running>,
    scratch: ScratchFs,
    lower: PathBuf,
    passfile: PathBuf,
}

impl<'a> Volume<'a> {
    /// Creates a volume and mounts it.
    pub(super) fn create(options: &'a Options, entrant: Entrant, size: Size) -> Result<Self> {
        let scratch = ScratchFs::new(&crate::isolation::base()?, size)?;
        let lower = scratch.disk().join("only");
        fs::create_dir(&lower).with_context(|| format!("create {}", lower.display()))?;
        let passfile = scratch.log().with_file_name("passphrase");
        fs::write(&passfile, format!("{PASSPHRASE}\n"))
            .and_then(|()| fs::set_permissions(&passfile, Permissions::from_mode(0o600)))
            .with_context(|| format!("write {}", passfile.display()))?;
        let mut volume = Self { options, entrant, running: None, scratch, lower, passfile };
        let log = volume.scratch.log();
        entrant.create(options, volume.place(&log)).context("create a volume")?;
        volume.mount()?;
        Ok(volume)
    }

    /// Returns the root of the decrypted files.
    pub(super) fn root(&self) -> Result<&Path> {
        Ok(&self.running.as_ref().context("the volume is not mounted")?.root)
    }

    /// Returns a file for the output of programs.
    pub(super) fn log(&self) -> PathBuf {
        self.scratch.log().with_extension("workload")
    }

    /// Empties the caches of decrypted files and those of the file system below.
    pub(super) fn cool(&mut self) -> Result<()> {
        self.running = None;
        self.scratch.remount()?;
        self.mount()
    }

    /// Empties the caches of decrypted files, and fills those of the file system below: the data of
    /// all encrypted files.
    pub(super) fn warm(&mut self) -> Result<()> {
        self.running = None;
        let script = "find \"$1\" -type f -exec cat {} + >/dev/null";
        process::run(Command::new("sh").args(["-c", script, "sh"]).arg(&self.lower), &self.log())?;
        self.mount()
    }

    fn place<'b>(&'b self, log: &'b Path) -> Place<'b> {
        Place { lower: &self.lower, passfile: &self.passfile, log }
    }

    fn mount(&mut self) -> Result<()> {
        let log = self.scratch.log();
        let running = if self.entrant == Entrant::Native {
            Running::unmounted(self.lower.clone())
        } else {
            contender::attach(self.entrant.label(), &self.scratch, |point| {
                self.entrant.mount(self.options, self.place(&log), point)
            })?
        };
        self.running = Some(running);
        Ok(())
    }
}
