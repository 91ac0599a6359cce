//! The directories in which sandboxes are kept.
//!
//! ```text
//! STORE/NAME/sandbox.json   its command, and the mount point of each branch
//!           /lock           locked while a command runs in it
//!           /log            warnings of its server
//!           /branches/N     what was written below a mount point
//!           /points/N       mount points that are hidden in the host's directory
//!           /view           where the tree is put together, in a private mount namespace
//! ```

use crate::exit::Failure;
use crate::host_dir::reason;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The environment variable that tells a program in a sandbox the sandbox's name.
pub(super) const ENVIRONMENT: &str = "STRATA_SANDBOX";
const RECORD: &str = "sandbox.json";
/// The record of a sandbox that is being removed.
const REMOVED: &str = "removed.json";
/// Directories of a sandbox.
const PARTS: [&str; 3] = ["branches", "points", "view"];
/// Most characters of a name.
const NAME_MAX: usize = 64;

/// The directory that holds a user's sandboxes.
#[derive(Clone, Debug)]
pub(super) struct Store(PathBuf);

/// What is recorded of a sandbox.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// When it was created, in nanoseconds since 1970.
    pub(super) created: u64,
    /// The command that ran in it last.
    pub(super) command: Vec<OsString>,
    /// The mount point of each branch, in the order of their directories.
    pub(super) points: Vec<OsString>,
}

/// A sandbox that is not in use by another process while this exists.
#[derive(Debug)]
pub(super) struct Sandbox {
    /// Its name.
    pub(super) name: String,
    /// Its directory, without symbolic links.
    pub(super) dir: PathBuf,
    /// What is recorded of it.
    pub(super) record: Record,
    /// Whether it was created just now.
    pub(super) is_new: bool,
    _lock: OwnedFd,
}

impl Store {
    /// Returns the given directory, or the user's default.
    pub(super) fn of(dir: Option<&Path>) -> Result<Self, Failure> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            // A branch can't lie in a union, and /dev/shm is none.
            None if std::env::var_os(ENVIRONMENT).is_some() => {
                format!("/dev/shm/strata-sandboxes-{}", rustix::process::geteuid().as_raw()).into()
            }
            None if rustix::process::geteuid().is_root() => "/var/lib/strata/sandboxes".into(),
            None => state_home()?.join("strata/sandboxes"),
        };
        std::path::absolute(&dir).map(Self).map_err(|error| at(&dir, "the path can't be used", &error))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates a sandbox with this name, or one that is derived from the command.
    pub(super) fn create(&self, name: Option<&str>, command: &[OsString]) -> Result<Sandbox, Failure> {
        let failed =
            |error| at(&self.0, "can't create the directory of sandboxes; choose another one with --dir", &error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0).map_err(failed)?;
        let store = self.0.canonicalize().map_err(failed)?;
        let (name, dir) = match name {
            Some(name) => (name.to_owned(), store.join(name)),
            None => {
                let base = base_name(command);
                let mut names = (1..).map(|number| format!("{base}-{number}"));
                names
                    .find(|name| !store.join(name).exists())
                    .map(|name| (name.clone(), store.join(name)))
                    .ok_or_else(|| Failure::system("no free name for the sandbox"))?
            }
        };
        DirBuilder::new().mode(0o700).create(&dir).map_err(|error| at(&dir, "can't create the sandbox", &error))?;
        for part in PARTS {
            let part = dir.join(part);
            DirBuilder::new().mode(0o700).create(&part).map_err(|error| at(&part, "can't create it", &error))?;
        }
        let lock = lock(&name, &dir)?;
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let created = u64::try_from(created.as_nanos()).unwrap_or_default();
        let record = Record { created, ..Record::default() };
        let sandbox = Sandbox { name, dir, record, is_new: true, _lock: lock };
        // At once: if this process is killed, the sandbox can be listed and discarded.
        sandbox.save()?;
        Ok(sandbox)
    }

    /// Opens a sandbox that exists. `None` if there is none of this name. Removes what an
    /// interrupted creation or removal has left of it.
    pub(super) fn open(&self, name: &str) -> Result<Option<Sandbox>, Failure> {
        check_name(name)?;
        let dir = self.0.join(name);
        let dir = match dir.canonicalize() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(|error| at(&dir, "can't open the sandbox", &error))?,
        };
        let owner = fs::metadata(&dir).map_err(|error| at(&dir, "can't open the sandbox", &error))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(Failure::usage(format!("sandbox {name}: it belongs to user {owner}; use one of your own")));
        }
        let lock = lock(name, &dir)?;
        if remove_remains(&dir)? {
            return Ok(None);
        }
        let record = read_record(&dir)?;
        Ok(Some(Sandbox { name: name.to_owned(), dir, record, is_new: false, _lock: lock }))
    }

    /// Returns the names and records of all sandboxes, and whether a command runs in each.
    pub(super) fn list(&self) -> Result<Vec<(String, Record, bool)>, Failure> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| at(&self.0, "can't list the sandboxes", &error))?,
        };
        let mut all = Vec::new();
        for entry in entries.flatten() {
            let (name, dir) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            if let Ok(record) = read_record(&dir) {
                all.push((name.clone(), record, lock(&name, &dir).is_err()));
            }
        }
        all.sort_by(|a, b| (a.1.created, &a.0).cmp(&(b.1.created, &b.0)));
        Ok(all)
    }
}

