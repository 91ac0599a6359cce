//! Reads the policies for versionfs and runs the programs that decide about versions. The layer
//! itself may access neither the host's files nor other processes.

use crate::policy_program;
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use versionfs::{Below, MAX_BELOW, PolicyHost};
use versionpolicy::{Accounts, AdminConfig, External, Parsed, Severity, UserConfig};

/// The file of a user, in the home directory.
const OF_USER: &str = ".config/versionfs.conf";

/// How long a program that failed is not run again: it must not delay every change of a file.
const PAUSE: Duration = Duration::from_secs(60);

/// Programs that are remembered as failed.
const MAX_FAILED: usize = 1024;

/// Symbolic links on the way to a home directory, at most.
const MAX_LINKS: usize = 40;

/// A program, and the user as whom it runs.
type Program = (Option<u32>, Arc<str>);

/// What the policies of a mount need of this host.
#[derive(Debug)]
pub struct Host {
    /// The mount point, absolute and without symbolic links.
    mount_point: PathBuf,
    failed: Mutex<HashMap<Program, Instant>>,
}

impl Host {
    /// Returns the host for the mount at `mount_point`.
    #[must_use]
    pub fn new(mount_point: PathBuf) -> Self {
        Self { mount_point, failed: Mutex::default() }
    }
}

/// A line of /etc/passwd.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    name: String,
    gid: u32,
    home: PathBuf,
}

/// The accounts of /etc/passwd and /etc/group.
pub(crate) struct Local;

/// Returns the ID in the third field of the line that begins with `name`.
fn id_of(table: &str, name: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

/// Returns the account with this ID.
fn account(table: &str, uid: u32) -> Option<Account> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, id, gid, _, home, ..] = *fields else { return None };
        (id.parse() == Ok(uid))
            .then(|| Some(Account { name: name.to_owned(), gid: gid.parse().ok()?, home: PathBuf::from(home) }))?
    })
}

/// Returns the groups that list a user as a member.
fn groups_of(table: &str, name: &str) -> Vec<u32> {
    let group = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let (gid, members) = (fields.next()?.parse().ok()?, fields.next()?);
        members.split(',').any(|member| member == name).then_some(gid)
    };
    table.lines().filter_map(group).collect()
}

fn table(path: &str) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

impl Accounts for Local {
    fn user(&self, name: &str) -> Option<u32> {
        id_of(&table("/etc/passwd"), name)
    }

    fn group(&self, name: &str) -> Option<u32> {
        id_of(&table("/etc/group"), name)
    }
}

/// Reads at most [`MAX_BELOW`] bytes: the parser refuses what is longer than a configuration.
pub(crate) fn read_bounded(file: File) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MAX_BELOW as u64).read_to_end(&mut text)?;
    Ok(text)
}

/// Opens a file for reading without waiting for the writer of a FIFO.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::Error::other("not a regular file")) }
}

/// Parses the administrator's file.
pub(crate) fn parse_admin(path: &Path, text: &[u8]) -> Parsed<AdminConfig> {
    AdminConfig::parse(&path.display().to_string(), text, &Local)
}

/// Logs the warnings, and returns the first error.
fn first_error<T>(parsed: &Parsed<T>) -> Option<String> {
    let (errors, warnings): (Vec<_>, Vec<_>) =
        parsed.problems.iter().partition(|problem| problem.severity == Severity::Error);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let first = errors.first()?;
    match errors.len() {
        1 => Some(first.to_string()),
        count => Some(format!("{first} (and {} more errors: versionctl policy check shows all)", count - 1)),
    }
}

