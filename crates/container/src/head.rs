use crate::codec::BlockCodec;
use crate::format::{Fixed, HEADER, SECTOR, State, parse_header};
use crate::geometry::Geometry;
use crate::usage::Space;
use std::time::{SystemTime, UNIX_EPOCH};
use vnode::{Cx, Errno, OpenFile, Result};

/// So many version numbers are set aside at a time: few enough that sessions, whose numbers begin at the time in nanoseconds, don't run ahead
/// of the clock.
const NUMBERS: u64 = 1 << 16;

/// What a lower file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// No bytes at all: an empty file, for every codec.
    Empty,
    /// Bytes, but the first sector is zeros: either a new container whose header never reached the disk, or a foreign file that begins
    /// with zeros. In a tree of containers it is the former, and [`crate::Container::open`] takes it as an empty file.
    Blank,
    /// A container.
    Container {
        /// Plain bytes.
        size: u64,
        /// Whose blocks it has.
        codec: [u8; 8],
    },
    /// Something else.
    Foreign,
}

/// Looks at the beginning of a file: one small read.
///
/// # Errors
/// `EIO` if it is a container with a damaged header, `EMEDIUMTYPE` if it is one of a later version, and those of reading.
pub fn probe(cx: &Cx<'_>, lower: &dyn OpenFile) -> Result<Probe> {
    Ok(match read_header(cx, lower)? {
        Found::Empty => Probe::Empty,
        Found::Blank => Probe::Blank,
        Found::Foreign => Probe::Foreign,
        Found::Head(head) => Probe::Container { size: head.state.size, codec: head.fixed.codec },
    })
}

/// The size of a file that is not open, in a tree of containers: what stat(2) shows. `None`: it is no container.
///
/// # Errors
/// As [`probe`].
pub fn plain_size(cx: &Cx<'_>, lower: &dyn OpenFile) -> Result<Option<u64>> {
    Ok(match probe(cx, lower)? {
        Probe::Empty | Probe::Blank => Some(0),
        Probe::Container { size, .. } => Some(size),
        Probe::Foreign => None,
    })
}

/// What [`read_header`] found.
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

/// The header in memory, and where this session stands.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) fixed: Fixed,
    pub(crate) state: State,
    /// Which record of the state is the newer one.
    pub(crate) record: usize,
    /// The number of the last version.
    pub(crate) seq: u64,
    /// Versions of this session have larger numbers than this. `None`: it has not changed anything yet.
    pub(crate) session: Option<u64>,
    /// Is it certain that nothing is left in the lower file beyond the size?
    pub(crate) tidy: bool,
    /// Was something written since the last time that all was durable?
    pub(crate) unsynced: bool,
    /// What is known of the space that the file takes below.
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
            tidy: false,
            unsynced: true,
            space: Space::of(&state),
        }
    }

    /// The header of a file that is still empty, with a session already begun.
    pub(crate) fn fresh(codec: &dyn BlockCodec) -> Result<Self> {
        let block = codec.block_size();
        let geometry = Geometry::new(block, codec.max_encoded(block as usize))?;
        let mut file = [0; 16];
        getrandom::fill(&mut file).map_err(|_| Errno::IO)?;
        let start = now();
        let state = State { stamp: 1, limit: start.checked_add(NUMBERS).ok_or(Errno::IO)?, ..State::default() };
        let fixed = Fixed { geometry, codec: codec.id(), file };
        let space = Space::fresh();
        Ok(Self { fixed, state, record: 0, seq: start, session: Some(start), tidy: true, unsynced: true, space })
    }

    /// The state with which a session begins, and the number that it begins after.
    pub(crate) fn next_session(&self) -> Result<(State, u64)> {
        let mut state = State { counted: false, ..self.state };
        let start = state.limit.checked_add(1).ok_or(Errno::IO)?.max(now());
        if state.limit > state.durable {
            // Whoever wrote what is there came not to know that it is durable; and if nothing was promised yet, a power failure
            // may have taken the record of yet another session.
            let none = state.doubt_to <= state.doubt_after;
            state.doubt_after = if none { state.durable } else { state.doubt_after.min(state.durable) };
            state.doubt_to = start;
        }
        state.limit = start.checked_add(NUMBERS).ok_or(Errno::IO)?;
        Ok((state, start))
    }

    /// The state with numbers set aside after the last one.
    pub(crate) fn state_with_room(&self) -> Result<State> {
        Ok(State { limit: self.seq.checked_add(NUMBERS).ok_or(Errno::IO)?, ..self.state })
    }

    /// Must a session be begun before `count` more versions are made?
    pub(crate) fn needs_session(&self, count: u64) -> bool {
        self.session.is_none() || self.seq.saturating_add(count) >= self.state.limit
    }

    /// The number of a new version.
    pub(crate) fn next_seq(&mut self) -> Result<u64> {
        self.seq = self.seq.checked_add(1).ok_or(Errno::IO)?;
        Ok(self.seq)
    }

    /// Was this version written in this session?
    pub(crate) fn is_own(&self, seq: u64) -> bool {
        self.session.is_some_and(|start| seq > start)
    }
}

/// Nanoseconds since 1970: later sessions have larger numbers even if a power failure took the record of an earlier one.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|time| u64::try_from(time.as_nanos()).ok()).unwrap_or(1)
}
