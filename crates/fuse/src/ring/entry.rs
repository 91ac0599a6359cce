//! An entry of a queue: its buffers, request and reply.

use crate::abi::{InHeader, OutHeader, UringReqHeader};
use crate::core::Core;
use crate::dispatch::{Frame, Outcome};
use crate::inflight::{InFlight, Slot};
use crate::notify::KICK;
use crate::sys::Mapping;
use crate::{Errno, Opcode};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Offset of the payload. The header occupies the first page.
const PAYLOAD_AT: usize = 4096;
/// Number of bytes of the payload that an idle entry keeps.
const IDLE_PAYLOAD: usize = 16 << 10;

/// An entry of a queue: memory that kernel and server hand back and forth.
///
/// The kernel writes the memory only between the entry's submission and its completion. A user of
/// the memory must know that the entry is not submitted: the queue thread, which sees submissions
/// and completions, or the worker that holds the entry.
pub(super) struct Entry {
    memory: Mapping,
    iovecs: [libc::iovec; 2],
    slot: Arc<Slot>,
    request: InHeader,
    opcode: Option<Opcode>,
    commit_id: u64,
    payload_len: usize,
    /// Length of the last reply, in bytes.
    replied: usize,
    /// High-water mark of the payload since memory was last released.
    high_water: usize,
    /// Index in the queue's table.
    pub(super) index: usize,
    /// Whether the entry is being registered, as opposed to carrying a reply.
    pub(super) registering: bool,
    /// The queue's round in which the entry was submitted last.
    pub(super) submitted_in: u64,
}

// SAFETY: the pointers in `iovecs` point into `memory`, which the entry owns.
unsafe impl Send for Entry {}

impl Entry {
    pub(super) fn new(index: usize, payload: usize, slot: Arc<Slot>) -> Result<Box<Self>, Errno> {
        let memory = Mapping::new(PAYLOAD_AT + payload)?;
        let iovecs = [
            libc::iovec { iov_base: memory.address(0).cast(), iov_len: size_of::<UringReqHeader>() },
            libc::iovec { iov_base: memory.address(PAYLOAD_AT).cast(), iov_len: payload },
        ];
        Ok(Box::new(Self {
            memory,
            iovecs,
            slot,
            request: InHeader::new_zeroed(),
            opcode: None,
            commit_id: 0,
            payload_len: 0,
            replied: 0,
            high_water: 0,
            index,
            registering: true,
            submitted_in: 0,
        }))
    }

    pub(super) const fn iovecs(&self) -> &[libc::iovec; 2] {
        &self.iovecs
    }

    pub(super) const fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    pub(super) const fn commit_id(&self) -> u64 {
        self.commit_id
    }

    /// Decodes the request that the kernel delivered. Without a known opcode, [`Entry::serve`]
    /// refuses it.
    pub(super) fn accept(&mut self, inflight: &InFlight) -> Option<Opcode> {
        let bytes = self.memory.bytes();
        let (header, payload_len) = bytes.split_at_mut_checked(PAYLOAD_AT).map_or((None, 0), |(page, payload)| {
            (UringReqHeader::mut_from_prefix(page).ok().map(|(header, _)| header), payload.len())
        });
        // The first page is large enough and aligned, so this never returns early.
        let header = header?;
        self.commit_id = header.ring_ent_in_out.commit_id;
        self.payload_len = (header.ring_ent_in_out.payload_sz as usize).min(payload_len);
        self.request = InHeader::read_from_prefix(&header.in_out).map(|(h, _)| h).unwrap_or_default();
        self.opcode = Opcode::new(self.request.opcode);
        self.high_water = self.high_water.max(self.payload_len);
        inflight.begin(&self.slot, self.request.unique);
        self.opcode
    }

    /// Returns the request's header.
    pub(super) const fn request(&self) -> &InHeader {
        &self.request
    }

    /// Whether the request is the reply to [`crate::Notifier::kick`], which no handler sees.
    pub(super) fn is_kick_reply(&self) -> bool {
        self.opcode == Some(Opcode::NotifyReply) && self.request.unique == KICK
    }

    /// Runs the handler and encodes the reply. Returns false if the handler needs a thread that may
    /// block.
    pub(super) fn serve(&mut self, core: &Core, may_block: bool) -> bool {
        let Some((page, payload)) = self.memory.bytes().split_at_mut_checked(PAYLOAD_AT) else { return true };
        let Ok((header, _)) = UringReqHeader::mut_from_prefix(page) else { return true };
        let outcome = match self.opcode {
            None => Outcome::Error(Errno::NOSYS),
            Some(opcode) => core.dispatcher.run(
                &mut Frame {
                    header: self.request,
                    opcode,
                    first: &header.op_in,
                    payload,
                    len: self.payload_len,
                    may_block,
                    cancelled: self.slot.cancelled(),
                    pipe: None,
                },
                &core.session.counters,
            ),
        };
        if outcome == Outcome::MayBlock {
            return false;
        }
        self.set_reply(outcome);
        true
    }

