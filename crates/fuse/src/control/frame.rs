//! Encoding and decoding of frames.

use super::{FRAME, HEADER, INPUT_MAX, NAME_MAX, PIECE_MAX, REPLY_MAX, VERSION};
use crate::Errno;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout};

const REQUEST: [u8; 8] = *b"Strata?\n";
const REPLY: [u8; 8] = *b"Strata!\n";

/// Header of a frame: see the table in [`super`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    status: U32,
    token: U64,
    offset: U64,
    total: U64,
    name_len: U32,
    len: U32,
    unused: [U64; 2],
}

const _: () = assert!(size_of::<Header>() == HEADER);

impl Header {
    fn new(magic: [u8; 8]) -> Self {
        Self { magic, version: VERSION.into(), ..Self::new_zeroed() }
    }

    /// Encodes a frame: the header, the parts, zeros.
    fn write(&self, out: &mut [u8; FRAME], parts: [&[u8]; 2]) -> Option<()> {
        out.fill(0);
        let (header, mut rest) = out.split_at_mut(HEADER);
        header.copy_from_slice(self.as_bytes());
        for part in parts {
            let (place, after) = rest.split_at_mut_checked(part.len())?;
            place.copy_from_slice(part);
            rest = after;
        }
        Some(())
    }
}

/// A decoded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRequest<'a> {
    /// Run a command.
    Command {
        /// Name of the command.
        name: &'a str,
        /// Input of the command.
        input: &'a [u8],
    },
    /// Fetch the rest of an earlier reply.
    Rest {
        /// Token of the reply.
        token: u64,
        /// Offset of the rest, in bytes.
        offset: u64,
    },
}

/// Why a frame is not a request or reply of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It is not a frame of this protocol.
    Foreign,
    /// It has this other version.
    Version(u16),
    /// It violates this version of the protocol.
    Wrong,
}

impl<'a> ControlRequest<'a> {
    /// Decodes a request from arbitrary bytes.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn read(frame: &'a [u8]) -> Result<Self, Malformed> {
        let (header, body) = split(frame, REQUEST)?;
        let (name_len, len) = (header.name_len.get() as usize, header.len.get() as usize);
        let unused = header.status.get() == 0 && header.total.get() == 0 && header.has_no_extras();
        if !unused || name_len > NAME_MAX || len > INPUT_MAX {
            return Err(Malformed::Wrong);
        }
        let (token, offset) = (header.token.get(), header.offset.get());
        if token != 0 {
            let alone = name_len == 0 && len == 0;
            return if alone { Ok(Self::Rest { token, offset }) } else { Err(Malformed::Wrong) };
        }
        let (name, rest) = body.split_at_checked(name_len).ok_or(Malformed::Wrong)?;
        let input = rest.get(..len).ok_or(Malformed::Wrong)?;
        match core::str::from_utf8(name) {
            Ok(name) if offset == 0 && is_name(name) => Ok(Self::Command { name, input }),
            _ => Err(Malformed::Wrong),
        }
    }

    /// Encodes a request.
    ///
    /// # Errors
    /// `E2BIG` if name or input exceed [`NAME_MAX`] or [`INPUT_MAX`], `EINVAL` if the name is not
    /// valid.
    pub fn write(&self, frame: &mut [u8; FRAME]) -> Result<(), Errno> {
        let mut header = Header::new(REQUEST);
        let parts: [&[u8]; 2] = match *self {
            Self::Rest { token, offset } => {
                (header.token, header.offset) = (token.into(), offset.into());
                [&[], &[]]
            }
            Self::Command { name, input } => {
                if name.len() > NAME_MAX || input.len() > INPUT_MAX {
                    return Err(Errno::TOOBIG);
                }
                if !is_name(name) {
                    return Err(Errno::INVAL);
                }
                let lengths = (u32::try_from(name.len()), u32::try_from(input.len()));
                let (Ok(name_len), Ok(len)) = lengths else { return Err(Errno::TOOBIG) };
                (header.name_len, header.len) = (name_len.into(), len.into());
                [name.as_bytes(), input]
            }
        };
        header.write(frame, parts).ok_or(Errno::TOOBIG)
    }
}

