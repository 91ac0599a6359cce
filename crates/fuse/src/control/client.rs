//! Client side of the control channel: sends a command and assembles the reply.

use super::{ControlRequest, FRAME, Malformed, Reply};
use crate::{Errno, sys};
use core::fmt;
use rustix::fs::{AtFlags, FileType, StatxFlags};
use std::os::fd::{AsFd, BorrowedFd};

/// Maximum number of attempts for a command whose reply the server drops before the last piece.
const MAX_ATTEMPTS: usize = 3;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The file is not on a Strata mount.
    Foreign,
    /// The server speaks this other version of the protocol.
    Version(u16),
    /// The server or a layer refused the command: `ENOTTY` if it is unknown, `EOPNOTSUPP` if it
    /// does not apply to this object, `EPERM` if the user lacks permission, `EINVAL` for its input,
    /// and others.
    Refused(Errno),
    /// The command did not reach the server: `ENOTCONN` if the server has ended, `EACCES` if the
    /// mount is closed to other users, `E2BIG` for input that is too long, and others.
    Channel(Errno),
    /// The server's reply violates the protocol.
    Garbled,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not on a Strata mount"),
            Self::Version(version) => {
                write!(
                    f,
                    "the server speaks version {version} of the control protocol, this program {}",
                    super::VERSION
                )
            }
            Self::Refused(errno) => write!(f, "the command was refused: {errno}"),
            Self::Channel(errno) => write!(f, "the server was not reached: {errno}"),
            Self::Garbled => f.write_str("the server's reply breaks the control protocol"),
        }
    }
}

impl core::error::Error for Error {}

/// Sends a command to the mount that `file` lies on: a regular file or a directory, not opened with
/// `O_PATH`. A command that acts on an object acts on this one.
///
/// # Errors
/// See [`Error`].
pub fn call(file: impl AsFd, command: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    let file = file.as_fd();
    check(file)?;
    let mut done = Err(Error::Garbled);
    for _ in 0..MAX_ATTEMPTS {
        done = call_once(command, input, &mut |frame| sys::control(file, frame));
        if done != Err(Error::Refused(Errno::STALE)) {
            break;
        }
    }
    done
}

/// Allows only regular files and directories: for device drivers and the like, the number of the
/// ioctl may mean something else. The kernel's file systems do not know it, and other servers reply
/// without our magic.
fn check(file: BorrowedFd<'_>) -> Result<(), Error> {
    // Does not send a request to the server.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, c"", flags, StatxFlags::TYPE).map_err(Error::Channel)?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile | FileType::Directory => Ok(()),
        _ => Err(Error::Foreign),
    }
}

/// Sends a frame to the server and overwrites it with the reply.
type Exchange<'a> = &'a mut dyn FnMut(&mut [u8; FRAME]) -> Result<(), Errno>;

fn call_once(command: &str, input: &[u8], exchange: Exchange<'_>) -> Result<Vec<u8>, Error> {
    let mut whole = Vec::new();
    let mut request = ControlRequest::Command { name: command, input };
    let mut frame = [0; FRAME];
    loop {
        request.write(&mut frame).map_err(Error::Channel)?;
        exchange(&mut frame).map_err(|errno| match errno {
            Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL => Error::Foreign,
            _ => Error::Channel(errno),
        })?;
        let reply = Reply::read(&frame).map_err(|wrong| match wrong {
            Malformed::Foreign => Error::Foreign,
            Malformed::Version(version) => Error::Version(version),
            Malformed::Wrong => Error::Garbled,
        })?;
        match reply {
            Reply::Failed(errno) => return Err(Error::Refused(errno)),
            Reply::Piece { offset, .. } if offset != whole.len() as u64 => return Err(Error::Garbled),
            Reply::Piece { token, bytes, .. } => {
                whole.extend_from_slice(bytes);
                if token == 0 {
                    return Ok(whole);
                }
                request = ControlRequest::Rest { token, offset: whole.len() as u64 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{PIECE_MAX, REPLY_MAX};

    /// Simulates a server that sends `whole` in pieces of `piece` bytes.
    fn serve_in_pieces(whole: &[u8], piece: usize) -> Result<Vec<u8>, Error> {
        call_once("a.b", b"input", &mut |frame| {
            let at = match ControlRequest::read(frame).unwrap() {
                ControlRequest::Command { name: "a.b", input: b"input" } => 0,
                ControlRequest::Rest { token: 7, offset } => usize::try_from(offset).unwrap(),
                other => panic!("{other:?}"),
            };
            let end = whole.len().min(at + piece);
            let token = if end == whole.len() { 0 } else { 7 };
            Reply::Piece { token, offset: at as u64, total: whole.len() as u64, bytes: &whole[at..end] }.write(frame)
        })
    }

    #[test]
    fn pieces_are_reassembled() {
        let long: Vec<u8> = (0..40_000_u32).map(|n| n as u8).collect();
        for piece in [1000, PIECE_MAX] {
            assert_eq!(serve_in_pieces(&long, piece).unwrap(), long);
        }
        assert_eq!(serve_in_pieces(b"", 10).unwrap(), b"");
        assert_eq!(serve_in_pieces(&vec![1; REPLY_MAX + 1], PIECE_MAX), Err(Error::Garbled));
    }

    #[test]
    fn invalid_replies_are_rejected() {
        let once =
            |answer: &dyn Fn(&mut [u8; FRAME]) -> Result<(), Errno>| call_once("a.b", b"", &mut |frame| answer(frame));
        assert_eq!(once(&|_| Err(Errno::NOTTY)), Err(Error::Foreign));
        assert_eq!(once(&|_| Err(Errno::NOTCONN)), Err(Error::Channel(Errno::NOTCONN)));
        // A server that replies to anything with success, or echoes the request.
        assert_eq!(once(&|_| Ok(())), Err(Error::Foreign));
        let zeros = |frame: &mut [u8; FRAME]| {
            frame.fill(0);
            Ok(())
        };
        assert_eq!(once(&zeros), Err(Error::Foreign));
        let newer = |frame: &mut [u8; FRAME]| {
            Reply::Failed(Errno::PROTO).write(frame)?;
            frame[8] = 9;
            Ok(())
        };
        assert_eq!(once(&newer), Err(Error::Version(9)));
        // The same piece forever.
        let stuck = |frame: &mut [u8; FRAME]| Reply::Piece { token: 1, offset: 0, total: 9, bytes: b"x" }.write(frame);
        assert_eq!(once(&stuck), Err(Error::Garbled));
        assert_eq!(once(&|frame| Reply::Failed(Errno::PERM).write(frame)), Err(Error::Refused(Errno::PERM)));
    }

    #[test]
    fn other_file_types_get_no_ioctl() {
        assert_eq!(Error::Foreign.to_string(), "not on a Strata mount");
        for other in ["/proc/self/stat", "/proc", "/dev/null"] {
            let file = std::fs::File::open(other).unwrap();
            assert_eq!(call(&file, "server.info", b""), Err(Error::Foreign), "{other}");
        }
        assert_eq!(call_once("none", b"", &mut |_| unreachable!()), Err(Error::Channel(Errno::INVAL)));
    }
}