    /// Encodes an error as the reply, without calling a handler.
    pub(super) fn refuse(&mut self) {
        self.set_reply(Outcome::Error(Errno::AGAIN));
    }

    fn set_reply(&mut self, outcome: Outcome) {
        InFlight::end(&self.slot);
        let (len, error) = match outcome {
            Outcome::Reply(len) => (len, 0),
            Outcome::Error(errno) => (0, -errno.raw_os_error()),
            Outcome::Nothing | Outcome::MayBlock => (0, 0),
        };
        // Handlers get no more room than the kernel requested, so a handler writes little beyond
        // its reply.
        self.high_water = self.high_water.max(len);
        self.replied = len;
        let len = u32::try_from(len).unwrap_or(0);
        let out = OutHeader { len: len + size_of::<OutHeader>() as u32, error, unique: self.request.unique };
        if let Ok((header, _)) = UringReqHeader::mut_from_prefix(self.memory.bytes()) {
            let _fits = out.write_to_prefix(&mut header.in_out);
            header.ring_ent_in_out.payload_sz = len;
        }
    }

    /// Returns the length of the last reply, in bytes.
    pub(super) const fn replied(&self) -> usize {
        self.replied
    }

    /// Whether the entry holds more memory than an idle one should.
    pub(super) const fn is_large(&self) -> bool {
        self.high_water > IDLE_PAYLOAD
    }

    /// Releases the memory of large transfers.
    pub(super) fn shrink(&mut self) {
        if self.is_large() {
            self.memory.discard(PAYLOAD_AT + IDLE_PAYLOAD..PAYLOAD_AT + self.high_water.next_multiple_of(4096));
            self.high_water = IDLE_PAYLOAD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::UringEntInOut;
    use crate::dispatch::Dispatcher;
    use crate::dummy::Dummy;
    use crate::{MountOptions, Session};
    use core::time::Duration;
    use proptest::prelude::*;

    fn core() -> Core {
        let nothing = std::fs::File::open("/dev/null").unwrap().into();
        let session = Session::unmounted(&MountOptions::new("/"), nothing);
        let dispatcher = Dispatcher::new(Arc::new(Dummy { always_blocks: true }), u64::MAX, Duration::ZERO);
        Core { session, dispatcher }
    }

    proptest! {
        /// Any bytes in an entry get a reply, whether or not the handler first asks for a blocking
        /// thread.
        #[test]
        fn arbitrary_bytes_get_a_reply(
            in_out in prop::collection::vec(any::<u8>(), 128),
            opcode in 0_u32..64,
            first in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 128),
            payload in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..500),
            payload_sz in prop_oneof![0_u32..600, any::<u32>()],
        ) {
            let core = core();
            let mut entry = Entry::new(0, 8192, core.session.inflight.add_slot()).unwrap();
            let header = UringReqHeader {
                in_out: in_out.try_into().unwrap(),
                op_in: first.try_into().unwrap(),
                ring_ent_in_out: UringEntInOut { commit_id: 77, payload_sz, ..UringEntInOut::default() },
            };
            let bytes = entry.memory.bytes();
            header.write_to_prefix(bytes).unwrap();
            bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
            bytes[PAYLOAD_AT..PAYLOAD_AT + payload.len()].copy_from_slice(&payload);
            let sent = bytes[PAYLOAD_AT..].to_vec();
            prop_assert_eq!(entry.accept(&core.session.inflight), Opcode::new(opcode));
            prop_assert_eq!(entry.commit_id(), 77);
            if !entry.serve(&core, false) {
                // The arguments that the handler reads again are unchanged.
                let used = match Opcode::new(opcode) {
                    Some(Opcode::Getxattr) => sent.iter().position(|&b| b == 0).unwrap() + 1,
                    Some(Opcode::Ioctl) => u32::from_ne_bytes(entry.memory.bytes()[128 + 24..][..4].try_into().unwrap()) as usize,
                    Some(Opcode::Read | Opcode::Readdir | Opcode::Readdirplus | Opcode::Readlink | Opcode::Listxattr) => 0,
                    _ => sent.len(),
                };
                prop_assert!(entry.memory.bytes()[PAYLOAD_AT..][..used] == sent[..used]);
                prop_assert!(entry.serve(&core, true));
            }
            let (reply, _) = UringReqHeader::read_from_prefix(entry.memory.bytes()).unwrap();
            let (out, _) = OutHeader::read_from_prefix(&reply.in_out).unwrap();
            prop_assert!((-511..=0).contains(&out.error));
            prop_assert_eq!(out.len, reply.ring_ent_in_out.payload_sz + 16);
            prop_assert!(reply.ring_ent_in_out.payload_sz <= 8192);
        }
    }
}
