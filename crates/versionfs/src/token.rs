//! Tokens: names under which one lookup after another finds an old version, for a few seconds.
//!
//! A command returns a token, and the program opens it in the same directory. The kernel checks the
//! permissions of what it opens, so a token only has to be unguessable as far as directories on the
//! way to the version would have denied access.

use crate::reply;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Errno, Result, Vnode};

/// How every token begins.
const PREFIX: &[u8] = b".;open;";

/// How long a token is valid.
const LIFETIME: Duration = Duration::from_secs(10);

/// Tokens of one user that are valid at the same time. The oldest is dropped for a new one.
const PER_USER: usize = 16_384;

#[derive(Debug)]
struct Opened {
    dir: u64,
    until: Instant,
    vnode: Arc<dyn Vnode>,
}

/// The valid tokens.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    opened: HashMap<[u8; 16], Opened>,
    /// The tokens of each user, the oldest first.
    by_user: HashMap<u32, VecDeque<[u8; 16]>>,
}

impl Tokens {
    /// Returns a new token that finds `vnode` in the directory with the number `dir`.
    ///
    /// # Errors
    /// `EIO` if there are no random numbers.
    pub(crate) fn issue(&self, user: u32, dir: u64, vnode: Arc<dyn Vnode>) -> Result<Vec<u8>> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
        let now = Instant::now();
        let mut state = self.0.lock();
        let expired = state.make_room(user, now);
        state.opened.insert(random, Opened { dir, until: now + LIFETIME, vnode });
        state.by_user.entry(user).or_default().push_back(random);
        drop(state);
        // Outside the lock: dropping a vnode may close files.
        drop(expired);
        let mut token = PREFIX.to_vec();
        for byte in random {
            token.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        Ok(token)
    }

    /// Returns what `name` finds in a directory, if it is a valid token.
    pub(crate) fn find(&self, dir: u64, name: &[u8]) -> Option<Arc<dyn Vnode>> {
        let random = parse(name)?;
        let state = self.0.lock();
        let opened = state.opened.get(&random)?;
        (opened.dir == dir && opened.until > Instant::now()).then(|| Arc::clone(&opened.vnode))
    }
}

impl State {
    /// Removes expired tokens, and the user's oldest if there are too many.
    fn make_room(&mut self, user: u32, now: Instant) -> Vec<Opened> {
        let mut removed = Vec::new();
        let Self { opened, by_user } = self;
        by_user.retain(|owner, tokens| {
            while let Some(oldest) = tokens.front() {
                let is_valid = opened.get(oldest).is_some_and(|opened| opened.until > now);
                if is_valid && (*owner != user || tokens.len() < PER_USER) {
                    break;
                }
                removed.extend(opened.remove(oldest));
                tokens.pop_front();
            }
            !tokens.is_empty()
        });
        removed
    }
}

fn parse(name: &[u8]) -> Option<[u8; 16]> {
    let digits = name.strip_prefix(PREFIX).filter(|digits| digits.len() == 32)?;
    let mut random = [0; 16];
    for (byte, pair) in random.iter_mut().zip(digits.chunks_exact(2)) {
        if !pair.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(random)
}

/// Returns the reply that consists of a token.
pub(crate) fn as_reply(token: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    reply::escape(token, &mut out);
    out.push(b'\n');
    out
}
