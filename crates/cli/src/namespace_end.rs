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
    is_empty(namespace) == Ok(true) && is_reachable(namespace, point) == Ok(false)
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
    let threads = match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(threads) => threads,
        Err(error) if matches!(errno(&error), Errno::NOENT | Errno::SRCH) => return Ok(false),
        Err(error) => return Err(errno(&error)),
    };
    for thread in threads.flatten() {
        match fs::metadata(thread.path().join("ns/mnt")) {
            Ok(found) if found.ino() == namespace => return Ok(true),
            Ok(_) => {}
            Err(error) if matches!(errno(&error), Errno::NOENT | Errno::SRCH) => {}
            Err(error) => return Err(errno(&error)),
        }
    }
    Ok(false)
}

/// Whether another mount namespace has the mount at `point` too, or a file keeps this one.
fn is_reachable(namespace: u64, point: &Path) -> Result<bool, Errno> {
    let own = mountinfo::read();
    let ours: Vec<&Mount> = own.iter().filter(|mount| mount.point() == point).collect();
    let is_ours = |mount: &Mount| ours.iter().any(|own| own.device() == mount.device());
    let (mut lived, mut kept) = (BTreeSet::new(), BTreeSet::new());
    for pid in processes()? {
        let Some(of_process) = namespace_of(pid)? else { continue };
        let files = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(files) => files,
            Err(error) if matches!(errno(&error), Errno::NOENT | Errno::SRCH) => continue,
            Err(error) => return Err(errno(&error)),
        };
        kept.extend(
            files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).filter(|file| is_namespace(file)),
        );
        if lived.contains(&file_of(of_process)) {
            continue;
        }
        let mounts = mountinfo::read_of(pid);
        if of_process != namespace && mounts.iter().any(is_ours) {
            return Ok(true);
        }
        kept.extend(mounts.iter().map(|mount| mount.root().to_owned()).filter(|file| is_namespace(file)));
        // That of a process that has just ended is empty.
        if !mounts.is_empty() {
            lived.insert(file_of(of_process));
        }
    }
    // A namespace without processes can have the mount by propagation.
    let elsewhere = || ours.iter().any(|mount| mount.is_shared()) && kept.difference(&lived).next().is_some();
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

/// Returns the inode number of a process's mount namespace; `None` if the process has ended.
fn namespace_of(pid: u32) -> Result<Option<u64>, Errno> {
    match fs::metadata(format!("/proc/{pid}/ns/mnt")) {
        Ok(namespace) => Ok(Some(namespace.ino())),
        Err(error) if matches!(errno(&error), Errno::NOENT | Errno::SRCH) => Ok(None),
        Err(error) => Err(errno(&error)),
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