/// A decoded reply: a piece of the output, or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A piece of the output.
    Piece {
        /// Token for fetching the rest; 0 in the last piece.
        token: u64,
        /// Offset of the piece, in bytes.
        offset: u64,
        /// Length of the whole output, in bytes.
        total: u64,
        /// Data of the piece, at most [`PIECE_MAX`] bytes.
        bytes: &'a [u8],
    },
    /// The command failed.
    Failed(Errno),
}

impl<'a> Reply<'a> {
    /// Decodes a reply from arbitrary bytes.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn read(frame: &'a [u8]) -> Result<Self, Malformed> {
        let (header, body) = split(frame, REPLY)?;
        let status = header.status.get();
        if !header.has_no_extras() || header.name_len.get() != 0 {
            return Err(Malformed::Wrong);
        }
        if status != 0 {
            let known = i32::try_from(status).ok().filter(|status| *status < ERRNO_END);
            return known.map(|errno| Self::Failed(Errno::from_raw_os_error(errno))).ok_or(Malformed::Wrong);
        }
        let (token, offset, total) = (header.token.get(), header.offset.get(), header.total.get());
        let bytes = body.get(..header.len.get() as usize).ok_or(Malformed::Wrong)?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(Malformed::Wrong)?;
        let fits = end <= total && total <= REPLY_MAX as u64;
        // The last piece reaches the end of the reply, and every other piece carries data.
        let has_more = end < total && !bytes.is_empty();
        if fits && (token == 0 && end == total || token != 0 && has_more) {
            Ok(Self::Piece { token, offset, total, bytes })
        } else {
            Err(Malformed::Wrong)
        }
    }

    /// Encodes a reply.
    ///
    /// # Errors
    /// `EIO` if the piece is longer than [`PIECE_MAX`].
    pub fn write(&self, frame: &mut [u8; FRAME]) -> Result<(), Errno> {
        let mut header = Header::new(REPLY);
        let bytes: &[u8] = match *self {
            Self::Failed(errno) => {
                header.status = errno.raw_os_error().unsigned_abs().into();
                &[]
            }
            Self::Piece { token, offset, total, bytes } => {
                if bytes.len() > PIECE_MAX {
                    return Err(Errno::IO);
                }
                (header.token, header.offset, header.total) = (token.into(), offset.into(), total.into());
                header.len = u32::try_from(bytes.len()).map_err(|_| Errno::IO)?.into();
                bytes
            }
        };
        header.write(frame, [bytes, &[]]).ok_or(Errno::IO)
    }
}

/// Upper bound of the kernel's errnos.
const ERRNO_END: i32 = 4096;

impl Header {
    fn has_no_extras(&self) -> bool {
        self.reserved.get() == 0 && self.unused.iter().all(|unused| unused.get() == 0)
    }
}

/// Whether the name has the form `LAYER.WORD`: lower-case letters, digits and hyphens, separated by
/// dots.
fn is_name(name: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    name.contains('.') && name.split('.').all(is_word)
}

