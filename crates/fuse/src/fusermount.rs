//! Mounting through fusermount3, the set-user-id program for unprivileged users.

use crate::{Errno, MountError, MountOptions};
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::ffi::OsStr;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";
/// Environment variable with the descriptor over which the program returns the device.
const COMM_FD: &str = "_FUSE_COMMFD";

/// Mounts and returns the connected device.
pub(crate) fn mount(options: &MountOptions, mountpoint: &Path) -> Result<OwnedFd, MountError> {
    let socket = |error| MountError::new("creating a socket for fusermount3", error);
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(socket)?;
    // The child inherits this end. So does a child that another thread spawns at the same time,
    // which is harmless: nothing listens to its copy.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(socket)?;
    let child = Command::new(PROGRAM)
        .arg("-o")
        .arg(OsStr::from_bytes(&options.fusermount_options()))
        .arg("--")
        .arg(mountpoint)
        .env(COMM_FD, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| MountError::new("running fusermount3", error))?;
    drop(theirs);
    let device = receive(&ours);
    let output = child.wait_with_output().map_err(|error| MountError::new("waiting for fusermount3", error))?;
    match device {
        Some(device) if output.status.success() => {
            rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).map_err(socket)?;
            Ok(device)
        }
        _ => Err(MountError::without_reason("mounting through fusermount3", message(&output.stderr))),
    }
}

/// Receives the descriptor that the program sends with one byte; `None` if it exits without sending
/// one.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Unmounts as the user who mounted; with `lazy` also while in use.
///
/// # Errors
/// fusermount3 can't be run, or refuses.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").arg("-q");
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| MountError::new("running fusermount3", error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(MountError::without_reason("unmounting through fusermount3", message(&output.stderr)))
}

fn message(stderr: &[u8]) -> String {
    let text = stderr.trim_ascii().escape_ascii().to_string();
    if text.is_empty() { "it gave no reason".to_owned() } else { text }
}
