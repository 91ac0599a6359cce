//! The end of the mount namespace in which the server lives. The server keeps the namespace, and so
//! its own mount, alive: nothing ends when the last other process has left. So the server looks for
//! that, and unmounts.
//!
//! It stays if the mount can be reached from elsewhere: if another namespace has the mount too, by
//! propagation or as a copy, or if the namespace is kept by a file. That the mount is in a peer
//! group says nothing: with `PrivateMounts=yes` systemd makes all mounts of a service slaves, and
//! then peers of nobody.

use crate::mountinfo::{self, Mount};
use rustix::io::Errno;
use server::Mounted;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time between two looks.
const PERIOD: Duration = Duration::from_secs(5);

/// Looks one after the other that must find nobody.
const LOOKS: u32 = 3;

/// Starts to wait for the end of the namespace, unless it is that of the machine or container, or
/// can't be observed.
pub fn watch(mounted: &Arc<Mounted>, point: &Path) {
    let machines = namespace_of(1);
    let own = namespace_of(std::process::id());
    let (Ok(Some(own)), Ok(Some(machines)), true) = (own, machines, fuse::proc_shows_callers()) else { return };
    if own == machines {
        return;
    }
    let (mounted, point) = (Arc::downgrade(mounted), point.to_owned());
    let started = std::thread::Builder::new()
        .name("namespace".to_owned())
        .stack_size(128 * 1024)
        .spawn(move || wait(own, &mounted, &point));
    if let Err(error) = started {
        tracing::warn!("can't start a thread: {error}; the server outlives its mount namespace");
    }
}

fn wait(namespace: u64, mounted: &Weak<Mounted>, point: &Path) {
    let mut looks = 0;
    loop {
        std::thread::sleep(PERIOD);
        if mounted.strong_count() == 0 {
            return;
        }
        // A process can be created while the others are looked at.
        looks = if has_ended(namespace, point) { looks + 1 } else { 0 };
        if looks >= LOOKS {
            let Some(mounted) = mounted.upgrade() else { return };
            tracing::info!("no other process is left in the mount namespace of {}: unmounting", point.display());
            crate::signals::unmount(&mounted);
            return;
        }
    }
}

/// Whether nothing can reach the mount in the namespace of this process any more. What can't be
/// read may be something that can.
fn has_ended(namespace: u64, point: &Path) -> bool {
    let ours = || mountinfo::read().into_iter().filter(|mount| mount.point() == point).collect::<Vec<_>>();
    is_empty(namespace) == Ok(true) && is_reachable(namespace, &ours()) == Ok(false)
}