impl PolicyHost for Host {
    fn admin(&self, path: &Path) -> Result<Option<AdminConfig>, String> {
        let shown = path.display();
        let text = match open_regular(path).and_then(read_bounded) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && path == Path::new(versionfs::CONFIG) => {
                return Ok(None);
            }
            Err(error) => return Err(format!("{shown}: {error}; correct it, or mount without config=")),
        };
        let parsed = parse_admin(path, &text);
        first_error(&parsed).map_or(Ok(parsed.config), Err)
    }

    fn user(&self, uid: u32, below: &dyn Fn(&[u8]) -> Option<Below>) -> Option<UserConfig> {
        let account = account(&table("/etc/passwd"), uid).filter(|account| account.home.is_absolute())?;
        let home = resolve(&account.home, &self.mount_point)?;
        let path = home.join(OF_USER);
        let shown = path.display().to_string();
        let found = match path.strip_prefix(&self.mount_point) {
            Ok(inside) => below(inside.as_os_str().as_bytes()),
            Err(_) => outside(&home)?.map_err(|why| tracing::warn!("{shown}: {why}; it is ignored")).ok(),
        }?;
        if let Err(why) = trusted(&found, uid) {
            tracing::warn!("{shown}: {why}; it is ignored");
            return None;
        }
        let parsed = UserConfig::parse(&shown, &found.text, uid, account.home.to_str(), &Local);
        if let Some(error) = first_error(&parsed) {
            tracing::warn!("{error}; the policies of user {uid} are ignored");
            return None;
        }
        parsed.config
    }

    fn groups(&self, uid: u32) -> Vec<u32> {
        let name = account(&table("/etc/passwd"), uid).map(|account| account.name);
        name.map(|name| groups_of(&table("/etc/group"), &name)).unwrap_or_default()
    }

    fn utc_offset(&self) -> i32 {
        jiff::Zoned::now().offset().seconds()
    }

    fn decide(&self, external: &External, request: &str) -> Option<Vec<u8>> {
        let program = (external.uid, Arc::clone(&external.path));
        let failed = self.failed.lock().get(&program).is_some_and(|at| at.elapsed() < PAUSE);
        if failed {
            return None;
        }
        let user = external.uid.map(|uid| {
            let account = account(&table("/etc/passwd"), uid).ok_or("the user is not in /etc/passwd")?;
            Ok((uid, account.gid))
        });
        let answer = user.transpose().and_then(|user| policy_program::run(&external.path, user, request.as_bytes()));
        let mut failed = self.failed.lock();
        match answer {
            Ok(answer) => {
                failed.remove(&program);
                Some(answer)
            }
            Err(why) => {
                tracing::warn!("{}: {why}; keep and landmarks apply for {} s", external.path, PAUSE.as_secs());
                if failed.len() >= MAX_FAILED {
                    failed.clear();
                }
                failed.insert(program, Instant::now());
                None
            }
        }
    }

    fn mount_point(&self) -> Vec<u8> {
        let path = self.mount_point.as_os_str().as_bytes();
        path.strip_suffix(b"/").unwrap_or(path).to_vec()
    }
}

/// Says why a file can't be a user's configuration.
fn trusted(file: &Below, uid: u32) -> Result<(), &'static str> {
    match file {
        _ if file.uid != uid && file.uid != 0 => Err("it belongs to another user"),
        _ if file.mode & 0o022 != 0 => Err("other users may write to it; run chmod go-w on it"),
        _ => Ok(()),
    }
}

/// Reads the configuration in a home directory that is not in the mount. `None` if there is none.
///
/// Only the home directory is reached through symbolic links, since its path is root's. Below it, a
/// link could lead to a file of another user, and a mount to a server that hangs.
fn outside(home: &Path) -> Option<Result<Below, String>> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let home = rustix::fs::open(home, directory, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(&home, OF_USER, flags, Mode::empty(), how) {
        Ok(file) => Some(contents(file).map_err(|error| error.to_string())),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => None,
        Err(errno) => Some(Err(crate::host_dir::reason(errno))),
    }
}

fn contents(file: OwnedFd) -> std::io::Result<Below> {
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(std::io::Error::other("not a regular file"));
    }
    let text = read_bounded(File::from(file))?;
    Ok(Below { uid: stat.st_uid, mode: stat.st_mode & 0o7777, text })
}

