//! Messages between the processes of a sandbox, over a socket pair that they inherit.

use super::plan::Plan;
use crate::exit::Failure;
use crate::host_dir::reason;
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// Most descriptors in one message: `SCM_MAX_FD` of the kernel is 253.
pub(super) const MAX_FDS: usize = 128;

/// Longest message, in bytes. The plan is the longest: some hundred bytes for each mount.
const MAX_LEN: usize = 160 << 10;

/// A message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// To the namespace process: what to mount.
    Plan(Box<Plan>),
    /// To the front: the devices of the unions follow, in the order of the plan. Repeated for more
    /// than [`MAX_FDS`].
    Devices,
    /// To the namespace process: the unions are served, and can be mounted.
    Served,
    /// To the front: a line for the user, who can do something about it. The command still runs.
    Warning(String),
    /// To the front: a step failed. The exit status and the line for the user.
    Failed(u8, String),
    /// To the front: the command runs.
    Started,
    /// To the front: the command has stopped.
    Stopped,
    /// To the init process: send [`Self::StillStopped`] if the command is stopped now. The front
    /// may have been stopped together with the command, and [`Self::Stopped`] may arrive after both
    /// were continued.
    IsStopped,
    /// To the front: the command has stopped itself, and so should the front.
    StillStopped,
    /// To the init process: send this signal to the command.
    Signal(i32),
    /// To the front: the command has ended. Its exit status, and the position of a standard input
    /// that was opened again in the sandbox.
    Ended(u8, Option<u64>),
}

/// One end of the socket pair.
#[derive(Debug)]
pub(super) struct Messages(OwnedFd);

impl Messages {
    /// Returns both ends.
    pub(super) fn pair() -> Result<(Self, Self), Failure> {
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
        // Twice the longest message, for the kernel's own overhead.
        for end in [&a, &b] {
            rustix::net::sockopt::set_socket_send_buffer_size(end, 2 * MAX_LEN).map_err(failed)?;
        }
        Ok((Self(a), Self(b)))
    }

    /// Takes over the end with this number that this process inherited.
    pub(super) fn inherited(number: i32) -> Result<Self, Failure> {
        let own = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
        let fd = own
            .and_then(|own| rustix::process::pidfd_getfd(own, number, rustix::process::PidfdGetfdFlags::empty()))
            .map_err(failed)?;
        let _ = nix::unistd::close(number);
        Ok(Self(fd))
    }

    /// Lets the next program that this process executes inherit this end, and returns its number.
    pub(super) fn bequeath(&self) -> Result<i32, Failure> {
        rustix::io::fcntl_setfd(&self.0, FdFlags::empty()).map_err(failed)?;
        Ok(self.0.as_raw_fd())
    }

    /// Undoes [`Self::bequeath`].
    pub(super) fn keep(&self) -> Result<(), Failure> {
        rustix::io::fcntl_setfd(&self.0, FdFlags::CLOEXEC).map_err(failed)
    }

    pub(super) fn send(&self, message: &Message) -> Result<(), Failure> {
        self.send_with(message, &[])
    }

    /// Sends a message with at most [`MAX_FDS`] descriptors.
    pub(super) fn send_with(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        let text = serde_json::to_vec(message).map_err(|error| Failure::system(format!("a message: {error}")))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(failed(Errno::TOOBIG));
        }
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return sent.map(drop).map_err(failed),
            }
        }
    }

    /// Receives the next message. `None` if the other process has ended.
    pub(super) fn receive(&self) -> Result<Option<(Message, Vec<OwnedFd>)>, Failure> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = vec![0; MAX_LEN];
        let got = loop {
            let mut into = [IoSliceMut::new(&mut buffer)];
            match rustix::net::recvmsg(&self.0, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                got => break got.map_err(failed)?,
            }
        };
        if got.bytes == 0 {
            return Ok(None);
        }
        let fds = ancillary
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            })
            .collect();
        let text = buffer.get(..got.bytes).unwrap_or_default();
        let message = serde_json::from_slice(text).map_err(|error| Failure::system(format!("a message: {error}")))?;
        Ok(Some((message, fds)))
    }
}

impl AsFd for Messages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn failed(errno: Errno) -> Failure {
    Failure::system(format!("can't talk to another process of the sandbox: {}", reason(errno)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive() {
        let (a, b) = Messages::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        a.send(&Message::Failed(7, "why".to_owned())).unwrap();
        a.send_with(&Message::Devices, &[null.as_fd(); MAX_FDS]).unwrap();
        drop(a);
        assert!(matches!(b.receive().unwrap(), Some((Message::Failed(7, why), fds)) if why == "why" && fds.is_empty()));
        assert!(matches!(b.receive().unwrap(), Some((Message::Devices, fds)) if fds.len() == MAX_FDS));
        assert!(b.receive().unwrap().is_none());
    }
}