/// Splits a frame of this version into header and body.
fn split(frame: &[u8], magic: [u8; 8]) -> Result<(Header, &[u8]), Malformed> {
    let (header, body) = Header::read_from_prefix(frame).map_err(|_| Malformed::Foreign)?;
    if header.magic != magic || frame.len() != FRAME {
        return Err(Malformed::Foreign);
    }
    match header.version.get() {
        VERSION => Ok((header, body)),
        other => Err(Malformed::Version(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(request: &ControlRequest<'_>) -> [u8; FRAME] {
        let mut frame = [7; FRAME];
        request.write(&mut frame).unwrap();
        frame
    }

    fn replied(reply: &Reply<'_>) -> [u8; FRAME] {
        let mut frame = [7; FRAME];
        reply.write(&mut frame).unwrap();
        frame
    }

    #[test]
    fn the_layout_matches_the_documentation() {
        let frame = written(&ControlRequest::Command { name: "a.b", input: b"xyz" });
        assert_eq!(frame[..16], *b"Strata?\n\x01\0\0\0\0\0\0\0");
        assert_eq!((&frame[40..44], &frame[44..48]), (&[3, 0, 0, 0][..], &[3, 0, 0, 0][..]));
        assert_eq!(&frame[64..71], b"a.bxyz\0");
        let frame = written(&ControlRequest::Rest { token: 0x0102, offset: 5 });
        assert_eq!(frame[16..32], *b"\x02\x01\0\0\0\0\0\0\x05\0\0\0\0\0\0\0");
        let frame = replied(&Reply::Piece { token: 9, offset: 1, total: 1000, bytes: b"piece" });
        assert_eq!((&frame[..8], frame[16], frame[24], &frame[32..34]), (&b"Strata!\n"[..], 9, 1, &[232, 3][..]));
        assert_eq!((frame[44], &frame[64..70]), (5, &b"piece\0"[..]));
        assert_eq!(replied(&Reply::Failed(Errno::PERM))[12..16], [1, 0, 0, 0]);
        assert_eq!(super::super::CONTROL, 0xe000_5301);
    }

    #[test]
    fn limits_are_enforced() {
        let mut frame = [0; FRAME];
        let (name, input) = (format!("a.{}", "b".repeat(NAME_MAX - 2)), vec![1; INPUT_MAX]);
        let longest = ControlRequest::Command { name: &name, input: &input };
        assert_eq!(ControlRequest::read(&written(&longest)), Ok(longest));
        let more = [&input[..], b"x"].concat();
        assert_eq!(ControlRequest::Command { name: &name, input: &more }.write(&mut frame), Err(Errno::TOOBIG));
        let longer = format!("{name}x");
        assert_eq!(ControlRequest::Command { name: &longer, input: b"" }.write(&mut frame), Err(Errno::TOOBIG));
        for bad in ["", "a", "a.", ".a", "a..b", "A.b", "a.b c", "a.b\n", "ä.b", "a/b.c"] {
            assert_eq!(
                ControlRequest::Command { name: bad, input: b"" }.write(&mut frame),
                Err(Errno::INVAL),
                "{bad:?}"
            );
        }
        let piece = vec![1; PIECE_MAX + 1];
        let reply = Reply::Piece { token: 0, offset: 0, total: 9000, bytes: &piece };
        assert_eq!(reply.write(&mut frame), Err(Errno::IO));
        let mut odd = replied(&Reply::Failed(Errno::IO));
        odd[13] = 0x10;
        assert_eq!(Reply::read(&odd), Err(Malformed::Wrong));
    }

    #[test]
    fn other_versions_and_foreign_frames_are_distinguished() {
        let good = written(&ControlRequest::Command { name: "a.b", input: b"" });
        let changed = |at: usize, byte: u8| {
            let mut frame = good;
            frame[at] = byte;
            ControlRequest::read(&frame).map(|_| ()).unwrap_err()
        };
        assert_eq!(changed(0, b's'), Malformed::Foreign);
        assert_eq!(changed(8, 2), Malformed::Version(2));
        for at in [10, 12, 24, 32, 43, 47, 48, 63, 64] {
            assert_eq!(changed(at, 0xff), Malformed::Wrong, "{at}");
        }
        assert_eq!(ControlRequest::read(&good[..100]), Err(Malformed::Foreign));
        assert_eq!(Reply::read(&good), Err(Malformed::Foreign));
        assert_eq!(ControlRequest::read(&[]), Err(Malformed::Foreign));
    }

    #[test]
    fn inconsistent_replies_are_rejected() {
        let piece =
            |token, offset, total, bytes| Reply::read(&replied(&Reply::Piece { token, offset, total, bytes })).is_ok();
        assert!(piece(0, 0, 0, b"") && piece(0, 4, 5, b"x") && piece(1, 0, 5, b"x"));
        // No progress, beyond the end, an end too early or too late, too much.
        assert!(!piece(1, 0, 5, b"") && !piece(0, 5, 5, b"x") && !piece(0, 0, 5, b"x") && !piece(1, 4, 5, b"x"));
        assert!(!piece(1, 0, REPLY_MAX as u64 + 1, b"x") && !piece(0, u64::MAX, 5, b"x"));
    }

    proptest! {
        #[test]
        fn written_requests_are_read_back(name in "[a-z]{1,20}\\.[a-z0-9-]{1,20}", input in proptest::collection::vec(any::<u8>(), 0..500)) {
            let request = ControlRequest::Command { name: &name, input: &input };
            let frame = written(&request);
            prop_assert_eq!(ControlRequest::read(&frame), Ok(request));
        }

        #[test]
        fn no_bytes_panic(header in proptest::collection::vec(any::<u8>(), 0..HEADER), magic in 0..3, length in 0..FRAME + 2) {
            let mut frame = vec![0; length];
            let start = match magic { 0 => &REQUEST[..], 1 => &REPLY[..], _ => &[] };
            for (place, byte) in frame.iter_mut().zip(start.iter().copied().chain(header)) {
                *place = byte;
            }
            if magic < 2 && let Some(version) = frame.get_mut(8..10) {
                version.copy_from_slice(&VERSION.to_le_bytes());
            }
            if let Ok(ControlRequest::Command { name, input }) = ControlRequest::read(&frame) {
                prop_assert!(name.len() <= NAME_MAX && input.len() <= INPUT_MAX);
            }
            if let Ok(Reply::Piece { bytes, total, .. }) = Reply::read(&frame) {
                prop_assert!(bytes.len() <= PIECE_MAX && total <= REPLY_MAX as u64);
            }
        }

        /// Runs the checks of the fuzz target `control` on frames that get further than random
        /// bytes.
        #[test]
        fn decoding_and_encoding_round_trip(frame in frames()) {
            let mut again = [7; FRAME];
            if let Ok(request) = ControlRequest::read(&frame) {
                prop_assert_eq!(request.write(&mut again), Ok(()));
                prop_assert_eq!(ControlRequest::read(&again), Ok(request));
            }
            if let Ok(reply) = Reply::read(&frame) {
                prop_assert_eq!(reply.write(&mut again), Ok(()));
                prop_assert_eq!(Reply::read(&again), Ok(reply));
            }
        }
    }

    /// Frames of both kinds with small, large and invalid numbers in each field.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let edges = [NAME_MAX, INPUT_MAX, PIECE_MAX, REPLY_MAX, FRAME].map(|edge| edge as u64);
        let near = (proptest::sample::select(edges.to_vec()), 0..3_u64).prop_map(|(edge, more)| edge + more - 1);
        let number = prop_oneof![16 => Just(0), 4 => 1..9_u64, 2 => near, 1 => any::<u64>()].boxed();
        let low = number.clone().prop_map(|number| u32::try_from(number).unwrap_or(u32::MAX)).boxed();
        let longs = (number.clone(), number.clone(), number);
        let shorts = (low.clone(), low.clone(), low);
        let body = prop_oneof![
            "[a-z]\\.[a-z0-9-]{1,9}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..30)
        ];
        (any::<bool>(), longs, shorts, body).prop_map(
            |(asks, (token, offset, total), (status, name_len, len), body)| {
                let header = Header {
                    status: status.into(),
                    token: token.into(),
                    offset: offset.into(),
                    total: total.into(),
                    name_len: name_len.into(),
                    len: len.into(),
                    ..Header::new(if asks { REQUEST } else { REPLY })
                };
                let mut frame = vec![0; FRAME];
                frame.iter_mut().zip(header.as_bytes().iter().chain(&body)).for_each(|(place, byte)| *place = *byte);
                frame
            },
        )
    }

    #[test]
    fn generated_frames_pass_the_header_checks() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let mut found = [0; 4];
        for _ in 0..4000 {
            let frame = proptest::strategy::ValueTree::current(&frames().new_tree(&mut runner).unwrap());
            match (ControlRequest::read(&frame), Reply::read(&frame)) {
                (Ok(ControlRequest::Command { .. }), _) => found[0] += 1,
                (Ok(ControlRequest::Rest { .. }), _) => found[1] += 1,
                (_, Ok(Reply::Piece { .. })) => found[2] += 1,
                (_, Ok(Reply::Failed(_))) => found[3] += 1,
                _ => {}
            }
        }
        assert!(found.iter().all(|&count| count > 10), "{found:?}");
    }
}
