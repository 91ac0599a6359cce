//! The configuration of a volume on the host: found, read, and replaced so that a crash leaves the
//! old or the new one.

use crate::exit::{Exit, Failure};
use clap::Args;
use cryptformat::{CONFIG_MAX, CONFIG_NAME, Config, ConfigError};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Which configuration of which volume.
#[derive(Clone, Debug, Args)]
pub struct VolumeArgs {
    /// The volume.
    pub dir: PathBuf,
    /// The key of this name, on a volume with several keys.
    #[arg(long, value_name = "NAME", value_parser = key_name, conflicts_with = "config")]
    pub key: Option<String>,
    /// Use FILE in place of gocryptfs.conf in the volume.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Name of the key in `gocryptfs.conf`.
pub(super) const DEFAULT_KEY: &str = "default";

/// Checks the name of a key.
pub(super) fn key_name(name: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(is_part) && name != "bak" && name != "tmp" {
        Ok(name.to_owned())
    } else {
        Err("it must have 1 to 64 letters, digits, - and _, and not be bak or tmp".to_owned())
    }
}

impl VolumeArgs {
    /// Returns the path of the configuration.
    pub(super) fn path(&self) -> PathBuf {
        match (&self.config, self.key.as_deref()) {
            (Some(path), _) => path.clone(),
            (None, None | Some(DEFAULT_KEY)) => self.dir.join(CONFIG_NAME),
            (None, Some(name)) => self.dir.join(format!("{CONFIG_NAME}.{name}")),
        }
    }

    /// Reads the configuration.
    pub(super) fn open(&self) -> Result<Volume, Failure> {
        self.find()?.ok_or_else(|| match &self.key {
            Some(key) => Failure::usage(format!("{}: no key {key}; see cryptctl info", self.dir.display())),
            None => Failure::mount(format!(
                "{}: no volume: it has no {CONFIG_NAME}; create one with cryptctl init",
                self.dir.display()
            )),
        })
    }

    /// Reads the configuration. Returns `None` if there is none.
    pub(super) fn find(&self) -> Result<Option<Volume>, Failure> {
        let path = self.path();
        let shown = path.display();
        let file = match open_regular(&path, self.config.is_some()) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(Failure::system(format!("{shown}: {error}"))),
        };
        let mut bytes = Vec::new();
        let read = file.take(CONFIG_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::system(format!("{shown}: {error}")))?;
        let config = Config::parse(&bytes).map_err(|error| Failure::mount(format!("{shown}: {error}")))?;
        Ok(Some(Volume { dir: self.dir.clone(), path, config }))
    }
}

/// Opens a regular file for reading. Somebody who can write to the volume could put something else
/// in its place: a FIFO would make the reader wait, and a symbolic link lead elsewhere. `follows`:
/// a link is permitted, since the user named it.
pub(super) fn open_regular(path: &Path, follows: bool) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let flags = if follows { flags } else { flags | OFlags::NOFOLLOW };
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::Error::other("not a regular file")) }
}

/// Returns the start of a side file or initialization vector. One that has more bytes is damaged.
pub(super) fn small_file(path: &Path) -> std::io::Result<Vec<u8>> {
    /// The most that is read, in bytes.
    const SMALL: u64 = 4096;
    let mut bytes = Vec::new();
    open_regular(path, false)?.take(SMALL).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the names of all keys of a volume, sorted, the one in `gocryptfs.conf` first.
pub(super) fn keys(dir: &Path) -> Result<Vec<String>, Failure> {
    let refuse = |error| Failure::system(format!("{}: {error}", dir.display()));
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(refuse)? {
        let entry = entry.map_err(refuse)?;
        if !entry.file_type().map_err(refuse)?.is_file() {
            continue;
        }
        let name = entry.file_name();
        let further = name.to_str().and_then(|name| name.strip_prefix(CONFIG_NAME)?.strip_prefix('.'));
        names.extend(further.and_then(|name| key_name(name).ok()));
    }
    names.sort();
    if dir.join(CONFIG_NAME).exists() {
        names.insert(0, DEFAULT_KEY.to_owned());
    }
    Ok(names)
}

/// A volume whose configuration was read.
#[derive(Debug)]
pub(super) struct Volume {
    /// Its directory, as given.
    pub(super) dir: PathBuf,
    /// The file of the configuration.
    path: PathBuf,
    pub(super) config: Config,
}

impl Volume {
    /// Returns a failure that names the volume.
    pub(super) fn failure(&self, error: &ConfigError) -> Failure {
        failure(&self.dir, error)
    }

    /// Replaces the file by the present configuration.
    pub(super) fn save(&self) -> Result<(), Failure> {
        write_config(&self.path, &self.config)
    }

    /// Copies the file to `gocryptfs.conf.bak`, or to another name with that ending.
    pub(super) fn back_up(&self) -> Result<PathBuf, Failure> {
        let backup = beside(&self.path, ".bak");
        let refuse = |error| Failure::system(format!("{}: {error}", backup.display()));
        let mut bytes = Vec::new();
        open_regular(&self.path, true).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(refuse)?;
        write_new(&backup, &bytes, 0o400).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                let shown = backup.display();
                Failure::usage(format!("{shown}: a backup from before; move it away, then try again"))
            }
            _ => refuse(error),
        })?;
        Ok(backup)
    }
}

/// Returns a failure that names the volume. A wrong passphrase is the user's error.
pub(super) fn failure(dir: &Path, error: &ConfigError) -> Failure {
    let reason = format!("{}: {error}", dir.display());
    let exit = match error {
        ConfigError::Library | ConfigError::Random => Exit::System,
        ConfigError::TooLarge
        | ConfigError::Syntax(_)
        | ConfigError::Version(_)
        | ConfigError::UnknownFlags(_)
        | ConfigError::Conflict(_)
        | ConfigError::Fido2
        | ConfigError::Tampered => Exit::Mount,
        _ => Exit::Usage,
    };
    Failure { exit, reason }
}

/// Returns the path with a suffix.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Writes a configuration, over an existing one.
pub(super) fn write_config(path: &Path, config: &Config) -> Result<(), Failure> {
    let refuse = |error: &dyn core::fmt::Display| Failure::system(format!("{}: {error}", path.display()));
    let bytes = config.to_json().map_err(|error| refuse(&error))?;
    replace(path, &bytes).map_err(|error| refuse(&error))
}

/// Writes a file aside, then renames it to `path`. Both are durable afterwards.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let aside = beside(path, ".tmp");
    // Left behind by a crash.
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    write_new(&aside, bytes, 0o400)?;
    if let Ok(old) = fs::symlink_metadata(path) {
        // root may change the passphrase of someone else's volume.
        let _ = std::os::unix::fs::lchown(&aside, Some(old.uid()), Some(old.gid()));
    }
    let renamed = fs::rename(&aside, path);
    if renamed.is_err() {
        let _ = fs::remove_file(&aside);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    renamed.and_then(|()| File::open(dir)?.sync_all())
}

/// Writes a new file with these permissions, durably.
pub(super) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_keys() {
        for name in ["a", "backup-2", &"x".repeat(64)] {
            assert_eq!(key_name(name), Ok(name.to_owned()));
        }
        for name in ["", "a/b", "a.b", "..", "bak", "tmp", "ä", &"x".repeat(65)] {
            assert!(key_name(name).is_err(), "{name}");
        }
    }
}
