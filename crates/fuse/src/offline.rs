//! Requests without a kernel, for tests and fuzzing of file systems.

use crate::abi::{InHeader, OutHeader};
use crate::counters::Counters;
use crate::dispatch::{Dispatcher, Outcome};
use crate::request::parse;
use crate::{Errno, Filesystem, Opcode};
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Room for a reply.
const ROOM: usize = 8 << 10;

/// Has one request handled as the device would deliver it (an [`InHeader`], then its arguments), and answers the bytes
/// that the kernel would get: an [`OutHeader`] and the reply's body. `None`: no reply, or not even a header. `flags` are
/// those of [`crate::flags`] that count as agreed.
#[must_use]
pub fn answer(fs: &Arc<dyn Filesystem>, flags: u64, message: &[u8]) -> Option<Vec<u8>> {
    let header: InHeader = parse(message).ok()?;
    let mut buffer = message.to_vec();
    buffer.resize(message.len() + ROOM, 0);
    let (outcome, at) = Opcode::new(header.opcode).map_or((Outcome::Error(Errno::NOSYS), 0), |opcode| {
        Dispatcher::new(fs.clone(), flags, Duration::ZERO).run_message(
            &mut buffer,
            message.len(),
            (header, opcode),
            (&AtomicBool::new(false), &mut crate::pipe::Pipe::new()),
            &Counters::new(0),
        )
    });
    let (body, error) = match outcome {
        Outcome::Reply(len) => (buffer.get(at..at + len)?, 0),
        Outcome::Error(errno) => (&[][..], -errno.raw_os_error()),
        Outcome::Nothing | Outcome::MayBlock => return None,
    };
    let len = u32::try_from(size_of::<OutHeader>() + body.len()).ok()?;
    let mut reply = OutHeader { len, error, unique: header.unique }.as_bytes().to_vec();
    reply.extend_from_slice(body);
    Some(reply)
}