impl Sandbox {
    /// Returns the directory where the tree is put together.
    pub(super) fn view(&self) -> PathBuf {
        self.dir.join("view")
    }

    /// Returns the number of the branch for a mount point, a new one if it has none.
    pub(super) fn number_of(&mut self, point: &OsStr) -> usize {
        self.record.points.iter().position(|known| known == point).unwrap_or_else(|| {
            self.record.points.push(point.to_owned());
            self.record.points.len() - 1
        })
    }

    /// Returns the directory of a branch.
    pub(super) fn branch(&self, number: usize) -> PathBuf {
        self.dir.join("branches").join(number.to_string())
    }

    /// Returns the directory with the mount points that are hidden in the host's directory.
    pub(super) fn points(&self, number: usize) -> PathBuf {
        self.dir.join("points").join(number.to_string())
    }

    /// Returns the server's log file.
    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Writes the record.
    pub(super) fn save(&self) -> Result<(), Failure> {
        let path = self.dir.join(RECORD);
        let failed = |error| at(&path, "can't write it", &error);
        let text = serde_json::to_vec_pretty(&self.record).map_err(|error| failed(error.into()))?;
        let aside = self.dir.join(".sandbox.json");
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside).map_err(failed)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&aside, &path).map_err(failed)
    }

    /// Creates the branch's directory with the attributes that the root of its file system shows.
    pub(super) fn prepare_branch(&self, number: usize, point: &Path, rootless: bool) -> Result<(), Failure> {
        let branch = self.branch(number);
        match DirBuilder::new().mode(0o700).create(&branch) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
            made => made.map_err(|error| at(&branch, "can't create the branch", &error))?,
        }
        let failed = |error| at(&branch, "can't set the attributes of the branch", &error);
        let like = fs::metadata(point).map_err(failed)?;
        let is_own = like.uid() == rustix::process::geteuid().as_raw();
        let mut mode = if rootless { unionfs::sole_directory_mode(like.mode(), is_own) } else { like.mode() & 0o7777 };
        // Users may give neither files away nor all groups.
        let owner = (!rootless).then(|| like.uid());
        if std::os::unix::fs::chown(&branch, owner, Some(like.gid())).is_err() && rootless {
            mode = unionfs::without_group(mode);
        }
        fs::set_permissions(&branch, fs::Permissions::from_mode(mode)).map_err(failed)
    }

    /// Removes the sandbox with all that was written in it.
    pub(super) fn remove(self) -> Result<(), Failure> {
        let failed = |error| at(&self.dir, "can't remove the sandbox", &error);
        // With the record under this name it is no sandbox, should the removal be interrupted.
        match fs::rename(self.dir.join(RECORD), self.dir.join(REMOVED)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        remove_all(&self.dir)
    }
}

