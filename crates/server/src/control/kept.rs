//! Replies that are longer than a frame, until they were fetched.

use core::time::Duration;
use fuse::control::{FRAME, PIECE_MAX, REPLY_MAX, Reply};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use vnode::{Errno, Result};

/// How long a reply is kept.
const LIFETIME: Duration = Duration::from_secs(10);
/// Replies that one user may have kept. Together they take at most [`REPLY_MAX`].
const MOST_OF_USER: usize = 4;
/// Bytes of all users' replies.
const MOST_BYTES: usize = 8 * REPLY_MAX;
/// Replies of all users.
const MOST: usize = 32;

/// The replies that are kept. What is fetched to its end goes at once, and what is too old at the next command.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last_token: u64,
    /// The oldest first.
    replies: Vec<Whole>,
}

#[derive(Debug)]
struct Whole {
    token: u64,
    uid: u32,
    since: Instant,
    bytes: Vec<u8>,
}

impl Kept {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the first piece of a reply, and keeps the rest for that user, if there is one.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is longer than [`REPLY_MAX`].
    pub(super) fn begin(&self, uid: u32, bytes: Vec<u8>, now: Instant, out: &mut [u8; FRAME]) -> Result<()> {
        if bytes.len() > REPLY_MAX {
            return Err(Errno::MSGSIZE);
        }
        let mut state = self.state();
        state.replies.retain(|reply| now.saturating_duration_since(reply.since) < LIFETIME);
        if bytes.len() <= PIECE_MAX {
            drop(state);
            return piece(&bytes, 0, 0).write(out);
        }
        state.make_room(uid, bytes.len());
        state.last_token += 1;
        let token = state.last_token;
        piece(&bytes, 0, token).write(out)?;
        state.replies.push(Whole { token, uid, since: now, bytes });
        Ok(())
    }

    /// Writes the piece that begins at `offset`.
    ///
    /// # Errors
    /// `ESTALE` if the reply is not kept any more, or not for that user. The command can be given again.
    pub(super) fn rest(&self, uid: u32, token: u64, offset: u64, now: Instant, out: &mut [u8; FRAME]) -> Result<()> {
        let mut state = self.state();
        state.replies.retain(|reply| now.saturating_duration_since(reply.since) < LIFETIME);
        let at = state.replies.iter().position(|reply| reply.token == token && reply.uid == uid);
        let at = at.ok_or(Errno::STALE)?;
        let reply = state.replies.get(at).ok_or(Errno::STALE)?;
        let begin = usize::try_from(offset).ok().filter(|begin| *begin < reply.bytes.len()).ok_or(Errno::INVAL)?;
        piece(&reply.bytes, begin, token).write(out)?;
        if reply.bytes.len() - begin <= PIECE_MAX {
            state.replies.remove(at);
        }
        Ok(())
    }
}

impl State {
    /// The oldest of the user's own replies go first, then the oldest of all.
    fn make_room(&mut self, uid: u32, len: usize) {
        self.drop_oldest(|reply| reply.uid == uid, MOST_OF_USER, REPLY_MAX, len);
        self.drop_oldest(|_| true, MOST, MOST_BYTES, len);
    }

    /// Drops the oldest of the replies that `counts` is true for until there is room for one more of `len` bytes.
    fn drop_oldest(&mut self, counts: impl Fn(&Whole) -> bool, most: usize, most_bytes: usize, len: usize) {
        loop {
            let those = || self.replies.iter().filter(|reply| counts(reply));
            let bytes: usize = those().map(|reply| reply.bytes.len()).sum();
            if those().count() < most && bytes + len <= most_bytes {
                return;
            }
            let Some(oldest) = self.replies.iter().position(&counts) else { return };
            self.replies.remove(oldest);
        }
    }
}

