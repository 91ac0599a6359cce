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

/// Maximum size of a reply, in bytes.
const ROOM: usize = 8 << 10;

/// Handles one request in the device's format (an [`InHeader`], then its arguments) and returns the
/// reply for the kernel: an [`OutHeader`] and the body. `None` if the opcode has no reply, or if
/// the message is shorter than a header. `flags` are the flags of [`crate::flags`] to treat as
/// agreed.
#[must_use]
pub fn handle(fs: &Arc<dyn Filesystem>, flags: u64, message: &[u8]) -> Option<Vec<u8>> {
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