fn remove_all(dir: &Path) -> Result<(), Failure> {
    super::remove_tree::remove(dir)
        .map_err(|(path, errno)| Failure::system(format!("{}: can't remove it: {}", path.display(), reason(errno))))
}

fn state_home() -> Result<PathBuf, Failure> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .ok_or_else(|| Failure::usage("neither XDG_STATE_HOME nor HOME is set; choose a directory with --dir"))
}

/// Checks that the name is one file name, without a leading dot.
pub(super) fn check_name(name: &str) -> Result<(), Failure> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_part) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "sandbox {name}: not a name; use at most {NAME_MAX} letters, digits, `.`, `_` and `-`, beginning with a letter or digit"
    )))
}

fn base_name(command: &[OsString]) -> String {
    let base = command.first().and_then(|program| Path::new(program).file_name()).unwrap_or_default();
    let clean = |&byte: &u8| {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }
    };
    let name: String = base.as_bytes().iter().map(clean).take(NAME_MAX / 2).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "sandbox".to_owned() } else { name.to_owned() }
}

fn lock(name: &str, dir: &Path) -> Result<OwnedFd, Failure> {
    let path = dir.join("lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let failed = |errno: Errno| Failure::system(format!("{}: can't lock it: {}", path.display(), reason(errno)));
    let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::AGAIN) => Err(Failure::usage(format!(
            "sandbox {name}: in use: a command still runs in it; wait for its end, or choose another name"
        ))),
        locked => locked.map(|()| fd).map_err(failed),
    }
}

/// Removes what an interrupted creation or removal has left of a sandbox whose lock the caller has.
/// Returns whether it was that. A creation leaves empty parts; anything else is not touched.
fn remove_remains(dir: &Path) -> Result<bool, Failure> {
    if dir.join(RECORD).exists() {
        return Ok(false);
    }
    if dir.join(REMOVED).exists() {
        return remove_all(dir).map(|()| true);
    }
    let is_part = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let is_empty = || fs::read_dir(entry.path()).is_ok_and(|mut inner| inner.next().is_none());
            match PARTS.iter().any(|part| name == *part) {
                true => is_empty(),
                false => name == "lock" || name == ".sandbox.json",
            }
        })
    };
    let only_parts = fs::read_dir(dir).is_ok_and(|mut entries| entries.all(is_part));
    // Without an entry but the lock, which was just created, it may be any directory.
    if only_parts && PARTS.iter().any(|part| dir.join(part).exists()) {
        return remove_all(dir).map(|()| true);
    }
    Ok(false)
}

fn read_record(dir: &Path) -> Result<Record, Failure> {
    let path = dir.join(RECORD);
    let text = fs::read(&path).map_err(|error| at(&path, "can't read it: not a sandbox", &error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::system(format!("{}: damaged: {error}; remove the sandbox by hand", path.display())))
}

/// Returns device and inode number.
pub(super) fn identify(path: &Path) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether both are directories, or neither is.
pub(super) fn is_same_kind(a: &OwnedFd, b: &OwnedFd) -> bool {
    let is_directory =
        |fd| rustix::fs::fstat(fd).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
    matches!((is_directory(a), is_directory(b)), (Ok(a), Ok(b)) if a == b)
}

fn at(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    let why = Errno::from_io_error(error).map_or_else(|| error.to_string(), reason);
    Failure::system(format!("{}: {what}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_command() {
        let of = |program: &str| base_name(&[program.into()]);
        assert_eq!(of("/usr/bin/apt-get"), "apt-get");
        assert_eq!(of("./.hidden tool"), "hidden_tool");
        assert_eq!(of(".."), "sandbox");
        assert_eq!(base_name(&[]), "sandbox");
        for good in ["a", "apt-get-1", "x.y_z"] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", "a/b", "-x", ".x", "a b", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
