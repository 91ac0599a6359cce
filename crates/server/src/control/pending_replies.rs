//! Replies longer than a frame, kept until they are fetched.

use core::time::Duration;
use fuse::control::{FRAME, PIECE_MAX, REPLY_MAX, Reply};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use vnode::{Errno, Result};

/// How long a reply is kept.
const LIFETIME: Duration = Duration::from_secs(10);
/// Maximum number of replies per user. Together they take at most [`REPLY_MAX`] bytes.
const MAX_PER_USER: usize = 4;
/// Maximum size of all users' replies, in bytes.
const MAX_BYTES: usize = 8 * REPLY_MAX;
/// Maximum number of replies of all users.
const MAX_REPLIES: usize = 32;

/// The pending replies. One is dropped when its last piece was fetched, or at the first command
/// after it expired.
#[derive(Debug, Default)]
pub(super) struct PendingReplies(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last_token: u64,
    /// Oldest first.
    replies: Vec<PendingReply>,
}

#[derive(Debug)]
struct PendingReply {
    token: u64,
    uid: u32,
    since: Instant,
    bytes: Vec<u8>,
}

impl PendingReplies {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the first piece of a reply, and keeps a longer reply for that user.
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
        state.replies.push(PendingReply { token, uid, since: now, bytes });
        Ok(())
    }

    /// Writes the piece at `offset`.
    ///
    /// # Errors
    /// `ESTALE` if no such reply is kept for that user. The command can be sent again.
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
    /// Evicts the user's oldest replies first, then the oldest of all.
    fn make_room(&mut self, uid: u32, len: usize) {
        self.drop_oldest(|reply| reply.uid == uid, MAX_PER_USER, REPLY_MAX, len);
        self.drop_oldest(|_| true, MAX_REPLIES, MAX_BYTES, len);
    }

    /// Drops the oldest replies that match `counts` until there is room for another one of `len`
    /// bytes.
    fn drop_oldest(&mut self, counts: impl Fn(&PendingReply) -> bool, most: usize, most_bytes: usize, len: usize) {
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

/// Returns the piece of a reply at `begin`; the last piece has no token.
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

    /// Starts a reply of `len` bytes and returns its token.
    fn begin(pending: &PendingReplies, uid: u32, len: usize, now: Instant) -> u64 {
        let mut out = [0; FRAME];
        pending.begin(uid, vec![1; len], now, &mut out).unwrap();
        match Reply::read(&out).unwrap() {
            Reply::Piece { token, .. } => token,
            Reply::Failed(errno) => panic!("{errno}"),
        }
    }

    fn rest(pending: &PendingReplies, uid: u32, token: u64, now: Instant) -> Result<()> {
        pending.rest(uid, token, PIECE_MAX as u64, now, &mut [0; FRAME])
    }

    #[test]
    fn replies_are_fetched_once_and_by_the_same_user() {
        let (pending, now) = (PendingReplies::default(), Instant::now());
        let (a, b) = (begin(&pending, 1, 10_000, now), begin(&pending, 1, 10_000, now));
        assert_ne!(a, b);
        assert_eq!(rest(&pending, 2, a, now), Err(Errno::STALE));
        assert_eq!(rest(&pending, 0, a, now), Err(Errno::STALE));
        for bad in [10_000, 10_001, u64::MAX] {
            assert_eq!(pending.rest(1, a, bad, now, &mut [0; FRAME]), Err(Errno::INVAL));
        }
        assert_eq!(rest(&pending, 1, a, now), Ok(()));
        assert_eq!(rest(&pending, 1, a, now), Err(Errno::STALE));
        assert_eq!(rest(&pending, 1, b + 1, now), Err(Errno::STALE));
        assert_eq!(rest(&pending, 1, b, now + LIFETIME), Err(Errno::STALE));
        assert!(pending.state().replies.is_empty());
    }

    #[test]
    fn short_replies_are_not_kept_and_oversized_ones_are_refused() {
        let (pending, now) = (PendingReplies::default(), Instant::now());
        assert_eq!([0, 1, PIECE_MAX].map(|len| begin(&pending, 1, len, now)), [0; 3]);
        assert!(pending.state().replies.is_empty());
        assert_eq!(pending.begin(1, vec![0; REPLY_MAX + 1], now, &mut [0; FRAME]), Err(Errno::MSGSIZE));
        assert_ne!(begin(&pending, 1, REPLY_MAX, now), 0);
    }

    #[test]
    fn pending_replies_are_bounded_per_user_and_in_total() {
        let (pending, now) = (PendingReplies::default(), Instant::now());
        let other = begin(&pending, 2, 10_000, now);
        let tokens: Vec<u64> = (0..20).map(|_| begin(&pending, 1, 10_000, now)).collect();
        assert_eq!(pending.state().replies.len(), 1 + MAX_PER_USER);
        assert_eq!(rest(&pending, 1, tokens[15], now), Err(Errno::STALE));
        assert_eq!([16, 17, 18, 19].map(|i| rest(&pending, 1, tokens[i], now)), [Ok(()); 4]);
        assert_eq!(rest(&pending, 2, other, now), Ok(()));
        for uid in 0..100 {
            let _token = begin(&pending, uid, REPLY_MAX, now);
            let _token = begin(&pending, uid, REPLY_MAX, now);
        }
        let pending_size = || {
            let state = pending.state();
            (state.replies.len(), state.replies.iter().map(|reply| reply.bytes.len()).sum::<usize>())
        };
        assert_eq!(pending_size(), (8, MAX_BYTES));
        for uid in 0..100 {
            let _token = begin(&pending, uid, 10_000, now);
        }
        assert!(pending_size().0 == MAX_REPLIES && pending_size().1 <= MAX_BYTES);
        // Expired replies are dropped at the next command, even if its reply is short.
        let _token = begin(&pending, 1, 1, now + LIFETIME);
        assert!(pending.state().replies.is_empty());
    }
}
