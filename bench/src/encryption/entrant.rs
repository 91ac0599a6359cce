//! The file systems that are compared: how a volume is created, and how it is mounted.
//!
//! All have their default settings.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use crate::cli::Options;
use crate::contender;
use crate::process;

/// Passphrase of all volumes.
pub(super) const PASSPHRASE: &str = "a passphrase for the benchmark";
/// How long a server may take from its program's end to its mount.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file system with its settings, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(into = "&'static str")]
pub(crate) enum Entrant {
    /// A plain directory
    Native,
    /// Strata's wrapfs
    Null,
    /// Strata's cryptfs, one key for the mount
    Mount,
    /// Strata's cryptfs, a key per session
    Session,
    /// Strata's cryptfs with XChaCha20-Poly1305, one key for the mount
    Xchacha,
    Gocryptfs,
    /// gocryptfs with XChaCha20-Poly1305
    GocryptfsXchacha,
    Encfs,
    Securefs,
}

impl From<Entrant> for &'static str {
    fn from(entrant: Entrant) -> Self {
        entrant.label()
    }
}

/// Where a volume is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The directory of the encrypted files.
    pub(super) lower: &'a Path,
    /// The file with the passphrase.
    pub(super) passfile: &'a Path,
    /// Receives the output of programs.
    pub(super) log: &'a Path,
}

impl Entrant {
    pub(crate) const ALL: [Self; 9] = [
        Self::Native,
        Self::Null,
        Self::Mount,
        Self::Session,
        Self::Xchacha,
        Self::Gocryptfs,
        Self::GocryptfsXchacha,
        Self::Encfs,
        Self::Securefs,
    ];

