//! Finds the processes that use files of a mount, from /proc. Files are not accessed, so a mount
//! that hangs does not delay it.

use crate::mountinfo;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// A process that uses a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its process id.
    pub pid: u32,
    /// Its command name.
    pub command: String,
}

/// Returns the other processes that have files with these inode numbers open or mapped, on the
/// mount that contains `path`. Processes of other users are found only by root.
#[must_use]
pub fn of_files(path: &Path, numbers: &[u64]) -> HashMap<u64, Vec<User>> {
    let mut found: HashMap<u64, Vec<User>> = HashMap::new();
    let Some((major, minor, _)) = identity(path) else { return found };
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        let mut used: Vec<u64> = open_files(&process.path(), (major, minor));
        used.extend(mapped_files(&process.path(), (major, minor)));
        used.sort_unstable();
        used.dedup();
        for number in used.into_iter().filter(|number| numbers.contains(number)) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let user = User { pid, command: command.trim_end().to_owned() };
            found.entry(number).or_default().push(user);
        }
    }
    found
}

/// Returns the other processes that use the file system whose `st_dev` has this minor number, as
/// FUSE's file systems have: open files, mapped files, the working directory, the root directory.
#[must_use]
pub fn of_file_system(minor: u32) -> Vec<User> {
    let device = (0, minor);
    // The helper that waits for this process has inherited files of the user's shell.
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let own = [std::process::id(), parent.unsigned_abs()];
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if own.contains(&pid) {
            continue;
        }
        let path = process.path();
        let is_at = |name| identity(&path.join(name)).is_some_and(|(major, minor, _)| (major, minor) == device);
        if is_at("cwd")
            || is_at("root")
            || !open_files(&path, device).is_empty()
            || !mapped_files(&path, device).is_empty()
        {
            let command = fs::read_to_string(path.join("comm")).unwrap_or_default();
            found.push(User { pid, command: command.trim_end().to_owned() });
        }
    }
    found
}

/// Whether a process has the device open that servers read.
#[must_use]
pub fn has_device(pid: u32) -> bool {
    let mut files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == Path::new("/dev/fuse")))
}

/// Returns the minor number of the file system that a process serves, on kernels that show it
/// (Linux 6.18).
#[must_use]
pub fn served_by(pid: u32) -> Option<u32> {
    let mut files = fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?.flatten();
    files.find_map(|file| {
        let text = fs::read_to_string(file.path()).ok()?;
        text.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
    })
}

/// Returns the mount point of the mount that contains `path`, or `path` if that is unknown.
#[must_use]
pub fn mount_point(path: &Path) -> PathBuf {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let mounts = mountinfo::read();
    let found =
        opened.ok().and_then(|fd| mountinfo::mount_of(&mounts, fd.as_fd()).map(|mount| mount.point().to_owned()));
    found.unwrap_or_else(|| path.to_owned())
}

/// Returns the device and inode number of a file, as the kernel knows them.
fn identity(path: &Path) -> Option<(u32, u32, u64)> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

fn open_files(process: &Path, device: (u32, u32)) -> Vec<u64> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let identities = descriptors.filter_map(|descriptor| identity(&descriptor.path()));
    identities.filter(|&(major, minor, _)| (major, minor) == device).map(|(.., number)| number).collect()
}

/// Parses /proc/PID/maps: address, permissions, offset, device, inode, path.
fn mapped_files(process: &Path, device: (u32, u32)) -> Vec<u64> {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let device = format!("{:02x}:{:02x}", device.0, device.1);
    let lines = maps.split(|&byte| byte == b'\n').map(String::from_utf8_lossy);
    lines
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(3);
            (fields.next()? == device).then(|| fields.next()?.parse().ok()).flatten()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use std::process::{Command, Stdio};

    #[test]
    fn open_and_mapped_files_are_found() {
        let path = std::env::temp_dir().join(format!("strata-users-{}", std::process::id()));
        fs::write(&path, "x").unwrap();
        let number = fs::metadata(&path).unwrap().ino();
        assert_eq!(of_files(&path, &[number]), HashMap::new());
        // This process is not reported, although it has the file open too.
        let file = fs::File::open(&path).unwrap();
        let mut child = Command::new("sleep").arg("100").stdin(file).stdout(Stdio::piped()).spawn().unwrap();
        let found = of_files(&path, &[number]);
        // The program itself is mapped, not open.
        let program = fs::read_link(format!("/proc/{}/exe", child.id())).unwrap();
        let mapped = fs::metadata(&program).unwrap().ino();
        let by_map = of_files(&program, &[mapped]);
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(found[&number].iter().any(|user| user.pid == child.id()), "{found:?}");
        assert!(by_map[&mapped].iter().any(|user| user.pid == child.id()), "{by_map:?}");
    }
}
