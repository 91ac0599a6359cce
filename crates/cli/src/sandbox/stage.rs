//! Starting the processes of a sandbox: the program executes itself again, since a process with
//! threads can't create namespaces for itself.

use super::messages::Messages;
use super::namespaces::END;
use crate::exit::Failure;
use crate::host_dir::reason;
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::Pid;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

/// The running executable, wherever it is installed.
const EXECUTABLE: &str = "/proc/self/exe";

/// Starts this program as the process `name`, which inherits this end of the messages.
pub(super) fn spawn(name: &str, messages: &Messages, command: &[OsString]) -> Result<Child, Failure> {
    spawn_from(Path::new(EXECUTABLE), name, messages, command)
}

/// As [`spawn`], for a process that executes the command. A script can name /proc/self/exe as its
/// interpreter, and so get hold of the executable of the process that starts it. That must not be
/// the host's file, which root or its owner could write.
pub(super) fn spawn_protected(name: &str, messages: &Messages, command: &[OsString]) -> Result<Child, Failure> {
    let executable = read_only().or_else(|_| sealed_copy()).map_err(|errno| {
        Failure::system(format!("can't protect {EXECUTABLE} from the command: {}; is /proc mounted?", reason(errno)))
    })?;
    // The descriptor is closed only after the kernel has opened the file.
    let path = format!("/proc/self/fd/{}", executable.as_raw_fd());
    spawn_from(Path::new(&path), name, messages, command)
}

fn spawn_from(program: &Path, name: &str, messages: &Messages, command: &[OsString]) -> Result<Child, Failure> {
    let number = messages.bequeath()?;
    let child = Command::new(program).arg0(name).arg(number.to_string()).args(command).spawn();
    messages.keep()?;
    child.map_err(|error| Failure::system(format!("can't start {}: {error}; is /proc mounted?", program.display())))
}

/// Returns the executable on a read-only mount of its own.
fn read_only() -> Result<OwnedFd, Errno> {
    // The file as this process's mount namespace has it.
    let path = rustix::fs::readlink(EXECUTABLE, Vec::new())?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, &path, flags)?;
    let id = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    if id(rustix::fs::fstat(&tree)?) != id(rustix::fs::stat(EXECUTABLE)?) {
        return Err(Errno::STALE);
    }
    hostfs::restrict_mounts(tree.as_fd(), true, true)?;
    Ok(tree)
}

/// Returns a copy of the executable that nobody can change, in memory.
fn sealed_copy() -> Result<OwnedFd, Errno> {
    let from = rustix::fs::open(EXECUTABLE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let copy = rustix::fs::memfd_create("strata", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    while rustix::fs::sendfile(&copy, &from, None, 1 << 30)? > 0 {}
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&copy, seals)?;
    Ok(copy)
}

/// Ends this process when its parent ends. `parent` is the parent at an earlier time, if that has a
/// number in this process's namespace.
pub(super) fn die_with_parent(parent: Option<Pid>) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(END))
        .map_err(|errno| Failure::system(format!("can't set the parent-death signal: {}", reason(errno))))?;
    if rustix::process::getppid() == parent {
        return Ok(());
    }
    Err(Failure::system("the front process has ended"))
}

/// Opens a path as a reference.
pub(super) fn open(path: impl AsRef<Path>) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path.as_ref(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn the_copy_of_the_executable_can_not_be_changed() {
        let copy = sealed_copy().unwrap();
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let mut again = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let (mut bytes, mut original) = (Vec::new(), Vec::new());
        again.read_to_end(&mut bytes).unwrap();
        std::fs::File::open(EXECUTABLE).unwrap().read_to_end(&mut original).unwrap();
        assert!(bytes == original);
        assert_eq!(rustix::io::write(&again, b"x"), Err(Errno::PERM));
        assert!(again.set_len(0).is_err());
    }
}