/// Resolves the symbolic links of an absolute path as far as it does not lead into the mount, where
/// this process must not look.
fn resolve(path: &Path, mount_point: &Path) -> Option<PathBuf> {
    let mut real = PathBuf::from("/");
    let mut rest: Vec<PathBuf> = components(path);
    let mut links = 0;
    while let Some(next) = rest.pop() {
        if next == Path::new("..") {
            real.pop();
            continue;
        }
        real.push(&next);
        if real.starts_with(mount_point) {
            continue;
        }
        let Ok(target) = rustix::fs::readlinkat(CWD, &real, Vec::new()) else { continue };
        links += 1;
        if links > MAX_LINKS {
            return None;
        }
        let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
        real.pop();
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        rest.extend(components(&target));
    }
    Some(real)
}

/// Returns the names of a path, the last one first.
fn components(path: &Path) -> Vec<PathBuf> {
    let names = path.components().rev();
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    names.filter(is_name).map(|part| PathBuf::from(part.as_os_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn host() -> Host {
        Host::new("/mnt/nowhere".into())
    }

    #[test]
    fn a_missing_file_is_an_error_only_if_it_was_named() {
        let why = host().admin(Path::new("/nonexistent/versionfs.conf")).unwrap_err();
        assert!(why.starts_with("/nonexistent/versionfs.conf: No such file") && why.contains("; "), "{why}");
        assert!(host().admin(Path::new("/dev/null")).unwrap_err().contains("not a regular file"));
        assert_eq!((Local.user("root"), Local.group("root")), (Some(0), Some(0)));
        assert_eq!(Local.user("no such user"), None);
    }

    #[test]
    fn accounts_are_found() {
        let passwd = "broken\nroot:x:0:0:root:/root:/bin/sh\nann:x:1000:1001::/home/ann:/bin/sh\n";
        let ann = Account { name: "ann".into(), gid: 1001, home: "/home/ann".into() };
        assert_eq!((account(passwd, 1000), account(passwd, 7)), (Some(ann), None));
        let group = "root:x:0:\nstaff:x:50:bob,ann\nx:y\nannex:x:51:annex\n";
        assert_eq!((groups_of(group, "ann"), groups_of(group, "an")), (vec![50], vec![]));
    }

    #[test]
    fn only_the_user_and_root_are_trusted() {
        let file = |uid, mode| Below { uid, mode, text: Vec::new() };
        assert_eq!((trusted(&file(5, 0o644), 5), trusted(&file(0, 0o600), 5)), (Ok(()), Ok(())));
        assert!(trusted(&file(6, 0o644), 5).is_err());
        assert!(trusted(&file(5, 0o664), 5).is_err() && trusted(&file(5, 0o646), 5).is_err());
    }

    #[test]
    fn links_and_special_files_are_not_read() {
        let home = testkit::TempDir::new();
        let conf = home.join(OF_USER);
        std::fs::create_dir_all(conf.parent().unwrap()).unwrap();
        assert!(outside(&home).is_none());
        std::fs::write(&conf, "number = \"..5\"").unwrap();
        std::fs::set_permissions(&conf, std::fs::Permissions::from_mode(0o640)).unwrap();
        let found = outside(&home).unwrap().unwrap();
        assert_eq!((found.mode, &*found.text), (0o640, &b"number = \"..5\""[..]));
        std::fs::rename(&conf, home.join("other")).unwrap();
        symlink(home.join("other"), &conf).unwrap();
        assert!(outside(&home).unwrap().is_err());
        std::fs::remove_file(&conf).unwrap();
        rustix::fs::mknodat(CWD, &conf, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(outside(&home).unwrap(), Err("not a regular file".to_owned()));
        std::fs::remove_dir_all(home.join(".config")).unwrap();
        symlink("/etc", home.join(".config")).unwrap();
        assert!(outside(&home).unwrap().is_err());
        // The home directory itself may be reached through a link.
        let link = home.join("link");
        symlink(&home, &link).unwrap();
        assert_eq!(resolve(&link.join("x/../y"), Path::new("/mnt")), Some(home.canonicalize().unwrap().join("y")));
        symlink("loop", home.join("loop")).unwrap();
        assert_eq!(resolve(&home.join("loop"), Path::new("/mnt")), None);
    }
}
