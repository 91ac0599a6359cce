//! The loopback interface of a new network namespace, which is down at first.

use crate::exit::Failure;
use crate::host_dir::reason;
use rustix::io::Errno;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `RTM_NEWLINK`
const NEW_LINK: u16 = 16;
/// `NLM_F_REQUEST | NLM_F_ACK`
const REQUEST_AND_ACK: u16 = 1 | 4;
/// `NLMSG_ERROR`
const ERROR: u16 = 2;
/// `IFF_UP`
const UP: u32 = 1;
/// The loopback interface has this number in every network namespace.
const LOOPBACK: i32 = 1;
/// Length of `struct nlmsghdr` and `struct ifinfomsg`.
const LEN: u32 = 16 + 16;

/// Activates the loopback interface, so that programs in the namespace can talk to each other.
pub(super) fn raise() -> Result<(), Failure> {
    request().map_err(|errno| Failure::system(format!("can't activate the loopback interface: {}", reason(errno))))
}

fn request() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::send(&socket, &message(), SendFlags::empty())?;
    let mut reply = [0; 512];
    let (_, len) = rustix::net::recv(&socket, &mut reply, RecvFlags::empty())?;
    status(reply.get(..len).unwrap_or_default())
}

/// Returns a request to set the flag `IFF_UP` (rtnetlink(7)).
fn message() -> Vec<u8> {
    let mut message = Vec::with_capacity(LEN as usize);
    message.extend(LEN.to_ne_bytes());
    message.extend(NEW_LINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACK.to_ne_bytes());
    // Sequence number and port, then family, padding and type of the interface.
    message.extend([0; 8 + 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    // The flags to change.
    message.extend(UP.to_ne_bytes());
    message
}

/// Returns the result in a reply of the kernel.
fn status(reply: &[u8]) -> Result<(), Errno> {
    let kind = reply.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let code = reply.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(code)) => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_the_length_that_it_names() {
        assert_eq!(message().len(), LEN as usize);
        let mut reply = vec![0; 36];
        reply[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        assert_eq!(status(&reply), Ok(()));
        reply[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(status(&reply), Err(Errno::PERM));
        assert_eq!(status(&[]), Err(Errno::PROTO));
    }
}