/// The piece of a reply that begins at `begin`; the last one has no token.
fn piece(bytes: &[u8], begin: usize, token: u64) -> Reply<'_> {
    let rest = bytes.get(begin..).unwrap_or_default();
    let (bytes_now, token) = match rest.split_at_checked(PIECE_MAX) {
        Some((now, later)) if !later.is_empty() => (now, token),
        _ => (rest, 0),
    };
    Reply::Piece { token, offset: begin as u64, total: bytes.len() as u64, bytes: bytes_now }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a reply of so many bytes, and answers its token.
    fn begin(kept: &Kept, uid: u32, len: usize, now: Instant) -> u64 {
        let mut out = [0; FRAME];
        kept.begin(uid, vec![1; len], now, &mut out).unwrap();
        match Reply::read(&out).unwrap() {
            Reply::Piece { token, .. } => token,
            Reply::Failed(errno) => panic!("{errno}"),
        }
    }

    fn rest(kept: &Kept, uid: u32, token: u64, now: Instant) -> Result<()> {
        kept.rest(uid, token, PIECE_MAX as u64, now, &mut [0; FRAME])
    }

    #[test]
    fn replies_are_fetched_once_and_by_their_user() {
        let (kept, now) = (Kept::default(), Instant::now());
        let (a, b) = (begin(&kept, 1, 10_000, now), begin(&kept, 1, 10_000, now));
        assert_ne!(a, b);
        assert_eq!(rest(&kept, 2, a, now), Err(Errno::STALE));
        assert_eq!(rest(&kept, 0, a, now), Err(Errno::STALE));
        for bad in [10_000, 10_001, u64::MAX] {
            assert_eq!(kept.rest(1, a, bad, now, &mut [0; FRAME]), Err(Errno::INVAL));
        }
        assert_eq!(rest(&kept, 1, a, now), Ok(()));
        assert_eq!(rest(&kept, 1, a, now), Err(Errno::STALE));
        assert_eq!(rest(&kept, 1, b + 1, now), Err(Errno::STALE));
        assert_eq!(rest(&kept, 1, b, now + LIFETIME), Err(Errno::STALE));
        assert!(kept.state().replies.is_empty());
    }

    #[test]
    fn short_replies_are_not_kept_and_long_ones_are_refused() {
        let (kept, now) = (Kept::default(), Instant::now());
        assert_eq!([0, 1, PIECE_MAX].map(|len| begin(&kept, 1, len, now)), [0; 3]);
        assert!(kept.state().replies.is_empty());
        assert_eq!(kept.begin(1, vec![0; REPLY_MAX + 1], now, &mut [0; FRAME]), Err(Errno::MSGSIZE));
        assert_ne!(begin(&kept, 1, REPLY_MAX, now), 0);
    }

    #[test]
    fn what_is_kept_is_bounded_for_each_user_and_for_all() {
        let (kept, now) = (Kept::default(), Instant::now());
        let other = begin(&kept, 2, 10_000, now);
        let tokens: Vec<u64> = (0..20).map(|_| begin(&kept, 1, 10_000, now)).collect();
        assert_eq!(kept.state().replies.len(), 1 + MOST_OF_USER);
        assert_eq!(rest(&kept, 1, tokens[15], now), Err(Errno::STALE));
        assert_eq!([16, 17, 18, 19].map(|i| rest(&kept, 1, tokens[i], now)), [Ok(()); 4]);
        assert_eq!(rest(&kept, 2, other, now), Ok(()));
        for uid in 0..100 {
            let _token = begin(&kept, uid, REPLY_MAX, now);
            let _token = begin(&kept, uid, REPLY_MAX, now);
        }
        let held = || {
            let state = kept.state();
            (state.replies.len(), state.replies.iter().map(|reply| reply.bytes.len()).sum::<usize>())
        };
        assert_eq!(held(), (8, MOST_BYTES));
        for uid in 0..100 {
            let _token = begin(&kept, uid, 10_000, now);
        }
        assert!(held().0 == MOST && held().1 <= MOST_BYTES);
        // What is too old goes at the next command, however short its answer is.
        let _token = begin(&kept, 1, 1, now + LIFETIME);
        assert!(kept.state().replies.is_empty());
    }
}
