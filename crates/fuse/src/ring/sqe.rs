//! Submission queue entries of the io_uring transport.

use crate::abi::{IO_URING_CMD_COMMIT_AND_FETCH, IO_URING_CMD_REGISTER, UringCmdReq};
use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use std::os::fd::RawFd;
use zerocopy::IntoBytes;

/// The index of the device among the ring's registered files.
const DEVICE: types::Fixed = types::Fixed(0);
/// Offsets of `addr` (8 bytes) and `len` (4 bytes) in `struct io_uring_sqe`, which the builder does
/// not expose.
const ADDR: usize = 16;
const LEN: usize = 24;

fn command(number: u32, request: &UringCmdReq, user_data: u64) -> Entry128 {
    let mut area = [0; 80];
    if let Some(place) = area.get_mut(..size_of::<UringCmdReq>()) {
        place.copy_from_slice(request.as_bytes());
    }
    opcode::UringCmd80::new(DEVICE, number).cmd(area).build().user_data(user_data)
}

/// Returns an SQE that registers an entry, described by two `iovecs` for header and buffer, and
/// fetches a request into it.
pub(super) fn register(qid: u16, iovecs: &[libc::iovec; 2], user_data: u64) -> Entry128 {
    const { assert!(size_of::<Entry128>() == 128) };
    let request = UringCmdReq { flags: 0, commit_id: 0, qid, padding: [0; 6] };
    let mut sqe = command(IO_URING_CMD_REGISTER, &request, user_data);
    let bytes = (&raw mut sqe).cast::<u8>();
    // SAFETY: an `Entry128` is `struct io_uring_sqe` (128 bytes, checked above) and consists of
    // plain integers; these two fields lie at these offsets.
    unsafe {
        bytes.add(ADDR).cast::<u64>().write_unaligned(iovecs.as_ptr() as u64);
        bytes.add(LEN).cast::<u32>().write_unaligned(2);
    }
    sqe
}

/// Returns an SQE that commits the reply in an entry and fetches the next request into it.
pub(super) fn commit(qid: u16, commit_id: u64, user_data: u64) -> Entry128 {
    command(IO_URING_CMD_COMMIT_AND_FETCH, &UringCmdReq { flags: 0, commit_id, qid, padding: [0; 6] }, user_data)
}

/// Returns a multishot poll that completes each time `eventfd` is written.
pub(super) fn poll_eventfd(eventfd: RawFd, user_data: u64) -> Entry128 {
    let events = u32::from(libc::POLLIN.unsigned_abs());
    opcode::PollAdd::new(types::Fd(eventfd), events).multi(true).build().user_data(user_data).into()
}
