//! The header: file type detection, sessions, version numbers.

use crate::codec::BlockCodec;
use crate::format::{Fixed, HEADER, SECTOR, State, parse_header};
use crate::geometry::Geometry;
use crate::usage::Space;
use std::time::{SystemTime, UNIX_EPOCH};
use vnode::{Cx, Errno, OpenFile, Result};

/// Number of version numbers reserved at a time. Few enough that sessions, whose numbers start at
/// the time in nanoseconds, don't run ahead of the clock.
const RESERVED_NUMBERS: u64 = 1 << 16;

/// The type of a lower file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// No bytes: an empty file, valid for every codec.
    Empty,
    /// The first sector is zeros: either a new container whose header never reached the disk, or a
    /// foreign file that begins with zeros. In a tree of containers it is the former, and
    /// [`crate::Container::open`] treats it as an empty file.
    Blank,
    /// A container.
    Container {
        /// Plain size in bytes.
        size: u64,
        /// Id of the codec.
        codec: [u8; 8],
    },
    /// Any other file.
    Foreign,
}

/// Determines the type of a file with one small read.
///
/// # Errors
/// `EIO` for a container with a damaged header, `EMEDIUMTYPE` for one of a later version, and
/// errors of reading.
pub fn probe(cx: &Cx<'_>, lower: &dyn OpenFile) -> Result<Probe> {
    Ok(match read_header(cx, lower)? {
        Found::Empty => Probe::Empty,
        Found::Blank => Probe::Blank,
        Found::Foreign => Probe::Foreign,
        Found::Head(head) => Probe::Container { size: head.state.size, codec: head.fixed.codec },
    })
}

/// Returns the plain size of a file in a tree of containers, for stat(2) without opening a
/// container. `None` if it is not a container.
///
/// # Errors
/// Same as [`probe`].
pub fn plain_size(cx: &Cx<'_>, lower: &dyn OpenFile) -> Result<Option<u64>> {
    Ok(match probe(cx, lower)? {
        Probe::Empty | Probe::Blank => Some(0),
        Probe::Container { size, .. } => Some(size),
        Probe::Foreign => None,
    })
}

/// The result of [`read_header`].
pub(crate) enum Found {
    Empty,
    Blank,
    Foreign,
    Head(Box<Head>),
}

pub(crate) fn read_header(cx: &Cx<'_>, lower: &dyn OpenFile) -> Result<Found> {
    let mut header = [0; HEADER];
    let len = lower.read(cx, &mut header, 0)?;
    if len == 0 {
        return Ok(Found::Empty);
    }
    if let Some((fixed, state, record)) = parse_header(&header)? {
        return Ok(Found::Head(Box::new(Head::of(fixed, state, record))));
    }
    let blank = header.iter().take(SECTOR).all(|&byte| byte == 0);
    Ok(if blank { Found::Blank } else { Found::Foreign })
}

/// The header in memory, and the state of this session.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) fixed: Fixed,
    pub(crate) state: State,
    /// Index of the newer state record.
    pub(crate) record: usize,
    /// The number of the last version.
    pub(crate) seq: u64,
    /// Versions of this session have larger numbers than this. `None` if it has not changed
    /// anything yet.
    pub(crate) session: Option<u64>,
    /// Whether the lower file is known to contain nothing beyond the size.
    pub(crate) tail_is_clear: bool,
    /// Whether anything was written since the last sync.
    pub(crate) unsynced: bool,
    /// Statistics on the space that the file occupies.
    pub(crate) space: Space,
}

impl Head {
    fn of(fixed: Fixed, state: State, record: usize) -> Self {
        Self {
            fixed,
            state,
            record,
            seq: state.limit,
            session: None,
            tail_is_clear: false,
            unsynced: true,
            space: Space::of(&state),
        }
    }

    /// Returns the header of an empty file, with a session already begun.
    pub(crate) fn fresh(codec: &dyn BlockCodec) -> Result<Self> {
        let geometry = Geometry::of_codec(codec, codec.block_size())?;
        let mut file = [0; 16];
        getrandom::fill(&mut file).map_err(|_| Errno::IO)?;
        let start = now();
        let state =
            State { stamp: 1, limit: start.checked_add(RESERVED_NUMBERS).ok_or(Errno::IO)?, ..State::default() };
        let fixed = Fixed { geometry, codec: codec.id(), file };
        let space = Space::fresh();
        Ok(Self {
            fixed,
            state,
            record: 0,
            seq: start,
            session: Some(start),
            tail_is_clear: true,
            unsynced: true,
            space,
        })
    }

    /// Returns the state at the beginning of a session, and the number after which its versions
    /// begin.
    pub(crate) fn next_session(&self) -> Result<(State, u64)> {
        let mut state = State { counted: false, ..self.state };
        let start = state.limit.checked_add(1).ok_or(Errno::IO)?.max(now());
        if state.limit > state.durable {
            // The last writer ended before confirming durability. If no sync was ever requested,
            // the record of yet another session may have been lost in a power failure.
            let none = state.doubt_to <= state.doubt_after;
            state.doubt_after = if none { state.durable } else { state.doubt_after.min(state.durable) };
            state.doubt_to = start;
        }
        state.limit = start.checked_add(RESERVED_NUMBERS).ok_or(Errno::IO)?;
        Ok((state, start))
    }

    /// Returns the state with numbers reserved after the last one.
    pub(crate) fn state_with_numbers(&self) -> Result<State> {
        Ok(State { limit: self.seq.checked_add(RESERVED_NUMBERS).ok_or(Errno::IO)?, ..self.state })
    }

    /// Whether a session must begin, or reserve numbers, before `count` more versions are written.
    pub(crate) fn needs_session(&self, count: u64) -> bool {
        self.session.is_none() || self.seq.saturating_add(count) >= self.state.limit
    }

    /// Returns the number for a new version.
    pub(crate) fn next_seq(&mut self) -> Result<u64> {
        self.seq = self.seq.checked_add(1).ok_or(Errno::IO)?;
        Ok(self.seq)
    }

    /// Whether this version was written in this session.
    pub(crate) fn is_from_this_session(&self, seq: u64) -> bool {
        self.session.is_some_and(|start| seq > start)
    }
}

/// Returns the nanoseconds since 1970. Later sessions thus have larger numbers even if a power
/// failure lost the record of an earlier one.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|time| u64::try_from(time.as_nanos()).ok()).unwrap_or(1)
}