    /// Returns the name in tables and figures.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Null => "null layer",
            Self::Mount => "cryptfs, key=mount",
            Self::Session => "cryptfs, key=session",
            Self::Xchacha => "cryptfs, xchacha",
            Self::Gocryptfs => "gocryptfs",
            Self::GocryptfsXchacha => "gocryptfs, xchacha",
            Self::Encfs => "encfs",
            Self::Securefs => "securefs",
        }
    }

    /// Returns the gocryptfs with the same cipher, if this is one of Strata's.
    pub(super) fn counterpart(self) -> Option<Self> {
        match self {
            Self::Mount | Self::Session => Some(Self::Gocryptfs),
            Self::Xchacha => Some(Self::GocryptfsXchacha),
            _ => None,
        }
    }

    /// Returns the Debian package of a peer.
    pub(super) fn package(self) -> Option<&'static str> {
        match self {
            Self::Gocryptfs | Self::GocryptfsXchacha => Some("gocryptfs"),
            Self::Encfs => Some("encfs"),
            Self::Securefs => Some("securefs"),
            _ => None,
        }
    }

    /// Returns the commands for the report.
    pub(super) fn settings(self) -> String {
        match self {
            Self::Native => String::new(),
            Self::Null => "mount -t wrapfs DIR MNT".to_owned(),
            Self::Mount => "cryptctl init DIR; mount -t cryptfs DIR MNT -o key=mount".to_owned(),
            Self::Session => "cryptctl init DIR; mount -t cryptfs DIR MNT; cryptctl add MNT".to_owned(),
            Self::Xchacha => "cryptctl init --xchacha DIR; mount -t cryptfs DIR MNT -o key=mount".to_owned(),
            Self::Gocryptfs => "gocryptfs -init -scryptn 10 DIR; gocryptfs DIR MNT".to_owned(),
            Self::GocryptfsXchacha => "gocryptfs -init -xchacha -scryptn 10 DIR; gocryptfs DIR MNT".to_owned(),
            Self::Encfs => "encfs --standard DIR MNT".to_owned(),
            Self::Securefs => "securefs create --format 4 DIR; securefs mount -b DIR MNT".to_owned(),
        }
    }

    /// Returns the path of its program.
    pub(super) fn program(self, options: &Options) -> Result<PathBuf> {
        let strata = match self {
            Self::Native => return Ok(PathBuf::new()),
            Self::Null => &options.wrapfs,
            Self::Mount | Self::Session | Self::Xchacha => &options.cryptfs,
            _ => {
                let name = self.package().context("a peer has a package")?;
                return contender::find_peer(options, name).map_err(|reason| anyhow!(reason));
            }
        };
        ensure!(strata.is_file(), "{} does not exist", strata.display());
        Ok(strata.clone())
    }

    /// Creates a volume in an empty directory.
    pub(super) fn create(self, options: &Options, place: Place<'_>) -> Result<()> {
        match self {
            // encfs creates a volume when it mounts an empty directory.
            Self::Native | Self::Null | Self::Encfs => Ok(()),
            Self::Mount | Self::Session | Self::Xchacha => {
                let mut init = self.strata(options, "cryptctl")?;
                init.args(["init", "--quiet", "--passfile"]).arg(place.passfile);
                if self == Self::Xchacha {
                    init.arg("--xchacha");
                }
                process::run(init.arg(place.lower), place.log)
            }
            Self::Gocryptfs | Self::GocryptfsXchacha => {
                let mut init = self.peer(options)?;
                init.args(["-q", "-init", "-scryptn", "10", "-passfile"]).arg(place.passfile);
                if self == Self::GocryptfsXchacha {
                    init.arg("-xchacha");
                }
                process::run(init.arg(place.lower), place.log)
            }
            Self::Securefs => {
                let mut create = self.peer(options)?;
                create.args(["create", "--format", "4", "--rounds", "1", "--pass", PASSPHRASE]).arg(place.lower);
                process::run(&mut create, place.log)
            }
        }
    }

    /// Mounts a volume, and gives the key to this session if the mount does not have it.
    pub(super) fn mount(self, options: &Options, place: Place<'_>, point: &Path) -> Result<()> {
        let (lower, log) = (place.lower, place.log);
        match self {
            Self::Native => Ok(()),
            Self::Null | Self::Mount | Self::Session | Self::Xchacha => {
                let alias = if self == Self::Null { "mount.wrapfs" } else { "mount.cryptfs" };
                let mut mount = self.strata(options, alias)?;
                mount.arg(lower).arg(point);
                if matches!(self, Self::Mount | Self::Xchacha) {
                    mount.arg("-o").arg(format!("key=mount,passfile={}", place.passfile.display()));
                }
                process::run(&mut mount, log)?;
                if self == Self::Session {
                    let mut add = self.strata(options, "cryptctl")?;
                    process::run(add.arg("add").arg(point).arg("--passfile").arg(place.passfile), log)?;
                }
                Ok(())
            }
            Self::Gocryptfs | Self::GocryptfsXchacha => {
                let mut mount = self.peer(options)?;
                mount.args(["-q", "-passfile"]).arg(place.passfile).arg(lower).arg(point);
                process::run(&mut mount, log)
            }
            Self::Encfs => {
                let mut mount = self.peer(options)?;
                mount.args(["--standard", "--extpass"]).arg(format!("cat {}", place.passfile.display()));
                process::run(mount.arg(lower).arg(point), log)
            }
            Self::Securefs => {
                // Its program can end before it mounts.
                let before = fs::metadata(point)?.dev();
                let mut mount = self.peer(options)?;
                mount.args(["mount", "-b", "--pass", PASSPHRASE]).arg(lower).arg(point);
                process::run(&mut mount, log)?;
                let begun = Instant::now();
                while fs::metadata(point)?.dev() == before && begun.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            }
        }
    }

    /// Returns a command that calls Strata's program under another name.
    fn strata(self, options: &Options, alias: &str) -> Result<Command> {
        let mut command = Command::new(self.program(options)?);
        command.arg0(alias);
        Ok(command)
    }

    fn peer(self, options: &Options) -> Result<Command> {
        Ok(contender::command(&self.program(options)?, &options.cache.join("peers")))
    }
}