/// Whether only servers like this one are in a mount namespace.
fn is_empty(namespace: u64) -> Result<bool, Errno> {
    for pid in processes()? {
        if is_in(pid, namespace)? && !is_server(pid) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a thread of a process is in a mount namespace: each can enter one alone, and the first
/// one can have ended.
fn is_in(pid: u32, namespace: u64) -> Result<bool, Errno> {
    for thread in threads(pid)? {
        if namespace_at(&thread)? == Some(namespace) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether another mount namespace than this one has one of these mounts too, or a file keeps this
/// one.
fn is_reachable(namespace: u64, ours: &[Mount]) -> Result<bool, Errno> {
    let is_ours = |mount: &Mount| ours.iter().any(|own| own.device() == mount.device());
    let (mut lived, mut kept) = (BTreeSet::new(), BTreeSet::new());
    // Namespaces of which all mounts were read.
    let mut whole = BTreeSet::new();
    for pid in processes()? {
        let threads = threads(pid)?;
        kept.extend(files(&threads)?.into_iter().filter(|file| is_namespace(file)));
        let mut roots = BTreeSet::new();
        for thread in &threads {
            let Some(of_thread) = namespace_at(thread)? else { continue };
            // mountinfo shows only what is below the root of the thread.
            let Some(root) = unless_ended(thread, fs::read_link(thread.join("root")))? else { continue };
            let is_whole = root == Path::new("/");
            if (is_whole && whole.contains(&of_thread)) || !roots.insert((of_thread, root)) {
                continue;
            }
            let mounts = mountinfo::read_of_thread(thread);
            if of_thread != namespace && mounts.iter().any(is_ours) {
                return Ok(true);
            }
            kept.extend(mounts.iter().map(|mount| mount.root().to_owned()).filter(|file| is_namespace(file)));
            // That of a thread that has just ended is empty.
            if !mounts.is_empty() {
                lived.insert(file_of(of_thread));
                whole.extend(is_whole.then_some(of_thread));
            }
        }
    }
    // A namespace without processes can have the mount by propagation.
    let elsewhere = || ours.iter().any(Mount::is_shared) && kept.difference(&lived).next().is_some();
    Ok(kept.contains(&file_of(namespace)) || elsewhere())
}

/// Returns what names a mount namespace in symbolic links of /proc, and in /proc/PID/mountinfo.
fn file_of(namespace: u64) -> PathBuf {
    PathBuf::from(format!("mnt:[{namespace}]"))
}

fn is_namespace(file: &Path) -> bool {
    file.as_os_str().as_bytes().starts_with(b"mnt:[")
}

/// Returns the processes, also those of other namespaces.
fn processes() -> Result<Vec<u32>, Errno> {
    let names = fs::read_dir("/proc").map_err(|error| errno(&error))?.flatten();
    Ok(names.filter_map(|name| name.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the directories of a process's threads in /proc; none if it has ended.
fn threads(pid: u32) -> Result<Vec<PathBuf>, Errno> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let threads = unless_ended(&process, fs::read_dir(process.join("task")))?;
    Ok(threads.into_iter().flatten().flatten().map(|thread| thread.path()).collect())
}

/// Returns what the open files of a process are, by its threads. The first one can have ended.
fn files(threads: &[PathBuf]) -> Result<Vec<PathBuf>, Errno> {
    for thread in threads {
        let files = unless_ended(thread, fs::read_dir(thread.join("fd")))?.into_iter().flatten().flatten();
        let files: Vec<_> = files.filter_map(|file| fs::read_link(file.path()).ok()).collect();
        if !files.is_empty() {
            return Ok(files);
        }
    }
    Ok(Vec::new())
}

/// Returns the inode number of a process's mount namespace; `None` if the process has ended.
fn namespace_of(pid: u32) -> Result<Option<u64>, Errno> {
    namespace_at(&PathBuf::from(format!("/proc/{pid}")))
}

/// As [`namespace_of`], for a process or thread with this directory in /proc.
fn namespace_at(thread: &Path) -> Result<Option<u64>, Errno> {
    Ok(unless_ended(thread, fs::metadata(thread.join("ns/mnt")))?.map(|namespace| namespace.ino()))
}

/// Returns what was read of a process or thread with this directory in /proc; `None` if it has
/// ended.
fn unless_ended<T>(thread: &Path, read: std::io::Result<T>) -> Result<Option<T>, Errno> {
    match read.map_err(|error| errno(&error)) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::SRCH) => Ok(None),
        // Links of a process that ends while they are followed can't be accessed.
        Err(Errno::ACCESS) if fs::symlink_metadata(thread).is_err_and(|error| errno(&error) == Errno::NOENT) => {
            Ok(None)
        }
        Err(errno) => Err(errno),
    }
}

/// Whether a process serves a mount with this program: it waits for the end of its namespace too.
fn is_server(pid: u32) -> bool {
    let program = |process: &str| fs::metadata(format!("/proc/{process}/exe")).ok().map(|exe| (exe.dev(), exe.ino()));
    pid == std::process::id()
        || (program("self").is_some_and(|own| program(&pid.to_string()) == Some(own)) && crate::users::has_device(pid))
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};
    use testkit::TempDir;

    /// Following a link of a process that ends meanwhile gives EACCES at times.
    #[test]
    fn a_process_that_ends_is_not_one_that_cannot_be_read() {
        let mut child = Command::new("true").spawn().unwrap();
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        let denied = || Err::<(), _>(std::io::Error::from(Errno::ACCESS));
        assert_eq!(unless_ended(&process, denied()), Err(Errno::ACCESS));
        child.wait().unwrap();
        assert_eq!(unless_ended(&process, denied()), Ok(None));
    }

    /// A process sees the mount, and the first one of its namespace has another root.
    #[test]
    fn a_mount_beside_the_root_of_another_process_is_reachable() {
        if testkit::runs_with_own_processes() {
            return;
        }
        let dir = TempDir::new();
        let script = "cd \"$1\"; mkdir jail mount; mount --bind / jail; mount -t tmpfs none mount
            exec 3<&0; cat <&3 & echo $!; exec chroot jail cat";
        let mut child = Command::new("unshare")
            .args(["-m", "--propagation=private", "sh", "-ec", script, "sh"])
            .arg(&*dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut other = String::new();
        output.read_line(&mut other).unwrap();
        // Both processes end with their input.
        let input = child.stdin.take().unwrap();
        let other: u32 = other.trim().parse().unwrap();
        let is_in_jail =
            || fs::read_link(format!("/proc/{}/root", child.id())).is_ok_and(|root| root != Path::new("/"));
        while !is_in_jail() {
            std::thread::yield_now();
        }
        let ours: Vec<_> =
            mountinfo::read_of(other).into_iter().filter(|mount| mount.point() == dir.join("mount")).collect();
        assert_eq!(ours.len(), 1);
        let own = namespace_of(std::process::id()).unwrap().unwrap();
        let found = is_reachable(own, &ours);
        drop(input);
        child.wait().unwrap();
        assert_eq!(found, Ok(true));
    }
}
